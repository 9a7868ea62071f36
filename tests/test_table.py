"""The table behind all pages: what a record and a published row become, with figures that are known."""

import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from poc.published import load
from poc.records import noise, timing
from poc.records.noise import Norms
from poc.records.record import Record
from poc.records.row import COLUMNS, rate
from poc.report import table as tables
from poc.values import write_atomically
from tests.builders import AUGMENTED, TEST_CPU, build, record_of
from tests.launch import HOME

# Readers rely on these names.
FIRST = """
    origin study run_id machine hardware framework model parameters dataset input_shape batch_per_device
    global_batch lr lr_rule devices emulated workers kvstore dtype layout epochs steps seed outcome
    accuracy seconds_per_epoch samples_per_second spread windows utilisation wall_seconds initialise_seconds
    warmup_seconds train_seconds data_seconds evaluate_seconds checkpoint_seconds rest_seconds speedup_throughput
    speedup_wall efficiency_throughput efficiency_wall note
"""
STUDIES = load()
BLANK: dict[str, Any] = {"windows": [], "evaluations": [], "parts": {}, "wall": None, "memory": {}}
P100 = {"index": 0, "name": "Tesla P100", "capability": [6, 0], "memory_bytes": 2**34}
STEP = dict(steps=24, whole_step_seconds=0.4, independent_step_seconds=0.3, exchange_seconds=0.15, sums_right=True)
STEP.update(exchange_bytes=3_000_000, bus_bytes_per_second=2e7, synchronisation_seconds=0.04, data_seconds=0.01)
TWO: dict[str, Any] = dict(devices=2, workers=2, cores_per_worker=1, kvstore="dist_sync", batch_per_device=64)
VERSIONS = {"python": "3.11.7", "mxnet-cu112": "1.9.1", "torch": "2.13.0"}
COUNTED = {"device": "gpu 0", "seconds": 40.0, "joules": 4000.0, "utilisation": 0.5}  # 100 W
NOT_COUNTED = {"device": "gpu 1", "seconds": 40.0, "utilisation": 0.9}
EMULATED = {"devices": 4, "emulated": True, "batch_per_device": 32, "gradient_noise": 2}


def row_of(record: Record, **prices: float) -> Any:
    (row,) = build(record, **prices).itertuples()
    return row


