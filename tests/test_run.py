"""Whole runs in real processes, from plan to record; traces and progress lines; how results are merged."""

import contextlib
import dataclasses
import itertools
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from poc import Synthetic, data, frameworks, synthetic
from poc.cli import main
from poc.host import hardware
from poc.records import journal, provenance, timing
from poc.records.record import COMPLETED, FAILED, OUT_OF_MEMORY, Memory, Record, WorkerResult
from poc.run import checkpoint, launcher
from poc.run.launcher import _occupied, own_cores, own_gpus
from poc.run.parent import execute, merge_workers
from poc.run.progress import label, result, varied
from poc.run.worker import evaluation_batch
from poc.values import UserError, from_plain
from tests import fake_gpus, test_own_data
from tests.builders import GLUON, MACHINE, TWO_WORKERS, course, executed, place_in, recipe_file, record_of, run_of
from tests.conftest import needs_torch
from tests.launch import HOME, NO_PAGES, finish, git, killed_at_40, records, run_here
from tests.recorded_nvml import eight_cards
from tests.test_host import use

slow = pytest.mark.slow


def check_split(result: Any) -> None:
    """The parts of the wall time of a record or a worker add up to it, and none is negative."""
    split = timing.split(result.wall, result.parts, result.windows, timing.warmup(result.windows))
    assert sum(split.values()) == pytest.approx(result.wall)
    assert min(split.values()) >= 0


@slow
def test_a_run_learns_and_leaves_a_complete_record(tmp_path: Path) -> None:
    fields = {"data": Synthetic(train=2000, validation=400), "batch_per_device": 50, "lr": 0.05}
    record, run = executed(tmp_path, **fields), run_of(**fields)
    assert (record.outcome, record.dataset, record.run) == (COMPLETED, "synthetic", run)
    assert record.evaluations[-1].accuracy > 0.8  # chance is 0.1; the last digits depend on the CPU
    assert [evaluation.samples for evaluation in record.evaluations] == [400] * 4
    assert sum(window.steps for window in record.windows) == 4 * 40
    assert sum(window.samples for window in record.windows) == 4 * 2000
    check_split(record)
    assert record.parameters == 402_250
    assert record.memory.host_peak_bytes > 2**25
    assert (len(record.monitor.devices), record.usable_cores) == (1, MACHINE.cores)
    assert min(record.others_busy_cores, record.stolen_cores) >= 0
    versions = {name: version for name, version in record.versions.items() if name != "system"}  # kernels may differ
    conditions = {"versions": versions, "machine": MACHINE.describe(), "repeats_before": 0}
    conditions |= {"images": ["synthetic", ""], "environment": record.environment, "workers_here": 1}
    ((step, attempt),) = checkpoint.steps(tmp_path / "checkpoints" / run.id, [0], conditions)
    assert (step, len(attempt)) == (160, 32)
    assert from_plain(Record, json.loads(json.dumps(record.to_json(), allow_nan=False))) == record


@slow
def test_a_resumed_run_by_time_counts_the_seconds_before_its_checkpoint(tmp_path: Path) -> None:
    fields = {"data": Synthetic(train=2000, validation=400), "batch_per_device": 50, "lr": 0.05, "seconds": 1e6}
    whole = run_of(**fields)
    paused = dataclasses.replace(whole, pause_after=2)
    assert execute(paused, place_in(tmp_path))[0].outcome == COMPLETED
    folder = tmp_path / "checkpoints" / whole.id
    saved = checkpoint.read(folder, 0, 80)
    assert saved.story["counted"]["trained"] > 0
    saved.story["counted"]["trained"] = 1e6
    checkpoint.write(folder, 0, saved, previous=40)
    record, _ = execute(whole, place_in(tmp_path))
    assert [entry.step for entry in record.resumed] == [80]
    assert sum(window.steps for window in record.windows) == 80  # the time is up


@slow
def test_a_resumed_run_keeps_the_checkpoint_that_it_continued_from_and_no_later_one(tmp_path: Path) -> None:
    run, folder = run_of(), tmp_path / "checkpoints" / run_of().id
    for epochs, kept in ((1, {"worker0-20.npz"}), (2, {"worker0-20.npz", "worker0-40.npz"})):
        assert execute(dataclasses.replace(run, pause_after=epochs), place_in(tmp_path))[0].outcome == COMPLETED
        assert {path.name for path in folder.iterdir()} == kept
        (folder / "worker0-30.npz").write_bytes(b"which another worker lacks")


