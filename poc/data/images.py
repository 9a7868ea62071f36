"""What a data set is, and images in memory: training shows a random crop, mirrored, in moved colours; validation the
centre."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Union

import cv2
import numpy as np
import numpy.typing as npt

from poc.config import CIFAR10, Synthetic
from poc.config.datasets import HELD_OUT_IMAGES, DataId
from poc.data.randomness import CROP_X, CROP_Y, CUT_X, CUT_Y, HUE, LIGHTNESS, MIRROR, SATURATION, uniform

# Whole batches are made in threads, as many as are worth it.
cv2.setNumThreads(1)

InMemory = Union[CIFAR10, Synthetic]
Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[np.float32]
Drawn = npt.NDArray[np.float64]

_one_at_a_time = threading.Lock()
_VIEW = [[CROP_Y], [CROP_X], [MIRROR]]
_COLOUR = [[HUE], [LIGHTNESS], [SATURATION]]
_PAD_VALUE = 127
# OpenCV's 8-bit HLS: hue in steps of two degrees, lightness and saturation, each with its limit.
_HLS_REACH = (36, 50, 50)
_HLS_LIMIT = (180, 255, 255)


class Crops(NamedTuple):
    """Which parts of which training images a batch shows; each (samples,), int32."""

    images: npt.NDArray[np.int32]
    tops: npt.NDArray[np.int32]
    """Of the crop, in pixels from the upper edge of the image with what was put around it."""
    lefts: npt.NDArray[np.int32]
    flipped: npt.NDArray[np.int32]
    """0 or 1."""


class Split(Protocol):
    """Training or validation images, wherever they are."""

    def __len__(self) -> int: ...

    def augment(self, indices: Indices, spec: Any, *, seed: int, epoch: int) -> tuple[Pixels | Crops, Labels]:
        """The samples as an epoch shows them, (samples, 3, size, size), and their labels, (samples,).

        Where the devices hold the images: which views of them.
        """

    def center_crop(self, indices: Indices, spec: Any) -> tuple[Pixels, Labels]:
        """The samples as validation shows them, (samples, 3, crop, crop), and their labels, (samples,)."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """What is trained on and what is validated on."""

    name: str
    """As in `DataId`."""
    train: Split
    validation: Split
    checksum: str = ""
    """As in `DataId`: of both splits as they were read, before any of their images are held out."""
    source: Path | None = None
    """The folder or archive with its files; None where it was made here, or downloaded."""

    @property
    def data_id(self) -> DataId:
        """Its identity: the same for the same pixels and labels, in whatever form they were read."""
        return DataId(self.name, self.checksum)


@dataclass(frozen=True, eq=False)
class Images(Split):
    """A split that is in memory, or mapped into it.

    It is augmented as MXNet's `image_aug_default.cc` does where its CIFAR-10 example sets it: pad with grey, crop at
    random, mirror, then one random offset for each of hue, lightness and saturation, clipped at its limit (so the hue
    does not go round).
    """

    images: Pixels
    """(samples, height, width, 3), RGB; memory-mapped where it comes from the cache."""
    labels: npt.NDArray[np.int32]
    """(samples,), class numbers from 0."""

    def __len__(self) -> int:
        return len(self.images)

    def augment(self, indices: Indices, spec: InMemory, *, seed: int, epoch: int) -> tuple[Pixels | Crops, Labels]:
        drawn = uniform(seed, epoch, indices, _VIEW + _COLOUR if spec.jitter else _VIEW)
        if isinstance(spec, CIFAR10) and spec.alternate:
            first = uniform(seed, 0, indices, [[MIRROR]])[0]
            drawn[2] = first if epoch % 2 == 0 else 1 - first
        views = self._views(indices, spec, drawn)
        labels = self.labels[indices].astype(np.float32)
        if spec.on_device:
            return views, labels
        with _one_at_a_time:
            images = _kept(self, spec.pad)
        pixels = _cut(images, views, spec.crop)
        if spec.jitter:
            pixels = _shift_hls(pixels, _hls_offsets(drawn[3:]))
        if spec.cutout:
            places = uniform(seed, epoch, indices, [[CUT_Y], [CUT_X]]) * (spec.crop - spec.cutout + 1)
            _blank(pixels, places.astype(np.int64), spec.cutout)
        return _planar(pixels), labels

    def center_crop(self, indices: Indices, spec: InMemory) -> tuple[Pixels, Labels]:
        top, left = ((side - spec.crop) // 2 for side in self.images.shape[1:3])
        pixels = self.images[indices, top : top + spec.crop, left : left + spec.crop]
        return _planar(pixels), self.labels[indices].astype(np.float32)

    def _views(self, indices: Indices, spec: InMemory, drawn: Drawn) -> Crops:
        height, width = (side + 2 * spec.pad - spec.crop + 1 for side in self.images.shape[1:3])
        tops, lefts, mirrored = drawn[0] * height, drawn[1] * width, (drawn[2] < 0.5) & spec.mirror
        return Crops(*(values.astype(np.int32) for values in (indices, tops, lefts, mirrored)))


CHECKSUM_DIGITS = 16
MOST_THREADS = 16
"""That make images: beyond it one more is not worth it."""


def usable_threads() -> int:
    """How many threads make images: one a core."""
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))


def checksum(dataset: Dataset) -> str:
    """Compute the checksum of the decoded pixels and labels of both splits, and of the name."""
    digest = hashlib.sha256(dataset.name.encode())
    for split in (dataset.train, dataset.validation):
        assert isinstance(split, Images)
        digest.update(f" {split.images.shape} ".encode())
        digest.update(split.images)  # type: ignore[arg-type]
        digest.update(split.labels.astype("<i4").tobytes())
    return digest.hexdigest()[:CHECKSUM_DIGITS]


def without_test_set(dataset: Dataset) -> Dataset:
    """The training images of `dataset` alone: the last 500 of each of ten classes validate, the others train.

    The test set is not looked at.
    """
    train = dataset.train
    assert isinstance(train, Images)
    trained_on = np.ones(len(train), bool)
    classes = np.unique(train.labels)
    for number in classes:
        trained_on[np.flatnonzero(train.labels == number)[-HELD_OUT_IMAGES // len(classes) :]] = False
    kept, held_out = (Images(train.images[those], train.labels[those]) for those in (trained_on, ~trained_on))
    return replace(dataset, train=kept, validation=held_out)


def device_images(dataset: Dataset, spec: Any) -> Pixels | None:
    """What the devices keep of `dataset`: all training images as `surrounded` gives them; None where they keep none."""
    if not spec.on_device:
        return None
    assert isinstance(dataset.train, Images)
    return surrounded(dataset.train.images, spec.pad)


def surrounded(images: Pixels, pad: int) -> Pixels:
    """The images (n, height, width, 3) with `pad` pixels of grey on each side."""
    around = (pad, pad)
    return np.pad(images, ((0, 0), around, around, (0, 0)), constant_values=_PAD_VALUE) if pad else images


@functools.lru_cache(maxsize=1)
def _kept(split: Images, pad: int) -> Pixels:
    """All images of a split as `surrounded` gives them, so that a batch need not do it."""
    return surrounded(split.images, pad)


def _cut(images: Pixels, views: Crops, crop: int) -> Pixels:
    """Returns the crops (samples, crop, crop, 3) of some of the images (n, height, width, 3), some of them mirrored."""
    count, height, width, _ = images.shape
    # Every crop that there is, each row of it as one stretch of memory.
    shape = (count, height - crop + 1, width - crop + 1, crop, crop * 3)
    crops: Pixels = np.ndarray(shape, np.uint8, images, strides=(*images.strides[:3], images.strides[1], 1))
    pixels = crops[views.images, views.tops, views.lefts].reshape(-1, crop, crop, 3)
    mirrored = np.flatnonzero(views.flipped)
    if len(mirrored):
        pixels[mirrored] = cv2.flip(_tall(pixels[mirrored]), 1).reshape(-1, crop, crop, 3)
    return pixels


def _hls_offsets(drawn: Drawn) -> Indices:
    """The offsets of hue, lightness and saturation (samples, 3), from numbers between 0 and 1 (3, samples)."""
    # Truncated towards zero, as the C++ original does.
    return (drawn.T * 2 * _HLS_REACH - _HLS_REACH).astype(np.int64)


def _shift_hls(pixels: Pixels, offsets: Indices) -> Pixels:
    """Adds offsets (samples, 3) of hue, lightness, saturation to RGB pixels (samples, height, width, 3)."""
    count, height, width, _ = pixels.shape
    # In rows as long as the images': how OpenCV rounds depends on a pixel's place in its row.
    hls = cv2.cvtColor(_tall(pixels), cv2.COLOR_RGB2HLS).reshape(count, -1)
    # OpenCV's sums stop at 0 and 255. So that hue's do at its limit, what lies between is added and taken away again.
    moves = (np.maximum([offsets, -offsets], 0) + 255 - _HLS_LIMIT).astype(np.uint8)
    rows = moves.take(np.arange(width * 3) % 3, axis=2)
    up, down = rows.repeat(height, axis=1).reshape(2, count, -1)
    cv2.subtract(cv2.add(hls, up, dst=hls), down, dst=hls)
    return np.asarray(cv2.cvtColor(hls.reshape(1, -1, 3), cv2.COLOR_HLS2RGB), np.uint8).reshape(pixels.shape)


def _blank(pixels: Pixels, corners: Indices, side: int) -> None:
    """Makes of each image (samples, height, width, 3) a square grey, whose upper left corner is one of (2, samples)."""
    tops, lefts = corners[:, :, None] + np.arange(side)
    pixels[np.arange(len(pixels))[:, None, None], tops[:, :, None], lefts[:, None, :]] = _PAD_VALUE


def _tall(pixels: Pixels) -> Pixels:
    """Returns (samples, height, width, 3) as one tall image: one call of OpenCV does a whole batch."""
    return np.ascontiguousarray(pixels).reshape(-1, pixels.shape[2], 3)


def _planar(pixels: Pixels) -> Pixels:
    """Returns (samples, height, width, 3) as (samples, 3, height, width), contiguous."""
    count, height, width, _ = pixels.shape
    planes = np.empty((count, 3, height, width), np.uint8)
    cv2.split(pixels.reshape(count, -1, 3), list(planes.reshape(count, 3, -1).swapaxes(0, 1)))
    return planes
