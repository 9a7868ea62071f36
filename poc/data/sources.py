"""Load the images of a recipe from files or a download. Decoded images are kept in a cache."""

import contextlib
import fcntl
import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from poc.config import Arrays, Data, Synthetic
from poc.config.datasets import HELD_OUT, Cifar, DataId, Own
from poc.config.fields import local_fields
from poc.data import cifar, own, photos, synthetic
from poc.data.cifar import RELEASES, Release
from poc.data.images import CHECKSUM_DIGITS, Dataset, Images, checksum, split_off_validation
from poc.values import UserError

_RETRIES = 2  # how often a download is tried again; without it all runs would be on synthetic images


def load(
    spec: Data,
    *,
    source: Path | None,
    cache: Path,
    release: Release | None = None,
    fallback: bool = False,
    alive: Callable[[], object] = lambda: None,
) -> Dataset:
    """Return the images of `spec`.

    CIFAR-10 or CIFAR-100 comes from `source`, a folder or file in one of the forms of `cifar.find`. Without it, from
    the folder `cache`, then from where MXNet or Keras store it, then from a download. If that fails, or with
    `fallback`, synthetic images of the same shape are used, with a warning. Photos are decoded as they are read. The
    user's own data sets have paths, and need no `source`; `alive` is called after each of their files, so that a caller
    can show that it makes progress.

    Raises UserError if files are missing, damaged or something else, or if `cache` cannot be written.
    """
    dataset: Dataset | None
    if isinstance(spec, Synthetic):
        dataset = synthetic.make(spec)
    elif isinstance(spec, Arrays):
        dataset = own.named(_decoded([Path(spec.path)], cache, spec.name, own.decode_arrays))
    elif not isinstance(spec, Cifar):
        dataset = own.open_photos(spec, cache, alive)
    else:
        release = release or RELEASES[spec.name]
        dataset = None if fallback else _load_cifar(source, cache, release)
        if dataset is None:
            shape = Synthetic(classes=spec.classes, train=release.train, validation=release.validation)
            dataset = synthetic.make(shape)
    return split_off_validation(dataset) if spec.validate_on == HELD_OUT else dataset


def identify(specs: Iterable[Data], *, source: Path | None, cache: Path) -> dict[str, DataId]:
    """Return the identity of the images of each real data set in `specs`, by its `key`.

    Opens all files, and writes to standard error where they are. Raises UserError as `load` does.
    """
    identities: dict[str, DataId] = {}
    for spec in specs:
        if not isinstance(spec, Synthetic) and spec.key not in identities:
            dataset = load(spec, source=source, cache=cache)
            identities[spec.key] = dataset.data_id
            if dataset.source:
                print(f"data: {dataset.data_id}, from {dataset.source}", file=sys.stderr)
    return identities


def find(spec: Data, *, source: Path | None, cache: Path) -> Path | None:
    """Return the folder or archive from which `spec` would be read; None if it is not on this machine."""
    if isinstance(spec, Own):
        paths = [Path(path) for path in local_fields(spec).values()]
        return paths[0] if all(path.exists() for path in paths) else None
    for folder in [source] if source else usual_folders(cache, spec.name):
        with contextlib.suppress(KeyError, UserError):
            return _location(cifar.find(folder, RELEASES[spec.name]))
    return None


def usual_folders(cache: Path, name: str) -> list[Path]:
    """Return the folders in which this project, MXNet and GluonCV, and Keras store CIFAR-10 or CIFAR-100."""
    places = (("MXNET_HOME", "~/.mxnet", f"datasets/{name}"), ("KERAS_HOME", "~/.keras", "datasets"))
    return [cache, *(Path(os.environ.get(name) or os.path.expanduser(usual), path) for name, usual, path in places)]


def _load_cifar(source: Path | None, cache: Path, release: Release) -> Dataset | None:
    """Return the release; None, after a warning, if it is not on this machine and cannot be downloaded."""

    def decode(files: Mapping[Path, bytes]) -> Dataset:
        dataset = cifar.decode(files, release)
        counts, expected = (len(dataset.train), len(dataset.validation)), (release.train, release.validation)
        if counts != expected:
            raise UserError(
                f"data: {_location([*files])} has {counts[0]} training and {counts[1]} validation images, "
                f"{release.title} has {expected[0]} and {expected[1]}: it is truncated or another data set; download "
                "it again"
            )
        return dataset

    name = release.spec.name
    if source is not None:
        return _decoded(cifar.find(source, release), cache, name, decode)
    for folder in usual_folders(cache, name):
        with contextlib.suppress(UserError):  # none, damaged or another data set: the user did not name it
            return _decoded(cifar.find(folder, release), cache, name, decode)
    archive = _download(release, cache)
    return _decoded([archive], cache, name, decode) if archive else None


def _location(paths: list[Path]) -> Path:
    return paths[0] if len(paths) == 1 else paths[0].parent


def _download(release: Release, cache: Path) -> Path | None:
    """Download the archive into the cache; return None, after a warning, if that fails."""
    import pooch  # only a download needs it

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 16, timeout=20)
    name = release.archives[0]
    store = pooch.Pooch(cache, "", {name: release.sha256}, {name: release.url}, retry_if_failed=_RETRIES)
    with _locked(cache):
        try:
            if not (cache / name).exists():  # another process may have downloaded it in the meantime
                print(f"Downloading {release.title} from {release.url} (only once).", file=sys.stderr)
            return Path(store.fetch(name, downloader=downloader))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            print(
                f"WARNING: training on SYNTHETIC images instead of {release.title}; every row is marked. --data and "
                "POC_DATA are not set, the cache is empty, and the download failed: "
                f"{release.url} ({type(error).__name__}: {reason}). Set --data or POC_DATA to the real images.",
                file=sys.stderr,
            )
            return None


def _decoded(paths: list[Path], cache: Path, name: str, decode: Callable[[Mapping[Path, bytes]], Dataset]) -> Dataset:
    """Return the images in these files, which `decode` decodes only if the cache does not have them."""
    digest = hashlib.sha256()
    for content in itertools.chain(*map(photos.chunks, paths)):
        digest.update(content)
    entry = cache / f"{name}-{digest.hexdigest()[:16]}"
    if (dataset := _open(entry)) is None:
        decoded = decode({path: photos.read(path) for path in paths})
        with _locked(cache):
            if _open(entry) is None:  # another process may have made it in the meantime
                _save(decoded, entry)
        dataset = _open(entry)
    assert dataset is not None
    return replace(dataset, source=_location(paths))


def _save(dataset: Dataset, entry: Path) -> None:
    """Write an entry of the cache; the checksum comes last, which makes it complete."""
    entry.mkdir(exist_ok=True)
    for split, images in (("train", dataset.train), ("validation", dataset.validation)):
        assert isinstance(images, Images)
        np.save(entry / f"{split}_images.npy", images.images)
        np.save(entry / f"{split}_labels.npy", images.labels)
    (entry / "name").write_text(dataset.name)
    (entry / "checksum").write_text(checksum(dataset))


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
def _locked(cache: Path) -> Iterator[None]:
    """Let one process at a time write to the cache; raises UserError if that fails."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "lock", "a") as lock:
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise UserError(
            f"cache: cannot write to {cache} ({error}); set POC_CACHE to a writable folder with free space"
        ) from error
