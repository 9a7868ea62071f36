"""Results that earlier studies printed: one CSV per study, with columns of rows.csv (`poc.records.row.Row`).

Lines before the header describe the study: `# title: ...`, `# authors: ...`, `# year: ...`, `# address: ...` and
`# about: ...`. The study with the lowest `# order: ...` is the main study, with which measured runs are compared. Lines
and columns may be left out. `poc.published.sheet` reads what spreadsheets and pandas save.

A cell has a figure as its source printed it (percentages as fractions, hours as seconds); it is empty if the source has
none. Only three things were added: a batch size per device or in total that follows from the other one and the number
of devices; what the main study's script ran by default (input, kvstore, learning rate); and the number of parameters of
its ResNet-50, counted from that script's network.

`printed` is the source's own text of the row, `note` the source's remarks, `scaling` the batch that its series over
devices keeps: per device (`weak`) or global (`strong`). `devices` is 0 for a CPU. The Theano study's seconds for 5,120
images are those of all devices together, so they fall as devices are added.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from poc.config import DATA
from poc.published import prices, sheet
from poc.records.row import COLUMNS, COUNTS, NUMBERS, PUBLISHED, STRONG, TITLES, WEAK, Row
from poc.values import UserError, suggest

MAIN_MODEL = "cifar_resnet50_v2"
"""The model of the main study with which measured runs are compared."""
MAIN_BATCH = 128
"""Batch per device, and global batch, of the main study's reference row."""
MAIN_EPOCHS = 12
MAIN_RECIPE = "SGD with momentum 0.9, crops of 28, horizontal flip, colour jitter"
PRINTED = tuple(name for name, column in COLUMNS.items() if column.metadata.get("printed"))
"""The columns that the file of a study may have."""
_CIFAR10_IMAGES = 50_000
_EPOCH_TOLERANCE = 0.05
_SHOWN_CHARACTERS = 40
_COMMENTS = ("title", "authors", "year", "address", "about", "order")
_EARLIER_NAMES = {
    **{"infrastructure": "machine", "network": "model", "total_batch": "global_batch"},
    **{"learning_rate": "lr", "exchange": "kvstore"},
}
_DATASETS = {**dict.fromkeys(("imagenet1k", "ilsvrc2012"), "imagenet"), **{name: name for name in DATA}}


@dataclasses.dataclass(frozen=True)
class Study:
    """The content of one file; texts are empty if the file has none."""

    name: str
    """Name of the file."""
    rows: tuple[Row, ...]
    """In the order of the source, with `flag` and `contradicts`."""
    title: str = ""
    authors: str = ""
    year: str = ""
    address: str = ""
    about: str = ""
    order: str = "999"


def load(paths: Sequence[Path] = (), folder: Path = Path(__file__).parent) -> list[Study]:
    """Return every study in `folder` by order and name, then those of the user's files `paths`.

    Raises UserError if a file cannot be read, has a mistake, or has the name of another study.
    """
    files = (path for path in folder.glob("*.csv") if path.name != prices.FILE.name)
    studies = sorted(map(_read, files), key=lambda study: (int(study.order), study.name))
    for path in paths:
        if path.stem in {study.name for study in studies}:
            raise UserError(f"--study: {path.stem!r} is the name of another study; rename {path}")
        studies.append(_read(path))
    return studies


def _read(path: Path) -> Study:
    try:
        table = sheet.read(path)
    except (OSError, ValueError, csv.Error) as error:  # a ValueError: bytes that are no text
        raise UserError(f"study: {path} cannot be read ({' '.join(str(error).split())}); use a CSV file") from None
    if not table.rows:
        raise UserError(f"study: {path} has no rows; it needs a header and a row per result")
    try:
        comments = dict(_comment(*comment) for comment in table.comments)
        texts = _texts(table)
    except UserError as error:
        raise UserError(f"study: {path}, {error}") from None
    rows = [_row(path.stem, text) for text in texts]
    # Printed digits show how far a figure can be trusted: it may be off by one unit of its last digit.
    units = [{name: _last_digit(text[name]) for name in PRINTED if name in NUMBERS} for text in texts]
    single = {
        _series(row): (row.samples_per_second, unit["samples_per_second"])
        for row, unit in zip(rows, units)
        if row.devices == 1 and row.scaling and row.samples_per_second
    }
    for row, unit in zip(rows, units):
        contradictions = dict(_contradictions(row, unit, single.get(_series(row))))
        row.flag = "; ".join(contradictions.values())
        row.contradicts = " ".join(dict.fromkeys(" ".join(contradictions).split()))
    return Study(**comments, name=path.stem, rows=tuple(rows))


