"""Make a folder of one machine's results that can be committed or sent: pages, figures, rows.csv and the journal."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from poc.records import journal, last_run
from poc.records.record import SKIPPED, Record
from poc.values import UserError, suggest, value

MARK = "published.json"
"""The file by which a folder is known to be made here, so that it may be replaced."""
# Fields of a record whose texts are the project's own words or the hardware's, and the machine's name, which its user
# chose to be shown.
_OWN_WORDS = ("run", "hardware", "infrastructure", "advice", "outcome", "started", "commit", "run_id", "versions")
_BELOW = r"(?:/[\w.+@~-]+)*"
_OTHER_HOME = rf"(?:/(?:home|Users)/[\w.+@~-]+|/root(?!\w)){_BELOW}"
# Folders that every machine has tell nothing.
_OTHER_PATH = rf"(?<![\w./:~\]-])/(?!(?:dev|proc|sys|usr|lib|lib64|opt|etc|bin)(?!\w))[\w.+@~-]+{_BELOW}"


class Scrubber:
    """Replace what tells whose machine it was by placeholders: folders, the user's name and the host's."""

    def __init__(self, checkout: Path) -> None:
        users = [_user(), *(os.environ.get(name, "") for name in ("USER", "LOGNAME"))]
        homes = [home for home in (str(Path.home()), os.environ.get("HOME", "")) if home != "/"]
        host = socket.gethostname()
        self._patterns = [
            (_any_of([str(checkout), str(checkout.resolve())]), "[checkout]"),
            (_any_of(homes, after=rf"(?!\w){_BELOW}"), "[home]"),
            (re.compile(_OTHER_HOME), "[home]"),
            (re.compile(_OTHER_PATH), "[path]"),
            (re.compile(r"host \S+ \([\w.:]+\)"), "host [host]"),  # a node of a cluster, as a failure names it
            (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), "[address]"),
            (_any_of([host, host.partition(".")[0]], before=r"(?<!\w)"), "[host]"),
            (_any_of(users, before=r"(?<!\w)"), "[user]"),
        ]
        self.changed = 0
        """How many texts were changed so far."""

    def text(self, text: str) -> str:
        """Return the text with placeholders in place of what is private."""
        clean = text
        for pattern, placeholder in self._patterns:
            clean = pattern.sub(placeholder, clean)
        self.changed += clean != text
        return clean

    def record(self, record: Record) -> Record:
        """Return the record with every free text scrubbed."""
        plain = record.to_json()
        clean = {name: entry if name in _OWN_WORDS else self._scrubbed(entry) for name, entry in plain.items()}
        clean["run"] = {**plain["run"], "recipe": self.text(plain["run"]["recipe"])}
        return Record.from_json(clean)

    def _scrubbed(self, entry: Any) -> Any:
        if isinstance(entry, str):
            return self.text(entry)
        if isinstance(entry, list):
            return [self._scrubbed(item) for item in entry]
        if isinstance(entry, dict):
            return {name: self._scrubbed(item) for name, item in entry.items()}
        return entry


@value
class Published:
    """What was made, and what is not in it."""

    folder: Path
    files: int
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line for the folder, and one for each thing that is left out."""
        lines = [f"Written: {self.folder} ({self.files} files)"]
        return "\n".join(lines + [f"Left out: {description}" for description in self.left_out])


def publish(
    results: Path,
    output: Path,
    checkout: Path,
    write_report: Callable[[Sequence[Record], Path], object],
    machine: str = "",
) -> Published:
    """Make the folder MACHINE_DATE/ in `output` from the journal of the machine that ran last, or of the named one.

    `write_report` writes the pages of some records into a folder. Raises UserError where there is nothing to publish,
    and where a folder of that name is there which was not made here.
    """
    records = journal.read(journal.paths(results))
    withdrawn = [record for record in records if record.speed_withdrawn]  # read without their times
    records = [record for record in records if not record.speed_withdrawn]
    started = [record for record in records if record.outcome != SKIPPED]
    if not started:
        raise UserError(f"publish: {results} holds no run; ./run_all.sh --quick makes the first ones")
    name = machine or max(started, key=lambda record: record.started).infrastructure
    chosen = [record for record in records if record.infrastructure == name]
    if not chosen:
        raise UserError(f"--machine: no run is of {name!r}; {suggest(name, {each.infrastructure for each in started})}")
    date = max(record.started for record in chosen)[:10]
    target = output / f"{_safe(name)}_{date}"
    _check_is_ours(target)
    scrubber = Scrubber(checkout)
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=f".{target.name}.") as scratch:
        unfinished = Path(scratch) / target.name
        clean = [scrubber.record(record) for record in chosen]
        for record in clean:
            journal.append(journal.folder(unfinished, name) / journal.FILE, record)
        _copy_last_run(results, unfinished, name, scrubber)
        write_report(clean, unfinished)
        summary = {"machine": name, "date": date, "runs": len(chosen)}
        (unfinished / MARK).write_text(json.dumps(summary, indent=1) + "\n")
        if target.exists():
            target.rename(Path(scratch) / "before")
        unfinished.rename(target)
    left_out = [
        f"host name, user name and paths (placeholders in {scrubber.changed} texts)",
        "data sets, checkpoints, and the recipes' files",
    ]
    if others := sorted({record.infrastructure for record in records} - {name}):
        left_out.append(f"other machines in {results}: {', '.join(others)} (--machine NAME publishes one)")
    if withdrawn:
        left_out.append(f"{len(withdrawn)} runs whose speed was withdrawn")
    files = sum(path.is_file() for path in target.rglob("*"))
    return Published(folder=target, files=files, left_out=tuple(left_out))


def _check_is_ours(target: Path) -> None:
    if target.exists() and not (target / MARK).is_file():
        raise UserError(f"publish: {target} is there and was not made by publish; move it, or give another --output")


def _copy_last_run(results: Path, folder: Path, machine: str, scrubber: Scrubber) -> None:
    """The page has a section about it. A recipe is named by its file alone: where it lies is private."""
    last = last_run.read(results)
    if last and last.machine == machine:
        recipes = tuple(scrubber.text(Path(recipe).name) for recipe in last.recipes)
        skipped = {scrubber.text(reason): count for reason, count in last.skipped.items()}
        last_run.write(folder, dataclasses.replace(last, recipes=recipes, skipped=skipped))


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:60] or "machine"


def _any_of(names: Sequence[str], before: str = "", after: str = r"(?!\w)") -> re.Pattern[str]:
    """Return a pattern of these names, the longest first; without any it matches nothing."""
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    return re.compile(f"{before}(?:{'|'.join(map(re.escape, longest_first))}){after}" if longest_first else "(?!)")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return ""