def test_a_run_does_not_share_its_checkpoints_with_another_command(tmp_path: Path) -> None:
    with checkpoint.claimed(tmp_path / "checkpoints" / run_of().id), pytest.raises(UserError, match="another process"):
        execute(run_of(), place_in(tmp_path))


@slow
def test_whitening_works_with_fewer_images_than_it_wants(tmp_path: Path) -> None:
    fields = {**GLUON, "model": "cifar_airbench94_slim", "data": synthetic("cifar"), "batch_per_device": 8}
    record = executed(tmp_path, **fields, epochs=None, steps=2, window=2, evaluate=False)
    assert record.outcome == COMPLETED, record.reason


@slow
def test_two_workers_train_as_one_on_data_that_cannot_be_divided_equally(tmp_path: Path) -> None:
    # 105 images are six whole batches of 16 and 9 left over; of 71 for validation one worker has one more.
    fields = {**TWO_WORKERS, "data": Synthetic(train=105, validation=71), "batch_per_device": 8, "epochs": 3}
    record = executed(tmp_path, **fields, cores_per_worker=1 if MACHINE.cores > 1 else None, detail=4)
    assert (record.outcome, record.reason) == (COMPLETED, "")
    assert [window.samples for window in record.windows] == [80, 16] * 3
    assert len(record.workers) == 2
    for worker in record.workers:
        assert [(window.steps, window.samples) for window in worker.windows] == [(5, 40), (1, 8)] * 3
        check_split(worker)
    assert record.split()["rest"] >= 0
    assert [evaluation.samples for evaluation in record.evaluations] == [71] * 3
    detail = record.detail
    assert detail.bus_bytes_per_second == pytest.approx(4 * record.parameters / detail.exchange_seconds)


