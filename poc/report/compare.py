"""Speed-up and efficiency over devices, and which differences are more than noise."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Callable

from scipy.stats import ttest_ind

from poc.records.record import COMPLETED
from poc.report.measurements import Measurement, grouped
from poc.studies.row import STRONG, WEAK, Row, rate
from poc.values import value

HELD_FIXED = {WEAK: "batch_per_device", STRONG: "global_batch"}

# What all rows of a series share, beside the batch held fixed. `setting` stands for every other field of a measured
# run that is not the number of devices, a batch size, the learning rate, the seed or the kvstore.
SHARED = (
    *("origin", "study", "machine", "hardware", "framework", "kind", "model", "data_id", "input_shape"),
    *("dtype", "layout", "setting", "environment", "fewer_threads"),
)
SAME_WORK = 0.05
MIN_TAKES = 3
"""On either side of a comparison, for a verdict."""
CONFIDENCE = 0.95
SERIES_RULE = (
    "A series holds runs that differ only in the number of devices, and in rate and length, which do not matter for "
    "speed; weak keeps the batch per device, strong the global batch; emulated devices and quick runs are never in "
    "one; without a run on one device there is no speed-up"
)
IN_TURN = timedelta(hours=1)
"""Between the starts of takes that are compared: a machine that is shared is faster in one hour than in another."""
VERDICT_RULE = (
    "Compared are takes in turn, which is those that began within an hour of one of the other side, by their geometric "
    f"means. A difference is called one where each side has at least {MIN_TAKES} of them and the {CONFIDENCE:.0%} "
    "interval of Welch's t over the logarithms of takes leaves out zero"
)


@value
class Series:
    """Rows that differ only in the number of devices."""

    kind: str
    """What is held fixed: "weak" the batch per device, "strong" the total batch."""
    alone: tuple[Row, ...]
    """Its rows on one device: one, or several that repeat each other, which are averaged; those that were disturbed
    only where all were."""
    rows: tuple[Row, ...]
    """The others, fewest devices first."""

    @property
    def batch(self) -> int:
        """The batch that is held fixed, in samples: of each device in a weak series, of all in a strong one."""
        return int(getattr(self.alone[0], HELD_FIXED[self.kind]))


@value
class Verdict:
    """Two settings, as the ratio of what they gave."""

    ratio: float
    """Geometric mean over the takes of the first, over that of the second."""
    takes: tuple[int, int]
    """Of either side."""
    low: float | None
    """Of the confidence interval of the ratio; None, as `high`, where there are too few takes for one."""
    high: float | None

    @property
    def differs(self) -> bool | None:
        """Whether the spread between takes allows to call them different; None where there are too few takes."""
        return None if self.low is None or self.high is None else not self.low <= 1 <= self.high

    def __str__(self) -> str:
        """Yes, no or too few takes, with the interval of the ratio."""
        words = {None: "too few", True: "yes", False: "no"}[self.differs]
        return words if self.low is None else f"{words} ({self.low:.3f}-{self.high:.3f})"


def in_turn(a: Measurement, b: Measurement) -> tuple[Measurement, Measurement] | None:
    """Those takes of either that are `beside` the other's; None without such takes."""
    pair = Measurement(beside(a.quiet, b.quiet)), Measurement(beside(b.quiet, a.quiet))
    return pair if pair[0].rate and pair[1].rate else None


def beside(rows: Iterable[Row], others: Iterable[Row]) -> tuple[Row, ...]:
    """Those rows that began within `IN_TURN` of one of the others; published ones, whose hour nobody knows, all do."""
    begun = [_start(row) for row in others if row.measured]
    return tuple(row for row in rows if not row.measured or any(abs(_start(row) - at) <= IN_TURN for at in begun))


def compared(pair: tuple[Measurement, Measurement] | None) -> Verdict | None:
    """The speeds of takes in turn."""
    return verdict(*(taken.rate.values for taken in pair)) if pair else None


def _start(row: Row) -> datetime:
    return datetime.fromisoformat(row.started[:19])  # all are UTC, whether they say so or not


