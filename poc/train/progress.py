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
        self._rate = 0.0
        self._loss: float | None = None
        self._steps = 0
        self._accuracy = ""
        self._bar = tqdm(total=run.steps, unit="step", dynamic_ncols=True) if shown and sys.stderr.isatty() else None

    def show(self, event: dict[str, Any]) -> None:
        """Shows one event: a window on the bar, an evaluation or the end of a run without any on a line of its own."""
        if event["event"] == "window":
            self._rate = event["samples"] * self._run.workers / event["seconds"]  # every worker has as many
            self._loss = event["loss"]
            self._steps += event["steps"]
            if self._bar is not None:
                self._bar.update(event["steps"])
                self._bar.set_description(f"epoch {event['epoch']}/{self._run.epochs}")
                self._bar.set_postfix_str(self._state())
        elif event["event"] == "evaluation":
            self._accuracy = f", accuracy {event['accuracy']:.4f}"
            self._line(f"epoch {event['epoch']}/{self._run.epochs}")
        elif event["event"] == "end" and not self._run.evaluate:
            self._line(f"{self._steps} steps")

    def _line(self, what: str) -> None:
        if self._shown and self._bar is None:
            print(f"  {what}: {self._state()}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()

    def _state(self) -> str:
        loss = "not finite" if self._loss is None else f"{self._loss:.4f}"
        return f"{self._rate:.0f} samples/s, loss {loss}{self._accuracy}"
