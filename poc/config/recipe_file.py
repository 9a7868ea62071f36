"""Recipe files: the user's own Python, which sets `recipe`."""

import contextlib
import difflib
import functools
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from poc import config
from poc.config.recipe import Recipe
from poc.values import UserError


def load(
    path: Path,
    fields: Mapping[str, Any] | None = None,
    count: Callable[[Any, Path], Any] = lambda data, folder: data,
) -> Recipe:
    """Read the recipe in the Python file `path`.

    It may import files in its folder. `fields` replace its own (`Recipe.with_fields`). `count` (`poc.data.count`)
    completes each data set by its files, with paths relative to that folder. Raises UserError for a wrong recipe.
    """
    folder = path.resolve().parent
    try:
        # Of commands with --json the standard output is for programs.
        with _importable(folder), contextlib.redirect_stdout(sys.stderr):
            recipe = runpy.run_path(str(path)).get("recipe")
        if not isinstance(recipe, Recipe):
            raise UserError("`recipe = Recipe(...)` is missing")
        if recipe.folder != Path():
            raise UserError("Recipe: no field 'folder'; give images of your own as data=Folder(...)")
        recipe = recipe.with_fields(fields or {})  # a new one: that of an imported module is the user's
        recipe.folder = folder
        recipe = recipe.replace("data", functools.cache(lambda data: count(data, folder)))
        recipe.check_effects()
    except UserError as error:
        raise UserError(f"{path.name}: {error}{last_line(error, folder)}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a recipe is the user's own Python: they can read what it raises
        place = last_line(error, folder)
        unknown = getattr(error, "name", "") if isinstance(error, NameError) else ""
        close = difflib.get_close_matches(unknown, config.__all__, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UserError(f"{path.name}: {type(error).__name__}: {' '.join(str(error).split())}{hint}{place}") from None
    return recipe


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let the block import files in `folder` under names that neither Python nor an installed package has.

    Afterwards the path is restored, and modules from the folder are forgotten: another recipe may have other files of
    the same names, and poc must not import them in place of its own.
    """
    before, path = set(sys.modules), list(sys.path)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        for name in sorted(sys.modules.keys() - before, reverse=True):  # a package after its modules
            top = name.split(".")[0]
            module = sys.modules.get(top)
            # A package without __init__.py has no file, and only a path, which follows sys.path.
            places = [getattr(module, "__file__", None) or "/", *getattr(module, "__path__", ())]
            if top not in before and {folder / f"{top}.py", folder / top} & {Path(each).resolve() for each in places}:
                del sys.modules[name]
        sys.path[:] = path


def last_line(error: BaseException, folder: Path) -> str:
    """Return the last line of a file in `folder` that `error` passed through, in brackets; empty if there is none.

    Empty for a syntax error, too, whose message names its line.
    """
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        file = Path(frame.filename)  # "<frozen os>" is none
        if file.is_file() and file.resolve().parent == folder:
            return f" ({file.name}, line {frame.lineno})"
    return ""
