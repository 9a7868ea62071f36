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
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import eye, hstack

from poc.predict.rivals import amdahl, last_kept
from poc.predict.series import Point, Series
from poc.records.row import STRONG, WEAK
from poc.values import value

Array = NDArray[np.float64]
_NARROWEST = 0.005
QUANTILES = (0.05, 0.5, 0.95)
FARTHEST = 4
"""Times the devices measured: what is asked in learning."""
PENALTIES = (0.003, 0.01, 0.03, 0.06, 0.12)
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


def features(points: tuple[Point, ...], asked: Point) -> tuple[float, ...]:
    """What the loss of efficiency from the last of `points` to `asked` (whose rate is not looked at) is linear in.

    The doublings of devices; the same where only one count was measured; what Amdahl's law, fitted to the points,
    expects beyond the last efficiency kept; and whether more hosts take part than before.
    """
    last = points[-1]
    doublings, single = math.log2(asked.devices / last.devices), len(points) == 1
    expected = 0.0 if single else math.log(amdahl(points, asked.devices) / last_kept(points, asked.devices))
    return doublings, doublings * single, expected, float(asked.hosts > last.hosts)


@value
class Fitted:
    """What series of one kind of scaling teach."""

    coefficients: tuple[tuple[float, ...], ...]
    """Of the features, for each of `QUANTILES`."""
    wider: float
    """How many times as wide intervals are as these quantiles say."""

    def quantiles(self, row: Sequence[float]) -> tuple[float, float, float]:
        """Of the logarithm of the efficiency kept, in their order."""
        low, middle, high = sorted(float(np.dot(row, one)) for one in self.coefficients)
        below, above = (self.wider * max(_NARROWEST, side) for side in (middle - low, high - middle))
        return middle - below, middle, middle + above


@value
class Learnt:
    """What series teach about how efficiency is lost, those of a fixed total batch (strong scaling) apart."""

    weak: Fitted
    strong: Fitted | None = None

    def predict(self, points: Sequence[Point], asked: Sequence[Point], scaling: str = WEAK) -> list[Prediction]:
        """The rates on more devices than the last of `points` has.

        Where no strong series was learnt from, intervals of one are those of weak ones, twice as wide.
        """
        if scaling == STRONG and self.strong:
            fitted, wider = self.strong, 1.0
        else:
            fitted, wider = self.weak, 2.0 if scaling == STRONG else 1.0
        found = []
        for point in asked:
            low, middle, high = fitted.quantiles(features(tuple(points), point))
            kept = last_kept(points, point.devices)
            found.append(
                Prediction(
                    devices=point.devices,
                    rate=kept * math.exp(middle),
                    low=kept * math.exp(middle - wider * (middle - low)),
                    high=kept * math.exp(middle + wider * (high - middle)),
                )
            )
        return found


@value
class _Case:
    study: str
    row: tuple[float, ...]
    came: float


@functools.cache
def _cases(one: Series) -> tuple[_Case, ...]:
    return tuple(
        _Case(
            study=one.study,
            row=features(measured, point),
            came=math.log(point.rate / last_kept(measured, point.devices)),
        )
        for measured, asked in splits(one)
        for point in asked
    )


def learn(series: Sequence[Series]) -> Learnt:
    """From `series` alone, at least one of which is of weak scaling; what they do not say is taken to be weak."""
    kinds = [[case for one in series if (one.scaling == STRONG) == kind for case in _cases(one)] for kind in (0, 1)]
    return Learnt(weak=_fitted(kinds[0]), strong=_fitted(kinds[1]) if kinds[1] else None)


def _fitted(cases: Sequence[_Case]) -> Fitted:
    """With the penalties and the width of intervals that do best on studies that are left out in turn."""
    studies = sorted({case.study for case in cases})
    parted = [[[c for c in cases if (c.study == name) == own] for own in (False, True)] for name in studies]
    parts = [(known, own) for known, own in parted if known]
    order = [case for _, own in parts for case in own]
    came, weights = np.array([case.came for case in order]), _weights(order)
    coefficients, left = [], []
    for share in QUANTILES:
        tried = {penalty: _left_out(parts, share, penalty) for penalty in PENALTIES}
        best = min(PENALTIES, key=lambda one: float(weights @ _lost(came - tried[one], share)))
        coefficients.append(tuple(map(float, _regression(cases, share, best))))
        left.append(tried[best])
    wider = _wider(came, weights, *np.sort(left, axis=0)) if parts else 1.0
    return Fitted(coefficients=tuple(coefficients), wider=wider)


def _left_out(parts: Sequence[Sequence[Sequence[_Case]]], share: float, penalty: float) -> Array:
    """A quantile of each case of every study, from the other studies."""
    found = []
    for known, own in parts:
        coefficients = _regression(known, share, penalty)
        found += [float(np.dot(case.row, coefficients)) for case in own]
    return np.array(found)


def _lost(left: Array, share: float) -> Array:
    """The loss of which the quantile `share` is the least."""
    return np.maximum(share * left, (share - 1) * left)


def _wider(came: Array, weights: Array, low: Array, middle: Array, high: Array) -> float:
    """How many times as wide intervals must be to hold nine tenths of what was left out (Romano et al. 2019)."""
    side = np.where(came < middle, middle - low, high - middle)
    times = np.abs(came - middle) / np.maximum(side, _NARROWEST)
    order = np.argsort(times)
    return float(times[order][np.searchsorted(np.cumsum(weights[order]), 0.9 * weights.sum())])


def _weights(cases: Sequence[_Case]) -> Array:
    """A study weighs as the root of the number of its cases."""
    counts = Counter(case.study for case in cases)
    return np.array([counts[case.study] ** -0.5 for case in cases])


def _regression(cases: Sequence[_Case], share: float, penalty: float) -> Array:
    """Coefficients of least loss, each penalised by its feature's size."""
    rows, came, weights = np.array([case.row for case in cases]), [case.came for case in cases], _weights(cases)
    number, columns = rows.shape
    size = np.sqrt(np.mean(rows**2, axis=0))
    total = weights / weights.sum()
    cost = np.concatenate([np.tile(penalty * size, 2), share * total, (1 - share) * total])
    equal = hstack([rows, -rows, eye(number), -eye(number)], format="csc")
    found = linprog(cost, A_eq=equal, b_eq=came, bounds=(0, None), method="highs")
    return np.asarray(found.x[:columns] - found.x[columns : 2 * columns], dtype=float)
