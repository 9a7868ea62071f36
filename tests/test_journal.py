"""The journal: records come back complete and once, despite crashes, damage and simultaneous writers."""

import dataclasses
import errno
import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from poc.records import journal
from poc.records.record import SCHEMA, Record
from poc.values import UserError
from tests.builders import record_of
from tests.launch import HOME


def appended(path: Path, *names: str, **fields: str) -> list[Record]:
    records = [record_of(run_id=name, **fields) for name in names]
    for record in records:
        journal.append(path, record)
    return records


def names_in(*paths: Path) -> list[str]:
    return [record.run_id for record in journal.read(paths)]


def test_each_machine_has_a_folder_with_a_name_like_its_own(tmp_path: Path) -> None:
    names = ["EPYC-2", "p2.8xlarge", "CPU: AMD EPYC, 2 cores", "CPU-AMD-EPYC-2-cores", "CPU: AMD EPYC: 2 cores"]
    names += ["", ".", "..", "../up", "a/b", "a b", "rows.csv", "figures", "名", "\udcff", "x" * 300, "x" * 301]
    folders = [journal.folder(tmp_path, name) for name in names]
    assert [folder.name for folder in folders[:2]] == names[:2]
    assert folders[2].name.startswith("CPU-AMD-EPYC-2-cores~")
    assert len(set(folders)) == len(names)
    assert {folder.parent for folder in folders} == {tmp_path}
    for name, folder in zip(names, folders):
        journal.append(folder / journal.FILE, record_of(run_id=repr(name)))
    (tmp_path / "figures").mkdir()
    (tmp_path / "rows.csv").touch()
    assert sorted(names_in(*journal.paths(tmp_path))) == sorted(map(repr, names))


def test_a_folder_with_pages_of_the_user_s_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    journal.check_folder(tmp_path)
    (tmp_path / "results.md").write_text("# Mine")
    with pytest.raises(UserError, match=r"results\.md"):
        journal.check_folder(tmp_path)
    journal.append(journal.folder(tmp_path, "here") / journal.FILE, record_of())
    journal.check_folder(tmp_path)


def test_records_come_back_in_order_and_once_from_separate_or_joined_journals(tmp_path: Path) -> None:
    paths = [tmp_path / machine / "journal.jsonl" for machine in ("K80", "P100")]
    both = [record for path in paths for record in appended(path, "b", "a", "c", infrastructure=path.parent.name)]
    joined = tmp_path / "joined"
    joined.write_bytes(b"".join(path.read_bytes() for path in paths))
    assert journal.read([*paths, paths[0], tmp_path / "missing.jsonl"]) == journal.read([joined]) == both
    # A copy by a version that did not have all fields.
    lines = [json.loads(line) for line in joined.read_text().splitlines()]
    for fields in lines:
        del fields["gpus_in_use"]
    joined.write_text("".join(json.dumps(fields) + "\n" for fields in lines))
    assert journal.read([*paths, joined]) == both


