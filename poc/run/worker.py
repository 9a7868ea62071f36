"""What the process of one worker does: it trains its share of a run and appends what happens to a file of events.

python -m poc.run.worker    (its request, as JSON, on the standard input; exit code 1: it failed)
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np

from poc import data, frameworks
from poc.config import Synthetic, networks
from poc.config.datasets import DataId
from poc.config.run import Run
from poc.frameworks import Session
from poc.frameworks.whitening import IMAGES as WHITENING_IMAGES
from poc.host.waiting import SpinGuard
from poc.records.record import COMPLETED, FAILED, OUT_OF_MEMORY
from poc.records.timing import Clock
from poc.run import checkpoint, step_profile
from poc.run.loop import Loop
from poc.run.progress import Progress
from poc.values import UserError, to_plain

T = TypeVar("T")
EVALUATION_BATCH = 250
# Signs of life, which the parent looks for once a second, and what of its patience may be spent without one.
_SIGN_SECONDS = 1.0
_SILENCE_SHARE = 0.1


class Worker:
    """One worker, at the `request` of its parent."""

    def __init__(self, request: dict[str, Any], events: TextIO) -> None:
        self.run = Run.from_json(request["run"])
        self._request = request
        self._number = request["worker"]
        self._first_step = request["first_step"]
        self._checkpoints = Path(request["checkpoints"])
        self._clock = Clock(start=request["began"])
        self._progress = Progress(self.run, request["title"], shown=self._number == 0, verbose=request["verbose"])
        self._events = events
        self._told: list[dict[str, Any]] = []
        self._silence = _SILENCE_SHARE * request["patience"]
        self._signed = 0.0

    def work(self) -> str:
        """Trains, and tells of everything up to its end; returns the outcome."""
        try:
            end = self._train()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's comes twice: from it, and from the parent
            end = self._end(FAILED, "interrupted")
        except Exception as error:  # whatever it is, it belongs in the record
            memory = frameworks.load(self.run.framework).is_out_of_memory(error)
            end = self._end(OUT_OF_MEMORY if memory else FAILED, f"{type(error).__name__}: {_line_of(error)}")
        self._tell("end", end)
        if end["outcome"] == COMPLETED:
            self._session.close()
        self._progress.close()
        return str(end["outcome"])

    def _end(self, outcome: str, reason: str) -> dict[str, Any]:
        """What it tells at its end, with what it has used so far."""
        memory = {"host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        used = {"parts": self._clock.parts, "wall": self._clock.elapsed(), "memory": memory}
        return {"outcome": outcome, "reason": reason, **used}

    def _train(self) -> dict[str, Any]:
        """Does what the request asks for; returns what it tells at its end."""
        run, request = self.run, self._request
        with self._clock.part("initialise"):
            source = Path(request["source"]) if request["source"] else None
            planned = DataId(*request["images"])
            fallback = planned.name == Synthetic.name
            dataset = data.load(run.data, source=source, cache=Path(request["cache"]), fallback=fallback)
            if dataset.data_id != planned:
                raise UserError(
                    f"data: this worker has {dataset.data_id}, the plan has {planned}; all workers need the same "
                    "images, unchanged during a run"
                )
            self._sign()
            session = self._session = self._open(dataset)
        threads = int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))))
        images = {"dataset": dataset.name, "data_checksum": dataset.checksum}
        self._tell("ready", {**images, "parameters": session.parameters, "threads": threads})
        share = {"worker": self._number, "workers": run.workers}
        stream = functools.partial(
            data.training_batches,
            dataset,
            run.data,
            global_batch=run.global_batch,
            seed=run.seed,
            **share,
            # A CPU's cores belong to the training, which one thread can feed.
            threaded=run.kind != "cpu",
        )
        steps = run.steps - self._first_step + step_profile.steps_of(request["detail"])
        wanted = stream(first_step=self._first_step, steps=steps)
        loop = Loop(
            run,
            session,
            lambda: self._signing(data.validation_batches(dataset, run.data, batch=EVALUATION_BATCH, **share)),
            self._clock,
            self._tell,
            self._save,
            first_step=self._first_step,
            save_every=request["checkpoint_every"],
            accuracy=next((told["accuracy"] for told in self._told[::-1] if told["event"] == "evaluation"), 0.0),
            silence=self._silence,
        )
        # As deep as a window: while one is drained the next one's batches are made, so that a wait is a real one. Few
        # wait on the devices, whose memory they take.
        ahead = data.prefetch(wanted, depth=run.window)
        with ahead as made, data.prefetch(made if run.emulated else map(session.placed, made), depth=2) as placed:
            batches = self._signing(placed)
            with SpinGuard(threads) as guard:
                end = self._end(*loop.train(batches))
            end["short_spin_seconds"] = round(guard.seconds, 1)
            end["exchanged"] = session.sync_stats() or None
            end["memory"]["device_peak_bytes"] = session.peak_device_bytes()  # without what is multiplied below
            if end["outcome"] == COMPLETED:
                with contextlib.suppress(Exception):  # memory may not be enough for it; what was trained stands
                    end["peak_flops"] = session.peak_flops()
                if request["detail"]:
                    try:
                        found = step_profile.measure(
                            session, batches, run, request["detail"], lambda n: stream(steps=n)
                        )
                        end["detail"] = to_plain(found)
                    except Exception as error:
                        # Others would wait for one of several workers.
                        if run.workers > 1 or isinstance(error, step_profile.WrongSumError):
                            raise
                        print(f"  no step-time breakdown: {error}", file=sys.stderr)
        return end

    def _open(self, dataset: data.Dataset) -> Session:
        """The session, where there is a checkpoint to go on from as it was then; all workers leave this together."""
        first_step, state = self._first_step, None
        if first_step:
            before = checkpoint.read(self._checkpoints, self._number, first_step)
            state = before.arrays
            for event in before.story["events"]:
                self._tell(event["event"], event)
            self._clock.resume(*before.story["clock"])
            self._tell("resumed", {"step": first_step, "why": self._request["why"], "at": before.story["clock"][0]})
        session = frameworks.open_session(self.run, first_step=first_step, state=state)
        self._sign()
        if (images := data.device_images(dataset, self.run.data)) is not None:
            session.hold(images)
        if networks.network(self.run.model).whitens and not first_step:
            first = min(WHITENING_IMAGES, len(dataset.train))
            session.whiten(dataset.train.center_crop(np.arange(first), self.run.data)[0])
        session.barrier()
        return session

    def _tell(self, name: str, told: Any) -> None:
        event = {"event": name, **to_plain(told)}
        self._told.append(event)
        self._events.write(json.dumps(event, allow_nan=False) + "\n")
        self._events.flush()
        self._progress.show(event)

    def _signing(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches; each that is asked for is a sign of life."""
        for batch in batches:
            self._sign()
            yield batch

    def _sign(self) -> None:
        """Show the parent that this worker goes on, by when its file of events was changed; not at every call."""
        if (now := self._clock.elapsed()) - self._signed > min(_SIGN_SECONDS, self._silence):
            os.utime(self._events.fileno())
            self._signed = now

    def _save(self, step: int) -> None:
        if step == self.run.steps and not self._request["keep"]:
            return
        clock = [self._clock.elapsed(), self._clock.parts]
        story = {"conditions": self._request["conditions"], "events": self._told, "clock": clock}
        state = checkpoint.Checkpoint(step=step, arrays=self._session.state(), story=story)
        try:
            checkpoint.write(self._checkpoints, self._number, state)
        except OSError as error:  # a full disk is no reason to stop; the run is only less safe
            self._tell("unsaved", {"step": step, "why": str(error)})
            print(f"  the checkpoint after step {step} failed: {error}", file=sys.stderr)


def _line_of(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # MXNet puts the line that says what is wrong after those of its C++ stack.
    named = [line for line in lines if "Error" in line or "Check failed" in line]
    return [*named[-1:], *lines, ""][0]


def main() -> None:
    """Does what the standard input asks for."""
    request = json.load(sys.stdin)
    os.sched_setaffinity(0, request["cores"])
    with Path(request["events"]).open("a") as events:
        outcome = Worker(request, events).work()
    # At once, since all is told: taken down, CUDA may crash, and a distributed kvstore waits for other workers.
    sys.stderr.flush()
    os._exit(outcome != COMPLETED)


if __name__ == "__main__":
    main()
