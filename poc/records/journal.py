"""Records on disk: one JSON line each, append-only, self-contained; each machine has a folder with a journal."""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import re
import secrets
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from poc.host.hardware import one_host
from poc.records.record import SCHEMA, Record
from poc.values import UnknownFieldError, UserError, from_plain

FILE = "journal.jsonl"
MARK = "published.json"  # a file in every folder that `poc publish` made; names the files that it may replace
TRACES = "traces"  # folder beside a journal, with traces whose names start with the ids of their runs

# Names of machines that are folder names, too; not those of other files and folders in the folder of results.
_PLAIN = re.compile(r"(?!(ab|figures)$)(?!.*\.(csv|html|jsonl|lock|md)$)[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")


def folder(results: Path, infrastructure: str) -> Path:
    """Return the folder in `results` of the machine of that name: the name itself, or similar and unique."""
    if _PLAIN.fullmatch(infrastructure):
        return results / infrastructure
    similar = re.sub(r"[^A-Za-z0-9]+", "-", infrastructure).strip("-")[:60] or "machine"
    return results / f"{similar}~{hashlib.sha256(os.fsencode(infrastructure)).hexdigest()[:6]}"


def paths(results: Path) -> list[Path]:
    """Return the journals in `results`, each in the folder of its machine."""
    return sorted(results.glob(f"*/{FILE}"))


def check_folder(results: Path) -> list[str]:
    """Return a line for each journal one folder too high or too deep in `results`, where it is not read.

    Raises UserError if it is the folder of a single machine, or one without results whose files pages might replace.
    """
    files = sorted(path.name for pattern in ("*.md", "*.csv", "*.html", "figures") for path in results.glob(pattern))
    page = results / "results.md"
    text = page.read_text(encoding="utf-8", errors="replace") if page.exists() else ""
    if files and not paths(results) and "](rows.csv)" not in text:
        raise UserError(f"--results: {results} has {files[0]}, but no results; use an empty or a new folder")
    if (results / FILE).exists() and not paths(results):
        raise UserError(f"--results: {results} has no MACHINE/{FILE}, but {FILE}; use --results {results.parent}")
    deeper = [path for path in sorted(results.glob(f"*/*/{FILE}")) if not (path.parents[1] / MARK).exists()]
    moved = results / "MACHINE" / FILE
    return [f"journal: {path} is not read; move it to {moved}" for path in [*results.glob(FILE), *deeper]]


def _lock(file: IO[Any], mode: int) -> bool:
    """Lock a file until it is closed; return False if another process has it. Some file systems have no locks."""
    try:
        fcntl.flock(file, mode)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Claim the journal at `path` for one sweep, whose pages would otherwise be of two.

    The claim ends with its process, however that ends. The first one gives the journal its `identity`. Raises UserError
    if another process has it, or if nothing can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_suffix(".lock").open("a")
        is_free = _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_free and not identity(path):
            print(secrets.token_hex(4), end="", file=file, flush=True)
    except OSError as error:
        raise UserError(f"results: cannot write to {path.parent} ({error.strerror}); use another folder") from error
    with file:
        if not is_free:
            raise UserError(f"results: another process is writing to {path}; wait, or use another --results")
        yield


def identity(path: Path) -> str:
    """Return the random id of the journal at `path`, which moves with its folder; empty before its first claim."""
    file = path.with_suffix(".lock")
    return file.read_text() if file.exists() else ""


def append(path: Path, record: Record) -> None:
    """Append `record` to the journal at `path`, synced to disk; other processes may write at the same time.

    Raises OSError if the disk is full; the journal is then as it was before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record.to_json(), sort_keys=True, allow_nan=False) + "\n"
    with path.open("a+b", buffering=0) as file:
        _lock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        # A line torn by a crash must not swallow this one; `read` skips it.
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            line = "\n" + line
        try:
            unwritten = line.encode()
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(size)
            error.filename = str(path)
            raise


def read(paths: Iterable[Path]) -> list[Record]:
    """Read the records of all journals in the order written, each once; a missing file has none.

    A damaged line is left out and reported on stderr. Raises UserError for a record of another schema or with settings
    that are unknown here, whose run would be done again, and if a journal cannot be read.
    """
    records: list[Record] = []
    alike: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for path in filter(Path.exists, paths):
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise UserError(f"journal: {path} cannot be read ({error.strerror})") from error
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
                schema = fields["schema"]
                record = from_plain(Record, fields) if schema == SCHEMA else None
            except UnknownFieldError as error:
                unknown, advice = str(error).partition(";")[0], "git pull if it is of a newer version, else delete it"
                raise UserError(f"{path}: line {number}: {unknown}; {advice}") from None
            except (LookupError, RecursionError, TypeError, ValueError, UserError) as error:
                print(f"{path}: line {number} is left out: {error}", file=sys.stderr)
                continue
            if record is None:
                raise UserError(f"{path}: line {number} has schema {schema}, not {SCHEMA}: see reference/README.md")
            # The lines of a copy may differ, since another version, which has more fields, wrote them.
            if record not in alike[_identity(record)]:
                alike[_identity(record)].append(record)
                records.append(record)
    return records


def read_with(records: Sequence[Record], folders: Iterable[Path]) -> list[Record]:
    """Read the records in `folders` that are not among `records`, each once, to show them together.

    A folder is that of one machine, or it contains the folders of several. A machine that has a record in common with
    one in `records` or in an earlier folder gets its name, one that has only the name in common a number. Raises
    UserError for a folder without a journal.
    """
    joined: list[Record] = []
    for folder in folders:
        files = paths(folder) or list(filter(Path.exists, [folder / FILE]))
        if not files:
            raise UserError(f"results: {folder} contains no journal; use a folder with {FILE} or MACHINE/{FILE}")
        machines = {_identity(record): one_host(record.infrastructure) for record in (*records, *joined)}
        received = read(files)
        received_names = dict.fromkeys(one_host(record.infrastructure) for record in received)
        for name in received_names:
            of_machine = [record for record in received if one_host(record.infrastructure) == name]
            common = [machines[identity] for identity in map(_identity, of_machine) if identity in machines]
            shown = [*common, name][0]
            if not common and name in machines.values():
                taken = {*machines.values(), *received_names}
                shown = next(free for number in itertools.count(2) if (free := f"{name} ({number})") not in taken)
            for record in of_machine:
                if _identity(record) not in machines:
                    infrastructure = record.infrastructure.removesuffix(name) + shown
                    joined.append(dataclasses.replace(record, infrastructure=infrastructure))
    return joined


def _identity(record: Record) -> tuple[Any, ...]:
    """Return what copies of a record share, whatever name the machine got."""
    return record.run_id, record.started, record.hardware
