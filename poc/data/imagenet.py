"""ImageNet from RecordIO files, whose images are decoded in threads as training and validation ask for them."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np

from poc.config import ImageNet
from poc.data import recordio
from poc.data.images import CHECKSUM_DIGITS, Dataset, Indices, Labels, Pixels, Split, usable_threads
from poc.data.randomness import CROP_X, CROP_Y, MIRROR, uniform
from poc.values import UserError

FILES = ("imagenet_train.rec", "imagenet_val.rec")
SAMPLED_RECORDS = 64
"""Records of each file whose bytes the checksum of the data is of, evenly spread from the first to the last."""


class Records(Split):
    """The images of one RecordIO file, each decoded when it is asked for, by several threads at once.

    Raises UserError where the file is missing, damaged, or holds another number of images than `expected`; an image
    that is damaged is found, and raises it, when it is asked for.
    """

    def __init__(self, path: Path, expected: int) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise UserError(f"data: {path} is missing; use a folder with {FILES[0]} and {FILES[1]}") from None
        except (OSError, ValueError) as error:  # mmap calls an empty file a ValueError
            raise UserError(f"data: {path} cannot be read ({error}); download it again") from None
        self._records = list(recordio.records(self._content, path))
        if len(self) != expected:
            raise UserError(
                f"data: {path} has {len(self)} images, the recipe expects {expected}; set train= and "
                "validation= of ImageNet(...), or download it again"
            )
        self._pool = ThreadPoolExecutor(usable_threads(), "decode")

    def __len__(self) -> int:
        return len(self._records)

    def summary(self) -> bytes:
        """What the checksum of the data is of: the size of the file, where its records are, and a sample of these.

        The whole file would take minutes to read.
        """
        starts = np.array([record.start for record in self._records], "<i8")
        sampled = np.linspace(0, len(self) - 1, min(SAMPLED_RECORDS, len(self))).astype(int)
        size = len(self._content).to_bytes(8, "little")
        return b"".join([size, starts.tobytes(), *(self._content[self._records[index]] for index in sampled)])

    def augment(self, indices: Indices, spec: ImageNet, *, seed: int, epoch: int) -> tuple[Pixels, Labels]:
        def show(index: int, top: float, left: float, mirror: float) -> tuple[Pixels, float]:
            image, label = self._resized(index, spec)
            height, width = image.shape[:2]
            y, x = int(top * (height - spec.crop + 1)), int(left * (width - spec.crop + 1))
            view = image[y : y + spec.crop, x : x + spec.crop]
            return _planes(view[:, ::-1] if spec.mirror and mirror < 0.5 else view), label

        draws = (uniform(seed, epoch, indices, purpose) for purpose in (CROP_Y, CROP_X, MIRROR))
        return _stacked(self._pool.map(show, indices.tolist(), *draws))

    def center_crop(self, indices: Indices, spec: ImageNet) -> tuple[Pixels, Labels]:
        def show(index: int) -> tuple[Pixels, float]:
            image, label = self._resized(index, spec)
            y, x = ((side - spec.crop) // 2 for side in image.shape[:2])
            return _planes(image[y : y + spec.crop, x : x + spec.crop]), label

        return _stacked(self._pool.map(show, indices.tolist()))

    def _resized(self, index: int, spec: ImageNet) -> tuple[Pixels, float]:
        """Image number `index`, (height, width, 3), blue first, its shorter side `spec.resize` pixels; its label."""
        where = f"{self._path}, record {index}"
        label, pixels, _ = recordio.image(self._content[self._records[index]], where)
        if not 0 <= label < spec.classes:
            raise UserError(f"data: {where} has the label {label:g}, ImageNet has 0 to {spec.classes - 1}")
        height, width = pixels.shape[:2]
        factor = spec.resize / min(height, width)
        if factor == 1:
            return pixels, label
        # Rounding must not leave a side shorter than asked for.
        size = max(spec.resize, round(width * factor)), max(spec.resize, round(height * factor))
        resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR)
        return np.asarray(resized, np.uint8), label


def open_files(spec: ImageNet, source: Path | None) -> Dataset:
    """The training and validation images in folder `source`; raises UserError where they are missing or damaged."""
    if source is None:
        raise UserError(f"data: ImageNet cannot be downloaded; set --data to a folder with {FILES[0]} and {FILES[1]}")
    train, validation = map(Records, (source / name for name in FILES), (spec.train, spec.validation))
    digest = hashlib.sha256(train.summary() + validation.summary()).hexdigest()
    return Dataset(spec.name, train, validation, checksum=digest[:CHECKSUM_DIGITS], source=source)


def _stacked(shown: Iterable[tuple[Pixels, float]]) -> tuple[Pixels, Labels]:
    images, labels = zip(*shown)
    return np.stack(images), np.array(labels, np.float32)


def _planes(image: Pixels) -> Pixels:
    """(3, height, width), red first: copied in the thread that decoded it, of which there are several."""
    return np.ascontiguousarray(image[..., ::-1].transpose(2, 0, 1))
