"""RecordIO files of images, as MXNet's im2rec writes them (dmlc-core, `recordio.h`)."""

import mmap
import struct
from collections.abc import Iterator

import cv2
import numpy as np
import numpy.typing as npt

from poc.values import UserError

_MAGIC = struct.pack("<I", 0xCED7230A)
_LENGTH_BITS = 29
_PART_HEADER = 8
_IMAGE_HEADER = 24


def records(content: bytes | mmap.mmap, where: object) -> Iterator[slice]:
    """Yield the bytes of each record as a slice; raises UserError, naming `where`, at the first damaged byte."""
    start, complete = 0, True
    for kind, _, end in _parts(content, where):
        complete = kind in (0, 3)
        if complete:
            yield slice(start, end)
            start = end + -end % 4
    if not complete:
        raise UserError(f"data: {where} is truncated in its last record; download it again")


def image(record: bytes, where: object) -> tuple[float, bytes]:
    """Return the label of a record, and its JPEG or PNG file; raises UserError, naming `where`, if it has no header."""
    content = _MAGIC.join(record[start:end] for _, start, end in _parts(record, where))
    label, start = _header(content, 0, len(content), where)
    return label, content[start:]


def label(content: bytes | mmap.mmap, record: slice, where: object) -> float:
    """Return the label of a record without reading its image; raises UserError if it has none, or several."""
    start = record.start + _PART_HEADER
    first, image_start = _header(content, start, record.stop, where)
    if image_start > start + _IMAGE_HEADER + 4:
        raise UserError(f"data: {where} has several labels; an image needs one, its class")
    return first


def _header(content: bytes | mmap.mmap, start: int, end: int, where: object) -> tuple[float, int]:
    """Return the label in the header at `start`, and where the image begins; raises UserError if the header is cut."""
    labels = start + _IMAGE_HEADER
    if labels <= end:
        # IRHeader: how many labels follow it in place of its own, its own, two identifiers.
        more, label = struct.unpack_from("<If", content, start)
        if labels + 4 * more <= end:
            return struct.unpack_from("<f", content, labels)[0] if more else label, labels + 4 * more
    raise UserError(f"data: {where} has no image header; make it again")


def decode(encoded: bytes, where: object) -> npt.NDArray[np.uint8]:
    """Decode an image, (height, width, 3), blue first; raises UserError if it is none, or larger than any photo."""
    check_end(encoded, where)
    try:
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR) if encoded else None
    except cv2.error:  # larger than the limit in poc/__init__.py
        pixels = None
    if pixels is None:
        limit = "or it has more than 134 million pixels (OPENCV_IO_MAX_IMAGE_PIXELS)"
        raise UserError(f"data: {where} is not an image that can be decoded, {limit}; replace it")
    return np.asarray(pixels, np.uint8)


def check_end(encoded: bytes, where: object) -> None:
    """Raise UserError for an image that is cut off; of a JPEG OpenCV would leave what is missing uninitialised."""
    if encoded[:2] == b"\xff\xd8" and not _has_end(encoded):
        raise UserError(f"data: {where} is a truncated JPEG; replace it")
    if encoded[:4] == b"\x89PNG" and b"IEND" not in encoded:
        raise UserError(f"data: {where} is a truncated PNG; replace it")


def _has_end(jpeg: bytes) -> bool:
    """Return whether an end marker follows the start of the first scan; a thumbnail in the header has its own."""
    position = 2
    while jpeg[position : position + 1] == b"\xff" and jpeg[position + 1 : position + 2] != b"\xda":
        is_padding = jpeg[position + 1 : position + 2] == b"\xff"
        position += 1 if is_padding else 2 + int.from_bytes(jpeg[position + 2 : position + 4], "big")
    return jpeg.find(b"\xff\xd9", position) >= 0


def _parts(content: bytes | mmap.mmap, where: object) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of records: kind, start and end of their bytes.

    Each part is the magic number, a word with its kind (upper 3 bits) and length, and the bytes, padded to a multiple
    of 4. A payload that contains the magic number is cut there into parts of kind 1, 2, ..., 3; else the kind is 0.
    """
    position = 0
    while position < len(content):
        header = content[position : position + _PART_HEADER]
        if header[:4] != _MAGIC[: len(header)]:
            raise UserError(f"data: {where} is not RecordIO at byte {position}; download it again")
        kind, length = divmod(int.from_bytes(header[4:], "little"), 1 << _LENGTH_BITS)
        start = position + _PART_HEADER
        end = start + length
        if end > len(content):
            raise UserError(f"data: {where} is truncated in the record at byte {position}; download it again")
        yield kind, start, end
        position = end + -end % 4
