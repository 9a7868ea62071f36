"""What a plan will take: its order, estimates that learn, a bound that holds; and what machines cost."""

import dataclasses
import errno
import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from poc import Folder, Recipe, Search, frameworks, published
from poc.cli.options import Options
from poc.cli.run import write_last_run
from poc.config.datasets import DataId
from poc.host.hardware import Hardware
from poc.plan import START_SECONDS, Planned, plan, training_seconds
from poc.published import prices
from poc.records import journal, last_run
from poc.records.record import COMPLETED, DIVERGED, FAILED, OUT_OF_MEMORY, Record
from poc.run import checkpoint, schedule, workload
from poc.run.launcher import LocalLauncher
from poc.run.schedule import DoneRepeats, RuntimeEstimator
from poc.run.sweep import Sweep, run_sweep
from poc.values import UserError
from tests.builders import MACHINE, SMALL, add, place_in, record_of, run_of
from tests.launch import held
from tests.test_search import Training


def planned(seconds: float, **fields: Any) -> Planned:
    return Planned(run=run_of(**fields), seconds=seconds)


def noting(results: Path) -> Callable[[Sequence[Sweep]], object]:
    """Return the function with which `poc run` writes down what is left."""
    return functools.partial(write_last_run, Options(recipes=[], quick=False, results=results), "")


def of_recipe(name: str, planned: Planned) -> Planned:
    return dataclasses.replace(planned, run=dataclasses.replace(planned.run, recipe=name))


def test_runs_are_ordered_by_priority_then_searches_then_duration_class_then_as_written() -> None:
    rows = [("a", 5, 60.0), ("b", 5, 7200.0), ("c", 5, 30.0), ("d", 1, 7200.0), ("e", 1, 90.0), ("f", 5, 600.0)]
    runs = [dataclasses.replace(of_recipe(name, planned(seconds)), priority=n) for name, n, seconds in rows]
    runs.append(dataclasses.replace(of_recipe("g", planned(9000.0)), searched=((run_of(),),)))
    assert "".join(each.run.recipe for each in schedule.in_order(runs)) == "edgacfb"


