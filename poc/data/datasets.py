"""What a data set is, and what is shown of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[np.float32]


class Views(NamedTuple):
    """Which parts of which training images a batch shows; each (samples,), int32."""

    images: npt.NDArray[np.int32]
    tops: npt.NDArray[np.int32]
    """Of the crop, in pixels from the upper edge of the image with what was put around it."""
    lefts: npt.NDArray[np.int32]
    mirrored: npt.NDArray[np.int32]
    """0 or 1."""


class Split(Protocol):
    """Training or validation images, wherever they are."""

    def __len__(self) -> int: ...

    def augmented(self, indices: Indices, spec: Any, *, seed: int, epoch: int) -> tuple[Pixels | Views, Labels]:
        """The samples as an epoch shows them, (samples, 3, crop, crop), and their labels, (samples,).

        Where the devices hold the images: which views of them.
        """

    def centred(self, indices: Indices, spec: Any) -> tuple[Pixels, Labels]:
        """The samples as validation shows them, (samples, 3, crop, crop), and their labels, (samples,)."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """What is trained on and what is validated on."""

    name: str
    """As tables show it: "cifar10", "cifar10 (jpeg)" (lossy copies), "imagenet" or "synthetic"."""
    train: Split
    validation: Split
