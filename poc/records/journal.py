"""Records on disk: one JSON line each, append-only, self-contained; a folder with a journal for each machine."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from poc.records.record import SCHEMA, Record
from poc.values import UserError

FILE = "journal.jsonl"
"""Its name, in the folder of its machine."""

WITHDRAWN = "withdrawn"
"""The folder of journals that no page reads, beside those of machines."""

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
    strays = [stray for stray in strays if stray.parent.parent != results / WITHDRAWN]
    return [
        f"journal: {stray} is not read; move it to {results / 'MACHINE' / FILE}{_or_up(stray, results)}"
        for stray in strays
    ]


def _or_up(stray: Path, results: Path) -> str:
    return f", or use --results {results.parent}" if stray.parent == results else ""


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
        raise UserError(f"results: cannot write to {path.parent} ({error.strerror}); use another folder") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            raise UserError(
                f"results: process {holder or 'of another user'} is writing to {path}; wait, or use another --results"
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

    A record whose speed was withdrawn comes without it (`Record.without_speed`). A line that is damaged is left out and
    reported on stderr. Raises UserError for a record of a newer schema, and where a journal cannot be read.
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
                why = error if isinstance(error, UserError) else f"it cannot be read ({error!r})"
                print(f"{place} is left out: {why}", file=sys.stderr)
                continue
            if record is None:
                known = f"this version reads 1 to {SCHEMA}; use the version that wrote it"
                raise UserError(f"{place} has schema {fields['schema']}, {known}")
            shown = record.without_speed() if record.speed_withdrawn else record
            records.setdefault(json.dumps(fields, sort_keys=True), shown)
    return list(records.values())


def read_with(records: Sequence[Record], folders: Iterable[Path]) -> list[Record]:
    """Read the records in `folders` that are not among `records`, each once, to show them beside those.

    A folder is that of one machine, or it holds the folders of several. A name that stands for a machine in `records`
    or in an earlier folder gets a number if it has no record in common with that: it is another machine of that name.
    Raises UserError for a folder without a journal.
    """
    joined: list[Record] = []
    for folder in folders:
        files = paths(folder) or list(filter(Path.exists, [folder / FILE]))
        if not files:
            what = "contains no journal" if folder.is_dir() else "is not a folder"
            raise UserError(f"--with: {folder} {what}; use one with {FILE} or MACHINE/{FILE}")
        seen = {_identity(record) for record in (*records, *joined)}
        names = {record.infrastructure for record in (*records, *joined)}
        sent = read(files)
        for name in dict.fromkeys(record.infrastructure for record in sent):
            of_machine = [record for record in sent if record.infrastructure == name]
            new = [record for record in of_machine if _identity(record) not in seen]
            if name in names and len(new) == len(of_machine):
                name = next(free for number in itertools.count(2) if (free := f"{name} ({number})") not in names)
            joined += [dataclasses.replace(record, infrastructure=name) for record in new]
    return joined


def _identity(record: Record) -> tuple[str, str, str]:
    """What copies of a record share, whatever name the machine got."""
    return record.run_id, record.started, record.hardware.describe()


def _intact(line: bytes) -> dict[str, Any]:
    """What a line holds, without its checksum; raises UserError where it is not as it was written."""
    try:
        fields = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise UserError("the record is incomplete (a crash while writing?)") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("schema"), int):
        raise UserError("it is not a record")
    checksum = fields.pop(_CHECKSUM, None)
    if checksum != _digest(fields) and (checksum is not None or fields["schema"] > 1):  # the first had none
        raise UserError("it was changed after it was written")
    return fields


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
