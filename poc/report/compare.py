"""Speed-up and efficiency over devices, what the two speed-ups hide from each other, and what is only noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from scipy.stats import t

from poc.records.record import COMPLETED
from poc.records.timing import PARTS
from poc.studies.row import Row
from poc.values import value

WEAK, STRONG = "weak", "strong"
HELD_FIXED = {WEAK: "batch_per_device", STRONG: "total_batch"}

# What all rows of a series share, beside the batch held fixed. `setting` stands for every other field of a measured
# run that is not the number of devices, a batch size, the learning rate, the seed or the exchange.
SHARED = (
    *("origin", "study", "infrastructure", "hardware", "framework", "kind", "network", "dataset", "input_shape"),
    *("dtype", "layout", "setting"),
)
SAME_WORK = 0.05
_TAKES = 3
SERIES_RULE = (
    "a series holds rows that differ only in the number of devices and, in a weak series, in a learning rate that "
    "grows with it; weak keeps the batch per device, strong the total batch; virtual devices and quick runs are "
    "never in one; without its own row on one device there is no speed-up"
)
WALL_RULE = (
    "speed-up by wall time compares whole runs, from start to end, in seconds for each sample trained, and only "
    f"where the numbers of samples trained are within {SAME_WORK:.0%} of each other (whole batches leave a remainder)"
)


@value
class Series:
    """Rows that differ only in the number of devices."""

    kind: str
    """What is held fixed: "weak" the batch per device, "strong" the total batch."""
    alone: tuple[Row, ...]
    """Its rows on one device: one, or several that repeat each other, which are averaged."""
    rows: tuple[Row, ...]
    """The others, fewest devices first."""

    @property
    def batch(self) -> int:
        """The batch that is held fixed, in samples: of each device in a weak series, of all in a strong one."""
        return int(getattr(self.alone[0], HELD_FIXED[self.kind]))


@value
class Reconciliation:
    """Why the two speed-ups of a row differ: `by_throughput` less all of `parts` is `by_wall`."""

    by_throughput: float
    by_wall: float
    parts: dict[str, float]
    """What each of `poc.records.timing.PARTS` takes from the speed-up by throughput; negative where it adds to it."""


@value
class Estimate:
    """A figure that was measured `n` times."""

    mean: float
    spread: float
    """Standard deviation of one measurement."""
    n: int


@value
class Difference:
    """One estimate less another."""

    value: float
    margin: float | None
    """Half of the 95% confidence interval; None where neither was measured twice, so that nothing can be said."""

    @property
    def within_noise(self) -> bool | None:
        """Whether there may be no difference at all; None where that cannot be said."""
        return None if self.margin is None else abs(self.value) <= self.margin


def key(row: Row, *besides: str) -> tuple[str, ...]:
    """What measured rows share whose runs compute the same, on the same machine and data, but for these fields."""
    framework = "" if "engine" in besides else row.framework
    return (row.infrastructure, row.hardware, framework, row.dataset, row.run.key(*besides))


def series(rows: Iterable[Row]) -> list[Series]:
    """All series of at least one and another number of devices, by `SERIES_RULE`, in the order of `rows`.

    A published row is only in the kind of series that its study says it is in; a measured one may be in both kinds.
    """
    usable = [row for row in rows if _usable(row)]
    several = []
    for kind, held in HELD_FIXED.items():
        fitting = [row for row in usable if row.measured or row.scaling == kind]
        groups: dict[tuple[Any, ...], tuple[list[Row], list[Row]]] = {}
        on_one: dict[tuple[Any, ...], list[Row]] = {}
        for row in fitting:
            if row.devices == 1:
                on_one.setdefault(_shared(row, held), []).append(row)
        for row in fitting:
            key = _shared(row, held)
            alone = _baselines(on_one.get(key, []), row, kind) if row.devices > 1 else []
            if alone:
                groups.setdefault((*key, row.exchange, *alone), (alone, []))[1].append(row)
        several += [
            Series(kind=kind, alone=tuple(alone), rows=tuple(sorted(others, key=lambda row: int(row.devices))))
            for alone, others in groups.values()
        ]
    return several


def by_throughput(alone: Sequence[Row], row: Row) -> float | None:
    """Samples/s of `row` over those of one device (where several rows are `alone`: samples over their mean time)."""
    own, rates = rate(row), map(rate, alone)
    return _ratio([1 / other if other else None for other in rates], 1 / own if own else None)


def by_epoch_time(alone: Sequence[Row], row: Row) -> float | None:
    """Seconds of an epoch on one device over those of `row`: training and waiting for data, no evaluation."""
    return _ratio([base.seconds_per_epoch for base in alone], row.seconds_per_epoch)


def by_wall(alone: Sequence[Row], row: Row) -> float | None:
    """Wall seconds for each sample trained, on one device over those of `row`; None for unequal work (`WALL_RULE`)."""
    if not all(_same_work(base, row) for base in alone):
        return None
    return _ratio([_wall_per_sample(base) for base in alone], _wall_per_sample(row))


def without_sync(alone: Sequence[Row], row: Row) -> float | None:
    """Speed-up as the Theano study has it: seconds of training and communication alone, no waiting for one another."""
    return _ratio([_seconds_without_sync(base) for base in alone], _seconds_without_sync(row))


def efficiency(speedup: float | None, devices: int) -> float | None:
    """Speed-up over the number of devices, as a fraction of one."""
    return None if speedup is None or devices < 1 else speedup / devices


def reconcile(alone: Sequence[Row], row: Row) -> Reconciliation | None:
    """Accounts for the whole difference between the two speed-ups of `row`, part by part.

    A run's wall seconds for a sample are those at its throughput, t, plus what throughput does not see: o of each part
    (`unseen`). With t1 and o1 on one device, S = t1 / t by throughput and w = t + sum(o), the speed-up by wall time is
    (t1 + sum(o1)) / w, and S less that is the sum over the parts of (S x o - o1) / w: a part costs speed-up as far as
    it does not shrink S times. None where there is no speed-up by wall time, or the parts are unknown.
    """
    speedup, total = by_throughput(alone, row), by_wall(alone, row)
    wall, own = _wall_per_sample(row), unseen(row)
    others = [beyond for beyond in map(unseen, alone) if beyond is not None]
    if speedup is None or wall is None or total is None or own is None or len(others) != len(alone):
        return None
    parts = {part: (speedup * own[part] - statistics.fmean(beyond[part] for beyond in others)) / wall for part in PARTS}
    return Reconciliation(by_throughput=speedup, by_wall=total, parts=parts)


def unseen(row: Row) -> dict[str, float] | None:
    """Seconds for each sample trained that a run's throughput does not show, by part; None where any is unknown.

    Throughput is the median over windows, and so holds the usual time of training and the usual wait for data. What is
    left of "warmup", "train" and "data" is what they took beyond that; it can be negative.
    """
    beyond = {part: getattr(row, f"{part}_seconds") for part in PARTS}
    samples, warm, wait = row.samples_trained, row.warmup_samples, row.usual_wait_per_sample
    if not samples or not row.samples_per_second or None in (warm, wait, *beyond.values()):
        return None
    usual = 1 / row.samples_per_second - wait
    beyond["warmup"] -= usual * warm
    beyond["train"] -= usual * (samples - warm)
    beyond["data"] -= wait * samples
    return {part: seconds / samples for part, seconds in beyond.items()}


def difference(a: Estimate, b: Estimate) -> Difference:
    """`a` less `b`, with the 95% margin of Welch's t interval, which allows for unequal spreads and few measurements.

    The windows of one run know nothing of what differs from run to run: for that, compare means over seeds.
    """
    errors = [estimate.spread**2 / estimate.n for estimate in (a, b) if estimate.n > 1]
    if len(errors) < 2:
        return Difference(value=a.mean - b.mean, margin=None)
    total = sum(errors)
    if total == 0:
        return Difference(value=a.mean - b.mean, margin=0.0)
    # Shares first: squares of very small errors would underflow.
    freedom = 1 / sum((error / total) ** 2 / (estimate.n - 1) for error, estimate in zip(errors, (a, b)))
    return Difference(value=a.mean - b.mean, margin=float(t.ppf(0.975, math.floor(freedom))) * math.sqrt(total))


def verdict(a: Sequence[float], b: Sequence[float]) -> str:
    """Whether two speeds differ, each measured in several takes: the 95% interval of Welch's t over their logarithms.

    In words. Fewer than three takes on either side allow none: runs differ by more than their windows.
    """
    if min(len(a), len(b)) < _TAKES:
        return f"No verdict: it takes {_TAKES} takes of each, and there are {len(a)} and {len(b)}."
    logarithms = [[math.log(rate) for rate in rates] for rates in (a, b)]
    estimates = [
        Estimate(mean=statistics.fmean(each), spread=statistics.stdev(each), n=len(each)) for each in logarithms
    ]
    apart = difference(*estimates)
    margin = apart.margin or 0.0
    low, middle, high = (math.exp(apart.value + way * margin) for way in (-1, 0, 1))
    said = f"the first has {middle:.3f} times the speed of the second, 95% interval {low:.3f} to {high:.3f}"
    return f"Not told apart: {said}." if apart.within_noise else f"Different: {said}."


def rate(row: Row) -> float | None:
    """Samples/s of `row`: as printed or measured, else of its seconds for 5,120 images, synchronisation included."""
    seconds = _seconds_without_sync(row)
    if row.samples_per_second is not None or seconds is None:
        return row.samples_per_second
    return 5120 / (seconds + (row.sync_seconds_per_5120 or 0.0))


def _usable(row: Row) -> bool:
    if row.virtual or row.quick or row.outcome not in (COMPLETED, ""):
        return False
    return (rate(row) or 0) > 0 and (row.devices or 0) >= 1


def _shared(row: Row, held: str) -> tuple[Any, ...]:
    batch = getattr(row, held)
    # A batch nobody knows is not the same as another such.
    return (*(getattr(row, name) for name in SHARED), row if batch is None else batch)


def _baselines(candidates: list[Row], row: Row, kind: str) -> list[Row]:
    """Those of the rows on one device against which `row` is held."""

    def grown(base: Row, factor: float) -> bool:
        rates = (base.learning_rate, row.learning_rate)
        return None in rates or math.isclose(rates[0] * factor, rates[1])

    scaled = [base for base in candidates if kind == WEAK and grown(base, row.devices)]
    alone = scaled or [base for base in candidates if grown(base, 1)]
    return [base for base in alone if _same_work(base, row)] or alone


def _same_work(row: Row, other: Row) -> bool:
    left, right = row.samples_trained, other.samples_trained
    return bool(left and right and abs(left - right) <= SAME_WORK * max(left, right))


def _wall_per_sample(row: Row) -> float | None:
    return row.wall_seconds / row.samples_trained if row.wall_seconds is not None and row.samples_trained else None


def _seconds_without_sync(row: Row) -> float | None:
    train = row.train_seconds_per_5120
    return None if train is None else train + (row.communication_seconds_per_5120 or 0.0)


def _ratio(alone: Sequence[float | None], other: float | None) -> float | None:
    known = [figure for figure in alone if figure is not None]
    if not other or not known or len(known) != len(alone):
        return None
    return statistics.fmean(known) / other
