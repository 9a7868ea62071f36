"""What this project measured (reference/): the journals are whole, and the pages beside them say what they say."""

import statistics
import subprocess
from pathlib import Path

import pytest

from poc.records import journal
from tests.launch import HOME
from tests.pages import check
from tools import sample

REFERENCE = HOME / "reference"
RENEWED = "2026-11-26T22:36"
"""When all measurements were begun again (reference/README.md)."""


def test_the_reference_is_whole_and_no_record_is_of_an_earlier_version(capsys: pytest.CaptureFixture[str]) -> None:
    records = journal.read(journal.paths(REFERENCE))
    assert (len(records) >= 125, capsys.readouterr().err) == (True, "")
    assert [record.run_id for record in records if record.started < RENEWED] == []


def test_the_goals_of_accuracy_are_compared_with_the_records() -> None:
    records = [each for each in journal.read(journal.paths(REFERENCE)) if each.run.recipe == "tuned_recipes"]
    accuracies = {(each.run.global_batch, each.run.seed): each.evaluations[-1].accuracy for each in records}
    lines = (REFERENCE / "README.md").read_text().splitlines()
    for batch, goal in ((128, 0.88), (1024, 0.87), (4096, 0.83)):
        seeds = [accuracies[batch, seed] for seed in range(3)]
        median = statistics.median(seeds)
        verdict = "met" if median >= goal else f"missed by {goal - median:.3f}"
        shown = ", ".join(f"{accuracy:.3f}" for accuracy in seeds)
        assert f"| {batch:,} | {goal:.2f} | {shown} | {median:.3f} | {verdict} |" in lines


@pytest.mark.skipif(not (HOME / ".git").exists(), reason="a copy without its repository")
def test_git_ignores_all_that_a_run_writes_but_the_page() -> None:
    names = ["results/here/journal.jsonl", "results/rows.csv", "results/figures/scaling.svg"]
    kept = ["results.md", "results/.gitkeep", "reference/rows.csv", "recipes/mine.py"]
    command = ["git", "-C", str(HOME), "check-ignore", "--no-index", *names, *kept]
    assert subprocess.run(command, capture_output=True, text=True).stdout.split() == names
    tracked = subprocess.check_output(["git", "-C", str(HOME), "ls-files", "results"], text=True).split()
    assert tracked == ["results/.gitkeep"]


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


def test_the_readmes_scorecard_is_that_of_the_sample_page() -> None:
    rows = [line for line in (HOME / "README.md").read_text().splitlines() if line.startswith("| ")]
    scorecard = rows[: next(number for number, row in enumerate(rows) if row.startswith("| cost")) + 1]
    page = (HOME / "results.md").read_text().splitlines()
    assert len(scorecard) == 8
    assert [row for row in scorecard if row not in page] == []
