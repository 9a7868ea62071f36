"""Make a folder of one machine's results that can be committed or sent: pages, figures, rows.csv and the journal."""

import contextlib
import dataclasses
import getpass
import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from poc.config.fields import local_fields
from poc.config.run import Run
from poc.records import journal, last_run
from poc.records.record import SKIPPED, Record
from poc.values import UserError, from_plain, suggest

# Fields of a record whose texts are not the user's, and the machine's name, which the user chose to show.
_PUBLIC = ("run", "hardware", "infrastructure", "outcome", "started", "commit", "run_id", "versions")
# Absolute paths, except in folders that every machine has. The slashes of an address are none. A quoted path may have
# spaces, and so may one of images that a message names; another may follow a compiler's -I or -L. The name of a library
# stays: runs with another one are another setting.
_START = r"/(?!/)(?!(?:dev|proc|sys|usr|lib|lib64|etc|bin)(?!\w))"
_BEFORE = r"(?:(?<![\w./~\]-])|(?<=\s-[IL])|(?<=file://))"
_LIBRARY = re.compile(rf"{_BEFORE}{_START}(?:[\w.+@~=-]+/)*(?=[\w.+-]+\.so\b)")
_TO_IMAGES = r"[^'\":]*?\.(?i:jpe?g|png|rec|npz)(?!\w)"
_PATH = re.compile(
    rf"(?<=data: ){_START}{_TO_IMAGES}|(?<=(['\"])){_START}.+?(?=\1)|{_BEFORE}{_START}[\w.+@~=-]+(?:/[\w.+@~=-]+)*"
)
_NODE = re.compile(r"host \S+ \([\w.:]+\)")  # of a cluster, as a failure names it
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


def scrubber() -> Callable[[str], str]:
    """Return a function that replaces paths, addresses, and the names of user and host by placeholders."""
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME")}
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        users.add(getpass.getuser())
    host = socket.gethostname()
    hosts = _any_of({host, host.partition(".")[0]})
    placeholders = {_LIBRARY: "[path]/", _PATH: "[path]", _NODE: "host [host]", _ADDRESS: "[address]", hosts: "[host]"}
    placeholders[_any_of(users)] = "[user]"

    def scrub(text: str) -> str:
        for pattern, placeholder in placeholders.items():
            text = pattern.sub(placeholder, text)
        return text

    return scrub


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of these words, the longest first; without any it matches nothing."""
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)" if longest_first else "(?!)")


def _scrubbed(record: Record, scrub: Callable[[str], str]) -> Record:
    folders = [record.run.model_folder, *local_fields(record.run.data).values()]
    known_paths = sorted((folder for folder in folders if folder.startswith("/")), key=len)

    def clean(entry: Any) -> Any:
        if isinstance(entry, str):
            for path in reversed(known_paths):  # with spaces, which the pattern would take for an end
                entry = re.sub(rf"{re.escape(path)}(?:{_TO_IMAGES}|[^\s'\":]*)", "[path]", entry)
            return scrub(entry)
        if isinstance(entry, list):
            return list(map(clean, entry))
        return {name: clean(item) for name, item in entry.items()} if isinstance(entry, dict) else entry

    plain = record.to_json()
    private = {name: clean(entry) for name, entry in plain.items() if name not in _PUBLIC}
    return from_plain(Record, {**plain, **private, "run": _scrubbed_run(plain["run"], record.run, scrub)})


def _scrubbed_run(plain: dict[str, Any], run: Run, scrub: Callable[[str], str]) -> dict[str, Any]:
    """Return the plain values of a run, and of the training that it is a candidate for, without paths."""
    public = {**plain, "recipe": scrub(run.recipe), "model_folder": ""}
    public["data"] = {**plain["data"], **dict.fromkeys(local_fields(run.data), "")}
    public["tunes"] = _scrubbed_run(plain["tunes"], run.tunes, scrub) if run.tunes else None
    return public


def publish(
    results: Path, output: Path, write_report: Callable[..., object], machine: str = ""
) -> tuple[Path, list[str]]:
    """Make the folder MACHINE_DATE/ in `output` from the journal of the machine that ran last, or of the named one.

    Return the folder, and lines about what is in it and what is not. `write_report` is `poc.report.write` with its
    other options set. Raises UserError if there is nothing to publish, or if a folder of that name exists with files or
    runs that are not of these results: those of another user, or what was added since.
    """
    records = journal.read(journal.paths(results))
    started = [record for record in records if record.outcome != SKIPPED]
    if not started:
        raise UserError(f"publish: {results} holds no run; ./run_all.sh --quick makes the first ones")
    name = machine or max(started, key=lambda record: record.started).infrastructure
    names = {record.infrastructure for record in records}
    if name not in names:
        raise UserError(f"--machine: no run is of {name!r}; {suggest(name, names)}")
    scrub = scrubber()
    chosen = [_scrubbed(record, scrub) for record in records if record.infrastructure == name]
    date = max(record.started for record in chosen)[:10]
    target = output / f"{journal.folder(output, name).name}_{date}"
    if target.exists() and (foreign := _foreign(chosen, target)):
        raise UserError(f"publish: {target} has {foreign}; move it, or give another --output")
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=f".{target.name}.") as scratch:
        unfinished = Path(scratch) / target.name
        for record in chosen:
            journal.append(journal.folder(unfinished, name) / journal.FILE, record)
        last = last_run.read(results)
        if last and last.machine == name:
            recipes = tuple(scrub(Path(recipe).name) for recipe in last.recipes)  # their paths are private
            skipped = {scrub(reason): count for reason, count in last.skipped.items()}
            last_run.write(unfinished, dataclasses.replace(last, recipes=recipes, skipped=skipped))
        write_report(chosen, page=unfinished / "results.md", folder=unfinished)
        mark = {"machine": name, "date": date, "files": [*_files(unfinished), journal.MARK]}
        (unfinished / journal.MARK).write_text(json.dumps(mark) + "\n")
        if target.exists():
            target.rename(Path(scratch) / "before")
        unfinished.rename(target)
    hint = f"; of other machines: {', '.join(sorted(names - {name}))} (--machine)" if len(names) > 1 else ""
    return target, [
        f"Written: {target} ({sum(path.is_file() for path in target.rglob('*'))} files)",
        f"Left out: host name, user name and paths; data sets, checkpoints, traces, and the recipes' files{hint}",
    ]


def _files(folder: Path) -> list[str]:
    """Return the relative paths of all files and folders in `folder`."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _foreign(records: Sequence[Record], folder: Path) -> str:
    """Say what in `folder` was not written by `publish`, or is of no run in `records`; empty if all may be replaced."""
    try:
        written = {*json.loads((folder / journal.MARK).read_text())["files"]}
    except (OSError, LookupError, TypeError, ValueError):
        return f"no {journal.MARK} of this version of poc, which would name the files that may be replaced"
    if added := sorted({*_files(folder)} - written):
        return f"a file that was added: {added[0]}"
    started = {(record.run.id, record.started) for record in records}
    published = {(record.run.id, record.started) for record in journal.read(journal.paths(folder))}
    return "" if published <= started else "runs that are not of these results"
