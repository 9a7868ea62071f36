"""Whole runs: real processes, real MXNet, small networks on synthetic images."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from poc.train.run import Place, execute, forget

from poc import Recipe, Synthetic
from poc.machine import hardware
from poc.plan import plan
from poc.records import journal, timing
from poc.train import checkpoint
from poc.train import run as running
from tests.test_data import part, record
from tests.test_imagenet import picture

pytestmark = pytest.mark.slow

HOME = Path(__file__).parent.parent
SMALL = Synthetic(train=2000, validation=400)


@pytest.fixture(scope="module")
def machine() -> hardware.Hardware:
    return hardware.detect()


def record_of(machine: hardware.Hardware, folder: Path, *, detail: int = 0, **fields: Any) -> journal.Record:
    base: dict[str, Any] = {"model": "cifar_resnet8_v2", "data": SMALL, "batch_per_device": 50, "lr": 0.05, "window": 5}
    (one,) = plan("test", Recipe(**{**base, **fields}), machine)
    assert not one.skip
    place = Place(source=None, cache=folder, checkpoints=folder / "checkpoints")
    record = execute(one.run, place, machine, "here", detail=detail)
    if record["outcome"] == "completed":
        forget(one.run, place)
    return record


def conditions_of(record: journal.Record) -> dict[str, Any]:
    """Those of a run on one host, with the data that it asks for."""
    here = {"cpu": record["hardware"]["cpu"], "stand_in": False, "workers_here": record["run"]["workers"]}
    return {**here, "versions": record["versions"], "commit": record["commit"]}


def test_synthetic_images_are_learnt(machine: hardware.Hardware, tmp_path: Path) -> None:
    record = record_of(machine, tmp_path, data=Synthetic(train=4000, validation=1000), epochs=4)
    assert record["outcome"] == "completed"
    assert record["evaluations"][-1]["accuracy"] > 0.95
    assert record["dataset"] == "synthetic"
    assert [one["samples"] for one in record["evaluations"]] == [1000] * 4
    assert sum(one["steps"] for one in record["windows"]) == 4 * 80
    windows = timing.windows_from(record)
    split = timing.split(record["wall"], record["parts"], windows)
    assert sum(split.values()) == pytest.approx(record["wall"], rel=0.01)
    assert all(seconds >= 0 for seconds in split.values())
    assert record["parameters"] > 70_000
    assert record["memory"]["host_peak_bytes"] > 2**26
    trained = sum(window.seconds for window in windows)
    assert trained / 2 < record["cpu_seconds"] < record["wall"] * machine.cores
    assert checkpoint.steps(tmp_path / "checkpoints" / record["run_id"], [0], conditions_of(record)) == [320]
    json.dumps(record, allow_nan=False)


def test_a_learning_rate_far_too_high_is_recorded_as_diverged(machine: hardware.Hardware, tmp_path: Path) -> None:
    record = record_of(machine, tmp_path, model="cifar_resnet20_v2_no_norm", lr=1e6, epochs=1)
    assert record["outcome"] == "diverged"
    assert "after step" in record["reason"]
    assert record["windows"][-1]["loss"] is None


def test_two_workers_train_as_one_and_take_themselves_apart(machine: hardware.Hardware, tmp_path: Path) -> None:
    if machine.cores < 2:
        pytest.skip("two workers need two cores")
    record = record_of(
        machine,
        tmp_path,
        kind="cpu",
        devices=2,
        workers=2,
        exchange="dist_sync",
        epochs=1,
        steps=10,
        detail=4,
    )
    assert (record["outcome"], record["reason"]) == ("completed", "")
    assert [one["samples"] for one in record["windows"]] == [500, 500]
    assert [one["worker"] for one in record["workers"]] == [0, 1]
    assert record["evaluations"][0]["samples"] == 400
    for worker in record["workers"]:
        split = timing.split(worker["wall"], worker["parts"], timing.windows_from(worker))
        assert sum(split.values()) == pytest.approx(worker["wall"])
    detail = record["detail"]
    assert detail["sums_right"] is True
    assert detail["pairs"] == 3
    assert 0.2 < detail["efficiency"] < 1.5
    assert detail["exchange_bytes"] == 4 * record["parameters"]
    assert detail["bus_bytes_per_second"] == pytest.approx(detail["exchange_bytes"] / detail["exchange_seconds"])


def test_a_process_that_is_killed_leaves_a_failed_record_with_what_it_had_measured(
    machine: hardware.Hardware, tmp_path: Path
) -> None:
    killer = strike('"ready"')
    record = record_of(machine, tmp_path, epochs=1000)
    killer.join()
    assert record["outcome"] == "failed"
    assert "signal 9" in record["reason"]
    assert record["windows"]


def strike(events: str) -> threading.Thread:
    """Kills the worker of the run that this process starts once it has told of a window after the first `events`."""

    def struck(child: psutil.Process) -> bool:
        files = [Path(file.path) for file in child.open_files() if file.path.endswith("worker0.jsonl")]
        text = files[0].read_text() if files else ""
        if events not in text or '"window"' not in text[text.index(events) :]:
            return False
        child.send_signal(signal.SIGKILL)
        return True

    def kill() -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            for child in psutil.Process().children():
                # Children that only say which commit this is are gone as soon as they are seen.
                with contextlib.suppress(psutil.Error, FileNotFoundError):
                    if struck(child):
                        return
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    return killer


def test_workers_whose_data_do_not_come_out_even_finish(machine: hardware.Hardware, tmp_path: Path) -> None:
    # 105 images are six whole batches of 16 and 9 left over; of 71 to be classified one worker has one more.
    record = record_of(
        machine,
        tmp_path,
        data=Synthetic(size=16, crop=16, train=105, validation=71),
        kind="cpu",
        devices=2,
        workers=2,
        cores_per_worker=1 if machine.cores > 1 else None,
        batch_per_device=8,
        exchange="dist_sync",
        epochs=3,
    )
    assert (record["outcome"], record["reason"]) == ("completed", "")
    for worker in record["workers"]:
        assert [(one["steps"], one["samples"]) for one in worker["windows"]] == [(5, 40), (1, 8)] * 3
    assert [one["samples"] for one in record["evaluations"]] == [71] * 3


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_run_that_was_cut_off_goes_on_and_ends_as_if_it_had_not_been(
    restarts: int, machine: hardware.Hardware, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"epochs": 4, "restarts": restarts}
    undisturbed = record_of(machine, tmp_path / "undisturbed", **fields)
    killer = strike('"evaluation", "epoch": 2')
    cut = record_of(machine, tmp_path / "cut", **fields)
    killer.join()
    if not restarts:
        assert cut["outcome"] == "failed"
        assert "resumed" not in cut
        cut = record_of(machine, tmp_path / "cut", **fields)
    assert (cut["outcome"], cut["reason"]) == ("completed", "")
    ((step, why),) = [(one["step"], one["why"]) for one in cut["resumed"]]
    assert step == 80
    assert ("signal 9" in why) == bool(restarts)
    # The process was another one, the figures are the same to the last digit.
    for name in ("loss", "steps", "samples", "epoch"):
        assert [one[name] for one in cut["windows"]] == [one[name] for one in undisturbed["windows"]]
    for name in ("accuracy", "loss"):
        assert [one[name] for one in cut["evaluations"]] == [one[name] for one in undisturbed["evaluations"]]
    ends = [
        checkpoint.read(tmp_path / name / "checkpoints" / cut["run_id"], 0, 160).arrays
        for name in ("cut", "undisturbed")
    ]
    assert any(name.startswith("momentum/") for name in ends[0])
    assert ends[0].keys() == ends[1].keys()
    assert all(np.array_equal(ends[0][name], ends[1][name]) for name in ends[0])
    split = timing.split(cut["wall"], cut["parts"], timing.windows_from(cut))
    assert sum(split.values()) == pytest.approx(cut["wall"])
    assert all(seconds >= 0 for seconds in split.values())


def test_a_run_without_room_for_checkpoints_goes_on_without_them(machine: hardware.Hardware, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    record = record_of(machine, tmp_path, epochs=2)
    assert record["outcome"] == "completed"
    assert [one["step"] for one in record["unsaved"]] == [40, 80]


def test_an_error_in_the_process_of_a_run_is_its_reason(machine: hardware.Hardware, tmp_path: Path) -> None:
    (one,) = plan("test", Recipe(model="cifar_resnet8_v2", kind="cpu"), machine)
    place = Place(source=tmp_path / "gone", cache=tmp_path)
    record = execute(one.run, place, machine, "here")
    assert record["outcome"] == "failed"
    assert "gone" in record["reason"]
    assert "Traceback" not in record["reason"]


def worker(wall: float, seconds: list[float], outcome: str = "completed", reason: str = "") -> dict[str, Any]:
    """What a fake worker with windows of 10 samples and the given seconds tells."""
    windows = [
        {"epoch": 1, "start": float(i), "steps": 1, "samples": 10, "seconds": s, "waited": s / 10, "loss": 2.0 * s}
        for i, s in enumerate(seconds)
    ]
    evaluation = {"epoch": 1, "at": 5.0, "seconds": 1.0, "accuracy": 0.5, "samples": 100, "loss": 1.0}
    return {
        "windows": windows,
        "evaluations": [evaluation],
        "outcome": outcome,
        "reason": reason,
        "parts": {"initialise": 1.0},
        "wall": wall,
        "host_peak_bytes": 100,
        "device_peak_bytes": None,
    }


def test_the_slowest_worker_sets_the_pace() -> None:
    merged = running._merged([worker(10.0, [1.0, 4.0]), worker(12.0, [2.0, 2.0])])
    assert [(one["samples"], one["seconds"], one["waited"]) for one in merged["windows"]] == [
        (20, 2.0, 0.2),
        (20, 4.0, 0.4),
    ]
    assert [one["loss"] for one in merged["windows"]] == [3.0, 6.0]
    assert merged["wall"] == 12.0
    assert merged["memory"] == {"host_peak_bytes": 200, "device_peak_bytes": None}
    assert [one["wall"] for one in merged["workers"]] == [10.0, 12.0]
    assert merged["evaluations"][0]["samples"] == 200


def test_one_failed_worker_fails_the_run_and_gives_the_reason() -> None:
    stopped = {"windows": [], "evaluations": [], "outcome": "failed", "reason": "its process ended early with signal 9"}
    merged = running._merged([stopped, worker(10.0, [1.0], "failed", "out of luck")])
    assert (merged["outcome"], merged["reason"]) == ("failed", "out of luck")


def poc(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "poc", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HOME), "POC_CACHE": str(folder / "cache"), **environment},
        text=True,
        capture_output=True,
    )


SYNTHETIC_RECIPE = """
from poc import Recipe, Synthetic

