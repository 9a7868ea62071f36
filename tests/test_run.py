"""Whole runs in real processes, from plan to record; and how results are merged, cards shared and commits read."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from poc import ImageNet, Synthetic, data, synthetic
from poc.host import hardware
from poc.records import provenance, timing
from poc.records.record import COMPLETED, FAILED, OUT_OF_MEMORY, Memory, Record, WorkerResult
from poc.run import checkpoint
from poc.run.launcher import _occupied, own_cores, own_gpus
from poc.run.parent import execute, merge_workers
from poc.run.worker import evaluation_batch
from tests import fake_gpus, test_imagenet
from tests.builders import (
    GLUON,
    MACHINE,
    TWO_WORKERS,
    course,
    executed,
    place_in,
    recipe_file,
    record_of,
    run_of,
)
from tests.launch import finish, git, killed_at_40, records, run_here
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
    conditions = {"versions": versions, "commit": record.commit, "machine": MACHINE.describe()}
    conditions |= {"images": ["synthetic", ""], "environment": record.environment, "workers_here": 1}
    ((step, attempt),) = checkpoint.steps(tmp_path / "checkpoints" / run.id, [0], conditions)
    assert (step, len(attempt)) == (160, 32)
    assert Record.from_json(json.loads(json.dumps(record.to_json(), allow_nan=False))) == record


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


@slow
def test_whitening_works_with_fewer_images_than_it_wants(tmp_path: Path) -> None:
    fields = {**GLUON, "model": "cifar_airbench94_slim", "data": synthetic("cifar"), "batch_per_device": 8}
    record = executed(tmp_path, **fields, epochs=None, steps=2, window=2, evaluate=False)
    assert record.outcome == COMPLETED, record.reason


@slow
def test_two_workers_train_as_one_with_a_step_time_breakdown(tmp_path: Path) -> None:
    record = executed(tmp_path, **TWO_WORKERS, epochs=None, steps=10, detail=4)
    assert (record.outcome, record.reason) == (COMPLETED, "")
    assert [window.samples for window in record.windows] == [160, 160]
    assert [worker.worker for worker in record.workers] == [0, 1]
    assert record.evaluations[0].samples == 160
    for worker in record.workers:
        check_split(worker)
    assert record.split()["rest"] >= 0
    detail = record.detail
    assert detail.bus_bytes_per_second == pytest.approx(4 * record.parameters / detail.exchange_seconds)


@slow
def test_workers_share_data_that_cannot_be_divided_equally(tmp_path: Path) -> None:
    # 105 images are six whole batches of 16 and 9 left over; of 71 for validation one worker has one more.
    fields = {**TWO_WORKERS, "data": Synthetic(train=105, validation=71), "batch_per_device": 8, "epochs": 3}
    record = executed(tmp_path, **fields, cores_per_worker=1 if MACHINE.cores > 1 else None)
    assert (record.outcome, record.reason) == (COMPLETED, "")
    for worker in record.workers:
        assert [(window.steps, window.samples) for window in worker.windows] == [(5, 40), (1, 8)] * 3
    assert [evaluation.samples for evaluation in record.evaluations] == [71] * 3


@slow
def test_a_run_that_cannot_write_checkpoints_completes(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    record = executed(tmp_path, epochs=2)
    assert record.outcome == COMPLETED
    assert [unsaved.step for unsaved in record.unsaved] == [20, 40]


TWO_DEVICES = {"devices": 2, "detail": 3}


@slow
@pytest.mark.parametrize(
    ("fault", "fields", "outcome"),
    [
        ("crash", TWO_WORKERS, COMPLETED),
        *((fault, TWO_WORKERS, COMPLETED) for fault in ("peak", "interrupt")),
        ("apart", TWO_DEVICES, COMPLETED),
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


IMAGES = ImageNet(crop=32, resize=40, train=60, validation=10)


def two_data_sets(folder: Path) -> list[Path]:
    """Two folders, with the same pictures under other labels."""
    folders = [folder / name for name in ("first", "second")]
    for shift, path in enumerate(folders):
        path.mkdir()
        test_imagenet.write(path, IMAGES, shift)
    return folders


@slow
def test_a_run_continues_only_on_its_own_images(tmp_path: Path) -> None:
    first, second = two_data_sets(tmp_path)
    recipe = recipe_file(tmp_path / "mine.py", data=IMAGES, batch_per_device=12, epochs=12)
    killed_at_40(recipe, tmp_path, POC_DATA=str(first))
    checkpoints = {path: path.read_bytes() for path in tmp_path.glob("checkpoints/*/*.npz")}
    run_here(recipe, tmp_path, POC_DATA=str(second))
    assert {path: path.read_bytes() for path in checkpoints} == checkpoints
    for path, is_done in ((first, False), (second, True), (first, True)):
        output = run_here(recipe, tmp_path, POC_DATA=str(path))
        assert ("already in the journal" in output) == is_done
    of_second, of_first = records(tmp_path)
    for record, path in ((of_first, first), (of_second, second)):
        images = data.identify([IMAGES], source=path, cache=tmp_path)
        assert (record.outcome, record.data_id) == (COMPLETED, images["imagenet"])
    assert of_first.data_id != of_second.data_id
    assert course(of_first) != course(of_second)
    assert ([noted.step for noted in of_first.resumed], of_second.resumed) == ([40], ())


@slow
def test_a_worker_with_other_images_than_planned_fails_the_run(tmp_path: Path) -> None:
    first, second = two_data_sets(tmp_path)
    planned, actual = (data.identify([IMAGES], source=path, cache=tmp_path) for path in (first, second))
    run = run_of(data=IMAGES, batch_per_device=12, epochs=1)
    record, _ = execute(run, place_in(tmp_path, source=second, images=planned))
    assert record.outcome == FAILED
    for images in (planned, actual):
        assert str(images["imagenet"]) in record.reason
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
    fields = {**GLUON, "kind": "gpu", "devices": [1, 2], "steps": 12, "window": 4, "epochs": None, "evaluate": False}
    recipe = recipe_file(tmp_path / "mine.py", **fields, batch_per_device=16)
    finish(recipe, tmp_path, environment=fake_gpus.environment("2 V100 and a display card"))
    for record, names in zip(records(tmp_path), (["gpu 1"], ["gpu 1", "gpu 2"]), strict=True):
        assert record.outcome == COMPLETED
        assert [device.device for device in record.monitor.devices] == names
        timed = record.windows[timing.warmup(record.windows) :]
        seconds = sum(window.seconds for window in timed)
        for device in record.monitor.devices:
            assert device.seconds == pytest.approx(seconds, abs=1e-3)
            assert device.joules == pytest.approx(210 * seconds, rel=0.01)  # watts
            assert device.throttled == {"power cap": 1.0}
        assert "power cap for 100%" in " ".join(record.notes)


def test_the_commit_is_that_of_this_checkout_and_dirty_if_its_code_changed(
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
    assert provenance.commit() == commit
    (tmp_path / "poc/.#loop.py").symlink_to("editor@host")  # Emacs' lock
    changed = set()
    for text in ("after\n", "later\n"):
        code.write_text(text)
        assert provenance.commit().startswith(f"{commit}-dirty-")
        changed.add(provenance.commit())
    assert len(changed) == 2