def test_estimates_follow_what_was_measured(tmp_path: Path) -> None:
    context = dataclasses.replace(place_in(tmp_path), until=time.monotonic() + 1000)
    run = record_of().run
    start = START_SECONDS["cpu"]
    item = Planned(run=run, seconds=start + 400.0)
    assert RuntimeEstimator(context, []).seconds(item) == start + 400.0
    # Records whose epochs last 4 s, and as many times as long, of commands that found the CPU half as fast.
    assert record_of().hardware.cpu_flops == context.machine.cpu_flops / 2
    measured = run.epochs * 4.0 / training_seconds(dataclasses.replace(run, evaluate=False), context.machine)
    records = [record_of(wall=9.0, epoch_seconds=[4.0 * factor] * 6) for factor in (2.0, 3.0, 10.0)]
    records += [record_of(wall=9.0, epoch_seconds=[200.0] * 6, outcome=FAILED), record_of(run={"model": "vgg16"})]
    estimator = RuntimeEstimator(context, records)
    assert estimator.factor(run) == pytest.approx(5.0 * measured)
    # The start is no slower, nor a burst that ends by the clock longer.
    item = Planned(run=run, seconds=start + 400.0 / measured)
    assert estimator.seconds(item) == pytest.approx(start + 2000.0)
    burst = dataclasses.replace(run, seconds=15.0, window=1)
    all_steps = estimator.factor(run) * training_seconds(run, context.machine)
    warm_up = all_steps * 5 / run.steps
    assert estimator.seconds(Planned(run=burst, seconds=start + 15.0)) == pytest.approx(start + warm_up + 15.0)
    # However short its time is, it has windows of warm-up, here two, and one that is timed.
    brief = dataclasses.replace(run, seconds=0.1, window=3)
    assert estimator.seconds(Planned(run=brief, seconds=start)) == pytest.approx(start + all_steps * 9 / run.steps)
    # The steps of the breakdown and of the trace come after it.
    detailed = RuntimeEstimator(dataclasses.replace(context, trace_steps=run.steps // 2), records, run.steps // 2)
    assert detailed.seconds(item) == pytest.approx(start + 2000.0 + run.epochs * 20.0)
    paused = dataclasses.replace(item, run=dataclasses.replace(run, pause_after=1))  # it has neither of them
    assert detailed.seconds(paused) == pytest.approx(start + 2000.0)
    assert not estimator.fits(item)
    # A run that was begun counts from its checkpoint on, and continues though it does not fit.
    folder, conditions = context.checkpoints_of(run), context.conditions_of(run)

    def save(step: int, folder: Path = folder, trained: float = 0.0, **changes: Any) -> None:
        story = {"conditions": {**conditions, **changes}, "attempt": "", "counted": {"trained": trained}}
        checkpoint.write(folder, 0, checkpoint.Checkpoint(step=step, arrays={}, story=story), previous=0)

    save(run.steps // 2, versions={"poc": "another"})
    assert not estimator.fits(item)
    save(run.steps // 4)
    assert estimator.seconds(item) == pytest.approx(start + 1500.0)
    assert estimator.fits(Planned(run=run, seconds=start + 4000.0))
    searching = dataclasses.replace(run, search=Search(low=0.1, high=0.8), tunes=run)  # others fit, and come first
    assert not estimator.fits(Planned(run=searching, seconds=start + 4000.0))
    assert not RuntimeEstimator(dataclasses.replace(context, until=time.monotonic() - 1), []).fits(item)
    # Of a run by time as much is done as it trained, though it may be far from its last step.
    for trained, left in ((9.0, 0.4), (99.0, 0.0)):
        save(1, context.checkpoints_of(burst), trained)
        remaining = estimator.seconds(Planned(run=burst, seconds=start + 15.0)) - start
        assert remaining == pytest.approx(left * (warm_up + 15.0))
    # The last checkpoint of a repeat is of no use to another one.
    save(run.steps)
    checkpoint.remove(folder, but=run.steps)
    assert estimator.seconds(item) == pytest.approx(start + 2000.0)
    assert not estimator.fits(item)
    # A model that is no longer known teaches nothing.
    unknown = record_of(run={"model": "gone"})
    assert RuntimeEstimator(context, [unknown]).factor(unknown.run) == 1


@pytest.mark.parametrize(("seconds", "begun"), [(600, [0.02, 0.1, 0.2]), (100, [0.02])])
def test_a_longer_run_than_fits_is_begun_last_if_there_is_time_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, begun: list[float]
) -> None:
    runs = [planned(9000.0, lr=0.1), planned(9000.0, lr=0.2), planned(1.0, lr=0.02)]
    sweep = sweep_of(tmp_path, *runs, until=time.monotonic() + seconds)
    rates = list[float]()

    def do(planned: Planned) -> bool:
        fits = sweep.estimator.fits(planned)
        rates.extend([planned.run.learning_rate] * fits)
        return fits

    monkeypatch.setattr(sweep, "do", do)
    assert (run_sweep(sweep), rates) == ([], begun)


def test_a_bound_is_the_first_of_hours_and_dollars() -> None:
    assert schedule.bound(10.0, None, None, 3.0) == math.inf
    assert schedule.bound(10.0, 2.0, None, None) == 7210.0
    assert schedule.bound(10.0, 2.0, 1.5, 3.0) == 1810.0


def sweep_of(folder: Path, *planned: Planned, **fields: Any) -> Sweep:
    return Sweep(planned, folder, place_in(folder, **fields))


def recorded(folder: Path, record: Record, machine: Hardware = MACHINE) -> None:
    add(folder, dataclasses.replace(record, hardware=machine))


def test_a_plan_is_summed_up_by_recipe_and_a_run_of_two_counts_once(tmp_path: Path) -> None:
    one, two = planned(1800.0), planned(3600.0, lr=0.02)
    skipped = dataclasses.replace(planned(9.0, lr=0.03), skip="why")
    recorded(tmp_path, dataclasses.replace(record_of(outcome=DIVERGED, infrastructure="here"), run=one.run))
    # What another recipe runs is not skipped.
    same = dataclasses.replace(two, run=dataclasses.replace(two.run, lr_rule="linear"))
    plans = {"a": [one, two], "b": [same, skipped], "c": [dataclasses.replace(two, skip="why not")]}
    lines = sweep_of(tmp_path, *(of_recipe(name, each) for name, runs in plans.items() for each in runs)).lines()
    assert workload.skipped(lines) == {"why": 1}
    assert workload.totals(lines) == {"runs": 2, "done": 1, "seconds": 3600.0}
    text = workload.summary(lines, 7.2)
    assert [line.split() for line in text.splitlines()[2:3]] == [["a", "2", "1", "60", "min"]]
    assert "$7.20" in text
    assert "$" not in workload.summary(lines, None)


def test_reasons_that_differ_only_in_numbers_are_counted_as_one(tmp_path: Path) -> None:
    reasons = [
        *(f"needs {count} GPUs, this machine has none" for count in (4, 2, 8, 2)),
        *(f"needs about {size} GiB of memory, this machine has 24: take less" for size in ("30.5", "9")),
        *(f"model resnet{size}_v2 is not MXNet 1.9.1's" for size in (20, 56)),
    ]
    runs = [planned(1.0, lr=0.01 * number) for number in range(1, 9)]
    items = [dataclasses.replace(item, skip=reason) for item, reason in zip(runs, reasons)]
    assert workload.skipped(sweep_of(tmp_path, *items).lines()) == {
        "needs 2 to 8 GPUs, this machine has none": 4,
        "needs about 9 to 30.5 GiB of memory, this machine has 24: take less": 2,
        "model resnet20_v2 is not MXNet 1.9.1's": 1,
        "model resnet56_v2 is not MXNet 1.9.1's": 1,
    }


LARGEST = [run_of(batch_per_device=size, epochs=2) for size in (32, 16, 8)]


@pytest.mark.parametrize(
    ("outcomes", "is_over"),
    [
        ([], False),
        ([(1, COMPLETED)], False),  # by another recipe
        ([(0, COMPLETED)], True),
        ([(0, COMPLETED), (0, OUT_OF_MEMORY)], True),
        ([(0, OUT_OF_MEMORY)], False),
        ([(0, OUT_OF_MEMORY), (1, FAILED), (2, COMPLETED)], False),
        ([(0, OUT_OF_MEMORY), (1, COMPLETED)], True),
        ([(0, OUT_OF_MEMORY), (1, OUT_OF_MEMORY), (2, OUT_OF_MEMORY)], True),
    ],
)
def test_the_largest_batch_is_done_if_the_next_larger_one_does_not_fit(
    outcomes: list[tuple[int, str]], is_over: bool
) -> None:
    records = [dataclasses.replace(record_of(), run=LARGEST[number], outcome=outcome) for number, outcome in outcomes]
    assert DoneRepeats(records, {}).over(Planned(run=LARGEST[0], smaller=tuple(LARGEST[1:]))) == is_over


def test_where_others_used_the_memory_a_smaller_batch_is_done_and_the_larger_one_tried_again(tmp_path: Path) -> None:
    training = Training(lambda run: (OUT_OF_MEMORY if run == LARGEST[0] else COMPLETED, ""))
    training.occupied = "60 GiB of GPU 0"
    repeats = [Planned(run=LARGEST[0], smaller=(LARGEST[1],), repeat=number) for number in (1, 2)]
    sweep = sweep_of(tmp_path, *repeats)
    for item in sweep.plan:
        assert sweep.do(item, training)
    failed, completed, *_ = journal.read([sweep.path])
    assert (failed.outcome, failed.reason) == (FAILED, "out of memory while others used 60 GiB of GPU 0")
    assert (completed.outcome, completed.is_noisy) == (COMPLETED, True)
    assert training.runs == [LARGEST[0], *LARGEST[1:2] * 2]
    assert (len(sweep.failed), len(sweep.pending(sweep.plan))) == (1, 2)


def test_a_run_that_has_fitted_is_tried_again_by_the_next_command_if_a_repeat_is_out_of_memory(tmp_path: Path) -> None:
    repeats = [Planned(run=LARGEST[0], smaller=(LARGEST[1],), repeat=number) for number in (1, 2, 3)]
    recorded(tmp_path, dataclasses.replace(record_of(infrastructure="here"), run=LARGEST[0]))
    training = Training(lambda _: (OUT_OF_MEMORY, ""))
    for attempts in (1, 2):
        sweep = sweep_of(tmp_path, *repeats)
        assert all(sweep.do(item, training) for item in sweep.plan)
        assert (training.runs, len(sweep.failed)) == ([LARGEST[0]] * attempts, 1)
        assert len(sweep.pending(sweep.plan)) == 2


REAL = {"dataset": "cifar10 (jpeg)", "data_checksum": "0123456789abcdef"}
SAME = {"cifar10": DataId(*REAL.values())}
SYNTHETIC = {"cifar10": DataId("synthetic")}


@pytest.mark.parametrize(
    ("fields", "images", "counts"),
    [
        (REAL, SAME, True),
        (REAL, {"cifar10": DataId("cifar10 (jpeg)", "another")}, False),
        (REAL, {"cifar10": DataId("cifar10", REAL["data_checksum"])}, False),
        ({"dataset": "cifar10 (jpeg)"}, SAME, False),  # an early record, without a checksum
        # The images were not opened, which would take a download; or they cannot be downloaded.
        *((record, images, True) for record in (REAL, {"dataset": "cifar10"}) for images in ({}, SYNTHETIC)),
        ({"dataset": "synthetic"}, SYNTHETIC, True),
        ({"dataset": "synthetic"}, {}, False),
        ({"dataset": "synthetic"}, SAME, False),
    ],
)
def test_a_record_counts_on_its_own_images(
    fields: dict[str, str], images: dict[str, DataId], counts: bool, tmp_path: Path
) -> None:
    record = record_of(**fields, infrastructure="here")
    recorded(tmp_path, record)
    sweep = sweep_of(tmp_path, Planned(run=record.run), images=images)
    assert bool(sweep.pending(sweep.plan)) != counts
    sweep.use({})
    sweep.use(images)
    assert bool(sweep.pending(sweep.plan)) != counts


def test_a_burst_that_was_resumed_without_time_for_a_window_is_repeated(tmp_path: Path) -> None:
    resumed = [{"step": 8, "why": "the run was interrupted", "at": 1e6}]  # after all windows
    for evaluate, again in ((False, True), (True, False)):
        burst = record_of(infrastructure="here", **REAL, run={"evaluate": evaluate}, resumed=resumed)
        recorded(tmp_path / str(evaluate), burst)
        sweep = sweep_of(tmp_path / str(evaluate), Planned(run=burst.run), images=SAME)
        assert bool(sweep.pending(sweep.plan)) == again


@pytest.mark.parametrize("change", [{"cores": MACHINE.cores + 1}, {"cpu": "Another CPU"}, {"hosts": 2}])
def test_a_record_of_other_hardware_or_environment_does_not_count(change: Any, tmp_path: Path) -> None:
    record = record_of(**REAL, infrastructure="here")
    recorded(tmp_path, record, dataclasses.replace(MACHINE, **change))
    recorded(tmp_path, dataclasses.replace(record, environment={"MALLOC_ARENA_MAX": "2"}))
    sweep = sweep_of(tmp_path, Planned(run=record.run), images=SAME)
    assert len(sweep.pending(sweep.plan)) == 1


def test_journals_share_no_checkpoints_and_one_that_moved_finds_its_own(tmp_path: Path) -> None:
    def checkpoints(results: str) -> Path:
        run_sweep(sweep := Sweep([], tmp_path / results, place_in(tmp_path)))
        return sweep.context.checkpoints_of(run_of())

    first, second = checkpoints("first"), checkpoints("second")
    (tmp_path / "first").rename(tmp_path / "moved")
    assert second != first == checkpoints("moved")


def test_a_run_that_another_command_has_just_done_is_not_repeated(tmp_path: Path) -> None:
    item = planned(1.0)
    sweep = sweep_of(tmp_path, item)
    recorded(tmp_path, dataclasses.replace(record_of(infrastructure="here"), run=item.run))
    run_sweep(sweep)
    assert len(journal.read([sweep.path])) == 1


@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt, UserError])
def test_what_a_command_leaves_is_known_from_its_start_and_a_full_disk_hides_no_reason(
    stop: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        written = last_run.read(tmp_path)
        assert written
        assert written.runs_left == 2
        monkeypatch.setattr(last_run, "write", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")))
        raise stop("the reason")

    sweep = sweep_of(tmp_path, planned(1.0), planned(1.0, lr=0.02))
    monkeypatch.setattr(Sweep, "do", end)
    with pytest.raises(stop, match="the reason"):
        run_sweep(sweep, note=noting(tmp_path))


def test_a_failure_on_some_images_keeps_no_run_from_others(tmp_path: Path) -> None:
    runs = [dataclasses.replace(run_of(), data=Folder(name, crop=32)) for name in ("first", "second", "first")]
    sweep = sweep_of(tmp_path, *(Planned(run=run) for run in runs))
    launcher = mock.Mock(**{"steps.return_value": set(), "attempt.return_value": ([], "why")})
    for item in sweep.plan:
        sweep.do(item, launcher)
    assert [call.args[0].data.path for call in launcher.attempt.call_args_list] == ["first", "second"]


@pytest.mark.parametrize("file", ["mine/__init__.py", "numpy-0.dist-info/METADATA"])
def test_a_command_ends_if_its_code_or_packages_change(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frameworks, "__path__", [*frameworks.__path__, str(tmp_path)])
    monkeypatch.syspath_prepend(str(tmp_path))
    sweep, training = sweep_of(tmp_path, planned(1.0), planned(1.0, lr=0.02)), Training()
    sweep.do(sweep.plan[0], training)
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text("Name: numpy\nVersion: 0\n")
    with pytest.raises(UserError, match="changed"):
        sweep.do(sweep.plan[1])
    assert sweep_of(tmp_path, *sweep.plan).do(sweep.plan[1], training)


@pytest.mark.slow
def test_a_repeat_does_not_continue_from_what_a_killed_command_left_of_the_one_before(tmp_path: Path) -> None:
    item = planned(1.0)
    with mock.patch.object(LocalLauncher, "forget", side_effect=SystemExit), pytest.raises(SystemExit):
        sweep_of(tmp_path, item).do(item)
    sweep_of(tmp_path, item).do(dataclasses.replace(item, repeat=2))
    assert [record.resumed for record in journal.read(journal.paths(tmp_path))] == [()] * 2


@pytest.mark.slow
def test_runs_that_do_not_fit_are_postponed_and_one_at_the_bound_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep(folder: str, seconds: float, **fields: Any) -> list[tuple[int, str, str]]:
        # Two recipes share their runs.
        recipe = Recipe(**{**SMALL, **fields})
        planned = [each for name in ("mine", "yours") for each in plan(name, recipe, MACHINE)]
        context = dataclasses.replace(place_in(tmp_path), until=time.monotonic() + seconds)
        results = tmp_path / folder
        assert run_sweep(Sweep(planned, results, context, since="2026"), note=noting(results)) == []
        records = journal.read(journal.paths(tmp_path / folder))
        return [(record.run.epochs, record.outcome, record.reason) for record in records]

    # Estimated at an hour, and at 6 s; the second fits.
    done = sweep("a", 150.0, batch_per_device=[32, 64], epochs=[100_000_000, 1])
    assert done == [(1, COMPLETED, "")] * 2
    assert "Not done: 2 runs" in capsys.readouterr().err
    written = last_run.read(tmp_path / "a")
    assert written
    assert (written.runs_left, written.again_since) == (2, "2026")
    # It takes longer than its estimate: it waits in the middle.
    monkeypatch.setenv("POC_HOLD", str(tmp_path / "hold"))
    (item,) = plan("mine", Recipe(**SMALL), MACHINE)
    with held(tmp_path / "hold"):
        assert sweep("b", item.seconds + 2.0) == [(4, FAILED, "interrupted")]
    assert "Not done: 1 run," in capsys.readouterr().err
    assert len(sweep("b", -1.0)) == 1


def test_every_price_has_a_source_and_the_user_s_come_first() -> None:
    listed = prices.load({"DGX-1, 8x P100": 12.0, "p3.2xlarge": 3.0})
    assert len(listed) > 20
    for price in listed.values():
        assert price.source == prices.GIVEN or (price.source.startswith("https://") and len(price.date) == 10)
    dollars = [listed.of(*names) for names in (("p3.2xlarge", ""), ("2", "DGX-1, 8x P100"), ("my machine", "CPU"))]
    assert [price and price.dollars_per_hour for price in dollars] == [3.0, 12.0, None]
    assert prices.named("a=b=2.5") == ("a=b", 2.5)
    for mistake in ("12", "=3", "a=b", ""):
        with pytest.raises(UserError):
            prices.named(mistake)
    with pytest.raises(UserError):
        prices.load({"a": -1.0})


def test_the_study_s_k80_are_p2_and_its_p100_were_not_rented() -> None:
    listed, rows = prices.load({}), published.load()[0].rows
    rented = {row.machine: listed.of(row.machine, row.hardware) for row in rows}
    expected = {"1": ("p2.8xlarge", 8), "1*": ("p2.8xlarge", 8), "2": None, "3": None, "4": None}
    assert {name: price and (price.machine, price.devices) for name, price in rented.items()} == expected
