"""The last `run` command and its plan: `last_run.json` in the folder of results."""

import datetime
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from poc.values import UserError, from_plain, to_plain, value, write_atomically

FILE = "last_run.json"

# A number that stands by itself: not a part of a name or a version.
_NUMBER = re.compile(r"(?<![\w.-])(\d+(?:\.\d+)?)(?![\w-]|\.\d)")


@value
class LastRun:
    """One use of the command `run`, on one machine or on a cluster."""

    recipes: tuple[str, ...]  # their names as the user gave them
    runs: tuple[str, ...]  # ids of the runs that were planned and not skipped, whether they were done already or not
    skipped: dict[str, int]  # number of skipped runs by reason
    machine: str
    quick: bool = False
    started: str = ""  # UTC, in ISO 8601
    runs_left: int = 0  # number of runs that were not done when it ended
    again_since: str = ""  # when it began to repeat recorded runs (--again), until all are done


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


def by_reason(reasons: Iterable[str]) -> dict[str, int]:
    """Count reasons, the most frequent first.

    Those that differ only in numbers are one: "needs 2 to 8 GPUs, this machine has none".
    """
    similar: dict[str, list[list[str]]] = defaultdict(list)
    for reason in reasons:
        similar[_NUMBER.sub("N", reason)].append(_NUMBER.split(reason))
    counts = {"".join(map(_range, zip(*group))): len(group) for group in similar.values()}
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def _range(parts: Sequence[str]) -> str:
    """Return the least and the largest of several numbers; a text, or a number that is always the same, as it is."""
    return parts[0] if len({*parts}) == 1 else f"{min(parts, key=float)} to {max(parts, key=float)}"
