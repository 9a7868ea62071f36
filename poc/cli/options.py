"""The options of each command, and what they select: recipes, machine, price, images, results."""

# ruff: noqa: RUF009  # the functions that declare fields return what dataclasses.field does

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Callable

from annotated_types import Ge, Lt

from poc import config, frameworks
from poc.advice.advise import STEPS
from poc.config import literals
from poc.host import hardware
from poc.host.hardware import Hardware
from poc.plan import Planned, select
from poc.plan import plan as plan_recipe
from poc.published import prices
from poc.published.prices import Prices
from poc.records import journal
from poc.records.record import Record
from poc.run import step_profile
from poc.values import Count, Positive, UserError, checked, suggest

HOME = Path(__file__).resolve().parents[2]
"""The checkout."""
_RECIPE_FOLDERS = ("recipes", "recipes/studies", "recipes/research")
"""The core recipes first, then those that --all adds."""
TARGET = 0.75
"""The accuracy for which pages have time and cost, unless the user gives another."""
_ABSENT: Any = dataclasses.MISSING
_JSON = "print JSON, for a program"


def _absolute(path: str) -> Path:
    return Path(path).absolute()


_TYPES: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "Path": _absolute}


def _option(
    about: str,
    metavar: str | None = None,
    *,
    default: Any = None,
    flag: str = "",
    check: Any = None,
    **argument: Any,
) -> Any:
    """Declare a field that is an option, by default --NAME.

    `check` is a type of poc.values; `argument` is passed to `argparse`.
    """
    metadata = {"argument": {"help": about, "metavar": metavar, **argument}, "flag": flag, "check": check}
    factory = list if default == [] else _ABSENT
    return dataclasses.field(default=_ABSENT if default == [] else default, default_factory=factory, metadata=metadata)


def _positional(about: str, metavar: str, **argument: Any) -> Any:
    """Declare a field that is a positional argument."""
    return dataclasses.field(metadata={"argument": {"help": about, "metavar": metavar, **argument}})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a command; its fields' types say how a text is read. Raises UserError for a number out of range."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check, value = field.metadata.get("check"), getattr(self, field.name)
            if check and value is not None:
                checked(f"--{field.name}", value, check)

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        """Add an argument for each field."""
        for field in dataclasses.fields(cls):
            kind, argument = str(field.type).removesuffix(" | None"), dict(field.metadata["argument"])
            if kind == "bool":
                del argument["metavar"]
                argument["action"] = "store_true"
            else:
                argument.setdefault("type", _TYPES.get(kind.removeprefix("list[").removesuffix("]")))
            if "flag" not in field.metadata:
                parser.add_argument(field.name, **argument)
                continue
            if kind.startswith("list["):
                argument.update(action="append", default=[])
            else:
                argument["default"] = field.default
            if kind in ("int", "float") and field.default is not None:
                argument["help"] += f" (default: {field.default:g})"
            parser.add_argument(field.metadata["flag"] or f"--{field.name}", dest=field.name, **argument)


@dataclass(frozen=True, kw_only=True)
class MachineOptions(Options):
    """This machine's name and price."""

    machine: str | None = _option("its name in results (default: cloud instance type, else hardware)", "NAME")
    price: float | None = _option(
        "price per hour (default: that in poc/published/prices.csv)", "DOLLARS", check=Positive
    )

    def machine_name(self, machine: Hardware) -> str:
        """Return what results call this machine: --machine, its type of cloud instance, or its hardware."""
        return self.machine or instance_type() or machine.describe()

    def prices(self, name: str) -> Prices:
        """Return the known prices, with the one that the user gave for this machine."""
        return prices.load({} if self.price is None else {name: self.price})


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """The images."""

    data: Path | None = _option("CIFAR-10, or ImageNet records (default: $POC_DATA, the cache, or a download)", "DIR")

    def source(self) -> Path | None:
        """Return the folder or file of real images; None if the user named none.

        A path in POC_DATA need not exist if no recipe needs it. Raises UserError if --data does not exist.
        """
        if self.data and not self.data.exists():
            raise UserError(f"--data: {self.data} does not exist; give a folder or file that holds CIFAR-10")
        folder = self.data or os.environ.get("POC_DATA")
        return Path(folder).absolute() if folder else None


