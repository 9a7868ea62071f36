"""Text for the person who watches runs: the progress line on a terminal, and a line for each result."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Iterable
from typing import Any

from tqdm import tqdm

from poc.config.run import Run
from poc.records.record import COMPLETED, Record
from poc.records.timing import throughput
from poc.values import words

_FORMAT = "{desc} {percentage:3.0f}%|{bar}|"
# Not of interest in a line, or part of each label.
_OMITTED = ("learning_rate", "lr_rule", "emulated", "window", "evaluate", "seconds", "target_accuracy")


def label(run: Run, details: Collection[str] = ()) -> str:
    """Name a run in its user's terms: "resnet50 batch 128 x 4 GPUs lr 0.2".

    `details` are further fields to name if they are not at their default.
    """
    kind = "emulated device" if run.emulated else run.kind.upper()
    devices = counted(run.devices, kind)
    model = run.model.removeprefix("cifar_").removesuffix("_v2") if run.model.startswith("cifar_") else run.model
    parts = [f"{model} batch {run.batch_per_device} x {devices} lr {run.learning_rate:g}"]
    return ", ".join([*parts, *(word for name, word in words(run).items() if name in details)])


def varied(runs: Iterable[Run]) -> set[str]:
    """Return the fields in which these runs differ, for `label`, without those that it always names."""
    described = [words(run) for run in runs]
    names = {name for fields in described for name in fields} - {*_OMITTED}
    return {name for name in names if len({fields.get(name) for fields in described}) > 1}


def result(record: Record, title: str) -> str:
    """Return one line with the result of the run that `title` names, or why there is none."""
    if record.outcome != COMPLETED:
        return f"{title}: {record.outcome}" + (f": {record.reason}" if record.reason else "")
    speed = throughput(record.timed)
    figures = ["too short to time" if speed is None else f"{rounded(speed.median)} samples/s"]
    if record.evaluations:
        chance = " (no better than chance)" if record.at_chance else ""
        figures.append(f"accuracy {record.evaluations[-1].accuracy:.3f}{chance}")
    if record.run.whole_epochs:
        length = counted(record.run.epochs, "epoch")
    else:
        length = counted(sum(window.steps for window in record.windows), "step")
    wall = "" if record.wall is None else f", {duration(record.wall)}"
    return f"{title}: {', '.join(figures)} ({length}{wall})"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 epoch", "12 epochs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def rounded(rate: float) -> str:
    """Return samples/s with as many digits as a reader compares."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def duration(seconds: float) -> str:
    """Return so many seconds for a person to read: "45 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def clock(seconds: float) -> str:
    """Return the time of day in so many seconds, with the day if it is another one."""
    then, now = time.localtime(time.time() + seconds), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%a %d %b %H:%M", then)


def in_words(run: Run, event: str) -> str:
    """Describe the progress that a worker's event, a line of JSON, reports; empty for other events."""
    fields = json.loads(event)
    if fields["event"] == "evaluation":
        return f"epoch {fields['epoch']}/{run.epochs}, accuracy {fields['accuracy']:.4f}"
    if fields["event"] == "window":
        return f"epoch {fields['epoch']}/{run.epochs}, {_speed(run, fields)}"
    return ""


def _speed(run: Run, window: dict[str, Any]) -> str:
    """Describe the speed of a window; every worker has as many samples."""
    return f"{rounded(window['samples'] * run.workers / window['seconds'])} samples/s"


class Progress:
    """Show the progress of one run: a bar on a terminal; elsewhere, if `verbose`, a line per epoch."""

    def __init__(self, run: Run, title: str = "", *, shown: bool = True, verbose: bool = False) -> None:
        self._run = run
        self._verbose = shown and verbose
        self._title = title
        self._steps = 0
        self._training_seconds = self._evaluation_seconds = 0.0
        self._figures = ""
        # None: tqdm hides the bar if there is no terminal.
        hidden = None if shown else True
        self._bar = tqdm(
            total=run.steps, desc=title, bar_format=_FORMAT, leave=False, dynamic_ncols=True, disable=hidden
        )

    def show(self, event: dict[str, Any]) -> None:
        """Show what one event of the run changes."""
        run = self._run
        if event["event"] == "window":
            self._steps += event["steps"]
            self._training_seconds += event["seconds"]
            self._figures = _speed(run, event)
            position = f"step {self._steps:,}/{run.steps:,}"
            if run.whole_epochs:
                position = f"epoch {event['epoch']}/{run.epochs}"
            line = f"{self._title}: {position}, {self._figures}, {duration(self._seconds_left(event))} left"
            self._bar.set_description_str(line, refresh=False)
            self._bar.update(event["steps"])
        elif event["event"] == "evaluation":
            self._evaluation_seconds = event["seconds"]
            self._print(f"epoch {event['epoch']}/{run.epochs}: {self._figures}, accuracy {event['accuracy']:.4f}")
        elif event["event"] == "end" and not run.evaluate:
            self._print(f"{counted(self._steps, 'step')}: {self._figures}")

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def _seconds_left(self, window: dict[str, Any]) -> float:
        """Return the seconds of the remaining steps and evaluations, at the pace of the last ones."""
        run = self._run
        training = (run.steps - self._steps) * window["seconds"] / window["steps"]
        if run.seconds is not None:
            training = min(training, max(0.0, run.seconds - self._training_seconds))
        evaluations = run.epochs - window["epoch"] + 1 if run.evaluate else 0
        return float(training + evaluations * self._evaluation_seconds)

    def _print(self, line: str) -> None:
        if self._verbose and self._bar.disable:
            print(f"  {line}", file=sys.stderr, flush=True)
