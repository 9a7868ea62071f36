"""The table behind all pages: what a record and a published row become, with figures that are known beforehand."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from poc import studies
from poc.records import timing
from poc.records.record import Record
from poc.report import table as tables
from poc.studies.row import COLUMNS, rate
from tests.builders import TEST_CPU, build, record_of
from tests.launch import HOME

# Readers rely on these names and their order.
FIRST = """
    origin study run_id machine hardware framework model parameters dataset input_shape batch_per_device
    global_batch lr lr_rule devices emulated workers kvstore dtype layout epochs steps seed outcome
    accuracy seconds_per_epoch samples_per_second spread windows utilisation wall_seconds initialise_seconds
    warmup_seconds train_seconds data_seconds evaluate_seconds checkpoint_seconds rest_seconds speedup_throughput
    speedup_wall efficiency_throughput efficiency_wall note
"""
STUDIES = studies.load()
BLANK: dict[str, Any] = {"windows": [], "evaluations": [], "parts": {}, "wall": None, "memory": {}}
P100 = {"index": 0, "name": "Tesla P100", "capability": [6, 0], "memory_bytes": 2**34}
STEP = dict(steps=24, whole_step_seconds=0.4, independent_step_seconds=0.3, exchange_seconds=0.15, sums_right=True)
STEP.update(exchange_bytes=3_000_000, bus_bytes_per_second=2e7, synchronisation_seconds=0.04, data_seconds=0.01)
TWO: dict[str, Any] = dict(devices=2, workers=2, cores_per_worker=1, kvstore="dist_sync", batch_per_device=64)
AUGMENTED = {"name": "cifar10", "crop": 28, "pad": 4, "mirror": True, "jitter": True}


def row_of(record: Record, **prices: float) -> Any:
    """Return the row that a record becomes."""
    (row,) = build(record, **prices).itertuples()
    return row


def values(row: Any, names: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def test_known_answers_of_one_record() -> None:
    row = row_of(record_of())
    texts = dict(origin="measured", framework="MXNet 1.9.1", model="cifar_resnet50_v2", kind="cpu", kvstore="")
    texts.update(input_shape="3x28x28", machine="test machine", cpu="Test", length="training", outcome="completed")
    texts.update(recipe="cifar10_resnet50", accuracy_on="test set", schedule="", reason="", note="")
    texts.update(accuracy_by_epoch="1:0.5000 2:0.5500 3:0.6000 4:0.6500 5:0.7000 6:0.7500")
    texts.update(seconds_by_epoch="1:6 2:10 3:14 4:18 5:22 6:26")
    numbers: dict[str, float] = dict(epochs=6, steps=60, accuracy=0.75, accuracy_last4=0.675, seconds_per_epoch=4.0)
    numbers.update(samples_per_second=320.0, spread=0.0, windows=5, dropped_windows=1, samples_trained=7680)
    numbers.update(wall_seconds=35.5, initialise_seconds=3.0, warmup_seconds=5.4, train_seconds=18.0, data_seconds=2.6)
    numbers.update(evaluate_seconds=6.0, checkpoint_seconds=0.0, rest_seconds=0.5, data_wait=0.1, lr=0.05, cores=2)
    numbers.update(flops=6 * row.multiply_adds * 320, host_peak_bytes=2**30, others_busy_cores=0.01, parameters=758621)
    assert values(row, texts) == texts
    assert values(row, numbers) == pytest.approx(numbers)
    assert sum(getattr(row, f"{part}_seconds") for part in timing.PARTS) == pytest.approx(row.wall_seconds)
    assert (row.baseline, row.quick, row.emulated, row.noisy, row.fixed, row.at_chance) == (True, *[False] * 5)
    unknown = ("utilisation", "joules_per_sample", "peak_flops", "mfu", "device_peak_bytes", "noise_scale", "threads")
    assert all(math.isnan(getattr(row, name)) for name in (*unknown, "dollars_per_hour", "dollars_per_run"))


def test_a_row_has_the_framework_that_trained_it() -> None:
    versions = {"python": "3.11.7", "mxnet-cu112": "1.9.1", "torch": "2.13.0"}
    rows = [row_of(record_of(run={"framework": name}, versions=versions)) for name in ("mxnet", "pytorch", "gone")]
    assert [row.framework for row in rows] == ["MXNet 1.9.1", "PyTorch 2.13.0", "gone"]


def test_an_epoch_that_was_cut_short_is_no_epoch() -> None:
    *whole, last = record_of().windows
    short = replace(record_of(), windows=(*whole, replace(last, steps=4, seconds=1.0)))
    row = row_of(short)
    assert (row.seconds_per_epoch, row.epochs) == (4.0, 5)
    assert "54 steps" in row.note
    assert math.isnan(row_of(replace(short, windows=short.windows[-1:])).seconds_per_epoch)


def test_a_step_time_breakdown_adds_up_in_both_forms() -> None:
    two, one = (row_of(record_of(run=run, detail=STEP)) for run in (TWO, {}))
    assert (two.step_seconds, two.compute_seconds, two.sync_seconds) == (0.4, 0.3, 0.15)
    # For 5,120 images there are 40 steps of 128.
    parts = [getattr(two, f"{part}_seconds_per_5120") for part in ("train", "communication", "sync", "data")]
    assert parts == pytest.approx([0.3 * 40, 0.06 * 40, 0.04 * 40, 0.01 * 40])
    assert sum(parts[:3]) == pytest.approx(0.4 * 40)
    assert one.train_seconds_per_5120 == pytest.approx(0.4 * 40)
    assert math.isnan(one.communication_seconds_per_5120)


def test_energy_is_that_of_all_devices_over_the_windows_after_warm_up() -> None:
    counted = {"device": "gpu 0", "seconds": 40.0, "joules": 4000.0, "utilisation": 0.5}  # 100 W
    silent = {"device": "gpu 1", "seconds": 40.0, "utilisation": 0.9}
    both = {"samples": 30, "of_windows": True, "devices": [counted, {**counted, "utilisation": 0.9}]}
    row = row_of(record_of(monitor=both))
    # Five windows of 4 s and 1,280 samples.
    assert row.joules_per_sample == pytest.approx(200 * 20 / 6400)
    assert row.utilisation == pytest.approx(0.7)
    for monitor in ({**both, "devices": [counted, silent]}, {**both, "of_windows": False}):
        assert math.isnan(row_of(record_of(monitor=monitor)).joules_per_sample)


def test_mfu_is_of_the_best_peak_of_as_many_of_the_same_devices() -> None:
    changes: list[dict[str, Any]] = [{}, {}, {}, {"run": {"dtype": "bfloat16"}}, {"run": {"cores_per_worker": 1}}]
    changes += [{"hardware": {**TEST_CPU, "cores": 1}}, {"infrastructure": "another"}]
    peaks = (1e11, 4e11, None, 8e11, 3e11, 2e11, 9e11)
    table = build(*(record_of(peak_flops=peak, **change) for peak, change in zip(peaks, changes)))
    assert sorted(table.peak_flops) == [3e11, 3e11, 4e11, 4e11, 4e11, 8e11, 9e11]
    assert table.mfu.tolist() == (table.flops / table.peak_flops).tolist()


def test_staleness_is_counted_over_all_workers_and_steps() -> None:
    workers = [
        {"worker": number, "windows": [], "exchanged": {"staleness": counts, "stale_wait_seconds": 1.0}}
        for number, counts in enumerate(({"0": 6, "1": 2}, {"2": 2}))
    ]
    row = row_of(record_of(run={**TWO, "kvstore": "ssp", "staleness": 2}, workers=workers))
    assert (row.staleness_mean, row.staleness_max) == (0.6, 2)


def test_the_noise_scale_is_that_of_the_second_half() -> None:
    def norms(step: int, scale: float) -> dict[str, float]:
        return {"step": step, "small": 1 + scale / 32, "large": 1 + scale / 128}

    looks = [norms(step, 50.0 if step < 30 else 1000.0) for step in range(0, 60, 2)]
    run = {"devices": 4, "emulated": True, "batch_per_device": 32, "gradient_noise": 2}
    row = row_of(record_of(run=run, norms=looks))
    assert (row.noise_scale, row.noise_low, row.noise_high) == pytest.approx((1000, 1000, 1000))


def test_the_note_has_what_else_happened_to_a_run() -> None:
    slowed = {"samples": 9, "devices": [{"device": "gpu 0", "throttled": {"power": 0.2, "heat": 0.01}}]}
    note = row_of(record_of(monitor=slowed, resumed=[{"step": 20, "why": "signal 9"}])).note
    assert ("power for 20%" in note, "heat" in note, "resumed" in note) == (True, False, True)


@pytest.mark.parametrize(
    ("run", "baseline", "schedule"),
    [
        ({"warmup_steps": 10}, True, "warm-up 1 epoch"),
        ({"learning_rate": 0.4, "decay": "cosine"}, True, "decay cosine"),
        ({"optimizer": "nesterov"}, False, ""),
        ({"momentum": 0.8}, False, ""),
        ({"label_smoothing": 0.1}, False, ""),
        ({"data": {**AUGMENTED, "jitter": False}}, False, ""),
        ({"data": {**AUGMENTED, "validate_on": "held-out"}}, False, ""),
        ({"model": "cifar_resnet20_v2", "dtype": "bfloat16"}, True, ""),
    ],
)
def test_a_schedule_is_told_and_leaves_a_recipe_the_baseline(
    run: dict[str, Any], baseline: bool, schedule: str
) -> None:
    row = row_of(record_of(run=run))
    assert (row.baseline, row.schedule) == (baseline, schedule)


@pytest.mark.parametrize(("accuracy", "chance"), [(0.1, True), (0.108, True), (0.12, False), (0.75, False)])
def test_an_accuracy_no_better_than_chance_is_marked(accuracy: float, chance: bool) -> None:
    """Check it for 9,000 images in ten classes, where a standard error of guessing is 0.0032."""
    record = record_of(accuracies=(accuracy,) * 6)
    assert ("chance" in record.in_words(), row_of(record).at_chance) == (chance, chance)
    assert not record_of(accuracies=(0.1,), run={"steps": 55}).at_chance  # cut off within an epoch


def test_a_training_on_fewer_threads_than_cores_has_their_number() -> None:
    rows = [row_of(record_of(threads=threads, run=run)) for threads, run in ((2, {}), (1, {}), (1, TWO))]
    assert [row.threads for row in rows] == [2, 1, 1]
    assert [math.isnan(row.fewer_threads) for row in rows] == [True, False, True]


@pytest.mark.parametrize("outcome", ["completed", "failed", "diverged"])
def test_a_record_whose_speed_is_withdrawn_has_all_but_its_times(outcome: str) -> None:
    used = {"samples": 9, "of_windows": True, "devices": [{"device": "cpu", "seconds": 30.0, "joules": 900.0}]}
    fields = dict(run=TWO, outcome=outcome, detail=STEP, monitor=used, peak_flops=4e11, price_per_hour=3.0)
    timed = row_of(record_of(**fields))
    withdrawn = row_of(record_of(**fields, speed_withdrawn="a defect"))
    times = {name for name, column in COLUMNS.items() if column.metadata.get("time")}
    assert sum(not math.isnan(getattr(timed, name)) for name in times) > 20
    assert all(math.isnan(getattr(withdrawn, name)) for name in times)
    derived = {"note", "speed_withdrawn", "seconds_by_epoch", "data_wait", "windows", "dropped_windows"}
    kept = [name for name in COLUMNS if name not in times | derived | {"multiply_adds"}]
    assert str(values(withdrawn, kept)) == str(values(timed, kept))
    assert (withdrawn.accuracy, withdrawn.seconds_by_epoch) == (0.75, "")
    assert "a defect" in withdrawn.note


def test_a_price_is_that_of_the_whole_instance_for_the_wall_time() -> None:
    cards = {"left": 1, "right": 8}
    records = [
        record_of(infrastructure=name, run={"kind": "gpu"}, hardware={**TEST_CPU, "gpus": [P100] * count})
        for name, count in cards.items()
    ]
    assert build(*records, left=1.0, right=8.0).set_index("machine").dollars_per_hour.to_dict() == {
        "left": 1,
        "right": 8,
    }
    row = row_of(record_of(), **{"test machine": 7.2})
    assert row.dollars_per_run == pytest.approx(35.5 * 7.2 / 3600)
    # The price that was given now, else with the run, else of the list.
    record = record_of(infrastructure="p2.8xlarge", price_per_hour=5.0)
    prices = [row_of(*given) for given in [(record,), (replace(record, price_per_hour=None),)]]
    assert [row.dollars_per_hour for row in (*prices, row_of(record, **{"p2.8xlarge": 6.0}))] == [5.0, 7.2, 6.0]
    # What does not end with an epoch, or on real devices, is no run to be priced.
    for run in ({"steps": 55}, {"emulated": True, "devices": 4, "global_batch": 512}):
        assert math.isnan(row_of(record_of(run=run), **{"test machine": 7.2}).dollars_per_run)
    (published,) = build(studies=STUDIES[:1]).query("printed == '128x8=1024 (lr=0.4) | 6800 (8-80%)'").itertuples()
    assert published.dollars_per_run == pytest.approx(12 * 7.1 * 7.2 / 3600)


def test_published_rows_stand_as_they_were_printed() -> None:
    source = [row for study in STUDIES for row in study.rows]
    table = build(record_of(), studies=STUDIES)
    published = table[table.origin == "published"]
    assert len(published) == len(source) == 186
    filled = {"setting", "length", "baseline", "model", "samples_per_second"}
    added = {"price_source", "dollars_per_hour", "dollars_per_run", "speedup_without_sync"}
    for row, printed in zip(published.itertuples(), source):
        given = {name for name, cell in vars(printed).items() if cell not in (None, "")}
        # pandas has no whole numbers beside unknown ones.
        assert values(row, given - filled) == {name: getattr(printed, name) for name in given - filled}
        known = {name for name in COLUMNS if getattr(row, name) != "" and pd.notna(getattr(row, name))}
        others = known - given - filled - added
        assert others <= {"speedup_throughput", "efficiency_throughput", "efficiency_wall", "scaling", "straggler"}, row
        assert row.samples_per_second == pytest.approx(rate(printed) or math.nan, nan_ok=True)
    worked_out = published[published.speedup_throughput.notna()]
    printed_too = {row.printed for row in source if row.speedup_throughput}
    assert set(worked_out[~worked_out.printed.isin(printed_too)].study) == {"beeva_poc_mxnet", "theano_mpi"}
    # A model of the registry has its name there.
    assert set(published[published.study == "beeva_poc_mxnet"].model) == {"cifar_resnet50_v2", "cifar_resnet110_v2"}


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
    assert list(table.columns[: len(FIRST.split())]) == FIRST.split()
    assert not re.search(r"(^|,)(nan|None|<NA>|inf)(,|$)", text, re.MULTILINE)
    assert len(pd.read_csv(path)) == 3 + 186


def test_every_column_is_described() -> None:
    described = (HOME / "docs" / "columns.md").read_text()
    for name, column in COLUMNS.items():
        assert column.metadata["about"], name
        assert column.metadata.get("unit") == "s" or "seconds" not in name.split("_")[1:], name
        assert re.search(rf"\b{name}\b", described), name


def test_the_same_records_in_any_order_give_the_same_table() -> None:
    records = [record_of(epoch_seconds=[4.0 + hour] * 6, started=f"2026-11-21T{hour:02}:00:00") for hour in range(5)]
    records += [record_of(run={**TWO, "seed": seed}, started="2026-11-21T02:30:00") for seed in range(2)]
    records += [record_of(infrastructure="another", outcome=outcome) for outcome in ("failed", "completed")]
    text = tables.write(build(*records, studies=STUDIES[:1]))
    shuffled = random.Random(0)
    for _ in range(3):
        shuffled.shuffle(records)
        assert tables.write(build(*records, studies=STUDIES[:1])) == text


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
