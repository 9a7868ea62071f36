"""The schedule of a plan: the order of its runs, which are done already, how long they take, which fit a bound."""

from __future__ import annotations

import bisect
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from poc.config import Synthetic, networks
from poc.config.datasets import DataId
from poc.config.run import Run
from poc.plan import Planned, estimate
from poc.records.record import COMPLETED, DONE, SETTLED, Record
from poc.run import checkpoint
from poc.run.launcher import RunContext

Item = tuple[str, str, Planned]
"""A planned run, with its recipe and its title."""
ORDER_RULE = "by the recipes' priorities, and in one those of up to 2 minutes, of up to 20, and the others, as written"
_SHORT_SECONDS = (120.0, 1200.0)
# A run that was begun goes on where it does not fit, too, if so much is left: it writes a checkpoint in that time.
_WORTH_SECONDS = 200.0


def in_order(items: Iterable[Item]) -> list[Item]:
    """Sort the most telling runs first, by `ORDER_RULE`."""
    return sorted(items, key=lambda item: (item[2].priority, bisect.bisect_left(_SHORT_SECONDS, item[2].seconds)))


class DoneRepeats:
    """Which repeats of the runs of a sweep are done: in it, in another recipe of it, or in the journal before it."""

    def __init__(self, records: Iterable[Record], images: Mapping[str, DataId]) -> None:
        """`images` are what the runs are of, as in `RunContext.images`."""
        self._images = images
        self._last_outcome: dict[tuple[str, DataId | None], str] = {}
        """Of each run on its images."""
        self._count: Counter[tuple[str, DataId | None]] = Counter()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Count a repeat; one that failed or was skipped does not count."""
        other_images = record.synthetic_fallback and record.run.data.name not in self._images
        if record.outcome in SETTLED and not other_images:
            key = self._key(record.run, record.data_id)
            self._last_outcome[key] = record.outcome
            self._count[key] += 1

    def outcome(self, run: Run) -> str | None:
        """Return the outcome of the last repeat of a run; None if there is none."""
        return self._last_outcome.get(self._key(run))

    def _key(self, run: Run, images: DataId | None = None) -> tuple[str, DataId | None]:
        """Return what is the same for repeats of one run on the same images.

        Where it is not known what it will be of, or where synthetic images stand in, those on any images count.
        """
        planned = self._images.get(run.data.name)
        any_images = planned is None or planned.name == Synthetic.name
        return run.id, None if any_images else images or planned

    def enough(self, run: Run, number: int) -> bool:
        """Whether a run has that many repeats, or needs no more."""
        return self._count[self._key(run)] >= number or (self.outcome(run) or COMPLETED) != COMPLETED

    def over(self, item: Planned) -> bool:
        """Whether a planned repeat is done.

        With a search for the largest batch: the one with that batch, and the next larger batch is known not to fit.
        """
        if not item.search:
            return self.enough(item.run, item.repeat)
        outcomes = [self.outcome(run) or self.outcome(probe) for probe, run in item.search]
        largest = max((number for number, outcome in enumerate(outcomes) if outcome in DONE), default=-1)
        trained = largest < 0 or self.enough(item.search[largest][1], item.repeat)
        return trained and (largest + 1 == len(outcomes) or outcomes[largest + 1] is not None)

    def waiting(self, items: Iterable[Item]) -> list[Planned]:
        """Return what is to be done yet, each repeat once."""
        to_do = {(item.run.id, item.repeat): item for *_, item in items if not item.skip and not self.over(item)}
        return list(to_do.values())


class RuntimeEstimator:
    """How long runs take on this machine: the plan's estimates, corrected by what earlier runs took."""

    def __init__(self, place: RunContext, records: Iterable[Record]) -> None:
        self._place = place
        self._seconds: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])  # measured, estimated
        for record in records:
            self.learn(record)

    def learn(self, record: Record) -> None:
        """Add what a run took and its estimate on the machine as it was then.

        Runs that were cut off do not count, nor those of models that are no longer known.
        """
        is_known = record.run.model in networks.NETWORKS
        if is_known and record.outcome == COMPLETED and record.wall and not record.resumed:
            for kind in _kinds(record.run):
                self._seconds[kind][0] += record.wall
                self._seconds[kind][1] += estimate(record.run, record.hardware)

    def factor(self, run: Run) -> float:
        """Return measured over estimated seconds of runs of the same model and precision, else of all on such devices.

        1 if there are none.
        """
        measured, estimated = next((self._seconds[kind] for kind in _kinds(run) if kind in self._seconds), [1.0, 1.0])
        return measured / estimated

    def seconds(self, item: Planned) -> float:
        """Return the expected seconds of a planned run, from its last checkpoint on."""
        return self.factor(item.run) * item.seconds * (1 - self._begun(item.run))

    def fits(self, item: Planned) -> bool:
        """Whether a planned run may be started: it ends in the time that is left, or goes on from a checkpoint."""
        return self.seconds(item) <= self.left() or (self._begun(item.run) > 0 and self.left() >= _WORTH_SECONDS)

    def _begun(self, run: Run) -> float:
        """Return the share of a run that its checkpoint holds; the last one of a run is of no use to another repeat."""
        step = checkpoint.furthest(self._place.checkpoints_of(run))
        return step / run.steps if step < run.steps else 0.0

    def left(self) -> float:
        """Return the seconds until the bound."""
        return self._place.until - time.monotonic()


def _kinds(run: Run) -> tuple[tuple[str, ...], ...]:
    """Return the kinds of run that a run belongs to, the narrowest first."""
    return (run.kind, run.model, run.dtype), (run.kind,)


def clock(seconds: float) -> str:
    """Return the time of day in so many seconds, with the day if it is another one."""
    then, now = time.localtime(time.time() + seconds), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%a %d %b %H:%M", then)


def bound(began: float, hours: float | None, dollars: float | None, price: float | None) -> float:
    """Return when on the monotonic clock so many hours or dollars are spent; infinity without either."""
    limits = [hours, dollars / price if dollars is not None and price else None]
    return min((began + 3600 * limit for limit in limits if limit is not None), default=math.inf)
