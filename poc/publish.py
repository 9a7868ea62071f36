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
from poc.values import UserError, suggest

MARK = "published.json"
"""A file in every folder that was made here, which may therefore be replaced."""
# Fields of a record whose texts are not the user's, and the machine's name, which the user chose to show.
_PUBLIC = ("run", "hardware", "infrastructure", "outcome", "started", "commit", "run_id", "versions")
_BELOW = r"(?:/[\w.+@~-]+)*"
_OTHER_HOME = rf"(?:/(?:home|Users)/[\w.+@~-]+|/root(?!\w)){_BELOW}"
# Paths in folders that every machine has are not private.
_OTHER_PATH = rf"(?<![\w./:~\]-])/(?!(?:dev|proc|sys|usr|lib|lib64|opt|etc|bin)(?!\w))[\w.+@~-]+{_BELOW}"


class Scrubber:
    """Replace what identifies the machine's owner by placeholders: paths, addresses, the names of user and host."""

    def __init__(self, checkout: Path) -> None:
        try:
            users = [getpass.getuser()]
        except (KeyError, OSError):  # a user without a name
            users = []
        users += [os.environ.get(name, "") for name in ("USER", "LOGNAME")]
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
        """Number of texts that were changed."""

    def text(self, text: str) -> str:
        """Return the text with placeholders."""
        clean = text
        for pattern, placeholder in self._patterns:
            clean = pattern.sub(placeholder, clean)
        self.changed += clean != text
        return clean

    def record(self, record: Record) -> Record:
        """Return the record with placeholders in every free text."""
        plain = record.to_json()
        clean = {name: entry if name in _PUBLIC else self._scrubbed(entry) for name, entry in plain.items()}
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


def _any_of(names: Sequence[str], before: str = "", after: str = r"(?!\w)") -> re.Pattern[str]:
    """Return a pattern of these names, the longest first; without any it matches nothing."""
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    return re.compile(f"{before}(?:{'|'.join(map(re.escape, longest_first))}){after}" if longest_first else "(?!)")


def publish(
    results: Path,
    output: Path,
    checkout: Path,
    write_report: Callable[[Sequence[Record], Path], object],
    machine: str = "",
) -> tuple[Path, list[str]]:
    """Make the folder MACHINE_DATE/ in `output` from the journal of the machine that ran last, or of the named one.

    Return the folder, and lines about what is in it and what is not. `write_report` writes the pages of some records
    into a folder. Raises UserError if there is nothing to publish, or if a folder of that name exists that was not
    made here.
    """
    every_record = journal.read(journal.paths(results))
    records = [record for record in every_record if not record.speed_withdrawn]  # those are read without their times
    started = [record for record in records if record.outcome != SKIPPED]
    if not started:
        raise UserError(f"publish: {results} holds no run; ./run_all.sh --quick makes the first ones")
    name = machine or max(started, key=lambda record: record.started).infrastructure
    names = {record.infrastructure for record in records}
    if name not in names:
        raise UserError(f"--machine: no run is of {name!r}; {suggest(name, names)}")
    chosen = [record for record in records if record.infrastructure == name]
    date = max(record.started for record in chosen)[:10]
    target = output / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-.')[:60] or 'machine'}_{date}"
    if target.exists() and not (target / MARK).is_file():
        raise UserError(f"publish: {target} is there and was not made by publish; move it, or give another --output")
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
    lines = [
        f"Written: {target} ({sum(path.is_file() for path in target.rglob('*'))} files)",
        f"Left out: host name, user name and paths (placeholders in {scrubber.changed} texts)",
        "Left out: data sets, checkpoints, and the recipes' files",
    ]
    if remaining := sorted(names - {name}):
        lines.append(f"Left out: other machines in {results}: {', '.join(remaining)} (--machine NAME publishes one)")
    if withdrawn := len(every_record) - len(records):
        lines.append(f"Left out: {withdrawn} runs whose speed was withdrawn")
    return target, lines


def _copy_last_run(results: Path, folder: Path, machine: str, scrubber: Scrubber) -> None:
    """Copy what a section of the page is about; a recipe is named by its file alone, because its path is private."""
    last = last_run.read(results)
    if last and last.machine == machine:
        recipes = tuple(scrubber.text(Path(recipe).name) for recipe in last.recipes)
        skipped = {scrubber.text(reason): count for reason, count in last.skipped.items()}
        last_run.write(folder, dataclasses.replace(last, recipes=recipes, skipped=skipped))
