"""What the options choose: recipes and their runs, this machine's name and price, folders, records."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from poc import config, frameworks
from poc.config import literals
from poc.host import hardware
from poc.host.hardware import Hardware
from poc.plan import Planned, select
from poc.plan import plan as plan_recipe
from poc.published import prices
from poc.records import journal
from poc.records.record import Record
from poc.values import UserError, suggest

HOME = Path(__file__).resolve().parents[2]
"""The checkout."""
_FOLDERS = ("recipes", "recipes/studies", "recipes/research")
"""Where recipes lie: the core ones first, then those that --all adds."""


def recipe_paths(options: argparse.Namespace) -> list[Path]:
    """Return the files of the named recipes, else of the core ones, with --all of those in the folders below, too.

    Raises UserError for a name that no recipe has, and for names with --all.
    """
    if options.recipes and options.all:
        raise UserError("--all: it runs every recipe; leave the names out, or leave out --all")
    if options.recipes:
        return list(dict.fromkeys(map(recipe_path, options.recipes)))
    return _in_folders(_FOLDERS if options.all else _FOLDERS[:1])


def recipe_path(name: str) -> Path:
    """Return the file of the recipe of that name, with or without .py, or at that path; raises UserError."""
    path = Path(name)
    if path.suffix == ".py":
        for place in (path, HOME / path):  # a path as people copy it from the checkout
            if place.is_file():
                return place
    recipes = {file.stem: file for file in _in_folders(_FOLDERS)}
    if path.name == name and path.name.removesuffix(".py") in recipes:
        return recipes[path.name.removesuffix(".py")]
    near = suggest(path.name.removesuffix(".py"), recipes)
    if path.suffix == ".py":
        raise UserError(f"recipe: {name} is not a file, nor a recipe in recipes/; {near}")
    raise UserError(f"recipe: no {name!r} in recipes/; {near}")


def _in_folders(folders: Sequence[str]) -> list[Path]:
    return [
        path
        for folder in folders
        for path in sorted((HOME / folder).glob("*.py"))
        if not path.name.startswith("_")  # what recipes share
    ]


def recipe_names(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the recipes as the user named them."""
    return tuple(options.recipes or (path.stem for path in recipe_paths(options)))


def plans(options: argparse.Namespace, machine: Hardware) -> list[tuple[str, list[Planned]]]:
    """Return the runs of the chosen recipes on this machine, by recipe."""
    fields = literals.fields(options.set)
    how = {"quick": options.quick, "cpu": options.cpu, "named": bool(options.recipes or options.only)}
    planned = [
        (path.stem, plan_recipe(path.stem, config.load(path, frameworks.FRAMEWORKS, fields), machine, **how))
        for path in recipe_paths(options)
    ]
    selected = set(map(id, select([item for _, items in planned for item in items], options.only)))
    grouped = [(name, [item for item in items if id(item) in selected]) for name, items in planned]
    return [(name, items) for name, items in grouped if items]


def machine_name(options: argparse.Namespace, machine: Hardware) -> str:
    """Return what results call this machine: --machine, its type of cloud instance, or its hardware."""
    return options.machine or instance_type() or machine.describe()


def instance_type() -> str:
    """Return the type of cloud instance that this machine is; empty where it is none with a price."""
    name = hardware.product_name()
    return name if name in prices.load({}).by_name else ""


def source(options: argparse.Namespace) -> Path | None:
    """Return where this machine's real images are; None where nobody said.

    What POC_DATA names is looked at where a recipe needs it. Raises UserError if --data does not exist.
    """
    if options.data and not options.data.exists():
        raise UserError(f"--data: {options.data} does not exist; give a folder or file that holds CIFAR-10")
    folder = options.data or os.environ.get("POC_DATA")
    return Path(folder).absolute() if folder else None


def results(options: argparse.Namespace) -> Path:
    """Return the folder of results."""
    return options.results or HOME / "results"


def page(options: argparse.Namespace) -> Path:
    """Return the file of the main page."""
    return (options.results or HOME) / "results.md"


def records(options: argparse.Namespace) -> list[Record]:
    """Read the records in the folder of results."""
    return journal.read(journal.paths(results(options)))


def own_records(options: argparse.Namespace) -> list[Record]:
    """Read the records in the folder of results; raises UserError where no journal is there."""
    folder = results(options)
    if journal.paths(folder):
        return records(options)
    if options.results is None:
        how = f"start ./run_all.sh --quick, or give --results {HOME / 'reference'} for what this project measured"
        raise UserError(f"results: no runs yet in {folder}; {how}")
    problem = "holds no journal" if folder.is_dir() else "is no folder"
    raise UserError(f"--results: {folder} {problem}; give one with MACHINE/{journal.FILE} in it")
