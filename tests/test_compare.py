"""Speed-ups with answers known beforehand, and what must hold for any rows whatever."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poc import studies
from poc.records.timing import PARTS
from poc.report import compare
from poc.report.compare import Estimate
from poc.studies.row import MEASURED, Row


def row(**fields: Any) -> Row:
    """A measured run: 1,000 samples at 100 samples/s, 2 s to start, and nothing else."""
    devices, batch = fields.get("devices", 1), fields.get("batch_per_device", 64)
    base: dict[str, Any] = dict(infrastructure="here", network="net", setting="s", outcome="completed", devices=1)
    base.update(batch_per_device=batch, total_batch=batch * devices, learning_rate=0.1 * devices)
    base.update(exchange="dist_sync" if devices > 1 else "", samples_per_second=100.0, samples_trained=1000)
    base.update({f"{part}_seconds": 0.0 for part in PARTS}, warmup_samples=0, usual_wait_per_sample=0.0)
    base.update(initialise_seconds=2.0, train_seconds=10.0, wall_seconds=12.0)
    return Row(origin=MEASURED, **{**base, **fields})


def two(**fields: Any) -> Row:
    """The same work on two devices, trained twice as fast, started no faster."""
    return row(**{"devices": 2, "samples_per_second": 200.0, "train_seconds": 5.0, "wall_seconds": 7.0, **fields})


def printed(name: str) -> list[Row]:
    (study,) = (study for study in studies.load() if study.name == name)
    return list(study.rows)


def test_speedups_of_all_of_theano() -> None:
    """By hand: seconds on one device over those on several, with the time that workers wait for one another or not."""

    def seconds(row: Row) -> float:
        assert row.train_seconds_per_5120 is not None
        return row.train_seconds_per_5120 + (row.communication_seconds_per_5120 or 0)

    members = [(series, row) for series in compare.series(printed("theano_mpi")) for row in series.rows]
    assert len(members) == 16
    for series, row in members:
        (alone,) = series.alone
        with_sync = seconds(row) + (row.sync_seconds_per_5120 or 0)
        assert series.kind == "weak"
        assert compare.without_sync(series.alone, row) == pytest.approx(seconds(alone) / seconds(row))
        assert compare.by_throughput(series.alone, row) == pytest.approx(seconds(alone) / with_sync)


def test_the_main_study_s_series() -> None:
    rows = printed("beeva_poc_mxnet")
    members = [(series, row) for series in compare.series(rows) for row in series.rows if "K80" in row.hardware]
    of = {row.printed.split(" | ")[0]: (series, row) for series, row in members}
    series, eight = of["128x8=1024 (lr=0.4)"]
    assert compare.by_throughput(series.alone, eight) == pytest.approx(6800 / 1100)
    assert compare.by_epoch_time(series.alone, eight) == pytest.approx(44.7 / 7.1)
    assert compare.by_wall(series.alone, eight) is None
    # Of the two rows on one GPU, the one whose learning rate grows to this one's.
    series, eight = of["512x8 (lr=3.2)"]
    assert [one.printed for one in series.alone] == ["512x1 (lr=0.4)"]
    # 64 x 1 has no throughput, P100's 512 x 8 no row on one GPU, and a CPU is no device of a series.
    texts = [one.printed for series in compare.series(rows) for one in (*series.alone, *series.rows)]
    assert not any(text.startswith(("64x", "512x8=4096", "256 (", "512 (")) for text in texts)
    assert len(texts) == 4 + 4 + 2 + 4 + 4


def test_no_speedup_without_a_row_on_one_device() -> None:
    no_match = [row(virtual=True), row(quick=True), row(outcome="failed"), row(infrastructure="elsewhere")]
    for other in [row(devices=4), *no_match, row(learning_rate=0.15), row(setting="other")]:
        assert compare.series([other, two()]) == [], other


def test_weak_and_strong_share_their_row_on_one_device_and_nothing_else() -> None:
    alone, weak = row(), two()
    strong = row(devices=2, batch_per_device=32, learning_rate=0.1)
    found = compare.series([alone, weak, strong])
    assert [(one.kind, one.batch, list(one.rows)) for one in found] == [("weak", 64, [weak]), ("strong", 64, [strong])]
    # As are series of another exchange.
    found = compare.series([row(), two(exchange="dist_sync"), two(exchange="horovod")])
    assert [[row.exchange for row in series.rows] for series in found] == [["dist_sync"], ["horovod"]]


def test_repeats_on_one_device_are_averaged() -> None:
    (series,) = compare.series([row(), row(samples_per_second=50.0, wall_seconds=24.0), two()])
    # 15 ms a sample on the mean, 5 ms on two devices.
    assert compare.by_throughput(series.alone, series.rows[0]) == pytest.approx(3.0)
    assert compare.by_wall(series.alone, series.rows[0]) == pytest.approx(18 / 7)


def test_speedup_by_wall_time_is_of_the_same_work_only() -> None:
    assert compare.by_wall([row()], two()) == pytest.approx(12 / 7)
    # A remainder of an epoch is made good for each sample.
    assert compare.by_wall([row()], two(samples_trained=980)) == pytest.approx(12 / 7 * 0.98)
    assert compare.by_wall([row()], two(samples_trained=2000)) is None
    assert compare.by_wall([row(wall_seconds=None)], two()) is None
    assert compare.efficiency(12 / 7, 2) == pytest.approx(6 / 7)
    assert compare.efficiency(None, 2) is None


def test_the_difference_between_both_speedups_is_the_start_that_got_no_faster() -> None:
    found = compare.reconcile([row()], two())
    assert found is not None
    assert (found.by_throughput, found.by_wall) == (pytest.approx(2.0), pytest.approx(12 / 7))
    assert found.parts == pytest.approx({**dict.fromkeys(PARTS, 0.0), "initialise": 2 / 7})


def test_usual_waiting_is_in_throughput_already() -> None:
    # 9 ms of training and 1 ms of waiting for each of 1,000 samples, and one wait of 3 s more.
    waiting = row(usual_wait_per_sample=0.001, train_seconds=9.0, data_seconds=4.0, wall_seconds=15.0)
    assert compare.unseen(waiting) == pytest.approx({**dict.fromkeys(PARTS, 0.0), "initialise": 0.002, "data": 0.003})


@st.composite
def timed_rows(draw: Any, **fields: Any) -> Row:
    parts = {f"{part}_seconds": draw(st.floats(0.001, 1000)) for part in PARTS}
    rate, samples = draw(st.floats(1, 1e4)), draw(st.integers(960, 1000))
    work = dict(samples_per_second=rate, samples_trained=samples, warmup_samples=draw(st.integers(0, samples)))
    wait = draw(st.floats(0, 1)) / rate
    return row(**fields, **parts, **work, wall_seconds=math.fsum(parts.values()), usual_wait_per_sample=wait)


@given(st.lists(timed_rows(), min_size=1, max_size=3), timed_rows(devices=2))
def test_parts_add_up_to_the_whole_difference(alone: list[Row], other: Row) -> None:
    found = compare.reconcile(alone, other)
    assert found is not None
    largest = max(found.by_throughput, found.by_wall, *map(abs, found.parts.values()))
    assert found.by_throughput - math.fsum(found.parts.values()) == pytest.approx(found.by_wall, abs=1e-9 * largest)
    assert set(found.parts) == set(PARTS)


any_rows = st.builds(
    row,
    devices=st.sampled_from([1, 2, 4]),
    batch_per_device=st.sampled_from([32, 64, 128]),
    learning_rate=st.sampled_from([0.1, 0.2, 0.4]),
    virtual=st.booleans(),
    quick=st.booleans(),
    infrastructure=st.sampled_from(["here", "there"]),
    dataset=st.sampled_from(["cifar10", "synthetic"]),
    exchange=st.sampled_from(["", "device"]),
)


@given(st.lists(any_rows, max_size=12))
def test_a_series_never_mixes(rows: list[Row]) -> None:
    for series in compare.series(rows):
        members = [*series.alone, *series.rows]
        held = "batch_per_device" if series.kind == "weak" else "total_batch"
        assert {getattr(one, held) for one in members} == {series.batch}
        assert all(one.devices == 1 for one in series.alone)
        assert all(one.devices > 1 for one in series.rows)
        assert not any(one.virtual or one.quick for one in members)
        assert len({(one.infrastructure, one.dataset) for one in members}) == 1
        assert len({one.exchange for one in series.rows}) == 1
        for one in series.rows:
            allowed = {one.learning_rate, one.learning_rate / one.devices}
            for base in series.alone:
                assert any(math.isclose(base.learning_rate, rate) for rate in allowed)
            if series.kind == "strong":
                assert {base.learning_rate for base in series.alone} == {one.learning_rate}


@pytest.mark.parametrize(
    ("n", "margin", "within_noise"),
    [
        # Welch with equal spreads and three each has four degrees of freedom.
        (3, 2.776445 * math.sqrt(1 / 3 + 1 / 3), True),
        (4, 2.446912 * math.sqrt(1 / 2), False),
        (500, 1.962344 * math.sqrt(2 / 500), False),
        # One measurement says nothing of noise.
        (1, None, None),
    ],
)
def test_difference_and_noise(n: int, margin: float | None, within_noise: bool | None) -> None:
    ten = Estimate(mean=10, spread=1 if n > 1 else 0, n=n)
    difference = compare.difference(ten, Estimate(mean=8, spread=1, n=max(n, 3)))
    assert (difference.value, difference.within_noise) == (2, within_noise)
    assert difference.margin == (None if margin is None else pytest.approx(margin))


estimates = st.builds(Estimate, mean=st.floats(-1e6, 1e6), spread=st.floats(0, 1e6), n=st.integers(2, 100))


@given(estimates, estimates)
def test_difference_does_not_depend_on_the_order(a: Estimate, b: Estimate) -> None:
    one, other = compare.difference(a, b), compare.difference(b, a)
    assert one.value == -other.value
    assert one.margin == pytest.approx(other.margin)
    assert one.within_noise == other.within_noise
