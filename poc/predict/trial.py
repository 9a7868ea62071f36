"""Prediction tried on what it did not see: one study left out, then one series."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence

import numpy as np

from poc.predict.quantiles import Learnt, Prediction, learn, splits
from poc.predict.rivals import RIVALS
from poc.predict.series import Point, Series
from poc.values import value

MODEL = "this prediction"
MISS = 0.1
"""Of the intervals: the share that may lie outside."""


@value
class Guess:
    """A prediction of a point that was left out."""

    series: Series
    measured: tuple[Point, ...]
    """What it is made from."""
    point: Point
    made: Prediction

    @property
    def times(self) -> float:
        """So many times the most devices measured."""
        return self.point.devices / self.measured[-1].devices

    @property
    def error(self) -> float:
        """The logarithm of what was predicted over what came out."""
        return float(np.log(self.made.rate / self.point.rate))

    @property
    def inside(self) -> bool:
        """Whether the interval holds it."""
        return self.made.low <= self.point.rate <= self.made.high

    @property
    def winkler(self) -> float:
        """The interval's score (Winkler 1972), over logarithms: its width, and 2 / MISS times what it misses by."""
        low, high, came = (float(np.log(rate)) for rate in (self.made.low, self.made.high, self.point.rate))
        return high - low + 2 / MISS * max(low - came, came - high, 0.0)


@value
class Score:
    """What a way to predict came to, over all guesses."""

    name: str
    points: int
    twice: float | None
    """Median error as a fraction at twice the devices measured, and at four times; None without such points."""
    four_times: float | None
    within: float | None
    """Of those at twice, the share that is off by at most 15%; of those at four times, by 25%."""
    within_four: float | None
    mean_log_error: float
    inside: float
    winkler: float


def guesses(learnt: Learnt, series: Sequence[Series]) -> list[Guess]:
    """Of every split of `series`."""
    return [
        Guess(series=one, measured=measured, point=point, made=made)
        for one in series
        for measured, asked in splits(one)
        for point, made in zip(asked, learnt.predict(measured, asked, one.scaling))
    ]


def by_study(series: Sequence[Series], tested: Sequence[str] = ()) -> dict[str, list[Guess]]:
    """The guesses of each way for every study (or those `tested`), with nothing of that study known."""
    names = tested or dict.fromkeys(one.study for one in series)
    return _left_out(series, [[one for one in series if one.study == name] for name in names])


def by_series(series: Sequence[Series]) -> dict[str, list[Guess]]:
    """The guesses of each way for every series, with nothing of that series known."""
    return _left_out(series, [[one] for one in series])


def _left_out(series: Sequence[Series], groups: Sequence[Sequence[Series]]) -> dict[str, list[Guess]]:
    found: dict[str, list[Guess]] = {name: [] for name in (MODEL, *RIVALS)}
    for group in groups:
        known = [one for one in series if one not in group]
        found[MODEL] += guesses(learn(known), group)
        for name in RIVALS:
            found[name] += _of_rival(name, known, group)
    return found


def _of_rival(name: str, known: Sequence[Series], group: Sequence[Series]) -> list[Guess]:
    """A rival's guesses; its intervals are the quantiles of its own errors in the series that are known."""
    errors: dict[bool, list[float]] = {True: [], False: []}
    made = {one: _points_of(name, one) for one in (*known, *group)}
    for one in known:
        for measured, point, rate in made[one]:
            errors[point.devices > 2 * measured[-1].devices].append(float(np.log(point.rate / rate)))
    found = []
    for one in group:
        for measured, point, rate in made[one]:
            low, high = np.quantile(errors[point.devices > 2 * measured[-1].devices], [MISS / 2, 1 - MISS / 2])
            made_of = Prediction(devices=point.devices, rate=rate, low=rate * np.exp(low), high=rate * np.exp(high))
            found.append(Guess(series=one, measured=measured, point=point, made=made_of))
    return found


@functools.cache
def _points_of(name: str, one: Series) -> list[tuple[tuple[Point, ...], Point, float]]:
    return [(held, point, RIVALS[name](held, point.devices)) for held, asked in splits(one) for point in asked]


def score(name: str, guesses: Sequence[Guess]) -> Score:
    """All guesses of one way, in figures."""
    twice = [abs(np.expm1(one.error)) for one in guesses if one.times <= 2]
    four = [abs(np.expm1(one.error)) for one in guesses if one.times > 2]
    return Score(
        name=name,
        points=len(guesses),
        twice=float(np.median(twice)) if twice else None,
        four_times=float(np.median(four)) if four else None,
        within=statistics.fmean(error <= 0.15 for error in twice) if twice else None,
        within_four=statistics.fmean(error <= 0.25 for error in four) if four else None,
        mean_log_error=statistics.fmean(abs(one.error) for one in guesses),
        inside=statistics.fmean(one.inside for one in guesses),
        winkler=statistics.fmean(one.winkler for one in guesses),
    )


def table(scores: Sequence[Score]) -> list[dict[str, str]]:
    """A line for each way, in words."""

    def percent(share: float | None) -> str:
        return "" if share is None else f"{share:.1%}"

    return [
        {
            "prediction": one.name,
            "points": f"{one.points}",
            "median error at 2x": percent(one.twice),
            "at 4x": percent(one.four_times),
            "within 15% at 2x": percent(one.within),
            "within 25% at 4x": percent(one.within_four),
            "mean log error": f"{one.mean_log_error:.3f}",
            "inside 90%": percent(one.inside),
            "interval score": f"{one.winkler:.2f}",
        }
        for one in scores
    ]
