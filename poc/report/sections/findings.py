"""The summary: one sentence a question, worked out from the same measurements as the tables below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from poc.records.record import COMPLETED
from poc.report.measurements import CLOSED, OPEN, Measurement, grouped
from poc.report.page import MAIN_BATCH, MAIN_EPOCHS, MAIN_NETWORK, Results, Section
from poc.report.rows import TARGET
from poc.report.sections import cost, machines, rates, scaling
from poc.report.tables import accuracy_of, devices_of, is_copy, machine_of, rounded
from poc.studies.row import Row

_LARGE = 1024


def section(results: Results) -> Section:
    """A sentence a question; without full runs on the machine at hand, what its quick ones gave."""
    said = [sentence for part in (_speed, _accuracy, _rate, _scaling, _cost) for sentence in part(results)]
    blocks = ["\n".join(f"- {sentence}" for sentence in said)] if said else []
    done = [row for row in results.rows if row.measured and row.outcome == COMPLETED]
    here = [row for row in done if results.is_here(row)]
    if not here:
        nothing = "Nothing has been measured yet: every figure is a published one. `./run_all.sh` adds this machine's."
        if done:
            nothing = f"**{results.here}** has no results yet: every figure is another machine's."
        blocks.insert(0, " ".join([nothing, *_why_nothing(results)]))
    elif all(row.quick for row in here):
        blocks.append(f"**{results.here}** has quick runs alone: a first look and no results, listed under *Latest*.")
    return Section("Findings", blocks)


def _why_nothing(results: Results) -> Iterator[str]:
    """What became of the runs of the machine at hand, and the most frequent reason of each outcome."""
    tried = [record for record in results.records if record.infrastructure == results.here or not results.here]
    for outcome, records in grouped(tried, lambda record: record.outcome).items():
        (reason, count), *others = Counter(record.reason for record in records).most_common()
        of_these = f"{count} of them: " if others else ""
        yield f"{len(records)} run{'s' * (len(records) > 1)} {outcome}: {of_these}{reason}."


def _speed(results: Results) -> Iterator[str]:
    alone = [taken for taken in machines.reference(results) if taken.row.devices == 1]
    here = [taken for taken in alone if results.is_here(taken.row) and taken.rate]
    # All of a CPU and not one core of it; in the precision that every machine has, where that was measured.
    ordered = sorted(here, key=lambda taken: (taken.row.dtype == "float32", taken.rate.median))
    if not ordered:
        return
    own, fastest = ordered[-1], max(here, key=lambda taken: taken.rate.median)
    rate, theirs = own.rate, [taken.row for taken in reversed(alone) if not taken.row.measured]
    beside = ", ".join(f"{rate.median / row.samples_per_second:.2g} of one {_short(row)}" for row in theirs)
    most = f"{rounded(fastest.rate.median)} with {fastest.row.framework} in {fastest.row.dtype} (n={fastest.rate.n})"
    steps = sorted({sum(window.steps for window in row.timed) for row in own.quiet})
    timed = " to ".join(dict.fromkeys(f"{count:,}" for count in (steps[0], steps[-1])))
    how = f"median of {rate.n} take{'s' * (rate.n > 1)} of {timed} timed steps"
    if rate.n > 1:
        how += f", {rounded(rate.low)}-{rounded(rate.high)}"
    if not own.calm:
        how += ", disturbed by other processes"
    whole = Measurement(tuple(row for row in own.quiet if row.epochs == MAIN_EPOCHS))
    if whole.rate and whole.rate.n < rate.n:
        how += f"; over all of {MAIN_EPOCHS} epochs {rounded(whole.rate.median)}, n={whole.rate.n}"
    told = (
        f"{results.here} trains {rounded(rate.median)} samples/s at batch {MAIN_BATCH} with {own.row.framework} in "
        f"{own.row.dtype} ({how})"
    )
    yield f"**Speed.** {told}{': ' * bool(beside)}{beside}{f'; {most}' * (fastest is not own)}."


def _accuracy(results: Results) -> Iterator[str]:
    alone = [taken for taken in machines.reference(results) if taken.row.devices == 1]
    reached = [(taken, found) for taken in alone if taken.row.measured and (found := machines.accuracy(taken))]
    if not reached:
        return
    # Of the machine at hand, where it has one, on the device that its speed is of.
    taken, found = max(reached, key=lambda one: (results.is_here(one[0].row), one[0].rate.median))
    theirs = [taken.row for taken in alone if not taken.row.measured and taken.row.accuracy is not None]
    printed = ", ".join(f"one {_short(row)} {row.accuracy:.3f}" for row in theirs)
    told = f"{MAIN_EPOCHS} epochs at batch {MAIN_BATCH} reach {found.median:.3f} on {machine_of(taken.row)}"
    how = f"n={found.n}{', JPEG copies of the images' * any(map(is_copy, taken.rows))}"
    yield f"**Accuracy.** {told} ({how}){'; published: ' * bool(printed)}{printed}."


def _rate(results: Results) -> Iterator[str]:
    best = rates.best_rates(results)
    names = {"published": "published", CLOSED: "the study's way here", OPEN: "the best way found here"}
    said = [
        f"{names[kind]} {accuracy_of(taken.accuracies())} {'with' if kind == OPEN else 'at rate'} "
        f"{rates.short_way(taken.row)}"
        for kind, found in best.items()
        if (taken := found.get(_LARGE))
    ]
    if said:
        yield f"**Rate.** At a total batch of {_LARGE:,}: {', '.join(said)}; n=1 each unless said."


def _scaling(results: Results) -> Iterator[str]:
    said = []
    ordered = scaling.fastest_first(scaling.weak(results))
    own = [scaled for scaled in ordered if results.is_here(scaled.last)][:1]
    theirs = [scaled for scaled in ordered if not scaled.last.measured and scaled.series.batch == MAIN_BATCH]
    for scaled in [*own, *theirs]:
        many, speedup = max(scaled.speedups.items())
        what = f"{many} {_short(scaled.last)}"
        if scaled.last.measured:
            what = devices_of(scaled.last)
            if cores := scaled.last.cores_per_worker:
                what += f" of {cores} core{'s' * (cores > 1)} each"
            what += " here"
        how = f"batch {scaled.series.batch}, n={scaled.takes}" if scaled.last.measured else "published"
        said.append(f"{what} {speedup:.2f} ({how})")
    if said:
        yield f"**Scaling.** Times as fast as one: {', '.join(said)}."


def _cost(results: Results) -> Iterator[str]:
    reached = [found for found in cost.reached(results) if found.row.model == MAIN_NETWORK]
    if not reached:
        return
    fastest = min(reached, key=lambda found: found.minutes)
    priced = [found for found in reached if found.dollars is not None]
    text = f"An accuracy of {TARGET:g} takes least time on {_took(fastest, f'{rounded(fastest.minutes, 2)} min')}"
    if len({machine_of(found.row) for found in priced}) > 1:
        cheapest = min(priced, key=lambda found: found.dollars or 0.0)
        least = _took(cheapest, f"${rounded(cheapest.dollars, 2)}")
        text += f"; of {len(priced)} settings with a price least money on {least}"
    yield f"**Cost.** {text}."


def _took(found: cost.Reached, most: str) -> str:
    where = f"{found.row.devices} {_short(found.row)} (published)"
    if found.row.measured:
        where = f"{machine_of(found.row)} ({devices_of(found.row)}, n={found.n})"
    return f"{where}: {'at most ' * found.bound}{most}"


def _short(row: Row) -> str:
    """The name of a published machine's device."""
    return machine_of(row).split("(")[0].split()[-1]
