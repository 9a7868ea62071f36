"""Throughput on more devices from that on few, with an interval: quantile regression over published series.

What is predicted is the logarithm of the efficiency on m devices over that on n, the most that were measured. Its 5%,
50% and 95% quantiles are linear in a few features of what was measured (`features`), fitted by linear programming
(Koenker and Bassett 1978, "Regression Quantiles") with a penalty on the size of the coefficients (Belloni and
Chernozhukov 2011). The sums that it minimises are those by which predictions are judged: the median's is the mean
absolute error of the logarithm, that of the 5% and 95% quantiles the interval's score (Gneiting and Raftery 2007).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from poc.predict.rivals import amdahl, last_kept
from poc.predict.series import STRONG, Point, Series
from poc.values import value

Array = NDArray[np.float64]
QUANTILES = (0.05, 0.5, 0.95)
FARTHEST = 4
"""Times the devices measured: what is asked in learning."""
PENALTIES = (0.003, 0.01, 0.03, 0.1)
"""Of which the one is taken that does best on studies left out of the learning."""


@value
class Prediction:
    """The rate of so many devices that were not measured, and 90% of what it may be; in the unit of the points."""

    devices: int
    rate: float
    low: float
    high: float


def splits(series: Series) -> list[tuple[tuple[Point, ...], tuple[Point, ...]]]:
    """What is measured, and what is asked: from each of the fewest counts on, up to `FARTHEST` times the devices."""
    found = []
    for kept in range(1, len(series.points)):
        measured = series.points[:kept]
        asked = tuple(p for p in series.points[kept:] if p.devices <= FARTHEST * measured[-1].devices)
        if asked:
            found.append((measured, asked))
    return found


@functools.lru_cache(maxsize=None)
def features(points: tuple[Point, ...], asked: Point, scaling: str) -> tuple[float, ...]:
    """What the loss of efficiency from the last of `points` to `asked` (its rate apart) is linear in.

    All but the two for hosts grow with the number of doublings: a constant, where just one count was measured, and by the kind of
    scaling; the loss at the last doubling measured, as it is and where it is large; the mean loss; what
    Amdahl's law expects; and whether more hosts than before take part, and from just one.
    """
    last = points[-1]
    doublings = math.log2(asked.devices / last.devices)
    single, strong = len(points) == 1, scaling == STRONG
    latest = 0.0 if single else _loss(points[-2], last)
    mean = 0.0 if single else _loss(points[0], last)
    expected = 0.0 if single else math.log(amdahl(points, asked.devices) / last_kept(points, asked.devices))
    return (
        doublings,
        doublings * single,
        doublings * strong,
        doublings * single * strong,
        doublings * min(latest, 0.3),
        doublings * max(latest - 0.3, 0.0),
        doublings * mean,
        expected,
        float(asked.hosts > last.hosts),
        float(asked.hosts > last.hosts == 1),
    )


def _loss(before: Point, after: Point) -> float:
    """Of the logarithm of efficiency at each doubling."""
    ratio = after.devices / before.devices
    return (math.log(ratio) - math.log(after.rate / before.rate)) / math.log2(ratio)


class Learnt:
    """What series teach about how efficiency is lost."""

    def __init__(self, series: Sequence[Series], penalty: float | None = None) -> None:
        """Learns from `series` alone, in which a study weighs as the root of its number of points."""
        self.penalty = _best_penalty(series) if penalty is None else penalty
        rows, came, studies = _cases(series)
        counts = {name: studies.count(name) for name in studies}
        weights = np.array([counts[name] ** -0.5 for name in studies])
        self._coefficients = [_fit(rows, came, weights, share, self.penalty) for share in QUANTILES]

    def predict(self, points: Sequence[Point], asked: Sequence[Point], scaling: str = "weak") -> list[Prediction]:
        """The rates on more devices; the rates that `asked` holds are not looked at."""
        found = []
        for point in asked:
            row = np.array(features(tuple(points), point, scaling))
            kept = last_kept(points, point.devices)
            low, rate, high = sorted(kept * math.exp(float(row @ fitted)) for fitted in self._coefficients)
            found.append(Prediction(devices=point.devices, rate=rate, low=low, high=high))
        return found

    def loss(self, series: Sequence[Series]) -> float:
        """Mean of the three quantiles' losses over other series."""
        rows, came, _ = _cases(series)
        left = [came - rows @ fitted for fitted in self._coefficients]
        return float(np.mean([np.maximum(share * one, (share - 1) * one) for share, one in zip(QUANTILES, left)]))


def _cases(series: Sequence[Series]) -> tuple[Array, Array, list[str]]:
    rows, came, studies = [], [], []
    for one in series:
        for measured, asked in splits(one):
            for point in asked:
                rows.append(features(measured, point, one.scaling))
                came.append(math.log(point.rate / last_kept(measured, point.devices)))
                studies.append(one.study)
    return np.array(rows), np.array(came), studies


def _best_penalty(series: Sequence[Series]) -> float:
    names = list(dict.fromkeys(one.study for one in series))

    def left_out(penalty: float) -> float:
        losses = []
        for name in names:
            known = [one for one in series if one.study != name]
            losses.append(Learnt(known, penalty).loss([one for one in series if one.study == name]) if known else 0.0)
        return sum(losses)

    return min(PENALTIES, key=left_out)


def _fit(rows: Array, came: Array, weights: Array, share: float, penalty: float) -> Array:
    """Coefficients of least weighted loss at the quantile `share`, each feature's share of the penalty by its size."""
    cases, columns = rows.shape
    size = np.sqrt(np.mean(rows**2, axis=0))
    total = weights / weights.sum()
    cost = np.concatenate([np.tile(penalty * size, 2), share * total, (1 - share) * total])
    equal = np.hstack([rows, -rows, np.eye(cases), -np.eye(cases)])
    found = linprog(cost, A_eq=equal, b_eq=came, bounds=(0, None), method="highs")
    return np.asarray(found.x[:columns] - found.x[columns : 2 * columns], dtype=float)
