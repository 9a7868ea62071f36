"""Files of CIFAR-10: the binary and the Python version, each in a folder or packed, and RecordIO.

These are the forms in which the official site, torchvision, Keras and MXNet leave it.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poc.config import CIFAR10
from poc.data import recordio
from poc.data.images import Dataset, Images
from poc.values import UserError

_SIZE = 32
_VALUES = 3 * _SIZE * _SIZE
# The official archives hold 180 MB. An archive with far more would only fill the memory.
_LARGEST_ARCHIVE = 1 << 29

Reader = Callable[[Sequence[Path]], Dataset]


@dataclass(frozen=True)
class Release:
    """A published data set of 32 x 32 images: its files, and where it is downloaded from."""

    name: str
    """Name of its class in a recipe (`poc/config/datasets.py`)."""
    title: str
    classes: int
    url: str
    """The packed binary version."""
    sha256: str
    train: int
    """Training images."""
    validation: int
    folder: str
    """Name of the folder in an archive, before "-bin" or "-py"."""
    files: tuple[str, ...]
    """Files of the Python version, test images last; those of the binary version end in ".bin"."""
    archives: tuple[str, str]
    """Packed binary and Python version."""
    records: tuple[str, str]
    """RecordIO files of training and test images."""
    label_key: str = "labels"
    """Key of the labels in a file of the Python version."""
    label_bytes: int = 1
    """Bytes before the pixels of an image in the binary version; the last of them is the label."""

    @property
    def binary_files(self) -> tuple[str, ...]:
        """Files of the binary version, test images last."""
        return tuple(f"{name}.bin" for name in self.files)

    def find(self, source: Path) -> tuple[list[Path], Reader]:
        """Return the files of the data set in a folder, and the function that reads them.

        If `source` is a file, they are those of its own form. Raises UserError if there are none or some are missing.
        """
        binary, python = self.binary_files, self.files
        allowed = (
            f"use a folder with {binary[0]} to {binary[-2]} and {binary[-1]}, the same without .bin (the Python "
            f"version), {self.archives[0]}, {self.archives[1]}, or {self.records[0]} and {self.records[1]}"
        )
        if not source.exists():
            raise UserError(f"data: {source} (from --data or POC_DATA) does not exist; {allowed}")
        folder = source if source.is_dir() else source.parent
        forms: list[tuple[list[Path], Reader]] = [
            ([folder / name for name in binary], self._read_files),
            ([folder / f"{self.folder}-bin" / name for name in binary], self._read_files),
            ([folder / name for name in python], self._read_files),
            ([folder / f"{self.folder}-py" / name for name in python], self._read_files),
            *(([folder / name], self.read_archive) for name in self.archives),
            ([folder / name for name in self.records], self._read_records),
        ]
        if source != folder:
            forms = [(paths, read) for paths, read in forms if source in paths]
            if source.suffix == ".gz":
                forms.append(([source], self.read_archive))
        missing: list[Path] = []
        for paths, read in forms:
            absent = [path for path in paths if not path.is_file()]
            if not absent:
                return paths, read
            if len(absent) < len(paths):
                missing += absent
        problem = f"{missing[0]} is missing" if missing else f"{source} does not contain {self.title}"
        raise UserError(f"data: {problem}; {allowed}")

    def read_archive(self, paths: Sequence[Path]) -> Dataset:
        """Read a packed binary or Python version; raises UserError if it is damaged or incomplete."""
        path, files = paths[0], {}
        try:
            content = _unpack(path)
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
                for member in tar:
                    # Only the last part of a path counts, and nothing is written anywhere.
                    name = os.path.basename(member.name)
                    wanted = name in self.binary_files + self.files and member.size <= len(content)
                    file = tar.extractfile(member) if wanted and member.isfile() else None
                    if file is not None:
                        files[name] = file.read()
        except (EOFError, OSError, RecursionError, ValueError, tarfile.TarError, zlib.error) as error:
            raise UserError(f"data: {path} is truncated or damaged ({error}); download it again") from None
        version = max(self.binary_files, self.files, key=lambda names: len(files.keys() & set(names)))
        if absent := [name for name in version if name not in files]:
            raise UserError(f"data: {path} is incomplete, {absent[0]} is missing; download it again")
        return self._join({name: files[name] for name in version}, path)

    def _read_files(self, paths: Sequence[Path]) -> Dataset:
        return self._join({path.name: path.read_bytes() for path in paths}, paths[0].parent)

    def _join(self, files: Mapping[str, bytes], where: Path) -> Dataset:
        """Decode the files of a version, test images last."""
        *parts, validation = (
            self._decode_binary(content, where / name)
            if name in self.binary_files
            else self._decode_python(content, where / name)
            for name, content in files.items()
        )
        train = Images(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
        return Dataset(self.name, train, validation)

    def _decode_binary(self, content: bytes, where: Path) -> Images:
        """Decode a binary file: for each image its label, then its red, green and blue planes."""
        size = self.label_bytes + _VALUES
        if not content or len(content) % size:
            raise UserError(f"data: {where} has {len(content)} bytes, not a multiple of {size}; download it again")
        rows = np.frombuffer(content, np.uint8).reshape(-1, size)
        return self._from_planes(rows[:, self.label_bytes :], rows[:, self.label_bytes - 1], where)

    def _decode_python(self, content: bytes, where: Path) -> Images:
        try:
            rows, labels = _read_pickle(content, self.label_key)
        except Exception as error:  # a damaged or hostile pickle can raise anything
            detail = f" ({error})" if isinstance(error, pickle.UnpicklingError) else ""
            raise UserError(
                f"data: {where} is not a {self.title} batch (Python version), or damaged{detail}; download it again"
            ) from None
        if rows.shape[1] != _VALUES:
            raise UserError(f"data: {where} has {rows.shape[1]} values per image, not {_VALUES}; download it again")
        return self._from_planes(rows, labels, where)

    def _from_planes(self, rows: npt.NDArray[np.uint8], labels: npt.NDArray[Any], where: Path) -> Images:
        return self._check_labels(rows.reshape(-1, 3, _SIZE, _SIZE).transpose(0, 2, 3, 1), labels, where)

    def _read_records(self, paths: Sequence[Path]) -> Dataset:
        (train, train_lossy), (validation, validation_lossy) = map(self._decode_records, paths)
        # JPEG copies are another data set than the originals.
        name = f"{self.name} (jpeg)" if train_lossy or validation_lossy else self.name
        return Dataset(name, train, validation)

    def _decode_records(self, path: Path) -> tuple[Images, bool]:
        """Decode a RecordIO file of images; the second value is whether any of them is a JPEG."""
        content = path.read_bytes()
        images = []
        for number, record in enumerate(recordio.records(content, path)):
            where = f"{path}, record {number}"
            image = recordio.image(content[record], where)
            height, width, _ = image.pixels.shape
            if (height, width) != (_SIZE, _SIZE):
                size = f"{width} x {height} pixels"
                raise UserError(f"data: {where}: {size}, {self.title} has 32 x 32; download it again")
            images.append(image)
        blue_green_red = np.array([image.pixels for image in images], np.uint8).reshape(-1, _SIZE, _SIZE, 3)
        labels = np.array([image.label for image in images])
        lossy = any(image.lossy for image in images)
        return self._check_labels(blue_green_red[..., ::-1], labels, path), lossy

    def _check_labels(self, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[Any], where: object) -> Images:
        wrong = labels[~((labels >= 0) & (labels < self.classes))]
        if len(wrong):
            last = self.classes - 1
            raise UserError(f"data: {where} has the label {wrong[0]}, labels are 0 to {last}; download it again")
        return Images(np.ascontiguousarray(pixels), labels.astype(np.int32))


CIFAR10_FILES = Release(
    name=CIFAR10.name,
    title="CIFAR-10",
    classes=10,
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    train=50_000,
    validation=10_000,
    folder="cifar-10-batches",
    files=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
    records=("cifar10_train.rec", "cifar10_val.rec"),
)
RELEASES = {release.name: release for release in (CIFAR10_FILES,)}


def usual_folders(release: Release) -> list[Path]:
    """Return the folders in which MXNet and GluonCV, and Keras, store the data set."""
    places = (("MXNET_HOME", "~/.mxnet", f"datasets/{release.name}"), ("KERAS_HOME", "~/.keras", "datasets"))
    return [Path(os.environ.get(name) or os.path.expanduser(usual)) / folder for name, usual, folder in places]


def _unpack(path: Path) -> bytes:
    """Return the content of a gzip file, read to its end, where gzip compares its checksum."""
    content = io.BytesIO()
    with gzip.open(path) as packed:
        while chunk := packed.read(1 << 20):
            content.write(chunk)
            if content.tell() > _LARGEST_ARCHIVE:
                raise ValueError(f"more than {_LARGEST_ARCHIVE >> 20} MiB")
    return content.getvalue()


class _Call:
    """Placeholder for what a pickle builds by calling NumPy: only the arguments and the state are kept."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


