"""Images in, batches out: CIFAR-10 from files, cache or network; synthetic images; augmentation; shards.

Pixels stay uint8 all the way to the device, which subtracts the mean. Every random number is a hash of the
seed, the epoch and the sample's index, so a sample looks the same whatever the batch, the number of devices
or workers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import sys
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, Union

import cv2
import numpy as np
import numpy.typing as npt

from poc.data import imagenet, recordio
from poc.data.randomness import (
    CONTRAST,
    CROP_X,
    CROP_Y,
    HUE,
    LIGHTNESS,
    MIRROR,
    NOISE,
    ORDER,
    PATTERN,
    SATURATION,
    SHIFT_X,
    SHIFT_Y,
    bits,
    uniform,
)
from poc.recipe import CIFAR10, Data, ImageNet, Synthetic
from poc.recipe.rates import steps_per_epoch
from poc.values import UserError

# The other cores belong to the training.
cv2.setNumThreads(1)

Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[np.float32]
InMemory = Union[CIFAR10, Synthetic]
T = TypeVar("T")


class Split(Protocol):
    """Training or validation images, wherever they are."""

    def __len__(self) -> int: ...

    def augmented(self, indices: Indices, spec: Any, *, seed: int, epoch: int) -> tuple[Pixels, Labels]:
        """The samples as an epoch shows them, (samples, 3, crop, crop), and their labels."""

    def centred(self, indices: Indices, spec: Any) -> tuple[Pixels, Labels]:
        """The samples as validation shows them, (samples, 3, crop, crop), and their labels."""


@dataclass(frozen=True, eq=False)
class Images:
    """A split that is in memory, or mapped into it."""

    images: Pixels
    """(samples, height, width, 3), RGB; memory-mapped where it comes from the cache."""
    labels: npt.NDArray[np.int32]
    """(samples,), class numbers from 0."""

    def __len__(self) -> int:
        return len(self.images)

    def augmented(self, indices: Indices, spec: InMemory, *, seed: int, epoch: int) -> tuple[Pixels, Labels]:
        """The samples as an epoch shows them, (samples, 3, crop, crop), and their labels."""
        pixels = augment(self.images, indices, spec, seed=seed, epoch=epoch)
        return pixels, self.labels[indices].astype(np.float32)

    def centred(self, indices: Indices, spec: InMemory) -> tuple[Pixels, Labels]:
        """The samples as validation shows them, (samples, 3, crop, crop), and their labels."""
        return centre(self.images[indices], spec), self.labels[indices].astype(np.float32)


@dataclass(frozen=True, eq=False)
class Dataset:
    """What is trained on and what is validated on."""

    name: str
    """As tables show it: "cifar10", "cifar10 (jpeg)" (lossy copies), "imagenet" or "synthetic"."""
    train: Split
    validation: Split
    classes: int


@dataclass(frozen=True, eq=False)
class Views:
    """Which parts of which training images a batch shows; each (samples,), int32."""

    images: npt.NDArray[np.int32]
    tops: npt.NDArray[np.int32]
    """Of the crop, in pixels from the upper edge of the image with what was put around it."""
    lefts: npt.NDArray[np.int32]
    mirrored: npt.NDArray[np.int32]
    """0 or 1."""

    def part(self, first: int, last: int) -> Views:
        """Those of samples `first` to `last`."""
        return Views(*(each[first:last] for each in (self.images, self.tops, self.lefts, self.mirrored)))


@dataclass(frozen=True, eq=False)
class Batch:
    """What one worker feeds to one step."""

    images: Pixels | Views
    """(samples, 3, height, width), RGB, contiguous; or which views of the images that the devices hold."""
    labels: npt.NDArray[np.float32]
    """(samples,), class numbers from 0."""

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, first: int, last: int) -> Batch:
        """Samples `first` to `last`; the batch itself where these are all."""
        if (first, last) == (0, len(self)):
            return self
        images = self.images.part(first, last) if isinstance(self.images, Views) else self.images[first:last]
        return Batch(images, self.labels[first:last])


@dataclass(frozen=True)
class Release:
    """A published archive of CIFAR-10 in its binary version, and how many images it holds."""

    url: str
    sha256: str
    train: int
    validation: int


CIFAR10_RELEASE = Release(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    train=50_000,
    validation=10_000,
)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def load(
    spec: Data,
    *,
    source: Path | None,
    cache: Path,
    seed: int = 0,
    warn: Callable[[str], None] = _to_stderr,
    release: Release = CIFAR10_RELEASE,
) -> Dataset:
    """Returns the images that `spec` asks for.

    CIFAR-10 comes from `source` where one is given: a folder or file with the official binary files, the
    official archive, or `cifar10_train.rec` and `cifar10_val.rec`. Else from the folder `cache`, else by
    downloading `release`; where that fails, the synthetic set in CIFAR-10's shape takes its place and `warn`
    is told why. Decoded arrays are kept in `cache`, under the hash of the files they came from, and
    memory-mapped; processes may share it. ImageNet is read from `source` as it is asked for. `seed` is that of the
    synthetic set.

    Raises `UserError` where `source` is missing, damaged or something else, or `cache` cannot be written.
    """
    if isinstance(spec, Synthetic):
        # A fixed batch needs few, and shows them more than once where it is larger.
        train, validation = (min(_FIXED, number) if spec.fixed else number for number in (spec.train, spec.validation))
        return _synthetic(spec.size, spec.classes, train, validation, seed)
    if isinstance(spec, ImageNet):
        return Dataset(spec.name, *imagenet.open_files(spec, source), classes=spec.classes)
    if source is not None:
        files = _find(Path(source))
        return _cached(cache, files.key(release), lambda folder: _decode(files, release, source))
    try:
        return _cached(
            cache,
            release.sha256,
            lambda folder: _decode(_download(release, folder, warn), release, release.url),
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        warn(
            "WARNING: training on SYNTHETIC images, and every row will say so: no CIFAR-10 was given or "
            f"cached, and {release.url} could not be had ({type(error).__name__}: {reason}). "
            "Give the real images with --data or POC_DATA."
        )
        return stand_in(release=release, seed=seed)


def stand_in(*, release: Release = CIFAR10_RELEASE, seed: int = 0) -> Dataset:
    """Returns the synthetic set in CIFAR-10's shape, which `load` falls back to."""
    return _synthetic(_SIZE, _CLASSES, release.train, release.validation, seed)


