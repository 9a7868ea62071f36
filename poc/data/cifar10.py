"""CIFAR-10's files in the forms in which people have them: the official binary version and the Python version, each in
a folder or packed, as torchvision, Keras and MXNet leave them; and RecordIO."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poc.config import CIFAR10
from poc.data import pickled, recordio
from poc.data.images import Dataset, Images
from poc.values import UserError

BINARY_ARCHIVE, PYTHON_ARCHIVE = "cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"

_SIZE = 32
_VALUES = 3 * _SIZE * _SIZE
_PYTHON_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_BINARY_FILES = tuple(f"{name}.bin" for name in _PYTHON_FILES)
_RECORD_FILES = ("cifar10_train.rec", "cifar10_val.rec")
# The official archives hold 180 MB. What says that it holds far more would only fill the memory.
_LARGEST_ARCHIVE = 1 << 29

Reader = Callable[[Sequence[Path]], Dataset]


def usual_folders() -> list[Path]:
    """Return the folders in which MXNet (GluonCV, too) and Keras leave CIFAR-10 for whoever asks them for it."""
    places = (("MXNET_HOME", "~/.mxnet", "datasets/cifar10"), ("KERAS_HOME", "~/.keras", "datasets"))
    return [Path(os.environ.get(name) or os.path.expanduser(usual)) / folder for name, usual, folder in places]


def find(source: Path) -> tuple[list[Path], Reader]:
    """Return the CIFAR-10 files in folder `source`, or those that the file `source` is one of, and what reads them.

    Raises UserError where there are none, or some are missing.
    """
    allowed = (
        f"use a folder with {_BINARY_FILES[0]} to {_BINARY_FILES[-2]} and {_BINARY_FILES[-1]}, the same without .bin "
        f"(the Python version), {BINARY_ARCHIVE}, {PYTHON_ARCHIVE}, or {_RECORD_FILES[0]} and {_RECORD_FILES[1]}"
    )
    if not source.exists():
        raise UserError(f"data: {source} (from --data or POC_DATA) does not exist; {allowed}")
    folder = source if source.is_dir() else source.parent
    formats: list[tuple[list[Path], Reader]] = [
        *(([folder / below / name for name in _BINARY_FILES], _read_batches) for below in ("", "cifar-10-batches-bin")),
        *(([folder / below / name for name in _PYTHON_FILES], _read_batches) for below in ("", "cifar-10-batches-py")),
        *(([folder / name], read_archive) for name in (BINARY_ARCHIVE, PYTHON_ARCHIVE)),
        ([folder / name for name in _RECORD_FILES], _read_records),
    ]
    if source != folder:  # a file: those of its own format
        formats = [(paths, read) for paths, read in formats if source in paths]
        formats += [([source], read_archive)] if source.suffix == ".gz" else []
    missing = []
    for paths, read in formats:
        absent = [path for path in paths if not path.is_file()]
        if not absent:
            return paths, read
        if len(absent) < len(paths):
            missing += absent
    problem = f"{missing[0]} is missing" if missing else f"{source} does not contain CIFAR-10"
    raise UserError(f"data: {problem}; {allowed}")


def read_archive(paths: Sequence[Path]) -> Dataset:
    """Read a packed binary or Python version, whoever packed it; raises UserError where it is damaged or not whole."""
    path, files = paths[0], {}
    try:
        content = _unpacked(path)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                # By its last part: wherever an archive says that a file belongs, nothing is written.
                name = os.path.basename(member.name)
                known = name in _BINARY_FILES + _PYTHON_FILES and member.size <= len(content)
                file = tar.extractfile(member) if known and member.isfile() else None
                if file is not None:
                    files[name] = file.read()
    except (EOFError, OSError, RecursionError, ValueError, tarfile.TarError, zlib.error) as error:
        raise UserError(f"data: {path} is truncated or damaged ({error}); download it again") from None
    versions = (_BINARY_FILES, _PYTHON_FILES)
    version = max(versions, key=lambda names: len(files.keys() & set(names)))
    if absent := [name for name in version if name not in files]:
        raise UserError(f"data: {path} is incomplete, {absent[0]} is missing; download it again")
    return _joined({name: files[name] for name in version}, path)


def _unpacked(path: Path) -> bytes:
    """Return what a gzip file holds, read to its end, where gzip compares its checksum."""
    content = io.BytesIO()
    with gzip.open(path) as packed:
        while chunk := packed.read(1 << 20):
            content.write(chunk)
            if content.tell() > _LARGEST_ARCHIVE:
                raise ValueError(f"more than {_LARGEST_ARCHIVE >> 20} MiB")
    return content.getvalue()


def _read_batches(paths: Sequence[Path]) -> Dataset:
    return _joined({path.name: path.read_bytes() for path in paths}, paths[0].parent)


def _joined(files: Mapping[str, bytes], where: Path) -> Dataset:
    """Decode the files of a version, the validation set last."""
    *parts, validation = (
        _from_binary(content, where / name) if name in _BINARY_FILES else _from_python(content, where / name)
        for name, content in files.items()
    )
    train = Images(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
    return Dataset(CIFAR10.name, train, validation)


def _from_binary(content: bytes, where: Path) -> Images:
    """Decode an official binary file: for each image its label, then its red, green and blue planes."""
    record = 1 + _VALUES
    if not content or len(content) % record:
        raise UserError(f"data: {where} has {len(content)} bytes, not a multiple of {record}; download it again")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    return _from_planes(rows[:, 1:], rows[:, 0], where)


def _from_python(content: bytes, where: Path) -> Images:
    rows, labels = pickled.batch(content, where)
    if rows.shape[1] != _VALUES:
        raise UserError(f"data: {where} has {rows.shape[1]} values per image, not {_VALUES}; download it again")
    return _from_planes(rows, labels, where)


def _from_planes(rows: npt.NDArray[np.uint8], labels: npt.NDArray[Any], where: Path) -> Images:
    return _checked(rows.reshape(-1, 3, _SIZE, _SIZE).transpose(0, 2, 3, 1), labels, where)


def _read_records(paths: Sequence[Path]) -> Dataset:
    (train, lossy), (validation, validation_lossy) = (_from_records(path) for path in paths)
    return Dataset(f"{CIFAR10.name} (jpeg)" if lossy or validation_lossy else CIFAR10.name, train, validation)


def _from_records(path: Path) -> tuple[Images, bool]:
    """Decodes one RecordIO file of images; also returns whether any of them is a JPEG, which is lossy."""
    content = path.read_bytes()
    images = []
    for number, record in enumerate(recordio.records(content, path)):
        where = f"{path}, record {number}"
        image = recordio.image(content[record], where)
        height, width, _ = image.pixels.shape
        if (height, width) != (_SIZE, _SIZE):
            raise UserError(f"data: {where}: {width} x {height} pixels, CIFAR-10 has 32 x 32; download it again")
        images.append(image)
    blue_green_red = np.array([image.pixels for image in images], np.uint8).reshape(-1, _SIZE, _SIZE, 3)
    labels = np.array([image.label for image in images])
    return _checked(blue_green_red[..., ::-1], labels, path), any(image.lossy for image in images)


def _checked(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[Any], where: object) -> Images:
    wrong = labels[~((labels >= 0) & (labels < CIFAR10.classes))]
    if len(wrong):
        raise UserError(f"data: {where} has the label {wrong[0]}, CIFAR-10 has 0 to 9; download it again")
    return Images(np.ascontiguousarray(pixels), labels.astype(np.int32))
