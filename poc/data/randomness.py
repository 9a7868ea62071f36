"""Random numbers that are hashes: the same on every machine, in any order."""

from typing import Any

import numpy as np
import numpy.typing as npt

# Purposes of random numbers. Add new ones at the end: other numbers would change every image.
ORDER, CROP_Y, CROP_X, MIRROR, HUE, LIGHTNESS, SATURATION = range(7)
PATTERN, SHIFT_Y, SHIFT_X, CONTRAST, NOISE = range(7, 12)
CUT_Y, CUT_X = range(12, 14)
AREA, RATIO = range(14, 16)
_30, _27, _31 = map(np.uint64, (30, 27, 31))
_STEP, _A, _B = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def bits(*words: Any) -> npt.NDArray[np.uint64]:
    """Hash integers, or arrays that broadcast, into 64 random bits: SplitMix64 (Steele et al. 2014)."""
    state = np.zeros(1, np.uint64)
    for word in words:
        state = (state ^ np.asarray(word).astype(np.uint64)) + _STEP
        state = (state ^ (state >> _30)) * _A
        state = (state ^ (state >> _27)) * _B
        state = state ^ (state >> _31)
    return state


def uniform(*words: Any) -> npt.NDArray[np.float64]:
    """Return numbers from 0 (included) to 1 (excluded), made from `bits`."""
    return (bits(*words) >> np.uint64(11)) * 2.0**-53
