"""ImageNet from RecordIO files, whose images are decoded in threads as training and validation ask for them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from poc.data import recordio
from poc.data.randomness import CROP_X, CROP_Y, MIRROR, uniform
from poc.recipe import ImageNet
from poc.values import UserError

FILES = ("imagenet_train.rec", "imagenet_val.rec")
_MOST_THREADS = 16

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


class Records:
    """The images of one RecordIO file, each decoded when it is asked for, by several threads at once.

    Raises UserError where the file is missing, damaged, or holds another number of images than `expected`.
    """

    def __init__(self, path: Path, expected: int, classes: int) -> None:
        self._path, self._classes = path, classes
        try:
            with path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise UserError(f"data: {path} is missing; give a folder with {FILES[0]} and {FILES[1]}") from None
        except (OSError, ValueError) as error:  # mmap calls an empty file a ValueError
            raise UserError(f"data: {path} cannot be read ({error}); get it again") from None
        self._records = list(recordio.records(self._content, path))
        if len(self._records) != expected:
            raise UserError(
                f"data: {path} holds {len(self._records)} images, ImageNet(...) says {expected}: give its train= and "
                "validation= as many as there are, or get it again"
            )
        self._pool = ThreadPoolExecutor(min(_MOST_THREADS, len(os.sched_getaffinity(0))), "decode")

    def __len__(self) -> int:
        return len(self._records)

    def augmented(self, indices: Indices, spec: ImageNet, *, seed: int, epoch: int) -> tuple[Pixels, Labels]:
        """The samples as an epoch shows them, (samples, 3, crop, crop), and their labels. Raises UserError."""
        tops, lefts, mirrored = (uniform(seed, epoch, indices, purpose) for purpose in (CROP_Y, CROP_X, MIRROR))

        def show(index: int, top: float, left: float, mirror: float) -> tuple[Pixels, float]:
            image, label = self._decoded(index, spec.resize)
            height, width = image.shape[:2]
            y, x = int(top * (height - spec.crop + 1)), int(left * (width - spec.crop + 1))
            view = image[y : y + spec.crop, x : x + spec.crop]
            return (view[:, ::-1] if spec.mirror and mirror < 0.5 else view), label

        return _stacked(list(self._pool.map(show, indices.tolist(), tops, lefts, mirrored)))

    def centred(self, indices: Indices, spec: ImageNet) -> tuple[Pixels, Labels]:
        """The samples as validation shows them, (samples, 3, crop, crop), and their labels. Raises UserError."""

        def show(index: int) -> tuple[Pixels, float]:
            image, label = self._decoded(index, spec.resize)
            y, x = ((side - spec.crop) // 2 for side in image.shape[:2])
            return image[y : y + spec.crop, x : x + spec.crop], label

        return _stacked(list(self._pool.map(show, indices.tolist())))

    def _decoded(self, index: int, shorter: int) -> tuple[Pixels, float]:
        """Image number `index`, (height, width, 3), blue first, its shorter side `shorter` pixels, and its label."""
        where = f"{self._path}, record {index}"
        label, encoded = recordio.image(recordio.payload(self._content, self._records[index]), where)
        image = recordio.decoded(encoded)
        if image is None:
            raise UserError(f"data: {where}: nothing that decodes; get the file again")
        if not 0 <= label < self._classes:
            raise UserError(f"data: {where} has the label {label:g}, ImageNet has 0 to {self._classes - 1}")
        height, width = image.shape[:2]
        factor = shorter / min(height, width)
        # Rounding must not leave a side shorter than asked for.
        size = max(shorter, round(width * factor)), max(shorter, round(height * factor))
        if factor != 1:
            image = cv2.resize(image, size, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR)
        return np.asarray(image, np.uint8), label


def open_files(spec: ImageNet, source: Path | None) -> tuple[Records, Records]:
    """The training and validation images in folder `source`; raises UserError where they are missing or damaged."""
    if source is None:
        raise UserError(f"data: ImageNet cannot be downloaded; give --data a folder with {FILES[0]} and {FILES[1]}")
    train, validation = (Path(source) / name for name in FILES)
    return Records(train, spec.train, spec.classes), Records(validation, spec.validation, spec.classes)


def _stacked(found: Sequence[tuple[Pixels, float]]) -> tuple[Pixels, Labels]:
    pixels = np.stack([image[..., ::-1].transpose(2, 0, 1) for image, _ in found])
    return np.ascontiguousarray(pixels), np.array([label for _, label in found], np.float32)
