"""Where the images of a recipe come from: files, the network, or a hash; and the cache of what was decoded."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from poc.data import cifar10, imagenet, synthetic
from poc.data.datasets import Dataset
from poc.data.images import Images
from poc.recipe import CIFAR10, Data, ImageNet, Synthetic
from poc.values import UserError


def load(spec: Data, *, source: Path | None, cache: Path, release: cifar10.Release = cifar10.OFFICIAL) -> Dataset:
    """Returns the images that `spec` asks for.

    CIFAR-10 comes from `source` where it is given: a folder or file with the official binary files, the official
    archive, or RecordIO files. Else from the folder `cache`, else by downloading `release`; where that fails, the
    synthetic set in CIFAR-10's shape takes its place, and standard error says why. Decoded arrays are kept in `cache`,
    under the hash of the files they came from. ImageNet is read from `source` as it is asked for.

    Raises `UserError` where `source` is missing, damaged or something else, or `cache` cannot be written.
    """
    if isinstance(spec, Synthetic):
        return synthetic.make(spec)
    if isinstance(spec, ImageNet):
        return imagenet.open_files(spec, source)
    if source is not None:
        files = cifar10.find(source)
        return _cached(cache, files.sha256(release), lambda folder: files.decode(release))
    try:
        return _cached(cache, release.sha256, lambda folder: _download(release, folder).decode(release))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        _say(
            "WARNING: training on SYNTHETIC images, and every row will say so: no CIFAR-10 was given or "
            f"cached, and {release.url} could not be had ({type(error).__name__}: {reason}). "
            "Give the real images with --data or POC_DATA."
        )
        return stand_in(release)


def stand_in(release: cifar10.Release = cifar10.OFFICIAL) -> Dataset:
    """Returns the synthetic set in CIFAR-10's shape, which `load` falls back to."""
    return synthetic.make(Synthetic(train=release.train, validation=release.validation))


def _download(release: cifar10.Release, folder: Path) -> cifar10.Files:
    import pooch  # only a download needs it

    _say(f"Downloading CIFAR-10 from {release.url}, once.")
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 16, timeout=20)
    return cifar10.archive(
        Path(pooch.retrieve(release.url, f"sha256:{release.sha256}", path=folder, downloader=downloader))
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cached(cache: Path, key: str, decode: Callable[[Path], Dataset]) -> Dataset:
    """Returns the entry `key` of the cache, made with `decode(empty folder)` where it is not there yet."""
    entry = cache / f"{CIFAR10.name}-{key[:16]}"
    dataset = _open(entry)
    if dataset is None:
        with _workspace(cache) as folder:
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
def _workspace(cache: Path) -> Iterator[Path]:
    """An empty folder to make an entry in, for one process at a time; sweeps up after killed ones."""
    folder = cache / "incomplete"
    with contextlib.ExitStack() as stack:
        with _writing(cache):
            cache.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(cache / "lock", "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        yield folder


@contextlib.contextmanager
def _writing(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"cache: cannot write in {cache} ({error}); name a folder with room that can be written"
        raise UserError(message) from error
