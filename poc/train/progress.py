"""What a person sees of a run: a bar on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from poc.run import Run


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
            rate = event["samples"] * self._run.workers / event["seconds"]  # every worker has as many
            loss = "not finite" if event["loss"] is None else f"{event['loss']:.4f}"
            self._speed = f"{rate:.0f} samples/s, loss {loss}"
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
