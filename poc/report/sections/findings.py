"""The summary: one sentence a question, worked out from the same measurements as the tables below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from poc.report.measurements import CLOSED, OPEN
from poc.report.page import MAIN_BATCH, MAIN_EPOCHS, Results, Section
from poc.report.rows import TARGET
from poc.report.sections import cost, machines, rates, scaling
from poc.report.tables import accuracy_of, devices_of, machine_of, rounded
from poc.studies.row import Row

_LARGE = 1024


def section(results: Results) -> Section:
    """At most six sentences; without full runs on the machine at hand, what its quick ones gave."""
    said = [sentence for part in (_speed, _accuracy, _rate, _scaling, _cost) for sentence in part(results)]
    blocks = ["\n".join(f"- {sentence}" for sentence in said)] if said else []
    quick = [row for row in results.rows if row.quick and results.is_here(row) and row.samples_per_second]
    if not results.here:
        nothing = "Nothing has been measured yet: every figure is a published one. `./run_all.sh` adds this machine's."
        blocks.insert(0, f"{nothing}{_why_nothing(results)}")
    elif quick and not any(results.is_here(row) for row in results.full if row.samples_per_second):
        blocks.append(f"**{results.here}** has quick runs alone: a first look and no results, listed under *Latest*.")
    return Section("Findings", blocks)


def _why_nothing(results: Results) -> str:
    reasons = Counter(record.reason for record in results.records)
    return "".join(f" Skipped here, {count} times: {why}." for why, count in reasons.most_common(1))


def _speed(results: Results) -> Iterator[str]:
    shown = machines.reference(results)
    alone = [taken for taken in shown if results.is_here(taken.row) and taken.row.devices == 1]
    first = max(alone, key=lambda taken: len(taken.rows), default=None)
    if first is None or first.rate is None:
        return
    theirs = [taken.row for taken in shown if not taken.row.measured and taken.row.devices == 1]
    beside = ", ".join(
        f"{first.rate.median / row.samples_per_second:.2g} of {_short(row)}"
        for row in sorted(theirs, key=lambda row: row.samples_per_second)
    )
    how = f"median of {first.rate.n} take{'s' * (first.rate.n > 1)}"
    if first.rate.n > 1:
        how += f", {rounded(first.rate.low)}-{rounded(first.rate.high)}"
    if not first.calm:
        how += ", disturbed by other processes"
    yield (
        f"**Speed.** {results.here} trains {rounded(first.rate.median)} samples/s at batch {MAIN_BATCH} ({how})"
        + (f": {beside}." if beside else ".")
    )


def _accuracy(results: Results) -> Iterator[str]:
    own = next(
        (
            (taken, found)
            for taken in machines.reference(results)
            if taken.row.measured and taken.row.devices == 1 and (found := machines.accuracy(taken))
        ),
        None,
    )
    if own is None:
        return
    taken, found = own
    theirs = [
        f"{_short(row)} {row.accuracy:.3f}"
        for other in machines.reference(results)
        if not (row := other.row).measured and row.devices == 1 and row.accuracy is not None
    ]
    yield (
        f"**Accuracy.** {MAIN_EPOCHS} epochs at batch {MAIN_BATCH} reach {found.median:.3f} on {machine_of(taken.row)} "
        f"(n={found.n})" + (f"; published: {', '.join(theirs)}." if theirs else ".")
    )


def _rate(results: Results) -> Iterator[str]:
    best = rates.best_rates(results)
    said = []
    for kind, name in (("published", "published"), (CLOSED, "the study's way here"), (OPEN, "the best way found here")):
        taken = best[kind].get(_LARGE)
        if taken is not None:
            reached = accuracy_of(taken.accuracies())
            said.append(f"{name} {reached} at rate {taken.row.learning_rate:g}")
    if said:
        yield f"**Rate.** At a total batch of {_LARGE:,}: {', '.join(said)}; n=1 each unless said."


def _scaling(results: Results) -> Iterator[str]:
    shown = scaling.weak(results)
    said = []
    ordered = scaling.fastest_first(shown)
    own = [scaled for scaled in ordered if results.is_here(scaled.last)][:1]
    theirs = [one for one in ordered if not one.last.measured and one.series.batch == MAIN_BATCH]
    for scaled in [*own, *theirs]:
        many, speedup = max(scaled.speedups), scaled.speedups[max(scaled.speedups)]
        what = devices_of(scaled.last) + " here" if scaled.last.measured else f"{many} of {_short(scaled.last)}"
        how = f"batch {scaled.series.batch}, n={scaled.takes}" if scaled.last.measured else "published"
        said.append(f"{what} {speedup:.2f} ({how})")
    if said:
        yield f"**Scaling.** Times as fast as one: {', '.join(said)}."


def _cost(results: Results) -> Iterator[str]:
    known = [found for found in cost.reached(results) if found.dollars is not None]
    cheapest = min(known, key=lambda found: found.dollars or 0.0, default=None)
    fastest = min(cost.reached(results), key=lambda found: found.minutes, default=None)
    if fastest is None:
        return
    text = (
        f"**Cost.** {TARGET:g} takes least time on {_of(fastest)}: {_at_most(fastest)}{rounded(fastest.minutes, 2)} min"
    )
    if cheapest is not None:
        text += f"; least money on {_of(cheapest)}: {_at_most(cheapest)}${rounded(cheapest.dollars, 2)}"
    yield text + "."


def _of(found: cost.Reached) -> str:
    return f"{_short(found.row)} ({devices_of(found.row)}, {'published' if not found.row.measured else f'n={found.n}'})"


def _at_most(found: cost.Reached) -> str:
    return "at most " * found.bound


def _short(row: Row) -> str:
    """The name of a published machine's device, or of a measured machine."""
    return f"a {machine_of(row).split('(')[0].split()[-1]}" if not row.measured else machine_of(row)
