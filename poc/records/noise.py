"""The gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1).

It is the batch size at which the noise of a mean gradient is as large as the gradient.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from poc.values import value

_RESAMPLES = 1000


@value
class Norms:
    """Squared norms of the mean gradients of a small batch and of a large one that contains it, at one step."""

    step: int
    small: float
    large: float


@value
class Noise:
    """Estimates of signal and noise, in units of a squared gradient of one sample's loss."""

    signal: float
    """|G|^2 of the true gradient; the estimate can be negative if the gradient is near zero."""
    variance: float
    """S, the trace of the covariance of one sample's gradient."""
    samples: int

    @property
    def scale(self) -> float | None:
        """The noise scale, in samples; None if signal or noise is not positive."""
        return self.variance / self.signal if self.signal > 0 and self.variance > 0 else None


def estimate(norms: Sequence[Norms], *, small_batch: int, large_batch: int) -> Noise | None:
    """Return unbiased estimates of signal and noise, each averaged over all `norms`; None without any.

    E|G_B|^2 = |G|^2 + S / B, so two batch sizes give two equations.
    """
    if not norms or small_batch >= large_batch:
        return None
    small, large = (statistics.fmean(getattr(pair, name) for pair in norms) for name in ("small", "large"))
    signal = (large_batch * large - small_batch * small) / (large_batch - small_batch)
    variance = (small - large) / (1 / small_batch - 1 / large_batch)
    return Noise(signal=signal, variance=variance, samples=len(norms))


def interval(norms: Sequence[Norms], *, small_batch: int, large_batch: int) -> tuple[float, float | None] | None:
    """Return the 90% interval of the noise scale, in samples; no upper end if the signal may be zero; None without any.

    Successive steps are correlated, so it is a bootstrap over blocks of steps (Kuensch 1989), whose length is the cube
    root of the number of steps.
    """
    if not norms or small_batch >= large_batch:
        return None
    length = max(1, round(len(norms) ** (1 / 3)))
    blocks = [norms[start : start + length] for start in range(len(norms) - length + 1)]
    draws = random.Random(0)
    scales = []
    for _ in range(_RESAMPLES):
        resample = [pair for _ in range(-(-len(norms) // length)) for pair in draws.choice(blocks)]
        noise = estimate(resample, small_batch=small_batch, large_batch=large_batch)
        scales.append(noise.scale if noise and noise.scale is not None else float("inf"))
    scales.sort()
    low, high = scales[_RESAMPLES // 20], scales[-_RESAMPLES // 20]
    return low, high if high < float("inf") else None
