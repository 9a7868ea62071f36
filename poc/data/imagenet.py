"""ImageNet in RecordIO files, whose images are decoded by threads when a batch needs them."""

from __future__ import annotations

import hashlib
import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from poc.config import ImageNet
from poc.data import recordio
from poc.data.images import CHECKSUM_DIGITS, Dataset, Indices, Labels, Pixels, Split, usable_threads
from poc.data.randomness import CROP_X, CROP_Y, MIRROR, uniform
from poc.values import UserError

FILES = ("imagenet_train.rec", "imagenet_val.rec")
SAMPLED_RECORDS = 64
"""Records of each file that its checksum covers, evenly spaced from the first to the last."""
_CENTRE = np.nextafter(0.5, 0)  # of an odd number of pixels, the smaller half is above and to the left
Shares = npt.NDArray[np.float64]


class Records(Split):
    """Images of a RecordIO file.

    Raises UserError if the file is missing, damaged, or has another number of images than `expected`, and when a
    damaged image is read.
    """

    def __init__(self, path: Path, expected: int) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise UserError(f"data: {path} is missing; use a folder with {FILES[0]} and {FILES[1]}") from None
        except (OSError, ValueError) as error:  # an empty file is a ValueError
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
        """Return the size of the file, where its records start, and some of them; all would take minutes to read."""
        starts = np.array([record.start for record in self._records], "<i8")
        sampled = np.linspace(0, len(self) - 1, min(SAMPLED_RECORDS, len(self))).astype(int)
        size = len(self._content).to_bytes(8, "little")
        return b"".join([size, starts.tobytes(), *(self._content[self._records[index]] for index in sampled)])

    def augment(self, indices: Indices, spec: ImageNet, *, seed: int, epoch: int) -> tuple[Pixels, Labels]:
        y, x, flip = uniform(seed, epoch, indices, [[CROP_Y], [CROP_X], [MIRROR]])
        return self._crops(indices, spec, y, x, (flip < 0.5) & spec.mirror)

    def center_crop(self, indices: Indices, spec: ImageNet) -> tuple[Pixels, Labels]:
        centre = np.full(len(indices), _CENTRE)
        return self._crops(indices, spec, centre, centre, np.zeros(len(indices), bool))

    def _crops(
        self, indices: Indices, spec: ImageNet, y: Shares, x: Shares, flipped: npt.NDArray[np.bool_]
    ) -> tuple[Pixels, Labels]:
        """Decode, resize and crop at the shares `y` and `x` of the room around the crop."""

        def show(number: int) -> tuple[Pixels, float]:
            image, label = self._resized(int(indices[number]), spec)
            top = int(y[number] * (image.shape[0] - spec.crop + 1))
            left = int(x[number] * (image.shape[1] - spec.crop + 1))
            view = image[top : top + spec.crop, left : left + spec.crop, ::-1]  # red first
            view = view[:, ::-1] if flipped[number] else view
            return np.ascontiguousarray(view.transpose(2, 0, 1)), label

        images, labels = zip(*self._pool.map(show, range(len(indices))))
        return np.stack(images), np.array(labels, np.float32)

    def _resized(self, index: int, spec: ImageNet) -> tuple[Pixels, float]:
        """Return image number `index`, (height, width, 3), blue first, shorter side `spec.resize`, and its label."""
        where = f"{self._path}, record {index}"
        label, pixels, _ = recordio.image(self._content[self._records[index]], where)
        if not 0 <= label < spec.classes:
            raise UserError(f"data: {where} has the label {label:g}, ImageNet has 0 to {spec.classes - 1}")
        height, width = pixels.shape[:2]
        factor = spec.resize / min(height, width)
        # Rounding must not make a side shorter than `resize`.
        size = max(spec.resize, round(width * factor)), max(spec.resize, round(height * factor))
        resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR)
        return np.asarray(resized, np.uint8), label


def open_files(spec: ImageNet, source: Path | None) -> Dataset:
    """Return the images in folder `source`; raises UserError if files are missing or damaged."""
    if source is None:
        raise UserError(f"data: ImageNet cannot be downloaded; set --data to a folder with {FILES[0]} and {FILES[1]}")
    train, validation = map(Records, (source / name for name in FILES), (spec.train, spec.validation))
    digest = hashlib.sha256(train.summary() + validation.summary()).hexdigest()
    return Dataset(spec.name, train, validation, checksum=digest[:CHECKSUM_DIGITS], source=source)
