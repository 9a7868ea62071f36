"""Every run of some recipes on this machine, one after the other, each record in the journal as soon as it is there."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

from poc import data
from poc.plan import Planned, estimate
from poc.recipe import CIFAR10, ImageNet, Synthetic
from poc.records import journal
from poc.records.record import COMPLETED, DONE, FAILED, OUT_OF_MEMORY, SETTLED, SKIPPED
from poc.run import Run
from poc.train.hosts import Link
from poc.train.local import Place
from poc.train.parent import blank, execute, forget
from poc.values import UserError


def undertake(
    plans: Sequence[tuple[str, Sequence[Planned]]],
    results: Path,
    place: Place,
    others: Sequence[Link] = (),
    *,
    detail: int = 0,
    again: bool = False,
) -> list[str]:
    """Does every run of `plans`, the plan of each recipe by its name; returns the ids of those that failed.

    Records go to this machine's journal in `results`; what is there already of it is done only `again`. `detail` and
    `others` are those of `execute`. Raises UserError where the data cannot be had, or the journal not be written;
    KeyboardInterrupt once an interrupted run is in the journal.
    """
    path = journal.folder(results, place.infrastructure) / journal.FILE
    known = [one for one in journal.read(journal.paths(results)) if one.infrastructure == place.infrastructure]
    noted = {record.run_id for record in known}
    settled = [record for record in known if record.outcome in SETTLED and not again]
    taken = Counter(record.run_id for record in settled)
    last = {record.run_id: record.outcome for record in settled}
    items = [item for _, planned in plans for item in planned]

    def is_done(run: Run, number: int) -> bool:
        """Whether a run has that many takes, or need have no more."""
        return taken[run.id] >= number or last.get(run.id, COMPLETED) != COMPLETED

    waiting = [item.run for item in items if not item.skip and not is_done(item.run, item.take)]
    place = dataclasses.replace(place, stand_in=_needs_stand_in(place, waiting))
    choices = {run.id: item.engine_choice for item in items for run in (item.run, *sum(item.search, ()))}
    failed: list[str] = []

    def take(run: Run, title: str, number: int = 1, detail: int = detail) -> str:
        """Does that take of a run, unless it is done; returns its outcome."""
        title = f"{title} [{run.id}] {run}" + (f", take {number}" if number > 1 else "")
        if is_done(run, number):
            _say(f"{title}: in the journal already (--again repeats it)")
            return last[run.id]
        if run.id in failed:  # it may have hung, and would again
            _say(f"{title}: not tried again, it has failed")
            return FAILED
        _say(f"{title}: about {duration(estimate(run, place.machine))}")
        outcome = _take(run, choices[run.id], path, place, detail, others)
        if outcome in SETTLED:
            last[run.id] = outcome
            taken[run.id] += 1  # another recipe may have it, too
        elif outcome == FAILED:
            failed.append(run.id)
        return outcome

    # Claimed only now: a mistake leaves nothing behind.
    with journal.claimed(path):
        for name, planned in plans:
            for number, item in enumerate(planned, start=1):
                run, title = item.run, f"{name} {number}/{len(planned)}"
                if item.skip:
                    _say(f"{title} [{run.id}] {run}: skipped, {item.skip}")
                    if run.id not in noted:
                        journal.append(path, blank(run, place, outcome=SKIPPED, reason=item.skip))
                elif item.search:
                    _say(f"{title} {item}")
                    _largest(item.search, title, item.take, take)
                else:
                    take(run, title, item.take)
    return failed


def _largest(search: Sequence[tuple[Run, Run]], title: str, number: int, take: Callable[..., str]) -> None:
    """Does that take of the run with the largest batch that fits its short run, or where it does not after all, the
    next."""
    low, high = 0, len(search)  # those before `low` fit, those from `high` on do not
    while low < high:
        middle = (low + high) // 2
        if take(search[middle][0], title, detail=0) in DONE:
            low = middle + 1
        else:
            high = middle
    if not low:
        _say(f"  not even {search[0][1]} fits")
    while low and take(search[low - 1][1], title, number) == OUT_OF_MEMORY:
        low -= 1


def duration(seconds: float) -> str:
    """So many seconds, in words for a person."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _take(run: Run, choice: str, path: Path, place: Place, detail: int, others: Sequence[Link]) -> str:
    """Does one run and puts its record into the journal; returns its outcome."""
    record, interrupted = execute(run, place, detail=detail, others=others)
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
        raise KeyboardInterrupt
    return record.outcome


def _needs_stand_in(place: Place, runs: Sequence[Run]) -> bool:
    """Whether CIFAR-10 is to be had nowhere. Files are opened here: a mistake is found before anything is spent."""
    for images in {run.data for run in runs if isinstance(run.data, ImageNet)}:
        data.load(images, source=place.source, cache=place.cache)
    real = [run.data for run in runs if isinstance(run.data, CIFAR10)]
    return bool(real) and data.load(real[0], source=place.source, cache=place.cache).name == Synthetic.name


def _say(line: str) -> None:
    print(line, file=sys.stderr)