def _comment(number: int, line: str) -> tuple[str, str]:
    """Return field and text of a line before the header."""
    name, _, text = line.partition(":")
    field, text = name.strip().lower(), text.strip()
    if field not in _COMMENTS:
        shown = f"# {line}"[:_SHOWN_CHARACTERS]
        raise UserError(f"row {number}: {shown!r} is unknown; {suggest(field, _COMMENTS)}")
    if field == "order" and not re.fullmatch("[0-9]{1,12}", text):
        raise UserError(f"row {number}: the order is {text[:_SHOWN_CHARACTERS]!r}; use a whole number")
    return field, text


def _texts(table: sheet.Sheet) -> list[dict[str, str]]:
    """Return the cells of each row by column, numbers as decimals."""
    for number, row in table.rows:
        if len(row) < len(table.header) or any(row[len(table.header) :]):
            raise UserError(f"row {number} has {len(row)} cells, the header {len(table.header)}")
    names = {**_EARLIER_NAMES, **{_spelled(text): name for name in PRINTED for text in (TITLES[name], name)}}
    columns: dict[str, list[str]] = {}
    for title, *cells in zip(table.header, *(row for _, row in table.rows)):
        # pandas writes the number of each row before its cells.
        if title in ("", "Unnamed: 0") and cells in ([""] * len(cells), list(map(str, range(len(cells))))):
            continue
        if not (name := names.get(_spelled(title))):
            raise UserError(f"unknown column {title[:_SHOWN_CHARACTERS]!r}; {suggest(_spelled(title), PRINTED)}")
        if name in columns:
            raise UserError(f"column {name} occurs twice in the header; remove one")
        columns[name] = cells
    comma = sheet.has_decimal_comma(cell for name, cells in columns.items() if name in NUMBERS for cell in cells)
    for name, cells in columns.items():
        texts = []
        for (number, _), cell in zip(table.rows, cells):
            try:
                texts.append(_number(name, cell, table.separator, comma) if name in NUMBERS else _word(name, cell))
            except ValueError as error:
                raise UserError(f"row {number}: {name} is {cell[:_SHOWN_CHARACTERS]!r}; {error}") from None
        # pandas adds ".0" to whole numbers if another cell of the column is empty.
        is_float = name in NUMBERS and all(re.fullmatch(r"\d+\.0", text) for text in texts if text)
        columns[name] = [text.removesuffix(".0") for text in texts] if is_float else texts
    return [{**dict.fromkeys(PRINTED, ""), **dict(zip(columns, cells))} for cells in zip(*columns.values())]


