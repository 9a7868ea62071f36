"""Synthetic images that a model can learn: the smooth pattern of their class, shifted at random, under noise."""

import numpy as np
import numpy.typing as npt

from poc.config import Synthetic
from poc.data.images import Dataset, Images
from poc.data.randomness import CONTRAST, NOISE, PATTERN, SHIFT_X, SHIFT_Y, bits, uniform

_SEED = 0
_CELLS = 4
_FIXED = 64


def make(spec: Synthetic) -> Dataset:
    """Return the images of `spec`; for a fixed batch only a few, which are repeated if it is larger."""
    counts = [min(_FIXED, count) if spec.fixed else count for count in (spec.train, spec.validation)]
    patterns = _patterns(spec.size, min(spec.classes, max(counts)))
    train, validation = (_split(patterns, count, number) for number, count in enumerate(counts))
    return Dataset(Synthetic.name, train, validation)


def _patterns(size: int, classes: int) -> npt.NDArray[np.int16]:
    """Return a periodic pattern, values -96 to 96, for each class: (classes, size, size, 3)."""
    values = _CELLS * _CELLS * 3
    # Bilinear, between cells; no transcendental function, whose last bit would differ between machines.
    position = np.arange(size) * (_CELLS / size)
    lower = position.astype(np.int64)
    fraction = (position - lower)[:, None]
    patterns = np.empty((classes, size, size, 3), np.int16)
    for number in range(classes):
        drawn = bits(_SEED, PATTERN, number * values + np.arange(values)) % np.uint64(97)
        grid = drawn.astype(np.int64).reshape(_CELLS, _CELLS, 3)
        # Without a mean colour: a class differs by its shapes alone.
        pattern = (grid - grid.sum(axis=(0, 1)) // _CELLS**2).astype(np.float64)
        for axis, weight in enumerate((fraction[:, None], fraction)):
            before, after = (np.take(pattern, (lower + step) % _CELLS, axis=axis) for step in (0, 1))
            pattern = before * (1 - weight) + after * weight
        patterns[number] = np.rint(pattern)
    return patterns


def _split(patterns: npt.NDArray[np.int16], count: int, number: int) -> Images:
    """Return `count` images of classes 0, 1, 2, ... for split number `number`."""
    classes, size = patterns.shape[:2]
    labels = (np.arange(count) % classes).astype(np.int32)
    images = np.empty((count, size, size, 3), np.uint8)
    values = size * size * 3
    words = np.arange(-(-values // 8))
    # As many at a time as stay in the processor's cache.
    at_once = max(1, (1 << 19) // values)
    for start in range(0, count, at_once):
        samples = np.arange(start, min(start + at_once, count))
        down, right = (
            (np.arange(size) + (uniform(_SEED, number, samples, purpose) * size).astype(np.int64)[:, None]) % size
            for purpose in (SHIFT_Y, SHIFT_X)
        )
        contrast = (32 + bits(_SEED, number, samples, CONTRAST) % np.uint64(33)).astype(np.int16)
        pixels = patterns[labels[samples][:, None, None], down[:, :, None], right[:, None, :]]
        pixels *= contrast[:, None, None, None]
        pixels >>= 6
        noise = bits(_SEED, number, samples[:, None], NOISE, words).astype("<u8", copy=False).view(np.uint8)
        pixels += noise[:, :values].reshape(pixels.shape) >> 2
        # (-96 to 96) + (0 to 63) + 96 stays within a byte.
        pixels += 96
        images[samples] = pixels
    return Images(images, labels)