@slow
def test_a_run_that_cannot_write_checkpoints_completes(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    record = executed(tmp_path, epochs=2)
    assert record.outcome == COMPLETED
    assert [unsaved.step for unsaved in record.unsaved] == [20, 40]


@slow
@pytest.mark.parametrize(
    ("fault", "fields", "outcome"),
    [
        ("crash", TWO_WORKERS, COMPLETED),
        ("peak", {}, COMPLETED),
        ("interrupt", TWO_WORKERS, COMPLETED),
        *(("apart", fields, COMPLETED) for fields in ({"devices": 2, "detail": 3}, {**TWO_WORKERS, "detail": 3})),
        *(("sum", fields, FAILED) for fields in ({"devices": 2}, {**TWO_WORKERS, "detail": 3})),
        ("12", {**TWO_WORKERS, "restarts": 2}, OUT_OF_MEMORY),
    ],
)
def test_a_fault_after_the_training_does_not_lose_it_and_final_ones_are_not_retried(
    fault: str,
    fields: dict[str, Any],
    outcome: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POC_FAULT", fault)
    record = executed(tmp_path, **{"epochs": 1, **fields})
    assert record.outcome == outcome, record.reason
    assert "restarts left" not in capfd.readouterr().err
    if outcome == COMPLETED:
        assert (record.reason, bool(record.evaluations), record.detail) == ("", True, None)
        assert (record.peak_flops is None) == (fault in ("peak", "interrupt"))
        if fault != "apart":
            assert record.memory.device_peak_bytes == 1_000_000  # of the training


@slow
def test_the_peak_memory_is_that_of_the_worker_and_not_of_its_parent(tmp_path: Path) -> None:
    ballast = np.ones(25_000_000)
    peak = executed(tmp_path).memory.host_peak_bytes
    assert peak is not None
    assert 5e7 < peak < psutil.Process().memory_info().rss
    del ballast


IMAGES = dataclasses.replace(test_own_data.RECORDS, crop=32, resize=40)


@slow
def test_a_run_continues_only_on_its_own_images(tmp_path: Path) -> None:
    recipes, ids = [], []
    for labels_shift, name in enumerate(("first", "second")):
        folder = tmp_path / name
        folder.mkdir()
        test_own_data.records_in(folder, labels_shift)
        recipes.append(recipe_file(folder / "mine.py", data=IMAGES, batch_per_device=12, epochs=12))
        ids.append(test_own_data.load(IMAGES, folder).data_id)
    first, second = recipes
    killed_at_40(first, tmp_path)
    checkpoints = {path: path.read_bytes() for path in tmp_path.glob("checkpoints/*/*.npz")}
    run_here(second, tmp_path)
    assert {path: path.read_bytes() for path in checkpoints} == checkpoints
    for recipe, is_done in ((first, False), (second, True), (first, True)):
        assert ("already in the journal" in run_here(recipe, tmp_path)) == is_done
    of_second, of_first = records(tmp_path)
    assert [record.outcome for record in (of_first, of_second)] == [COMPLETED] * 2
    assert [of_first.data_id, of_second.data_id] == ids
    assert of_first.run_id == of_second.run_id
    assert ids[0] != ids[1]
    assert course(of_first) != course(of_second)
    assert ([noted.step for noted in of_first.resumed], of_second.resumed) == ([40], ())


@slow
def test_a_worker_with_other_images_than_planned_fails_the_run(tmp_path: Path) -> None:
    test_own_data.records_in(tmp_path)
    spec = data.count(IMAGES, tmp_path)
    planned = data.identify([spec], source=None, cache=tmp_path)
    test_own_data.records_in(tmp_path, labels_shift=1)
    actual = data.identify([spec], source=None, cache=tmp_path)
    record, _ = execute(run_of(data=spec, batch_per_device=12, epochs=1), place_in(tmp_path, images=planned))
    assert record.outcome == FAILED
    for images in (planned, actual):
        assert str(images[spec.key]) in record.reason
    assert "Traceback" not in record.reason


@pytest.mark.parametrize(
    ("fields", "samples", "batch"),
    [
        ({}, 10_000, 1_000),
        ({"devices": 8}, 10_000, 5_000),
        ({"devices": 8, "emulated": True}, 10_000, 1_000),
        ({"devices": 8, "workers": 8}, 10_000, 625),  # two batches of 1,250, not 1,000 and 250
        ({"devices": 7, "workers": 7}, 10_000, 715),
        ({}, 70, 70),
        ({"kind": "cpu"}, 10_000, 250),
        ({"data": Synthetic(size=224, crop=224), "batch_per_device": 4}, 10_000, 8),
        ({"data": Synthetic(size=224, crop=224), "batch_per_device": 256}, 10_000, 250),
    ],
    ids=str,
)
def test_gpus_evaluate_small_images_in_large_batches_of_one_size(
    fields: dict[str, Any], samples: int, batch: int
) -> None:
    assert evaluation_batch(dataclasses.replace(run_of(), **{"kind": "gpu", **fields}), samples) == batch


def worker_result(wall: float, seconds: list[float], **fields: Any) -> WorkerResult:
    """The result of a worker with windows of 10 samples and so many seconds each."""
    record = record_of(epoch_seconds=seconds, run={"global_batch": 1})
    windows = tuple(dataclasses.replace(window, loss=2 * window.seconds) for window in record.windows)
    fields = {"outcome": COMPLETED, "memory": Memory(host_peak_bytes=100), "wall": wall, **fields}
    return WorkerResult(windows=windows, evaluations=record.evaluations[-1:], **fields)


def merged(*results: WorkerResult) -> Record:
    return dataclasses.replace(record_of(), **merge_workers(results))


def test_the_slowest_worker_sets_the_pace() -> None:
    record = merged(worker_result(10.0, [1.0, 4.0]), worker_result(12.0, [2.0, 2.0]))
    windows = [(window.samples, window.seconds, window.waited, window.loss) for window in record.windows]
    assert windows == [(20, 2.0, 0.2, 3.0), (20, 4.0, 0.4, 6.0)]
    assert record.wall == 12.0
    assert record.memory == Memory(host_peak_bytes=200)
    uses = [Memory(device_peak_bytes=peak, device_reserved_bytes=100 - peak) for peak in (20, 30)]
    most = merged(*(worker_result(10.0, [1.0], memory=use) for use in uses)).memory
    assert most == Memory(device_peak_bytes=30, device_reserved_bytes=80)
    assert [worker.wall for worker in record.workers] == [10.0, 12.0]
    # The slowest worker's windows are 4 s, those of both together 6 s.
    parts = record.split()
    assert parts is not None
    assert sum(parts.values()) == pytest.approx(12.0)
    assert parts["rest"] == pytest.approx(8.0)
    assert record.evaluations[0].samples == 18_000


def test_the_reason_is_the_worker_that_failed_first_or_ran_out_of_memory() -> None:
    stopped = WorkerResult(outcome=FAILED, reason="its process ended early with signal 9")
    failed = worker_result(10.0, [1.0], outcome=FAILED, reason="connection reset")
    out_of_memory = worker_result(10.0, [1.0], outcome=OUT_OF_MEMORY, reason="no room")
    for results in ((stopped, failed), (failed, out_of_memory)):
        record = merged(*results)
        assert (record.outcome, record.reason) == (results[1].outcome, results[1].reason)


@pytest.mark.parametrize(
    ("machine", "visible", "own"),
    [
        ("4 V100", None, [[0, 1], [2, 3]]),
        ("8 P100", "7,5,3,1,0", [[7, 5], [3, 1]]),
        ("2 V100 and a display card", None, [[1], [2]]),
        ("a P100 and 2 A100", None, [[1], [2]]),
        ("a P100 and 2 A100", "0,1", [[0], [1]]),
    ],
)
def test_each_worker_of_a_host_gets_its_own_cards(
    machine: str, visible: str | None, own: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(fake_gpus.library(machine), monkeypatch)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    run = dataclasses.replace(run_of(**{**TWO_WORKERS, **GLUON, "devices": sum(map(len, own))}), kind="gpu")
    assert [[card.index for card in cards] for cards in own_gpus(run, hardware.detect(), 2)] == own


def test_memory_that_others_use_of_its_cards_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    library = use(eight_cards(), monkeypatch)
    gpus = hardware.detect().gpus
    library.cards[1]["lost"] = 0
    assert _occupied([gpus[:2]]) == ""
    library.now = 2  # they use 3 GiB
    monkeypatch.setattr(launcher, "_RELEASE_SECONDS", 0.1)
    assert _occupied([gpus[:2], gpus[2:3]]) == "3 GiB of GPU 0, 3 GiB of GPU 2"


@pytest.mark.parametrize(
    ("kind", "nodes_of_cards", "cores"),
    [
        ("gpu", [[1], [0]], [[2, 3], [0, 1]]),
        ("gpu", [[1, 1], [0, 1]], [[2, 3], [0, 1, 2, 3]]),
        ("gpu", [[None], [7]], [[0, 1, 2, 3]] * 2),  # unknown, and one without cores that may be used
        ("gpu", [[1, None]], [[0, 1, 2, 3]]),
        ("cpu", [[], []], [[0, 1, 2, 3]] * 2),
    ],
)
def test_a_worker_is_bound_to_the_cores_near_its_cards(
    kind: str, nodes_of_cards: list[list[int | None]], cores: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "numa_nodes", lambda: {0: [0, 1], 1: [2, 3]})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    card = hardware.GPU(index=0, name="card", capability=(8, 0), memory_bytes=0)
    cards = [[dataclasses.replace(card, numa_node=node) for node in own] for own in nodes_of_cards]
    assert own_cores(dataclasses.replace(run_of(), kind=kind), cards) == cores


@slow
def test_a_display_card_is_not_used_and_the_others_are_monitored(tmp_path: Path) -> None:
    fields = {**GLUON, "kind": "gpu", "devices": 2, "steps": 12, "window": 4, "epochs": None, "evaluate": False}
    recipe = recipe_file(tmp_path / "mine.py", **fields, batch_per_device=16)
    finish(recipe, tmp_path, environment=fake_gpus.environment("2 V100 and a display card"))
    (record,) = records(tmp_path)
    assert record.outcome == COMPLETED
    assert [device.device for device in record.monitor.devices] == ["gpu 1", "gpu 2"]
    timed = record.windows[timing.warmup(record.windows) :]
    seconds = sum(window.seconds for window in timed)
    for device in record.monitor.devices:
        assert device.seconds == pytest.approx(seconds, abs=1e-3)
        assert device.joules == pytest.approx(210 * seconds, rel=0.1)  # watts
        assert device.throttled == {"power cap": 1.0}
    assert "power cap for 100%" in " ".join(record.notes)


def test_the_commit_is_that_of_this_checkout_and_dirty_if_its_code_changed_or_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, results = tmp_path / "poc/records/provenance.py", tmp_path / "results/journal.jsonl"
    monkeypatch.setattr(provenance, "__file__", str(code))
    for path in (code, results):
        path.parent.mkdir(parents=True)
        path.write_text("before\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "results")
    git(tmp_path, "commit", "--quiet", "-m", "results")
    assert provenance.commit().startswith("unknown-")  # in a repository without the code
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "code")
    commit = git(tmp_path, "rev-parse", "--short=12", "HEAD").strip()
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    results.write_text("after\n")
    (tmp_path / "poc/new.cpython-310.pyc").touch()
    assert provenance.commit() == commit
    shutil.copy(HOME / ".gitignore", tmp_path)
    (tmp_path / "poc/.#loop.py").symlink_to("editor@host")  # Emacs' lock
    assert provenance.commit() == commit
    changed = set()
    new, models = tmp_path / "poc/new.py", tmp_path / "poc/networks.csv"
    for path, text in ((new, "new\n"), (code, "after\n"), (code, "later\n"), (models, "new\n"), (models, "after\n")):
        path.write_text(text)
        assert provenance.commit().startswith(f"{commit}-dirty-")
        changed.add(provenance.commit())
    assert len(changed) == 5


def test_a_run_continues_at_another_commit_but_not_with_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, own = tmp_path / "poc/records/provenance.py", tmp_path / "frameworks/mine/__init__.py"
    monkeypatch.setattr(provenance, "__file__", str(code))
    monkeypatch.setattr(frameworks, "__path__", [*frameworks.__path__, str(tmp_path / "frameworks")])
    for path in (code, own):
        path.parent.mkdir(parents=True)
        path.write_text("before\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "poc")
    git(tmp_path, "commit", "--quiet", "-m", "code")
    conditions = place_in(tmp_path).conditions_of(run_of())
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "notes")
    assert place_in(tmp_path).conditions_of(run_of()) == conditions
    for path in (code, own):
        path.write_text("after\n")
        assert place_in(tmp_path).conditions_of(run_of()) != conditions
        path.write_text("before\n")


# `poc run --trace`: a file of the profiler per worker, and the same record as without it

FAILS_WHEN_TRACED = """\
import os, torch

class Net(torch.nn.Linear):
    def __init__(self, classes):
        super().__init__(3 * 16 * 16, classes)

    def forward(self, images):
        if torch.autograd._profiler_enabled() and os.environ["RANK"] == "1":
            raise MemoryError
        return super().forward(images.flatten(1))
"""


@slow
@pytest.mark.skipif(MACHINE.cores < 2, reason="two devices need two cores")
@pytest.mark.parametrize("framework", ["mxnet", pytest.param("pytorch", marks=needs_torch)])
def test_each_worker_traces_its_steps_and_the_record_is_the_same(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {**GLUON, "framework": framework, "devices": 2, "epochs": 2}
    run_here(recipe_file(tmp_path / "mine.py", **fields), tmp_path, "--trace", "4")
    (record,) = records(tmp_path)
    assert (record.outcome, record.reason) == (COMPLETED, "")
    folder = tmp_path / "results" / "here" / journal.TRACES
    traces = [folder / f"{record.run.id}_worker{worker}.json" for worker in range(record.run.workers)]
    assert sorted(folder.iterdir()) == traces
    for trace in traces:
        events = json.loads(trace.read_text())["traceEvents"]
        ranges = Counter(event["name"] for event in events if event["ph"] in ("X", "B"))
        assert {ranges[name] for name in ("step", "forward_backward", "sync_gradients", "apply_update")} == {4}
        assert any("conv" in name.lower() for name in ranges)
    if record.run.workers == 1:
        assert course(record) == course(executed(tmp_path / "untraced", **fields))
    capsys.readouterr()
    main(["show", record.run.id, "--results", str(tmp_path / "results")])
    shown = capsys.readouterr().out
    assert all(str(trace) in shown for trace in traces)


@slow
@needs_torch
def test_workers_do_not_wait_for_one_whose_trace_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(FAILS_WHEN_TRACED)
    fields = {**GLUON, "framework": "pytorch", "model": "net.py:Net", "devices": 2, "epochs": 1}
    run_here(recipe_file(tmp_path / "mine.py", **fields), tmp_path, "--trace", "4", "--patience", "60")
    assert [record.outcome for record in records(tmp_path)] == [COMPLETED]
    assert capfd.readouterr().err.count("no trace") == 2  # the second worker's, and that of the one that missed it


@pytest.mark.slow
def test_a_recorded_run_is_not_repeated_for_a_trace_and_traces_are_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POC_CACHE", str(tmp_path))
    recipe = recipe_file(tmp_path / "mine.py", epochs=1)
    run_here(recipe, tmp_path)
    assert "--trace" in run_here(recipe, tmp_path, "--trace", "2")
    folder = tmp_path / "results" / "here" / journal.TRACES
    assert (folder.exists(), len(records(tmp_path))) == (False, 1)
    time.sleep(1)  # starts are recorded in whole seconds, and a run here may take less than one
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


# A progress line on a terminal, and one line for each run that ended


RUN = dict(kind="gpu", devices=4, global_batch=512, learning_rate=0.2, epochs=12, steps=120)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "9,865 samples/s, accuracy 0.783 (12 epochs, 61 s)"),
        ({"outcome": "failed", "reason": "worker 1: killed by signal 9"}, "failed: worker 1: killed by signal 9"),
        ({"outcome": "out of memory"}, "out of memory"),
        (
            {"epoch_seconds": [1.0], "accuracies": [], "run": {"steps": 7, "epochs": 1}, "wall": None},
            "too few steps to time (10 steps)",
        ),
    ],
)
def test_a_run_has_one_line_in_its_user_s_terms(changes: dict[str, Any], line: str) -> None:
    fields = {"epoch_seconds": [0.13, *[0.519] * 11], "accuracies": [0.783] * 12, "wall": 61.2, "run": RUN, **changes}
    assert result(record_of(**fields), "it") == f"it: {line}"


def test_a_label_names_the_fields_that_differ() -> None:
    assert label(record_of(run=RUN).run) == "resnet50 batch 128 x 4 GPUs lr 0.2"
    accumulating = record_of(run={**RUN, "accumulate": 4, "global_batch": 2048}).run
    assert label(accumulating) == "resnet50 batch 128 x 4 GPUs accumulate 4 lr 0.2"
    assert varied([accumulating, record_of(run=RUN).run]) == set()
    assert "accumulate 4" in str(accumulating)
    grid = itertools.product((0.0, 0.1), (0.01, 0.02))
    fields = ({**RUN, "label_smoothing": smoothing, "learning_rate": lr} for smoothing, lr in grid)
    runs = [record_of(run=run).run for run in fields]
    details = varied(runs)
    assert details == {"label_smoothing"}
    assert len({label(run, details) for run in runs}) == 4
    assert label(runs[0]) == label(runs[2])


@pytest.mark.slow
def test_a_terminal_shows_progress_and_then_only_the_result(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", lr=[0.01, 0.02])
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", NO_PAGES, "run", str(recipe), "--results", str(tmp_path / "results")]
    environment = {**os.environ, "POC_CACHE": str(tmp_path), "PYTHONPATH": str(HOME), "COLUMNS": "100"}
    output = b""
    with subprocess.Popen(command, stdout=end, stderr=end, env=environment, cwd=tmp_path) as process:
        os.close(end)
        with contextlib.suppress(OSError):  # how Linux reports that nobody writes any more
            while part := os.read(terminal, 4096):
                output += part
    os.close(terminal)
    assert process.returncode == 0, output
    text = output.decode()
    assert re.search(r"epoch [1-4]/4, [\d,.]+ samples/s.*\d\d:\d\d", text)
    # What stays of a line is what comes last.
    remaining = [line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").split("\n")]
    for lr in ("0.01", "0.02"):
        assert sum(f"lr {lr}" in line for line in remaining) == 1
