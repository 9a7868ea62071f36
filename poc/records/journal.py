"""Records on disk: one JSON line each, append-only, self-contained; a folder with a journal for each machine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from poc.records.record import SCHEMA, Record
from poc.values import UserError

FILE = "journal.jsonl"
"""Its name, in the folder of its machine."""

_CHECKSUM = "checksum"
# Names of machines that folders may have, too; not those of files that are beside them.
_PLAIN = re.compile(r"(?!.*\.(csv|html|jsonl|lock|md)$)[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")


def folder(results: Path, infrastructure: str) -> Path:
    """The folder in `results` of the machine of that name: called so, or like it and unlike those of other names."""
    if _PLAIN.fullmatch(infrastructure):
        return results / infrastructure
    like = re.sub(r"[^A-Za-z0-9]+", "-", infrastructure).strip("-")[:60] or "machine"
    return results / f"{like}~{hashlib.sha256(os.fsencode(infrastructure)).hexdigest()[:6]}"


def paths(results: Path) -> list[Path]:
    """The journals in `results`, each in the folder of its machine."""
    return sorted(results.glob(f"*/{FILE}"))


def misplaced(results: Path) -> list[str]:
    """A line for each journal that lies a folder too high or too deep in `results`, where it is not read."""
    strays = sorted([*results.glob(FILE), *results.glob(f"*/*/{FILE}")])
    return [
        f"journal: {stray} is not read; move it to {results / 'MACHINE' / FILE}{_or_up(stray, results)}"
        for stray in strays
    ]


def _or_up(stray: Path, results: Path) -> str:
    return f", or give --results {results.parent}" if stray.parent == results else ""


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """For as long as this lasts no other process can claim the journal at `path`, or its pages would be of two runs.

    The claim ends with its holder, however that ends. Raises UserError where another process has it, or where nothing
    can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_suffix(".lock").open("a+")
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
            pass
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def append(path: Path, record: Record) -> None:
    """Adds `record` to the journal at `path`, on the disk when this returns; safe beside other writers.

    Raises OSError where there is no room for it, with the journal as it was before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = record.to_json()
    line = json.dumps({**fields, _CHECKSUM: _digest(fields)}, sort_keys=True, allow_nan=False) + "\n"
    with path.open("a+b", buffering=0) as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        # A line torn by a crash must not swallow this one; `read` sets it aside.
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
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
    records: dict[str, Record] = {}
    for path in filter(Path.exists, paths):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"journal: {path} cannot be read ({error.strerror})") from error
        for number, line in enumerate(content.split(b"\n"), start=1):
            if not line.strip():
                continue
            place = f"{path}: line {number}"
            try:
                fields = _intact(line)
                record = Record.from_json(fields) if 1 <= fields["schema"] <= SCHEMA else None
            except (UserError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                why = error if isinstance(error, UserError) else f"it cannot be understood ({error!r})"
                print(f"{place} is left out: {why}", file=sys.stderr)
                continue
            if record is None:
                known = f"this version knows 1 to {SCHEMA}; use the one that wrote it"
                raise UserError(f"{place} is of schema {fields['schema']}, {known}")
            records.setdefault(json.dumps(fields, sort_keys=True), record)
    return list(records.values())


def _intact(line: bytes) -> dict[str, Any]:
    """What a line holds, without its checksum; raises UserError where it is not as it was written."""
    try:
        fields = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise UserError("it is not a whole record (a crash while writing?)") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("schema"), int):
        raise UserError("it is no record")
    checksum = fields.pop(_CHECKSUM, None)
    if checksum != _digest(fields) and (checksum is not None or fields["schema"] > 1):  # the first had none
        raise UserError("it was changed after it was written")
    return fields


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