@dataclass(frozen=True, kw_only=True)
class ResultsOptions(Options):
    """The folder of results."""

    results: Path | None = _option("folder of journals and pages (default: results/, with results.md above)", "DIR")

    @property
    def folder(self) -> Path:
        """Return the folder of results."""
        return self.results or HOME / "results"

    @property
    def page(self) -> Path:
        """Return the file of the main page."""
        return (self.results or HOME) / "results.md"

    def records(self) -> list[Record]:
        """Read the records in the folder of results."""
        return journal.read(journal.paths(self.folder))

    def existing_records(self) -> list[Record]:
        """Read the records in the folder of results; raises UserError if it has no journal."""
        if journal.paths(self.folder):
            return self.records()
        if self.results is None:
            how = f"start ./run_all.sh --quick, or give --results {HOME / 'reference'} for what this project measured"
            raise UserError(f"results: no runs yet in {self.folder}; {how}")
        problem = "holds no journal" if self.folder.is_dir() else "is no folder"
        raise UserError(f"--results: {self.folder} {problem}; give one with MACHINE/{journal.FILE} in it")


@dataclass(frozen=True, kw_only=True)
class OthersOptions(ResultsOptions):
    """The folder of results, and the folders of others."""

    others: list[Path] = _option("show these results, too; may be repeated", "FOLDER", flag="--with", default=[])

    def all_records(self) -> list[Record]:
        """Read the records in all folders; raises UserError if there are no journals."""
        records = self.records() if self.others else self.existing_records()
        return [*records, *journal.read_with(records, self.others)]


@dataclass(frozen=True, kw_only=True)
class StudyOptions(Options):
    """Published studies, and the accuracy that a training is to reach."""

    study: list[Path] = _option("a published study, a CSV like those in poc/published/", "FILE", default=[])
    target: float = _option("accuracy of time and cost", "ACCURACY", default=TARGET, check=Annotated[Positive, Lt(1)])


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(Options):
    """The chosen runs."""

    recipes: list[str] = _positional("a recipe's name, or a Python file (default: recipes/)", "RECIPE", nargs="*")
    all: bool = _option("those in recipes/studies/ and recipes/research/, too", default=False)
    settings: list[str] = _option("set a field of the recipes", "FIELD=VALUE[,VALUE]", flag="--set", default=[])
    quick: bool = _option("a first look: each run cut short, and marked as quick", default=False)
    cpu: bool = _option("CPU runs, too, on a machine with GPUs", default=False)
    only: list[str] = _option("only runs whose id starts so (see plan --verbose)", "ID", default=[])

    @property
    def named(self) -> bool:
        """Return whether the user named recipes or runs."""
        return bool(self.recipes or self.only)

    def paths(self) -> list[Path]:
        """Return the files of the named recipes, else of the core ones, or with --all of all.

        Raises UserError for a name that no recipe has, and for names with --all.
        """
        if self.recipes and self.all:
            raise UserError("--all: it runs every recipe; leave the names out, or leave out --all")
        if self.recipes:
            return list(dict.fromkeys(map(recipe_path, self.recipes)))
        return _recipe_files(_RECIPE_FOLDERS if self.all else _RECIPE_FOLDERS[:1])

    def names(self) -> tuple[str, ...]:
        """Return the recipes as the user named them."""
        return tuple(self.recipes or (path.stem for path in self.paths()))

    def plans(self, machine: Hardware) -> list[tuple[str, list[Planned]]]:
        """Return the runs of the chosen recipes on this machine, by recipe."""
        fields = literals.fields(self.settings)
        planned = []
        for path in self.paths():
            recipe = config.load(path, frameworks.FRAMEWORKS, fields)
            items = plan_recipe(path.stem, recipe, machine, quick=self.quick, cpu=self.cpu, named=self.named)
            planned.append((path.stem, items))
        selected = set(map(id, select([item for _, items in planned for item in items], self.only)))
        grouped = [(name, [item for item in items if id(item) in selected]) for name, items in planned]
        return [(name, items) for name, items in grouped if items]


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(DataOptions):
    """Options of `poc doctor`."""

    json: bool = _option(_JSON, default=False)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(ResultsOptions, MachineOptions, RecipeOptions):
    """Options of `poc plan`."""

    verbose: bool = _option("list each run with its id, global batch and time, or why it is skipped", default=False)
    json: bool = _option(_JSON, default=False)


