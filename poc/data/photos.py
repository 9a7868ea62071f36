"""Photos of any size in RecordIO files or folders, which threads decode, crop and scale when a batch needs them."""

from __future__ import annotations

import itertools
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from poc.data import recordio
from poc.data.images import Indices, Labels, Pixels, Split
from poc.data.randomness import AREA, CROP_X, CROP_Y, MIRROR, RATIO, uniform
from poc.host import hardware
from poc.values import UserError

SUFFIXES = (".jpg", ".jpeg", ".png")
_WIDEST = 4 / 3  # largest ratio of width to height, and of height to width, of a random resized crop
_CHUNK = 1 << 20
_TRIES = 10
_LONGEST = 64  # longest side that is scaled, in multiples of the shorter one: a whole strip could take gigabytes
Numbers = npt.NDArray[np.float64]


class RecordFile:
    """Images of a RecordIO file; raises UserError if it is missing or damaged, or a label is not below `classes`."""

    def __init__(self, path: Path, classes: int, alive: Callable[[], object] = lambda: None) -> None:
        self._path = path
        try:
            self._file = path.open("rb", buffering=0)
            content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file is a ValueError
            raise UserError(f"data: {path} cannot be read ({error}); check the path") from None
        content.madvise(mmap.MADV_RANDOM)  # only the headers are read
        self._records, labels = list[slice](), list[float]()
        for index, record in enumerate(recordio.records(content, path)):
            label = recordio.label(content, record, self._where(index))
            if not (0 <= label < classes and label.is_integer()):
                raise UserError(f"data: {self._where(index)} has the label {label:g}, labels are 0 to {classes - 1}")
            self._records.append(record)
            labels.append(label)
            alive()  # a disk may take minutes to find the records of ImageNet
        self.labels = np.array(labels, np.int32)

    def read(self, index: int) -> Pixels:
        """Return the pixels of an image, (height, width, 3), blue first; raises UserError."""
        record = self._records[index]
        # Not from mapped memory: while a disk reads a page of that, no other thread can use the interpreter.
        content = os.pread(self._file.fileno(), record.stop - record.start, record.start)
        _, encoded = recordio.image(content, self._where(index))
        return recordio.decode(encoded, self._where(index))

    def _where(self, index: int) -> str:
        return f"{self._path}, record {index}"


class ClassFolders:
    """Image files in a folder per class, numbered by their sorted names.

    Hidden files are ignored. Raises UserError if there is no class, a class is empty, or a file is of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            hint = "use a folder with train/ and val/, and in each a folder per class"
            raise UserError(f"data: {path} is missing; {hint}")
        self.classes = sorted(entry.name for entry in path.iterdir() if not entry.is_file() and entry.name[0] != ".")
        if not self.classes:
            raise UserError(f"data: {path} has no folder per class")
        names = [_images_in(path, name) for name in self.classes]
        self.names = list(itertools.chain(*names))  # paths of the images relative to `path`, with slashes
        self.labels = np.repeat(np.arange(len(names), dtype=np.int32), [*map(len, names)])

    def read(self, index: int) -> Pixels:
        """Return an image as `RecordFile.read` does."""
        path = self.path / self.names[index]
        return recordio.decode(read(path), path)


def read(path: Path) -> bytes:
    """Return the content of a file; raises UserError."""
    return b"".join(chunks(path))


def chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in parts; raises UserError."""
    try:
        with path.open("rb") as file:
            while content := file.read(_CHUNK):
                yield content
    except OSError as error:
        raise UserError(f"data: {path} cannot be read ({error.strerror}); check the path") from None


def _images_in(path: Path, name: str) -> list[str]:
    """Return the files of class `name`, and of folders in it, relative to `path`, sorted."""

    def refuse(error: OSError) -> None:
        raise UserError(f"data: {error.filename} cannot be read ({error.strerror})")

    files = list[str]()
    for folder, folders, names in os.walk(path / name, onerror=refuse, followlinks=True):
        prefix = Path(folder).relative_to(path).as_posix()  # once, as a `Path` per file takes longer than the listing
        files += [f"{prefix}/{file}" for file in names if file[0] != "."]
        here = Path(folder).resolve()
        places = {each: Path(folder, each).resolve() for each in folders if each[0] != "."}
        folders[:] = [each for each, place in places.items() if place not in (here, *here.parents)]  # no link back
    for file in files:
        if not file.lower().endswith(SUFFIXES):
            raise UserError(f"data: {path / file} is not a JPEG or PNG file ({', '.join(SUFFIXES)}); remove it")
    if not files:
        raise UserError(f"data: {path / name} has no image; add some, or remove the class from train/ and val/")
    return sorted(files)