# Files

_SIZE = 32
_CLASSES = 10
_TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_VALIDATION_FILES = ("test_batch.bin",)
_ARCHIVE_NAME = "cifar-10-binary.tar.gz"
_RECORD_FILES = ("cifar10_train.rec", "cifar10_val.rec")

_Decoded = tuple[str, Images, Images]


def _sha256(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        try:
            with open(path, "rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
        except OSError as error:
            raise UserError(f"data: {path} cannot be read ({error}); give a file that can") from error
    return digest.hexdigest()


@dataclass(frozen=True)
class _Binaries:
    """The official binary files, unpacked."""

    train: tuple[Path, ...]
    validation: tuple[Path, ...]

    def key(self, release: Release) -> str:
        return _sha256(self.train + self.validation)

    def read(self) -> _Decoded:
        train, validation = (
            _joined([_read_binary(path.read_bytes(), path) for path in paths])
            for paths in (self.train, self.validation)
        )
        return "cifar10", train, validation


@dataclass(frozen=True)
class _Archive:
    """The official archive; read without being unpacked on disk."""

    path: Path

    def key(self, release: Release) -> str:
        found = _sha256([self.path])
        if found != release.sha256:
            raise UserError(
                f"data: {self.path} has sha256 {found} where the official archive has {release.sha256}: "
                f"it is truncated or altered; get it again from {release.url}"
            )
        return found

    def read(self) -> _Decoded:
        found: dict[str, Images] = {}
        with tarfile.open(self.path, "r:gz") as archive:
            for member in archive:
                # By its last part: wherever an archive says that a file belongs, nothing is written.
                name = os.path.basename(member.name)
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and name in _TRAIN_FILES + _VALIDATION_FILES:
                    found[name] = _read_binary(file.read(), f"{self.path}:{name}")
        train, validation = (_joined([found[name] for name in names]) for names in (_TRAIN_FILES, _VALIDATION_FILES))
        return "cifar10", train, validation


@dataclass(frozen=True)
class _Records:
    """RecordIO files, as MXNet's im2rec writes them."""

    train: Path
    validation: Path

    def key(self, release: Release) -> str:
        return _sha256([self.train, self.validation])

    def read(self) -> _Decoded:
        (train, lossy), (validation, validation_lossy) = (_read_records(path) for path in (self.train, self.validation))
        return "cifar10 (jpeg)" if lossy or validation_lossy else "cifar10", train, validation


_Files = Union[_Binaries, _Archive, _Records]


def _decode(files: _Files, release: Release, where: object) -> _Decoded:
    name, train, validation = files.read()
    for split, found, expected in (
        ("training", len(train), release.train),
        ("validation", len(validation), release.validation),
    ):
        if found != expected:
            raise UserError(
                f"data: {where} holds {found} {split} images where CIFAR-10 has {expected}: "
                "it is truncated or another data set; get it again"
            )
    return name, train, validation


def _find(source: Path) -> _Files:
    """Returns the CIFAR-10 files in folder `source`, or those that the file `source` is one of."""
    allowed = (
        f"give a folder with {_TRAIN_FILES[0]} to {_TRAIN_FILES[-1]} and {_VALIDATION_FILES[0]}, "
        f"with {_ARCHIVE_NAME}, or with {_RECORD_FILES[0]} and {_RECORD_FILES[1]}"
    )
    if not source.exists():
        raise UserError(f"data: {source} does not exist; {allowed}")
    if source.is_file() and source.name.endswith(".tar.gz"):
        return _Archive(source)
    folder = source.parent if source.is_file() else source
    suffix = source.suffix if source.is_file() else ""

    missing = []
    if suffix in ("", ".bin"):
        for place in (folder, folder / "cifar-10-batches-bin"):
            binaries = _Binaries(
                tuple(place / name for name in _TRAIN_FILES),
                tuple(place / name for name in _VALIDATION_FILES),
            )
            absent = [path for path in binaries.train + binaries.validation if not path.is_file()]
            if not absent:
                return binaries
            if len(absent) < len(_TRAIN_FILES + _VALIDATION_FILES):
                missing += absent
    if not suffix and (folder / _ARCHIVE_NAME).is_file():
        return _Archive(folder / _ARCHIVE_NAME)
    if suffix in ("", ".rec"):
        records = _Records(*(folder / name for name in _RECORD_FILES))
        absent = [path for path in (records.train, records.validation) if not path.is_file()]
        if not absent:
            return records
        if len(absent) == 1:
            missing += absent
    if missing:
        raise UserError(f"data: {missing[0]} is missing; {allowed}")
    raise UserError(f"data: {source} holds no CIFAR-10; {allowed}")


def _joined(parts: Sequence[Images]) -> Images:
    return Images(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


def _checked_labels(labels: npt.NDArray[Any], where: object) -> npt.NDArray[np.int32]:
    wrong = labels[~((labels >= 0) & (labels < _CLASSES))]
    if len(wrong):
        raise UserError(f"data: {where} has the label {wrong[0]} where CIFAR-10 has 0 to {_CLASSES - 1}; get it again")
    return labels.astype(np.int32)


def _read_binary(content: bytes, where: object) -> Images:
    """Decodes an official binary file: for each image its label, then its red, green and blue planes."""
    record = 1 + 3 * _SIZE * _SIZE
    if not content or len(content) % record:
        raise UserError(
            f"data: {where} has {len(content)} bytes where a multiple of {record} is expected: "
            "it is truncated; get it again"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    planes = rows[:, 1:].reshape(-1, 3, _SIZE, _SIZE)
    return Images(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), _checked_labels(rows[:, 0], where))


_JPEG_START = b"\xff\xd8"


def _read_records(path: Path) -> tuple[Images, bool]:
    """Decodes one RecordIO file of images; also returns whether any of them is a JPEG, which is lossy."""
    images: list[Any] = []
    labels: list[float] = []
    lossy = False
    content = path.read_bytes()
    for number, record in enumerate(recordio.records(content, path)):
        label, encoded = recordio.image(recordio.payload(content, record), f"{path}, record {number}")
        image = recordio.decoded(encoded)
        if image is None or image.shape != (_SIZE, _SIZE, 3):
            found = "nothing that decodes" if image is None else f"{image.shape[1]} x {image.shape[0]} pixels"
            raise UserError(
                f"data: {path}, record {number}: {found} where CIFAR-10 has {_SIZE} x {_SIZE}; get it again"
            )
        images.append(image)
        labels.append(label)
        lossy = lossy or encoded.startswith(_JPEG_START)
    blue_green_red = np.array(images, np.uint8).reshape(-1, _SIZE, _SIZE, 3)
    pixels = np.ascontiguousarray(blue_green_red[..., ::-1])
    return Images(pixels, _checked_labels(np.array(labels), path)), lossy


# Cache


def _cached(cache: Path, key: str, decode: Callable[[Path], _Decoded]) -> Dataset:
    """Returns the entry `key` of the cache, made with `decode(empty folder)` where it is not there yet."""
    entry = cache / f"cifar10-{key[:16]}"
    dataset = _open_entry(entry)
    if dataset is not None:
        return dataset
    with _workspace(cache) as folder:
        dataset = _open_entry(entry)
        if dataset is not None:  # made by another process while this one waited
            return dataset
        name, train, validation = decode(folder)
        try:
            fresh = folder / "entry"
            fresh.mkdir()
            (fresh / "name").write_text(name)
            for split, images in (("train", train), ("validation", validation)):
                np.save(fresh / f"{split}_images.npy", images.images)
                np.save(fresh / f"{split}_labels.npy", images.labels)
            shutil.rmtree(entry, ignore_errors=True)
            os.replace(fresh, entry)
        except OSError as error:
            raise _unwritable(cache, error) from error
    dataset = _open_entry(entry)
    assert dataset is not None
    return dataset


def _open_entry(entry: Path) -> Dataset | None:
    """Returns what a folder of the cache holds; None where it is not there or damaged."""
    try:
        # Views as plain arrays: each slice of a numpy.memmap costs a Python call.
        train, validation = (
            Images(
                np.load(entry / f"{split}_images.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray),
                np.load(entry / f"{split}_labels.npy", allow_pickle=False),
            )
            for split in ("train", "validation")
        )
        return Dataset((entry / "name").read_text(), train, validation, _CLASSES)
    except (FileNotFoundError, NotADirectoryError, EOFError, ValueError):
        return None


def _unwritable(cache: Path, error: OSError) -> UserError:
    return UserError(f"cache: cannot write in {cache} ({error}); name a folder with room that can be written")


@contextlib.contextmanager
def _workspace(cache: Path) -> Iterator[Path]:
    """An empty folder to make an entry in, for one process at a time; sweeps up after killed ones."""
    folder = cache / "incomplete"
    with contextlib.ExitStack() as stack:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(cache / "lock", "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        except OSError as error:
            raise _unwritable(cache, error) from error
        yield folder


def _download(release: Release, folder: Path, warn: Callable[[str], None]) -> _Archive:
    # Only a download needs it.
    import pooch

    warn(f"Downloading CIFAR-10 from {release.url}, once.")
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 16, timeout=20)
    path = pooch.retrieve(
        release.url, f"sha256:{release.sha256}", fname=_ARCHIVE_NAME, path=folder, downloader=downloader
    )
    return _Archive(Path(path))


# Synthetic images

_FIXED = 64


def _synthetic(size: int, classes: int, train: int, validation: int, seed: int) -> Dataset:
    """Images of `size` x `size` pixels: the smooth pattern of their class, shifted at random, under noise."""
    patterns = _patterns(size, min(classes, max(train, validation)), seed)
    training, validating = (
        _synthetic_split(patterns, count, seed, split) for split, count in enumerate((train, validation))
    )
    return Dataset("synthetic", training, validating, classes)


def _patterns(size: int, classes: int, seed: int) -> npt.NDArray[np.int16]:
    """A periodic pattern, values -96 to 96, for each of the first `classes` classes: (classes, size, size, 3)."""
    patterns = np.empty((classes, size, size, 3), np.int16)
    # A few at a time: they are made in 64 bits.
    for first in range(0, classes, 16):
        numbers = np.arange(first, min(first + 16, classes))
        patterns[numbers] = _patterns_of(numbers, size, seed)
    return patterns


def _patterns_of(numbers: npt.NDArray[Any], size: int, seed: int) -> npt.NDArray[np.int16]:
    cells = 4
    values = cells * cells * 3
    drawn = bits(seed, PATTERN, np.arange(numbers[0] * values, (numbers[-1] + 1) * values)) % np.uint64(97)
    grid = drawn.astype(np.int64).reshape(len(numbers), cells, cells, 3)
    # Without a colour of its own: a class is known by its shapes, not by its mean.
    pattern = (grid - grid.sum(axis=(1, 2), keepdims=True) // cells**2).astype(np.float64)
    # Bilinear, between cells; no transcendental function, whose last bit would differ between machines.
    position = np.arange(size) * (cells / size)
    lower = position.astype(np.int64)
    fraction = (position - lower)[:, None]
    for axis, weight in ((1, fraction[:, None]), (2, fraction)):
        before, after = (np.take(pattern, (lower + step) % cells, axis=axis) for step in (0, 1))
        pattern = before * (1 - weight) + after * weight
    return np.rint(pattern).astype(np.int16)


def _synthetic_split(patterns: npt.NDArray[np.int16], count: int, seed: int, split: int) -> Images:
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
            (np.arange(size) + (uniform(seed, split, samples, purpose) * size).astype(np.int64)[:, None]) % size
            for purpose in (SHIFT_Y, SHIFT_X)
        )
        contrast = (32 + bits(seed, split, samples, CONTRAST) % np.uint64(33)).astype(np.int16)
        pixels = patterns[labels[samples][:, None, None], down[:, :, None], right[:, None, :]]
        pixels *= contrast[:, None, None, None]
        pixels >>= 6
        noise = bits(seed, split, samples[:, None], NOISE, words).astype("<u8", copy=False).view(np.uint8)
        pixels += noise[:, :values].reshape(pixels.shape) >> 2
        # (-96 to 96) + (0 to 63) + 96 stays within a byte.
        pixels += 96
        images[samples] = pixels
    return Images(images, labels)


# Order and shards


def order(samples: int, *, seed: int, epoch: int) -> Indices:
    """Returns the permutation of the `samples` indices in which an epoch visits them."""
    return np.argsort(bits(seed, epoch, np.arange(samples), ORDER), kind="stable")


def shard(order: Indices, *, step: int, total_batch: int, worker: int = 0, workers: int = 1) -> Indices:
    """Returns the part of `order` that one worker trains on in one step of the epoch, a contiguous slice.

    Over all workers and steps the parts are a partition of the epoch's whole batches. `workers` must divide
    `total_batch`, or it is a `ValueError`.
    """
    share, rest = divmod(total_batch, workers)
    if rest:
        raise ValueError(f"{workers} workers cannot share a total batch of {total_batch} equally")
    start = step * total_batch + worker * share
    return order[start : start + share]


# Augmentation

_PAD_VALUE = 127
# OpenCV's 8-bit HLS: hue in steps of two degrees, lightness and saturation, each with its limit.
_HLS_REACH = ((HUE, 36), (LIGHTNESS, 50), (SATURATION, 50))
_HLS_LIMIT = (180, 255, 255)


def augment(images: Pixels, indices: npt.ArrayLike, spec: InMemory, *, seed: int, epoch: int) -> Pixels:
    """Returns the samples `indices` of `images` as an epoch shows them: (samples, 3, crop, crop), contiguous.

    The steps of MXNet's `image_aug_default.cc` as its CIFAR-10 example sets them: pad with grey, crop at
    random, mirror, then one random offset for each of hue, lightness and saturation, clipped at its limit (so
    the hue does not go round).

    `images` is (all samples, height, width, 3).
    """
    indices = np.asarray(indices, np.int64)
    count, height, width = len(indices), images.shape[1], images.shape[2]
    crop = spec.crop
    shown = views(indices, spec, height, width, seed=seed, epoch=epoch)
    places = (shown.tops.tolist(), shown.lefts.tolist(), shown.mirrored.tolist())
    pixels = np.empty((count, crop, crop, 3), np.uint8)
    for target, source, top, left, mirror in zip(pixels, surrounded(images[indices], spec.pad), *places):
        view = source[top : top + crop, left : left + crop]
        if mirror:
            cv2.flip(view, 1, dst=target)
        else:
            target[:] = view

    return _planar(_shift_hls(pixels, _hls_offsets(indices, seed, epoch)) if spec.jitter else pixels)


def held(dataset: Dataset, spec: Any) -> Pixels | None:
    """What the devices keep of `dataset`: all training images as `surrounded` gives them; None where they keep none."""
    if not spec.on_device:
        return None
    assert isinstance(dataset.train, Images)
    return surrounded(dataset.train.images, spec.pad)


def surrounded(images: Pixels, pad: int) -> Pixels:
    """The images (n, height, width, 3) with `pad` pixels of grey on each side."""
    count, height, width, _ = images.shape
    padded = np.full((count, height + 2 * pad, width + 2 * pad, 3), _PAD_VALUE, np.uint8)
    padded[:, pad : pad + height, pad : pad + width] = images
    return padded


def views(indices: Indices, spec: InMemory, height: int, width: int, *, seed: int, epoch: int) -> Views:
    """Which crops of the samples `indices`, of images of `height` x `width`, an epoch shows, and which mirrored."""
    tops, lefts = (
        uniform(seed, epoch, indices, purpose) * (side + 2 * spec.pad - spec.crop + 1)
        for purpose, side in ((CROP_Y, height), (CROP_X, width))
    )
    mirrored = (uniform(seed, epoch, indices, MIRROR) < 0.5) & spec.mirror
    return Views(*(each.astype(np.int32) for each in (indices, tops, lefts, mirrored)))


def _hls_offsets(indices: Indices, seed: int, epoch: int) -> Indices:
    """Draws the offsets of hue, lightness and saturation of each sample: (samples, 3)."""
    # Truncated towards zero, as the C++ original does.
    offsets = [
        (uniform(seed, epoch, indices, purpose) * 2 * reach - reach).astype(np.int64) for purpose, reach in _HLS_REACH
    ]
    return np.stack(offsets, axis=1)


def _shift_hls(pixels: Pixels, offsets: npt.NDArray[np.int64]) -> Pixels:
    """Adds offsets (samples, 3) of hue, lightness, saturation to RGB pixels (samples, height, width, 3)."""
    count, height, width, _ = pixels.shape
    hls = cv2.cvtColor(_tall(pixels), cv2.COLOR_RGB2HLS)
    # Clipping before the addition gives what clipping after it would, and never leaves uint8. One row of each
    # image is spelt out, because numpy is slow where the innermost axis that it broadcasts over is short.
    low, high, offset = (
        np.tile(bound.astype(np.uint8), (1, width))[:, None, :]
        for bound in (np.maximum(-offsets, 0), np.array(_HLS_LIMIT) - np.maximum(offsets, 0), offsets)
    )
    rows = hls.reshape(count, height, width * 3)
    np.maximum(rows, low, out=rows)
    np.minimum(rows, high, out=rows)
    np.add(rows, offset, out=rows)
    return np.asarray(cv2.cvtColor(hls, cv2.COLOR_HLS2RGB), np.uint8).reshape(pixels.shape)


def centre(images: Pixels, spec: InMemory) -> Pixels:
    """Returns the view for validation, the centre crop of every image: (samples, 3, crop, crop), contiguous.

    `images` is (samples, height, width, 3).
    """
    top, left = (images.shape[1] - spec.crop) // 2, (images.shape[2] - spec.crop) // 2
    return _planar(images[:, top : top + spec.crop, left : left + spec.crop])


def _tall(pixels: Pixels) -> Pixels:
    """Returns (samples, height, width, 3) as one tall image: one call of OpenCV does a whole batch."""
    return np.ascontiguousarray(pixels).reshape(-1, pixels.shape[2], 3)


def _planar(pixels: Pixels) -> Pixels:
    """Returns (samples, height, width, 3) as (samples, 3, height, width), contiguous."""
    count, height, width, _ = pixels.shape
    planes = np.empty((count, 3, height, width), np.uint8)
    for channel, plane in enumerate(cv2.split(_tall(pixels))):
        planes[:, channel] = plane.reshape(count, height, width)
    return planes


# Batches


def training_batches(
    dataset: Dataset,
    spec: Data,
    *,
    total_batch: int,
    seed: int,
    steps: int,
    first_step: int = 0,
    worker: int = 0,
    workers: int = 1,
) -> Iterator[Batch]:
    """Yields one worker's part of `steps` total batches, from `first_step` (counted over all epochs) on.

    A fixed batch is the same object every time.
    """
    if isinstance(spec, Synthetic) and spec.fixed:
        indices = np.arange(total_batch // workers) % len(dataset.train)
        yield from itertools.repeat(Batch(*dataset.train.centred(indices, spec)), steps)
        return
    samples = len(dataset.train)
    in_epoch = steps_per_epoch(samples, total_batch)
    visited, visited_epoch = None, -1
    for step in range(first_step, first_step + steps):
        epoch = step // in_epoch
        if visited is None or epoch != visited_epoch:
            visited, visited_epoch = order(samples, seed=seed, epoch=epoch), epoch
        indices = shard(visited, step=step % in_epoch, total_batch=total_batch, worker=worker, workers=workers)
        if spec.on_device:
            yield _viewed(dataset.train, indices, spec, seed=seed, epoch=epoch)
        else:
            yield Batch(*dataset.train.augmented(indices, spec, seed=seed, epoch=epoch))


def _viewed(train: Split, indices: Indices, spec: Any, *, seed: int, epoch: int) -> Batch:
    assert isinstance(train, Images)
    _, height, width, _ = train.images.shape
    shown = views(indices, spec, height, width, seed=seed, epoch=epoch)
    return Batch(shown, train.labels[indices].astype(np.float32))


def validation_batches(
    dataset: Dataset, spec: Data, *, batch: int, worker: int = 0, workers: int = 1
) -> Iterator[Batch]:
    """Yields one worker's part of the validation set in batches of `batch`; the last may be shorter.

    Over all workers each image is there once.
    """
    validation = dataset.validation
    first, end = (len(validation) * number // workers for number in (worker, worker + 1))
    for start in range(first, end, batch):
        yield Batch(*validation.centred(np.arange(start, min(start + batch, end)), spec))


class Prefetch(Generic[T]):
    """Runs an iterator ahead in a thread: `with Prefetch(batches) as ahead: for batch in ahead: ...`.

    At most `depth` items wait. An exception of the iterator is raised where its item would have come. Leaving
    the block stops the thread once the item that it is making is done.
    """

    def __init__(self, iterator: Iterator[T], depth: int = 20) -> None:
        self._iterator = iterator
        self._depth = depth
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._finished = False
        self._error: BaseException | None = None
        # A daemon, so that an interpreter that exits inside the block does not wait for it.
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> Iterator[T]:
        self._thread.start()
        return self._items()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._stopped = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join()

    def _items(self) -> Iterator[T]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._finished)
                if not self._ready:
                    break
                item = self._ready.popleft()
                self._changed.notify_all()
            yield item
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            for item in self._iterator:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._ready) < self._depth or self._stopped)
                    if self._stopped:
                        return
                    self._ready.append(item)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()