@dataclass(frozen=True, kw_only=True)
class RunOptions(StudyOptions, OthersOptions, DataOptions, MachineOptions, RecipeOptions):
    """Options of `poc run`."""

    hours: float | None = _option("end by then; the same command goes on with what is left", "H", check=Positive)
    dollars: float | None = _option("the same, when so much is spent at the machine's price", "D", check=Positive)
    again: bool = _option("repeat runs that the journal holds already", default=False)
    detail: bool = _option("afterwards, measure what of a step is computation and communication", default=False)
    rounds: int = _option(
        "pairs of windows of --detail", "N", default=step_profile.ROUNDS, check=Annotated[Count, Ge(3)]
    )
    checkpoints: Path | None = _option("keep checkpoints (default: in the cache until the run completes)", "DIR")
    patience: float = _option("end a run that makes no step for so long", "SECONDS", default=300.0, check=Positive)
    cluster: str | None = _option("run on all machines of a Ray cluster: address, auto or local", "ADDRESS")
    verbose: bool = _option("say each run's id, settings, expected time and windows, too", default=False)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(StudyOptions, OthersOptions):
    """Options of `poc report`."""

    price: list[tuple[str, float]] = _option(
        "price per hour of a machine; may be repeated", "NAME=DOLLARS", default=[], type=prices.named
    )


@dataclass(frozen=True, kw_only=True)
class PublishOptions(StudyOptions, ResultsOptions):
    """Options of `poc publish`."""

    machine: str = _option("the machine to publish (default: the one that ran last)", "NAME", default="")
    output: Path = _option("put the folder NAME_DATE here (default: the current folder)", "DIR", default=Path())


@dataclass(frozen=True, kw_only=True)
class ShowOptions(OthersOptions):
    """Options of `poc show`."""

    run: str = _positional("how its id starts (see plan --verbose), with @MACHINE or @COMMIT to choose repeats", "ID")
    json: bool = _option(_JSON, default=False)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(OthersOptions):
    """Options of `poc compare`."""

    runs: list[str] = _positional("as for show: ID, ID@MACHINE, ID@COMMIT or ID@MACHINE@COMMIT", "ID", nargs=2)
    json: bool = _option(_JSON, default=False)


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(ResultsOptions, MachineOptions, DataOptions):
    """Options of `poc advise`."""

    recipe: str = _positional("a name in recipes/, or a Python file; its first setting that can run here", "RECIPE")
    steps: int = _option("length of each short run", "N", default=STEPS, check=Annotated[Count, Ge(20)])
    on: str | None = _option("another machine, as poc/published/prices.csv or a study calls it; nothing is run", "NAME")


@dataclass(frozen=True, kw_only=True)
class NetworksOptions(Options):
    """Options of `poc networks`."""

    count: bool = _option("first count what they cost anew, as the frameworks build them", default=False)


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions(Options):
    """Options of `poc environment`."""

    torch: bool = _option("PyTorch, too, on a machine whose framework is MXNet", default=False)
    dev: bool = _option("what the tests need", default=False)
    ray: bool = _option("Ray, for clusters", default=False)
    horovod: bool = _option("Horovod, compiled for CPUs", default=False)


def recipe_path(name: str) -> Path:
    """Return the file of the recipe of that name, with or without .py, or at that path; raises UserError."""
    path = Path(name)
    if path.suffix == ".py":
        for place in (path, HOME / path):  # a path as people copy it from the checkout
            if place.is_file():
                return place
    recipes = {file.stem: file for file in _recipe_files(_RECIPE_FOLDERS)}
    stem = path.name.removesuffix(".py")
    if path.name == name and stem in recipes:
        return recipes[stem]
    hint = suggest(stem, recipes)
    if path.suffix == ".py":
        raise UserError(f"recipe: {name} is not a file, nor a recipe in recipes/; {hint}")
    raise UserError(f"recipe: no {name!r} in recipes/; {hint}")


def _recipe_files(folders: Sequence[str]) -> list[Path]:
    """Return the recipes in these folders; a file whose name starts with _ is shared by recipes."""
    files = [path for folder in folders for path in sorted((HOME / folder).glob("*.py"))]
    return [path for path in files if not path.name.startswith("_")]


def instance_type() -> str:
    """Return the type of cloud instance that this machine is; empty if it has no price."""
    name = hardware.product_name()
    return name if name in prices.load({}).by_name else ""
