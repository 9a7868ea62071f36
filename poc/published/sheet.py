"""The cells of a CSV as spreadsheets, pandas and people write it, and the numbers in them."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path

from poc.values import value

ABSENT = frozenset({"", "-", "–", "—", "?", "na", "n/a", "#n/a", "nan", "none", "null"})
"""What stands for no number, in lower case."""
_SEPARATORS = ",;\t|"
_SPACES = "' \u00a0\u202f"
_LARGEST = 1e12
# A comma that no thousands are in front of: "0,81" and "3.000,5", but not "3,000".
_DECIMAL_COMMA = re.compile(r"(?![1-9]\d{0,2},\d{3}$)[\d.]+,\d+")
_FLOAT = re.compile(r"\d+\.0")


@value
class Sheet:
    """What a file holds, without blank rows; rows have their number as a spreadsheet counts them."""

    head: Sequence[tuple[int, str]]
    """The lines before the header that begin with "#", without that."""
    header: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]
    separator: str


def read(path: Path) -> Sheet:
    """Every cell of the file at `path`, without spaces around it; raises OSError, ValueError or csv.Error."""
    lines = re.sub("\r\n?", "\n", _decoded(path.read_bytes())).split("\n")
    top = next((number for number, line in enumerate(lines) if not _is_head(line)), len(lines))
    header = "".join(lines[top : top + 1])
    separator = max(_SEPARATORS, key=header.count)
    head = []
    for number, line in enumerate(lines[:top], start=1):
        first = next(csv.reader([line], delimiter=separator))[0] if line.startswith('"') else line
        text = first.lstrip("# ").rstrip(f" {separator}")
        if text and first.lstrip().startswith("#"):
            head.append((number, text))
    table = io.StringIO("\n".join(lines[top:]), newline="")
    cells = csv.reader(table, delimiter=separator, strict=True, skipinitialspace=True)
    stripped = [(number, [cell.strip() for cell in row]) for number, row in enumerate(cells, start=top + 1)]
    (_, names), *rows = [(number, row) for number, row in stripped if any(row)] or [(0, [])]
    while names and not names[-1]:
        names.pop()
    return Sheet(head=head, header=names, rows=rows, separator=separator)


def _decoded(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    if b"\0" in data:
        raise ValueError("it is not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:  # what Windows wrote before
        return data.decode("cp1252")


def _is_head(line: str) -> bool:
    """Whether `line` is blank, describes the file, or names the separator as some write it for Excel."""
    text = line.strip(f'" {_SEPARATORS}')
    return not text or text.startswith("#") or text.lower().startswith("sep=")


def has_decimal_comma(cells: Iterable[str]) -> bool:
    """Whether one of these numbers can only be meant with a comma before its decimals."""
    return any(_DECIMAL_COMMA.fullmatch(cell.rstrip("% ")) for cell in cells)


def decimal(cell: str, separator: str, decimal_comma: bool) -> str:
    """The number in `cell`, with the digits that are printed there: "1e+03" is 1000, "81%" 0.81, "3,000" 3000.

    Raises ValueError where there is none, or two may be meant: with a semicolon between cells "3,000" is 3000 or 3.
    """
    thousands = "." if decimal_comma else "" if separator == ";" else ","
    between, point = f"[{thousands}{_SPACES}]", "," if decimal_comma else r"\."
    number = rf"[+-]?((\d+|[1-9]\d{{0,2}}({between}\d{{3}})+)({point}\d*)?|{point}\d+)([eE][+-]?\d+)?"
    if not re.fullmatch(rf"{number}\s?%?", cell, re.ASCII):
        raise ValueError
    text = re.sub(between, "", cell.rstrip("% ")).replace(",", ".")
    if abs(float(text)) > _LARGEST:
        raise ValueError
    return f"{Decimal(text).scaleb(-2 if cell.endswith('%') else 0):f}"


def without_float_zeros(cells: Iterable[str]) -> list[str]:
    """The numbers of a column; without ".0" where all have it, as pandas writes whole ones beside empty cells."""
    column = list(cells)
    whole = all(_FLOAT.fullmatch(cell) for cell in column if cell)
    return [cell[: -len(".0")] if whole and cell else cell for cell in column]
