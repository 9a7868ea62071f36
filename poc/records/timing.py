"""Wall time of a run by phase, and its throughput. Time is injected, so that tests can script the clock."""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Callable

from poc.config.run import WARMUP_STEPS
from poc.values import UserError, value

PARTS = ("initialise", "warmup", "train", "data", "evaluate", "checkpoint", "rest")

STABLE_WITHIN = 0.10
WINDOW_SECONDS = 0.5  # least length of a window on GPUs, whose steps are so short that the wait at its end would count
WARMUP_RULE = (
    f"windows are dropped until at least {WARMUP_STEPS} steps have gone by and the next window is no more than "
    f"{STABLE_WITHIN:.0%} slower than the median of the windows from it on; a run without a window after that has no "
    "throughput"
)


@value
class Window:
    """Steps between two points at which the device had finished all work."""

    epoch: int
    start: float  # seconds since the run began
    steps: int
    samples: int
    seconds: float
    waited: float  # seconds of these in which the loop waited for data
    loss: float | None = None  # mean training loss, in nats; None if it was not finite

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.samples <= 0 or self.steps <= 0:
            raise UserError(f"a window has {self.steps} steps, {self.samples} samples and {self.seconds:g} s")

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


@value
class Throughput:
    """Samples per second over the windows after warm-up."""

    median: float
    spread: float  # 1.4826 x the median absolute deviation, which is the standard deviation of a normal distribution
    windows: int
    dropped: int  # number of warm-up windows, which are left out


class Clock:
    """Splits the wall time of a run into parts that do not overlap."""

    def __init__(self, *, start: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._start = now() if start is None else start
        self.parts: dict[str, float] = defaultdict(float)

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self._now() - self._start

    def resume(self, elapsed: float, parts: Mapping[str, float]) -> None:
        """Continue the clock of an interrupted run: its total seconds, and those of each part."""
        self._start -= elapsed
        for name, seconds in parts.items():
            self.parts[name] += seconds

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the block to the part `name`; blocks must not be nested."""
        began = self._now()
        try:
            yield
        finally:
            self.parts[name] += self._now() - began


def warmup(windows: Sequence[Window]) -> int:
    """Return the number of warm-up windows at the start, by `WARMUP_RULE`: all of them in a run that is too short."""
    steps = 0
    for index, window in enumerate(windows):
        typical = statistics.median(later.rate for later in windows[index:])
        # One-sided: a machine that slows down later was not warming up before.
        if steps >= WARMUP_STEPS and window.rate >= (1 - STABLE_WITHIN) * typical:
            return index
        steps += window.steps
    return len(windows)


def throughput(windows: Sequence[Window]) -> Throughput | None:
    """Return the median rate and spread over the windows after warm-up; None if there is no such window."""
    dropped = warmup(windows)
    if dropped == len(windows):
        return None
    rates = [window.rate for window in windows[dropped:]]
    median = statistics.median(rates)
    spread = 1.4826 * statistics.median(abs(rate - median) for rate in rates)
    return Throughput(median=median, spread=spread, windows=len(rates), dropped=dropped)


def split(wall: float, parts: Mapping[str, float], windows: Sequence[Window], dropped: int) -> dict[str, float]:
    """Split a worker's wall time into `PARTS`; the first `dropped` windows are warm-up.

    "rest" is the time that no part claims: mostly the start of its process and of the threads that make batches, and
    the writing of events between windows.
    """
    seconds = {name: parts.get(name, 0.0) for name in PARTS}
    seconds["warmup"] = sum(window.seconds - window.waited for window in windows[:dropped])
    seconds["train"] = sum(window.seconds - window.waited for window in windows[dropped:])
    seconds["data"] = sum(window.waited for window in windows)
    seconds["rest"] = wall - sum(seconds[name] for name in PARTS if name != "rest")
    return seconds