recipe = Recipe(
    model="cifar_resnet8_v2",
    data=Synthetic(train=500, validation=100),
    kind=["cpu", "gpu"],
    batch_per_device={batch},
    epochs=2,
    window=4,
    lr=0.05,
)
"""


def test_a_recipe_becomes_a_results_page_and_is_not_run_twice(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SYNTHETIC_RECIPE.format(batch=50).replace("[0, 1000]", "[0, 8]"))
    arguments = ("run", "mine.py", "--results", "out", "--infrastructure", "A machine")
    first = poc(*arguments, folder=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "epoch 2/2" in first.stderr
    records = journal.read([tmp_path / "out" / "journal.jsonl"])
    assert [one["outcome"] for one in records] == ["completed", "skipped"]
    page = (tmp_path / "out" / "results.md").read_text()
    assert "A machine" in page
    assert "synthetic" in page
    rows = (tmp_path / "out" / "rows.csv").read_text()
    assert rows.startswith("origin,study,run_id,infrastructure,hardware,framework,network,parameters,dataset")
    second = poc(*arguments, folder=tmp_path)
    assert "in the journal already" in second.stderr
    assert journal.read([tmp_path / "out" / "journal.jsonl"]) == records
    assert (tmp_path / "out" / "results.md").read_text() == page


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    (("run", "cifar10_resnet5"), "did you mean 'cifar10_resnet50'"),
    (("plan", "missing.py"), "no file missing.py"),
    (("plan", "bad.py"), "batch_per_device: 0 is not allowed"),
    (("run", "quick", "--data", "nowhere"), "--data: "),
    (("run", "quick", "--only", "zzz"), "no run 'zzz'"),
    (("run", "quick", "--detail", "--rounds", "2"), "--rounds: 2 is not allowed; give a whole number of at least 3"),
    (("run", "quick", "--rounds", "many"), "invalid int value"),
    (("report", "--journal", "nowhere"), "--journal: no file nowhere"),
    (("rum",), "invalid choice"),
    ((), "required"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_ends_with_one_line_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "bad.py").write_text(SYNTHETIC_RECIPE.format(batch=0))
    done = poc(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


def test_doctor_and_plan_say_what_this_machine_can_do(tmp_path: Path) -> None:
    doctor = poc("doctor", folder=tmp_path)
    assert doctor.returncode == 0
    assert "cores" in doctor.stdout
    assert "mxnet" in doctor.stdout
    shown = poc("plan", "cifar10_resnet50", folder=tmp_path)
    assert shown.returncode == 0
    assert "ee46ec34d6" in shown.stdout
    assert "total batch" in shown.stdout


def test_each_worker_of_a_host_gets_its_own_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = tuple(hardware.GPU(index=i, name="P100", capability=(6, 0), memory_bytes=2**34) for i in range(4))
    machine = hardware.Hardware(cpu="Test", cores=8, memory_bytes=2**34, cpu_flops=1e12, gpus=cards)
    recipe = Recipe(model="cifar_resnet8_v2", devices=4, workers=2, exchange="dist_device_sync")
    (one,) = plan("test", recipe, machine)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [running._own_gpus(one.run, here)["CUDA_VISIBLE_DEVICES"] for here in range(2)] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5,3,1")
    assert [running._own_gpus(one.run, here)["CUDA_VISIBLE_DEVICES"] for here in range(2)] == ["7,5", "3,1"]


def test_results_do_not_make_a_commit_dirty_and_code_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    for name in ("poc/machine/hardware.py", "results/journal.jsonl", "results.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one\n")
    monkeypatch.setattr(hardware, "__file__", str(tmp_path / "poc" / "machine" / "hardware.py"))
    assert hardware.commit() == ""
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "all")
    clean = git("rev-parse", "--short=12", "HEAD")
    assert hardware.commit() == clean
    for name in ("results/journal.jsonl", "results.md"):
        (tmp_path / name).write_text("two\n")
    assert hardware.commit() == clean
    (tmp_path / "poc/machine/hardware.py").write_text("two\n")
    assert hardware.commit() == f"{clean}-dirty"


def test_a_run_of_two_recipes_is_done_once(tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(SYNTHETIC_RECIPE.format(batch=50).replace("[0, 1000]", "0"))
    done = poc("run", "one.py", "two.py", "--results", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "two 1/1" in done.stderr
    assert "in the journal already" in done.stderr
    assert len(journal.read([tmp_path / "out" / "journal.jsonl"])) == 1


IMAGENET_RECIPE = """
from poc import ImageNet, Recipe

