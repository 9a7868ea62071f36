"""The gate of `poc compare` and `poc ab`: its error rates on generated repeats, and a slower commit that it finds."""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from poc import Synthetic
from poc.cli import ab, compare, main
from poc.cli.compare import NOT_SLOWER, SLOWER, TOO_FEW
from poc.cli.options import Options
from poc.records import journal
from poc.records.record import Record
from poc.values import UserError
from tests.builders import SAMPLES, add, recipe_file, record_of
from tests.launch import DEADLINE_SECONDS, HEEDFUL, HOME, eventually, git

LIMIT, N, JOURNALS = 0.05, 5, 1000
PLACES = ([0, 3, 4, 7, 8], [1, 2, 5, 6, 9])
"""When the five repeats of each side start: A B B A A B B A A B."""
SLOWER_STEP = -math.log(1.1)
PACE = """

import time

_step = NumpySession.step


def _paced(self, *arguments, **options):
    _step(self, *arguments, **options)
    self._due = getattr(self, "_due", time.perf_counter()) + {seconds}
    time.sleep(max(0.0, self._due - time.perf_counter()))


NumpySession.step = _paced
"""
"""What makes steps of the reference framework end at regular times, so that a busy machine matters little."""


def recorded_spreads() -> np.ndarray:
    """Return the standard deviations of log samples/s of 45 settings on shared virtual machines."""
    return pd.read_csv(HOME / "tests" / "recorded_spreads.csv").spread.to_numpy()


def logarithms(generator: np.random.Generator, spread: float, effect: float = 0.0, drift: float = 0.0) -> np.ndarray:
    """Return log samples/s, (2, N): normal repeats with `drift` from the first to the last, the second side moved."""
    values = math.log(300.0) + generator.normal(0, spread, (2, N)) + drift * np.array(PLACES) / 9
    values[1] += effect
    return values


def records(rates: Sequence[float], side: int, **changes: Any) -> list[Record]:
    """Return a record for each rate in samples/s, which started when those of that side do."""
    return [
        record_of(epoch_seconds=[SAMPLES / rate] * 6, started=f"2026-11-21T10:{5 * place:02}:00+00:00", **changes)
        for rate, place in zip(rates, PLACES[side])
    ]


@pytest.mark.slow
def test_a_10_percent_slower_step_is_found_and_the_error_rates_are_those_of_the_documentation() -> None:
    page = (HOME / "docs" / "ci.md").read_text()
    rows = re.findall(r"^\| (\d+\.?\d*)%[^|]*\|((?: +\d+% \|)+)$", page, re.MULTILINE)
    documented = {float(spread): [int(cell) for cell in re.findall(r"\d+", cells)] for spread, cells in rows}
    for spread, cells in documented.items():
        generator, measured = np.random.default_rng(12345), []
        for effect in (0.0, SLOWER_STEP):
            values = [logarithms(generator, spread / 100, effect) for _ in range(JOURNALS)]
            codes = compare.gate(np.swapaxes(values, 0, 1), LIMIT)["exit_code"]
            measured += [100 * codes.count(code) / JOURNALS for code in (NOT_SLOWER, SLOWER, TOO_FEW)]
        assert cells == pytest.approx(measured, abs=0.6), (spread, measured)
        assert measured[1] <= 5
        assert measured[3] <= 5
    _, _, _, _, found, _ = documented[round(100 * float(np.median(recorded_spreads())), 1)]
    assert found >= 90
    # Equal commits with the recorded spreads, half of them with a drift.
    generator, spreads, values = np.random.default_rng(12345), recorded_spreads(), []
    for number in range(JOURNALS):
        drift = generator.normal(0, 0.1) * (number % 2)
        values.append(logarithms(generator, generator.choice(spreads), drift=drift))
    alarms = compare.gate(np.swapaxes(values, 0, 1), LIMIT)["exit_code"].count(SLOWER)
    assert alarms <= 0.05 * JOURNALS
    assert f"{alarms / JOURNALS:.1%}" in page


def test_more_runs_share_the_false_alarms_and_equal_repeats_need_no_spread() -> None:
    generator = np.random.default_rng(1)
    sides = [pd.Series(side) for side in logarithms(generator, 0.04, SLOWER_STEP)]
    one, ten = (compare.gate(sides, LIMIT, runs)["bounds"] for runs in (1, 10))
    assert ten[0] < one[0] < one[1] < ten[1]
    for ratio, code in ((1.0, NOT_SLOWER), (0.96, NOT_SLOWER), (0.94, SLOWER), (1.1, NOT_SLOWER)):
        equal = [pd.Series([1.0] * N), pd.Series([1.0 + math.log(ratio)] * N)]
        assert compare.gate(equal, LIMIT)["exit_code"] == code
    assert compare.gate([side[:2] for side in sides], LIMIT) == {
        **{"exit_code": TOO_FEW, "repeats_needed": 3, "limit": pytest.approx(1 / 1.05)}
    }


