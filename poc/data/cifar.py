"""Files of CIFAR-10 and CIFAR-100: the binary and the Python version, each in a folder or packed, and RecordIO.

These are the forms in which the official site, torchvision, Keras and MXNet leave them.
"""

import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poc.config import CIFAR10, CIFAR100
from poc.data import recordio
from poc.data.images import Dataset, Images, Pixels
from poc.values import UserError

_SIZE = 32
_VALUES = 3 * _SIZE * _SIZE
_JPEG_START = b"\xff\xd8"
_Read = tuple[Pixels, npt.NDArray[Any], bool]
"""Images of a file as rows of planes or (samples, height, width, 3), their labels, and whether any was a JPEG."""


@dataclass(frozen=True)
class Release:
    """A published data set: its files, where they are downloaded from, and how many images they have."""

    title: str
    spec: CIFAR10 | CIFAR100
    url: str
    sha256: str
    files: tuple[str, ...]  # files of the Python version, test images last; those of the binary version end with .bin
    folders: tuple[str, str]  # folders of the binary and the Python version in their archives
    labels: tuple[str, int]
    """Key of the labels in the Python version; labels per image in the binary one, of which the last counts."""
    train: int = CIFAR10().train
    validation: int = 10_000

    @property
    def binary(self) -> tuple[str, ...]:
        return tuple(f"{name}.bin" for name in self.files)

    @property
    def archives(self) -> tuple[str, str]:
        """Archives of the binary and the Python version."""
        return f"{self.title.lower()}-binary.tar.gz", f"{self.title.lower()}-python.tar.gz"

    @property
    def records(self) -> tuple[str, str]:
        return f"{self.spec.name}_train.rec", f"{self.spec.name}_val.rec"

    @property
    def forms(self) -> list[tuple[str, ...]]:
        """The files of each form in which the data set is found."""
        forms = []
        for folder, names in zip(self.folders, (self.binary, self.files)):
            # In folders of Keras, too: 3 and later, and before.
            inside = [tuple(f"{path}/{name}" for name in names) for path in (folder, f"{folder}-target/{folder}")]
            forms += [names, *inside]
        return [*forms, *((name,) for name in self.archives), self.records]


RELEASES: dict[str, Release] = {
    release.spec.name: release
    for release in (
        Release(
            title="CIFAR-10",
            spec=CIFAR10(),
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            files=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
            folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
            labels=("labels", 1),
        ),
        Release(
            title="CIFAR-100",
            spec=CIFAR100(),
            url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            files=("train", "test"),
            folders=("cifar-100-binary", "cifar-100-python"),
            labels=("fine_labels", 2),
        ),
    )
}


def find(source: Path, release: Release) -> list[Path]:
    """Return the files of the data set in a folder, in the first form that is complete, or the archive `source`.

    Any other file stands for its folder. Raises UserError if there are none or some are missing.
    """
    if source.suffix == ".gz" and source.is_file():
        return [source]
    folder = source.parent if source.is_file() else source
    missing: list[Path] = []
    for form in release.forms:
        paths = [folder / name for name in form]
        absent = [path for path in paths if not path.is_file()]
        if not absent:
            return paths
        if len(absent) < len(paths):
            missing += absent
    absent_from = f"{source} (from --data or POC_DATA) does not contain {release.title}"
    problem = f"{missing[0]} is missing" if missing else absent_from
    train = " to ".join(dict.fromkeys((release.binary[0], release.binary[-2])))
    raise UserError(
        f"data: {problem}; use a folder with {train} and {release.binary[-1]}, the same without .bin (the Python "
        f"version), {', '.join(release.archives)}, or {' and '.join(release.records)}"
    )