recipe = Recipe(model="resnet50_v1", data=ImageNet(train=2, validation=1), kind="cpu", batch_per_device=1, steps=1)
"""


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "imagenet_train.rec is missing"), (b"junk" * 10, "imagenet_train.rec is not RecordIO at byte 0")],
)
def test_files_of_imagenet_are_looked_at_before_anything_is_spent(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(IMAGENET_RECIPE)
    if content is not None:
        for name in ("train", "val"):
            (tmp_path / f"imagenet_{name}.rec").write_bytes(content)
    done = poc("run", "mine.py", "--data", ".", "--results", "out", folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_imagenet_files_are_trained_on(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(IMAGENET_RECIPE.replace("resnet50_v1", "alexnet"))
    for name, count in (("train", 2), ("val", 1)):
        whole = [part(0, record(picture(i, 256, 300), float(i), ".jpg")) for i in range(count)]
        (tmp_path / f"imagenet_{name}.rec").write_bytes(b"".join(whole))
    done = poc("run", "mine.py", "--data", ".", "--results", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = journal.read([tmp_path / "out" / "journal.jsonl"])
    assert (found["outcome"], found["dataset"]) == ("completed", "imagenet")
    assert found["evaluations"][0]["samples"] == 1


def test_networks_are_listed_with_what_they_cost(tmp_path: Path) -> None:
    shown = poc("networks", folder=tmp_path)
    assert shown.returncode == 0
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("vgg16 ")]
    assert line.split()[1:4] == ["3x224x224", "138,357,544", "15,470.3"]
