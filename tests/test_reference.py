"""What this project measured (reference/), and speeds that were withdrawn: no page shows them, and accuracies stay."""

from __future__ import annotations

import dataclasses
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from poc import published, report
from poc.records import journal
from poc.records.record import Record
from tests.builders import build, record_of
from tests.launch import HOME
from tests.pages import check
from tools import sample

REFERENCE = HOME / "reference"
RENEWED = "2026-11-26T22:36"
"""When all speeds began to be measured again (reference/README.md)."""
DETAIL: dict[str, Any] = dict(steps=24, whole_step_seconds=0.4, independent_step_seconds=0.3, exchange_seconds=0.15)
DETAIL.update(exchange_bytes=3_000_000, bus_bytes_per_second=2e7, sums_right=True, synchronisation_seconds=0.04)
DETAIL.update(data_seconds=0.01)


def trained(pace: float, **changes: Any) -> Record:
    """Return twelve epochs that reach 0.8, with all that is timed; every time is `pace` times as long."""
    accuracies = [0.5, 0.7, 0.76, *[0.8] * 9]
    run = {"epochs": 12, "steps": 120, **changes.pop("run", {})}
    detail = {name: value * pace if name.endswith("_seconds") else value for name, value in DETAIL.items()}
    used = [{"device": "GPU 0", "seconds": 30.0 * pace, "joules": 900.0}]
    timed = dict(detail=detail, peak_flops=4e11 / pace)
    timed.update(monitor={"samples": 9, "of_windows": True, "devices": used})
    timed.update(sync_stats={"staleness": {}, "stale_wait_seconds": pace})
    timed.update(workers=[{"worker": 0, "windows": [], "wall": pace}], parts={"evaluate": pace})
    seconds = [4.0 * pace] * 12
    return record_of(epoch_seconds=seconds, accuracies=accuracies, run=run, **{**timed, **changes})


def read_back(folder: Path, *records: Record) -> list[Record]:
    for record in records:
        journal.append(folder / record.infrastructure / journal.FILE, record)
    return journal.read(journal.paths(folder))


def test_no_record_or_page_depends_on_a_time_that_was_withdrawn(tmp_path: Path) -> None:
    """Check it among records whose speed is shown, of the same setting and of others."""
    written, read = [], []
    for pace in (1.0, 3.0):
        folder = tmp_path / str(pace)
        withdrawn = [
            trained(pace, speed_withdrawn="a defect", run=run, started=f"2026-11-23T1{hour}:00:00+00:00")
            for hour, run in enumerate(({}, {"target_accuracy": 0.75, "seed": 1}, {"devices": 2, "kvstore": "nccl"}))
        ]
        shown = trained(1.0, run={"seed": 2}, infrastructure="another machine")
        records = read_back(folder / "journals", *withdrawn, trained(1.0), shown)
        assert len(records) == 5
        read.append(repr(records))
        report.write(records, published.load()[:1], page=folder / "results.md", folder=folder / "results", sample="-")
        pages = [path for path in folder.rglob("*") if path.suffix != ".jsonl" and path.is_file()]
        written.append({path.relative_to(folder): path.read_bytes() for path in pages})
    assert len(written[0]) > 8
    assert written[0] == written[1]
    assert read[0] == read[1]


def test_what_a_training_reached_stays_without_its_speed(tmp_path: Path) -> None:
    whole = trained(1.0)
    (record,) = read_back(tmp_path, dataclasses.replace(whole, speed_withdrawn="a defect"))
    (row,) = build(record).itertuples()
    assert (row.accuracy, row.epochs, row.outcome) == (0.8, 12, "completed")
    assert math.isnan(row.samples_per_second)
    assert [scored.accuracy for scored in record.evaluations] == [scored.accuracy for scored in whole.evaluations]
    with pytest.raises(ValueError, match="JSON"):  # or the journal would lose what the line has
        journal.append(tmp_path / "other", record)


def test_the_reference_is_whole_and_has_no_speed_of_an_earlier_version(capsys: pytest.CaptureFixture[str]) -> None:
    records = journal.read(journal.paths(REFERENCE))
    earlier = [record for record in records if record.started < RENEWED]
    assert (len(earlier), capsys.readouterr().err) == (172, "")
    assert len(records) - len(earlier) >= 89
    for record in records:
        assert bool(record.speed_withdrawn) == (record in earlier), record.run_id
    assert all(record.evaluations or record.norms for record in earlier)


@pytest.mark.skipif(not (HOME / ".git").exists(), reason="a copy without its repository")
def test_git_ignores_all_that_a_run_writes_but_the_page() -> None:
    names = ["results/here/journal.jsonl", "results/rows.csv", "results/figures/scaling.svg"]
    kept = ["results.md", "results/.gitkeep", "reference/rows.csv", "recipes/mine.py"]
    command = ["git", "-C", str(HOME), "check-ignore", "--no-index", *names, *kept]
    assert subprocess.run(command, capture_output=True, text=True).stdout.split() == names
    tracked = subprocess.check_output(["git", "-C", str(HOME), "ls-files", "results"], text=True).split()
    assert tracked == ["results/.gitkeep"]


def test_the_parts_of_every_record_add_up_and_none_is_negative() -> None:
    for record in journal.read(journal.paths(REFERENCE)):
        parts = record.split() or {}
        assert math.fsum(parts.values()) == pytest.approx(record.wall or 0.0)
        assert all(seconds >= -1e-6 for seconds in parts.values()), record.run_id


@pytest.mark.slow
def test_committed_results_are_what_the_journals_say(tmp_path: Path) -> None:
    sample.write(tmp_path)
    assert len((tmp_path / "results.md").read_text().splitlines()) <= 120
    for path in tmp_path.rglob("*.md"):
        check(path)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path for path in REFERENCE.rglob("*") if path.is_file() and path.suffix != ".jsonl"} - {
        REFERENCE / "README.md"
    }
    committed = {path.relative_to(HOME): path.read_bytes() for path in (HOME / "results.md", *kept)}
    assert sorted(map(str, made)) == sorted(map(str, committed)), "python -m tools.sample makes the pages again"
    assert [str(path) for path in made if made[path] != committed[path]] == []


def test_the_sample_says_that_it_is_one_and_of_which_machine() -> None:
    above = (HOME / "results.md").read_text().split("\n## ")[0]
    assert sample.SAMPLE in above.splitlines()[:3]
    assert f"**Machine:** {sample.MACHINE}:" in above


def test_the_readmes_scorecard_is_that_of_the_sample_page() -> None:
    rows = [line for line in (HOME / "README.md").read_text().splitlines() if line.startswith("| ")]
    scorecard = rows[: next(number for number, row in enumerate(rows) if row.startswith("| cost")) + 1]
    page = (HOME / "results.md").read_text().splitlines()
    assert len(scorecard) == 8
    assert [row for row in scorecard if row not in page] == []
