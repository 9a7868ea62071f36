"""Rules that a prediction has to beat. Each takes the points that were measured and a count; it gives a rate."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Callable

import numpy as np
from scipy.optimize import least_squares

from poc.predict.series import Point

Rule = Callable[[Sequence[Point], int], float]


def ideal(points: Sequence[Point], devices: int) -> float:
    """As many times the fewest devices' rate as there are more of them."""
    return points[0].rate * devices / points[0].devices


def last_kept(points: Sequence[Point], devices: int) -> float:
    """The efficiency of the most devices measured, kept."""
    return points[-1].rate * devices / points[-1].devices


def _fitted(points: Sequence[Point], devices: int, *, parameters: int) -> float:
    """By least squares over logarithms: rate(n) = rate(1) n / (1 + s (n - 1) + k n (n - 1)); k only of two."""
    counts, logs = (np.array([[p.devices, np.log(p.rate)] for p in points], dtype=float)).T
    if len(points) == 1:
        return last_kept(points, devices)

    def law(given: np.ndarray, n: np.ndarray) -> np.ndarray:
        terms = given[1] * (n - 1) + (given[2] * n * (n - 1) if parameters == 2 else 0)
        return given[0] + np.log(n) - np.log1p(terms)

    start = [logs[0] - np.log(counts[0]), *[1e-3] * parameters]
    fit = least_squares(lambda given: law(given, counts) - logs, start, bounds=([-np.inf, *[0] * parameters], np.inf))
    return float(np.exp(law(fit.x, np.array([float(devices)]))[0]))


amdahl: Rule = functools.partial(_fitted, parameters=1)
"""Amdahl 1967."""
scalability: Rule = functools.partial(_fitted, parameters=2)
"""The universal scalability law: Gunther 1993."""
RIVALS: dict[str, Rule] = {
    "ideal scaling": ideal,
    "constant efficiency": last_kept,
    "Amdahl's law": amdahl,
    "universal scalability law": scalability,
}
