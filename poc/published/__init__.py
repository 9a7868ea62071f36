"""What earlier studies printed: one CSV a study, in columns of rows.csv (`poc.records.row.Row`).

Lines before the header name the study: `# title: ...`, `# authors: ...`, `# year: ...`, `# address: ...`, and in a few
words what it is `# about: ...`. The lowest `# order: ...` is the main study, beside which measured runs are shown. A
file may leave out lines, and columns.

The file may be what a spreadsheet or pandas saves (`poc.published.sheet`): with commas, semicolons or tabs, blank rows,
padded lines, "3,000", "1e+03", "nan", "81%", columns by their titles.

A cell holds a figure as its source printed it (percentages as fractions of one, hours as seconds), and is
empty where the source is silent. Three things were added, and only these: a batch size per device or in
total, where the other one and the number of devices are known; what the main study's script ran by default
(input, kvstore, learning rate); and the number of parameters of its ResNet-50, counted from that script's
network.

`printed` is the source's own text that finds the row again, `note` what the source says beside its figures,
`scaling` what its series over devices held fixed: the batch per device (`weak`) or the total batch
(`strong`). `devices` is 0 for a CPU. The Theano study's seconds for 5,120 images are those of all devices
together, so they fall as devices are added.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from poc.config import DATA
from poc.published import prices, sheet
from poc.records.row import COLUMNS, PUBLISHED, STRONG, WEAK, Row
from poc.values import UserError, suggest, value

PRINTED = tuple(name for name, field in COLUMNS.items() if field.metadata.get("printed"))
"""The columns that the file of a study may have."""
_NUMBERS: dict[str, Any] = {"Count": int, "Measure": float}
_SHOWN = 40

Contradictions = dict[tuple[str, ...], str]
"""What disagrees, in words, by the columns that do."""
CIFAR10_TRAINING_IMAGES = 50_000
EPOCH_TOLERANCE = 0.05


@value
class Study:
    """What one file says; its text fields are empty where the file is silent."""

    name: str
    """That of its file."""
    rows: tuple[Row, ...]
    """In the order of the source; `flag` and `contradicts` are what `contradictions` finds."""
    title: str = ""
    authors: str = ""
    year: str = ""
    address: str = ""
    about: str = ""
    order: str = "999"


def load(own: Sequence[Path] = (), folder: Path = Path(__file__).parent) -> list[Study]:
    """Every study in `folder` by its order, those without by name, and then the user's `own` files.

    Raises UserError where a file cannot be read or understood, and where two have the same name.
    """
    files = (path for path in folder.glob("*.csv") if path.name != prices.FILE.name)
    studies = sorted(map(_read, files), key=lambda study: (int(study.order), study.name))
    for path in own:
        if path.stem in {study.name for study in studies}:
            raise UserError(f"--study: {path.stem!r} is the name of another study; rename {path}")
        studies.append(_read(path))
    return studies


def _read(path: Path) -> Study:
    try:
        read = sheet.read(path)
    except (OSError, ValueError, csv.Error) as error:  # of ValueError: bytes that are no text
        raise UserError(f"study: {path} cannot be read ({' '.join(str(error).split())}); use a CSV file") from None
    if not read.rows:
        raise UserError(f"study: {path} has no rows; it needs a header and a row per result")
    try:
        head = dict(_described(*line) for line in read.head)
        texts = _texts(read)
    except UserError as error:
        raise UserError(f"study: {path}, {error}") from None
    rows = [_row(path.stem, text) for text in texts]
    for row, disagree in zip(rows, contradictions(texts, rows)):
        row.flag = "; ".join(disagree.values())
        row.contradicts = " ".join(dict.fromkeys(name for names in disagree for name in names))
    return Study(**head, name=path.stem, rows=tuple(rows))


def _described(number: int, line: str) -> tuple[str, str]:
    given, _, text = line.partition(":")
    names = ("title", "authors", "year", "address", "about", "order")
    name = given.strip().lower()
    if name not in names:
        raise UserError(f"row {number}: {f'# {line}'[:_SHOWN]!r} is unknown; {suggest(name, names)}")
    if name == "order" and not re.fullmatch("[0-9]{1,12}", text.strip()):
        raise UserError(f"row {number}: the order is {text.strip()[:_SHOWN]!r}; use a whole number")
    return name, text.strip()


def _texts(read: sheet.Sheet) -> list[dict[str, str]]:
    """The cells of each row by column, numbers as decimals."""
    for number, row in read.rows:
        if len(row) < len(read.header) or any(row[len(read.header) :]):
            raise UserError(f"row {number} has {len(row)} cells, the header {len(read.header)}")
    columns: dict[str, list[str]] = {}
    for given, *cells in zip(read.header, *(row for _, row in read.rows)):
        # pandas writes the number of each row before its cells.
        if given in ("", "Unnamed: 0") and cells in ([""] * len(cells), list(map(str, range(len(cells))))):
            continue
        name = _SPELLED.get(_spelled(given), "")
        if not name:
            raise UserError(f"unknown column {given[:_SHOWN]!r}; {suggest(_spelled(given), PRINTED)}")
        if name in columns:
            raise UserError(f"column {name} occurs twice in the header; remove one")
        columns[name] = cells
    comma = sheet.has_decimal_comma(cell for name, cells in columns.items() if _kind(name) for cell in cells)
    for name, cells in columns.items():
        texts = []
        for (number, _), cell in zip(read.rows, cells):
            try:
                texts.append(_figure(name, cell, read.separator, comma) if _kind(name) else _word(name, cell))
            except ValueError as error:
                raise UserError(f"row {number}: {name} is {cell[:_SHOWN]!r}; {error}") from None
        columns[name] = sheet.without_float_zeros(texts) if _kind(name) else texts
    silent = dict.fromkeys(PRINTED, "")
    return [{**silent, **dict(zip(columns, cells))} for cells in zip(*columns.values())]


def _spelled(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")


_RENAMED = {
    "infrastructure": "machine",
    "network": "model",
    "total_batch": "global_batch",
    "learning_rate": "lr",
    "exchange": "kvstore",
}
"""What columns were called before."""
_SPELLED = {
    **_RENAMED,
    **{
        _spelled(spelling): name for name in PRINTED for spelling in (COLUMNS[name].metadata.get("title") or name, name)
    },
}
"""The columns by their names, by their titles in tables, and by what they were called before."""
_DATASETS = {**dict.fromkeys(("imagenet1k", "ilsvrc2012"), "imagenet"), **{name: name for name in DATA}}


def _kind(name: str) -> Any:
    """What makes a number of a cell of the column `name`; None where its cells are words."""
    return _NUMBERS.get(str(COLUMNS[name].type))


def _word(name: str, cell: str) -> str:
    """What `cell` says, by the one name that it has here; raises ValueError."""
    if name == "dataset":
        return _DATASETS.get(_spelled(cell).replace("_", ""), cell)
    if name == "scaling" and cell and cell.lower() not in (WEAK, STRONG):
        raise ValueError(f"use {WEAK} (fixed batch per device), {STRONG} (fixed global batch), or leave it empty")
    if cell.lower() in ("nan", "n/a", "#n/a"):
        return ""
    return cell.lower() if name == "scaling" else cell


def _figure(name: str, cell: str, separator: str, decimal_comma: bool) -> str:
    """The number in `cell` as a decimal, empty where there is none; raises ValueError where it may not be that."""
    if cell.lower() in sheet.ABSENT:
        return ""
    shown = COLUMNS[name].metadata
    most = shown.get("most")
    try:
        text = sheet.decimal(cell, separator, decimal_comma)
    except ValueError:
        raise ValueError("use a number, such as 3000 or 0.81, or leave it empty") from None
    number = float(text)
    if cell.endswith("%") and most is None:
        raise ValueError("it is not a fraction; use a number without %")
    if number < 0 or (number == 0 and not shown.get("zero")):
        raise ValueError("use a number above zero, or leave it empty")
    if most is not None and number > most:
        raise ValueError(f"use a fraction, {number / 100:g} for {number:g}%")
    if _kind(name) is int and not number.is_integer():
        raise ValueError("use a whole number")
    return text


def _row(study: str, text: Mapping[str, str]) -> Row:
    figures: dict[str, Any] = {}
    for name, cell in text.items():
        kind = _kind(name)
        if kind is None:
            figures[name] = cell
        elif cell:
            figures[name] = kind(float(cell))
    devices = figures.get("devices")
    kind = "" if devices is None else "gpu" if devices else "cpu"
    return Row(origin=PUBLISHED, study=study, kind=kind, **figures)


def contradictions(texts: Sequence[Mapping[str, str]], rows: Sequence[Row]) -> list[Contradictions]:
    """What disagrees within each row, or between it and its series on one device; empty where nothing does.

    `texts` are the cells of `rows` as text, because how many digits a source printed says how far its
    figures can be trusted: each may be off by one unit of its last digit (rounded or cut off). The zeros that
    an integer ends in are not digits, but for its first two: 2600 is trusted to 100, 10000 to 1000. Beyond
    that, these must agree:

    - samples/s and, on CIFAR-10, 50,000 images / seconds per epoch, where 5% more is let pass: the one is a
      rate read off in mid-epoch, the other has the epoch's beginning and end in it;
    - the number of devices and the one in front of a utilisation in `printed`, as in "(8-80%)";
    - global batch and batch per device x devices;
    - a speed-up by throughput and the row's samples/s / those of its series on one device;
    - an efficiency and its speed-up / devices.
    """
    on_one_device = {
        _series(row): text["samples_per_second"]
        for text, row in zip(texts, rows)
        if row.devices == 1 and row.scaling and row.samples_per_second
    }
    return [_disagreements(text, row, on_one_device) for text, row in zip(texts, rows)]


def _series(row: Row) -> tuple[Any, ...]:
    same = (row.machine, row.framework, row.model, row.dataset, row.input_shape, row.layout, row.scaling)
    return (*same, row.held_fixed)


def _disagreements(text: Mapping[str, str], row: Row, on_one_device: Mapping[tuple[Any, ...], str]) -> Contradictions:
    disagree: Contradictions = {}
    devices, rate_unit = row.devices, _last_digit(text["samples_per_second"])

    if row.dataset == "cifar10" and row.seconds_per_epoch and row.samples_per_second:
        implied = CIFAR10_TRAINING_IMAGES / row.seconds_per_epoch
        implied_unit = implied * _last_digit(text["seconds_per_epoch"]) / row.seconds_per_epoch
        if abs(implied - row.samples_per_second) > rate_unit + implied_unit + EPOCH_TOLERANCE * implied:
            disagree["seconds_per_epoch", "samples_per_second"] = (
                f"{row.seconds_per_epoch:g} s per epoch is {implied:,.0f} samples/s, "
                f"printed {row.samples_per_second:,.0f}"
            )

    counted = re.search(r"\((\d+)-\d+%\)", row.printed)
    if counted and devices is not None and int(counted[1]) != devices:
        disagree["devices", "utilisation"] = f"{devices} devices, but the utilisation is of {counted[1]} devices"

    if None not in (row.global_batch, row.batch_per_device, devices):
        total = row.batch_per_device * max(devices, 1)
        if total != row.global_batch:
            disagree["batch_per_device", "devices", "global_batch"] = (
                f"{row.batch_per_device} per device x {devices} is a global batch of {total}, "
                f"printed {row.global_batch}"
            )

    alone = on_one_device.get(_series(row))
    if alone and row.speedup_throughput is not None and row.samples_per_second:
        implied = row.samples_per_second / float(alone)
        implied_unit = (rate_unit + implied * _last_digit(alone)) / float(alone)
        if abs(implied - row.speedup_throughput) > _last_digit(text["speedup_throughput"]) + implied_unit:
            disagree["samples_per_second", "speedup_throughput"] = (
                f"{row.samples_per_second:g} / {alone} samples/s is a speed-up of {implied:.2f}, "
                f"printed {row.speedup_throughput:g}"
            )

    for kind in ("throughput", "wall"):
        speedup, efficiency = getattr(row, f"speedup_{kind}"), getattr(row, f"efficiency_{kind}")
        if speedup is not None and efficiency is not None and devices:
            implied = speedup / devices
            unit = _last_digit(text[f"efficiency_{kind}"]) + _last_digit(text[f"speedup_{kind}"]) / devices
            if abs(implied - efficiency) > unit:
                disagree[f"speedup_{kind}", f"efficiency_{kind}"] = (
                    f"speed-up {speedup:g} / {devices} devices is an efficiency of {implied:.3f}, "
                    f"printed {efficiency:g}"
                )
    return disagree


def _last_digit(figure: str) -> float:
    """One unit of the last digit of a printed figure: 0.1 for "13.9", 100 for "2600", 1000 for "10000"."""
    whole, _, decimals = figure.partition(".")
    if decimals:
        return 10.0 ** -len(decimals)
    zeros = len(whole) - len(whole.rstrip("0"))
    return 10.0 ** max(min(zeros, len(whole) - 2), 0)
