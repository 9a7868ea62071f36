"""The process of one worker: it trains its part of a run and appends events to a file.

python -m poc.run.worker    (its request, as JSON, on the standard input; exit code 1: it failed)
"""

import contextlib
import itertools
import json
import math
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np

from poc import data, frameworks
from poc.config import Horovod, Synthetic
from poc.config.datasets import DataId, Own
from poc.config.run import Run
from poc.frameworks import Session, own_models
from poc.frameworks.session import WHITENING_IMAGES, WrongSumError
from poc.host import hardware
from poc.host.waiting import spin_guard
from poc.records.record import COMPLETED, FAILED, INTERRUPTED, OUT_OF_MEMORY, Breakdown
from poc.records.timing import Clock
from poc.run import checkpoint, step_profile
from poc.run.loop import Loop
from poc.run.progress import Progress
from poc.values import UserError, from_plain, one_line, to_plain

T = TypeVar("T")
EVALUATION_BATCH = 250
_GPU_EVALUATION_BATCH = 1_000
_PREFETCHED_BYTES = 1 << 30  # of large batches of photos a window would fill the memory
# The parent looks for a heartbeat once a second; steps that are enqueued may use this share of its patience.
_HEARTBEAT_SECONDS = 1.0
_SILENCE_SHARE = 0.1


