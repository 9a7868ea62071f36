"""The training loop, the same for every framework."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import numpy as np

from poc.config.run import WARMUP_STEPS, Run
from poc.data import Batch
from poc.frameworks import Session
from poc.records.noise import Norms
from poc.records.record import COMPLETED, DIVERGED, Evaluation
from poc.records.timing import WINDOW_SECONDS, Clock, Window

EXPLODED = 1e4  # mean loss of a window or an evaluation, in nats, from which no run comes back
LARGEST_PARAMETER = 1e6  # absolute value that no parameter has in a training that learns
_LONG_STEP = 0.01  # seconds; shorter ones would be slower if devices were waited for
_SHORT_WAIT = 0.05  # share of a step: a batch that comes so soon finds the devices at work

CHECKPOINT_SECONDS = 180.0  # time between two checkpoints within an epoch
GPU_CHECKPOINT_SECONDS = 30.0  # least time between the checkpoints after epochs on GPUs, where one may take longer


@dataclasses.dataclass
class Loop:
    """The training of one worker, which emits an event for every window and evaluation."""

    run: Run
    session: Session
    validation: Callable[[], Iterable[Batch]]
    clock: Clock
    emit: Callable[[str, Any], None]  # write an event, given its name and a `Window`, `Norms` or `Evaluation`
    save: Callable[[int], None]  # write a checkpoint, given the steps done
    worker: int = 0
    first_step: int = 0
    save_every: float = math.inf  # steps after which to do so within an epoch, if workers cannot agree on a time
    trained: float = 0.0  # seconds of all windows so far that began after `WARMUP_STEPS`, counted from each start
    scored: tuple[int, int] = (0, 0)  # images that this worker classified correctly in the last evaluation, of how many
    warmup_steps: int = 0  # steps of the first window on GPUs, at least
    most_queued: float = math.inf  # seconds of steps enqueued without a wait; a longer queue would look like a hang

    def __post_init__(self) -> None:
        self._step = self._saved = self.first_step
        self._saved_at = self.clock.elapsed()
        self._step_seconds = math.inf
        self._time_is_up = self._has_evaluated = False
        self._peak_has_search = True  # for the fastest algorithms, in the first window and the first evaluation

    def train(self, batches: Iterator[Batch], is_ready: Callable[[float], bool]) -> tuple[str, str]:
        """Train to the last step of the run, or to its pause; return the outcome and its reason.

        A run has diverged if the loss of a window or of an evaluation, or a parameter after the last update, is not
        finite or too large. The loss of a window is that before its updates, so it does not show the last update.
        `is_ready` returns whether the next batch comes within so many seconds.
        """
        run, self._is_ready = self.run, is_ready
        self._check_time()
        for epoch in range(self._step // run.steps_per_epoch + 1, run.last_epoch + 1):
            if self._time_is_up or self._has_reached_target():
                break
            last = min(epoch * run.steps_per_epoch, run.steps)
            while self._step < last and not self._time_is_up:
                loss = self._window(batches, epoch, self._window_steps(last - self._step))
                if not loss < EXPLODED:  # nan, too
                    return DIVERGED, f"the training loss was {loss:.6g} after step {self._step}"
                self._check_time()
                if self._step < last and not self._time_is_up and self._is_due(CHECKPOINT_SECONDS, self.save_every):
                    self._checkpoint()
            if run.evaluate:
                evaluation = self._evaluate(epoch)
                if evaluation.loss is None or not evaluation.loss < EXPLODED:
                    loss_text = "not finite" if evaluation.loss is None else f"{evaluation.loss:.6g}"
                    return DIVERGED, f"the evaluation loss was {loss_text} after epoch {epoch}"
            if run.kind == "cpu" or self._is_due(GPU_CHECKPOINT_SECONDS, 0):
                self._checkpoint()
        if self._saved < self._step:
            self._checkpoint()
        largest = self.session.largest_parameter()
        if not largest < LARGEST_PARAMETER:
            return DIVERGED, f"the largest parameter was {largest:.6g} after step {self._step}"
        return COMPLETED, ""

    def _check_time(self) -> None:
        """Find out whether the time of the run is up: for all workers, once it is by the first one's clock."""
        if self.run.seconds is not None:
            self._time_is_up = self._decide(self.trained >= self.run.seconds) > 0

    def _decide(self, number: float) -> float:
        """Return the first worker's number, below 2^24, in all workers."""
        (total,) = self.session.sum_over_workers(np.array([number if self.worker == 0 else 0.0]))
        return float(total)

    def _window_steps(self, steps_left: int) -> int:
        """Return the steps of the next window, of the `steps_left` of this epoch.

        On GPUs it has as many as take `WINDOW_SECONDS`, by the steps of the window before, and the rest of the epoch is
        divided equally, so that its last window is no shorter. Not in a range test, which needs the loss at each rate.
        """
        run, steps = self.run, self.run.window
        is_timed = run.kind == "gpu" and run.workers_agree and not run.is_range_test
        if is_timed and self._step - self.first_step >= WARMUP_STEPS:
            wanted = max(steps, math.ceil(WINDOW_SECONDS / self._step_seconds))
            steps = int(self._decide(min(wanted, steps_left)))
            steps = math.ceil(steps_left / (steps_left // steps))
        elif is_timed and self._step == self.first_step:
            steps = max(steps, self.warmup_steps)
        return min(steps, steps_left)

    def _has_reached_target(self) -> bool:
        """Return whether all workers together have the target accuracy, the same answer in each of them."""
        if self.run.target_accuracy is None:
            return False
        with self.clock.part("evaluate"):
            correct, evaluated = self.session.sum_over_workers(np.array(self.scored))
        return bool(evaluated) and float(correct) / float(evaluated) >= self.run.target_accuracy  # sums may be float32

    def _window(self, batches: Iterator[Batch], epoch: int, count: int) -> float:
        """Train for `count` steps; return their mean loss.

        The clock is read only when everything enqueued is drained. In between nothing is fetched, and nothing is waited
        for except after the first step, in windows longer than `most_queued`, and before a wait for data.
        """
        run, clock = self.run, self.clock
        if self._peak_has_search and self._step > self.first_step:
            self.session.reset_peak_memory()
            self._peak_has_search = False
        start, waited, samples = clock.elapsed(), 0.0, 0
        since, enqueued = start, 0
        steps = range(self._step, self._step + count)
        norm_steps = [step for step in steps if run.gradient_noise and step % run.gradient_noise == 0]
        for step in steps:
            request = clock.elapsed()
            if _LONG_STEP < self._step_seconds < math.inf and not self._is_ready(_SHORT_WAIT * self._step_seconds):
                before = clock.elapsed()
                self.session.wait()
                request += clock.elapsed() - before  # devices at work do not wait for data
            batch = next(batches)
            waited += clock.elapsed() - request
            self.session.step(batch, run.rate(step), norms=step in norm_steps)
            samples += len(batch)
            enqueued += 1
            if enqueued * self._step_seconds > self.most_queued:
                self.session.wait()
                now = clock.elapsed()
                self._step_seconds, since, enqueued = (now - since) / enqueued, now, 0
        start_step, self._step = self._step, self._step + count
        loss = self.session.drain()
        end = clock.elapsed()
        seconds = end - start
        if enqueued:  # without the steps before the last wait, of which the first one may compile
            self._step_seconds = (end - since) / enqueued
        if start_step - self.first_step >= WARMUP_STEPS:  # else the time could be up before a window is timed
            self.trained += seconds
        window = Window(
            epoch=epoch, start=start, steps=count, samples=samples, seconds=seconds, waited=waited, loss=_finite(loss)
        )
        self.emit("window", window)
        for step, (small, large) in zip(norm_steps, self.session.gradient_norms() if norm_steps else ()):
            if math.isfinite(small + large):
                self.emit("norms", Norms(step=step, small=small, large=large))
        return loss

    def _evaluate(self, epoch: int) -> Evaluation:
        start = self.clock.elapsed()
        with self.clock.part("evaluate"):
            correct, samples, mean_loss = self.session.evaluate(self.validation())
        self._peak_has_search |= not self._has_evaluated
        self._has_evaluated = True
        self.scored = correct, samples
        seconds, loss = self.clock.elapsed() - start, _finite(mean_loss)
        evaluation = Evaluation(
            epoch=epoch, at=start, seconds=seconds, accuracy=correct / max(1, samples), samples=samples, loss=loss
        )
        self.emit("evaluation", evaluation)
        return evaluation

    def _is_due(self, seconds: float, steps: float) -> bool:
        """Return whether the last checkpoint is so old: by the first worker's clock, else in steps."""
        if not self.run.workers_agree:
            return self._step - self._saved >= steps
        return self._decide(self.clock.elapsed() - self._saved_at >= seconds) > 0

    def _checkpoint(self) -> None:
        with self.clock.part("checkpoint"):
            self.save(self._step)
        self._saved, self._saved_at = self._step, self.clock.elapsed()


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
