"""Throughput on more and more devices, as a study printed it or as it was measured here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from poc.published import Study, load
from poc.records.row import STRONG, Row, rate
from poc.values import value

MORE = Path(__file__).parent / "series"
"""Studies of nothing but scaling, that no table shows: what is learnt from them is how efficiency is lost."""
_SAME = ("study", "machine", "hardware", "framework", "model", "dataset", "input_shape", "dtype", "layout")


@value
class Point:
    """The throughput of some devices."""

    devices: int
    rate: float
    """In samples/s, or in any unit that the points of a series share."""
    hosts: int = 1


@value
class Series:
    """Points that differ in the number of devices alone, fewest first."""

    study: str
    label: str
    scaling: str
    """`weak`, `strong`, or nothing where the source does not say."""
    points: tuple[Point, ...]


def published(own: Sequence[Study] = ()) -> list[Series]:
    """Every series of the studies here, of those that are only about scaling, and of the user's `own`."""
    known = [*load(), *load(folder=MORE)]
    return [series for study in (*known, *own) for series in of_rows(study.rows)]


def of_rows(rows: Iterable[Row]) -> list[Series]:
    """The series of at least three device counts among `rows`.

    A row counts where it names its model and its own figures agree. One device synchronises nothing, so its row serves
    every kvstore. Of rows of the same count the first one counts.
    """
    groups: dict[tuple[Any, ...], dict[str | None, list[Row]]] = {}
    for row in rows:
        if row.model and row.devices and _figure(row) and not row.doubtful("samples_per_second", "devices"):
            key = (*(getattr(row, name) for name in _SAME), row.scaling, row.held_fixed)
            kvstore = None if row.devices == 1 else row.kvstore
            groups.setdefault(key, {}).setdefault(kvstore, []).append(row)
    found = []
    for by_kvstore in groups.values():
        alone = by_kvstore.pop(None, [])
        found += [_series([*alone, *several]) for several in by_kvstore.values()]
    return [series for series in found if len(series.points) >= 3]


def _series(rows: Sequence[Row]) -> Series:
    first, last = rows[0], rows[-1]
    firsts = {int(row.devices): row for row in reversed(rows)}
    points = [
        Point(devices=count, rate=_figure(row) or 0.0, hosts=row.hosts or 1) for count, row in sorted(firsts.items())
    ]
    fixed = "global batch" if last.scaling == STRONG else "batch per device"
    batch = f"{fixed} {last.held_fixed}" if last.held_fixed else ""
    said = [first.hardware or first.machine, first.framework, first.model, first.dtype, batch, last.kvstore]
    label = ", ".join(filter(None, said))
    return Series(study=first.study, label=label, scaling=last.scaling, points=tuple(points))


def _figure(row: Row) -> float | None:
    """What grows as its throughput does."""
    epochs = 1 / row.seconds_per_epoch if row.seconds_per_epoch else None
    return rate(row) or row.speedup_throughput or row.speedup_wall or epochs
