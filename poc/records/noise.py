"""The gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1).

The batch at which the noise of a gradient is as large as the gradient: below it twice the batch needs nearly half the
steps, beyond it more samples a step pay less and less. Pure arithmetic.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence

from poc.values import value


@value
class Norms:
    """Squared norms of mean gradients of the same step, of a small batch and of a large one that holds it."""

    step: int
    small: float
    large: float


@value
class Noise:
    """What `estimate` found; each in units of a squared gradient of one sample's loss."""

    signal: float
    """|G|^2 of the true gradient; it can come out negative where there is almost none."""
    variance: float
    """S, the trace of the covariance of one sample's gradient."""
    samples: int

    @property
    def scale(self) -> float | None:
        """The noise scale, in samples; None where no signal was found, or no noise."""
        return self.variance / self.signal if self.signal > 0 and self.variance > 0 else None


def estimate(norms: Sequence[Norms], *, small_batch: int, large_batch: int) -> Noise | None:
    """Unbiased estimates of both, averaged apart over all `norms`; None without any.

    E|G_B|^2 = |G|^2 + S / B, so two batch sizes give two equations.
    """
    if not norms or small_batch >= large_batch:
        return None
    small, large = (statistics.fmean(getattr(one, name) for one in norms) for name in ("small", "large"))
    signal = (large_batch * large - small_batch * small) / (large_batch - small_batch)
    variance = (small - large) / (1 / small_batch - 1 / large_batch)
    return Noise(signal=signal, variance=variance, samples=len(norms))


def interval(norms: Sequence[Norms], *, small_batch: int, large_batch: int) -> tuple[float, float | None] | None:
    """90% of what the noise scale may be, in samples; no upper end where the signal may be none; None without any.

    A bootstrap over blocks of successive looks (Kuensch 1989), as what is seen at one step is much like what was seen
    at the last: blocks of the cube root of their number, and `RESAMPLED` draws of as many as there are.
    """
    if not norms or small_batch >= large_batch:
        return None
    length = max(1, round(len(norms) ** (1 / 3)))
    blocks = [norms[start : start + length] for start in range(len(norms) - length + 1)]
    draws = random.Random(0)
    scales = []
    for _ in range(RESAMPLED):
        drawn = [one for _ in range(-(-len(norms) // length)) for one in draws.choice(blocks)]
        found = estimate(drawn, small_batch=small_batch, large_batch=large_batch)
        # Where no signal is left the noise is endless, so to speak.
        scales.append(found.scale if found and found.scale is not None else float("inf"))
    scales.sort()
    low, high = scales[RESAMPLED // 20], scales[-RESAMPLED // 20]
    return low, high if high < float("inf") else None


def epochs_at(batch: float, scale: float) -> float:
    """Epochs at a total batch, over the fewest of any batch (their equation 2.11, at a fixed batch)."""
    return 1 + batch / scale


def rate_at(batch: float, scale: float, *, sized_by_gradient: bool = True) -> float:
    """The best learning rate at a total batch, over that of an endless one (their equation 2.6).

    Its root where a larger gradient makes no larger update: they found powers from 0.5 to 1 for Adam and RMSProp.
    """
    return float((1 + scale / batch) ** (-1.0 if sized_by_gradient else -0.5))


def fitted(epochs: Mapping[int, float]) -> float | None:
    """The noise scale whose `epochs_at` is nearest to epochs by total batch; None where none from 1 to 2^20 is.

    Their critical batch size: least squares of logarithms, the fewest epochs free (their appendix A.3).
    """

    def unlike(scale: float) -> float:
        return statistics.pvariance(math.log(found / epochs_at(batch, scale)) for batch, found in epochs.items())

    scales = [2 ** (step / 64) for step in range(20 * 64 + 1)]
    best = min(scales, key=unlike)
    return best if scales[0] < best < scales[-1] else None


RESAMPLED = 1000
