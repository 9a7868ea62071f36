"""Read a CSV as spreadsheets, pandas and people write it: any usual encoding, separator and form of a number."""

from __future__ import annotations

import codecs
import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path

_UNKNOWN = frozenset({"", "-", "–", "—", "?", "na", "n/a", "#n/a", "nan", "none", "null"})
_SEPARATORS = ",;\t|"
_SPACES = "' \u00a0\u202f"
_LARGEST = 1e12
# A comma that cannot separate thousands: "0,81" and "3.000,5", but not "3,000".
_DECIMAL_COMMA = re.compile(r"(?![1-9]\d{0,2},\d{3}$)[\d.]+,\d+")


@dataclasses.dataclass(frozen=True)
class Sheet:
    """The cells of a file without blank rows; lines and rows have the number that a spreadsheet shows."""

    comments: Sequence[tuple[int, str]]
    """Lines before the header that start with "#", without that."""
    header: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]
    separator: str


def read(path: Path) -> Sheet:
    """Return every cell of the file without spaces around it. Raises OSError, ValueError or csv.Error."""
    lines = re.sub("\r\n?", "\n", _decoded(path.read_bytes())).split("\n")
    # Above the header: blank lines, comments, and the separator as some write it for Excel.
    above = re.compile(rf'[" {_SEPARATORS}]*($|#|sep=)', re.IGNORECASE)
    top = next((number for number, line in enumerate(lines) if not above.match(line)), len(lines))
    header = "".join(lines[top : top + 1])
    separator = max(_SEPARATORS, key=header.count)
    comments = []
    for number, line in enumerate(lines[:top], start=1):
        first = next(csv.reader([line], delimiter=separator))[0] if line.startswith('"') else line
        text = first.lstrip("# ").rstrip(f" {separator}")
        if text and first.lstrip().startswith("#"):
            comments.append((number, text))
    table = io.StringIO("\n".join(lines[top:]), newline="")
    cells = csv.reader(table, delimiter=separator, strict=True, skipinitialspace=True)
    stripped = [(number, [cell.strip() for cell in row]) for number, row in enumerate(cells, start=top + 1)]
    (_, names), *rows = [(number, row) for number, row in stripped if any(row)] or [(0, [])]
    while names and not names[-1]:
        names.pop()
    return Sheet(comments=comments, header=names, rows=rows, separator=separator)


def _decoded(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    if b"\0" in data:
        raise ValueError("it is not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:  # written by an old Windows program
        return data.decode("cp1252")


def has_decimal_comma(cells: Iterable[str]) -> bool:
    """Return whether the comma of any of these numbers can only be the decimal point."""
    return any(_DECIMAL_COMMA.fullmatch(cell.rstrip("% ")) for cell in cells)


def decimal(cell: str, separator: str, decimal_comma: bool) -> str:
    """Return a number with the digits that are printed: "1e+03" is 1000, "81%" 0.81, "3,000" 3000; empty if unknown.

    Raises ValueError for anything else, and for what may be two numbers: between semicolons "3,000" is 3000 or 3.
    """
    if cell.lower() in _UNKNOWN:
        return ""
    thousands = "." if decimal_comma else "" if separator == ";" else ","
    between, point = f"[{thousands}{_SPACES}]", "," if decimal_comma else r"\."
    number = rf"[+-]?((\d+|[1-9]\d{{0,2}}({between}\d{{3}})+)({point}\d*)?|{point}\d+)([eE][+-]?\d+)?"
    if not re.fullmatch(rf"{number}\s?%?", cell, re.ASCII):
        raise ValueError
    text = re.sub(between, "", cell.rstrip("% ")).replace(",", ".")
    if abs(float(text)) > _LARGEST:
        raise ValueError
    return f"{Decimal(text).scaleb(-2 if cell.endswith('%') else 0):f}"
