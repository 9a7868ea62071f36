"""Where the images of a recipe come from: files, the network, or a hash; and the cache of what was decoded.

CIFAR-10's files are the official binary ones, the official archive, or RecordIO.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poc.data import imagenet, recordio, synthetic
from poc.data.images import Dataset, Images, without_test_set
from poc.recipe import CIFAR10, Data, ImageNet, Synthetic
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


Reader = Callable[[Sequence[Path]], Dataset]


def load(
    spec: Data, *, source: Path | None, cache: Path, release: Release = OFFICIAL, made_up: bool = False
) -> Dataset:
    """Returns the images that `spec` asks for.

    CIFAR-10 comes from `source` where it is given: a folder or file with the official binary files, the official
    archive, or RecordIO files. Else from the folder `cache`, else by downloading `release`; where that fails, the
    synthetic set in CIFAR-10's shape takes its place, and standard error says why. Decoded arrays are kept in `cache`,
    under the hash of the files they came from. ImageNet is read from `source` as it is asked for. With `made_up` the
    synthetic set takes CIFAR-10's place at once.

    Raises `UserError` where `source` is missing, damaged or something else, or `cache` cannot be written.
    """
    if isinstance(spec, Synthetic):
        return synthetic.make(spec)
    if isinstance(spec, ImageNet):
        return imagenet.open_files(spec, source)
    dataset = synthetic.make(Synthetic()) if made_up else _cifar10(source, cache, release)
    return dataset if spec.validate_on == "test" else without_test_set(dataset)


def _cifar10(source: Path | None, cache: Path, release: Release) -> Dataset:
    if source is not None:
        paths, read = _find(source)
        digest = hashlib.sha256()
        for path in paths:
            digest.update(path.read_bytes())
        sha256 = digest.hexdigest()
        if read is _read_archive and sha256 != release.sha256:
            raise UserError(
                f"data: {paths[0]} has sha256 {sha256} where the official archive has {release.sha256}: "
                f"it is truncated or altered; get it again from {release.url}"
            )
        return _cached(cache, sha256, lambda folder: _complete(read(paths), paths[0].parent, release))
    try:
        return _cached(cache, release.sha256, lambda folder: _complete(_download(release, folder), folder, release))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        warning = (
            "WARNING: training on SYNTHETIC images, and every row will say so: no CIFAR-10 was given or "
            f"cached, and {release.url} could not be had ({type(error).__name__}: {reason}). "
            "Give the real images with --data or POC_DATA."
        )
        print(warning, file=sys.stderr)
        return synthetic.make(Synthetic(train=release.train, validation=release.validation))


def _complete(dataset: Dataset, folder: Path, release: Release) -> Dataset:
    """The data set, if it has as many images as `release`; else raises UserError."""
    train, validation = len(dataset.train), len(dataset.validation)
    if (train, validation) != (release.train, release.validation):
        raise UserError(
            f"data: {folder} holds {train} training and {validation} validation images, CIFAR-10 has "
            f"{release.train} and {release.validation}: it is truncated or another data set; get it again"
        )
    return dataset


def _download(release: Release, folder: Path) -> Dataset:
    import pooch  # only a download needs it

    print(f"Downloading CIFAR-10 from {release.url}, once.", file=sys.stderr)
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 16, timeout=20)
    archive = pooch.retrieve(release.url, f"sha256:{release.sha256}", path=folder, downloader=downloader)
    return _read_archive([Path(archive)])


def _cached(cache: Path, key: str, decode: Callable[[Path], Dataset]) -> Dataset:
    """Returns the entry `key` of the cache, made with `decode(empty folder)` where it is not there yet."""
    entry, folder = cache / f"{CIFAR10.name}-{key[:16]}", cache / "incomplete"
    if (dataset := _open(entry)) is not None:
        return dataset
    with contextlib.ExitStack() as stack:
        with _writing(cache):
            cache.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(open(cache / "lock", "a")), fcntl.LOCK_EX)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
            folder.mkdir()
        if _open(entry) is None:  # another process may have made it while this one waited
            decoded = decode(folder)
            with _writing(cache):
                _save(decoded, folder / "entry")
                shutil.rmtree(entry, ignore_errors=True)
                os.replace(folder / "entry", entry)
    dataset = _open(entry)
    assert dataset is not None
    return dataset


def _save(dataset: Dataset, entry: Path) -> None:
    entry.mkdir()
    (entry / "name").write_text(dataset.name)
    for split, images in (("train", dataset.train), ("validation", dataset.validation)):
        assert isinstance(images, Images)
        np.save(entry / f"{split}_images.npy", images.images)
        np.save(entry / f"{split}_labels.npy", images.labels)


def _open(entry: Path) -> Dataset | None:
    """Returns what a folder of the cache holds, mapped into memory; None where it is not there or damaged."""
    try:
        # Views as plain arrays: each slice of a numpy.memmap costs a Python call.
        splits = [
            Images(
                np.load(entry / f"{split}_images.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray),
                np.load(entry / f"{split}_labels.npy", allow_pickle=False),
            )
            for split in ("train", "validation")
        ]
        return Dataset((entry / "name").read_text(), *splits)
    except (FileNotFoundError, NotADirectoryError, EOFError, ValueError):
        return None


@contextlib.contextmanager
def _writing(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"cannot write in {cache} ({error}); name one with room that can be written in POC_CACHE"
        raise UserError(f"cache: {why}") from error


def _find(source: Path) -> tuple[list[Path], Reader]:
    """Returns the CIFAR-10 files in folder `source`, or those that the file `source` is one of, and what reads them.

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
    formats: list[tuple[list[Path], Reader]] = [
        ([folder / name for name in _BINARY_FILES], _read_binaries),
        ([folder / "cifar-10-batches-bin" / name for name in _BINARY_FILES], _read_binaries),
        ([source if suffix == ".gz" else folder / _ARCHIVE], _read_archive),
        ([folder / name for name in _RECORD_FILES], _read_records),
    ]
    for paths, read in formats:
        if suffix in ("", paths[0].suffix):
            absent = [path for path in paths if not path.is_file()]
            if not absent:
                return paths, read
            if len(absent) < len(paths):
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
        raise UserError(f"data: {where} has {len(content)} bytes, not a multiple of {record}; get it again")
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
            raise UserError(f"data: {where}: {width} x {height} pixels where CIFAR-10 has 32 x 32; get it again")
        images.append(image)
    blue_green_red = np.array([image.pixels for image in images], np.uint8).reshape(-1, _SIZE, _SIZE, 3)
    labels = np.array([image.label for image in images])
    return _checked(blue_green_red[..., ::-1], labels, path), any(image.lossy for image in images)


def _checked(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[Any], where: object) -> Images:
    wrong = labels[~((labels >= 0) & (labels < CIFAR10.classes))]
    if len(wrong):
        raise UserError(f"data: {where} has the label {wrong[0]} where CIFAR-10 has 0 to 9; get it again")
    return Images(np.ascontiguousarray(pixels), labels.astype(np.int32))
