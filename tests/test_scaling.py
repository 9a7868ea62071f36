"""Speed-ups with answers known beforehand, and what must hold for any rows whatever."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poc import studies
from poc.records.timing import PARTS
from poc.report import scaling
from poc.report.scaling import Estimate


def row(**fields: Any) -> dict[str, Any]:
    """A measured run: 1,000 samples at 100 samples/s, 2 s to start, and nothing else."""
    devices = fields.get("devices", 1)
    base = {
        "origin": "measured",
        "infrastructure": "here",
        "network": "net",
        "setting": "s",
        "outcome": "completed",
        "virtual": False,
        "quick": False,
        "scaling": "",
        "devices": 1,
        "batch_per_device": 64,
        "total_batch": fields.get("batch_per_device", 64) * devices,
        "learning_rate": 0.1 * devices,
        "exchange": "dist_sync" if devices > 1 else "",
        "samples_per_second": 100.0,
        "samples_trained": 1000,
        "warmup_samples": 0,
        "usual_wait_per_sample": 0.0,
        **{f"{part}_seconds": 0.0 for part in PARTS},
        "initialise_seconds": 2.0,
        "train_seconds": 10.0,
        "wall_seconds": 12.0,
    }
    return {**base, **fields}


def two(**fields: Any) -> dict[str, Any]:
    """The same work on two devices, trained twice as fast, started no faster."""
    return row(**{"devices": 2, "samples_per_second": 200.0, "train_seconds": 5.0, "wall_seconds": 7.0, **fields})


def printed(study: str) -> list[dict[Any, Any]]:
    table = studies.load()
    found: list[dict[Any, Any]] = table[table["study"] == study].to_dict("records")
    return found


def speedup_of(rows: list[dict[Any, Any]], cell: str, hardware: str = "") -> tuple[scaling.Series, Any]:
    """The series that the row of this cell is in, and that row."""
    found = [
        (series, one)
        for series in scaling.series(rows)
        for one in series.rows
        if one["printed"].split(" | ")[0] == cell and hardware in one["hardware"]
    ]
    assert len(found) == 1
    return found[0]


def test_theano_alexnet_on_eight_without_and_with_synchronisation() -> None:
    series, eight = speedup_of(printed("theano_mpi"), "AlexNet_128b, t_8GPU")
    assert series.kind == "weak"
    assert scaling.without_sync(series.alone, eight) == pytest.approx(20.50 / 3.24)
    assert scaling.without_sync(series.alone, eight) == pytest.approx(6.33, abs=0.005)
    assert scaling.by_throughput(series.alone, eight) == pytest.approx(3.27, abs=0.005)


def test_all_of_theano_agrees_with_the_study_s_own_way() -> None:
    table = studies.load()
    apart = studies.speedups(table).set_index("printed")
    found = {one["printed"]: (series, one) for series in scaling.series(printed("theano_mpi")) for one in series.rows}
    assert len(found) == 16
    for text, (series, one) in found.items():
        assert scaling.without_sync(series.alone, one) == pytest.approx(apart.at[text, "speedup_without_sync"])
        assert scaling.by_throughput(series.alone, one) == pytest.approx(apart.at[text, "speedup_with_sync"])


def test_the_main_study_s_series() -> None:
    rows = printed("beeva_poc_mxnet")
    series, eight = speedup_of(rows, "128x8=1024 (lr=0.4)", "K80")
    assert scaling.by_throughput(series.alone, eight) == pytest.approx(6800 / 1100)
    assert scaling.by_epoch_time(series.alone, eight) == pytest.approx(44.7 / 7.1)
    assert scaling.by_wall(series.alone, eight) is None
    # Of the two rows on one GPU, the one whose learning rate grows to this one's.
    series, eight = speedup_of(rows, "512x8 (lr=3.2)", "K80")
    assert [one["printed"] for one in series.alone] == ["512x1 (lr=0.4)"]
    # 64 x 1 has no throughput, P100's 512 x 8 no row on one GPU, and a CPU is no device of a series.
    texts = [one["printed"] for series in scaling.series(rows) for one in (*series.alone, *series.rows)]
    assert not any(text.startswith(("64x", "512x8=4096", "256 (", "512 (")) for text in texts)
    assert len(texts) == 4 + 4 + 2 + 4 + 4


def test_no_speedup_without_a_row_on_one_device() -> None:
    assert scaling.series([two(), row(devices=4)]) == []
    assert scaling.series([row(virtual=True), two()]) == []
    assert scaling.series([row(quick=True), two()]) == []
    assert scaling.series([row(outcome="failed"), two()]) == []
    assert scaling.series([row(infrastructure="elsewhere"), two()]) == []
    assert scaling.series([row(learning_rate=0.15), two()]) == []
    assert scaling.series([row(setting="other"), two()]) == []


def test_weak_and_strong_share_their_row_on_one_device_and_nothing_else() -> None:
    alone, weak = row(), two()
    strong = row(devices=2, batch_per_device=32, learning_rate=0.1)
    found = scaling.series([alone, weak, strong])
    assert [(one.kind, one.batch, list(one.rows)) for one in found] == [("weak", 64, [weak]), ("strong", 64, [strong])]


def test_exchanges_are_series_of_their_own() -> None:
    found = scaling.series([row(), two(exchange="dist_sync"), two(exchange="horovod")])
    assert [[one["exchange"] for one in series.rows] for series in found] == [["dist_sync"], ["horovod"]]


def test_repeats_on_one_device_are_averaged() -> None:
    series = scaling.series([row(), row(samples_per_second=50.0, wall_seconds=24.0), two()])
    assert len(series) == 1
    # 15 ms a sample on the mean, 5 ms on two devices.
    assert scaling.by_throughput(series[0].alone, series[0].rows[0]) == pytest.approx(3.0)
    assert scaling.by_wall(series[0].alone, series[0].rows[0]) == pytest.approx(18 / 7)


def test_speedup_by_wall_time_is_of_the_same_work_only() -> None:
    assert scaling.by_wall([row()], two()) == pytest.approx(12 / 7)
    # A remainder of an epoch is made good for each sample.
    assert scaling.by_wall([row()], two(samples_trained=980)) == pytest.approx(12 / 7 * 0.98)
    assert scaling.by_wall([row()], two(samples_trained=2000)) is None
    assert scaling.by_wall([row(wall_seconds=None)], two()) is None
    assert scaling.by_wall([row(wall_seconds=math.nan)], two()) is None
    assert scaling.efficiency(12 / 7, 2) == pytest.approx(6 / 7)
    assert scaling.efficiency(None, 2) is None


def test_the_difference_between_both_speedups_is_the_start_that_got_no_faster() -> None:
    found = scaling.reconcile([row()], two())
    assert found is not None
    assert (found.by_throughput, found.by_wall) == (pytest.approx(2.0), pytest.approx(12 / 7))
    assert found.parts.pop("initialise") == pytest.approx(2 / 7)
    assert all(abs(part) < 1e-12 for part in found.parts.values())


def test_usual_waiting_is_in_throughput_already() -> None:
    # 9 ms of training and 1 ms of waiting for each of 1,000 samples, and one wait of 3 s more.
    waiting = row(usual_wait_per_sample=0.001, train_seconds=9.0, data_seconds=4.0, wall_seconds=15.0)
    unseen = scaling.unseen(waiting)
    assert unseen is not None
    assert {part: seconds for part, seconds in unseen.items() if abs(seconds) > 1e-12} == {
        "initialise": pytest.approx(0.002),
        "data": pytest.approx(0.003),
    }


@st.composite
def timed_rows(draw: Any, **fields: Any) -> dict[str, Any]:
    parts = {f"{part}_seconds": draw(st.floats(0.001, 1000)) for part in PARTS}
    rate = draw(st.floats(1, 1e4))
    samples = draw(st.integers(960, 1000))
    return row(
        **fields,
        **parts,
        wall_seconds=math.fsum(parts.values()),
        samples_per_second=rate,
        samples_trained=samples,
        warmup_samples=draw(st.integers(0, samples)),
        usual_wait_per_sample=draw(st.floats(0, 1)) / rate,
    )


@given(st.lists(timed_rows(), min_size=1, max_size=3), timed_rows(devices=2))
def test_parts_add_up_to_the_whole_difference(alone: list[dict[str, Any]], other: dict[str, Any]) -> None:
    found = scaling.reconcile(alone, other)
    assert found is not None
    largest = max(found.by_throughput, found.by_wall, *map(abs, found.parts.values()))
    assert found.by_throughput - math.fsum(found.parts.values()) == pytest.approx(found.by_wall, abs=1e-9 * largest)
    assert set(found.parts) == set(PARTS)


any_rows = st.builds(
    lambda devices, batch, rate, **fields: row(
        devices=devices, batch_per_device=batch, total_batch=devices * batch, learning_rate=rate, **fields
    ),
    devices=st.sampled_from([1, 2, 4]),
    batch=st.sampled_from([32, 64, 128]),
    rate=st.sampled_from([0.1, 0.2, 0.4]),
    virtual=st.booleans(),
    quick=st.booleans(),
    infrastructure=st.sampled_from(["here", "there"]),
    dataset=st.sampled_from(["cifar10", "synthetic"]),
    exchange=st.sampled_from(["", "device"]),
)


@given(st.lists(any_rows, max_size=12))
def test_a_series_never_mixes(rows: list[dict[str, Any]]) -> None:
    for series in scaling.series(rows):
        members = [*series.alone, *series.rows]
        held = "batch_per_device" if series.kind == "weak" else "total_batch"
        assert {one[held] for one in members} == {series.batch}
        assert all(one["devices"] == 1 for one in series.alone)
        assert all(one["devices"] > 1 for one in series.rows)
        assert not any(one["virtual"] or one["quick"] for one in members)
        assert len({(one["infrastructure"], one["dataset"]) for one in members}) == 1
        assert len({one["exchange"] for one in series.rows}) == 1
        for one in series.rows:
            allowed = {one["learning_rate"], one["learning_rate"] / one["devices"]}
            for base in series.alone:
                assert any(math.isclose(base["learning_rate"], rate) for rate in allowed)
            if series.kind == "strong":
                assert {base["learning_rate"] for base in series.alone} == {one["learning_rate"]}


def test_what_pandas_calls_missing_is_missing() -> None:
    for missing in (None, math.nan, pd.NA, ""):
        assert scaling.known({"x": missing}, "x") is None
    frame = pd.DataFrame([{"x": 3}, {"x": None}]).astype("Int64")
    assert [scaling.known(one, "x") for one in frame.to_dict("records")] == [3.0, None]
    assert scaling.known({}, "x") is None


def test_difference_and_noise() -> None:
    # Welch with equal spreads and three each has four degrees of freedom: 2.776 x sqrt(1/3 + 1/3).
    three = scaling.difference(Estimate(mean=10, spread=1, n=3), Estimate(mean=8, spread=1, n=3))
    assert (three.value, three.margin) == (2, pytest.approx(2.776 * math.sqrt(2 / 3)))
    assert three.within_noise is True
    four = scaling.difference(Estimate(mean=10, spread=1, n=4), Estimate(mean=8, spread=1, n=4))
    assert four.margin == pytest.approx(2.447 * math.sqrt(1 / 2))
    assert four.within_noise is False
    many = scaling.difference(Estimate(mean=1, spread=1, n=500), Estimate(mean=1, spread=1, n=500))
    assert many.margin == pytest.approx(1.960 * math.sqrt(2 / 500))


def test_one_measurement_says_nothing_of_noise() -> None:
    found = scaling.difference(Estimate(mean=10, spread=0, n=1), Estimate(mean=8, spread=1, n=3))
    assert (found.value, found.margin, found.within_noise) == (2, None, None)


estimates = st.builds(Estimate, mean=st.floats(-1e6, 1e6), spread=st.floats(0, 1e6), n=st.integers(2, 100))


@given(estimates, estimates)
def test_difference_does_not_depend_on_the_order(a: Estimate, b: Estimate) -> None:
    one, other = scaling.difference(a, b), scaling.difference(b, a)
    assert one.value == -other.value
    assert one.margin == pytest.approx(other.margin)
    assert one.within_noise == other.within_noise
