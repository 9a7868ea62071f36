"""The runs of some recipes on this machine, one after the other, each record in the journal as soon as it is there."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Callable

from poc import data
from poc.plan import Planned, estimate
from poc.recipe import CIFAR10, ImageNet, Synthetic
from poc.records import journal
from poc.records.record import COMPLETED, DONE, FAILED, OUT_OF_MEMORY, SETTLED, SKIPPED, Record
from poc.run import Run
from poc.train import outlook
from poc.train.hosts import Link
from poc.train.local import Place
from poc.train.outlook import duration
from poc.train.parent import blank, execute, forget
from poc.values import UserError


class _TimeIsUpError(Exception):
    """The run that was going on has been interrupted at the bound."""


class _Takes:
    """What is settled of the runs of a campaign: by this one, by another recipe of it, or in the journal already."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.last: dict[str, str] = {}
        """The outcome of the last take of each run, by its id."""
        self._number: Counter[str] = Counter()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Counts a take; one that failed or was skipped is none."""
        if record.outcome in SETTLED:
            self.last[record.run_id] = record.outcome
            self._number[record.run_id] += 1

    def enough(self, run: Run, number: int) -> bool:
        """Whether a run has that many takes, or need have no more."""
        return self._number[run.id] >= number or self.last.get(run.id, COMPLETED) != COMPLETED


def undertake(
    plans: Sequence[tuple[str, Sequence[Planned]]],
    results: Path,
    place: Place,
    others: Sequence[Link] = (),
    *,
    detail: int = 0,
    again: bool = False,
    price: float | None = None,
) -> list[str]:
    """Does every run of `plans`, the plan of each recipe by its name; returns the ids of those that failed.

    The most telling come first (`poc.train.outlook.ORDER_RULE`). Records go to this machine's journal in `results`;
    what is there already of it is done only `again`. What does not fit before `place.until` is left; `price`, in
    dollars an hour, is for what is said first. `detail` and `others` are those of `execute`. Raises UserError where the
    data cannot be had, or the journal not be written; KeyboardInterrupt once a run that its user interrupted is in it.
    """
    path = journal.folder(results, place.infrastructure) / journal.FILE
    known = [one for one in journal.read(journal.paths(results)) if one.infrastructure == place.infrastructure]
    noted = {record.run_id for record in known}
    taken = _Takes([] if again else known)
    items = outlook.in_order(
        (name, f"{name} {number}/{len(planned)}", item)
        for name, planned in plans
        for number, item in enumerate(planned, start=1)
    )
    waiting = [item.run for *_, item in items if not item.skip and not taken.enough(item.run, item.take)]
    place = dataclasses.replace(place, stand_in=_needs_stand_in(place, waiting))
    pace = outlook.Pace(place, known)
    choices = {run.id: item.engine_choice for *_, item in items for run in (item.run, *sum(item.search, ()))}
    failed: list[str] = []

    def take(run: Run, title: str, number: int = 1, detail: int = detail) -> str:
        """Does that take of a run, unless it is done; returns its outcome."""
        title = f"{title} [{run.id}] {run}" + (f", take {number}" if number > 1 else "")
        if taken.enough(run, number):
            _say(f"{title}: in the journal already (--again repeats it)")
            return taken.last[run.id]
        if run.id in failed:  # it may have hung, and would again
            _say(f"{title}: not tried again, it has failed")
            return FAILED
        _say(f"{title}: about {duration(pace.factor(run) * estimate(run, place.machine))}")
        record = _take(run, choices[run.id], path, place, detail, others, pace.factor(run))
        pace.learn(record)
        taken.add(record)
        if record.outcome == FAILED:
            failed.append(run.id)
        return record.outcome

    def note(run: Run, why: str) -> None:
        if run.id not in noted:
            journal.append(path, blank(run, place, outcome=SKIPPED, reason=why))
            noted.add(run.id)

    # Claimed only now: a mistake leaves nothing behind.
    with journal.claimed(path):
        _say(outlook.table(items, taken.enough, pace, price))
        left = _through(items, take, note, taken.enough, pace)
    if left:
        seconds = sum(map(pace.seconds, left))
        _say(f"{len(left)} are left, about {duration(seconds)}, beyond the bound: the same command goes on with them")
    return failed


def _through(
    items: Sequence[outlook.Item],
    take: Callable[..., str],
    note: Callable[[Run, str], None],
    is_done: outlook.IsDone,
    pace: outlook.Pace,
) -> list[Planned]:
    """Takes the items one after the other, as far as they fit; returns those that are left.

    `note` puts into the journal why a run is skipped.
    """
    left: list[Planned] = []
    for place_in_line, (_, title, item) in enumerate(items):
        was_over = outlook.over(item, is_done)
        if item.skip:
            _say(f"{title} [{item.run.id}] {item.run}: skipped, {item.skip}")
            note(item.run, item.skip)
        elif not was_over and not pace.fits(item):
            left.append(item)
        else:
            try:
                _largest(item, title, take) if item.search else take(item.run, title, item.take)
            except _TimeIsUpError:
                return left + outlook.waiting(items[place_in_line:], is_done)
            if not was_over:
                _say_what_is_left(items[place_in_line + 1 :], is_done, pace)
    return left


def _say_what_is_left(items: Sequence[outlook.Item], is_done: outlook.IsDone, pace: outlook.Pace) -> None:
    fitting = [item for item in outlook.waiting(items, is_done) if pace.fits(item)]
    if fitting:
        until = outlook.clock(min(sum(map(pace.seconds, fitting)), pace.left()))
        _say(f"  {len(fitting)} to go, until about {until}")


def _largest(item: Planned, title: str, take: Callable[..., str]) -> None:
    """Does that take of the run with the largest batch that fits its short run, or where it does not after all, the
    next."""
    _say(f"{title} {item}")
    search = item.search
    low, high = 0, len(search)  # those before `low` fit, those from `high` on do not
    while low < high:
        middle = (low + high) // 2
        if take(search[middle][0], title, detail=0) in DONE:
            low = middle + 1
        else:
            high = middle
    if not low:
        _say(f"  not even {search[0][1]} fits")
    while low and take(search[low - 1][1], title, item.take) == OUT_OF_MEMORY:
        low -= 1


def _take(run: Run, choice: str, path: Path, place: Place, detail: int, others: Sequence[Link], pace: float) -> Record:
    """Does one run and puts its record into the journal; returns it. Raises `_TimeIsUpError` where it was cut off."""
    record, interrupted = execute(run, place, detail=detail, others=others, pace=pace)
    try:
        journal.append(path, dataclasses.replace(record, engine_choice=choice))
    except OSError as error:
        raise UserError(
            f"results: no room for the record of {run.id} in {path} ({error.strerror}); make some and start again: the "
            "run goes on from its last checkpoint"
        ) from error
    _say(f"  {record.in_words()}")
    if record.outcome in SETTLED:
        forget(run, place)
    if interrupted:
        raise _TimeIsUpError if time.monotonic() >= place.until else KeyboardInterrupt
    return record


def _needs_stand_in(place: Place, runs: Sequence[Run]) -> bool:
    """Whether CIFAR-10 is to be had nowhere. Files are opened here: a mistake is found before anything is spent."""
    for images in {run.data for run in runs if isinstance(run.data, ImageNet)}:
        data.load(images, source=place.source, cache=place.cache)
    real = [run.data for run in runs if isinstance(run.data, CIFAR10)]
    return bool(real) and data.load(real[0], source=place.source, cache=place.cache).name == Synthetic.name


def _say(line: str) -> None:
    print(line, file=sys.stderr)
