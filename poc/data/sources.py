"""Where the images of a recipe come from: files, the network, or a hash; and the cache of what was decoded."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from poc.config import CIFAR10, Data, ImageNet, Synthetic
from poc.config.datasets import DataId
from poc.data import cifar10, imagenet, synthetic
from poc.data.images import CHECKSUM_DIGITS, Dataset, Images, checksum, without_test_set
from poc.values import UserError


@dataclass(frozen=True)
class Release:
    """A published archive of CIFAR-10 in its binary version, and how many images it holds."""

    url: str
    sha256: str
    train: int
    validation: int


OFFICIAL = Release(
    f"https://www.cs.toronto.edu/~kriz/{cifar10.BINARY_ARCHIVE}",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    train=50_000,
    validation=10_000,
)


def load(
    spec: Data, *, source: Path | None, cache: Path, release: Release = OFFICIAL, synthetic_fallback: bool = False
) -> Dataset:
    """Returns the images that `spec` asks for.

    CIFAR-10 comes from `source` where it is given: a folder or file of one of the forms that `cifar10.find` knows. Else
    from the folder `cache`, else from where MXNet or Keras left it, else by downloading `release`; where that fails,
    the synthetic set in CIFAR-10's shape takes its place, and standard error says why. Decoded arrays are kept in
    `cache`, under the hash of the files they came from. ImageNet is read from `source` as it is asked for. With
    `synthetic_fallback` the synthetic set takes CIFAR-10's place at once.

    Raises `UserError` where `source` is missing, damaged or something else, or `cache` cannot be written.
    """
    if isinstance(spec, Synthetic):
        return synthetic.make(spec)
    if isinstance(spec, ImageNet):
        return imagenet.open_files(spec, source)
    dataset = synthetic.make(Synthetic()) if synthetic_fallback else _cifar10(source, cache, release)
    return dataset if spec.validate_on == "test" else without_test_set(dataset)


def _cifar10(source: Path | None, cache: Path, release: Release) -> Dataset:
    if source is not None:
        return _from_files(source, cache, release)
    if (dataset := _open(_entry(cache, release.sha256))) is not None:
        return dataset
    for folder in filter(Path.is_dir, cifar10.usual_folders()):
        with contextlib.suppress(UserError):  # damaged, or something else: not what anybody gave
            return _from_files(folder, cache, release)
    try:
        return _cached(cache, release.sha256, lambda folder: _complete(_download(release, folder), folder, release))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        warning = (
            "WARNING: training on SYNTHETIC images instead of CIFAR-10; every row is marked. --data and POC_DATA are "
            f"not set, the cache is empty, and {release.url} cannot be downloaded ({type(error).__name__}: {reason}). "
            "Set --data or POC_DATA to the real images."
        )
        print(warning, file=sys.stderr)
        return synthetic.make(Synthetic(train=release.train, validation=release.validation))


def identify(specs: Iterable[Data], *, source: Path | None, cache: Path) -> dict[str, DataId]:
    """Return the identity of the images of each real data set that the `specs` ask for, by its name in a recipe.

    Where CIFAR-10 is to be had nowhere it is that of the synthetic set. Standard error says what was found where. Opens
    all files; raises UserError as `load` does.
    """
    found: dict[str, DataId] = {}
    for spec in specs:
        if isinstance(spec, ImageNet) or (isinstance(spec, CIFAR10) and spec.name not in found):
            dataset = load(spec, source=source, cache=cache)
            found[spec.name] = dataset.data_id
            if dataset.checksum:
                print(f"data: {dataset.data_id}, from {dataset.source or cache}", file=sys.stderr)
    return found


def is_local(spec: Data, *, source: Path | None, cache: Path) -> bool:
    """Whether files of the data set that `spec` asks for are here, so that nothing has to be downloaded."""
    if isinstance(spec, ImageNet):
        return source is not None and all((source / name).is_file() for name in imagenet.FILES)
    return find_cifar10(source=source, cache=cache) is not None


def find_cifar10(*, source: Path | None, cache: Path) -> Path | None:
    """Return the folder or archive that CIFAR-10 would be read from; None where it would have to be downloaded."""
    entry = _entry(cache, OFFICIAL.sha256)
    if source is None and entry.is_dir():
        return entry
    for folder in cifar10.usual_folders() if source is None else [source]:
        with contextlib.suppress(UserError):
            paths, _ = cifar10.find(folder)
            return paths[0] if len(paths) == 1 else paths[0].parent
    return None


def _from_files(source: Path, cache: Path, release: Release) -> Dataset:
    paths, read = cifar10.find(source)
    where = paths[0] if len(paths) == 1 else paths[0].parent
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    dataset = _cached(cache, digest.hexdigest(), lambda _: _complete(read(paths), where, release))
    return replace(dataset, source=where)


def _complete(dataset: Dataset, folder: Path, release: Release) -> Dataset:
    """The data set, if it has as many images as `release`; else raises UserError."""
    train, validation = len(dataset.train), len(dataset.validation)
    if (train, validation) != (release.train, release.validation):
        raise UserError(
            f"data: {folder} has {train} training and {validation} validation images, CIFAR-10 has "
            f"{release.train} and {release.validation}: it is truncated or another data set; download it again"
        )
    return dataset


def _download(release: Release, folder: Path) -> Dataset:
    import pooch  # only a download needs it

    print(f"Downloading CIFAR-10 from {release.url} (only once).", file=sys.stderr)
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 16, timeout=20)
    archive = pooch.retrieve(release.url, f"sha256:{release.sha256}", path=folder, downloader=downloader)
    return cifar10.read_archive([Path(archive)])


def _entry(cache: Path, sha256: str) -> Path:
    """The folder of the cache for what was decoded from files with that hash."""
    return cache / f"{CIFAR10.name}-{sha256[:16]}"


def _cached(cache: Path, sha256: str, decode: Callable[[Path], Dataset]) -> Dataset:
    """Returns the entry of the cache for that hash, made with `decode(empty folder)` where it is not there yet."""
    entry, folder = _entry(cache, sha256), cache / "incomplete"
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
        # Crops as plain arrays: each slice of a numpy.memmap costs a Python call.
        train, validation = (
            Images(
                np.load(entry / f"{split}_images.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray),
                np.load(entry / f"{split}_labels.npy", allow_pickle=False),
            )
            for split in ("train", "validation")
        )
        dataset = Dataset((entry / "name").read_text(), train, validation)
    except (FileNotFoundError, NotADirectoryError, EOFError, ValueError):
        return None
    return replace(dataset, checksum=_kept_checksum(dataset, entry / "checksum"))


def _kept_checksum(dataset: Dataset, file: Path) -> str:
    """Return the checksum of an entry of the cache, which is kept beside it; entries of earlier versions have none."""
    with contextlib.suppress(OSError, ValueError):
        if re.fullmatch(f"[0-9a-f]{{{CHECKSUM_DIGITS}}}", kept := file.read_text()):
            return kept
    computed = checksum(dataset)
    with contextlib.suppress(OSError):  # a cache that cannot be written may still be read
        file.write_text(computed)
    return computed


@contextlib.contextmanager
def _writing(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"cannot write to {cache} ({error}); set POC_CACHE to a writable folder with free space"
        raise UserError(f"cache: {why}") from error
