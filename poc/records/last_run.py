"""The last `run` command and its plan: `last_run.json` in the folder of results."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from poc.values import UserError, from_plain, to_plain, value, write_atomically

FILE = "last_run.json"


@value
class LastRun:
    """One use of the command `run`, on one machine or on a cluster."""

    recipes: tuple[str, ...]
    """Their names as the user gave them."""
    runs: tuple[str, ...]
    """Ids of the runs that were planned and not skipped, whether they were done already or not."""
    skipped: dict[str, int]
    """Number of skipped runs by reason."""
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
    """Return the content of the file in the folder of results; None if it is missing or damaged."""
    try:
        return from_plain(LastRun, json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, UserError):
        return None