def test_as_many_repeats_as_the_gate_names_decide() -> None:
    values = np.random.default_rng(2).normal(0, 0.04, (2, 3))
    values -= values.mean(axis=1, keepdims=True)
    for difference in (0.02, 0.0, -0.02, -0.08):
        sides = [pd.Series(values[0]), pd.Series(values[1] + difference)]
        first = compare.gate(sides, LIMIT)
        assert first["exit_code"] == TOO_FEW
        more = [pd.Series(np.tile(side, math.ceil(first["repeats_needed"] / 3))) for side in sides]
        assert compare.gate(more, LIMIT)["exit_code"] == (SLOWER if difference == -0.08 else NOT_SLOWER)


@pytest.mark.parametrize(("ratio", "n", "code"), [(1.0, 5, NOT_SLOWER), (0.8, 5, SLOWER), (0.8, 2, TOO_FEW)])
def test_compare_ends_with_the_verdict_on_two_folders_and_on_two_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ratio: float, n: int, code: int
) -> None:
    other = {"run": {"learning_rate": 0.4}}
    noise = np.exp(logarithms(np.random.default_rng(3), 0.005))
    for side, factor in enumerate((1.0, ratio)):
        for record in records(factor * noise[side, :n], side, commit="ab"[side] * 7):
            add(tmp_path / "ab"[side], record)
            add(tmp_path / "both", record)
        # Each folder has a run that the other one lacks, and one that was skipped there, too.
        skipped = record_of(epoch_seconds=(), accuracies=(), run={"learning_rate": 0.8}, outcome="skipped")
        add(tmp_path / "ab"[side], record_of(run={"seed": side + 7}), skipped)
    add(tmp_path / "both", *records(300 * ratio * np.exp(noise[1, :n] / 300 - 1), 1, **other))
    run, slow = record_of().run.id, record_of(**other).run.id
    both = ["--results", str(tmp_path / "both"), "--slower", "0.05"]
    for arguments in (
        [str(tmp_path / "a"), str(tmp_path / "b"), "--slower", "5%"],
        [*map(str, (tmp_path / "a").iterdir()), str(tmp_path / "b"), "--slower", "5%"],
        [f"{run}@aaa", f"{run}@bbb", *both],
    ):
        assert main(["compare", *arguments, "--json"]) == code
        content = json.loads(capsys.readouterr().out)
        (compared,) = content if isinstance(content, list) else [content]
        assert compared["runs"] == [run, run]
        assert (compared["exit_code"], compared["samples/s"]["gate"]["exit_code"]) == (code, code)
        assert compared["differences"].keys() == {"commit"}
    assert main(["compare", f"{run}@aaa", slow, *both]) in (code, TOO_FEW)
    assert main(["compare", *arguments]) == code
    # Without a gate the exit code is that of a significant difference.
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == int(code == SLOWER)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of this code and the reference framework: a step of tag "slow" takes 25% longer than of "fast"."""
    folder = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(HOME / "poc", folder / "poc", ignore=ignored)
    reference = folder / "poc" / "frameworks" / "reference"
    shutil.copytree(HOME / "tests" / "frameworks" / "reference", reference, ignore=ignored)
    session = (reference / "session.py").read_text()
    # Other tests may keep this machine busy, whose repeats would not count; and pages take seconds.
    for name, old, new in (
        ("records/record.py", "BUSY_SHARE = 0.05", "BUSY_SHARE = 1e9"),
        ("cli/run.py", "    write_report(options, known_prices)\n", ""),
    ):
        code = (folder / "poc" / name).read_text()
        assert old in code
        (folder / "poc" / name).write_text(code.replace(old, new))
    git(folder, "init", "--quiet")
    for tag, seconds in (("fast", 0.1), ("slow", 0.125)):
        (reference / "session.py").write_text(session + PACE.format(seconds=seconds))
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", tag)
        git(folder, "tag", tag)
    data = Synthetic(train=448, validation=160)  # 14 steps, 8 of which are timed
    recipe_file(folder / "mine.py", epochs=1, window=2, evaluate=False, data=data)
    return folder


def start_ab(checkout: Path, results: Path, *words: str) -> subprocess.Popen[str]:
    """Start `poc ab WORDS` with the code of that repository."""
    command = [*HEEDFUL, sys.executable, "-I", str(checkout / "poc" / "host" / "isolated.py"), "poc", "ab", *words]
    command += ["--results", str(results), "--machine", "here", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "POC_FRAMEWORKS"}
    environment |= {"POC_CACHE": str(results / "cache"), "TMPDIR": str(results)}
    results.mkdir(exist_ok=True)
    options: dict[str, Any] = {"cwd": checkout, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **options)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, output, errors


def measured(results: Path) -> list[list[Record]]:
    """Return the records of both sides."""
    return [journal.read(sorted(results.glob(f"ab/*/{side}/*/{journal.FILE}"))) for side in "AB"]


@pytest.mark.slow
def test_a_slower_commit_is_found_though_the_command_is_interrupted_and_killed(checkout: Path, tmp_path: Path) -> None:
    words = ("fast", "slow", "mine.py", "--repeats", "3", *("--python", sys.executable) * 2)
    before = set(tmp_path.iterdir())
    for number, stop in enumerate((signal.SIGINT, signal.SIGKILL), start=1):
        process = start_ab(checkout, tmp_path, *words)
        eventually(lambda: len(measured(tmp_path)[1]) >= number, lambda: process.poll() is not None)  # noqa: B023
        process.send_signal(stop)
        status, output, _ = ended(process)
        assert (status, output) == (130 if stop == signal.SIGINT else -9, "")
        if stop == signal.SIGINT:
            assert len(git(checkout, "worktree", "list").splitlines()) == 1
            assert {path.name for path in {*tmp_path.iterdir()} - before} <= {"ab", "cache"}
    kept = measured(tmp_path)
    status, output, errors = ended(start_ab(checkout, tmp_path, *words))
    assert status == SLOWER, errors
    (compared,) = json.loads(output)
    assert compared["samples/s"]["gate"]["ratio"] == pytest.approx(0.8, abs=0.06)
    assert compared["samples/s"]["n"] == [3, 3]
    for side, tag in enumerate(("fast", "slow")):
        records = measured(tmp_path)[side]
        assert records[: len(kept[side])] == kept[side]
        completed = [record for record in records if record.outcome == "completed"]
        assert {record.commit for record in completed} == {git(checkout, "rev-parse", tag)[:12]}
        assert len(completed) == 3
    starts = sorted(
        (record.started, side)
        for side, records in enumerate(measured(tmp_path))
        for record in records
        if record.outcome == "completed"
    )
    assert "".join("AB"[side] for _, side in starts) == "ABBAAB"


def test_after_a_repeat_newer_results_are_refused_and_what_no_repeat_would_change_ends_it(tmp_path: Path) -> None:
    sides = [ab._Side(name, tmp_path, tmp_path, tmp_path / name) for name in "AB"]
    add(sides[0].results, record_of())
    add(sides[1].results, record_of(outcome="out of memory"))
    assert not ab._completed(sides)
    add(sides[1].results, record_of(run={"seed": 1}))
    assert ab._completed(sides)
    (path,) = journal.paths(sides[1].results)
    path.write_text(path.read_text().replace('"seed"', '"seed_of_later"'))
    with pytest.raises(UserError, match=r"newer commit.*seed_of_later"):
        ab._completed(sides)


def test_an_interpreter_whose_packages_were_upgraded_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poc.cli.options.HOME", tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "first")
    python = tmp_path / "python"
    monkeypatch.setattr("sys.executable", str(python))
    for named in ([python] * 2, []):
        folders = []
        for version in ("1.0", "1.0", "1.1"):
            python.write_text(f"#!/bin/sh\necho {version}\n")
            python.chmod(0o755)
            options = Options(python=named, revisions=["HEAD"] * 2, results=tmp_path)
            with contextlib.ExitStack() as stack:
                folders.append(ab._sides(options, stack)[0].results)
        assert (folders[0] == folders[1], folders[1] == folders[2]) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("fats slow mine.py", "did you mean 'fast'?"),
        ("fast slow mini.py", "'mini.py'"),
        ("fast slow mine.py --set epoch=3", "did you mean 'epochs'?"),
        ("fast slow mine.py --set repeats=3", "--repeats"),
        ("fast fast mine.py --set kind=gpu", "none"),  # a commit may be compared with itself
        ("fast slow mine.py --set steps=1000000000", "hour"),
        ("fast slow mine.py --set batch_per_device=largest", "largest"),
        ("fast slow mine.py --set lr=Search(low=0.1,high=1)", "Search"),
        ("fast slow mine.py --set lr=Exponential(low=0.1,high=1)", "Exponential"),
        ("fast slow mine.py --python nowhere", "nowhere"),
        ("fast slow mine.py --slower 5", "--slower"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    checkout: Path, tmp_path: Path, words: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("poc.cli.options.HOME", checkout)
    monkeypatch.chdir(checkout)
    monkeypatch.delenv("POC_FRAMEWORKS")
    monkeypatch.setenv("POC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status = main(["ab", *words.split(), "--results", str(tmp_path), "--machine", "here", "--json"])
    printed = capsys.readouterr()
    assert (status, printed.out, len(printed.err.splitlines())) == (2, "", 1), printed.err
    assert hint in printed.err
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]
    assert len(git(checkout, "worktree", "list").splitlines()) <= 3  # of a command that another test kills
