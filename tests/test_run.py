"""Whole runs, from plan to record, in real processes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import CIFAR10, ImageNet, Synthetic, data, synthetic
from poc.host import hardware
from poc.records import timing
from poc.records.record import COMPLETED, FAILED, OUT_OF_MEMORY, Memory, Record, WorkerResult
from poc.run import checkpoint
from poc.run.launcher import own_gpus
from poc.run.parent import execute, merge_workers
from tests import fake_gpus, test_imagenet
from tests.builders import (
    GLUON,
    MACHINE,
    TWO_WORKERS,
    build,
    course,
    end_of,
    executed,
    place_in,
    recipe_file,
    record_of,
    run_of,
)
from tests.launch import eventually, family, finish, held, records, start, struck
from tests.test_machine import use

slow = pytest.mark.slow


def check_split(told: Any) -> None:
    """The parts of the wall time of a record or a worker add up to it, and none is negative."""
    split = timing.split(told.wall, told.parts, told.windows)
    assert sum(split.values()) == pytest.approx(told.wall)
    assert all(seconds >= 0 for seconds in split.values())


@slow
def test_a_run_learns_and_leaves_a_record_of_all_it_did(tmp_path: Path) -> None:
    fields = {"data": Synthetic(train=2000, validation=400), "batch_per_device": 50, "lr": 0.05}
    made, run = executed(tmp_path, **fields), run_of(**fields)
    assert (made.outcome, made.dataset, made.run) == (COMPLETED, "synthetic", run)
    assert made.evaluations[-1].accuracy > 0.9
    assert [evaluation.samples for evaluation in made.evaluations] == [400] * 4
    assert sum(window.steps for window in made.windows) == 4 * 40
    assert sum(window.samples for window in made.windows) == 4 * 2000
    check_split(made)
    assert made.parameters == 402_250
    assert made.memory.host_peak_bytes > 2**25
    assert 0 < made.cpu_seconds < made.wall * MACHINE.cores * 1.5
    assert made.monitor.devices
    assert made.usable_cores == MACHINE.cores
    assert made.others_busy_cores >= 0 <= made.stolen_cores
    # The last checkpoint is kept, and known by the conditions of this host.
    conditions = {"versions": made.versions, "commit": made.commit, "machine": MACHINE.describe()}
    conditions |= {"images": ["synthetic", ""], "environment": made.environment, "workers_here": 1}
    assert checkpoint.steps(tmp_path / "checkpoints" / run.id, [0], conditions) == [160]
    assert Record.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False))) == made


@slow
def test_a_network_that_whitens_looks_at_fewer_images_where_there_are_fewer(tmp_path: Path) -> None:
    fields = {**GLUON, "model": "cifar_airbench94_slim", "data": synthetic("cifar"), "batch_per_device": 8}
    made = executed(tmp_path, **fields, epochs=None, steps=2, window=2, evaluate=False)
    assert made.outcome == COMPLETED, made.reason


@slow
def test_two_workers_train_as_one_and_take_themselves_apart(tmp_path: Path) -> None:
    made = executed(tmp_path, **TWO_WORKERS, epochs=None, steps=10, detail=4)
    assert (made.outcome, made.reason) == (COMPLETED, "")
    assert [window.samples for window in made.windows] == [160, 160]
    assert [worker.worker for worker in made.workers] == [0, 1]
    assert made.evaluations[0].samples == 160
    for worker in made.workers:
        check_split(worker)
    assert made.split()["rest"] >= 0
    detail = made.detail
    assert (detail.sums_right, detail.pairs, detail.exchange_bytes) == (True, 3, 4 * made.parameters)
    assert detail.efficiency > 0
    assert 0 < detail.pipeline_seconds < 1 > detail.issue_seconds > 0
    assert detail.bus_bytes_per_second == pytest.approx(detail.exchange_bytes / detail.exchange_seconds)


@slow
def test_workers_whose_data_do_not_come_out_even_finish(tmp_path: Path) -> None:
    # 105 images are six whole batches of 16 and 9 left over; of 71 to be classified one worker has one more.
    fields = {**TWO_WORKERS, "data": Synthetic(train=105, validation=71), "batch_per_device": 8, "epochs": 3}
    made = executed(tmp_path, **fields, cores_per_worker=1 if MACHINE.cores > 1 else None)
    assert (made.outcome, made.reason) == (COMPLETED, "")
    for worker in made.workers:
        assert [(window.steps, window.samples) for window in worker.windows] == [(5, 40), (1, 8)] * 3
    assert [evaluation.samples for evaluation in made.evaluations] == [71] * 3


@slow
def test_a_killed_run_of_mxnet_goes_on_by_itself_and_ends_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    fields = {**GLUON, "epochs": 8}
    undisturbed = executed(tmp_path / "undisturbed", **fields)
    with struck("worker 0", signal.SIGKILL, after='"evaluation", "epoch": 2'):
        cut = executed(tmp_path / "cut", **fields, restarts=1)
    assert (cut.outcome, cut.reason) == (COMPLETED, "")
    (resumed,) = cut.resumed
    assert "signal 9" in resumed.why
    assert resumed.at > cut.windows[0].start
    assert 0 < cut.monitor.devices[0].seconds < sum(window.seconds for window in cut.windows)
    assert resumed.step >= 2 * cut.run.steps_per_epoch
    # The process was another one, the figures are the same to the last digit.
    assert course(cut) == course(undisturbed)
    ends = [end_of(tmp_path / name, cut.run) for name in ("cut", "undisturbed")]
    assert any("momentum" in name for name in ends[0])
    np.testing.assert_equal(*ends)
    check_split(cut)


@slow
def test_a_run_without_room_for_checkpoints_goes_on_without_them(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    made = executed(tmp_path, epochs=2)
    assert made.outcome == COMPLETED
    assert [unsaved.step for unsaved in made.unsaved] == [20, 40]


@slow
@pytest.mark.parametrize("fault", ["crash", "peak"])
def test_what_goes_wrong_once_all_is_trained_takes_nothing_away(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POC_FAULT", fault)
    made = executed(tmp_path, **TWO_WORKERS, epochs=1)
    assert (made.outcome, made.reason) == (COMPLETED, "")
    assert (made.peak_flops is None) == (fault == "peak")
    assert made.memory.device_peak_bytes == 1_000_000  # of the training


@slow
def test_a_training_stands_whose_step_could_not_be_taken_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POC_FAULT", "apart")
    made = executed(tmp_path, epochs=1, devices=2, detail=3)
    assert (made.outcome, made.detail, bool(made.evaluations)) == (COMPLETED, None, True)
    assert "no room for a step without the exchange" in capfd.readouterr().err


@slow
def test_a_run_whose_exchange_gives_a_wrong_sum_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POC_FAULT", "sum")
    made = executed(tmp_path, epochs=1, devices=2, detail=3)
    assert (made.outcome, "does not give the sum" in made.reason) == (FAILED, True)


@slow
@pytest.mark.parametrize("workers", [{}, TWO_WORKERS])
def test_a_run_that_is_out_of_memory_is_not_started_again(
    workers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POC_FAULT", "12")
    made = executed(tmp_path, **workers, restarts=2)
    assert (made.outcome, made.reason[:24]) == (OUT_OF_MEMORY, "MemoryError: no room for")
    assert "restarts left" not in capfd.readouterr().err


@slow
def test_an_error_in_the_process_of_a_run_is_its_reason(tmp_path: Path) -> None:
    run = run_of(data=CIFAR10(crop=32))
    made, interrupted = execute(run, place_in(tmp_path, source=tmp_path / "gone"))
    assert (made.outcome, interrupted) == (FAILED, False)
    assert "gone" in made.reason
    assert "Traceback" not in made.reason


@slow
def test_imagenet_files_are_trained_on(tmp_path: Path) -> None:
    images = ImageNet(crop=32, resize=40, train=2, validation=1)
    run = run_of(data=images, batch_per_device=1, epochs=None, steps=1)
    source = test_imagenet.write(tmp_path, images)
    found = data.identify([images], source=source, cache=tmp_path)
    made, _ = execute(run, place_in(tmp_path, source=source, images=found))
    assert (made.outcome, made.data_id) == (COMPLETED, found["imagenet"])
    assert made.evaluations[0].samples == 1


IMAGES = ImageNet(crop=32, resize=40, train=60, validation=10)


def two_data_sets(folder: Path) -> list[Path]:
    """Two folders, with the same pictures under other labels."""
    folders = [folder / name for name in ("first", "second")]
    for shift, place in enumerate(folders):
        place.mkdir()
        test_imagenet.write(place, IMAGES, shift)
    return folders


@slow
def test_a_run_that_was_cut_off_goes_on_with_its_own_images_alone(tmp_path: Path) -> None:
    first, second = two_data_sets(tmp_path)
    recipe = recipe_file(tmp_path / "mine.py", data=IMAGES, batch_per_device=12, epochs=12)
    undisturbed = []
    for place in (first, second):
        finish(recipe, place, environment={"POC_DATA": str(place)})
        undisturbed += records(place)
    identities = [record.data_id for record in undisturbed]
    assert len(set(identities)) == 2
    hold = tmp_path / "hold"
    with held(hold), start(recipe, tmp_path, environment={"POC_DATA": str(first), "POC_HOLD": str(hold)}) as process:
        family(process.pid, 1)
        eventually(lambda: list(tmp_path.glob("checkpoints/*/*-40-*.npz")), unless=lambda: process.poll() is not None)
        process.kill()
        process.communicate()
    kept = {path: path.read_bytes() for path in tmp_path.glob("checkpoints/*/*.npz")}
    said = finish(recipe, tmp_path, environment={"POC_DATA": str(second)})
    told = [line for line in said.splitlines() if "checkpoint" in line]
    assert len(told) == 1
    assert all(str(identity) in told[0] for identity in identities)
    assert {path: path.read_bytes() for path in kept} == kept
    for place, done in ((first, 0), (second, 1), (first, 1)):
        said = finish(recipe, tmp_path, environment={"POC_DATA": str(place)})
        assert ("in the journal already" in said) == bool(done)
        assert "is of other images" not in said
    of_second, of_first = records(tmp_path)
    for record, alone in zip((of_first, of_second), undisturbed):
        assert (record.outcome, record.data_id, course(record)) == (COMPLETED, alone.data_id, course(alone))
    assert ([noted.step for noted in of_first.resumed], of_second.resumed) == ([40], ())


@slow
def test_a_worker_that_finds_other_images_than_planned_fails_the_run(tmp_path: Path) -> None:
    first, second = two_data_sets(tmp_path)
    planned, found = (data.identify([IMAGES], source=place, cache=tmp_path) for place in (first, second))
    run = run_of(data=IMAGES, batch_per_device=12, epochs=1)
    made, _ = execute(run, place_in(tmp_path, source=second, images=planned))
    assert made.outcome == FAILED
    for images in (planned, found):
        assert str(images["imagenet"]) in made.reason


def told(wall: float, seconds: list[float], **fields: Any) -> WorkerResult:
    """By a worker with windows of 10 samples that took so many seconds each."""
    whole = record_of(epoch_seconds=seconds, run={"global_batch": 1})
    windows = tuple(dataclasses.replace(window, loss=2 * window.seconds) for window in whole.windows)
    fields = {"outcome": COMPLETED, "memory": Memory(host_peak_bytes=100), "wall": wall, **fields}
    return WorkerResult(windows=windows, evaluations=whole.evaluations[-1:], **fields)


def test_the_slowest_worker_sets_the_pace() -> None:
    made = dataclasses.replace(record_of(), **merge_workers([told(10.0, [1.0, 4.0]), told(12.0, [2.0, 2.0])]))
    paces = [(window.samples, window.seconds, window.waited, window.loss) for window in made.windows]
    assert paces == [(20, 2.0, 0.2, 3.0), (20, 4.0, 0.4, 6.0)]
    assert made.wall == 12.0
    assert (made.memory.host_peak_bytes, made.memory.device_peak_bytes) == (200, None)
    assert [worker.wall for worker in made.workers] == [10.0, 12.0]
    # The slowest was in its windows for 4 s, both together would be for 6 s.
    parts = made.split()
    assert parts is not None
    assert sum(parts.values()) == pytest.approx(12.0)
    assert parts["rest"] == pytest.approx(8.0)
    assert made.evaluations[0].samples == 18_000


def test_a_failed_worker_fails_the_run_and_memory_that_ran_out_is_the_reason_whoever_missed_that_worker() -> None:
    stopped = WorkerResult(outcome=FAILED, reason="its process ended early with signal 9")
    failed = told(10.0, [1.0], outcome=FAILED, reason="connection reset")
    greedy = told(10.0, [1.0], outcome=OUT_OF_MEMORY, reason="no room")
    for both in ([stopped, failed], [failed, greedy]):
        made = dataclasses.replace(record_of(), **merge_workers(both))
        assert (made.outcome, made.reason) == (both[1].outcome, both[1].reason)


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
    library = use(fake_gpus.library(machine), monkeypatch)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        library.links[3, 7] = (10, True, True)
        library.links.update(dict.fromkeys([(0, 1), (0, 3), (0, 5), (0, 7)], (50, False, False)))
        for card in (0, 1, 3, 5, 7):
            library.cards[card]["nvlinks"] = []
    run = dataclasses.replace(run_of(**{**TWO_WORKERS, **GLUON, "devices": sum(map(len, own))}), kind="gpu")
    assert [[card.index for card in cards] for cards in own_gpus(run, hardware.detect(), 2)] == own


@slow
def test_a_display_card_beside_two_that_compute_does_no_harm(tmp_path: Path) -> None:
    fields = {**GLUON, "kind": "gpu", "devices": [1, 2], "steps": 12, "window": 4, "epochs": None, "evaluate": False}
    recipe = recipe_file(tmp_path / "mine.py", **fields, batch_per_device=16)
    finish(recipe, tmp_path, environment=fake_gpus.environment("2 V100 and a display card"))
    one, two = records(tmp_path)
    assert [one.outcome, two.outcome] == [COMPLETED] * 2
    assert [device.device for device in one.monitor.devices] == ["gpu 1"]
    assert [device.device for device in two.monitor.devices] == ["gpu 1", "gpu 2"]
    for made in (one, two):
        kept = made.windows[timing.warmup(made.windows) :]
        seconds = sum(window.seconds for window in kept)
        for device in made.monitor.devices:
            assert device.seconds == pytest.approx(seconds, abs=1e-3)
            assert device.joules == pytest.approx(210 * seconds, rel=0.01)  # watts
            assert device.throttled == {"power cap": 1.0}
        samples = sum(window.samples for window in kept)
        watts = 210 * made.run.devices
        (row,) = build(made).itertuples()
        assert row.joules_per_sample == pytest.approx(watts * seconds / samples, rel=0.01)
        assert "power cap for 100%" in row.note


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always", *words]
    return subprocess.check_output(command, cwd=folder, text=True, stderr=subprocess.DEVNULL).strip()


CODE = "poc/host/hardware.py"


def committed(folder: Path, *names: str) -> str:
    """The commit of a new repository in `folder` with files of these names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("before\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", folder.name)
    return git(folder, "rev-parse", "--short=12", "HEAD")


