"""A clock that goes by a script drives whole fake runs, whose rates and splits are known beforehand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import Fixed, Synthetic
from poc.config.run import Run
from poc.data import Batch
from poc.frameworks import Evaluation
from poc.host import hardware
from poc.records import timing
from poc.records.record import COMPLETED, DIVERGED
from poc.records.timing import Window
from poc.run.loop import Loop
from tests.builders import run_of

Script = Callable[[int], float]
"""By the number of a step."""


class ScriptedTime:
    """Time that passes only where something is said to take some."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class SlowWhereRealOnesAre:
    """A session without a network: `step` returns at once, the work is done when `drain` asks for it."""

    def __init__(self, time: ScriptedTime, seconds: Script, loss: Script) -> None:
        self._time, self._seconds, self._loss = time, seconds, loss
        self.rates: list[float] = []
        self.waits: list[int] = []
        """After how many steps it was waited for."""
        self._owed = 0.0

    def step(self, batch: Batch, learning_rate: float, *, exchange: bool = True, norms: bool = False) -> None:
        self._owed += self._seconds(len(self.rates))
        self.rates.append(learning_rate)

    def wait(self) -> None:
        self.waits.append(len(self.rates))
        self.drain()

    def drain(self) -> float:
        self._time.now += self._owed
        self._owed = 0.0
        return float(self._loss(len(self.rates)))

    evaluation_loss, parameter = 0.5, 1.0

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        self._time.now += 7.0
        return Evaluation(correct=30, samples=40, loss=self.evaluation_loss)

    def largest_parameter(self) -> float:
        return self.parameter


def short(**fields: Any) -> Run:
    """Two epochs of ten steps, by default, in windows of four."""
    base = {"data": Synthetic(train=100, validation=40), "batch_per_device": 10, "epochs": 2, "window": 4, "lr": 0.5}
    return run_of(**{**base, **fields})


class Driven:
    """A run that was driven by a script: 11 s to begin with, then `wait` for each batch, 3 s a checkpoint."""

    def __init__(
        self, run: Run, seconds: Script, *, wait: float = 0.0, loss: Script = lambda step: 1.0, **options: Any
    ) -> None:
        self._time = ScriptedTime()
        self.clock = timing.Clock(now=self._time)
        self.session: Any = SlowWhereRealOnesAre(self._time, seconds, loss)
        self.windows: list[Window] = []
        self.epochs_evaluated: list[int] = []
        self.saved: list[int] = []
        with self.clock.part("initialise"):
            self._time.now += 11.0
        save = self._save if options.pop("save", False) else self.saved.append
        loop = Loop(run, self.session, list, self.clock, self._tell, save, **options)
        self.outcome, self.reason = loop.train(self._batches(run, wait))
        self.wall = self.clock.elapsed()
        self.split = timing.split(self.wall, self.clock.parts, self.windows)

    def _tell(self, name: str, told: Any) -> None:
        if name == "window":
            self.windows.append(told)
        else:
            self.epochs_evaluated.append(told.epoch)

    def _batches(self, run: Run, wait: float) -> Iterator[Batch]:
        images = np.zeros((run.global_batch, 3, 1, 1), np.uint8)
        for _ in range(run.steps):
            self._time.now += wait
            yield Batch(images=images, labels=np.zeros(run.global_batch, np.float32))

    def _save(self, step: int) -> None:
        self._time.now += 3.0
        self.saved.append(step)


def test_an_asynchronous_engine_does_not_fool_the_clock() -> None:
    # Two epochs of 10 steps in windows of 4, 4 and 2; the first window takes 2 s a step, all others 0.5.
    done = Driven(short(lr=Fixed(base=0.5, warmup_epochs=1)), lambda step: 2.0 if step < 4 else 0.5)
    epoch = [(4, 40, 2.0), (4, 40, 2.0), (2, 20, 1.0)]
    assert [(w.steps, w.samples, w.seconds) for w in done.windows] == [(4, 40, 8.0), *epoch[1:], *epoch]
    assert done.session.rates == pytest.approx([0.05 * step for step in range(10)] + [0.5] * 10)
    # The window of 2 s a step is warm-up, and the next one goes too: five steps have to be over.
    assert timing.throughput(done.windows) == timing.Throughput(median=20.0, spread=0.0, windows=4, dropped=2)
    booked = {"initialise": 11.0, "warmup": 10.0, "train": 6.0, "evaluate": 14.0}
    assert done.split == {**dict.fromkeys(timing.PARTS, 0.0), **booked}
    assert done.wall == 41.0