# NumPy's inner package got another name in version 2. Bytes that Python 3 writes for Python 2 are encoded text.
_PLACEHOLDERS: dict[str, Any] = {
    "numpy.core.multiarray _reconstruct": _Call,
    "numpy._core.multiarray _reconstruct": _Call,
    "numpy dtype": _Call,
    "numpy ndarray": None,
    "_codecs encode": lambda text, encoding: text,
}
_INSTRUCTIONS = (
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.GLOBAL),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINSTRING, pickle.SHORT_BINSTRING),
    *(pickle.BINUNICODE, pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.EMPTY_DICT, pickle.EMPTY_LIST),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.APPEND, pickle.APPENDS),
    *(pickle.SETITEM, pickle.SETITEMS, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.REDUCE, pickle.BUILD),
)


class _BatchUnpickler(pickle._Unpickler):
    """Follow only the instructions that a batch of CIFAR-10 needs, and look up no function that a pickle names.

    It is Python's own implementation, whose memo is a dictionary: in that of C an index alone can fill the memory.
    """

    dispatch = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _INSTRUCTIONS}  # noqa: RUF012

    def find_class(self, module: str, name: str) -> Any:
        """Return the placeholder of a function; raises UnpicklingError for all that CIFAR-10 does not use."""
        if f"{module} {name}" not in _PLACEHOLDERS:
            raise pickle.UnpicklingError(f"it calls {f'{module} {name}'[:80]!r}, which was not executed")
        return _PLACEHOLDERS[f"{module} {name}"]


def _read_pickle(content: bytes, label_key: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return pixels, (samples, values), and labels of a batch; raises any exception if it is not one."""
    loaded = _BatchUnpickler(io.BytesIO(content), encoding="latin-1").load()
    fields = {_as_text(key): entry for key, entry in loaded.items()}
    _, shape, dtype, in_columns, pixels = fields["data"].state
    labels = fields[label_key]
    if _as_text(dtype.arguments[0]) != "u1" or not all(type(label) is int for label in labels):
        raise TypeError
    raw = pixels.encode("latin-1") if isinstance(pixels, str) else pixels
    rows = np.frombuffer(raw, np.uint8).reshape((len(labels), -1), order="F" if in_columns else "C")
    if rows.shape != shape:
        raise ValueError
    return rows, np.array(labels, np.int64)


def _as_text(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("latin-1")
