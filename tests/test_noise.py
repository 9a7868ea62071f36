"""The gradient noise scale, on a quadratic loss whose noise scale is known."""

import numpy as np
import pytest

from poc.records import noise
from poc.records.noise import Norms


def norms_of(
    mean: np.ndarray, deviation: float, small: int, large: int, steps: int, generator: np.random.Generator
) -> list[Norms]:
    """Squared norms of mean gradients: the loss of sample i is |w - x_i|^2 / 2, so its gradient at w = 0 is -x_i."""
    norms = []
    for step in range(steps):
        gradients = -generator.normal(mean, deviation, size=(large, len(mean)))
        of_small, of_large = (float(np.square(part.mean(axis=0)).sum()) for part in (gradients[:small], gradients))
        norms.append(Norms(step=step, small=of_small, large=of_large))
    return norms


@pytest.mark.parametrize(("small", "large"), [(8, 32), (64, 128), (1, 256)])
def test_the_noise_scale_of_a_quadratic_is_that_of_the_formula(small: int, large: int) -> None:
    generator, dimensions, deviation = np.random.default_rng(3), 50, 2.0
    mean = generator.normal(size=dimensions)
    norms = norms_of(mean, deviation, small, large, 2000, generator)
    scale = noise.scale(norms, small_batch=small, large_batch=large)
    assert scale == pytest.approx(dimensions * deviation**2 / np.square(mean).sum(), rel=0.1)


def test_nine_in_ten_intervals_contain_the_noise_scale() -> None:
    generator, inside = np.random.default_rng(5), 0
    for _ in range(40):
        norms = norms_of(np.ones(20), 3.0, 8, 64, 60, generator)
        low, high = noise.interval(norms, small_batch=8, large_batch=64)
        inside += low < 9.0 < high
    assert 30 <= inside <= 40


def test_without_signal_or_measurements_there_is_no_noise_scale() -> None:
    # Norms of single workers: now and then the small batch's gradient is the smaller one.
    smalls = np.random.default_rng(1).normal(1.0, 0.2, 60)
    low, high = noise.interval(
        [Norms(step=1, small=small, large=1.0) for small in smalls], small_batch=8, large_batch=64
    )
    assert 0 == low < high < 2
    no_signal = [Norms(step=step, small=8.0, large=0.9) for step in range(9)]
    assert noise.interval(no_signal, small_batch=8, large_batch=64) == (float("inf"), float("inf"))
    for norms, small, large in (([], 8, 64), (no_signal, 4, 4), (no_signal, 8, 64)):
        assert noise.scale(norms, small_batch=small, large_batch=large) is None