def test_only_steps_that_take_long_are_waited_for_within_a_window() -> None:
    # The first step takes a minute (a compiler), the others of the first window 12 s each, those of the second 0.5 s.
    done = Driven(short(window=10), lambda step: 0.5 if step >= 10 else 12.0 if step else 60.0, silence=30.0)
    assert done.session.waits == [1, 2, 5, 8, 12]
    assert [(w.steps, w.seconds) for w in done.windows] == [(10, 168.0), (10, 5.0)]


@pytest.mark.parametrize(("every", "saved"), [(None, [10, 20]), (3, [4, 8, 10, 14, 18, 20]), (7, [8, 10, 18, 20])])
def test_checkpoints_are_made_after_every_epoch_and_within_one_after_so_many_steps(
    every: int | None, saved: list[int]
) -> None:
    assert Driven(short(), lambda step: 0.5, save=True, save_every=every).saved == saved


def test_a_run_by_time_ends_with_the_window_in_which_the_time_is_up() -> None:
    done = Driven(short(seconds=5.5, evaluate=True), lambda step: 0.5, save=True)
    # Windows of 2, 2 and 1 s are an epoch, with 7 s of evaluation and 3 s of checkpoint after it.
    assert [window.steps for window in done.windows] == [4, 4, 2, 4]
    assert done.epochs_evaluated == [1, 2]
    assert done.outcome == COMPLETED
    short_one = Driven(short(seconds=1.0, evaluate=False), lambda step: 0.5)
    assert [window.steps for window in short_one.windows] == [4]
    assert (short_one.epochs_evaluated, short_one.split["evaluate"]) == ([], 0.0)


@pytest.mark.parametrize(("target", "epochs"), [(0.75, 1), (0.76, 3)])
def test_a_run_ends_with_the_evaluation_that_reaches_its_target(target: float, epochs: int) -> None:
    done = Driven(short(epochs=3, target_accuracy=target), lambda step: 0.5, save=True)
    assert done.epochs_evaluated == list(range(1, epochs + 1))  # each finds 0.75
    assert (done.saved[-1], done.outcome) == (epochs * 10, COMPLETED)
    # Cut off after its checkpoint, before its record was safe, it goes on no further than it would have.
    later = Driven(short(epochs=3, target_accuracy=target), lambda step: 0.5, first_step=epochs * 10, accuracy=0.75)
    assert (later.windows, later.outcome) == ([], COMPLETED)


@pytest.mark.parametrize("first_step", [4, 10, 14])
def test_a_run_that_goes_on_does_the_steps_that_are_left(first_step: int) -> None:
    run = short(lr=Fixed(base=0.5, warmup_epochs=1.5))
    whole, rest = (Driven(run, lambda step: 0.5, save=True, save_every=3, first_step=step) for step in (0, first_step))
    assert rest.session.rates == whole.session.rates[first_step:]
    assert rest.saved == [step for step in whole.saved if step > first_step]
    assert rest.epochs_evaluated == ([1, 2] if first_step < 10 else [2])


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
    done = Driven(short(), lambda step: 0.5, wait=0.25, save=True)
    assert done.split["data"] == pytest.approx(20 * 0.25)
    assert done.split["checkpoint"] == 6.0
    assert done.split["evaluate"] == 14.0
    assert done.split["rest"] == pytest.approx(0.0)
    assert (sum(done.split.values()), tuple(done.split)) == (pytest.approx(done.wall), timing.PARTS)
    assert timing.split(12.0, {"initialise": 3.0}, []) == {
        **dict.fromkeys(timing.PARTS, 0.0),
        "initialise": 3.0,
        "rest": 9.0,
    }
    # 10 samples in 0.5 s of work and 0.25 s of waiting.
    assert timing.throughput(done.windows).median == pytest.approx(10 / 0.75)


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged() -> None:
    done = Driven(short(), lambda step: 1.0, loss=lambda step: float("nan") if step >= 8 else 1.0)
    assert done.outcome == DIVERGED
    assert "after step 8" in done.reason
    assert [window.loss for window in done.windows] == [1.0, None]


