"""What a person sees of a run: a bar on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import json
import sys
from typing import Any

from tqdm import tqdm

from poc.run import Run


def in_words(run: Run, event: str) -> str:
    """How far a run is by an event as its worker wrote it, a line of JSON; empty for one that does not say."""
    told = json.loads(event)
    if told["event"] == "evaluation":
        return f"epoch {told['epoch']}/{run.epochs}, accuracy {told['accuracy']:.4f}"
    return f"epoch {told['epoch']}/{run.epochs}, {_speed(run, told):.0f} samples/s" if told["event"] == "window" else ""


def _speed(run: Run, window: dict[str, Any]) -> float:
    """Samples a second; every worker has as many."""
    return float(window["samples"] * run.workers / window["seconds"])


class Progress:
    """Shows the events of one run as they are told."""

    def __init__(self, run: Run, *, shown: bool = True) -> None:
        self._run = run
        self._shown = shown
        self._steps = 0
        self._speed = self._accuracy = ""
        # Of its own accord (None) it shows nothing where there is no terminal.
        self._bar = tqdm(total=run.steps, unit="step", dynamic_ncols=True, disable=None if shown else True)

    def show(self, event: dict[str, Any]) -> None:
        """Shows one event: a window on the bar, an evaluation or the end of a run without any on a line of its own."""
        if event["event"] == "window":
            loss = "not finite" if event["loss"] is None else f"{event['loss']:.4f}"
            self._speed = f"{_speed(self._run, event):.0f} samples/s, loss {loss}"
            self._steps += event["steps"]
            self._bar.update(event["steps"])
            self._bar.set_description(f"epoch {event['epoch']}/{self._run.epochs}")
            self._bar.set_postfix_str(self._speed + self._accuracy)
        elif event["event"] == "evaluation":
            self._accuracy = f", accuracy {event['accuracy']:.4f}"
            self._line(f"epoch {event['epoch']}/{self._run.epochs}")
        elif event["event"] == "end" and not self._run.evaluate:
            self._line(f"{self._steps} steps")

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()

    def _line(self, what: str) -> None:
        if self._shown and self._bar.disable:
            print(f"  {what}: {self._speed}{self._accuracy}", file=sys.stderr, flush=True)
