"""What the last `run` was asked to do and planned: `last_run.json` in the folder of results."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from poc.values import UserError, from_plain, to_plain, value, write_atomically

FILE = "last_run.json"


@value
class LastRun:
    """One use of the command `run`, on one machine or on those of a cluster."""

    recipes: tuple[str, ...]
    """Their names as the user gave them."""
    runs: tuple[str, ...]
    """The ids of the runs that were planned and not skipped, whether they were done already or not."""
    skipped: dict[str, int]
    """How many runs were skipped, by reason."""
    machine: str
    quick: bool = False
    started: str = ""
    """UTC, in ISO 8601."""


def now() -> str:
    """Return the time of day in UTC, as records have it."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def write(folder: Path, last_run: LastRun) -> None:
    """Replace the file in the folder of results, wholly or not at all."""
    write_atomically(folder / FILE, json.dumps(to_plain(last_run), indent=1) + "\n")


def read(folder: Path) -> LastRun | None:
    """Return what the file in the folder of results says; None where there is none, or a damaged one."""
    try:
        return from_plain(LastRun, json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, UserError):
        return None
