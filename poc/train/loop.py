"""The training loop, the same for every engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from poc.data import Batch
from poc.engines import Session
from poc.records.record import COMPLETED, DIVERGED
from poc.records.timing import Clock
from poc.run import Run

EXPLODED = 1e4
"""Mean training loss of a window, in nats, from which no run comes back."""

Tell = Callable[[dict[str, Any]], None]


class Loop:
    """Trains `run` from `first_step` on and tells of every window and evaluation.

    `save` is given the steps done after every epoch, and within one after `save_every` steps.
    """

    def __init__(
        self,
        run: Run,
        session: Session,
        validation: Callable[[], Iterable[Batch]],
        clock: Clock,
        tell: Tell,
        save: Callable[[int], None] = lambda step: None,
        *,
        first_step: int = 0,
        save_every: int | None = None,
    ) -> None:
        self._run = run
        self._session = session
        self._validation = validation
        self._clock = clock
        self._tell = tell
        self._save = save
        self._save_every = save_every
        self._step = self._saved = first_step

    def train(self, batches: Iterator[Batch]) -> tuple[str, str]:
        """Trains to the last step of the run; returns the outcome and its reason."""
        run = self._run
        for epoch in range(1, run.epochs + 1):
            last = min(epoch * run.steps_per_epoch, run.steps)
            if last <= self._step:
                continue
            out_of_time = False
            while self._step < last and not out_of_time:
                loss = self._window(batches, epoch, min(run.window, last - self._step))
                if not loss < EXPLODED:  # nan, too
                    return DIVERGED, f"the training loss was {loss:.6g} after step {self._step}"
                trained = self._clock.elapsed() - sum(self._clock.parts.values())
                out_of_time = run.seconds is not None and trained >= run.seconds
                due = self._save_every is not None and self._step - self._saved >= self._save_every
                if due and self._step < last and not out_of_time:
                    self._checkpoint()
            if run.evaluate:
                self._evaluate(epoch)
            self._checkpoint()
            if out_of_time:
                break
        return COMPLETED, ""

    def _window(self, batches: Iterator[Batch], epoch: int, steps: int) -> float:
        """Trains for some steps; returns their mean loss.

        The clock is read only where everything enqueued is drained, and nothing is fetched in between.
        """
        run, clock, session = self._run, self._clock, self._session
        schedule, start, waited, samples = run.schedule, clock.elapsed(), 0.0, 0
        looked_at: list[int] = []
        for step in range(self._step, self._step + steps):
            asked = clock.elapsed()
            batch = next(batches)
            waited += clock.elapsed() - asked
            look = run.gradient_noise is not None and step % run.gradient_noise == 0
            session.step(batch, schedule.rate(step), norms=look)
            looked_at += [step] if look else []
            samples += len(batch)
        self._step += steps
        loss = session.drain()
        self._tell(
            {
                "event": "window",
                "epoch": epoch,
                "start": start,
                "steps": steps,
                "samples": samples,
                "seconds": clock.elapsed() - start,
                "waited": waited,
                "loss": loss if math.isfinite(loss) else None,
            }
        )
        if looked_at:
            for step, (small, large) in zip(looked_at, session.gradient_norms()):
                if math.isfinite(small + large):
                    self._tell({"event": "norms", "step": step, "small": small, "large": large})
        return loss

    def _evaluate(self, epoch: int) -> None:
        at = self._clock.elapsed()
        with self._clock.part("evaluate"):
            found = self._session.evaluate(self._validation())
        self._tell(
            {
                "event": "evaluation",
                "epoch": epoch,
                "at": at,
                "seconds": self._clock.elapsed() - at,
                "accuracy": found.correct / found.samples,
                "samples": found.samples,
                "loss": found.loss if math.isfinite(found.loss) else None,
            }
        )

    def _checkpoint(self) -> None:
        with self._clock.part("checkpoint"):
            self._save(self._step)
        self._saved = self._step