def decode(files: Mapping[Path, bytes], release: Release) -> Dataset:
    """Decode the contents of the files that `find` returned; raises UserError if they are damaged or incomplete."""
    first, content = next(iter(files.items()))
    if first.suffix == ".gz":
        files = _unpack(content, first, release)
    parts, has_jpeg = list[Images](), False
    for path, content in files.items():
        read = {".bin": _read_binary, ".rec": _read_records}.get(path.suffix, _read_python)
        pixels, labels, is_jpeg = read(content, path, release)
        if len(wrong := labels[~((labels >= 0) & (labels < release.spec.classes))]):
            last = release.spec.classes - 1
            raise UserError(f"data: {path} has the label {wrong[0]}, labels are 0 to {last}; download it again")
        if pixels.ndim == 2:  # red, green and blue planes
            pixels = pixels.reshape(-1, 3, _SIZE, _SIZE).transpose(0, 2, 3, 1)
        parts.append(Images(np.ascontiguousarray(pixels), labels.astype(np.int32)))
        has_jpeg |= is_jpeg
    *parts, validation = parts
    train = Images(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
    # JPEG copies are another data set than the originals.
    return Dataset(f"{release.spec.name} (jpeg)" if has_jpeg else release.spec.name, train, validation)


def _unpack(content: bytes, archive: Path, release: Release) -> dict[Path, bytes]:
    """Return the files of the binary or Python version in an archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content)), mode="r:") as tar:
            # Only the last part of a path counts, and nothing is written anywhere.
            contents = {Path(member.name).name: member for member in tar if member.isfile()}
            version = max(release.binary, release.files, key=lambda names: len(contents.keys() & set(names)))
            if absent := [name for name in version if name not in contents]:
                raise UserError(f"data: {archive} is incomplete, {absent[0]} is missing; download it again")
            return {archive / name: (tar.extractfile(contents[name]) or io.BytesIO()).read() for name in version}
    except (EOFError, OSError, RecursionError, ValueError, tarfile.TarError, zlib.error) as error:
        raise UserError(f"data: {archive} is truncated or damaged ({error}); download it again") from None


def _read_binary(content: bytes, where: Path, release: Release) -> _Read:
    """Read a binary file: for each image its labels, then its red, green and blue planes."""
    labels = release.labels[1]
    size = labels + _VALUES
    if not content or len(content) % size:
        raise UserError(f"data: {where} has {len(content)} bytes, not a multiple of {size}; download it again")
    rows = np.frombuffer(content, np.uint8).reshape(-1, size)
    return rows[:, labels:], rows[:, labels - 1], False


class _BatchUnpickler(pickle._Unpickler):
    """Build arrays and Python's own containers, and call nothing else that a pickle names.

    It is Python's own implementation, whose memo is a dictionary: in that of C an index alone can fill the memory.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return a function that NumPy's pickles name; raises UnpicklingError for any other."""
        if (module, name) not in {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            raise pickle.UnpicklingError(f"it calls {f'{module}.{name}'[:80]!r}, which was not executed")
        return super().find_class(module, name)


def _read_python(content: bytes, where: Path, release: Release) -> _Read:
    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="latin-1").load()
        rows, labels = batch["data"], np.array(batch[release.labels[0]], np.int64)
        if rows.dtype != np.uint8 or rows.shape != (len(labels), _VALUES):
            raise ValueError(f"its pixels are {rows.dtype} in the shape {rows.shape}")
    except Exception as error:  # a damaged or hostile pickle can raise anything
        detail = " ".join(str(error).split())[:200]
        damage = f"is not a {release.title} batch (Python version), or damaged ({detail})"
        raise UserError(f"data: {where} {damage}; download it again") from None
    return rows, labels, False


def _read_records(content: bytes, path: Path, release: Release) -> _Read:
    labels, images, lossy = [], [], False
    for number, record in enumerate(recordio.records(content, path)):
        where = f"{path}, record {number}"
        label, encoded = recordio.image(content[record], where)
        labels.append(label)
        images.append(recordio.decode(encoded, where))
        lossy |= encoded.startswith(_JPEG_START)
        height, width, _ = images[-1].shape
        if (height, width) != (_SIZE, _SIZE):
            raise UserError(f"data: {where}: {width} x {height} pixels, {release.title} has 32 x 32; download it again")
    blue_green_red = np.array(images, np.uint8).reshape(-1, _SIZE, _SIZE, 3)
    return blue_green_red[..., ::-1], np.array(labels), lossy