@pytest.mark.parametrize("loss", [float("inf"), float("nan"), 4e13])
def test_a_loss_of_an_evaluation_ends_the_run_as_diverged(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    monkeypatch.setattr(SlowWhereRealOnesAre, "evaluation_loss", loss)
    done = Driven(short(evaluate=True), lambda step: 1.0)
    assert (done.outcome, done.epochs_evaluated) == (DIVERGED, [1])
    assert "after epoch 1" in done.reason


@pytest.mark.parametrize("parameter", [float("inf"), float("nan"), 1e7])
def test_what_the_last_update_did_is_looked_at(monkeypatch: pytest.MonkeyPatch, parameter: float) -> None:
    monkeypatch.setattr(SlowWhereRealOnesAre, "parameter", parameter)
    done = Driven(short(evaluate=False), lambda step: 1.0)
    assert done.outcome == DIVERGED
    assert "after step 20" in done.reason


@pytest.mark.parametrize(("steps", "timed"), [(1, 0), (3, 0), (10, 0), (20, 0), (40, 1), (60, 2)])
def test_a_run_without_a_window_after_warm_up_has_no_throughput(steps: int, timed: int) -> None:
    data = Synthetic(train=1000, validation=40)
    done = Driven(short(data=data, epochs=None, steps=steps, window=20), lambda step: 0.5)
    found = timing.throughput(done.windows)
    assert (found.windows if found else 0) == timed


def window(rate: float) -> Window:
    return Window(epoch=1, start=0.0, steps=5, samples=1000, seconds=1000 / rate, waited=0.0, loss=1.0)


@pytest.mark.parametrize(
    ("rates", "dropped"),
    [
        ([100], 1),
        ([100, 100], 1),
        ([10, 100, 100, 100], 1),
        ([10, 50, 100, 100, 100, 100], 2),
        ([10, 20, 40, 80, 160, 320], 5),
        ([100, 109, 100, 100], 1),
        ([100, 150, 150, 100, 100, 100, 100], 1),
    ],
)
def test_warm_up_ends_where_the_rate_is_stable(rates: list[float], dropped: int) -> None:
    assert timing.warmup([window(rate) for rate in rates]) == dropped


def test_spread_is_the_scaled_median_deviation() -> None:
    throughput = timing.throughput([window(100)] + [window(rate) for rate in (98, 99, 100, 101, 104)])
    assert throughput.median == pytest.approx(100)
    assert throughput.spread == pytest.approx(1.4826)
    assert (throughput.windows, throughput.dropped) == (5, 1)
    assert timing.throughput([]) is None


def test_time_is_stolen_from_the_cores_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a virtual machine with two cores, ticks of 10 ms."""
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  2111632 1358614 493373 1554983 15128 0 9737 26142 0 0\n"
        "cpu0 974469 666088 243738 878932 4496 0 3451 13093 0 0\n"
        "cpu1 1137163 692525 249634 676050 10632 0 6286 13048 0 0\n"
        "intr 27006599 0 0\n"
    )
    whole = (2, pytest.approx(39733.54), pytest.approx(261.41))
    for usable, found in (
        ({0, 1}, whole),
        ({1}, (1, pytest.approx(20856.08), pytest.approx(130.48))),
        ({4, 5}, whole),  # a container that numbers its cores anew
    ):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, usable=usable: usable)
        assert hardware.core_times(stat) == found
