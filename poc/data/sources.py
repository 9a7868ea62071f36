"""Load the images of a recipe from files, the cache of decoded images or a download."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from poc.config import Data, ImageNet, Synthetic
from poc.config.datasets import DataId
from poc.data import imagenet, synthetic
from poc.data.cifar import RELEASES, Release, usual_folders
from poc.data.images import CHECKSUM_DIGITS, Dataset, Images, checksum, split_off_validation
from poc.values import UserError


def load(
    spec: Data, *, source: Path | None, cache: Path, release: Release | None = None, fallback: bool = False
) -> Dataset:
    """Return the images of `spec`.

    CIFAR-10 comes from `source`, a folder or file in one of the forms of `Release.find`. Without it, from the folder
    `cache`, then from where MXNet or Keras store it, then from a download. If that fails, or with `fallback`, synthetic
    images of the same shape are used, with a warning. Decoded images are kept in `cache` under the hash of their files.
    ImageNet is decoded as it is read.

    Raises UserError if `source` is missing, damaged or something else, or if `cache` cannot be written.
    """
    if isinstance(spec, Synthetic):
        return synthetic.make(spec)
    if isinstance(spec, ImageNet):
        return imagenet.open_files(spec, source)
    dataset = synthetic.make(Synthetic()) if fallback else _load_cifar(source, cache, release or RELEASES[spec.name])
    return dataset if spec.validate_on == "test" else split_off_validation(dataset)


def identify(specs: Iterable[Data], *, source: Path | None, cache: Path) -> dict[str, DataId]:
    """Return the identity of the images of each real data set in `specs`, by its name in a recipe.

    Opens all files, and writes to standard error where they are. Raises UserError as `load` does.
    """
    identities: dict[str, DataId] = {}
    for spec in specs:
        if not isinstance(spec, Synthetic) and spec.name not in identities:
            dataset = load(spec, source=source, cache=cache)
            identities[spec.name] = dataset.data_id
            if dataset.checksum:
                print(f"data: {dataset.data_id}, from {dataset.source or cache}", file=sys.stderr)
    return identities


def is_local(spec: Data, *, source: Path | None, cache: Path) -> bool:
    """Return True if the files of `spec` are on this machine, so that nothing has to be downloaded."""
    if isinstance(spec, ImageNet):
        return source is not None and all((source / name).is_file() for name in imagenet.FILES)
    return isinstance(spec, Synthetic) or find(spec, source=source, cache=cache) is not None


def find(spec: Data, *, source: Path | None, cache: Path) -> Path | None:
    """Return the folder or archive from which CIFAR-10 would be read; None if it would be downloaded."""
    release = RELEASES[spec.name]
    entry = _entry(cache, release, release.sha256)
    if source is None and entry.is_dir():
        return entry
    for folder in usual_folders(release) if source is None else [source]:
        with contextlib.suppress(UserError):
            return _location(release.find(folder)[0])
    return None


def _load_cifar(source: Path | None, cache: Path, release: Release) -> Dataset:
    if source is not None:
        return _from_files(source, cache, release)
    if (dataset := _open(_entry(cache, release, release.sha256))) is not None:
        return dataset
    for folder in filter(Path.is_dir, usual_folders(release)):
        with contextlib.suppress(UserError):  # damaged or another data set: the user did not name it
            return _from_files(folder, cache, release)
    try:
        return _cached(cache, release, release.sha256, lambda folder: _download(release, folder))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        warning = (
            f"WARNING: training on SYNTHETIC images instead of {release.title}; every row is marked. --data and "
            "POC_DATA are not set, the cache is empty, and the download failed: "
            f"{release.url} ({type(error).__name__}: {reason}). Set --data or POC_DATA to the real images."
        )
        print(warning, file=sys.stderr)
        return synthetic.make(Synthetic(train=release.train, validation=release.validation))


def _from_files(source: Path, cache: Path, release: Release) -> Dataset:
    paths, read = release.find(source)
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    where = _location(paths)
    dataset = _cached(cache, release, digest.hexdigest(), lambda _: _check_counts(read(paths), where, release))
    return replace(dataset, source=where)


def _location(paths: list[Path]) -> Path:
    return paths[0] if len(paths) == 1 else paths[0].parent


def _check_counts(dataset: Dataset, where: Path, release: Release) -> Dataset:
    counts, expected = (len(dataset.train), len(dataset.validation)), (release.train, release.validation)
    if counts != expected:
        raise UserError(
            f"data: {where} has {counts[0]} training and {counts[1]} validation images, {release.title} has "
            f"{expected[0]} and {expected[1]}: it is truncated or another data set; download it again"
        )
    return dataset


def _download(release: Release, folder: Path) -> Dataset:
    import pooch  # only a download needs it

    print(f"Downloading {release.title} from {release.url} (only once).", file=sys.stderr)
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 16, timeout=20)
    archive = Path(pooch.retrieve(release.url, f"sha256:{release.sha256}", path=folder, downloader=downloader))
    return _check_counts(release.read_archive([archive]), archive, release)


def _entry(cache: Path, release: Release, sha256: str) -> Path:
    """Return the folder of the cache for images decoded from files with that hash."""
    return cache / f"{release.name}-{sha256[:16]}"


def _cached(cache: Path, release: Release, sha256: str, decode: Callable[[Path], Dataset]) -> Dataset:
    """Return the entry of the cache for that hash; make it by `decode(empty folder)` if there is none."""
    entry, folder = _entry(cache, release, sha256), cache / "incomplete"
    if (dataset := _open(entry)) is not None:
        return dataset
    with contextlib.ExitStack() as stack:
        with _cache_errors(cache):
            cache.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(open(cache / "lock", "a")), fcntl.LOCK_EX)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)  # from a process that was killed
            folder.mkdir()
        if _open(entry) is None:  # another process may have made it in the meantime
            decoded = decode(folder)
            with _cache_errors(cache):
                _save(decoded, folder / "entry")
                shutil.rmtree(entry, ignore_errors=True)
                os.replace(folder / "entry", entry)
    dataset = _open(entry)
    assert dataset is not None
    return dataset


def _save(dataset: Dataset, entry: Path) -> None:
    entry.mkdir()
    (entry / "name").write_text(dataset.name)
    (entry / "checksum").write_text(checksum(dataset))
    for split, images in (("train", dataset.train), ("validation", dataset.validation)):
        assert isinstance(images, Images)
        np.save(entry / f"{split}_images.npy", images.images)
        np.save(entry / f"{split}_labels.npy", images.labels)


def _open(entry: Path) -> Dataset | None:
    """Return an entry of the cache, mapped into memory; None if there is none or it is damaged."""
    try:
        # As plain arrays: each slice of a numpy.memmap costs a Python call.
        train, validation = (
            Images(
                np.load(entry / f"{split}_images.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray),
                np.load(entry / f"{split}_labels.npy", allow_pickle=False),
            )
            for split in ("train", "validation")
        )
        name, digest = ((entry / file).read_text() for file in ("name", "checksum"))
    except (FileNotFoundError, NotADirectoryError, EOFError, ValueError):
        return None
    return Dataset(name, train, validation, checksum=digest) if len(digest) == CHECKSUM_DIGITS else None


@contextlib.contextmanager
def _cache_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cache: cannot write to {cache} ({error}); set POC_CACHE to a writable folder with free space"
        ) from error