def _spelled(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def _word(name: str, cell: str) -> str:
    """Return a text by the name that it has in this project. Raises ValueError."""
    if name == "dataset":
        return _DATASETS.get(_spelled(cell).replace("_", ""), cell)
    if name == "scaling" and cell and cell.lower() not in (WEAK, STRONG):
        raise ValueError(f"use {WEAK} (fixed batch per device), {STRONG} (fixed global batch), or leave it empty")
    if cell.lower() in ("nan", "n/a", "#n/a"):
        return ""
    return cell.lower() if name == "scaling" else cell


def _number(name: str, cell: str, separator: str, decimal_comma: bool) -> str:
    """Return the number in a cell as a decimal; empty if unknown. Raises ValueError if the column cannot have it."""
    limits = COLUMNS[name].metadata
    maximum = limits.get("most")
    try:
        text = sheet.decimal(cell, separator, decimal_comma)
    except ValueError:
        raise ValueError("use a number, such as 3000 or 0.81, or leave it empty") from None
    number = float(text) if text else 1.0
    if cell.endswith("%") and maximum is None:
        raise ValueError("it is not a fraction; use a number without %")
    if number < 0 or (number == 0 and not limits.get("zero")):
        raise ValueError("use a number above zero, or leave it empty")
    if maximum is not None and number > maximum:
        raise ValueError(f"use a fraction, {number / 100:g} for {number:g}%")
    if name in COUNTS and not number.is_integer():
        raise ValueError("use a whole number")
    return text


def _row(study: str, text: Mapping[str, str]) -> Row:
    values: dict[str, Any] = {name: cell for name, cell in text.items() if name not in NUMBERS}
    for name, cell in text.items():
        if name in NUMBERS and cell:
            values[name] = int(float(cell)) if name in COUNTS else float(cell)
    devices = values.get("devices")
    kind = "" if devices is None else "gpu" if devices else "cpu"
    return Row(origin=PUBLISHED, study=study, kind=kind, **values)


def _series(row: Row) -> tuple[Any, ...]:
    """Return what the rows of a scaling series share."""
    shared = (row.machine, row.framework, row.model, row.dataset, row.input_shape, row.layout, row.scaling)
    return (*shared, row.held_fixed)


def _contradictions(
    row: Row, unit: Mapping[str, float], single: tuple[float, float] | None
) -> Iterator[tuple[str, str]]:
    """Yield columns of a row that contradict each other, separated by spaces, and in words how.

    Figures may differ by the `unit` of their last digit. `single` are samples/s of the series on one device, and their
    unit. CIFAR-10's samples/s may differ by another 5% from 50,000 images / seconds per epoch: they were read off in
    mid-epoch, and the seconds include an epoch's beginning and end.
    """
    rate, seconds, devices, batch = row.samples_per_second, row.seconds_per_epoch, row.devices, row.batch_per_device
    if row.dataset == "cifar10" and seconds and rate:
        implied = _CIFAR10_IMAGES / seconds
        tolerance = unit["samples_per_second"] + implied * (unit["seconds_per_epoch"] / seconds + _EPOCH_TOLERANCE)
        if abs(implied - rate) > tolerance:
            text = f"{seconds:g} s per epoch is {implied:,.0f} samples/s, printed {rate:,.0f}"
            yield "seconds_per_epoch samples_per_second", text
    counted = re.search(r"\((\d+)-\d+%\)", row.printed)  # devices and their utilisation
    if counted and devices is not None and int(counted[1]) != devices:
        yield "devices utilisation", f"{devices} devices, but the utilisation is of {counted[1]} devices"
    if None not in (row.global_batch, batch, devices) and batch * max(devices, 1) != row.global_batch:
        text = f"{batch} per device x {devices} is a global batch of {batch * max(devices, 1)}"
        yield "batch_per_device devices global_batch", f"{text}, printed {row.global_batch}"
    if single and row.speedup_throughput is not None and rate:
        implied = rate / single[0]
        tolerance = unit["speedup_throughput"] + (unit["samples_per_second"] + implied * single[1]) / single[0]
        if abs(implied - row.speedup_throughput) > tolerance:
            text = f"{rate:g} / {single[0]:g} samples/s is a speed-up of {implied:.2f}"
            yield "samples_per_second speedup_throughput", f"{text}, printed {row.speedup_throughput:g}"
    for kind in ("throughput", "wall"):
        speedup, efficiency = getattr(row, f"speedup_{kind}"), getattr(row, f"efficiency_{kind}")
        if speedup is not None and efficiency is not None and devices:
            implied = speedup / devices
            if abs(implied - efficiency) > unit[f"efficiency_{kind}"] + unit[f"speedup_{kind}"] / devices:
                text = f"speed-up {speedup:g} / {devices} devices is an efficiency of {implied:.3f}"
                yield f"speedup_{kind} efficiency_{kind}", f"{text}, printed {efficiency:g}"


def _last_digit(figure: str) -> float:
    """Return one unit of the last digit of a printed figure: 0.1 for "13.9", 100 for "2600", 1000 for "10000".

    Zeros at the end of a whole number are no digits, except its first two.
    """
    integer, _, decimals = figure.partition(".")
    if decimals:
        return 10.0 ** -len(decimals)
    zeros = len(integer) - len(integer.rstrip("0"))
    return 10.0 ** max(min(zeros, len(integer) - 2), 0)
