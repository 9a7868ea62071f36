"""`poc run --trace`: a file of the framework's profiler per worker, and the same record as without it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from poc.cli import main
from poc.records import journal
from poc.records.record import COMPLETED
from tests.builders import GLUON, MACHINE, TWO_WORKERS, course, executed, recipe_file
from tests.extras import needs_torch
from tests.launch import records, run_here

SHORT: dict[str, Any] = {**GLUON, "epochs": 2}
TORCH: dict[str, Any] = {**SHORT, "framework": "pytorch"}
STEPS = 4


def ranges_of(path: Path) -> Counter[str]:
    """Count the ranges of a trace by name."""
    events = json.loads(path.read_text())["traceEvents"]
    return Counter(event["name"] for event in events if event["ph"] in ("X", "B"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {**SHORT, "devices": 2},
        pytest.param({**TORCH, "devices": 2}, marks=needs_torch, id="pytorch, two workers"),
    ],
)
def test_each_worker_traces_its_steps_and_the_record_is_the_same(
    fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if fields.get("devices") == 2 and MACHINE.cores < 2:
        pytest.skip("two devices need two cores")
    run_here(recipe_file(tmp_path / "mine.py", **fields), tmp_path, "--trace", str(STEPS))
    (record,) = records(tmp_path)
    assert (record.outcome, record.reason) == (COMPLETED, "")
    folder = tmp_path / "results" / "here" / journal.TRACES
    traces = [folder / f"{record.run.id}_worker{worker}.json" for worker in range(record.run.workers)]
    assert sorted(folder.iterdir()) == traces
    for trace in traces:
        ranges = ranges_of(trace)
        assert {ranges[name] for name in ("step", "forward_backward", "sync_gradients", "apply_update")} == {STEPS}
        assert any("conv" in name.lower() for name in ranges)
    if record.run.workers == 1:
        assert course(record) == course(executed(tmp_path / "untraced", **fields))
    capsys.readouterr()
    main(["show", record.run.id, "--results", str(tmp_path / "results")])
    shown = capsys.readouterr().out
    assert all(str(trace) in shown for trace in traces)


@pytest.mark.slow
def test_a_recorded_run_is_not_repeated_for_a_trace_and_traces_are_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POC_CACHE", str(tmp_path))
    recipe = recipe_file(tmp_path / "mine.py", **TWO_WORKERS, epochs=2)
    run_here(recipe, tmp_path)
    assert "--trace" in run_here(recipe, tmp_path, "--trace", "2")
    folder = tmp_path / "results" / "here" / journal.TRACES
    assert (folder.exists(), len(records(tmp_path))) == (False, 1)
    # The repeated run tries to make a trace, and this framework has no profiler for one.
    run_here(recipe, tmp_path, "--trace", "2", "--again")
    assert "NotImplementedError" in capfd.readouterr().err
    assert (folder.exists(), [record.outcome for record in records(tmp_path)]) == (True, [COMPLETED] * 2)
    trace = folder / f"{records(tmp_path)[0].run_id}_worker0.json"
    trace.write_text("{}")
    main(["publish", "--results", str(tmp_path / "results"), "--output", str(tmp_path / "sent")])
    published = {path.name for path in (tmp_path / "sent").rglob("*")}
    assert journal.FILE in published
    assert not published & {folder.name, trace.name}
