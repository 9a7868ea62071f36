"""Every run of some recipes on this machine, one after the other, each record in the journal as soon as it is there."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from poc import data
from poc.machine.hardware import Hardware
from poc.plan import Planned
from poc.recipe import CIFAR10, ImageNet, Synthetic
from poc.records import journal
from poc.records.record import DONE, FAILED, SKIPPED
from poc.run import Run
from poc.train.hosts import Link
from poc.train.local import Place
from poc.train.parent import blank, execute, forget
from poc.values import UserError, value

Plans = Sequence[tuple[str, Sequence[Planned]]]
"""The plan of each recipe, by its name."""


@value
class Campaign:
    """What all its runs have in common."""

    journal: Path
    place: Place
    machine: Hardware
    infrastructure: str
    """What results call this machine."""
    price_per_hour: float | None = None
    """Dollars."""
    detail: int = 0
    """Rounds of the pass that takes a step apart; 0: none."""
    again: bool = False
    """Runs that the journal holds already are repeated."""


def undertake(campaign: Campaign, plans: Plans, others: Sequence[Link] = ()) -> list[str]:
    """Does every run of `plans` that the journal does not hold, with the hosts `others`; returns the ids that failed.

    Raises UserError where the data cannot be had, or the journal not be written; KeyboardInterrupt once an interrupted
    run is in the journal.
    """
    known = [record for record in journal.read([campaign.journal]) if record.infrastructure == campaign.infrastructure]
    noted = {record.run_id for record in known}
    done = {record.run_id for record in known if record.outcome in DONE and not campaign.again}
    waiting = [item.run for _, planned in plans for item in planned if not item.skip and item.run.id not in done]
    place = dataclasses.replace(campaign.place, stand_in=_needs_stand_in(campaign.place, waiting))
    campaign, failed = dataclasses.replace(campaign, place=place), []
    # Claimed only now: a mistake leaves nothing behind.
    with journal.claimed(campaign.journal):
        for name, planned in plans:
            for number, item in enumerate(planned, start=1):
                run = item.run
                title = f"{name} {number}/{len(planned)} [{run.id}] {run}"
                if item.skip:
                    _say(f"{title}: skipped, {item.skip}")
                    if run.id not in noted:
                        why = {"outcome": SKIPPED, "reason": item.skip}
                        journal.append(campaign.journal, blank(run, campaign.machine, campaign.infrastructure, **why))
                elif run.id in done:
                    _say(f"{title}: in the journal already (--again repeats it)")
                else:
                    _say(f"{title}: about {duration(item.seconds)}")
                    outcome = _take(run, campaign, others)
                    done |= {run.id} if outcome in DONE else set()  # another recipe may have it, too
                    failed += [run.id] if outcome == FAILED else []
    return failed


def duration(seconds: float) -> str:
    """So many seconds, in words for a person."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _take(run: Run, campaign: Campaign, others: Sequence[Link]) -> str:
    """Does one run and puts its record into the journal; returns its outcome."""
    record, interrupted = execute(
        run, campaign.place, campaign.machine, campaign.infrastructure, detail=campaign.detail, others=others
    )
    try:
        journal.append(campaign.journal, dataclasses.replace(record, price_per_hour=campaign.price_per_hour))
    except OSError as error:
        raise UserError(
            f"results: no room for the record of {run.id} in {campaign.journal} ({error.strerror}); make some and "
            "start again: the run goes on from its last checkpoint"
        ) from error
    _say(f"  {record.in_words()}")
    if record.outcome in DONE:
        forget(run, campaign.place)
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
