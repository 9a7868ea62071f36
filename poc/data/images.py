"""Data sets, images in memory, and their augmentation: random crop, horizontal flip, colour jitter, cutout."""

from __future__ import annotations

import functools
import hashlib
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from poc.config import Arrays, Synthetic
from poc.config.datasets import Cifar, DataId, held_out_images
from poc.data.randomness import CROP_X, CROP_Y, CUT_X, CUT_Y, HUE, LIGHTNESS, MIRROR, SATURATION, uniform
from poc.host import hardware

cv2.setNumThreads(1)  # batches are made in threads of our own

InMemory = Cifar | Synthetic | Arrays
Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[np.float32]

CHECKSUM_DIGITS = 16

_PAD_VALUE = 127
# OpenCV's 8-bit HLS: hue in steps of two degrees, lightness and saturation, each with its limit.
_HLS_REACH = (36, 50, 50)
_HLS_LIMIT = (180, 255, 255)
_pad_lock = threading.Lock()


class Crops(NamedTuple):
    """Crops of training images, each field (samples,), int32."""

    images: npt.NDArray[np.int32]  # indices of the images
    tops: npt.NDArray[np.int32]  # pixels from the upper edge of the padded image
    lefts: npt.NDArray[np.int32]
    flipped: npt.NDArray[np.int32]  # 1 if the crop is flipped horizontally, else 0


class Split(Protocol):
    """Training or validation images, in memory or in files."""

    labels: npt.NDArray[np.int32]  # (samples,), class numbers from 0

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, indices: Indices) -> Split:
        """Return these samples as a split of their own."""

    def augment(self, indices: Indices, spec: Any, *, seed: int, epoch: int) -> tuple[Pixels | Crops, Labels]:
        """Return the samples as an epoch shows them, (samples, 3, crop, crop), and their labels, (samples,).

        If the devices hold the images, only the crops that they have to make.
        """

    def center_crop(self, indices: Indices, spec: Any) -> tuple[Pixels, Labels]:
        """Return the samples as validation shows them, (samples, 3, crop, crop), and their labels, (samples,)."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and validation images."""

    name: str  # name of the images (`DataId.name`)
    train: Split
    validation: Split
    checksum: str = ""
    """Checksum of both splits as they were read, before a validation split is taken from the training images."""
    source: Path | None = None  # folder or archive with its files; None if it was made here or downloaded

    @property
    def data_id(self) -> DataId:
        """Identity of the images: the same for the same pixels and labels, in whatever form they were read."""
        return DataId(self.name, self.checksum)