class Photos(Split):
    """Images that are decoded when a batch needs them; a damaged one is a UserError then.

    `indices` are those of the files that are used, by default all.
    """

    def __init__(self, files: RecordFile | ClassFolders, indices: Indices | None = None) -> None:
        self.files = files
        self._indices = np.arange(len(files.labels)) if indices is None else indices
        self.labels = files.labels[self._indices]
        self._pool = ThreadPoolExecutor(hardware.usable_cores(), "decode")  # one photo takes a core some ms

    def part(self, indices: Indices) -> Photos:
        return Photos(self.files, self._indices[indices])

    def augment(self, indices: Indices, spec: Any, *, seed: int, epoch: int) -> tuple[Pixels, Labels]:
        y, x, flip = uniform(seed, epoch, indices, [[CROP_Y], [CROP_X], [MIRROR]])
        flipped = (flip < 0.5) & spec.mirror
        drawn = uniform(seed, epoch, indices[:, None], [[[AREA]], [[RATIO]]], np.arange(_TRIES))
        areas, ratios = spec.scale + drawn[0] * (1 - spec.scale), _WIDEST ** (2 * drawn[1] - 1)

        def cut(number: int, image: Pixels) -> Pixels:
            box = crop_box(image.shape[0], image.shape[1], areas[number], ratios[number], y[number], x[number])
            return _scaled(image[box], (spec.crop, spec.crop))

        return self._show(indices, flipped, spec, cut)

    def center_crop(self, indices: Indices, spec: Any) -> tuple[Pixels, Labels]:
        unflipped = np.zeros(len(indices), bool)
        return self._show(indices, unflipped, spec, lambda _, image: scaled_crop(image, spec))

    def _show(
        self, indices: Indices, flipped: npt.NDArray[np.bool_], spec: Any, cut: Callable[[int, Pixels], Pixels]
    ) -> tuple[Pixels, Labels]:
        """Decode images; `cut` returns the part of one to show, given its place in `indices`."""
        images = np.empty((len(indices), 3, spec.crop, spec.crop), np.uint8)

        def show(number: int) -> None:
            view = cut(number, self.files.read(int(self._indices[indices[number]])))[:, :, ::-1]  # red first
            images[number] = (view[:, ::-1] if flipped[number] else view).transpose(2, 0, 1)

        deque(self._pool.map(show, range(len(indices))), maxlen=0)  # raises what a thread raised
        return images, self.labels[indices].astype(np.float32)


def scaled_crop(image: Pixels, spec: Any) -> Pixels:
    """Scale the shorter side of an image to `spec.resized`, and crop the centre."""
    longest = _LONGEST * min(image.shape[:2])
    row, column = (max(0, side - longest) // 2 for side in image.shape[:2])
    image = image[row : row + longest, column : column + longest]
    height, width = image.shape[:2]
    factor = spec.resized / min(height, width)
    # Rounding must not make a side shorter than `resized`.
    resized = _scaled(image, (max(spec.resized, round(height * factor)), max(spec.resized, round(width * factor))))
    top, left = ((side - spec.crop) // 2 for side in resized.shape[:2])
    return resized[top : top + spec.crop, left : left + spec.crop]


def crop_box(height: int, width: int, areas: Numbers, ratios: Numbers, y: float, x: float) -> tuple[slice, slice]:
    """Return rows and columns of a random resized crop: the first that fits, or the largest in the centre.

    `areas` are shares of the image's area and `ratios` of width to height, one each per try; `y` and `x` are shares of
    the room around the crop. As in torchvision's RandomResizedCrop.
    """
    pixels = height * width * areas
    widths, heights = (np.rint(np.sqrt(sides)).astype(int) for sides in (pixels * ratios, pixels / ratios))
    possible = np.flatnonzero((widths > 0) & (widths <= width) & (heights > 0) & (heights <= height))
    if len(possible):
        rows, columns = int(heights[possible[0]]), int(widths[possible[0]])
    else:
        y = x = np.nextafter(0.5, 0)  # of an odd number of pixels, the smaller half is above and to the left
        rows, columns = min(height, round(width * _WIDEST)), min(width, round(height * _WIDEST))
    top, left = int(y * (height - rows + 1)), int(x * (width - columns + 1))
    return slice(top, top + rows), slice(left, left + columns)


def _scaled(image: Pixels, size: tuple[int, int]) -> Pixels:
    """Scale an image to `size`, height and width."""
    height, width = size
    shrinks = height * width < image.shape[0] * image.shape[1]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (width, height), interpolation=interpolation), np.uint8)
