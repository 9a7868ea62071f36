"""What the runs of a plan will take: in which order, how long on this machine, for how much, and which fit a bound."""

from __future__ import annotations

import bisect
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tabulate import tabulate

from poc.plan import Planned, estimate
from poc.recipe import Synthetic, networks
from poc.recipe.datasets import DataId
from poc.records.record import COMPLETED, DONE, SETTLED, Record
from poc.run import Run
from poc.train import checkpoint
from poc.train.local import Place

Item = tuple[str, str, Planned]
"""A planned run, with its recipe and its title."""
ORDER_RULE = "by the recipes' priorities, and in one those of up to 2 minutes, of up to 20, and the others, as written"
_SHORT_SECONDS = (120.0, 1200.0)
# A run that was begun goes on where it does not fit, too, if so much is left: it writes a checkpoint in that time.
_WORTH_SECONDS = 200.0


def in_order(items: Iterable[Item]) -> list[Item]:
    """The most telling runs first, by `ORDER_RULE`."""
    return sorted(items, key=lambda item: (item[2].priority, bisect.bisect_left(_SHORT_SECONDS, item[2].seconds)))


class Takes:
    """What is settled of the runs of a campaign: by this one, by another recipe of it, or in the journal already."""

    def __init__(self, records: Iterable[Record], images: Mapping[str, DataId]) -> None:
        """`images` are what the runs are of, as in `Place.images`."""
        self._images = images
        self._last: dict[tuple[str, DataId | None], str] = {}
        """The outcome of the last take of each run on its images."""
        self._number: Counter[tuple[str, DataId | None]] = Counter()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Counts a take; one that failed or was skipped is none."""
        unwanted = record.stood_in and record.run.data.name not in self._images
        if record.outcome in SETTLED and not unwanted:
            key = self._key(record.run, record.data_id)
            self._last[key] = record.outcome
            self._number[key] += 1

    def outcome(self, run: Run) -> str | None:
        """Return the outcome of the last take of a run; None where there is none."""
        return self._last.get(self._key(run))

    def _key(self, run: Run, images: DataId | None = None) -> tuple[str, DataId | None]:
        """Return what is the same for takes of one run on the same images.

        Where it is not known what it will be of, or where synthetic images stand in, those on any images count.
        """
        own = self._images.get(run.data.name)
        any_images = own is None or own.name == Synthetic.name
        return run.id, None if any_images else images or own

    def enough(self, run: Run, number: int) -> bool:
        """Whether a run has that many takes, or need have no more."""
        return self._number[self._key(run)] >= number or (self.outcome(run) or COMPLETED) != COMPLETED

    def over(self, item: Planned) -> bool:
        """Whether that take is done; of a search, of the largest batch that fits, if the next one is known not to."""
        if not item.search:
            return self.enough(item.run, item.repeat)
        known = [self.outcome(whole) or self.outcome(short) for short, whole in item.search]
        fits = max((number for number, outcome in enumerate(known) if outcome in DONE), default=-1)
        done = fits < 0 or self.enough(item.search[fits][1], item.repeat)
        return done and (fits + 1 == len(known) or known[fits + 1] is not None)

    def waiting(self, items: Iterable[Item]) -> list[Planned]:
        """What is to be done yet, each take once."""
        found = {(item.run.id, item.repeat): item for *_, item in items if not item.skip and not self.over(item)}
        return list(found.values())


class Pace:
    """How long runs take here: the plan's estimates, times what runs like them have taken of theirs."""

    def __init__(self, place: Place, records: Iterable[Record]) -> None:
        self._place = place
        self._seconds: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])  # taken, estimated
        for record in records:
            self.learn(record)

    def learn(self, record: Record) -> None:
        """Takes in what a run took and its estimate on the machine as it was then.

        Nothing of one that was cut off, nor of a network that is no longer known.
        """
        known = record.run.model in networks.NETWORKS
        if known and record.outcome == COMPLETED and record.wall and not record.resumed:
            for kind in _kinds(record.run):
                self._seconds[kind][0] += record.wall
                self._seconds[kind][1] += estimate(record.run, record.hardware)

    def factor(self, run: Run) -> float:
        """Of the runs of its network and precision together, else of all on such a device; 1 where there is none."""
        known = next((self._seconds[kind] for kind in _kinds(run) if kind in self._seconds), [1.0, 1.0])
        return known[0] / known[1]

    def seconds(self, item: Planned) -> float:
        """That a planned run will take, from its checkpoint on where it has one."""
        return self.factor(item.run) * item.seconds * (1 - self._begun(item.run))

    def fits(self, item: Planned) -> bool:
        """Whether a planned run may be started: it ends in the time that is left, or was begun and gets further."""
        return self.seconds(item) <= self.left() or (self._begun(item.run) > 0 and self.left() >= _WORTH_SECONDS)

    def _begun(self, run: Run) -> float:
        """The share that its checkpoint holds; that of a whole run, which was kept, is of no use to another take."""
        step = checkpoint.furthest(self._place.checkpoints_of(run))
        return step / run.steps if step < run.steps else 0.0

    def left(self) -> float:
        """Seconds before the bound."""
        return self._place.until - time.monotonic()


def _kinds(run: Run) -> tuple[tuple[str, ...], ...]:
    """What a run is one of, the narrowest first."""
    return (run.kind, run.model, run.dtype), (run.kind,)


def table(items: Sequence[Item], takes: Takes, pace: Pace, price: float | None) -> str:
    """What there is to do, a line a recipe and one for all; `price` in dollars an hour.

    A run that two recipes have counts with the first.
    """
    counted: dict[str, list[float]] = {}
    seen: set[tuple[str, int]] = set()
    for name, _, item in items:
        line = counted.setdefault(name, [0, 0, 0.0])
        if not item.skip and (item.run.id, item.repeat) not in seen:
            already = takes.over(item)
            line[0] += 1
            line[1] += already
            line[2] += 0.0 if already else pace.seconds(item)
            seen.add((item.run.id, item.repeat))
    counted = {name: line for name, line in counted.items() if line[0]}
    counted["in all"] = [sum(column) for column in zip(*counted.values())] or [0, 0, 0.0]
    rows = [
        [name, f"{runs:.0f}", f"{ended:.0f}", duration(seconds), *([f"{seconds / 3600 * price:.2f}"] if price else [])]
        for name, (runs, ended, seconds) in counted.items()
    ]
    headers = ["recipe", "runs", "done", "time", *(["dollars"] if price else [])]
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", *["right"] * (len(headers) - 1)))


def clock(seconds: float) -> str:
    """The time of day in so many seconds, with the day where it is another one."""
    then, now = time.localtime(time.time() + seconds), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%a %d %b %H:%M", then)


def duration(seconds: float) -> str:
    """So many seconds, in words for a person."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def bound(began: float, hours: float | None, dollars: float | None, price: float | None) -> float:
    """When on the monotonic clock so many hours or dollars are spent, whichever is first; never where there is none."""
    spent = [hours, dollars / price if dollars is not None and price else None]
    return min((began + 3600 * each for each in spent if each is not None), default=math.inf)