def test_records_of_others_join_once_and_another_machine_of_a_name_gets_a_number(tmp_path: Path) -> None:
    def machines(records: list[Record]) -> list[tuple[str, str]]:
        return [(record.infrastructure, record.run_id) for record in records]

    own = appended(tmp_path / "results" / "p3" / journal.FILE, "a", "b", infrastructure="p3")
    for names, sender in (("bc", "copy"), ("d", "other"), ("e", "third")):
        appended(tmp_path / sender / "p3" / journal.FILE, *names, infrastructure="p3")
    appended(tmp_path / "third" / "K80" / journal.FILE, "f", infrastructure="K80")
    copy, other, third = (tmp_path / name for name in ("copy", "other", "third"))
    # A machine with a record in common is the same machine.
    assert machines(journal.read_with(own, [copy])) == [("p3", "c")]
    assert machines(journal.read_with([], [copy, copy])) == [("p3", "b"), ("p3", "c")]
    # The folder of one machine, and folders of several.
    joined = journal.read_with(own, [other / "p3", third, other])
    assert machines(joined) == [("p3 (2)", "d"), ("K80", "f"), ("p3 (3)", "e")]
    for name, run in (("p3", "g"), ("p3 (2)", "h")):
        appended(tmp_path / "numbered" / name / journal.FILE, run, infrastructure=name)
    numbered = journal.read_with(own, [tmp_path / "numbered"])
    assert sorted(machines(numbered)) == [("p3 (2)", "h"), ("p3 (3)", "g")]
    # A later folder of that other machine, which then trained with a second one, too.
    appended(tmp_path / "later" / "p3" / journal.FILE, "d", "i", infrastructure="p3")
    appended(tmp_path / "later" / "pair" / journal.FILE, "j", infrastructure="2 hosts, each p3")
    joined = journal.read_with(own, [other, tmp_path / "later"])
    assert machines(joined) == [("p3 (2)", "d"), ("p3 (2)", "i"), ("2 hosts, each p3 (2)", "j")]
    # Two machines of a type that did the same in the same second: their CPUs were measured.
    (first, second) = (
        dataclasses.replace(own[0], hardware=dataclasses.replace(own[0].hardware, cpu_flops=flops))
        for flops in (1e11, 1.1e11)
    )
    journal.append(tmp_path / "twin" / journal.FILE, second)
    assert machines(journal.read_with([first], [tmp_path / "twin"])) == [("p3 (2)", "a")]
    for folder in ("missing", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=f"results: .*{folder}"):
            journal.read_with([], [tmp_path / folder])


@pytest.mark.faults
@pytest.mark.parametrize(
    "line",
    [
        *(b'{"schema": 3, "run_id": "to', b"null", b"[1]", b"{}", b'{"schema": 3}', b"\xff\xfe", b"[" * 100_000),
        b"NaN",
    ],
    ids=lambda line: repr(line[:24]),
)
def test_a_damaged_line_is_left_out_with_a_warning(
    line: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal"
    appended(path, "first")
    with path.open("ab") as file:
        file.write(line)
    assert names_in(path) == ["first"]
    assert "line 2 is left out: " in capsys.readouterr().err
    appended(path, "second")  # a torn line does not swallow the next one
    assert names_in(path) == ["first", "second"]


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1])
def test_a_record_of_another_schema_is_refused(schema: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text(json.dumps({**record_of().to_json(), "schema": schema}) + "\n")
    with pytest.raises(UserError, match=f"line 1 has schema {schema}"):
        journal.read([path])


def test_a_record_with_a_setting_of_a_newer_version_is_refused_or_its_run_would_be_repeated(tmp_path: Path) -> None:
    path, fields = tmp_path / "journal", record_of().to_json()
    path.write_text(json.dumps({**fields, "run": {**fields["run"], "schedule_free": True}}) + "\n")
    with pytest.raises(UserError, match=r"line 1: .*schedule_free.*; git pull"):
        journal.read([path])


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ['"wall": {}', '"parts": {{"train": {}}}', '"norms": [{{"step": {}}}]'])
def test_a_number_that_is_not_finite_is_not_read(
    field: str, number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal"
    path.write_text(f"{json.dumps(record_of().to_json())[:-1]}, {field.format(number)}}}\n")
    assert names_in(path) == []
    assert "finite number" in capsys.readouterr().err


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        journal.append(tmp_path / "journal", dataclasses.replace(record_of(), wall=float("nan")))
    assert names_in(tmp_path / "journal") == []


@pytest.mark.faults
def test_a_file_system_without_locks_accepts_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with journal.claimed(tmp_path / journal.FILE):
        appended(tmp_path / journal.FILE, "a", "b")
    assert names_in(tmp_path / journal.FILE) == ["a", "b"]


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    code = "from tests.test_journal import *\nfor i in range(25):\n"
    code += "    journal.append(Path(sys.argv[1]), record_of(run_id=f'{sys.argv[2]} {i}', reason='y' * 5000))"
    commands = [[sys.executable, "-c", code, str(path), str(number)] for number in range(4)]
    writers = [subprocess.Popen(command, cwd=HOME) for command in commands]
    assert [writer.wait() for writer in writers] == [0] * 4
    names = [json.loads(line)["run_id"] for line in path.read_text().splitlines()]
    assert sorted(names) == sorted(f"{number} {i}" for number in range(4) for i in range(25))
