"""CIFAR-10 as files: the official binary files, the official archive, or RecordIO."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poc.data import recordio
from poc.data.datasets import Dataset
from poc.data.images import Images
from poc.recipe import CIFAR10
from poc.values import UserError

_SIZE = 32
_TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_VALIDATION_FILE = "test_batch.bin"
_BINARY_FILES = (*_TRAIN_FILES, _VALIDATION_FILE)
_ARCHIVE = "cifar-10-binary.tar.gz"
_RECORD_FILES = ("cifar10_train.rec", "cifar10_val.rec")


@dataclass(frozen=True)
class Release:
    """A published archive of CIFAR-10 in its binary version, and how many images it holds."""

    url: str
    sha256: str
    train: int
    validation: int


OFFICIAL = Release(
    f"https://www.cs.toronto.edu/~kriz/{_ARCHIVE}",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    train=50_000,
    validation=10_000,
)


@dataclass(frozen=True)
class Files:
    """CIFAR-10 in files of one format."""

    paths: Sequence[Path]
    read: Callable[[Sequence[Path]], Dataset]

    def sha256(self, release: Release) -> str:
        """The hash of all files, one after the other; raises UserError where an archive is not `release`'s."""
        digest = hashlib.sha256()
        for path in self.paths:
            try:
                digest.update(path.read_bytes())
            except OSError as error:
                raise UserError(f"data: {path} cannot be read ({error}); give a file that can") from error
        sha256 = digest.hexdigest()
        if self.read is _read_archive and sha256 != release.sha256:
            raise UserError(
                f"data: {self.paths[0]} has sha256 {sha256} where the official archive has {release.sha256}: "
                f"it is truncated or altered; get it again from {release.url}"
            )
        return sha256

    def decode(self, release: Release) -> Dataset:
        """All images, in memory; raises UserError where they are damaged or not as many as `release` has."""
        dataset = self.read(self.paths)
        train, validation = len(dataset.train), len(dataset.validation)
        if (train, validation) != (release.train, release.validation):
            raise UserError(
                f"data: {self.paths[0].parent} holds {train} training and {validation} validation images, CIFAR-10 has "
                f"{release.train} and {release.validation}: it is truncated or another data set; get it again"
            )
        return dataset


def archive(path: Path) -> Files:
    """The official archive; read without being unpacked on disk."""
    return Files([path], _read_archive)


def find(source: Path) -> Files:
    """Returns the CIFAR-10 files in folder `source`, or those that the file `source` is one of.

    Raises UserError where there are none, or some are missing.
    """
    allowed = (
        f"give a folder with {_TRAIN_FILES[0]} to {_TRAIN_FILES[-1]} and {_VALIDATION_FILE}, "
        f"with {_ARCHIVE}, or with {_RECORD_FILES[0]} and {_RECORD_FILES[1]}"
    )
    if not source.exists():
        raise UserError(f"data: {source} does not exist; {allowed}")
    folder, suffix = (source, "") if source.is_dir() else (source.parent, source.suffix)
    missing = []
    for files in (
        Files([folder / name for name in _BINARY_FILES], _read_binaries),
        Files([folder / "cifar-10-batches-bin" / name for name in _BINARY_FILES], _read_binaries),
        archive(source if suffix == ".gz" else folder / _ARCHIVE),
        Files([folder / name for name in _RECORD_FILES], _read_records),
    ):
        absent = [path for path in files.paths if not path.is_file()]
        if suffix in ("", files.paths[0].suffix):
            if not absent:
                return files
            if len(absent) < len(files.paths):
                missing += absent
    problem = f"{missing[0]} is missing" if missing else f"{source} holds no CIFAR-10"
    raise UserError(f"data: {problem}; {allowed}")


def _read_binaries(paths: Sequence[Path]) -> Dataset:
    return _joined({path.name: _from_binary(path.read_bytes(), path) for path in paths})


def _read_archive(paths: Sequence[Path]) -> Dataset:
    files = {}
    with tarfile.open(paths[0], "r:gz") as tar:
        for member in tar:
            # By its last part: wherever an archive says that a file belongs, nothing is written.
            name = os.path.basename(member.name)
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None and name in _BINARY_FILES:
                files[name] = _from_binary(file.read(), f"{paths[0]}:{name}")
    return _joined(files)


def _joined(files: dict[str, Images]) -> Dataset:
    parts = [files[name] for name in _TRAIN_FILES]
    train = Images(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
    return Dataset(CIFAR10.name, train, files[_VALIDATION_FILE])


def _from_binary(content: bytes, where: object) -> Images:
    """Decodes an official binary file: for each image its label, then its red, green and blue planes."""
    record = 1 + 3 * _SIZE * _SIZE
    if not content or len(content) % record:
        raise UserError(
            f"data: {where} has {len(content)} bytes where a multiple of {record} is expected: "
            "it is truncated; get it again"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    planes = rows[:, 1:].reshape(-1, 3, _SIZE, _SIZE)
    return _checked(planes.transpose(0, 2, 3, 1), rows[:, 0], where)


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
            raise UserError(
                f"data: {where}: {width} x {height} pixels where CIFAR-10 has {_SIZE} x {_SIZE}; get it again"
            )
        images.append(image)
    blue_green_red = np.array([image.pixels for image in images], np.uint8).reshape(-1, _SIZE, _SIZE, 3)
    labels = np.array([image.label for image in images])
    return _checked(blue_green_red[..., ::-1], labels, path), any(image.lossy for image in images)


def _checked(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[Any], where: object) -> Images:
    wrong = labels[~((labels >= 0) & (labels < CIFAR10.classes))]
    if len(wrong):
        allowed = f"CIFAR-10 has 0 to {CIFAR10.classes - 1}"
        raise UserError(f"data: {where} has the label {wrong[0]} where {allowed}; get it again")
    return Images(np.ascontiguousarray(pixels), labels.astype(np.int32))
