"""Records on disk: one JSON line each, append-only, self-contained, so that those of several machines can be joined."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from poc.run import Run
from poc.values import UserError

SCHEMA = 2
"""Of the records that are written; those of 1 have no checksum."""
_CHECKSUM = "checksum"
_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("run_id", "started", "infrastructure", "outcome", "reason", "dataset"), str),
    **dict.fromkeys(("run", "hardware", "versions", "parts", "memory"), dict),
    **dict.fromkeys(("windows", "evaluations"), list),
}
# And whether it has to be above zero.
_FIGURES = {
    "windows": (
        ("epoch", True),
        ("start", False),
        ("steps", True),
        ("samples", True),
        ("seconds", True),
        ("waited", False),
    ),
    "evaluations": (("epoch", True), ("at", False), ("seconds", False), ("accuracy", False), ("samples", True)),
}
_MEMORY = ("host_peak_bytes", "device_peak_bytes")
_MAYBE = ("parameters", "cpu_seconds", "others_busy_cores", "price_per_hour", "peak_flops")
_LARGEST = 1e18
Record = dict[str, Any]


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """For as long as this lasts no other process can claim the journal at `path`, or its pages would be of two runs.

    The claim ends with its holder, however that ends. Raises UserError where another process has it, or where nothing
    can be written there.
    """
    place = path.with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = place.open("a+")
    except OSError as error:
        raise UserError(f"results: cannot write in {path.parent} ({error.strerror}); name another folder") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            raise UserError(
                f"results: process {holder or 'of another user'} is at work on {path}; wait for it, or give --results"
            ) from None
        except OSError:  # a file system without locks
            yield
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def append(path: Path, record: Record) -> None:
    """Adds `record` to the journal at `path`, on the disk when this returns; safe beside other writers.

    Raises OSError where there is no room for it, with the journal as it was before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({**record, _CHECKSUM: _digest(record)}, sort_keys=True, allow_nan=False) + "\n"
    with path.open("a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        # A line torn by a crash must not swallow this one; `read` sets it aside.
        if size and _last_byte(file) != b"\n":
            line = "\n" + line
        try:
            left = line.encode()
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def read(paths: Iterable[Path]) -> list[Record]:
    """The records of all journals in the order written, each once; a missing file holds none.

    A line that is damaged is left out and reported on stderr. Raises UserError for a record of a newer schema, and
    where a journal cannot be read.
    """
    found: dict[str, Record] = {}
    for path in paths:
        if not path.exists():
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"journal: {path} cannot be read ({error.strerror})") from error
        for number, line in enumerate(content.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line, parse_constant=_refuse)
                damage = _damage(record)
            except (ValueError, RecursionError):
                damage = "it is not a whole record (a crash while writing?)"
            if damage:
                print(f"{path}: line {number} is left out: {damage}", file=sys.stderr)
                continue
            if not 1 <= record["schema"] <= SCHEMA:
                raise UserError(
                    f"{path}: line {number} is of schema {record['schema']}, this version knows 1 to {SCHEMA}; use the "
                    "one that wrote it"
                )
            found.setdefault(json.dumps(record, sort_keys=True), record)
    return list(found.values())


def _damage(record: Any) -> str:
    """What is wrong with what a line holds; empty where nothing is. Takes the line's own checksum out of it."""
    if not isinstance(record, dict) or not isinstance(record.get("schema"), int):
        return "it is no record"
    checksum = record.pop(_CHECKSUM, None)
    if checksum is None and record["schema"] < SCHEMA:
        return _misshapen(record)
    return "" if checksum == _digest(record) else "it was changed after it was written"


def _misshapen(record: Record) -> str:
    """Which part of a record without a checksum is not what it has to be; empty where all are."""
    for name, kind in _SHAPE.items():
        if not isinstance(record.get(name), kind):
            return f"{name} is missing, or not what it should be"
    for name, figures in _FIGURES.items():
        for one in record[name]:
            if not isinstance(one, dict) or not all(
                _counts(one.get(figure), above_zero) for figure, above_zero in figures
            ):
                return f"one of its {name} is not whole"
    hardware, memory = record["hardware"], record["memory"]
    known = (
        isinstance(hardware.get("description"), str)
        and _counts(hardware.get("cores"), True)
        and all(_counts(held, False) for held in record["parts"].values())
        and all(memory.get(name, 0) is None or _counts(memory.get(name), False) for name in _MEMORY)
        and all(record.get(name) is None or _counts(record[name], False) for name in ("wall", *_MAYBE))
    )
    if not known:
        return "one of its figures is none"
    try:
        Run.from_json(record["run"])
    except (UserError, TypeError, KeyError, ValueError) as error:
        return f"its run cannot be understood ({error})"
    return ""


def _counts(held: object, above_zero: bool) -> bool:
    """Whether it is a finite number that counts or measures something."""
    number = isinstance(held, (int, float)) and not isinstance(held, bool)
    return number and (held > 0 if above_zero else held >= 0) and held < _LARGEST  # type: ignore[operator]


def _digest(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    return bytes(file.read(1))
