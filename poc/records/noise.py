"""The gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1).

It is the batch size at which the noise of a mean gradient is as large as the gradient.
"""

import math
import random
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from poc.values import value

_RESAMPLES = 1000


@value
class Norms:
    """Squared norms of the mean gradients of a small batch and of a large one that contains it, at one step."""

    step: int
    small: float
    large: float


def scale(norms: Sequence[Norms], *, small_batch: int, large_batch: int) -> float | None:
    """Return the noise scale S / |G|^2 in samples; None without norms, or if an estimate of S or |G|^2 is not positive.

    G is the true gradient, S the trace of the covariance of one sample's gradient. E|G_B|^2 = |G|^2 + S / B, so two
    batch sizes give two equations; both estimates are unbiased, and averaged over all norms.
    """
    if not norms or small_batch >= large_batch:
        return None
    small, large = (statistics.fmean(getattr(pair, name) for pair in norms) for name in ("small", "large"))
    variance, signal = _estimates(small, large, small_batch, large_batch)
    return variance / signal if signal > 0 and variance > 0 else None


def _estimates(small: Any, large: Any, small_batch: int, large_batch: int) -> tuple[Any, Any]:
    """Return the estimates of S and |G|^2 from the mean squared norms."""
    signal = (large_batch * large - small_batch * small) / (large_batch - small_batch)
    return (small - large) / (1 / small_batch - 1 / large_batch), signal


def interval(norms: Sequence[Norms], *, small_batch: int, large_batch: int) -> tuple[float, float]:
    """Return the 90% interval of the noise scale, in samples; its upper end is infinite if the signal may be zero.

    Successive steps are correlated, so it is a bootstrap over blocks of steps (Kuensch 1989), whose length is the cube
    root of the number of steps, two or more. The percentiles are expanded, else the interval would be too narrow for
    few blocks (Hesterberg 2015, "What Teachers Should Know About the Bootstrap").
    """
    from scipy.special import stdtrit  # the quantile of Student's t; plan and workers need not wait for it

    length = max(1, round(len(norms) ** (1 / 3)))
    pairs = np.array([(pair.small, pair.large) for pair in norms])
    means = np.lib.stride_tricks.sliding_window_view(pairs, length, axis=0).mean(axis=-1)  # of each block
    draws, shape = random.Random(0), (_RESAMPLES, -(-len(norms) // length))
    chosen = [draws.choice(range(len(means))) for _ in range(math.prod(shape))]
    small, large = means[chosen].reshape(*shape, 2).mean(axis=1).T
    estimates = zip(*_estimates(small, large, small_batch, large_batch))
    scales = sorted(max(0.0, variance) / signal if signal > 0 else math.inf for variance, signal in estimates)
    count = len(norms) / length
    percentile = statistics.NormalDist().cdf(-math.sqrt(count / (count - 1)) * stdtrit(count - 1, 0.95))
    below = int(_RESAMPLES * percentile)
    return scales[below], scales[-1 - below]