def values(row: Any, names: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def norms(step: int, scale: float) -> dict[str, float]:
    """Return the squares of gradients at a noise scale, for 32 samples and for 128."""
    return {"step": step, "small": 1 + scale / 32, "large": 1 + scale / 128}


def monitored(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"monitor": {"samples": 30, "devices": devices}}


def test_versions_of_a_changed_model_file_are_models_of_their_own_and_the_latest_has_the_plain_name() -> None:
    old, new = ({"model": "net.py:small", "model_hash": text} for text in ("3fa9c1d2", "0b7e55aa"))
    started = [f"2026-11-21T10:0{minute}:00+00:00" for minute in range(3)]
    first, second = record_of(run=old, started=started[0]), record_of(run=new, started=started[1])
    assert {*build(second, first).model} == {"net.py:small@3fa9c1", "net.py:small"}
    again = record_of(run=old, started=started[2])
    table = build(first, second, again)
    assert [*table.sort_values("started").model] == ["net.py:small", "net.py:small@0b7e55", "net.py:small"]


def test_known_answers_of_one_record() -> None:
    row = row_of(record_of())
    texts = dict(origin="measured", framework="MXNet 1.9.1", model="cifar_resnet50_v2", kind="cpu", kvstore="")
    texts.update(input_shape="3x28x28", machine="test machine", cpu="Test", length="training", outcome="completed")
    texts.update(recipe="cifar10_resnet50", accuracy_on="test set", schedule="", reason="", note="")
    texts.update(accuracy_by_epoch="1:0.5 2:0.55 3:0.6 4:0.65 5:0.7 6:0.75")
    texts.update(seconds_by_epoch="1:6 2:10 3:14 4:18 5:22 6:26")
    numbers: dict[str, float] = dict(epochs=6, steps=60, accuracy=0.75, accuracy_last4=0.675, seconds_per_epoch=4.0)
    numbers.update(samples_per_second=320.0, spread=0.0, windows=5, samples_trained=7680)
    numbers.update(wall_seconds=35.5, initialise_seconds=3.0, warmup_seconds=5.4, train_seconds=18.0, data_seconds=2.6)
    numbers.update(evaluate_seconds=6.0, checkpoint_seconds=0.0, rest_seconds=0.5, data_wait=0.1, lr=0.05, cores=2)
    numbers.update(flops=6 * row.multiply_adds * 320, host_peak_bytes=2**30, parameters=758621)
    assert values(row, texts) == texts
    assert values(row, numbers) == pytest.approx(numbers)
    assert sum(getattr(row, f"{part}_seconds") for part in timing.PARTS) == pytest.approx(row.wall_seconds)
    assert (row.baseline, row.quick, row.emulated, row.noisy, row.fixed, row.at_chance) == (True, *[False] * 5)
    unknown = ("utilisation", "joules_per_sample", "peak_flops", "mfu", "device_peak_bytes", "noise_scale", "threads")
    assert all(math.isnan(getattr(row, name)) for name in (*unknown, "dollars_per_hour", "dollars_per_run"))


RESUMED = {"step": 30, "why": "signal 9"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "MXNet": ({"versions": VERSIONS}, {"framework": "MXNet 1.9.1"}),
    "PyTorch": ({"run": {"framework": "pytorch"}, "versions": VERSIONS}, {"framework": "PyTorch 2.13.0"}),
    "unknown framework": ({"run": {"framework": "gone"}}, {"framework": "gone"}),
    "warm-up": ({"run": {"warmup_steps": 10}}, {"baseline": True, "schedule": "warm-up 1 epoch"}),
    "warm-up of half an epoch": (
        {"run": {"warmup_steps": 5, "warmup_from": 0.01}},
        {"schedule": "warm-up 0.5 epochs from 0.01"},
    ),
    "warm-up of a third": (
        {"run": {"warmup_steps": 130, "steps_per_epoch": 390, "steps": 2340}},
        {"schedule": "warm-up 0.333 epochs"},
    ),
    "long warm-up": ({"run": {"warmup_steps": 125}}, {"schedule": "warm-up 12.5 epochs"}),
    "longer warm-up": ({"run": {"warmup_steps": 1000}}, {"schedule": "warm-up 100 epochs"}),
    "decay": ({"run": {"decay": "cosine"}}, {"baseline": True, "schedule": "decay cosine"}),
    "other model": ({"run": {"model": "cifar_resnet20_v2", "dtype": "bfloat16"}}, {"baseline": True}),
    "other optimizer": ({"run": {"optimizer": "nesterov"}}, {"baseline": False}),
    "other momentum": ({"run": {"optimizer": {"name": "sgd", "momentum": 0.8}}}, {"baseline": False}),
    "label smoothing": ({"run": {"label_smoothing": 0.1}}, {"baseline": False}),
    "other augmentation": ({"run": {"data": {**AUGMENTED, "jitter": False}}}, {"baseline": False}),
    "validation split": (
        {"run": {"data": {**AUGMENTED, "validate_on": "held-out"}}},
        {"baseline": True, "accuracy_on": "validation split"},
    ),
    # Guessing 9,000 images in ten classes has a standard error of 0.0032.
    "chance": ({"accuracies": (0.108,) * 6}, {"at_chance": True}),
    "better than chance": ({"accuracies": (0.12,) * 6}, {"at_chance": False}),
    "within an epoch": ({"accuracies": (0.1,), "run": {"steps": 55}}, {"at_chance": False, "length": "burst"}),
    "all threads": ({"threads": 2}, {"threads": 2, "fewer_threads": math.nan}),
    "fewer threads than cores": ({"threads": 1}, {"threads": 1, "fewer_threads": 1}),
    "bound workers": ({"threads": 1, "run": TWO}, {"threads": 1, "fewer_threads": math.nan}),
    # For 5,120 images there are 40 steps of 128.
    "step times of two": (
        {"run": TWO, "detail": STEP},
        {
            **{"step_seconds": 0.4, "compute_seconds": 0.3, "sync_seconds": 0.15},
            **{"train_seconds_per_5120": 0.3 * 40, "communication_seconds_per_5120": 0.06 * 40},
            **{"sync_seconds_per_5120": 0.04 * 40},
        },
    ),
    "step times of one": (
        {"detail": STEP},
        {"train_seconds_per_5120": 0.4 * 40, "communication_seconds_per_5120": math.nan},
    ),
    # Two devices during five windows of 4 s and 1,280 samples.
    "energy": (
        monitored(COUNTED, {**COUNTED, "utilisation": 0.9}),
        {"joules_per_sample": 200 * 20 / 6400, "utilisation": 0.7},
    ),
    "energy of 9.9 s": (
        {**monitored(COUNTED), "epoch_seconds": (6.0, *[2.0] * 4, 1.9)},
        {"joules_per_sample": math.nan, "utilisation": 0.5},
    ),
    "energy of one of two": (monitored(COUNTED, NOT_COUNTED), {"joules_per_sample": math.nan}),
    # The fourth of six windows starts at 12 s.
    "resumed": (
        {**monitored(COUNTED), "epoch_seconds": (2.0,) * 3 + (12.0,) * 3, "resumed": [{**RESUMED, "at": 11.5}]},
        {"samples_per_second": 1280 / 12, "windows": 2, "joules_per_sample": 100 * 24 / 2560, "steps": 60},
    ),
    "staleness": (
        {
            "run": {**TWO, "kvstore": {"name": "ssp", "staleness": 2}},
            "workers": [
                {"sync_stats": {"staleness": counts, "stale_wait_seconds": 1.0}}
                for counts in ({"0": 6, "1": 2}, {"2": 2})
            ],
        },
        {"staleness_mean": 0.6, "staleness_max": 2},
    ),
    "noise scale of the second half": (
        {"run": EMULATED, "norms": [norms(step, 50.0 if step < 30 else 1000.0) for step in range(0, 60, 2)]},
        {"noise_scale": 1000, "noise_low": 1000, "noise_high": 1000},
    ),
    "noise scale of a run that ended at its target": (
        {"run": {**EMULATED, "steps": 600}, "norms": [norms(step, 3e3 * (step % 3 == 0)) for step in range(0, 60, 2)]},
        {"noise_scale": 1000},
    ),
    "no noise scale of a few norms": (
        {"run": EMULATED, "norms": [norms(step, 1000.0) for step in range(40, 58, 2)]},
        {"noise_scale": math.nan, "noise_low": math.nan},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_columns_of_a_record(case: str) -> None:
    changes, expected = CASES[case]
    row = row_of(record_of(**changes))
    texts = {name: value for name, value in expected.items() if isinstance(value, str)}
    numbers = {name: value for name, value in expected.items() if name not in texts}
    assert values(row, texts) == texts
    assert values(row, numbers) == pytest.approx(numbers, nan_ok=True)


@pytest.mark.parametrize(("kind", "seconds", "bound"), [("gpu", 0.37, True), ("gpu", 0.35, False), ("cpu", 0.4, False)])
def test_a_gpu_is_launch_bound_if_the_host_takes_most_of_a_step_to_enqueue_it(
    kind: str, seconds: float, bound: bool
) -> None:
    """A step takes 0.4 s; a CPU computes what it enqueues."""
    row = row_of(record_of(run={"kind": kind}, detail={**STEP, "issue_seconds": seconds}))
    assert (row.issue_seconds, "launch-bound" in row.note) == (seconds, bound)


def test_an_epoch_that_was_cut_short_is_no_epoch() -> None:
    *complete, last = record_of().windows
    short = replace(record_of(), windows=(*complete, replace(last, steps=4, seconds=1.0)))
    row = row_of(short)
    assert (row.seconds_per_epoch, row.epochs) == (4.0, 5)
    assert "54 steps" in row.note
    assert math.isnan(row_of(replace(short, windows=short.windows[-1:])).seconds_per_epoch)


def test_the_note_has_what_else_happened_to_a_run() -> None:
    slowed = monitored({"device": "gpu 0", "throttled": {"power": 0.2, "heat": 0.01}})
    note = row_of(record_of(**slowed, resumed=[RESUMED])).note
    assert ("power for 20%" in note, "heat" in note, "resumed" in note) == (True, False, True)


def test_mfu_is_of_the_best_peak_of_as_many_of_the_same_devices() -> None:
    changes: list[dict[str, Any]] = [{}, {}, {}, {"run": {"dtype": "bfloat16"}}, {"run": {"cores_per_worker": 1}}]
    changes += [{"hardware": {**TEST_CPU, "cores": 1}}, {"infrastructure": "another"}]
    peaks = (1e11, 4e11, None, 8e11, 3e11, 2e11, 9e11)
    table = build(*(record_of(peak_flops=peak, **change) for peak, change in zip(peaks, changes)))
    assert sorted(table.peak_flops) == [3e11, 3e11, 4e11, 4e11, 4e11, 8e11, 9e11]
    assert table.mfu.tolist() == (table.flops / table.peak_flops).tolist()


def test_a_price_is_that_of_the_whole_instance_for_the_wall_time() -> None:
    row = row_of(record_of(hardware={**TEST_CPU, "gpus": [P100] * 8}, run={"kind": "gpu"}), **{"test machine": 7.2})
    assert (row.dollars_per_hour, row.dollars_per_run) == pytest.approx((7.2, 35.5 * 7.2 / 3600))
    # The price that was given now, else with the run, else of the list.
    record = record_of(infrastructure="p2.8xlarge", price_per_hour=5.0)
    rows = [row_of(record), row_of(replace(record, price_per_hour=None)), row_of(record, **{"p2.8xlarge": 6.0})]
    assert [row.dollars_per_hour for row in rows] == [5.0, 7.2, 6.0]
    another = record_of(infrastructure="p2.8xlarge (2)")  # shown beside one of the same name
    assert row_of(another).dollars_per_hour == 7.2
    # What was given for another machine with the same hardware is not this one's.
    named = replace(record, infrastructure="on premises")
    assert row_of(named, **{named.hardware.describe(): 6.0}).dollars_per_hour == 5.0
    (_, row) = build(record, another, **{"p2.8xlarge": 6.0}).itertuples()
    assert (row.machine, row.dollars_per_hour) == ("p2.8xlarge (2)", 7.2)
    # Of several hosts it is that of all, unless their name has a price of its own.
    together = record_of(infrastructure="2 hosts, each p2.8xlarge", hardware={**TEST_CPU, "hosts": 2})
    rows = [row_of(together), row_of(together, **{together.infrastructure: 10.0})]
    assert [row.dollars_per_hour for row in rows] == [14.4, 10.0]
    # A run that does not end with an epoch, or on emulated devices, has no price.
    for run in ({"steps": 55}, {"emulated": True, "devices": 4, "global_batch": 512}):
        assert math.isnan(row_of(record_of(run=run), **{"test machine": 7.2}).dollars_per_run)


def test_published_rows_are_in_the_table_as_they_were_printed() -> None:
    source = [row for study in STUDIES for row in study.rows]
    table = build(record_of(), studies=STUDIES)
    published = table[table.origin == "published"]
    assert len(published) == len(source) == 186
    filled = {"setting", "length", "baseline", "model", "samples_per_second"}
    filled |= {"price_source", "dollars_per_hour", "dollars_per_run", "speedup_without_sync", "speedup_throughput"}
    filled |= {"efficiency_throughput", "efficiency_wall", "scaling", "straggler"}
    filled |= {name for name, kind in COLUMNS.items() if kind == "bool"}
    for row, printed in zip(published.itertuples(), source):
        cells = {name: cell for name, cell in vars(printed).items() if cell not in (None, "")}
        assert values(row, cells.keys() - {"model", "baseline"}) == {
            name: cell for name, cell in cells.items() if name not in ("model", "baseline")
        }
        known = {name for name in COLUMNS if getattr(row, name) != "" and pd.notna(getattr(row, name))}
        assert known - cells.keys() <= filled, row
        assert row.samples_per_second == pytest.approx(rate(printed) or math.nan, nan_ok=True)
    # A model of the registry has its name there.
    assert set(published[published.study == "beeva_poc_mxnet"].model) == {"cifar_resnet50_v2", "cifar_resnet110_v2"}
    (row,) = published[published.printed == "128x8=1024 (lr=0.4) | 6800 (8-80%)"].itertuples()
    assert row.dollars_per_run == pytest.approx(12 * 7.1 * 7.2 / 3600)


def test_no_page_has_a_range_test() -> None:
    grown = {"grows_from": 1e-4, "learning_rate": 10.0, "evaluate": False}
    tests = [record_of(run=grown), record_of(run=grown, infrastructure="another machine", started="2026-12-24")]
    for others in ([], [record_of()]):  # every page is made from the table
        pd.testing.assert_frame_equal(build(*tests, *others), build(*others))


def test_pandas_reads_every_row_of_rows_csv(tmp_path: Path) -> None:
    skipped = record_of(outcome="skipped", reason='no "GPU", here', run={"devices": 8, "kind": "gpu"}, **BLANK)
    odd = record_of(infrastructure=" a, machine\nof 'mine' ", environment={"LD_PRELOAD": "x,y"}, run=TWO, detail=STEP)
    table = build(record_of(), skipped, odd, studies=STUDIES)
    path = tmp_path / "rows.csv"
    path.write_text(tables.write(table), encoding="utf-8")
    text = path.read_text()
    again = tables.read(path)
    pd.testing.assert_frame_equal(again, table, rtol=1e-9)
    assert tables.write(again) == text
    assert list(table.columns) == list(COLUMNS)
    assert set(FIRST.split()) <= set(COLUMNS)
    assert not re.search(r"(^|,)(nan|None|<NA>|inf)(,|$)", text, re.MULTILINE)
    assert len(pd.read_csv(path)) == 3 + 186


def test_names_that_pandas_would_take_for_missing_values_stay(tmp_path: Path) -> None:
    names = ["NA", "None", "nan", "caf\udce9"]
    records = [record_of(infrastructure=name) for name in names]
    write_atomically(tmp_path / "rows.csv", tables.write(build(*records)))
    assert {*tables.read(tmp_path / "rows.csv").machine} == {*names[:3], "caf\\udce9"}


def test_every_column_is_described() -> None:
    described = (HOME / "docs" / "columns.md").read_text()
    assert [name for name in COLUMNS if f"`{name}`" not in described] == []


def test_what_completed_later_has_not_failed() -> None:
    def on(checksum: str, day: int, **changes: Any) -> Record:
        return record_of(started=f"2026-11-{day}T10:00:00+00:00", data_checksum=checksum, **changes)

    done, broken = on("aaaa", 22), on("aaaa", 21, outcome="failed", reason="x", **BLANK)
    assert list(build(broken, done).outcome) == ["completed"]
    later = replace(broken, started="2026-11-25T10:00:00+00:00")
    assert sorted(build(done, later).outcome) == ["completed", "failed"]
    # Not on other images, nor on another machine; one without a checksum may have been about to read any.
    lost = [on(checksum, 21, outcome=kind, **BLANK) for checksum in ("aaaa", "") for kind in ("failed", "skipped")]
    assert sorted(build(*lost, on("bbbb", 22)).outcome) == ["completed", "failed", "skipped"]
    assert list(build(*lost, done).outcome) == ["completed"]
    assert len(build(broken, replace(done, infrastructure="another"))) == 2


@pytest.mark.parametrize("count", [10, 29])
def test_nine_in_ten_intervals_contain_the_noise_scale(count: int) -> None:
    """The loss of sample i is |w - x_i|^2 / 2, so its gradient at w = 0 is -x_i."""
    generator, inside = np.random.default_rng(0), 0
    for _ in range(200):
        gradients = generator.normal(np.ones(20), 3.0, size=(count, 64, 20))
        small, large = (np.square(part.mean(axis=1)).sum(axis=1) for part in (gradients[:, :8], gradients))
        norms = [Norms(step=step, small=small[step], large=large[step]) for step in range(count)]
        low, high = noise.interval(norms, small_batch=8, large_batch=64)
        inside += low < 9.0 < high
    assert 0.87 <= inside / 200 <= 0.93


def test_the_interval_of_a_long_training_takes_few_seconds() -> None:
    norms = [Norms(step=step, small=2.0 + step % 3, large=1.0) for step in range(20_000)]
    began = time.process_time()
    noise.interval(norms, small_batch=8, large_batch=64)
    assert time.process_time() - began < 3


def test_without_signal_or_measurements_there_is_no_noise_scale() -> None:
    # Norms of single workers: now and then the small batch's gradient is the smaller one.
    smalls = np.random.default_rng(1).normal(1.0, 0.2, 60)
    low, high = noise.interval(
        [Norms(step=1, small=small, large=1.0) for small in smalls], small_batch=8, large_batch=64
    )
    assert 0 == low < high < 2
    no_signal = [Norms(step=step, small=8.0, large=0.9) for step in range(9)]
    assert noise.interval(no_signal, small_batch=8, large_batch=64) == (float("inf"), float("inf"))
    for norms, small, large in (([], 8, 64), (no_signal, 4, 4), (no_signal, 8, 64)):
        assert noise.scale(norms, small_batch=small, large_batch=large) is None


@pytest.mark.parametrize("samples", [0, -1])
def test_a_damaged_evaluation_says_nothing_about_chance(samples: int) -> None:
    record = record_of(accuracies=(0.1,))
    damaged = tuple(replace(each, samples=samples) for each in record.evaluations)
    assert [record.at_chance, replace(record, evaluations=damaged).at_chance] == [True, False]
