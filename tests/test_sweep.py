"""What a plan will take: its order, estimates that learn, a bound that holds; and what machines cost."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import pytest

from poc import Recipe, published
from poc.config.datasets import DataId
from poc.plan import Planned, plan
from poc.published import prices
from poc.published.prices import Prices
from poc.records import journal
from poc.run import checkpoint, schedule, workload
from poc.run.schedule import DoneRepeats, RuntimeEstimator
from poc.run.sweep import Sweep, run_sweep
from poc.values import UserError
from tests.builders import MACHINE, SMALL, place_in, record_of, run_of


def planned(seconds: float, **fields: Any) -> Planned:
    return Planned(run=run_of(**fields), seconds=seconds)


def test_the_lowest_priority_goes_first_and_in_it_short_runs_before_long_ones_as_written() -> None:
    given = [("a", 5, 60.0), ("b", 5, 7200.0), ("c", 5, 30.0), ("d", 1, 7200.0), ("e", 1, 90.0), ("f", 5, 600.0)]
    items = [
        (name, name, dataclasses.replace(planned(seconds), priority=priority)) for name, priority, seconds in given
    ]
    assert "".join(name for name, *_ in schedule.in_order(items)) == "edacfb"


def test_estimates_follow_what_was_measured_here(tmp_path: Path) -> None:
    place = dataclasses.replace(place_in(tmp_path), until=time.monotonic() + 1000)
    run = record_of().run
    usual = RuntimeEstimator(place, []).seconds(Planned(run=run, seconds=400.0))
    assert usual == 400.0
    estimated = schedule.estimate(run, record_of().hardware)
    slow = [record_of(wall=factor * estimated) for factor in (2.0, 3.0, 10.0)]
    other = [record_of(wall=50 * estimated, outcome="failed"), record_of(wall=0.5 * estimated, run={"model": "vgg16"})]
    pace = RuntimeEstimator(place, [*slow, *other])
    assert pace.factor(run) == pytest.approx(5.0)
    item = Planned(run=run, seconds=400.0)
    assert not pace.fits(item)
    # What was begun counts from its checkpoint on, and goes on though it does not fit.
    folder = place.checkpoints_of(run)
    checkpoint.write(folder, 0, checkpoint.Checkpoint(step=run.steps // 4, arrays={}, story={}))
    assert pace.seconds(item) == pytest.approx(1500.0)
    assert pace.fits(Planned(run=run, seconds=4000.0))
    assert not RuntimeEstimator(dataclasses.replace(place, until=time.monotonic() + 5), []).fits(item)
    # What a whole run has left is of no use to another take.
    checkpoint.write(folder, 0, checkpoint.Checkpoint(step=run.steps, arrays={}, story={}))
    assert pace.seconds(item) == pytest.approx(2000.0)
    assert not pace.fits(item)


def test_what_a_bound_leaves() -> None:
    assert schedule.bound(10.0, None, None, 3.0) == math.inf
    assert schedule.bound(10.0, 2.0, None, None) == 7210.0
    assert schedule.bound(10.0, 2.0, 1.5, 3.0) == 1810.0


def test_each_recipe_has_a_line_and_a_run_of_two_counts_once(tmp_path: Path) -> None:
    one, two = planned(1800.0), planned(3600.0, lr=0.02)
    skipped = dataclasses.replace(planned(9.0, lr=0.03), skip="why")
    items = [("a", "", one), ("a", "", two), ("b", "", two), ("b", "", skipped)]
    done = DoneRepeats([dataclasses.replace(record_of(), run=one.run)], {})
    summary = workload.summed_up(items, done, RuntimeEstimator(place_in(tmp_path), []), 7.2)
    assert summary.recipes == (workload.Totals(recipe="a", runs=2, done=1, seconds=3600.0),)
    assert (summary.runs, summary.done, summary.seconds, summary.dollars) == (2, 1, 3600.0, 7.2)
    assert summary.skipped == {"why": 1}
    assert [line.split() for line in str(summary).splitlines()[2:3]] == [["a", "2", "1", "60", "min"]]
    assert "$7.20" in str(summary)
    unpriced = workload.summed_up(items, DoneRepeats([], {}), RuntimeEstimator(place_in(tmp_path), []), None)
    assert unpriced.dollars is None
    assert "$" not in str(unpriced)
    # What another recipe runs is not skipped.
    again = dataclasses.replace(two, skip="why not")
    assert workload.skipped([*items, ("c", "", again)]) == {"why": 1}


def test_reasons_that_differ_only_in_numbers_are_counted_as_one() -> None:
    reasons = [
        *(f"needs {count} GPUs, this machine has none" for count in (4, 2, 8, 2)),
        *(f"needs about {size} GiB of memory, this machine has 24: take less" for size in ("30.5", "9")),
        *(f"model resnet{size}_v2 is not MXNet 1.9.1's" for size in (20, 56)),
    ]
    runs = [planned(1.0, lr=0.01 * number) for number in range(1, 9)]
    items = [("r", "", dataclasses.replace(item, skip=reason)) for item, reason in zip(runs, reasons)]
    assert workload.skipped(items) == {
        "needs 2 to 8 GPUs, this machine has none": 4,
        "needs about 9 to 30.5 GiB of memory, this machine has 24: take less": 2,
        "model resnet20_v2 is not MXNet 1.9.1's": 1,
        "model resnet56_v2 is not MXNet 1.9.1's": 1,
    }


def test_a_search_is_over_once_its_largest_batch_is_trained_and_the_next_is_known_not_to_fit() -> None:
    sizes = [(run_of(batch_per_device=size, epochs=1), run_of(batch_per_device=size, epochs=2)) for size in (8, 16, 32)]
    item = Planned(run=sizes[-1][1], search=tuple(sizes))

    def over(*told: tuple[int, int, str]) -> bool:
        records = [dataclasses.replace(record_of(), run=sizes[a][b], outcome=how) for a, b, how in told]
        return DoneRepeats(records, {}).over(item)

    done, full = "completed", "out of memory"
    # Another recipe has trained with the smallest one.
    assert not over((0, 1, done))
    assert not over((0, 1, done), (1, 0, full), (0, 1, "failed"), (1, 1, done))
    assert over((0, 1, done), (1, 0, full))
    assert not over((0, 0, done), (1, 0, full))
    assert over((0, 1, done), (1, 0, done), (1, 1, full))
    assert over((2, 1, done))
    assert over((0, 0, full))


REAL = {"dataset": "cifar10 (jpeg)", "data_checksum": "0123456789abcdef"}
SYNTHETIC = {"cifar10": DataId("synthetic")}


@pytest.mark.parametrize(
    ("done", "images", "counts"),
    [
        (REAL, {"cifar10": DataId(*REAL.values())}, True),
        (REAL, {"cifar10": DataId("cifar10 (jpeg)", "another")}, False),
        (REAL, {"cifar10": DataId("cifar10", REAL["data_checksum"])}, False),
        # Records of earlier versions do not tell which images they were of.
        ({"dataset": "cifar10 (jpeg)"}, {"cifar10": DataId(*REAL.values())}, False),
        # Nobody has looked what there is, which would take a download; or it is to be had nowhere.
        *((record, images, True) for record in (REAL, {"dataset": "cifar10"}) for images in ({}, SYNTHETIC)),
        ({"dataset": "synthetic"}, SYNTHETIC, True),
        ({"dataset": "synthetic"}, {}, False),
        ({"dataset": "synthetic"}, {"cifar10": DataId(*REAL.values())}, False),
    ],
)
def test_what_is_done_is_done_on_its_own_images(
    done: dict[str, str], images: dict[str, DataId], counts: bool, tmp_path: Path
) -> None:
    record = record_of(**done)
    journal.append(journal.folder(tmp_path, record.infrastructure) / journal.FILE, record)
    place = dataclasses.replace(place_in(tmp_path), infrastructure=record.infrastructure, images=images)
    sweep = Sweep([("r", [Planned(run=record.run)])], tmp_path, place)
    assert bool(sweep.left(sweep.items)) != counts
    sweep.use({})
    sweep.use(images)
    assert bool(sweep.left(sweep.items)) != counts


def test_a_run_of_a_network_that_is_no_longer_known_teaches_nothing(tmp_path: Path) -> None:
    gone = record_of(run={"model": "gone"})
    assert RuntimeEstimator(place_in(tmp_path), [gone]).factor(gone.run) == 1


@pytest.mark.slow
def test_what_does_not_fit_is_left_and_a_run_at_the_bound_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def undertaken(until: float, **fields: Any) -> list[str]:
        # Two recipes share their runs.
        plans = [(name, plan(name, Recipe(**{**SMALL, **fields}), MACHINE)) for name in ("mine", "yours")]
        place = dataclasses.replace(place_in(tmp_path), until=time.monotonic() + until)
        return run_sweep(Sweep(plans, path, place))

    path = tmp_path / "results"
    # Estimated at an hour, and at 6 s; the second fits.
    assert undertaken(600.0, batch_per_device=[32, 64], epochs=[400_000_000, 1]) == []
    done = journal.read(journal.paths(path))
    assert [(record.run.epochs, record.outcome) for record in done] == [(1, "completed")] * 2
    assert "2 are left" in capsys.readouterr().err
    # Estimated at less than 8 s, it takes minutes: steps of one image, which an estimate does not know to be slow.
    long = {"batch_per_device": 1, "epochs": 200, "evaluate": False}
    path = tmp_path / "others"  # where nothing is known yet of how fast this machine is just now
    assert undertaken(15.0, **long) == []
    assert "1 are left" in capsys.readouterr().err
    (*_, last) = journal.read(journal.paths(path))
    assert (last.outcome, last.reason) == ("failed", "interrupted")
    assert undertaken(-1.0, **long) == []
    assert len(journal.read(journal.paths(path))) == 1


def test_every_price_has_a_date_and_a_source_and_the_users_come_first() -> None:
    known = prices.load({"DGX-1, 8x P100": 12.0, "p3.2xlarge": 3.0})
    assert len(known.by_name) > 20
    for price in known.by_name.values():
        assert price.dollars_per_hour > 0
        assert price.source == prices.GIVEN or (price.source.startswith("https://") and len(price.date) == 10)
    assert known.of("p3.2xlarge", "").source == prices.GIVEN  # type: ignore[union-attr]
    assert known.of("2", "DGX-1, 8x P100").dollars_per_hour == 12.0  # type: ignore[union-attr]
    assert known.of("p2.8xlarge", "").devices == prices.load({"p2.8xlarge": 5.0}).of("p2.8xlarge", "").devices  # type: ignore[union-attr]
    assert known.of("my machine", "CPU: some, 2 cores") is None
    for mistake in ("12", "=3", "a=b", ""):
        with pytest.raises(UserError, match="NAME=DOLLARS"):
            prices.named(mistake)
    with pytest.raises(UserError, match="--price a"):
        prices.load({"a": -1.0})
    assert prices.named("a=b=2.5") == ("a=b", 2.5)


def test_the_studys_k80_are_p2_and_its_p100_were_not_rented() -> None:
    known: Prices = prices.load({})
    rows = published.load()[0].rows
    found = {row.machine: known.of(row.machine, row.hardware) for row in rows}
    assert {name: price and (price.machine, price.devices) for name, price in found.items()} == {
        **{"1": ("p2.8xlarge", 8), "1*": ("p2.8xlarge", 8)},
        **{"2": None, "3": None, "4": None},
    }
