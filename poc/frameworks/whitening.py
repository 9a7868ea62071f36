"""Filters of a whitening first convolution, computed from the training images (Jordan 2024, after Page 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

IMAGES = 5_000
"""Number of training images that are enough."""
_EPSILON = 5e-4


def filters(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the filters (24, 3, 2, 2) that whiten patches of 2 x 2 of images (n, 3, h, w), and each of them negated.

    They are the eigenvectors of the patches' second moments, each divided by the root of its eigenvalue.
    """
    patches: Any = np.lib.stride_tricks.sliding_window_view(images, (2, 2), axis=(2, 3))  # type: ignore[call-overload]
    patches = patches.transpose(0, 2, 3, 1, 4, 5).reshape(-1, 12).astype(np.float64)
    values, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
    whitening = (vectors / np.sqrt(values + _EPSILON)).T[::-1].reshape(-1, 3, 2, 2)
    return np.concatenate([whitening, -whitening]).astype(np.float32)
