"""A clock that goes by a script drives whole fake runs, whose rates and splits are known beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from poc.train.run import train

from poc import Fixed, Recipe, Synthetic
from poc.data import Batch
from poc.engines import Evaluation
from poc.machine.hardware import Hardware
from poc.plan import plan
from poc.records import timing
from poc.run import Run

CPU = Hardware(cpu="Test CPU", cores=2, memory_bytes=2**34, cpu_flops=2e11)


class ScriptedTime:
    """Time that passes only where something is said to take some."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SlowWhereRealOnesAre:
    """A fake engine: `step` returns at once, the work is done when `drain` asks for it."""

    parameters, gradient_bytes = 10, 40

    def __init__(self, time: ScriptedTime, seconds_of_step: Any, loss: Any = lambda step: 1.0) -> None:
        self._time, self._seconds, self._loss = time, seconds_of_step, loss
        self.rates: list[float] = []
        self._owed = 0.0
        self._step = 0

    def step(self, batch: Batch, learning_rate: float, *, exchange: bool = True) -> None:
        self.rates.append(learning_rate)
        self._owed += self._seconds(self._step)
        self._step += 1

    def drain(self) -> float:
        self._time.now += self._owed
        self._owed = 0.0
        return float(self._loss(self._step))

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        self._time.now += 7.0
        return Evaluation(correct=30, samples=40, loss=0.5)


def run_of(**fields: Any) -> Run:
    base: dict[str, Any] = {
        "model": "cifar_resnet8_v2",
        "data": Synthetic(train=100, validation=40),
        "batch_per_device": 10,
        "epochs": 2,
        "window": 4,
        "lr": 0.5,
    }
    return plan("", Recipe(**{**base, **fields}), CPU)[0].run


def drive(
    run: Run, seconds_of_step: Any, *, wait: float = 0.0, loss: Any = lambda step: 1.0, **options: Any
) -> SimpleNamespace:
    time = ScriptedTime()
    watch = timing.Clock(now=time)
    session = SlowWhereRealOnesAre(time, seconds_of_step, loss)
    batch = Batch(images=np.zeros((run.total_batch, 3, 1, 1), np.uint8), labels=np.zeros(run.total_batch, np.float32))

    def batches() -> Iterator[Batch]:
        for _ in range(run.steps):
            time.now += wait
            yield batch

    told: list[dict[str, Any]] = []
    saved: list[int] = []

    def save(step: int) -> None:
        time.now += 3.0
        saved.append(step)

    if options.pop("save", False):
        options["save"] = save
    with watch.part("initialise"):
        time.now += 11.0
    outcome, reason = train(run, session, batches(), list, watch, told.append, **options)  # type: ignore[arg-type]
    windows = [
        timing.Window(**{k: v for k, v in one.items() if k != "event"}) for one in told if one["event"] == "window"
    ]
    split = timing.split(watch.elapsed(), watch.parts, windows)
    return SimpleNamespace(
        outcome=outcome,
        reason=reason,
        windows=windows,
        split=split,
        wall=watch.elapsed(),
        session=session,
        told=told,
        saved=saved,
    )


def test_an_asynchronous_engine_does_not_fool_the_clock() -> None:
    # Two epochs of 10 steps in windows of 4, 4 and 2; the first window takes 2 s a step, all others 0.5.
    done = drive(run_of(), lambda step: 2.0 if step < 4 else 0.5)
    assert [(w.steps, w.samples, w.seconds) for w in done.windows] == [
        (4, 40, 8.0),
        (4, 40, 2.0),
        (2, 20, 1.0),
        (4, 40, 2.0),
        (4, 40, 2.0),
        (2, 20, 1.0),
    ]
    # The window of 5 s a sample is warm-up, and the next one goes too: five steps have to be over.
    found = timing.throughput(done.windows)
    assert found == timing.Throughput(median=20.0, spread=0.0, windows=4, dropped=2)
    assert done.split == {
        "initialise": 11.0,
        "warmup": 10.0,
        "train": 6.0,
        "data": 0.0,
        "evaluate": 14.0,
        "checkpoint": 0.0,
        "rest": 0.0,
    }
    assert done.wall == 41.0


def test_checkpoints_are_made_after_every_epoch_and_within_one_after_so_many_steps() -> None:
    assert drive(run_of(), lambda step: 0.5, save=True).saved == [10, 20]
    assert drive(run_of(), lambda step: 0.5, save=True, save_every=3).saved == [4, 8, 10, 14, 18, 20]
    assert drive(run_of(), lambda step: 0.5, save=True, save_every=7).saved == [8, 10, 18, 20]


def test_a_run_by_time_ends_with_the_window_in_which_the_time_is_up() -> None:
    done = drive(run_of(seconds=5.5, evaluate=True), lambda step: 0.5, save=True)
    # Windows of 2, 2 and 1 s are an epoch, with 7 s of evaluation and 3 s of checkpoint after it.
    assert [window.steps for window in done.windows] == [4, 4, 2, 4]
    assert [one["epoch"] for one in done.told if one["event"] == "evaluation"] == [1, 2]
    assert done.outcome == "completed"
    assert drive(run_of(seconds=1.0), lambda step: 0.5).windows[0].steps == 4


