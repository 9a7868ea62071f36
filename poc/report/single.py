"""One run of the journal in words, with all its takes, and two of them side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from poc.records import timing
from poc.records.record import COMPLETED, DONE, Record
from poc.records.timing import Window
from poc.report import compare
from poc.report.measurements import Known, Measurement, grouped
from poc.report.rows import framework, from_record
from poc.report.tables import SPEED_WITHDRAWN, TOO_SHORT
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
    last = [takes[-1] for takes in both]
    a, b = ({**_setting(take), "framework": framework(take), **_flat(take.run.to_json())} for take in last)
    names = [name for name in {**a, **b} if a.get(name) != b.get(name) and name not in _NOT_COMPARED]
    done = [Measurement(tuple(from_record(take) for take in takes if take.outcome == COMPLETED)) for takes in both]
    rows = [
        *([name, _cell(a.get(name)), _cell(b.get(name))] for name in names),
        ["samples/s, median of takes (range)", *(_spread(taken.rate, ".1f") for taken in done)],
        ["accuracy at the end", *(_spread(taken.accuracies(), ".4f") for taken in done)],
    ]
    lines = [f"{take.run.id}  {take.run}" for take in last]
    return "\n".join([*lines, "", _table(["", *(take.run.id for take in last)], rows), "", _verdict(*done)])


def _takes(records: Sequence[Record], start: str) -> list[Record]:
    """The records of the run whose id starts so, before an @ and how its machine's name starts; oldest first."""
    start, _, machine = start.partition("@")
    found = [record for record in records if record.infrastructure.startswith(machine)]
    if machine and not found:
        near = nearest(machine, {record.infrastructure for record in records})
        raise UserError(f"run: no machine in the journal has a name that starts with {machine!r}; {near}")
    found = [record for record in found if start and start in (record.run.id[: len(start)], record.run_id)]
    ids = sorted({record.run.id for record in found})
    if len(ids) > 1:
        raise UserError(f"run: {len(ids)} ids start with {start!r}; give more of one: {', '.join(ids[:8])}")
    if not ids:
        near = nearest(start, {record.run.id for record in records}) if records else "it holds none"
        where = f" of {machine!r}" if machine else ""
        hint = near if len(near) < 60 else "rows.csv has them all"
        raise UserError(f"run: no id{where} in the journal starts with {start!r}; {hint}")
    return sorted(found, key=lambda record: record.started)


def _of_one_machine(takes: Sequence[Record]) -> list[Record]:
    """Those on the machine and the images of the last of them."""
    return [take for take in takes if _setting(take) == _setting(takes[-1])]


def _setting(take: Record) -> dict[str, str]:
    return {"machine": take.infrastructure, "hardware": take.hardware.describe(), "images": str(take.data_id)}


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return tabulate(rows, headers=headers, disable_numparse=True)


def _head(takes: Sequence[Record]) -> str:
    last = takes[-1]
    lines = [
        ("run", f"{last.run.id}  {last.run}"),
        ("recipe", ", ".join(dict.fromkeys(take.run.recipe for take in takes))),
        ("data", ", ".join(dict.fromkeys(str(take.data_id) for take in takes))),
        ("framework", framework(last) + (f" ({last.engine_choice})" if last.engine_choice else "")),
    ]
    return tabulate(lines, tablefmt="plain")


def _table_of_takes(takes: Sequence[Record]) -> str:
    headers = [
        "started (UTC)",
        "machine",
        "images",
        "commit",
        "samples/s",
        "spread",
        "n windows",
        "accuracy",
        "wall",
        "outcome",
    ]
    rows = []
    for take in takes:
        rate = timing.throughput(take.timed)
        no_rate = TOO_SHORT if take.outcome == COMPLETED else ""
        if take.speed_withdrawn:
            no_rate = f"{SPEED_WITHDRAWN}: {take.speed_withdrawn}"
        rows.append(
            [
                take.started[:16],
                f"{take.infrastructure}: {take.hardware.describe()}",
                str(take.data_id),
                take.commit[:7],
                *((no_rate, "", "") if rate is None else (f"{rate.median:.1f}", f"{rate.spread:.1f}", rate.windows)),
                f"{take.evaluations[-1].accuracy:.4f}" if take.evaluations else "",
                "" if take.wall is None else f"{take.wall:.0f} s",
                take.outcome + (f": {take.reason}" if take.reason else ""),
            ]
        )
    return _table(headers, rows)


def _curve(take: Record) -> str:
    """Loss, accuracy and speed after each epoch."""
    accuracies = {evaluation.epoch: f"{evaluation.accuracy:.4f}" for evaluation in take.evaluations}
    rows = [
        [
            epoch,
            _cell(windows[-1].loss),
            accuracies.get(epoch, ""),
            *_speed(take, windows),
        ]
        for epoch, windows in grouped(take.windows, lambda window: window.epoch).items()
    ]
    table = _table(["epoch", "loss of its last window", "accuracy", "samples/s", "seconds"], rows)
    return f"Its epochs, {take.started[:16]}:\n{table}" if rows else ""


def _speed(take: Record, windows: Sequence[Window]) -> list[str]:
    """Samples/s and seconds of these windows; blanks if the speed was withdrawn."""
    if take.speed_withdrawn:
        return ["", ""]
    return [f"{statistics.median(window.rate for window in windows):.1f}", f"{sum(w.seconds for w in windows):.1f}"]


def _time(take: Record) -> str:
    split = take.split()
    if take.wall is None or split is None:
        return ""
    rows = [[part, f"{seconds:.1f}", f"{seconds / take.wall:.0%}"] for part, seconds in split.items()]
    return f"Where its {take.wall:.0f} s went:\n" + _table(["", "seconds", ""], rows)


def _verdict(a: Measurement, b: Measurement) -> str:
    found = compare.compared(compare.in_turn(a, b))
    if found is None or found.differs is None:
        one, other = found.takes if found else (0, 0)
        return f"No verdict: it takes {compare.MIN_TAKES} takes in turn of each, and there are {one} and {other}."
    interval = f"95% interval {found.low:.3f} to {found.high:.3f}"
    said = f"the first has {found.ratio:.3f} times the speed of the second, {interval}"
    return f"{'Different' if found.differs else 'Not told apart'}: {said}."


def _spread(found: Known, digits: str) -> str:
    if found is None or found.n == 1:
        return f"{found.median:{digits}} (1 take)" if found else "none"
    return f"{found.median:{digits}} ({found.low:{digits}} to {found.high:{digits}}, {found.n} takes)"


def _flat(held: dict[str, Any], before: str = "") -> dict[str, Any]:
    """The entries of a value's plain form, those inside others with both names."""
    flat: dict[str, Any] = {}
    for name, inner in held.items():
        flat.update(_flat(inner, f"{before}{name}.") if isinstance(inner, dict) else {before + name: inner})
    return flat


def _cell(held: Any) -> str:
    return "" if held is None else f"{held:.4g}" if isinstance(held, float) else str(held)