def evaluation_batch(run: Run, samples: int) -> int:
    """Return the batch in which a worker evaluates its part of the `samples`.

    On GPUs it is up to 1,000 small images, since many passes would take longer to enqueue than to compute. The batches
    are of nearly one size, for each of which frameworks search for the fastest algorithms. Several GPUs of one worker
    share a batch.
    """
    if run.data.crop > 32:  # large images must not take more memory than the training
        devices = 1 if run.emulated else run.devices // run.workers
        return min(EVALUATION_BATCH, max(8, 2 * run.batch_per_device * devices))
    if run.kind == "cpu":
        return EVALUATION_BATCH
    part = max(1, math.ceil(samples / run.workers))
    most = _GPU_EVALUATION_BATCH * (1 if run.emulated else run.devices // run.workers)
    return math.ceil(part / math.ceil(part / most))


class Worker:
    """One worker, which does the `request` of its parent."""

    def __init__(self, request: dict[str, Any], events: TextIO) -> None:
        self.run = from_plain(Run, request["run"])
        self._request = request
        self._number = request["worker"]
        self._first_step = self._saved_step = request["first_step"]
        self._checkpoints = Path(request["checkpoints"])
        self._clock = Clock(start=request["began"])
        self._progress = Progress(self.run, request["title"], first_step=self._first_step, shown=self._number == 0)
        self._file = events
        self._events: list[dict[str, Any]] = []
        self._counted: dict[str, Any] = {}  # fields of the loop that it continues
        self._silence = _SILENCE_SHARE * request["patience"]
        self._last_heartbeat = 0.0
        self._is_interrupted = False

    def work(self) -> str:
        """Train, write events up to the end, and return the outcome."""
        try:
            end = self._train()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's comes twice: from it, and from the parent
            end = self._events[-1] if self._events else {}
            if end.get("event") != "end":  # else it came after that
                self._emit("end", end := self._end(FAILED, INTERRUPTED))
        except (Exception, SystemExit) as error:  # whatever it is, it belongs in the record
            memory = frameworks.load(self.run.framework).is_out_of_memory(error)
            place = own_models.last_line(error, self.run)
            outcome, reason = OUT_OF_MEMORY if memory else FAILED, f"{type(error).__name__}: {one_line(error)}{place}"
            self._emit("end", end := self._end(outcome, reason))
        if end["outcome"] == COMPLETED and not self._is_interrupted:  # others may not come to leave together
            self._session.close()
        self._progress.close()
        return str(end["outcome"])

    def _end(self, outcome: str, reason: str) -> dict[str, Any]:
        """Return the fields of the final event: outcome, reason, seconds per part, wall time, peak memory."""
        # Not `ru_maxrss`, which starts with that of the parent.
        peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        memory = {"host_peak_bytes": int(peak[1]) * 1024 if peak else None}
        used = {"parts": self._clock.parts, "wall": self._clock.elapsed(), "memory": memory}
        return {"outcome": outcome, "reason": reason, **used}

    def _train(self) -> dict[str, Any]:
        """Train as the request says; emit and return the final event."""
        run, rounds = self.run, self._request["detail"]
        with self._clock.part("initialise"):
            dataset = self._load()
            session = self._session = self._open(dataset)
        threads = int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))))
        images = {"dataset": dataset.name, "data_checksum": dataset.checksum}
        self._emit("ready", {**images, "parameters": session.parameters, "threads": threads})
        share = {"worker": self._number, "workers": run.workers}
        batch = evaluation_batch(run, len(dataset.validation))
        loop = self._loop = Loop(
            run,
            session,
            lambda: self._with_heartbeat(data.validation_batches(dataset, run.data, batch=batch, **share)),
            self._clock,
            self._emit,
            self._save,
            worker=self._number,
            first_step=self._first_step,
            save_every=self._request["checkpoint_every"],
            warmup_steps=frameworks.load(run.framework).WARMUP_STEPS,
            most_queued=self._silence,
            **self._counted,
        )
        steps = run.last_step - self._first_step + step_profile.steps_of(rounds) + self._request["trace_steps"]
        # A CPU's cores belong to the training, which one thread can feed.
        options = {"accumulate": run.accumulate, "seed": run.seed, "threaded": run.kind != "cpu", **share}
        host_batches = data.training_batches(
            dataset, run.data, global_batch=run.global_batch, first_step=self._first_step, steps=steps, **options
        )
        # As deep as a window: while one is drained the next one's batches are made, so that a wait is a real one. Few
        # wait on the devices, whose memory they need.
        batch_bytes = run.global_batch // run.workers * 3 * run.data.crop**2
        most_bytes = min(_PREFETCHED_BYTES, hardware.usable_memory() // (16 * run.workers))
        depth = max(2, min(run.window, most_bytes // batch_bytes))
        with (
            data.prefetch(host_batches, depth=depth) as (ahead, _),
            data.prefetch(map(session.place, ahead), depth=2) as (placed, is_ready),
        ):
            batches = self._with_heartbeat(placed)
            with spin_guard(threads) if run.kind == "cpu" else contextlib.nullcontext():
                end = self._end(*loop.train(batches, is_ready))
            end["sync_stats"] = session.sync_stats() or None
            end["memory"]["device_peak_bytes"] = session.peak_device_bytes()  # without what is multiplied below
            end["memory"]["device_reserved_bytes"] = session.reserved_device_bytes()
            self._emit("end", end)  # what follows may fail, and end this process
            if end["outcome"] == COMPLETED and not run.pause_after:
                try:
                    with contextlib.suppress(Exception):  # memory may not be enough for it; what was trained stands
                        end["peak_flops"] = session.peak_flops()
                    if rounds:
                        end["detail"] = self._profile(batches, rounds)
                except KeyboardInterrupt:
                    self._is_interrupted = True
                self._emit("end", end)
            if end["outcome"] == COMPLETED and self._request["trace_steps"] and not self._is_interrupted:
                self._trace(itertools.islice(batches, self._request["trace_steps"]))
        return end

    def _trace(self, batches: Iterable[data.Batch]) -> None:
        """Trace steps with the framework's profiler. The record is complete, and stands whatever happens here."""
        session, path = self._session, Path(self._request["trace"])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with session.trace(path):
                session.barrier()  # profilers take different times to start
                for batch in batches:
                    session.step(batch, self.run.learning_rate)
                session.drain()
        except (Exception, KeyboardInterrupt) as error:
            print(f"  no trace: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
            self._is_interrupted = self.run.workers > 1  # as in `_profile`

    def _profile(self, batches: Iterator[data.Batch], rounds: int) -> Breakdown | None:
        """Measure the step-time breakdown; None if it fails, since what was trained stands."""
        try:
            return step_profile.measure(self._session, batches, self.run, rounds)
        except WrongSumError:
            raise
        except Exception as error:
            print(f"  no step-time breakdown: {one_line(error)}", file=sys.stderr)
            self._is_interrupted = self.run.workers > 1  # the others may wait for this one, and not come to leave
            return None

    def _load(self) -> data.Dataset:
        """Return the images, which must be those of the plan."""
        request, planned = self._request, DataId(*self._request["conditions"]["images"])
        source, fallback = Path(request["source"]) if request["source"] else None, planned.name == Synthetic.name
        cache = Path(request["cache"])
        dataset = data.load(self.run.data, source=source, cache=cache, fallback=fallback, alive=self._beat)
        if dataset.data_id != planned:
            raise UserError(
                f"data: this worker has {dataset.data_id}, the plan has {planned}; all workers need the same "
                "images, unchanged during a run"
            )
        if isinstance(self.run.data, Own) and len(dataset.train) != self.run.data.train_images:
            raise UserError("data: images were added or removed after they had been counted; start again")
        self._beat()
        return dataset

    def _open(self, dataset: data.Dataset) -> Session:
        """Return the session, in the state of the checkpoint to continue from; all workers leave this together."""
        first_step, state = self._first_step, None
        if first_step:
            saved = checkpoint.read(self._checkpoints, self._number, first_step)
            state = saved.arrays
            for event in saved.story["events"]:
                self._write(event)
            self._clock.resume(*saved.story["clock"])
            self._counted = saved.story["counted"]
            self._emit("resumed", {"step": first_step, "why": self._request["why"], "at": saved.story["clock"][0]})
        session = frameworks.open_session(self.run, first_step=first_step, state=state)
        self._beat()
        if self.run.data.on_device:
            session.upload_images(data.device_images(dataset, self.run.data))
        if self.run.network.whitens and not first_step:
            first = min(WHITENING_IMAGES, len(dataset.train))
            session.whiten(dataset.train.center_crop(np.arange(first), self.run.data)[0])
        session.barrier()
        several_here = self.run.devices > self.run.workers and not self.run.emulated
        if several_here or isinstance(self.run.kvstore, Horovod):
            step_profile.check_sums(session)  # some machines copy zeros from one GPU to another, without an error
        return session

    def _emit(self, name: str, fields: Any) -> None:
        """Append an event to the file, and show a window."""
        event = {"event": name, **to_plain(fields)}
        self._write(event)
        if name == "window":
            self._progress.show(event)

    def _write(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        self._file.write(json.dumps(event, allow_nan=False) + "\n")
        self._file.flush()

    def _with_heartbeat(self, batches: Iterable[T]) -> Iterator[T]:
        for batch in batches:
            self._beat()
            yield batch

    def _beat(self) -> None:
        """Touch the file of events, by which the parent sees that this worker makes progress; not at every call."""
        if (now := self._clock.elapsed()) - self._last_heartbeat > min(_HEARTBEAT_SECONDS, self._silence):
            os.utime(self._file.fileno())
            self._last_heartbeat = now

    def _save(self, step: int) -> None:
        if step == self.run.steps and not self._request["keep"]:
            return
        clock = [self._clock.elapsed(), self._clock.parts]
        counted = {"trained": self._loop.trained, "scored": self._loop.scored}
        origin = {name: self._request[name] for name in ("conditions", "attempt")}
        story = {**origin, "events": self._events, "clock": clock, "counted": counted}
        state = checkpoint.Checkpoint(step=step, arrays=self._session.state(), story=story)
        try:
            checkpoint.write(self._checkpoints, self._number, state, self._saved_step)
            self._saved_step = step
        except OSError as error:  # a full disk is no reason to stop; the run is only less safe
            self._emit("unsaved", {"step": step, "why": str(error)})
            print(f"  the checkpoint after step {step} failed: {error}", file=sys.stderr)


def main() -> None:
    request = json.load(sys.stdin)
    os.sched_setaffinity(0, request["cores"])
    with Path(request["events"]).open("a") as events:
        worker = Worker(request, events)
        outcome = worker.work()
    # All events are written. At a normal exit CUDA may crash, and a distributed kvstore waits for other workers; and if
    # the worker were freed before, PyTorch's process group could wait for a thread of Gloo that waits for Python.
    for stream in (sys.stdout, sys.stderr):  # the user's model may have printed
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(outcome != COMPLETED)


if __name__ == "__main__":
    main()