@pytest.mark.parametrize("first_step", [4, 10, 14])
def test_a_run_that_goes_on_does_the_steps_that_are_left(first_step: int) -> None:
    whole = drive(run_of(lr=Fixed(base=0.5, warmup_epochs=1.5)), lambda step: 0.5, save=True, save_every=3)
    rest = drive(
        run_of(lr=Fixed(base=0.5, warmup_epochs=1.5)), lambda step: 0.5, save=True, save_every=3, first_step=first_step
    )
    assert rest.session.rates == whole.session.rates[first_step:]
    assert rest.saved == [step for step in whole.saved if step > first_step]
    epochs = [one["epoch"] for one in rest.told if one["event"] == "evaluation"]
    assert epochs == ([1, 2] if first_step < 10 else [2])


def test_the_clock_of_a_run_that_goes_on_leaves_out_the_time_that_was_lost() -> None:
    time = ScriptedTime()
    before = timing.Clock(now=time)
    with before.part("initialise"):
        time.now += 5.0
    time.now += 20.0
    kept = before.elapsed(), dict(before.parts)
    time.now += 1000.0
    after = timing.Clock(now=time)
    with after.part("initialise"):
        after.resume(*kept)
        time.now += 3.0
    assert after.elapsed() == 28.0
    assert after.parts == {"initialise": 8.0}


def test_pauses_and_waits_are_booked_where_they_belong() -> None:
    done = drive(run_of(), lambda step: 0.5, wait=0.25, save=True)
    assert done.split["data"] == pytest.approx(20 * 0.25)
    assert done.split["checkpoint"] == 6.0
    assert done.split["evaluate"] == 14.0
    assert sum(done.split.values()) == pytest.approx(done.wall)
    # 10 samples in 0.5 s of work and 0.25 s of waiting.
    found = timing.throughput(done.windows)
    assert found is not None
    assert found.median == pytest.approx(10 / 0.75)


def test_the_short_last_window_of_an_epoch_counts_its_own_samples() -> None:
    done = drive(run_of(), lambda step: 1.0)
    assert sum(window.samples for window in done.windows) == 200
    assert {window.rate for window in done.windows} == {10.0}


def test_the_learning_rate_of_every_step_reaches_the_engine() -> None:
    done = drive(run_of(lr=Fixed(base=0.5, warmup_epochs=1)), lambda step: 1.0)
    assert done.session.rates == pytest.approx([0.05 * step for step in range(10)] + [0.5] * 10)


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged() -> None:
    done = drive(run_of(), lambda step: 1.0, loss=lambda step: float("nan") if step >= 8 else 1.0)
    assert done.outcome == "diverged"
    assert "after step 8" in done.reason
    assert [window.loss for window in done.windows] == [1.0, None]


def test_a_run_without_evaluation_has_none() -> None:
    done = drive(run_of(evaluate=False), lambda step: 1.0)
    assert all(event["event"] == "window" for event in done.told)
    assert done.split["evaluate"] == 0.0


def window(rate: float, steps: int = 5, waited: float = 0.0) -> timing.Window:
    return timing.Window(epoch=1, start=0.0, steps=steps, samples=1000, seconds=1000 / rate, waited=waited, loss=1.0)


# Rates of the windows, of five steps each, and how many of them are warm-up.
WARMUPS = [
    ([100], 0),
    ([100, 100], 1),
    ([10, 100, 100, 100], 1),
    ([10, 50, 100, 100, 100, 100], 2),
    ([10, 20, 40, 80, 160, 320], 5),
    ([100, 109, 100, 100], 1),
    ([100, 150, 150, 100, 100, 100, 100], 1),
]


@pytest.mark.parametrize(("rates", "dropped"), WARMUPS)
def test_warm_up_ends_where_the_rate_is_stable(rates: list[float], dropped: int) -> None:
    assert timing.warmup([window(rate) for rate in rates]) == dropped


def test_spread_is_the_scaled_median_deviation() -> None:
    found = timing.throughput([window(100)] + [window(rate) for rate in (98, 99, 100, 101, 104)])
    assert found is not None
    assert found.median == pytest.approx(100)
    assert found.spread == pytest.approx(1.4826)
    assert (found.windows, found.dropped) == (5, 1)
    assert timing.throughput([]) is None


@given(
    st.lists(st.tuples(st.floats(1, 1e5), st.integers(1, 50), st.floats(0, 0.01)), max_size=30),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
)
def test_the_parts_always_add_up_to_the_wall_time(
    windows: list[tuple[float, int, float]], initialise: float, evaluate: float, rest: float
) -> None:
    measured = [window(*one) for one in windows]
    wall = initialise + evaluate + rest + sum(one.seconds for one in measured)
    split = timing.split(wall, {"initialise": initialise, "evaluate": evaluate}, measured)
    assert sum(split.values()) == pytest.approx(wall)
    assert split["rest"] == pytest.approx(rest, abs=1e-6 * max(1.0, wall))
    assert tuple(split) == timing.PARTS
