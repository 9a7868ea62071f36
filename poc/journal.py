"""Records on disk: one JSON line each, append-only, self-contained, so that those of several machines can be joined."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from poc.errors import UserError

SCHEMA = 1
Record = dict[str, Any]


def append(path: Path, record: Record) -> None:
    """Adds `record` to the journal at `path`, on the disk when this returns; safe beside other writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, sort_keys=True, allow_nan=False) + "\n"
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # A line torn by a crash must not swallow this one; `read` sets it aside.
        if file.seek(0, os.SEEK_END) and _last_byte(file) != b"\n":
            line = "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def read(paths: Iterable[Path]) -> list[Record]:
    """The records of all journals in the order written, each once; a missing file holds none.

    A line that is not whole is left out and reported on stderr; a record of a newer schema is a UserError.
    """
    found: dict[str, Record] = {}
    for path in paths:
        if not path.exists():
            continue
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                print(
                    f"{path}: line {number} is not a whole record (a crash while writing?); left out",
                    file=sys.stderr,
                )
                continue
            if not isinstance(record, dict) or record.get("schema") != SCHEMA:
                raise UserError(
                    f"{path}: line {number} is not a record of schema {SCHEMA}; use the version that wrote it"
                )
            found.setdefault(json.dumps(record, sort_keys=True), record)
    return list(found.values())


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    return bytes(file.read(1))