def verdict(a: Sequence[float], b: Sequence[float]) -> Verdict:
    """The takes of one setting against those of another, by `VERDICT_RULE`; all figures are above zero.

    Windows of one run are correlated, and know nothing of what differs from run to run: only takes count.
    """
    logs = [[math.log(figure) for figure in takes] for takes in (a, b)]
    ratio, takes = statistics.fmean(logs[0]) - statistics.fmean(logs[1]), (len(a), len(b))
    if min(takes) < MIN_TAKES:
        return Verdict(ratio=math.exp(ratio), takes=takes, low=None, high=None)
    between = ttest_ind(*logs, equal_var=False).confidence_interval(CONFIDENCE)
    return Verdict(ratio=math.exp(ratio), takes=takes, low=math.exp(between.low), high=math.exp(between.high))


def series(rows: Iterable[Row]) -> list[Series]:
    """All series of at least one and another number of devices, by `SERIES_RULE`, in the order of `rows`.

    A published row is only in the kind of series that its study says it is in; a measured one may be in both kinds.
    """
    usable = [row for row in rows if _usable(row)]
    found: dict[tuple[Any, ...], list[Row]] = {}
    for kind in HELD_FIXED:
        fitting = [row for row in usable if row.measured or row.scaling == kind]
        on_one = grouped((row for row in fitting if row.devices == 1), functools.partial(_shared, kind=kind))
        for row in fitting:
            alone = _baselines(on_one.get(_shared(row, kind), []), row, kind) if row.devices > 1 else ()
            if alone:
                found.setdefault((kind, alone, row.kvstore, _shared(row, kind)), []).append(row)
    return [
        Series(kind=kind, alone=alone, rows=tuple(sorted(others, key=lambda row: int(row.devices))))
        for (kind, alone, *_), others in found.items()
    ]


def by_throughput(alone: Sequence[Row], row: Row) -> float | None:
    """Samples/s of `row` over those of one device (where several rows are `alone`: samples over their mean time)."""
    return _ratio(lambda one: 1 / own if (own := rate(one)) else None, alone, row)


def by_wall(alone: Sequence[Row], row: Row) -> float | None:
    """Wall seconds for each sample trained, on one device over those of `row`; None for unequal work.

    That is where the numbers of samples trained are not within `SAME_WORK` of each other.
    """
    same = all(_same_work(base, row) for base in alone)
    return _ratio(lambda one: one.wall_seconds and one.wall_seconds / one.samples_trained, alone, row) if same else None


def without_sync(alone: Sequence[Row], row: Row) -> float | None:
    """Speed-up as the Theano study has it: seconds of training and communication alone, no waiting for one another."""
    return _ratio(_seconds_without_sync, alone, row)


def _usable(row: Row) -> bool:
    done = row.outcome in (COMPLETED, "") and not (row.emulated or row.quick)
    return bool(done and rate(row) and row.devices and not row.doubtful("samples_per_second", "devices"))


def _shared(row: Row, kind: str) -> tuple[Any, ...]:
    batch = getattr(row, HELD_FIXED[kind])
    # A batch nobody knows is not the same as another such.
    return (*(getattr(row, name) for name in SHARED), row if batch is None else batch)


def _baselines(candidates: Sequence[Row], row: Row, kind: str) -> tuple[Row, ...]:
    """Those of the rows on one device against which `row` is held."""

    def grown(base: Row, factor: float) -> bool:
        rates = (base.lr, row.lr)
        return None in rates or math.isclose(rates[0] * factor, rates[1])

    scaled = [base for base in candidates if kind == WEAK and grown(base, row.devices)]
    alone = scaled or [base for base in candidates if grown(base, 1)]
    alone = [base for base in alone if _same_work(base, row)] or alone
    return tuple([base for base in alone if not base.disturbed] or alone)


def _same_work(row: Row, other: Row) -> bool:
    left, right = row.samples_trained, other.samples_trained
    return bool(left and right and abs(left - right) <= SAME_WORK * max(left, right))


def _seconds_without_sync(row: Row) -> float | None:
    train = row.train_seconds_per_5120
    return None if train is None else train + (row.communication_seconds_per_5120 or 0.0)


def _ratio(seconds: Callable[[Row], float | None], alone: Sequence[Row], row: Row) -> float | None:
    own, others = seconds(row), [known for base in alone if (known := seconds(base)) is not None]
    return statistics.fmean(others) / own if own and others and len(others) == len(alone) else None
