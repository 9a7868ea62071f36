from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from poc import journal
from poc.errors import UserError

HOME = Path(__file__).parent.parent


def test_records_come_back_in_order_and_once(tmp_path: Path) -> None:
    path = tmp_path / "results" / "journal.jsonl"
    records = [{"schema": 1, "run_id": name} for name in ("b", "a", "c")]
    for record in records:
        journal.append(path, record)
    assert journal.read([path, path, tmp_path / "missing.jsonl"]) == records


def test_journals_of_two_machines_are_joined(tmp_path: Path) -> None:
    for machine in ("K80", "P100"):
        journal.append(tmp_path / machine, {"schema": 1, "run_id": "same", "infrastructure": machine})
    joined = tmp_path / "joined"
    joined.write_bytes((tmp_path / "K80").read_bytes() + (tmp_path / "P100").read_bytes())
    both = journal.read([tmp_path / "K80", tmp_path / "P100"])
    assert [one["infrastructure"] for one in both] == ["K80", "P100"]
    assert journal.read([joined]) == both


def test_a_torn_last_line_is_set_aside_and_the_next_record_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal"
    journal.append(path, {"schema": 1, "run_id": "first"})
    with path.open("a") as file:
        file.write('{"schema": 1, "run_id": "to')
    assert [one["run_id"] for one in journal.read([path])] == ["first"]
    assert "line 2 is not a whole record" in capsys.readouterr().err
    journal.append(path, {"schema": 1, "run_id": "second"})
    assert [one["run_id"] for one in journal.read([path])] == ["first", "second"]


def test_a_record_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal.append(path, {"schema": 99})
    with pytest.raises(UserError, match="line 1 is not a record of schema 1"):
        journal.read([path])


def test_what_is_not_a_number_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        journal.append(tmp_path / "journal", {"schema": 1, "loss": float("nan")})
    assert journal.read([tmp_path / "journal"]) == []


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    code = (
        "import sys; from pathlib import Path; from poc import journal\n"
        "for i in range(25):\n"
        "    journal.append(Path(sys.argv[1]), {'schema': 1, 'who': sys.argv[2], 'i': i, 'x': 'y' * 5000})\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, path, str(w)], cwd=HOME) for w in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    found = sorted((one["who"], one["i"]) for one in map(json.loads, path.read_text().splitlines()))
    assert found == sorted((str(w), i) for w in range(4) for i in range(25))
