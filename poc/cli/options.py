"""What the options of a command select: recipes, machine, price, images, results."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from poc import config, data
from poc.config import Recipe, literals
from poc.host import hardware
from poc.host.control_groups import text
from poc.host.environment import cache
from poc.host.hardware import Hardware
from poc.plan import Planned, check_gpus, plan, select
from poc.published import prices
from poc.published.prices import Price, Prices
from poc.records import journal
from poc.records.record import Record
from poc.run.launcher import RunContext
from poc.values import UserError, suggest

HOME = Path(__file__).resolve().parents[2]  # the checkout
_RECIPE_FOLDERS = ("recipes", "recipes/studies", "recipes/research")  # core recipes first, then those of --all


class Options(argparse.Namespace):
    """The options of a command, as the parser reads them, and what follows from them."""

    def machine_name(self, machine: Hardware) -> str:
        """Return what results call this machine: --machine, its type of cloud instance, or its hardware."""
        name = text(hardware.PRODUCT_NAME)
        return self.machine or (name if name in prices.load({}) else machine.describe())

    def prices(self, name: str) -> Prices:
        """Return the known prices, with the one that the user gave for this machine."""
        return prices.load({} if self.price is None else {name: self.price})

    def known_price(self, machine: Hardware) -> Price | None:
        name = self.machine_name(machine)
        return self.prices(name).of(name, machine.describe())

    def context(self, machine: Hardware) -> RunContext:
        """Return the context of short runs on this machine. Raises UserError as `source`."""
        name = self.machine_name(machine)
        return RunContext(machine=machine, infrastructure=name, source=self.source(), cache=cache())

    def source(self) -> Path | None:
        """Return the folder or file of real images; None if the user named none.

        A path in POC_DATA need not exist if no recipe needs it. Raises UserError if --data does not exist.
        """
        if self.data and not self.data.exists():
            raise UserError(f"--data: {self.data} does not exist; give a folder or file that holds CIFAR-10")
        folder = self.data or os.environ.get("POC_DATA")
        return Path(folder).absolute() if folder else None

    def all_records(self) -> list[Record]:
        """Read the records in all folders; raises UserError if there are no journals."""
        if not self.others and not journal.paths(self.results):
            raise UserError(
                f"--results: no MACHINE/{journal.FILE} in {self.results}; start ./run_all.sh --quick, or give "
                f"--with {HOME / 'reference'} for what this project measured"
            )
        records = journal.read(journal.paths(self.results))
        return [*records, *journal.read_with(records, self.others)]

    @property
    def plan_options(self) -> dict[str, bool]:
        return {"quick": self.quick, "cpu": self.cpu, "named": bool(self.recipes or self.only)}

    def load_recipes(self) -> list[tuple[str, Recipe]]:
        """Return the named recipes, by default the core ones, with their names and with the fields of --set."""
        paths = [recipe_path(name) for name in self.recipes]
        if self.all or not self.recipes:
            paths += _recipe_files(_RECIPE_FOLDERS if self.all else _RECIPE_FOLDERS[:1])
        return [(path.stem, self.load_recipe(path)) for path in dict.fromkeys(paths)]

    def load_recipe(self, path: Path) -> Recipe:
        """Return the recipe in a file, with the fields of --set."""
        return config.load(path, literals.fields(self.settings), data.count)

    def planned(self, machine: Hardware) -> list[Planned]:
        """Return the runs of the chosen recipes on this machine."""
        recipes = self.load_recipes()
        if not self.cpu:
            check_gpus([recipe for _, recipe in recipes], machine, "--cpu, or a recipe with kind='cpu'")
        planned: list[Planned] = []
        for name, recipe in recipes:
            try:
                planned += plan(name, recipe, machine, **self.plan_options)
            except UserError as error:
                raise UserError(f"{name}.py: {error}") from None
        return select(planned, self.only)


def recipe_path(name: str) -> Path:
    """Return the file of the recipe of that name, with or without .py, or at that path; raises UserError."""
    for path in (Path(name), HOME / name):  # a path as people copy it from the checkout
        if path.suffix == ".py" and path.is_file():
            return path
    recipes = {file.stem: file for file in _recipe_files(_RECIPE_FOLDERS)}
    stem = name.removesuffix(".py")
    if stem not in recipes:
        files = [str(Path(name).with_name(path.name)) for path in Path(name).absolute().parent.glob("*.py")]
        wrong = "no Python file" if Path(name).exists() else "no file, nor a recipe in recipes/"
        raise UserError(f"recipe: {name!r} is {wrong}; {suggest(name, [*files, *recipes])}")
    return recipes[stem]


def _recipe_files(folders: Sequence[str]) -> list[Path]:
    """Return the recipes in these folders; a file whose name starts with _ is shared by recipes."""
    files = [path for folder in folders for path in sorted((HOME / folder).glob("*.py"))]
    return [path for path in files if not path.name.startswith("_")]
