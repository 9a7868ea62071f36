"""The user's own images: folders of photos, RecordIO files, arrays."""

import contextlib
import dataclasses
import hashlib
import io
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poc.config import Arrays, Folder, Records
from poc.config.datasets import HELD_OUT, Own, held_out_images
from poc.config.fields import local_fields
from poc.data.images import CHECKSUM_DIGITS, Dataset, Images, Pixels, usable_threads
from poc.data.photos import ClassFolders, Photos, RecordFile, chunks, read
from poc.data.recordio import check_end
from poc.values import UserError, write_atomically

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_IMAGES = (b"\xff\xd8", b"\x89PNG")  # first bytes of JPEG and PNG files
_NAME_DIGITS = 6
_LONG_TO_READ = 1e9  # bytes


def count(spec: Any, folder: Path) -> Any:
    """Return the user's own data set with absolute paths and the numbers of its classes and images; others as they are.

    Relative paths start at `folder`. Raises UserError if files are missing or damaged; photos are not decoded.
    """
    if not isinstance(spec, Own):
        return spec
    paths: dict[str, Any] = {
        name: os.path.normpath(folder / Path(path).expanduser()) for name, path in local_fields(spec).items()
    }
    spec = dataclasses.replace(spec, **paths)
    if isinstance(spec, Arrays):
        dataset: Any = decode_arrays({Path(spec.path): read(Path(spec.path))})
        train, validation = dataset.train, dataset.validation
        side = min(train.images.shape[1:3])
        spec.check_crop(side)
        counted = {"classes": int(train.labels.max()) + 1, "crop": spec.crop or side}
    else:
        train, validation = _files(spec)
        counted = {"classes": len(train.classes)} if isinstance(spec, Folder) else {}
    if counted.get("classes", spec.classes) < 2:
        raise UserError(f"data: {', '.join(paths.values())}: there is only one class; at least two are needed")
    images = len(train.labels)
    held_out = held_out_images(images) if spec.validate_on == HELD_OUT else 0
    return dataclasses.replace(spec, train_images=images - held_out, validation=len(validation.labels), **counted)


def open_photos(spec: Folder | Records, cache: Path, alive: Callable[[], object]) -> Dataset:
    """Return the images in the user's files, which are decoded when they are used.

    The checksum is of all bytes, and of the relative names in a folder. It is kept in `cache` until a file changes.
    Raises UserError as `count`, and for a file in a folder that is no image.
    """
    splits = _files(spec, alive)
    if isinstance(spec, Folder):
        files = {f"{each.path.name}/{name}": f"{each.path}/{name}" for each in splits for name in each.names}
    else:
        files = {"train": spec.train, "val": spec.val}
    train, validation = map(Photos, splits)
    checksum = _checksum(files, isinstance(spec, Folder), cache, alive)
    source = Path(next(iter(local_fields(spec).values())))
    return named(Dataset(spec.name, train, validation, checksum=checksum, source=source))


def named(dataset: Dataset) -> Dataset:
    """Return the same under a name with the start of its checksum, so that tables tell such data sets apart."""
    return dataclasses.replace(dataset, name=f"{dataset.name}-{dataset.checksum[:_NAME_DIGITS]}")


