"""Models that are not registered: functions of the user's own files and modules, and models of zoos.

`inspect` finds out whether a framework can train one, and what it costs, in a process of its own:
python -m poc.frameworks.own_models    (a run, as JSON, on the standard input; its last line of output is the answer)
"""

import ast
import contextlib
import hashlib
import importlib
import itertools
import json
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from poc import frameworks
from poc.config import recipe_file
from poc.config.networks import ZOOS, Cost
from poc.config.run import Run
from poc.host import processes
from poc.host.environment import cache
from poc.values import UserError, from_plain, one_line, suggest, to_plain, value, write_atomically


class OtherFrameworkError(UserError):
    """The model belongs to another framework."""


@value
class Inspected:
    """What `inspect` found out about a model in a framework."""

    cost: Cost | None = None
    refusal: str = ""
    """Why the framework cannot train it, in one line; empty if it can, or if the framework is not installed."""
    is_mistake: bool = False  # whether the refusal is a mistake in the model or in its name


def source(model: str, folder: Path) -> Path | None:
    """Return the file with the function that `model` names; None for a zoo's. Raises UserError if there is none.

    A file is one in `folder`; a module is there, or an installed one.
    """
    where, _, _ = model.rpartition(":")
    if where in ZOOS:
        return None
    if where.endswith(".py"):
        if not (folder / where).is_file():
            hint = suggest(where, [file.name for file in folder.glob("*.py")])
            raise UserError(f"model: there is no file {where!r} beside the recipe; {hint}")
        return folder / where
    package, *rest = where.split(".")
    places = [Path(home, package, *rest) for home in [*sys.path, str(folder)]]
    # The folder of an editable installation need not be in sys.path.
    specs = filter(None, (finder.find_spec(package, None) for finder in sys.meta_path))
    places += [Path(home, *rest) for spec in specs for home in spec.submodule_search_locations or ()]
    for place, end in itertools.product(places, (".py", "/__init__.py")):
        if (file := Path(f"{place}{end}")).is_file():
            return file
    raise UserError(f"model: there is no module {where!r}; {suggest(where, ZOOS)}")


def source_hash(model: str, folder: Path) -> str:
    """Return a hash of the file with a model's function, and of those that it imports; "" for a zoo's."""
    digests = "".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in _sources(model, folder))
    return hashlib.sha256(digests.encode()).hexdigest()[:16] if digests else ""


def _sources(model: str, folder: Path) -> list[Path]:
    """Return the file with a model's function, and those that it imports; none for a zoo's.

    These are modules of its own package and modules in `folder`, and what they import of such.
    """
    first = source(model, folder)
    files = [first.absolute()] if first else []  # by one name each
    for file in files:  # which grows
        files += sorted(path for path in {*_imported(file, folder.absolute())}.difference(files) if path.is_file())
    return files


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """Yield where the modules that a file imports may be, in its package and in `folder`, and its packages' own files.

    Of a file that is no Python only the latter.
    """
    root = next(parent for parent in file.parents if not (parent / "__init__.py").is_file())
    yield from (parent / "__init__.py" for parent in file.parents if root in parent.parents)
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))]
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        package, level = (node.module, node.level) if isinstance(node, ast.ImportFrom) else ("", 0)
        for alias in node.names:
            parts = [*filter(None, (package or "").split(".")), *alias.name.split(".")]
            if parts[0] == "poc":  # of a recipe in the same file
                continue
            # Of where packages are installed only its own one is the model's.
            package_homes = [root] if parts[0] == file.relative_to(root).parts[0] else []
            for base in [*file.parents][level - 1 : level] if level else [folder, *package_homes]:
                for last in range(1, len(parts) + 1):
                    module = base.joinpath(*parts[:last])
                    yield from (module.with_name(f"{module.name}.py"), module / "__init__.py")


def make(run: Run, zoos: Mapping[str, Callable[[str, Run], Any]], kind: type[Any], kind_name: str) -> Any:
    """Return the model of `run`: what its function returns for the number of classes, or one of the `zoos`.

    Its random weights depend on the run's seed alone, if the framework's own generator has been seeded. Raises
    UserError if the source is not that of the plan, and OtherFrameworkError if the model is not of `kind`.
    """
    random.seed(run.seed)
    np.random.seed(run.seed)
    where, _, name = run.model.rpartition(":")
    if where in ZOOS:
        if where not in zoos:
            raise OtherFrameworkError(f"{where} has no models for {frameworks.load(run.framework).LABEL}")
        return zoos[where](name, run)
    folder = Path(run.model_folder)
    if source_hash(run.model, folder) != run.model_hash:
        raise UserError(f"model: {run.model} has changed since the plan was made; start again")
    sys.path.append(str(folder))  # for good: the model may import something when it trains
    loaders = (ExtensionFileLoader, EXTENSION_SUFFIXES), (_SourceLoader, SOURCE_SUFFIXES)
    for place in {str(file.parent) for file in _sources(run.model, folder)}:
        sys.path_importer_cache[place] = FileFinder(place, *loaders)
    try:
        module = _load(where, folder)
    except Exception as error:
        if _is_of_another_framework(error, run.framework):
            raise OtherFrameworkError(f"it imports another framework: {one_line(error)}") from None
        raise
    functions = {key: each for key, each in vars(module).items() if callable(each) and not key.startswith("_")}
    if name not in functions:
        raise UserError(f"there is no function {name!r} in {where}; {suggest(name, functions)}")
    net = functions[name](run.data.classes)
    if not isinstance(net, kind):
        raise OtherFrameworkError(f"it returns {type(net).__name__}, not {kind_name}")
    return net


