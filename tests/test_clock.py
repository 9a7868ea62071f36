"""The loop and its clock: a scripted clock drives runs without a network, whose rates and splits are known."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from poc import DistAsync, Fixed, Synthetic
from poc.config.run import Run
from poc.data import Batch
from poc.host import hardware
from poc.records import timing
from poc.records.record import COMPLETED, DIVERGED
from poc.records.timing import Window
from poc.run import step_profile
from poc.run.loop import Loop
from tests.builders import run_of

Script = Callable[[int], float]
"""A value by the number of a step."""


def short(**fields: Any) -> Run:
    """Two epochs of ten steps, by default, in windows of four."""
    base = {"data": Synthetic(train=100, validation=40), "batch_per_device": 10, "epochs": 2, "window": 4, "lr": 0.5}
    return run_of(**{**base, **fields})


class Driven:
    """A run on a scripted clock: 11 s at the start, `wait` per batch, 7 s per evaluation, 3 s per checkpoint.

    It is the session, too, without a network: `step` returns at once, `drain` waits for the work, which goes on while
    the loop waits for a batch.
    """

    def __init__(
        self,
        run: Run,
        seconds: Script = lambda step: 0.5,
        *,
        wait: float = 0.0,
        loss: Script = lambda step: 1.0,
        evaluation_loss: float = 0.5,
        parameter: float = 1.0,
        others: Iterable[np.ndarray] = (),
        **options: Any,
    ) -> None:
        self.now, self._idle_from = 100.0, 0.0
        self._seconds, self._wait, self._loss = seconds, wait, loss
        self._evaluation_loss, self._parameter = evaluation_loss, parameter
        self.said: list[np.ndarray] = []  # what this worker contributed to sums over the workers
        self._others = iter(others)
        self.rates: list[float] = []
        self.waits: list[int] = []  # after how many steps
        self.resets: list[int] = []  # of the peak memory, after how many steps
        self.windows: list[Window] = []
        self.epochs_evaluated: list[int] = []
        self.saved: list[int] = []
        clock = timing.Clock(now=lambda: self.now)
        with clock.part("initialise"):
            self.now += 11.0
        session: Any = self
        loop = Loop(run, session, list, clock, self._emit, self._save, **options)
        self.outcome, self.reason = loop.train(self._batches(run), lambda seconds: not wait)
        self.wall = clock.elapsed()
        self.split = timing.split(self.wall, clock.parts, self.windows, timing.warmup(self.windows))

    def step(self, batch: Batch, learning_rate: float, **options: bool) -> None:
        self._idle_from = max(self._idle_from, self.now) + self._seconds(len(self.rates))
        self.rates.append(learning_rate)

    def wait(self) -> None:
        self.waits.append(len(self.rates))
        self.drain()

    def drain(self) -> float:
        self.now = max(self._idle_from, self.now)
        return float(self._loss(len(self.rates)))

    def sum_over_workers(self, values: np.ndarray) -> np.ndarray:
        self.said.append(values)
        return (values + next(self._others, 0)).astype(np.float32)  # as frameworks do between workers

    def evaluate(self, batches: Iterable[Batch]) -> tuple[int, int, float]:
        self.now += 7.0
        return 30, 40, self._evaluation_loss

    def largest_parameter(self) -> float:
        return self._parameter

    def reset_peak_memory(self) -> None:
        self.resets.append(len(self.rates))

    def _emit(self, name: str, value: Any) -> None:
        if name == "window":
            self.windows.append(value)
        else:
            self.epochs_evaluated.append(value.epoch)

    def _batches(self, run: Run) -> Iterator[Batch]:
        images = np.zeros((run.global_batch, 3, 1, 1), np.uint8)
        for _ in range(run.steps):
            self.now += self._wait
            yield Batch(images=images, labels=np.zeros(run.global_batch, np.float32))

    def _save(self, step: int) -> None:
        self.now += 3.0
        self.saved.append(step)


def test_an_asynchronous_framework_does_not_fool_the_clock() -> None:
    # Two epochs of 10 steps in windows of 4, 4 and 2; the first window takes 2 s per step, all others 0.5. Only in the
    # first one, when it is not known how long a step takes, does the loop wait for data while there is work.
    run = short(lr=Fixed(base=0.5, warmup_epochs=1))
    done = Driven(run, lambda step: 2.0 if step < 4 else 0.5, wait=0.25)
    epoch = [(4, 40, 3.0), (4, 40, 3.0), (2, 20, 1.5)]
    assert [(w.steps, w.samples, w.seconds) for w in done.windows] == [(4, 40, 8.25), *epoch[1:], *epoch]
    assert done.rates == pytest.approx([0.05 * step for step in range(10)] + [0.5] * 10)
    # The window of 2 s per step is warm-up, and the next one, too: five steps have to be over. In the others there are
    # 10 samples in 0.5 s of work and 0.25 s of waiting.
    assert timing.throughput(done.windows) == timing.Throughput(median=10 / 0.75, spread=0.0, windows=4, dropped=2)
    booked = {"initialise": 11.0, "warmup": 9.25, "train": 6.0, "data": 5.0, "evaluate": 14.0, "checkpoint": 6.0}
    assert done.split == {**dict.fromkeys(timing.PARTS, 0.0), **booked}
    assert (tuple(done.split), sum(done.split.values())) == (timing.PARTS, done.wall)
    assert timing.split(12.0, {"initialise": 3.0}, [], 0)["rest"] == 9.0


def test_only_slow_steps_are_waited_for_within_a_window() -> None:
    # The first step takes a minute (a compiler), the others of the first window 12 s each, those of the second 0.5 s.
    def seconds(step: int) -> float:
        return 60.0 if step == 0 else 12.0 if step < 10 else 0.5

    done = Driven(short(window=10), seconds, most_queued=30.0)
    assert done.waits == [1, 2, 5, 8, 13]
    assert [(w.steps, w.seconds) for w in done.windows] == [(10, 168.0), (10, 5.0)]


@pytest.mark.parametrize(
    ("step_seconds", "lengths"),
    [
        # After 5 steps, at least 16 steps are a window, and an epoch is 100: 92 more in the first one.
        (1 / 32, [4, 4, 19, 19, 18, 18, 18, 17, 17, 17, 17, 16, 16]),
        (1 / 128, [4, 4, 92, 100]),
        (0.25, [4] * 50),
    ],
)
def test_a_window_on_a_gpu_lasts_half_a_second(step_seconds: float, lengths: list[int]) -> None:
    run = short(data=Synthetic(train=1000, validation=40))
    on_gpu = dataclasses.replace(run, kind="gpu")
    assert {window.steps for window in Driven(run, lambda _: step_seconds).windows} == {4}
    # The first step compiles, which is no measure of the others.
    done = Driven(on_gpu, lambda step: step_seconds if step else 60.0, most_queued=30.0)
    assert [window.steps for window in done.windows] == lengths
    assert all(window.seconds >= 0.5 for window in done.windows[2:])
    # A range test needs the loss at each rate, not a speed.
    assert {window.steps for window in Driven(dataclasses.replace(on_gpu, grows_from=1e-4)).windows} == {4}


@pytest.mark.parametrize(("steps", "window"), [(30, 5), (8 + 12, 2), (12 + 12, 4), (200, 5), (1000, 20)])
def test_steps_before_a_graph_is_recorded_are_no_speed(steps: int, window: int) -> None:
    run = dataclasses.replace(short(steps=steps, epochs=None, window=window), kind="gpu", steps_per_epoch=steps)
    slow = [0.01] * 11 + [0.2]
    done = Driven(run, lambda step: slow[step] if step < len(slow) else 0.003, warmup_steps=len(slow))
    speed = timing.throughput(done.windows)
    assert speed
    assert speed.median == pytest.approx(run.global_batch / 0.003, rel=0.01)


def test_all_workers_have_the_windows_of_the_first_one_or_the_recipe_s() -> None:
    run = dataclasses.replace(short(data=Synthetic(train=1000, validation=40)), kind="gpu")
    first = Driven(run, lambda _: 1 / 32)
    other = Driven(run, lambda _: 0.1, worker=1, others=first.said)
    assert [window.steps for window in other.windows] == [window.steps for window in first.windows]
    # Without an exact sum they cannot agree.
    asynchronous = Driven(dataclasses.replace(run, workers=2, devices=2, kvstore=DistAsync()), lambda _: 1 / 32)
    assert {window.steps for window in asynchronous.windows} == {4}


def test_peak_memory_is_that_after_the_first_window_and_the_first_evaluation() -> None:
    assert Driven(short()).resets == [4, 10]
    assert Driven(short(), first_step=14).resets == [4]
    assert Driven(short(window=10, epochs=1)).resets == []


EVERY_WINDOW, EVERY_SECOND = [4, 8, 10, 14, 18, 20], [8, 10, 18, 20]


@pytest.mark.parametrize(("seconds", "saved"), [(0.5, [10, 20]), (60.0, EVERY_WINDOW), (25.0, EVERY_SECOND)])
def test_checkpoints_are_made_after_every_epoch_and_three_minutes_by_the_first_clock(
    seconds: float, saved: list[int]
) -> None:
    run = short()
    first = Driven(run, lambda _: seconds)
    other = Driven(run, lambda _: 1.0, worker=1, others=first.said)
    assert (first.saved, other.saved) == (saved, saved)


@pytest.mark.parametrize(("every", "saved"), [(3, EVERY_WINDOW), (7, EVERY_SECOND)])
def test_workers_that_cannot_agree_make_checkpoints_after_so_many_steps(every: int, saved: list[int]) -> None:
    asynchronous = dataclasses.replace(short(), workers=2, devices=2, kvstore=DistAsync())
    assert Driven(asynchronous, lambda _: 60.0, save_every=every).saved == saved


def test_checkpoints_on_gpus_are_made_after_epochs_of_30_seconds_and_at_the_end() -> None:
    # An epoch takes 5 s and its evaluation 7, a checkpoint 3.
    run = dataclasses.replace(short(epochs=7), kind="gpu")
    first = Driven(run)
    assert first.saved == [30, 60, 70]
    # Others go by the first one's clock.
    assert Driven(run, lambda _: 0.01, worker=1, others=first.said).saved == first.saved
    reached = Driven(dataclasses.replace(run, target_accuracy=0.75))
    assert (reached.saved, reached.outcome) == ([10], COMPLETED)


@pytest.mark.parametrize(
    ("seconds", "evaluate", "steps", "epochs"), [(3.5, True, [4, 4, 2, 4, 4], [1, 2]), (1.0, False, [4, 4, 2], [])]
)
def test_a_run_by_time_ends_with_the_window_in_which_the_time_is_up(
    seconds: float, evaluate: bool, steps: list[int], epochs: list[int]
) -> None:
    # Windows of 2, 2 and 1 s are an epoch; those that begin in the first five steps are never timed, and do not count.
    done = Driven(short(seconds=seconds, evaluate=evaluate))
    assert ([window.steps for window in done.windows], done.epochs_evaluated) == (steps, epochs)
    assert done.outcome == COMPLETED
    compiling = Driven(short(seconds=seconds, evaluate=evaluate), lambda step: 0.5 if step else 60.0)
    assert [window.steps for window in compiling.windows] == steps


def test_after_each_resumption_the_first_windows_do_not_count_either() -> None:
    # A window of 4 steps takes 2 s; the third one after the start is the first that counts.
    for trained, steps in ((2.0, [2, 4, 4]), (0.0, [2, 4, 4, 2])):
        resumed = Driven(short(seconds=3.5), first_step=8, trained=trained)
        assert [window.steps for window in resumed.windows] == steps


@pytest.mark.parametrize(("target", "epochs"), [(0.75, 1), (0.76, 3)])
def test_a_run_ends_with_the_evaluation_that_reaches_its_target(target: float, epochs: int) -> None:
    done = Driven(short(epochs=3, target_accuracy=target))
    assert done.epochs_evaluated == list(range(1, epochs + 1))  # each finds 0.75
    assert (done.saved[-1], done.outcome) == (epochs * 10, COMPLETED)
    # Resumed from its last checkpoint, it does nothing more.
    resumed = Driven(short(epochs=3, target_accuracy=target), first_step=epochs * 10, scored=(30, 40))
    assert (resumed.windows, resumed.outcome) == ([], COMPLETED)


def test_a_target_is_reached_by_exactly_its_accuracy() -> None:
    # In float32 47/50 is less than 0.94.
    assert Driven(short(target_accuracy=0.94), first_step=10, scored=(47, 50)).windows == []


@pytest.mark.parametrize("first_step", [4, 10, 14])
def test_a_resumed_run_does_the_steps_that_are_left(first_step: int) -> None:
    run = short(lr=Fixed(base=0.5, warmup_epochs=1.5))
    complete, resumed = (Driven(run, lambda _: 60.0, first_step=step) for step in (0, first_step))
    assert resumed.rates == complete.rates[first_step:]
    assert resumed.saved == [step for step in complete.saved if step > first_step]
    assert resumed.epochs_evaluated == ([1, 2] if first_step < 10 else [2])


def test_the_clock_of_a_resumed_run_leaves_out_the_time_that_was_lost() -> None:
    now = iter([0.0, 0.0, 5.0, 25.0, 1000.0, 1000.0, 1003.0, 1003.0])
    before = timing.Clock(now=lambda: next(now))
    with before.part("initialise"):
        pass
    saved = before.elapsed(), dict(before.parts)
    after = timing.Clock(now=lambda: next(now))
    with after.part("initialise"):
        after.resume(*saved)
    assert (after.elapsed(), after.parts) == (28.0, {"initialise": 8.0})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 4e13])
@pytest.mark.parametrize(
    ("field", "step"), [("loss", "after step 8"), ("evaluation_loss", "after epoch 1"), ("parameter", "after step 20")]
)
def test_a_run_diverges_by_a_loss_or_a_parameter(field: str, step: str, value: float) -> None:
    changes: dict[str, Any] = {field: value}
    if field == "loss":
        changes = {"loss": lambda step: value if step >= 8 else 1.0}
    done = Driven(short(), **changes)
    assert (done.outcome, step in done.reason) == (DIVERGED, True)
    if field == "loss":
        assert [window.loss for window in done.windows] == [1.0, value if np.isfinite(value) else None]


def test_the_time_to_enqueue_a_step_is_that_of_idle_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes 1 s, a step 3 s; a queue of two steps lets no third one in before the first has ended."""
    now, ends = [0.0], [0.0]

    class Queue:
        gradient_bytes = 8

        def step(self, batch: Batch, learning_rate: float) -> None:
            now[0] = max([now[0], *ends[-2:-1]]) + 1.0
            ends.append(max(now[0] - 1.0, ends[-1]) + 3.0)

        def drain(self) -> None:
            now[0] = max(now[0], ends[-1])

        def sync_is_correct(self) -> bool:
            return True

        all_reduce_alone = barrier = lambda self: None
        without_sync = contextlib.nullcontext

    monkeypatch.setattr(step_profile, "time", SimpleNamespace(monotonic=lambda: now[0]))
    session: Any = Queue()
    measured = step_profile.measure(session, iter([None] * 24), short(), 3)  # type: ignore[list-item]
    assert (measured.issue_seconds, measured.whole_step_seconds) == (1.0, 3.0)
    slowed = step_profile.measure(session, iter([None] * 24), short(devices=2, emulated=True), 3)  # type: ignore[list-item]
    assert slowed.issue_seconds is None


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


def test_time_is_stolen_from_the_cores_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A virtual machine with two cores, in ticks of 10 ms.
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    (tmp_path / "stat").write_text(
        "cpu  2111632 1358614 493373 1554983 15128 0 9737 26142 0 0\n"
        "cpu0 974469 666088 243738 878932 4496 0 3451 13093 0 0\n"
        "cpu1 1137163 692525 249634 676050 10632 0 6286 13048 0 0\n"
        "intr 27006599 0 0\n"
    )
    both = (2, pytest.approx(39733.54), pytest.approx(261.41))
    second = (1, pytest.approx(20856.08), pytest.approx(130.48))
    # A container can number its cores anew, and the kernel leaves out a core that is switched off.
    for usable, expected in (({0, 1}, both), ({1}, second), ({4, 5}, both), ({2}, second)):
        if usable == {2}:
            (tmp_path / "stat").write_text((tmp_path / "stat").read_text().replace("cpu1", "cpu2"))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, usable=usable: usable)
        assert hardware.core_times(tmp_path) == expected
