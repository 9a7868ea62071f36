from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from poc.records import journal
from poc.values import UserError

HOME = Path(__file__).parent.parent


def test_records_come_back_in_order_and_once(tmp_path: Path) -> None:
    path = tmp_path / "results" / "journal.jsonl"
    records = [{"schema": 2, "run_id": name} for name in ("b", "a", "c")]
    for record in records:
        journal.append(path, record)
    assert journal.read([path, path, tmp_path / "missing.jsonl"]) == records


def test_journals_of_two_machines_are_joined(tmp_path: Path) -> None:
    for machine in ("K80", "P100"):
        journal.append(tmp_path / machine, {"schema": 2, "run_id": "same", "infrastructure": machine})
    joined = tmp_path / "joined"
    joined.write_bytes((tmp_path / "K80").read_bytes() + (tmp_path / "P100").read_bytes())
    both = journal.read([tmp_path / "K80", tmp_path / "P100"])
    assert [one["infrastructure"] for one in both] == ["K80", "P100"]
    assert journal.read([joined]) == both


def test_a_torn_last_line_is_set_aside_and_the_next_record_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal"
    journal.append(path, {"schema": 2, "run_id": "first"})
    with path.open("a") as file:
        file.write('{"schema": 2, "run_id": "to')
    assert [one["run_id"] for one in journal.read([path])] == ["first"]
    assert "line 2 is left out: it is not a whole record" in capsys.readouterr().err
    journal.append(path, {"schema": 2, "run_id": "second"})
    assert [one["run_id"] for one in journal.read([path])] == ["first", "second"]


def test_a_record_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal.append(path, {"schema": 99})
    with pytest.raises(UserError, match="line 1 is of schema 99, this version knows 1 to 2"):
        journal.read([path])


@pytest.mark.faults
def test_a_line_that_somebody_changed_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal"
    records = [{"schema": 2, "run_id": name, "accuracy": 0.75} for name in ("first", "second", "third")]
    for record in records:
        journal.append(path, record)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"second"', b'"2nd"'))
    assert journal.read([path]) == [records[0], records[2]]
    assert capsys.readouterr().err == f"{path}: line 2 is left out: it was changed after it was written\n"
    # Every single byte counts.
    lines = whole.splitlines(keepends=True)
    for place in range(len(lines[1]) - 1):
        for other in b'x"0} ':
            if lines[1][place] != other:
                broken = lines[1][:place] + bytes([other]) + lines[1][place + 1 :]
                path.write_bytes(lines[0] + broken + lines[2])
                try:
                    found = journal.read([path])
                except UserError:  # a schema of 22
                    continue
                assert found in ([records[0], records[2]], records), broken


@pytest.mark.faults
@pytest.mark.parametrize(
    "line", [b"", b"null", b"[1]", b"{}", b'{"schema": "1"}', b"\xff\xfe", b"[" * 100_000, b"NaN", b'{"schema": NaN}']
)
def test_what_is_no_record_is_left_out(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal.append(path, {"schema": 2, "run_id": "first"})
    with path.open("ab") as file:
        file.write(line + b"\n")
    assert journal.read([path]) == [{"schema": 2, "run_id": "first"}]


@pytest.mark.faults
def test_without_room_the_journal_stays_as_it_was_and_takes_the_record_later(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal.append(path, {"schema": 2, "run_id": "first"})
    before = path.read_bytes()
    # A limit on the size of files is what a full disk is to a program that writes.
    code = (
        "import resource, sys; from pathlib import Path; from poc import journal\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "try:\n"
        "    journal.append(Path(sys.argv[1]), {'schema': 2, 'x': 'y' * 5000})\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], cwd=HOME, capture_output=True, text=True)
    assert done.stdout == "File too large\n", done.stderr
    assert path.read_bytes() == before
    journal.append(path, {"schema": 2, "run_id": "second"})
    assert [one["run_id"] for one in journal.read([path])] == ["first", "second"]


@pytest.mark.faults
def test_a_journal_is_claimed_by_one_process_until_that_ends_however_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "results" / "journal.jsonl"
    code = (
        "import sys, time; from pathlib import Path; from poc import journal\n"
        "with journal.claimed(Path(sys.argv[1])):\n"
        "    print('claimed', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], cwd=HOME, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        with pytest.raises(UserError, match=f"process {holder.pid} is at work on"), journal.claimed(path):
            pass
        holder.kill()
        holder.wait()
    with journal.claimed(path):
        pass


def test_what_is_not_a_number_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        journal.append(tmp_path / "journal", {"schema": 2, "loss": float("nan")})
    assert journal.read([tmp_path / "journal"]) == []


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    code = (
        "import sys; from pathlib import Path; from poc import journal\n"
        "for i in range(25):\n"
        "    journal.append(Path(sys.argv[1]), {'schema': 2, 'who': sys.argv[2], 'i': i, 'x': 'y' * 5000})\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, path, str(w)], cwd=HOME) for w in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    found = sorted((one["who"], one["i"]) for one in map(json.loads, path.read_text().splitlines()))
    assert found == sorted((str(w), i) for w in range(4) for i in range(25))
