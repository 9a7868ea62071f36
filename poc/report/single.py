"""One run of the journal in words, with all its takes, and two of them side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from poc.records import timing
from poc.records.record import COMPLETED, DONE, Record
from poc.report import compare
from poc.report.rows import framework
from poc.values import UserError, nearest

_NOT_COMPARED = ("recipe", "restarts")


def shown(records: Sequence[Record], start: str) -> str:
    """All takes of the run whose id starts with `start`, the last one with its curve and where its time went.

    Raises UserError where no run has such an id, or several do.
    """
    takes = _takes(records, start)
    last = next((take for take in reversed(takes) if take.outcome in DONE), takes[-1])
    return "\n\n".join(filter(None, (_head(takes), _table_of_takes(takes), _curve(last), _time(last))))


def compared(records: Sequence[Record], first: str, second: str) -> str:
    """In what the runs whose ids start so differ, the figures of each, and whether their speeds are different ones.

    Raises UserError where no run has such an id, or several do.
    """
    both = [_of_one_machine(_takes(records, start)) for start in (first, second)]
    runs = [dict(_flat(takes[-1].run.to_json())) for takes in both]
    machines = [{"machine": takes[-1].infrastructure, "hardware": takes[-1].hardware.describe()} for takes in both]
    a, b = ({**machine, "framework": framework(takes[-1]), **run} for machine, run, takes in zip(machines, runs, both))
    names = [name for name in {**a, **b} if a.get(name) != b.get(name) and name not in _NOT_COMPARED]
    rates = [_rates(takes) for takes in both]
    rows = [[name, _cell(a.get(name)), _cell(b.get(name))] for name in names]
    rows.append(["samples/s, median of takes (range)", *map(_spread, rates)])
    accuracies = [[take.evaluations[-1].accuracy for take in _completed(takes) if take.evaluations] for takes in both]
    rows.append(["accuracy at the end", *(_spread(found, ".4f") for found in accuracies)])
    table = tabulate(rows, headers=["", *(takes[-1].run.id for takes in both)], disable_numparse=True)
    lines = [f"{takes[-1].run.id}  {takes[-1].run}" for takes in both]
    return "\n".join([*lines, "", table, "", _verdict(*rates)])


def _takes(records: Sequence[Record], start: str) -> list[Record]:
    """The records of the run whose id starts so, before an @ and how its machine's name starts; oldest first."""
    start, _, machine = start.partition("@")
    found = [record for record in records if record.infrastructure.startswith(machine)]
    found = [record for record in found if start and start in (record.run.id[: len(start)], record.run_id)]
    ids = sorted({record.run.id for record in found})
    if len(ids) > 1:
        raise UserError(f"run: {len(ids)} ids start with {start!r}; give more of one: {', '.join(ids[:8])}")
    if not ids:
        near = nearest(start, {record.run.id for record in records}) if records else "it holds none"
        where = f" of {machine!r}" * bool(machine)
        hint = near if len(near) < 60 else "rows.csv has them all"
        raise UserError(f"run: no id{where} in the journal starts with {start!r}; {hint}")
    return sorted(found, key=lambda record: record.started)


def _of_one_machine(takes: Sequence[Record]) -> list[Record]:
    """Those on the machine of the last of them."""
    machines = [(take.infrastructure, take.hardware.describe()) for take in takes]
    return [take for take, machine in zip(takes, machines) if machine == machines[-1]]


def _head(takes: Sequence[Record]) -> str:
    last = takes[-1]
    lines = [
        ("run", f"{last.run.id}  {last.run}"),
        ("recipe", ", ".join(dict.fromkeys(take.run.recipe for take in takes))),
        ("data", last.dataset),
        ("framework", framework(last) + (f" ({last.engine_choice})" if last.engine_choice else "")),
    ]
    return tabulate(lines, tablefmt="plain")


def _table_of_takes(takes: Sequence[Record]) -> str:
    headers = ["started (UTC)", "machine", "commit", "samples/s", "spread", "n windows", "accuracy", "wall", "outcome"]
    rows = []
    for take in takes:
        rate = timing.throughput(take.windows)
        rows.append(
            [
                take.started[:16],
                f"{take.infrastructure}: {take.hardware.describe()}",
                take.commit[:7],
                *(("", "", "") if rate is None else (f"{rate.median:.1f}", f"{rate.spread:.1f}", rate.windows)),
                f"{take.evaluations[-1].accuracy:.4f}" if take.evaluations else "",
                "" if take.wall is None else f"{take.wall:.0f} s",
                take.outcome + (f": {take.reason}" if take.reason else ""),
            ]
        )
    return tabulate(rows, headers=headers, disable_numparse=True)


def _curve(take: Record) -> str:
    """Loss, accuracy and speed after each epoch."""
    accuracies = {evaluation.epoch: evaluation for evaluation in take.evaluations}
    epochs: dict[int, list[timing.Window]] = {}
    for window in take.windows:
        epochs.setdefault(window.epoch, []).append(window)
    rows = []
    for epoch, windows in epochs.items():
        evaluated = accuracies.get(epoch)
        rows.append(
            [
                epoch,
                _cell(windows[-1].loss),
                f"{evaluated.accuracy:.4f}" if evaluated else "",
                f"{statistics.median(window.rate for window in windows):.1f}",
                f"{sum(window.seconds for window in windows):.1f}",
            ]
        )
    headers = ["epoch", "loss of its last window", "accuracy", "samples/s", "seconds"]
    table = tabulate(rows, headers=headers, disable_numparse=True)
    return f"Its epochs, {take.started[:16]}:\n{table}" if rows else ""


def _time(take: Record) -> str:
    if take.wall is None:
        return ""
    split = take.split() or {}
    rows = [[part, f"{seconds:.1f}", f"{seconds / take.wall:.0%}"] for part, seconds in split.items()]
    return f"Where its {take.wall:.0f} s went:\n" + tabulate(rows, headers=["", "seconds", ""], disable_numparse=True)


def _verdict(a: Sequence[float], b: Sequence[float]) -> str:
    if not a or not b:
        return "No verdict: one of them has no speed."
    found = compare.verdict(a, b)
    if found.differs is None:
        return f"No verdict: it takes {compare.MIN_TAKES} takes of each, and there are {len(a)} and {len(b)}."
    interval = f"95% interval {found.low:.3f} to {found.high:.3f}"
    said = f"the first has {found.ratio:.3f} times the speed of the second, {interval}"
    return f"{'Different' if found.differs else 'Not told apart'}: {said}."


def _completed(takes: Sequence[Record]) -> list[Record]:
    return [take for take in takes if take.outcome == COMPLETED]


def _rates(takes: Sequence[Record]) -> list[float]:
    """Samples/s of each take that completed."""
    return [rate.median for take in _completed(takes) if (rate := timing.throughput(take.windows)) is not None]


def _spread(found: Sequence[float], digits: str = ".1f") -> str:
    if not found:
        return "none"
    if len(found) == 1:
        return f"{found[0]:{digits}} (1 take)"
    return f"{statistics.median(found):{digits}} ({min(found):{digits}} to {max(found):{digits}}, {len(found)} takes)"


def _flat(held: Any, name: str = "") -> list[tuple[str, Any]]:
    """The entries of a value's plain form, those inside others with both names."""
    if not isinstance(held, dict):
        return [(name, held)]
    return [pair for key, inner in held.items() for pair in _flat(inner, f"{name}.{key}" if name else key)]


def _cell(held: Any) -> str:
    return "" if held is None else f"{held:.4g}" if isinstance(held, float) else str(held)
