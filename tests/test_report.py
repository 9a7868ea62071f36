"""Rows and pages made from records whose figures are known beforehand."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from poc import studies
from poc.records import journal, timing
from poc.records.record import Record
from poc.report import rows
from poc.report.measurements import alike, by_accuracy, by_run, by_speed
from poc.report.sections.rates import unlike
from poc.report.tables import devices_of
from poc.studies import prices
from poc.studies.row import COLUMNS, Row, to_csv
from tests.builders import TEST_CPU, record_of
from tests.launch import HOME

# Of rows.csv, as docs and readers know them: names and order.
DESIGN = """
    origin study run_id machine hardware framework model parameters dataset input_shape batch_per_device
    global_batch lr lr_rule devices emulated workers kvstore dtype layout epochs steps seed outcome
    accuracy seconds_per_epoch samples_per_second spread windows utilisation wall_seconds initialise_seconds
    warmup_seconds train_seconds data_seconds evaluate_seconds checkpoint_seconds rest_seconds speedup_throughput
    speedup_wall efficiency_throughput efficiency_wall note
"""

STUDIES = studies.load()
WAITED = "10% of the timed windows went by in waiting for batches"
BLANK: dict[str, Any] = {"windows": [], "evaluations": [], "parts": {}, "wall": None, "memory": {}}


def skipped(devices: int, seed: int) -> Record:
    """A run that was not even tried."""
    run = {"devices": devices, "kind": "gpu", "seed": seed}
    reason = f"needs {devices} GPUs, this machine has none"
    return record_of(run=run, run_id=f"skipped{devices}{seed}", outcome="skipped", reason=reason, **BLANK)


def workers(count: int, epoch_seconds: Sequence[float], **changes: Any) -> Record:
    """Six epochs of 1,280 samples, whatever the number of workers."""
    run: dict[str, Any] = dict(devices=count, workers=count, cores_per_worker=1, kvstore="dist_sync")
    run.update(batch_per_device=64, global_batch=64 * count, learning_rate=0.025 * count)
    run.update(steps_per_epoch=20 // count, steps=120 // count)
    run.update(changes.pop("run", {}))
    changes = {"run_id": f"workers-{count}", **changes}
    return record_of(run=run, epoch_seconds=epoch_seconds, accuracies=(), **changes)


# One and two workers: 1,280 samples in 8 s and in 4 s; the start takes 3 s on either.
DETAIL = dict(steps=24, whole_step_seconds=0.4, independent_step_seconds=0.3, exchange_seconds=0.15, sums_right=True)
DETAIL.update(exchange_bytes=3_000_000, bus_bytes_per_second=2e7, synchronisation_seconds=0.04, data_seconds=0.01)
ONE = workers(1, [8.0] * 6)
ALONE = workers(2, [4.0] * 6).to_json()
TWO = workers(
    2,
    [4.0] * 6,
    detail=DETAIL,
    workers=[{"worker": number, **{name: ALONE[name] for name in ("wall", "parts", "windows")}} for number in range(2)],
    monitor={"samples": 30, "devices": [{"device": "cpu", "utilisation": 0.9, "memory_peak_bytes": 2**30}]},
)
FOUR = {"devices": 4, "emulated": True, "global_batch": 512, "learning_rate": 0.2}
VIRTUAL = record_of(run=FOUR, run_id="emulated", dataset="cifar10 (jpeg)")
P100 = {"index": 0, "name": "Tesla P100", "capability": [6, 0], "memory_bytes": 2**34}
ELSEWHERE = record_of(
    infrastructure="another machine",
    run={"kind": "gpu"},
    hardware={**TEST_CPU, "gpus": [P100]},
    versions={"mxnet-cu112": "1.9.1", "python": "3.10.1", "numpy": "1.26.4"},
    monitor={"samples": 30, "devices": [{"device": "gpu 0", "power_watts": 100.0, "joules": 7680.0}]},
    price_per_hour=3.6,
)
RECORDS = [record_of(), ONE, TWO, VIRTUAL, ELSEWHERE, *(skipped(gpus, seed) for gpus in (1, 8) for seed in range(10))]


def collect(*records: Record) -> list[Row]:
    return rows.collect(rows.ordered(records), STUDIES)


def test_known_answers_of_one_record() -> None:
    row = collect(record_of())[0]
    texts = dict(origin="measured", framework="MXNet 1.9.1", model="cifar_resnet50_v2", kind="cpu", kvstore="")
    texts.update(input_shape="3x28x28", note=WAITED)
    numbers: dict[str, float] = dict(epochs=6, steps=60, accuracy=0.75, accuracy_last4=0.675, seconds_per_epoch=4.0)
    numbers.update(samples_per_second=320.0, spread=0.0, windows=5, dropped_windows=1, samples_trained=7680)
    numbers.update(wall_seconds=35.5, initialise_seconds=3.0, warmup_seconds=5.4, train_seconds=18.0, data_seconds=2.6)
    numbers.update(evaluate_seconds=6.0, checkpoint_seconds=0.0, rest_seconds=0.5)
    assert {name: getattr(row, name) for name in texts} == texts
    assert {name: getattr(row, name) for name in numbers} == pytest.approx(numbers)
    assert sum(getattr(row, f"{part}_seconds") for part in timing.PARTS) == pytest.approx(row.wall_seconds)
    assert (row.utilisation, row.speedup_throughput, row.seconds_to_075) == (None, None, 26.0)
    # Hardware counters that are not there are empty.
    cpu, gpu = rows.from_record(TWO), rows.from_record(ELSEWHERE)
    assert (cpu.utilisation, cpu.joules_per_sample, gpu.joules_per_sample) == (0.9, None, 1.0)


def test_samples_a_second_are_those_of_whole_images() -> None:
    data = {"name": "cifar10", "crop": 28, "pad": 4, "mirror": True, "jitter": True, "shrink": 14}
    seconds = (1.0, 1.0, 2.0, 4.0, 4.0, 4.0)
    some, all_shrunk = (
        rows.from_record(record_of(epoch_seconds=seconds, run={"data": {**data, "shrink_epochs": epochs}}))
        for epochs in (3, 6)
    )
    assert (some.samples_per_second, some.seconds_per_epoch, some.windows) == (320.0, 4.0, 2)
    assert (all_shrunk.samples_per_second, all_shrunk.flops) == (None, None)
    assert {(row.epochs, row.samples_trained, row.train_seconds) for row in (some, all_shrunk)} == {(6, 7680, 13.5)}


def test_an_epoch_that_was_cut_short_is_no_epoch() -> None:
    *whole, last = record_of().windows
    short = replace(record_of(), windows=(*whole, replace(last, steps=4, seconds=1.0)))
    (row,) = rows.collect([short], [])
    assert (row.seconds_per_epoch, row.epochs) == (4.0, 5)
    assert "stopped after 54 steps" in row.note
    assert rows.from_record(replace(short, windows=short.windows[-1:])).seconds_per_epoch is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"run": {"quick": True}}, "quick: a first look"),
        ({"run": {"dtype": "bfloat16"}}, "precision bfloat16"),
        ({"dataset": "synthetic"}, "synthetic data"),
        ({"run": {"emulated": True, "devices": 4}}, "its throughput is not that of 4"),
        ({"outcome": "failed", "reason": "out of memory"}, "failed: out of memory"),
        ({"outcome": "diverged", "reason": "loss nan"}, "diverged: loss nan"),
        # An earlier version said of the whole machine, of how many cores not, what kept them busy.
        ({"others_busy_cores": 0.5}, "other processes kept 0.5 cores busy"),
        (
            {"others_busy_cores": 0.15, "stolen_cores": 0.06, "usable_cores": 4},
            "disturbed: other processes kept 0.15 of 4 cores busy meanwhile, and 0.06 were stolen",
        ),
        ({"others_busy_cores": 0.2, "usable_cores": 4}, ""),
        ({"others_busy_cores": 0.2, "usable_cores": 1}, "disturbed"),
        ({"stolen_cores": 0.1, "usable_cores": 1}, "and 0.1 were stolen"),
    ],
)
def test_the_note_says_what_is_not_as_it_seems(changes: dict[str, Any], words: str) -> None:
    row = rows.from_record(record_of(**changes))
    assert words in row.note
    assert bool(words) == bool(row.note.replace(WAITED, ""))
    assert row.disturbed == ("cores busy" in row.note)


@pytest.mark.parametrize(
    ("engine", "versions", "framework"),
    [
        ("mxnet", {"python": "3.11.7", "mxnet-cu112": "1.9.1"}, "MXNet 1.9.1"),
        ("pytorch", {"torch": "2.13.0", "mxnet": "1.9.1"}, "PyTorch 2.13.0"),
        ("reference", {"numpy": "1.26.4"}, "NumPy 1.26.4"),
        ("whose folder is gone", {"numpy": "1.26.4"}, "whose folder is gone"),
    ],
)
def test_a_row_says_which_engine_trained_it(engine: str, versions: dict[str, str], framework: str) -> None:
    row = rows.from_record(record_of(run={"framework": engine}, versions=versions))
    assert row.framework == framework
    # The note does where it is not the usual one.
    assert (framework in row.note) == (engine != "mxnet")


def test_speedups_of_a_measured_series() -> None:
    table = {row.run_id: row for row in collect(*RECORDS)}
    one, two = table["workers-1"], table["workers-2"]
    assert (one.speedup_throughput, one.efficiency_wall, two.scaling) == (1.0, 1.0, "weak")
    speedups = (two.speedup_throughput, two.efficiency_throughput, two.speedup_wall)
    assert speedups == pytest.approx((2.0, 1.0, 57.5 / 33.5))
    assert table["emulated"].speedup_throughput is None
    # In the Theano study's terms, which add up to a step of 0.4 s.
    parts = [getattr(two, f"{part}_seconds_per_5120") for part in ("train", "communication", "sync")]
    assert parts == pytest.approx([0.3 * 40, 0.06 * 40, 0.04 * 40])


def test_published_rows_stand_as_they_were_printed() -> None:
    source = [vars(row) for study in STUDIES for row in study.rows]
    table = [vars(row) for row in collect(*RECORDS) if row.origin == "published"]
    assert len(table) == len(source) == 186
    for row, printed in zip(table, source):
        filled = {name: cell for name, cell in printed.items() if cell not in (None, "")}
        assert {name: row[name] for name in filled} == filled
    name = "speedup_throughput"
    worked_out = {row["study"] for row, printed in zip(table, source) if row[name] != printed[name]}
    assert worked_out == {"beeva_poc_mxnet", "theano_mpi"}
    speedups = {row["printed"]: (row["speedup_throughput"], row["speedup_without_sync"]) for row in table}
    assert speedups["AlexNet_128b, t_8GPU"] == pytest.approx((3.27, 6.33), abs=0.005)
    assert speedups["128x8=1024 (lr=0.4) | 6800 (8-80%)"][0] == pytest.approx(6.18, abs=0.005)
    assert speedups["64x8 (lr=0.4)"][0] is None


def test_pandas_reads_every_row_of_rows_csv() -> None:
    collected = rows.collect(rows.ordered(RECORDS), STUDIES, prices.load({}))
    text = to_csv(collected)
    table = pd.read_csv(io.StringIO(text))
    assert list(table.columns[: len(DESIGN.split())]) == DESIGN.split()
    assert len(table) == len(RECORDS) + 186
    for name, field in COLUMNS.items():
        expected = [getattr(row, name) for row in collected]
        assert field.metadata["about"], name
        assert field.metadata.get("unit") == "s" or "seconds" not in name, name
        if field.type in ("Count", "Measure"):
            figures = [math.nan if figure is None else figure for figure in expected]
            assert table[name].tolist() == pytest.approx(figures, rel=1e-9, nan_ok=True), name
        else:
            assert table[name].fillna("").astype(str).tolist() == [str(text) for text in expected], name
    assert not re.search(r"(^|,)(nan|None|<NA>)(,|$)", text, re.MULTILINE)


def test_a_precision_is_said_and_makes_another_series() -> None:
    def row(**run: Any) -> Row:
        return rows.from_record(record_of(run=run))

    plain, short = row(), row(dtype="bfloat16")
    assert (plain.dtype, short.dtype) == ("float32", "bfloat16")
    assert plain.setting != short.setting
    # Records made before there was a choice are of the same series as those made since.
    assert row(dtype="float32", layout="NCHW").setting == plain.setting
    data = [{"name": "cifar10", "jitter": False, **place} for place in ({}, {"on_device": False}, {"on_device": True})]
    settings = [row(data=images).setting for images in data]
    assert settings[0] == settings[1] != settings[2]


def test_every_take_that_completed_is_a_row_and_what_completed_later_has_not_failed() -> None:
    slow = record_of(run_id="same", epoch_seconds=[8.0] * 6)
    fast = record_of(run_id="same", started="2026-11-22T10:00:00+00:00")
    broken = record_of(run_id="same", outcome="failed", reason="x", started="2026-11-21T15:00", **BLANK)
    elsewhere = record_of(run_id="same", infrastructure="another", epoch_seconds=[8.0] * 6)
    synthetic = record_of(run_id="same", dataset="synthetic", started="2026-11-24T10:00:00+00:00")
    table = collect(fast, synthetic, broken, elsewhere, slow)
    assert [(row.machine, row.dataset, row.started[8:10], row.repeat) for row in table if row.measured] == [
        ("another", "cifar10", "21", 1),
        ("test machine", "cifar10", "21", 1),
        ("test machine", "cifar10", "22", 2),
        ("test machine", "synthetic", "24", 1),
    ]
    later = replace(broken, started="2026-11-25T10:00")
    assert [row.outcome for row in collect(fast, later) if row.measured] == ["completed", "failed"]


def test_takes_on_other_images_are_of_another_setting_in_every_table() -> None:
    def on(checksum: str, hour: int, **changes: Any) -> Record:
        return record_of(started=f"2026-11-22T{hour:02}:00:00+00:00", data_checksum=checksum, **changes)

    several = [on(checksum, hour) for hour in (10, 11) for checksum in ("", "aaaa", "bbbb")]
    table = rows.collect(several, [])
    assert [row.repeat for row in table] == [1, 1, 1, 2, 2, 2]
    for grouping in (by_speed, by_run, by_accuracy):
        assert [[row.data_checksum for row in taken.rows][-1] for taken in grouping(table)] == ["", "aaaa", "bbbb"]
    assert all(len(taken.rows) == 2 for taken in by_run(table))
    assert len(alike(by_speed(table))) == 3
    assert unlike(table[1:3]) == ["images aaaa", "images bbbb"]
    # A run on several devices is held against one device on the same images.
    alone = [workers(1, [8.0] * 6, data_checksum=checksum) for checksum in ("aaaa", "bbbb")]
    (_, _, two) = rows.collect([*alone, workers(2, [2.0] * 6, data_checksum="aaaa")], [])
    (_, other) = rows.collect([alone[1], workers(2, [2.0] * 6, data_checksum="aaaa")], [])
    assert (two.speedup_throughput, other.speedup_throughput) == (pytest.approx(4.0), None)
    # What failed on some images has not completed later on others; of a skipped one nobody knows on which.
    lost = [on(checksum, 9, outcome=outcome, **BLANK) for checksum in ("aaaa", "") for outcome in ("failed", "skipped")]
    assert rows.shown([*lost, several[2]]) == [*lost[:2], several[2]]
    assert rows.shown([*lost, several[1]]) == [several[1]]


def test_a_share_is_of_the_best_peak_of_as_many_of_the_same_devices() -> None:
    changes: list[dict[str, Any]] = [{}, {}, {}, {"run": {"dtype": "bfloat16"}}, {"run": {"cores_per_worker": 1}}]
    changes += [{"hardware": {**TEST_CPU, "cores": 1}}, {"infrastructure": "another"}]
    peaks = (1e11, 4e11, None, 8e11, 3e11, 2e11, 9e11)
    table = collect(*(record_of(peak_flops=peak, **change) for peak, change in zip(peaks, changes)))[: len(peaks)]
    assert sorted(row.peak_flops for row in table) == [3e11, 3e11, 4e11, 4e11, 4e11, 8e11, 9e11]
    assert all(row.peak_share == row.flops / row.peak_flops for row in table)


def test_of_two_machines_that_began_the_same_run_at_once_each_pays_for_its_own_cards() -> None:
    machines = {"left": 1, "right": 8}
    began = [
        record_of(infrastructure=name, run={"kind": "gpu"}, hardware={**TEST_CPU, "gpus": [P100] * cards})
        for name, cards in machines.items()
    ]
    table = rows.collect(rows.ordered(began), [], prices.load({name: float(cards) for name, cards in machines.items()}))
    assert {row.machine: row.dollars_per_hour for row in table} == {"left": 1.0, "right": 1.0}


def test_the_parts_of_every_published_record_add_up_and_none_is_negative() -> None:
    for record in journal.read(journal.paths(HOME / "reference")):
        parts = record.split() or {}
        assert math.fsum(parts.values()) == pytest.approx(record.wall or 0.0)
        assert all(seconds >= -1e-6 for seconds in parts.values()), record.run_id


def test_a_training_on_fewer_threads_than_cores_is_a_setting_of_its_own() -> None:
    """On two cores, as another process kept one of them busy when it began."""
    records = [record_of(threads=threads, run_id=f"run{number}") for number, threads in enumerate((2, 1, 2))]
    measured = by_run(rows.collect(records, []))
    assert sorted((devices_of(one.row), len(one.rows)) for one in measured) == [
        ("CPU, 1 of 2 cores", 1),
        ("CPU, 2 cores", 2),
    ]
    bound = record_of(threads=1, run={"cores_per_worker": 1})
    assert (bound.fewer_threads, devices_of(rows.from_record(bound))) == (None, "CPU, 1 core")


@pytest.mark.parametrize(("accuracy", "chance"), [(0.1, True), (0.108, True), (0.12, False), (0.75, False)])
def test_an_accuracy_no_better_than_chance_is_marked(accuracy: float, chance: bool) -> None:
    """Of 9,000 images in ten classes, where a standard error of guessing is 0.0032."""
    record = record_of(accuracies=(accuracy,) * 6)
    assert ("chance" in record.in_words(), "chance" in rows.from_record(record).note) == (chance, chance)
    assert not record_of(accuracies=(0.1,), run={"steps": 55}).at_chance  # cut off within an epoch
