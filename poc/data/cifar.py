"""Files of CIFAR-10: the binary and the Python version, each in a folder or packed, and RecordIO.

These are the forms in which the official site, torchvision, Keras and MXNet leave it.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poc.config import CIFAR10
from poc.data import recordio
from poc.data.images import Dataset, Images, Pixels
from poc.values import UserError

_SIZE = 32
_VALUES = 3 * _SIZE * _SIZE
# Test images last in each form.
PYTHON_VERSION = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
BINARY_VERSION = tuple(f"{name}.bin" for name in PYTHON_VERSION)
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
RECORDS = ("cifar10_train.rec", "cifar10_val.rec")
_FORMS = (
    BINARY_VERSION,
    tuple(f"cifar-10-batches-bin/{name}" for name in BINARY_VERSION),
    PYTHON_VERSION,
    tuple(f"cifar-10-batches-py/{name}" for name in PYTHON_VERSION),
    *((name,) for name in ARCHIVES),
    RECORDS,
)


def find(source: Path) -> list[Path]:
    """Return the files of the data set in a folder, in the first form that is complete, or the archive `source`.

    Any other file stands for its folder. Raises UserError if there are none or some are missing.
    """
    if source.suffix == ".gz" and source.is_file():
        return [source]
    folder = source.parent if source.is_file() else source
    missing: list[Path] = []
    for form in _FORMS:
        paths = [folder / name for name in form]
        absent = [path for path in paths if not path.is_file()]
        if not absent:
            return paths
        if len(absent) < len(paths):
            missing += absent
    problem = f"{missing[0]} is missing" if missing else f"{source} (from --data or POC_DATA) does not contain CIFAR-10"
    raise UserError(
        f"data: {problem}; use a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin, the same without "
        f".bin (the Python version), {', '.join(ARCHIVES)}, or {' and '.join(RECORDS)}"
    )


def decode(files: Mapping[Path, bytes]) -> Dataset:
    """Decode the contents of the files that `find` returned; raises UserError if they are damaged or incomplete."""
    first, content = next(iter(files.items()))
    if first.suffix == ".gz":
        files = _unpack(content, first)
    if first.suffix == ".rec":
        (train, lossy), (validation, lossy_validation) = (_decode_records(files[path], path) for path in files)
        # JPEG copies are another data set than the originals.
        name = f"{CIFAR10.name} (jpeg)" if lossy or lossy_validation else CIFAR10.name
        return Dataset(name, train, validation)
    *parts, validation = (
        (_decode_binary if path.suffix == ".bin" else _decode_python)(content, path) for path, content in files.items()
    )
    train = Images(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
    return Dataset(CIFAR10.name, train, validation)


def _unpack(content: bytes, archive: Path) -> dict[Path, bytes]:
    """Return the files of the binary or Python version in an archive."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content)), mode="r:") as tar:
            for member in tar:
                if member.isfile():
                    # Only the last part of a path counts, and nothing is written anywhere.
                    found[Path(member.name).name] = member
            version = max(BINARY_VERSION, PYTHON_VERSION, key=lambda names: len(found.keys() & set(names)))
            if absent := [name for name in version if name not in found]:
                raise UserError(f"data: {archive} is incomplete, {absent[0]} is missing; download it again")
            return {archive / name: _read(tar, found[name]) for name in version}
    except (EOFError, OSError, RecursionError, ValueError, tarfile.TarError, zlib.error) as error:
        raise UserError(f"data: {archive} is truncated or damaged ({error}); download it again") from None


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def _decode_binary(content: bytes, where: Path) -> Images:
    """Decode a binary file: for each image its label, then its red, green and blue planes."""
    size = 1 + _VALUES
    if not content or len(content) % size:
        raise UserError(f"data: {where} has {len(content)} bytes, not a multiple of {size}; download it again")
    rows = np.frombuffer(content, np.uint8).reshape(-1, size)
    return _from_planes(rows[:, 1:], rows[:, 0], where)


class _BatchUnpickler(pickle._Unpickler):
    """Build arrays and Python's own containers, and call nothing else that a pickle names.

    It is Python's own implementation, whose memo is a dictionary: in that of C an index alone can fill the memory.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return a function that NumPy's pickles name; raises UnpicklingError for any other."""
        if (module, name) not in {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            raise pickle.UnpicklingError(f"it calls {f'{module}.{name}'[:80]!r}, which was not executed")
        return super().find_class(module, name)


def _decode_python(content: bytes, where: Path) -> Images:
    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="latin-1").load()
        rows, labels = batch["data"], np.array(batch["labels"], np.int64)
        if rows.dtype != np.uint8 or rows.shape != (len(labels), _VALUES):
            raise ValueError(f"its pixels are {rows.dtype} in the shape {rows.shape}")
    except Exception as error:  # a damaged or hostile pickle can raise anything
        detail = " ".join(str(error).split())[:200]
        raise UserError(
            f"data: {where} is not a CIFAR-10 batch (Python version), or damaged ({detail}); download it again"
        ) from None
    return _from_planes(rows, labels, where)


def _from_planes(rows: Pixels, labels: npt.NDArray[Any], where: Path) -> Images:
    return _check_labels(rows.reshape(-1, 3, _SIZE, _SIZE).transpose(0, 2, 3, 1), labels, where)


def _decode_records(content: bytes, path: Path) -> tuple[Images, bool]:
    """Decode a RecordIO file of images; the second value is whether any of them is a JPEG."""
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
    return _check_labels(blue_green_red[..., ::-1], labels, path), any(image.lossy for image in images)


def _check_labels(pixels: Pixels, labels: npt.NDArray[Any], where: object) -> Images:
    wrong = labels[~((labels >= 0) & (labels < CIFAR10.classes))]
    if len(wrong):
        last = CIFAR10.classes - 1
        raise UserError(f"data: {where} has the label {wrong[0]}, labels are 0 to {last}; download it again")
    return Images(np.ascontiguousarray(pixels), labels.astype(np.int32))
