"""The gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1).

The batch at which the noise of a gradient is as large as the gradient: below it twice the batch needs nearly half the
steps, beyond it more samples a step pay less and less. Pure arithmetic.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

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