@dataclass(frozen=True, eq=False)
class Images(Split):
    """Images in memory, or mapped into it.

    The augmentation is that of MXNet's `image_aug_default.cc` as its CIFAR-10 example sets it: pad with grey, random
    crop, horizontal flip, then one random offset each of hue, lightness and saturation, clipped at its limit.
    """

    images: Pixels  # (samples, height, width, 3), RGB
    labels: npt.NDArray[np.int32]  # (samples,), class numbers from 0

    def part(self, indices: Indices) -> Images:
        return Images(self.images[indices], self.labels[indices])

    def augment(self, indices: Indices, spec: InMemory, *, seed: int, epoch: int) -> tuple[Pixels | Crops, Labels]:
        crops, labels = self._crops(indices, spec, seed, epoch), self.labels[indices].astype(np.float32)
        if spec.on_device:
            return crops, labels
        with _pad_lock:
            padded = _padded(self, spec.pad)
        pixels = crop_and_flip(padded, crops, spec.crop)
        if spec.jitter:
            pixels = shift_hls(pixels, uniform(seed, epoch, indices, [[HUE], [LIGHTNESS], [SATURATION]]))
        if spec.cutout:
            corners = uniform(seed, epoch, indices, [[CUT_Y], [CUT_X]]) * (spec.crop - spec.cutout + 1)
            _cut_out(pixels, corners.astype(np.int64), spec.cutout)
        return _planar(pixels), labels

    def center_crop(self, indices: Indices, spec: InMemory) -> tuple[Pixels, Labels]:
        y, x = ((side - spec.crop) // 2 for side in self.images.shape[1:3])
        pixels = self.images[indices, y : y + spec.crop, x : x + spec.crop]
        return _planar(pixels), self.labels[indices].astype(np.float32)

    def _crops(self, indices: Indices, spec: InMemory, seed: int, epoch: int) -> Crops:
        y, x, flip = uniform(seed, epoch, indices, [[CROP_Y], [CROP_X], [MIRROR]])
        if spec.alternate:
            first = uniform(seed, 0, indices, MIRROR)
            flip = first if epoch % 2 == 0 else 1 - first
        height, width = (side + 2 * spec.pad - spec.crop + 1 for side in self.images.shape[1:3])
        fields = (indices, y * height, x * width, (flip < 0.5) & spec.mirror)
        return Crops(*(values.astype(np.int32) for values in fields))


def usable_threads() -> int:
    """Return the number of data-loading threads: one per usable core, up to 16, since more gave no speed-up."""
    return min(16, hardware.usable_cores())


def checksum(dataset: Dataset) -> str:
    """Compute the checksum of the name, and of the decoded pixels and labels of both splits."""
    digest = hashlib.sha256(dataset.name.encode())
    for split in (dataset.train, dataset.validation):
        assert isinstance(split, Images)
        digest.update(f" {split.images.shape} ".encode())
        digest.update(np.ascontiguousarray(split.images).data)
        digest.update(split.labels.astype("<i4").tobytes())
    return digest.hexdigest()[:CHECKSUM_DIGITS]


def split_off_validation(dataset: Dataset) -> Dataset:
    """Validate on the last training images of each class, the same share of each, and train on the others.

    The test set is not read.
    """
    train = dataset.train
    from_end = np.empty(len(train))  # position in the class, counted from its end, as a share of the class
    for number in np.unique(train.labels):
        of_class = np.flatnonzero(train.labels == number)
        from_end[of_class] = np.arange(len(of_class), 0, -1) / len(of_class)
    held_out = np.argsort(from_end, kind="stable")[: held_out_images(len(train))]
    training = np.delete(np.arange(len(train)), held_out)
    return replace(dataset, train=train.part(training), validation=train.part(np.sort(held_out)))


def device_images(dataset: Dataset, spec: Any) -> Pixels:
    """Return the padded training images, which devices hold with `on_device`."""
    assert isinstance(dataset.train, Images)
    return pad(dataset.train.images, spec.pad)


def pad(images: Pixels, border: int) -> Pixels:
    """Pad images, (n, height, width, 3), with `border` pixels of grey on each side."""
    sides = (border, border)
    return np.pad(images, ((0, 0), sides, sides, (0, 0)), constant_values=_PAD_VALUE) if border else images


@functools.lru_cache(maxsize=1)
def _padded(split: Images, border: int) -> Pixels:
    """Pad all images of a split once, so that no batch has to."""
    return pad(split.images, border)


def crop_and_flip(images: Pixels, crops: Crops, size: int) -> Pixels:
    """Cut crops, (samples, size, size, 3), out of images, (n, height, width, 3), and flip some horizontally."""
    count, height, width, _ = images.shape
    # A view of every possible crop, each row of which is one stretch of memory.
    shape = (count, height - size + 1, width - size + 1, size, size * 3)
    windows: Pixels = np.ndarray(shape, np.uint8, images, strides=(*images.strides[:3], images.strides[1], 1))
    pixels = windows[crops.images, crops.tops, crops.lefts].reshape(-1, size, size, 3)
    flipped = np.flatnonzero(crops.flipped)
    if len(flipped):
        pixels[flipped] = cv2.flip(_tall(pixels[flipped]), 1).reshape(-1, size, size, 3)
    return pixels


def shift_hls(pixels: Pixels, random: npt.NDArray[np.float64]) -> Pixels:
    """Shift hue, lightness and saturation of RGB pixels, (samples, height, width, 3), by numbers 0 to 1, (3, samples).

    A half is no shift.
    """
    count, height, width, _ = pixels.shape
    # Truncated towards zero, like the C++ original.
    offsets = (random.T * 2 * _HLS_REACH - _HLS_REACH).astype(np.int64)
    # In rows as long as the images': OpenCV's rounding depends on a pixel's place in its row.
    hls = cv2.cvtColor(_tall(pixels), cv2.COLOR_RGB2HLS).reshape(count, -1)
    # OpenCV's sums saturate at 0 and 255. Adding and subtracting the rest makes hue saturate at its own limit.
    moves = (np.maximum([offsets, -offsets], 0) + 255 - _HLS_LIMIT).astype(np.uint8)
    rows = moves.take(np.arange(width * 3) % 3, axis=2)
    up, down = rows.repeat(height, axis=1).reshape(2, count, -1)
    cv2.subtract(cv2.add(hls, up, dst=hls), down, dst=hls)
    return np.asarray(cv2.cvtColor(hls.reshape(1, -1, 3), cv2.COLOR_HLS2RGB), np.uint8).reshape(pixels.shape)


def _cut_out(pixels: Pixels, corners: Indices, side: int) -> None:
    """Make a square of each image, (samples, height, width, 3), grey; its upper left corners are (2, samples)."""
    tops, lefts = corners[:, :, None] + np.arange(side)
    pixels[np.arange(len(pixels))[:, None, None], tops[:, :, None], lefts[:, None, :]] = _PAD_VALUE


def _tall(pixels: Pixels) -> Pixels:
    """Return (samples, height, width, 3) as one tall image, so that one call of OpenCV does a whole batch."""
    return np.ascontiguousarray(pixels).reshape(-1, pixels.shape[2], 3)


def _planar(pixels: Pixels) -> Pixels:
    """Return (samples, height, width, 3) as (samples, 3, height, width), contiguous."""
    count, height, width, _ = pixels.shape
    planes = np.empty((count, 3, height, width), np.uint8)
    cv2.split(pixels.reshape(count, -1, 3), list(planes.reshape(count, 3, -1).swapaxes(0, 1)))
    return planes