def decode_arrays(files: Mapping[Path, bytes]) -> Dataset:
    """Return the images in the content of a file of arrays; raises UserError if some are missing or misshapen."""
    ((path, content),) = files.items()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if missing := [key for key in _ARRAYS if key not in arrays]:
                raise UserError(f"data: {path} has no {missing[0]}; it needs {', '.join(_ARRAYS)}")
            x_train, y_train, x_test, y_test = (arrays[key] for key in _ARRAYS)
    except (AttributeError, EOFError, OSError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        detail = " ".join(str(error).split())[:200]
        raise UserError(f"data: {path} is not a file of arrays (.npz), or damaged ({detail}); write it again") from None
    train, validation = _images(x_train, y_train, path, "train"), _images(x_test, y_test, path, "test")
    if train.images.shape[1:] != validation.images.shape[1:]:
        raise UserError(f"data: {path}: the images of x_train and x_test have different sizes")
    last = len(np.unique(train.labels)) - 1
    for name, labels in (("y_train", train.labels), ("y_test", validation.labels)):
        if len(wrong := labels[(labels < 0) | (labels > last)]):
            raise UserError(f"data: {path}: {name} has the label {wrong[0]}; labels of y_train must be 0 to {last}")
    return Dataset(Arrays.name, train, validation)


def _images(images: npt.NDArray[Any], labels: npt.NDArray[Any], path: Path, split: str) -> Images:
    """Return the images of a split with three colours."""
    if images.dtype != np.uint8 or not images.size or not (images.ndim == 3 or images.shape[3:] == (3,)):
        allowed = "uint8, (n, height, width, 3) or (n, height, width)"
        raise UserError(f"data: {path}: x_{split} is {images.dtype}, {images.shape}; images are {allowed}")
    if labels.shape not in ((len(images),), (len(images), 1)) or labels.dtype.kind not in "iu":
        wrong = f"y_{split} is {labels.dtype}, {labels.shape}"
        raise UserError(f"data: {path}: {wrong}; it needs a class number for each of {len(images)} images")
    pixels: Pixels = images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=3)
    return Images(np.ascontiguousarray(pixels), labels.reshape(-1).clip(-1, np.iinfo(np.int32).max).astype(np.int32))


def _files(spec: Folder | Records, alive: Callable[[], object] = lambda: None) -> tuple[Any, Any]:
    """Return training and validation images; raises UserError if folders have different classes."""
    if isinstance(spec, Records):
        return RecordFile(Path(spec.train), spec.classes, alive), RecordFile(Path(spec.val), spec.classes, alive)
    train, validation = (ClassFolders(Path(spec.path, name)) for name in ("train", "val"))
    for split, other_split in ((train, validation), (validation, train)):
        if missing := sorted({*split.classes} - {*other_split.classes}):
            raise UserError(
                f"data: class {missing[0]!r} is in {split.path} and not in {other_split.path}; both need all classes"
            )
    return train, validation


def _checksum(files: Mapping[str, str], are_photos: bool, cache: Path, alive: Callable[[], object]) -> str:
    """Return the checksum of names and bytes of files, from the cache if none has changed since it was computed.

    Raises UserError for a file that cannot be read, and for a photo that is none, or cut off.
    """

    def digest(named_path: tuple[str, str]) -> bytes:
        name, path = named_path[0], Path(named_path[1])
        of_file = hashlib.sha256()
        for content in [read(path)] if are_photos else chunks(path):
            of_file.update(content)
        if are_photos and not content.startswith(_IMAGES):
            raise UserError(f"data: {path} is not an image (JPEG or PNG); replace or remove it")
        if are_photos:
            check_end(content, path)
        return name.encode(errors="surrogateescape") + b"\0" + of_file.digest()

    digests = hashlib.sha256()
    try:
        states = []
        for path in files.values():
            stat = os.stat(path)
            states.append((path, stat.st_size, stat.st_ctime_ns))
            alive()  # a million files on a network's disk take minutes
        entry = cache / "checksums" / hashlib.sha256(repr(states).encode(errors="surrogateescape")).hexdigest()
        if entry.is_file():
            return entry.read_text()
        if (size := sum(each for _, each, _ in states)) > _LONG_TO_READ:
            print(f"data: reading {len(files):,} files ({size / 1e9:,.0f} GB) for their checksum", file=sys.stderr)
        with ThreadPool(usable_threads()) as pool:
            for each in pool.imap(digest, files.items(), chunksize=64):
                digests.update(each)
                alive()
    except OSError as error:
        raise UserError(f"data: {error.filename} cannot be read ({error.strerror})") from None
    checksum = digests.hexdigest()[:CHECKSUM_DIGITS]
    with contextlib.suppress(OSError):  # a full disk: it is computed again
        write_atomically(entry, checksum)
    return checksum
