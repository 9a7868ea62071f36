"""What a person sees of a run: its progress line on a terminal, and the line of what came out."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable
from typing import Any

from tqdm import tqdm

from poc.config.fields import labels
from poc.config.run import Run
from poc.records.record import COMPLETED, Record
from poc.records.timing import throughput

_FORMAT = "{desc} {percentage:3.0f}%|{bar}|"


def label(run: Run, details: Collection[str] = ()) -> str:
    """Name a run in its user's terms: "resnet50 batch 128 x 4 GPUs lr 0.2".

    `details` are the further fields to name where they are not at their default.
    """
    kind = "emulated device" if run.emulated else run.kind.upper()
    devices = f"{run.devices} {kind}s" if run.devices > 1 else f"1 {kind}"
    parts = [f"{_short(run.model)} batch {run.batch_per_device} x {devices} lr {run.learning_rate:g}"]
    return ", ".join([*parts, *(word for name, word in labels(run).items() if name in details)])


def _short(model: str) -> str:
    return model.removeprefix("cifar_").removesuffix("_v2") if model.startswith("cifar_") else model


# Not of interest in a line, or named otherwise in it.
_UNSAID = ("learning_rate", "lr_rule", "emulated", "window", "evaluate", "seconds", "target_accuracy")


def varied(runs: Iterable[Run]) -> set[str]:
    """Return the fields to name beside those that `label` always names: the ones in which these runs differ."""
    described = [labels(run) for run in runs]
    names = {name for said in described for name in said} - {*_UNSAID}
    return {name for name in names if len({said.get(name) for said in described}) > 1}


def result(record: Record, title: str) -> str:
    """Say in one line what came out of the run that `title` names, or why nothing did."""
    if record.outcome != COMPLETED:
        return f"{title}: {record.outcome}" + (f": {record.reason}" if record.reason else "")
    speed = throughput(record.timed)
    figures = ["too short to time" if speed is None else f"{rounded(speed.median)} samples/s"]
    if record.evaluations:
        chance = " (no better than chance)" if record.at_chance else ""
        figures.append(f"accuracy {record.evaluations[-1].accuracy:.3f}{chance}")
    time = "" if record.wall is None else f", {duration(record.wall)}"
    return f"{title}: {', '.join(figures)} ({_length(record)}{time})"


def _length(record: Record) -> str:
    """Say how long the training was, as far as it went."""
    if record.run.whole_epochs:
        return counted(record.run.epochs, "epoch")
    return counted(sum(window.steps for window in record.windows), "step")


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


def in_words(run: Run, event: str) -> str:
    """Say how far a run is by an event as its worker wrote it, a line of JSON; empty for one that does not say."""
    fields = json.loads(event)
    if fields["event"] == "evaluation":
        return f"epoch {fields['epoch']}/{run.epochs}, accuracy {fields['accuracy']:.4f}"
    if fields["event"] == "window":
        return f"epoch {fields['epoch']}/{run.epochs}, {rounded(_speed(run, fields))} samples/s"
    return ""


def _speed(run: Run, window: dict[str, Any]) -> float:
    """Return the samples/s of a window; every worker has as many samples."""
    return float(window["samples"] * run.workers / window["seconds"])


class Progress:
    """Shows how far one run is: a bar on a terminal, with `verbose` a line per epoch where there is none."""

    def __init__(self, run: Run, title: str = "", *, shown: bool = True, verbose: bool = False) -> None:
        self._run = run
        self._verbose = shown and verbose
        self._title = title
        self._steps = 0
        self._trained = self._evaluation_seconds = 0.0
        self._figures = ""
        # Of its own accord (None) it shows nothing where there is no terminal.
        hidden = None if shown else True
        self._bar = tqdm(
            total=run.steps, desc=title, bar_format=_FORMAT, leave=False, dynamic_ncols=True, disable=hidden
        )

    def show(self, event: dict[str, Any]) -> None:
        """Show what one event of the run changes."""
        if event["event"] == "window":
            self._steps += event["steps"]
            self._trained += event["seconds"]
            self._figures = f"{rounded(_speed(self._run, event))} samples/s"
            time_left = duration(self._seconds_left(event))
            line = f"{self._title}: {self._place(event)}, {self._figures}, {time_left} left"
            self._bar.set_description_str(line, refresh=False)
            self._bar.update(event["steps"])
        elif event["event"] == "evaluation":
            self._evaluation_seconds = event["seconds"]
            self._line(f"epoch {event['epoch']}/{self._run.epochs}", f", accuracy {event['accuracy']:.4f}")
        elif event["event"] == "end" and not self._run.evaluate:
            self._line(counted(self._steps, "step"))

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def _place(self, window: dict[str, Any]) -> str:
        if self._run.whole_epochs:
            return f"epoch {window['epoch']}/{self._run.epochs}"
        return f"step {self._steps:,}/{self._run.steps:,}"

    def _seconds_left(self, window: dict[str, Any]) -> float:
        """Return the seconds of the steps and evaluations that are left, at the pace of the last ones."""
        run = self._run
        training = (run.steps - self._steps) * window["seconds"] / window["steps"]
        if run.seconds is not None:
            training = min(training, max(0.0, run.seconds - self._trained))
        evaluations = run.epochs - window["epoch"] + 1 if run.evaluate else 0
        return float(training + evaluations * self._evaluation_seconds)

    def _line(self, place: str, more: str = "") -> None:
        if self._verbose and self._bar.disable:
            print(f"  {place}: {self._figures}{more}", file=sys.stderr, flush=True)
