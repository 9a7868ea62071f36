"""`poc ab`: one recipe at two commits of this checkout, in interleaved repeats, and the verdict of the gate."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from poc.cli import look
from poc.cli import options as cli
from poc.cli.options import Options
from poc.config import LARGEST, Exponential, Search, literals
from poc.records import journal
from poc.records.record import COMPLETED
from poc.values import UserError, suggest


class _Side(NamedTuple):
    name: str
    code: Path  # a worktree of the commit
    python: Path
    results: Path

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command of this commit's code. The kernel kills it when this process dies; Ctrl-C is passed on."""
        command = [str(self.python), "-I", f"{self.code}/poc/host/isolated.py", "--parent", str(os.getpid()), "poc"]
        return subprocess.Popen([*command, *words], text=True, start_new_session=True, **options)

    def plan(self, *words: str) -> dict[str, float]:
        """Return the expected seconds of each run by id, without skipped ones; raises UserError if it has no plan."""
        process = self.start("plan", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = process.communicate()
        if process.returncode:
            raise UserError(f"ab: {self.name}: {(errors.strip() or 'poc plan failed').splitlines()[-1]}")
        return {line["id"]: line["seconds"] for line in json.loads(output)["planned"] if not line["skipped"]}


def ab(options: Options) -> int:
    """Measure a recipe at two commits in interleaved repeats; return the exit code of the gate, or of a failed run."""
    path = cli.recipe_path(options.recipe).absolute()
    for setting in options.load_recipe(path).settings():  # their runs depend on results, which may differ at A and B
        if setting.batch_per_device == LARGEST or isinstance(setting.lr, (Search, Exponential)):  # type: ignore[comparison-overlap]
            raise UserError("ab: 'largest', Search(...) and Exponential(...) are not allowed; use numbers")
    if "repeats" in literals.fields(options.settings):
        raise UserError("ab: --set repeats is not allowed; use --repeats N")
    words = [str(path), *(f"--set={setting}" for setting in options.settings)]
    words += [f"--{name}={getattr(options, name)}" for name in ("machine", "price") if getattr(options, name)]
    images = [f"--data={options.data}"] if options.data else []
    with contextlib.ExitStack() as stack:
        sides = _sides(options, stack)
        plans = [side.plan(*words, "--set=repeats=1", "--json") for side in sides]
        if not plans[0] or plans[0].keys() != plans[1].keys():
            ids = [", ".join(plan) or "none" for plan in plans]
            raise UserError(f"ab: {options.recipe} plans different runs at A and B, or none: A {ids[0]}; B {ids[1]}")
        if sum(plans[0].values()) > 3600:
            raise UserError("ab: repeats of over an hour start too far apart to be compared; use --set steps=N")
        for number in range(1, options.repeats + 1):
            for side in sides if number % 2 else sides[::-1]:  # A B B A: drift has the same effect on both
                print(f"\n{side.name}, repeat {number} of {options.repeats}", file=sys.stderr)
                # Not --again: an interrupted command goes on with the repeats that this machine's journal lacks.
                side_options = [f"--set=repeats={number}", *images, f"--results={side.results}"]
                if status := _wait(side.start("run", *words, *side_options, stdout=subprocess.DEVNULL)):
                    return status
            if not _completed(sides):
                break
    return look.compare_folders([side.results for side in sides], options.slower, options.json, list(plans[0]))


def _sides(options: Options, stack: contextlib.ExitStack) -> list[_Side]:
    """Return both sides, with worktrees that `stack` removes; raises UserError for a wrong commit or interpreter."""
    pythons = options.python or [Path(sys.executable)] * 2
    if len(pythons) != 2 or not all(map(shutil.which, pythons)):
        raise UserError(f"--python: {', '.join(map(str, pythons))} is not allowed; give two interpreters")
    commits = [_commit(revision) for revision in options.revisions]
    # After an upgrade of its packages, or of those in a framework's own environment, an interpreter has no results yet.
    script = "import glob, importlib.metadata as m, sys; own = sys.prefix + '/../.venv-*/lib/python*/site-packages'; "
    script += "print(sorted((each.name, each.version) for each in m.distributions(path=sys.path + glob.glob(own))))"
    packages = [subprocess.run([python, "-I", "-c", script], capture_output=True).stdout for python in pythons]
    names = [os.fsencode(python) + installed for python, installed in zip(pythons, packages)]
    suffixes = [hashlib.sha256(name).hexdigest()[:6] for name in names]
    folder, sides = options.results / "ab" / "-".join([*commits, *suffixes]), []
    for side, commit, python in zip("AB", commits, pythons):
        code = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="poc-ab-")), commit)
        stack.callback(_git, "worktree", "remove", "--force", str(code))
        if (added := _git("worktree", "add", "--detach", str(code), commit)).returncode:
            raise UserError(f"ab: git worktree add: {added.stderr.splitlines()[-1]}")
        sides.append(_Side(f"{side} ({commit})", code, python, folder / side))
    return sides


def _completed(sides: list[_Side]) -> bool:
    """Return whether each side has completed a run; what diverged or was out of memory is not repeated.

    Raises UserError if this checkout cannot read the results of a commit; better after one repeat than after all.
    """
    try:
        results = [journal.read(journal.paths(side.results)) for side in sides]
    except UserError as error:
        raise UserError(f"ab: check out the newer commit, and start the same command again ({error})") from error
    return all(any(record.outcome == COMPLETED for record in records) for records in results)


def _wait(process: subprocess.Popen[str]) -> int:
    """Return the exit code of a run, 1 if it was killed. Raises KeyboardInterrupt once an interrupted run has ended."""
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    return max(status, 1) if status else 0


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    # Where git itself started this command, its variables name an index and folders.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(["git", "-C", str(cli.HOME), *words], capture_output=True, text=True, env=variables)


def _commit(revision: str) -> str:
    """Return the first 12 digits of the commit that a revision names; raises UserError."""
    commit = _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    if commit.returncode:
        *_, is_shallow = ["", *_git("rev-parse", "--is-shallow-repository").stdout.split()]
        if not is_shallow:  # git refuses the repository of another user, or there is none
            raise UserError(f"ab: git: {commit.stderr.splitlines()[0]}")
        names = ["HEAD", *_git("for-each-ref", "--format=%(refname:short)").stdout.split()]
        hint = "git fetch --unshallow gets all commits" if is_shallow == "true" else suggest(revision, names)
        raise UserError(f"ab: {revision!r} is no commit of {cli.HOME}; {hint}")
    return commit.stdout.split()[-1][:12]
