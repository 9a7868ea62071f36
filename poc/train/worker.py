"""What the process of one worker does: it trains its share of a run and appends what happens to a file of events.

python -m poc.train.worker    (its request, as JSON, on the standard input; exit code 1: it failed)
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from poc import data, engines
from poc.engines import Session
from poc.recipe import CIFAR10
from poc.records.record import COMPLETED, FAILED
from poc.records.timing import Clock
from poc.run import Run
from poc.train import breakdown, checkpoint, told
from poc.train.loop import Loop
from poc.train.progress import Progress
from poc.values import to_plain

EVALUATION_BATCH = 250


class Worker:
    """One worker, at the `request` of its parent."""

    def __init__(self, request: dict[str, Any], events: TextIO) -> None:
        self.run = Run.from_json(request["run"])
        self._request = request
        self._number = request["worker"]
        self._folder = Path(request["checkpoints"])
        self._clock = Clock(start=request["began"])
        self._progress = Progress(self.run, shown=self._number == 0)
        self._events = events
        self._told: list[dict[str, Any]] = []

    def work(self) -> str:
        """Trains, and tells of everything up to its end; returns the outcome."""
        end: dict[str, Any] = {"event": "end"}
        try:
            end.update(self._train())
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's comes twice: from it, and from the parent
            end.update(outcome=FAILED, reason="interrupted", **told.used(self._clock))
        except Exception as error:  # whatever it is, it belongs in the record
            reason = f"{type(error).__name__}: {_first_line(error)}"
            end.update(outcome=FAILED, reason=reason, **told.used(self._clock))
        self._tell(end)
        self._progress.close()
        return str(end["outcome"])

    def _train(self) -> dict[str, Any]:
        """Does what the request asks for; returns the fields of its end."""
        run, request = self.run, self._request
        with self._clock.part("initialise"):
            dataset = _dataset(run, request)
            self.session = self._open(data.held(dataset, run.data))
        self._tell({"event": "ready", "dataset": dataset.name, "parameters": self.session.parameters})
        share = {"worker": self._number, "workers": run.workers}
        stream = data.training_batches(
            dataset,
            run.data,
            total_batch=run.total_batch,
            seed=run.seed,
            first_step=request["first_step"],
            steps=run.steps - request["first_step"] + breakdown.steps_of(request["detail"]),
            **share,
        )
        loop = Loop(
            run,
            self.session,
            functools.partial(data.validation_batches, dataset, run.data, batch=EVALUATION_BATCH, **share),
            self._clock,
            self._tell,
            self._save,
            first_step=request["first_step"],
            save_every=request["checkpoint_every"],
        )
        # As deep as a window: while one is drained the next one's batches are made, so that a wait is a real one.
        with data.Prefetch(stream, depth=run.window) as batches:
            outcome, reason = loop.train(batches)
            end = {"outcome": outcome, "reason": reason, **told.used(self._clock)}
            end["exchanged"] = self.session.exchange_stats() or None
            if outcome == COMPLETED:
                end["peak_flops"] = self.session.peak_flops()
                if request["detail"]:
                    measured = breakdown.measure(self.session, batches, run, request["detail"])
                    end["detail"] = to_plain(measured)
        end["device_peak_bytes"] = self.session.peak_device_bytes()
        return end

    def _open(self, images: np.ndarray | None) -> Session:
        """The session, where there is a checkpoint to go on from as it was then; all workers leave this together."""
        first_step = self._request["first_step"]
        state: Mapping[str, np.ndarray] | None = None
        if first_step:
            before = checkpoint.read(self._folder, self._number, first_step)
            state = before.arrays
            for event in before.story["events"]:
                self._tell(event)
            self._clock.resume(*before.story["clock"])
            self._tell({"event": "resumed", "step": first_step, "why": self._request["why"]})
        session = engines.open_session(self.run, first_step=first_step, state=state)
        if images is not None:
            session.hold(images)
        session.barrier()
        return session

    def _tell(self, event: dict[str, Any]) -> None:
        self._told.append(event)
        self._events.write(json.dumps(event, allow_nan=False) + "\n")
        self._events.flush()
        self._progress.show(event)

    def _save(self, step: int) -> None:
        if step == self.run.steps and not self._request["keep"]:
            return
        story = {
            "conditions": self._request["conditions"],
            "events": self._told,
            "clock": [self._clock.elapsed(), self._clock.parts],
        }
        state = checkpoint.Checkpoint(step=step, arrays=self.session.state(), story=story)
        try:
            checkpoint.write(self._folder, self._number, state)
        except OSError as error:  # a full disk is no reason to stop; the run is only less safe
            self._tell({"event": "unsaved", "step": step, "why": str(error)})


def _dataset(run: Run, request: dict[str, Any]) -> data.Dataset:
    if request["stand_in"] and isinstance(run.data, CIFAR10):
        return data.stand_in()
    source = Path(request["source"]) if request["source"] else None
    return data.load(run.data, source=source, cache=Path(request["cache"]))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # MXNet puts the line that says what is wrong after those of its C++ stack.
    named = [line for line in lines if "Error" in line or "Check failed" in line]
    return (named or lines or [""])[-1 if named else 0]


def main() -> None:
    """Does what the standard input asks for."""
    request = json.load(sys.stdin)
    os.sched_setaffinity(0, request["cores"])
    with Path(request["events"]).open("a") as events:
        outcome = Worker(request, events).work()
    if outcome == FAILED:
        # At once: as it is taken down, a distributed kvstore waits for other workers, which may wait for this one.
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