class _SourceLoader(SourceFileLoader):
    """Compiles what was hashed: bytecode of other code passes as current if its file had the same size and time."""

    def path_stats(self, path: str) -> Any:
        """Raise OSError, after which Python neither reads nor writes bytecode."""
        raise OSError(path)


def _load(where: str, folder: Path) -> Any:
    """Import the module or file with a model's function."""
    if not where.endswith(".py"):
        return importlib.import_module(where)
    # Not under the file's own name, which may be an installed package's.
    loader = _SourceLoader("poc_own_model", str(folder / where))
    module = sys.modules[loader.name] = ModuleType(loader.name)
    module.__file__ = loader.path
    loader.exec_module(module)
    return module


def _is_of_another_framework(error: Exception, framework: str) -> bool:
    """Return whether the import of another framework, which may not be installed or not work here, ended in `error`."""
    names = {*frameworks.FRAMEWORKS} - {framework}
    packages = {package for name in names for package in frameworks.load(name).PACKAGES}
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").split(".")[0] in packages
    return any(packages & {*Path(frame.filename).parts} for frame in traceback.extract_tb(error.__traceback__))


_SILENT_SECONDS = 10.0  # after which a model that is still being built is named: its function may hang
_CHECKS = 3  # one more whenever a model is refused that was not before: costs in the cache are of accepted ones
_inspected: dict[str, Inspected] = {}  # the answers that this process has got, by what they depend on


def inspect(run: Run) -> Inspected:
    """Return whether the framework of `run` can train its model, which is not registered, and the model's cost.

    Costs are kept in the cache. A refusal is not: what it depends on may be installed or repaired.
    """
    versions = frameworks.versions(run.framework)
    conditions = [run.emulated, run.data.classes, *run.data.input_shape]
    key = json.dumps(
        [_CHECKS, run.model, run.model_hash, run.model_folder, run.framework, run.layout, versions, conditions],
        sort_keys=True,
    )
    if not versions or not frameworks.has_any_build(run.framework) or key in _inspected:
        return _inspected.get(key, Inspected())
    file = cache() / "models" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError, UserError):  # unreadable: it is made again
        _inspected[key] = from_plain(Inspected, json.loads(file.read_text()))
        return _inspected[key]
    answer = _inspected[key] = _ask(run)
    if answer.cost:
        with contextlib.suppress(OSError):
            write_atomically(file, json.dumps(to_plain(answer)))
    return answer


def _ask(run: Run) -> Inspected:
    """Build and count the model of `run` in a process of its framework."""
    pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process = processes.start(__name__, {}, python=frameworks.interpreter(run.framework), **pipes)
    try:
        output, errors = process.communicate(json.dumps(to_plain(run)), timeout=_SILENT_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"model: building {run.model} with {run.framework} takes long, or hangs", file=sys.stderr)
        output, errors = process.communicate()
    if process.returncode == 0 and output:
        return from_plain(Inspected, json.loads(output.splitlines()[-1]))
    last = [processes.ended_early(process.returncode), *errors.splitlines()[-1:]]
    return Inspected(refusal=": ".join([run.model, *last]), is_mistake=True)


def _answer(run: Run) -> Inspected:
    try:
        cost = frameworks.load(run.framework).count_model(run)
        if not cost.parameters:
            raise UserError("it has no parameter to train")
        return Inspected(cost=cost)
    except OtherFrameworkError as error:
        return Inspected(refusal=f"model={run.model}: {error}")
    except UserError as error:
        return Inspected(refusal=f"{run.model}: {error}", is_mistake=True)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        place = last_line(error, run)
        name = f"{type(error).__name__}: "
        return Inspected(refusal=f"{run.model}: {name}{one_line(error).removeprefix(name)}{place}", is_mistake=True)


def last_line(error: BaseException, run: Run) -> str:
    """Return the last line that `error` passed through beside the file of the user's model, in brackets; or ""."""
    with contextlib.suppress(UserError):  # the file is gone
        if run.model_folder and (file := source(run.model, Path(run.model_folder))):
            return recipe_file.last_line(error, file.resolve().parent)
    return ""


def main() -> None:
    run = from_plain(Run, json.load(sys.stdin))
    with contextlib.redirect_stdout(sys.stderr):  # the model's function may print
        answer = _answer(run)
    print("\n" + json.dumps(to_plain(answer)), flush=True)
    os._exit(0)  # without what frameworks do at their end


if __name__ == "__main__":
    # The imported module, whose exceptions the frameworks raise, and not this copy.
    importlib.import_module("poc.frameworks.own_models").main()