def test_results_do_not_make_a_commit_dirty_and_code_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = ("results/journal.jsonl", "results.md", "reference/here/journal.jsonl")
    monkeypatch.setattr(hardware, "__file__", str(tmp_path / CODE))
    assert hardware.commit() == ""
    clean = committed(tmp_path, CODE, *results)
    assert hardware.commit() == clean
    for name, commit in {**dict.fromkeys(results, clean), CODE: f"{clean}-dirty"}.items():
        (tmp_path / name).write_text("after\n")
        assert hardware.commit() == commit


def test_the_commit_is_that_of_this_checkout_and_of_no_other_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_in(folder: Path) -> str:
        monkeypatch.setattr(hardware, "__file__", str(folder / CODE))
        return hardware.commit()

    own, other = tmp_path / "own", tmp_path / "other"
    commit, others = committed(own, CODE), committed(other, "README")
    copy = other / "copy"
    shutil.copytree(own, copy, ignore=shutil.ignore_patterns(".git"))
    assert commit_in(copy) == ""
    shutil.copytree(copy, tmp_path / "beside")
    assert committed(tmp_path / "beside", "notes") != ""  # a repository of its user's, with all of the code in it
    git(tmp_path / "beside", "rm", "-r", "--quiet", "--cached", "poc")
    git(tmp_path / "beside", "commit", "--quiet", "-m", "notes alone")
    assert commit_in(tmp_path / "beside") == ""
    git(own, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    git(other, "submodule", "--quiet", "add", str(own), "part")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert [commit_in(folder) for folder in (own, tmp_path / "tree", other / "part")] == [commit] * 3
    assert commit != others


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_a_checkout_of_another_user_has_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = committed(tmp_path, CODE)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 12345, 12345)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # or it may call every folder safe
    monkeypatch.setattr(hardware, "__file__", str(tmp_path / CODE))
    assert hardware.commit() == commit
