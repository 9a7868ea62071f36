"""Speed-ups with answers known beforehand, and what must hold for any rows whatever."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poc import studies
from poc.records import journal
from poc.records.timing import PARTS
from poc.report import compare, rows
from poc.report.measurements import by_speed
from poc.studies.row import MEASURED, Row
from tests.launch import HOME


def row(**fields: Any) -> Row:
    """A measured run: 1,000 samples at 100 samples/s, 2 s to start, and nothing else."""
    devices, batch = fields.get("devices", 1), fields.get("batch_per_device", 64)
    base: dict[str, Any] = dict(machine="here", model="net", setting="s", outcome="completed", devices=1)
    base.update(batch_per_device=batch, global_batch=batch * devices, lr=0.1 * devices)
    base.update(kvstore="dist_sync" if devices > 1 else "", samples_per_second=100.0, samples_trained=1000)
    base.update({f"{part}_seconds": 0.0 for part in PARTS})
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


def test_a_row_without_samples_a_second_and_with_no_seconds_has_no_rate() -> None:
    assert compare.rate(row(samples_per_second=None, train_seconds_per_5120=0.0)) is None


def test_the_main_study_s_series() -> None:
    study = printed("beeva_poc_mxnet")
    members = [(series, row) for series in compare.series(study) for row in series.rows if "K80" in row.hardware]
    of = {row.printed.split(" | ")[0]: (series, row) for series, row in members}
    series, eight = of["128x8=1024 (lr=0.4)"]
    assert compare.by_throughput(series.alone, eight) == pytest.approx(6800 / 1100)
    assert compare.by_wall(series.alone, eight) is None
    # Of the two rows on one GPU, the one whose learning rate grows to this one's.
    series, eight = of["512x8 (lr=3.2)"]
    assert [one.printed for one in series.alone] == ["512x1 (lr=0.4)"]
    # 64 x 1 has no throughput, P100's 512 x 8 no row on one GPU, its 256 x 1 none that agrees with itself, and a CPU is
    # no device of a series.
    texts = [one.printed for series in compare.series(study) for one in (*series.alone, *series.rows)]
    assert not any(text.startswith(("64x", "512x8=4096", "256 (", "512 (")) for text in texts)
    assert len(texts) == 4 + 4 + 2 + 4


def test_no_speedup_without_a_row_on_one_device() -> None:
    no_match = [row(emulated=True), row(quick=True), row(outcome="failed"), row(machine="elsewhere")]
    for other in [row(devices=4), *no_match, row(lr=0.15), row(setting="other")]:
        assert compare.series([other, two()]) == [], other


def test_weak_and_strong_share_their_row_on_one_device_and_nothing_else() -> None:
    alone, weak = row(), two()
    strong = row(devices=2, batch_per_device=32, lr=0.1)
    found = compare.series([alone, weak, strong])
    assert [(one.kind, one.batch, list(one.rows)) for one in found] == [("weak", 64, [weak]), ("strong", 64, [strong])]
    # As are series of another kvstore.
    found = compare.series([row(), two(kvstore="dist_sync"), two(kvstore="horovod")])
    assert [[row.kvstore for row in series.rows] for series in found] == [["dist_sync"], ["horovod"]]


def test_repeats_on_one_device_are_averaged() -> None:
    (series,) = compare.series([row(), row(samples_per_second=50.0, wall_seconds=24.0), two()])
    # 15 ms a sample on the mean, 5 ms on two devices.
    assert compare.by_throughput(series.alone, series.rows[0]) == pytest.approx(3.0)
    assert compare.by_wall(series.alone, series.rows[0]) == pytest.approx(18 / 7)
    (calm,) = compare.series([row(), row(samples_per_second=50.0, wall_seconds=24.0, disturbed=True), two()])
    assert [base.disturbed for base in calm.alone] == [False]
    (busy,) = compare.series([row(disturbed=True), two()])
    assert len(busy.alone) == 1


def test_speedup_by_wall_time_is_of_the_same_work_only() -> None:
    assert compare.by_wall([row()], two()) == pytest.approx(12 / 7)
    # A remainder of an epoch is made good for each sample.
    assert compare.by_wall([row()], two(samples_trained=980)) == pytest.approx(12 / 7 * 0.98)
    assert compare.by_wall([row()], two(samples_trained=2000)) is None
    assert compare.by_wall([row(wall_seconds=None)], two()) is None


any_rows = st.builds(
    row,
    devices=st.sampled_from([1, 2, 4]),
    batch_per_device=st.sampled_from([32, 64, 128]),
    lr=st.sampled_from([0.1, 0.2, 0.4]),
    emulated=st.booleans(),
    quick=st.booleans(),
    machine=st.sampled_from(["here", "there"]),
    dataset=st.sampled_from(["cifar10", "synthetic"]),
    kvstore=st.sampled_from(["", "device"]),
)


@given(st.lists(any_rows, max_size=12))
def test_a_series_never_mixes(several: list[Row]) -> None:
    for series in compare.series(several):
        members = [*series.alone, *series.rows]
        held = "batch_per_device" if series.kind == "weak" else "global_batch"
        assert {getattr(one, held) for one in members} == {series.batch}
        assert all(one.devices == 1 for one in series.alone)
        assert all(one.devices > 1 for one in series.rows)
        assert not any(one.emulated or one.quick for one in members)
        assert len({(one.machine, one.dataset) for one in members}) == 1
        assert len({one.kvstore for one in series.rows}) == 1
        for one in series.rows:
            allowed = {one.lr, one.lr / one.devices}
            for base in series.alone:
                assert any(math.isclose(base.lr, rate) for rate in allowed)
            if series.kind == "strong":
                assert {base.lr for base in series.alone} == {one.lr}


@pytest.mark.parametrize(
    ("a", "b", "differs", "margin"),
    [
        # By hand: means of logarithms 0.2 apart, standard deviations of 0.1, so 2.776 x 0.0816 = 0.227 of margin.
        ((0.9, 1.0, 1.1), (1.1, 1.2, 1.3), False, 2.776445 * math.sqrt(0.01 / 3 + 0.01 / 3)),
        ((0.99, 1.0, 1.01), (1.19, 1.2, 1.21), True, None),
        # Takes that do not differ at all.
        ((1.0, 1.0, 1.0), (2.0, 2.0, 2.0), True, 0.0),
        ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), False, 0.0),
        # However far apart: two takes on one side bear no verdict.
        ((1.0, 1.001), (2.0, 2.001, 2.002), None, None),
        ((1.0,), (9.0,), None, None),
    ],
)
def test_a_verdict_takes_three_takes_on_either_side(
    a: tuple[float, ...], b: tuple[float, ...], differs: bool | None, margin: float | None
) -> None:
    sides = [[math.exp(logarithm) for logarithm in side] for side in (a, b)]
    one, other = compare.verdict(*sides), compare.verdict(*reversed(sides))
    assert one.differs is other.differs is differs
    assert one.ratio == pytest.approx(math.exp(sum(a) / len(a) - sum(b) / len(b)))
    assert one.ratio == pytest.approx(1 / other.ratio)
    if margin is not None:
        assert one.low is not None
        assert math.log(one.ratio / one.low) == pytest.approx(margin)


def called_different(takes: Sequence[float]) -> tuple[int, int]:
    """Of all ways to part these takes of one setting into halves: in how many the halves are called different."""
    numbers = range(len(takes))
    parts = list(itertools.combinations(numbers, len(takes) // 2))
    halves = [[[takes[n] for n in numbers if (n in part) == side] for side in (True, False)] for part in parts]
    return sum(bool(compare.verdict(*both).differs) for both in halves), len(parts)


def test_repeats_of_one_setting_in_the_journal_are_not_called_different() -> None:
    records = journal.read(journal.paths(HOME / "reference"))
    measured = by_speed(rows.from_record(record) for record in records)
    repeated = [taken.rate.values for taken in measured if taken.rate and taken.rate.n > 1]
    assert len(repeated) > 10
    different, compared = map(sum, zip(*map(called_different, repeated)))
    assert different <= 0.05 * compared


def test_simulated_repeats_are_not_called_different() -> None:
    """Windows of a run are correlated as measured here (lag 1: 0.52), runs differ by 14%: page after page of noise."""
    random = np.random.default_rng(0)
    called = 0
    for _ in range(400):
        takes = np.exp(random.normal(0, 0.14, 6))
        windows = random.normal(0, 0.05, (6, 60))
        for step in range(1, 60):
            windows[:, step] += 0.52 * windows[:, step - 1]
        rates = takes * np.exp(np.median(windows, axis=1))
        called += bool(compare.verdict(list(rates[:3]), list(rates[3:])).differs)
    assert called <= 0.05 * 400
