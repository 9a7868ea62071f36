"""RecordIO files of images, as MXNet's im2rec writes them (dmlc-core, `recordio.h`)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from poc.values import UserError

_MAGIC = struct.pack("<I", 0xCED7230A)
_IMAGE_HEADER = 24


class Bytes(Protocol):
    """A file's content: bytes, or a memory map of it."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> bytes: ...


class Record(NamedTuple):
    """Where a record is in its file, and in how many parts."""

    start: int
    end: int
    parts: int


class Image(NamedTuple):
    """One record of an image."""

    label: float
    encoded: bytes
    """JPEG, PNG or what else OpenCV decodes."""


def records(content: Bytes, where: object) -> Iterator[Record]:
    """Yields the place of every record in `content`; raises UserError, naming `where`, at the first damaged byte.

    Each part of a record is the magic number, a word with the kind of part (upper 3 bits) and its length, and the
    bytes, padded to a multiple of 4. A payload that holds the magic number itself is cut there into parts of kind 1,
    2, ..., 3.
    """
    position, start, parts = 0, 0, 0
    while position < len(content):
        header = content[position : position + 8]
        if header[:4] != _MAGIC[: len(header)]:
            raise UserError(f"data: {where} is not RecordIO at byte {position}; get it again")
        kind, length = _kind_and_length(header) if len(header) == 8 else (0, 0)
        if len(header) < 8 or position + 8 + length > len(content):
            raise UserError(f"data: {where} is truncated in the record at byte {position}; get it again")
        position += 8 + length + -length % 4
        parts += 1
        if kind in (0, 3):
            yield Record(start, position, parts)
            start, parts = position, 0
    if parts:
        raise UserError(f"data: {where} is truncated in its last record; get it again")


def payload(content: Bytes, record: Record) -> bytes:
    """What a record holds."""
    found, position = [], record.start
    for _ in range(record.parts):
        _, length = _kind_and_length(content[position : position + 8])
        found.append(content[position + 8 : position + 8 + length])
        position += 8 + length + -length % 4
    return _MAGIC.join(found)


def image(held: bytes, where: object) -> Image:
    """The image and label in the payload `held`; raises UserError, naming `where`, if it has no image header."""
    # IRHeader: how many more labels follow, the label, two identifiers.
    if len(held) < _IMAGE_HEADER:
        raise UserError(f"data: {where}: no image header; get it again")
    more, label = struct.unpack_from("<If", held)
    encoded = held[_IMAGE_HEADER + 4 * more :]
    if more and encoded:
        (label,) = struct.unpack_from("<f", held, _IMAGE_HEADER)
    return Image(label, encoded)


def decoded(encoded: bytes) -> npt.NDArray[np.uint8] | None:
    """The pixels (height, width, 3), blue first, of an image file; None where it is none, or larger than any photo."""
    try:
        return cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR) if encoded else None
    except cv2.error:  # of its limits (see poc/__init__.py)
        return None


def _kind_and_length(header: bytes) -> tuple[Any, Any]:
    word = struct.unpack("<I", header[4:])[0]
    return word >> 29, word & ((1 << 29) - 1)
