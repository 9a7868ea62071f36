"""Results that earlier studies printed: one CSV per study, with columns of rows.csv (`poc.records.row.Row`).

Lines before the header describe the study: `# title: ...`, `# authors: ...`, `# year: ...`, `# address: ...` and
`# about: ...`. The study with the lowest `# order: ...` is the main study, with which measured runs are compared. Lines
and columns may be left out.

A cell has a figure as its source printed it (percentages as fractions, hours as seconds); it is empty if the source has
none. Only three things were added: a batch size per device or in total that follows from the other one and the number
of devices; what the main study's script ran by default (input, kvstore, learning rate); and the number of parameters of
its ResNet-50, counted from that script's network.

`printed` is the source's own text of the row, `note` the source's remarks, `scaling` the batch that its series over
devices keeps: per device (`weak`) or global (`strong`). `devices` is 0 for a CPU. The Theano study's seconds for 5,120
images are those of all devices together, so they fall as devices are added. Where figures of a row contradict each
other, samples/s and seconds per epoch by more than a tenth, `contradicts` names the columns, separated by spaces, and
`flag` says how: pages compute nothing from these.
"""

import contextlib
import csv
import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from poc.published import prices
from poc.records.row import COUNTS, NUMBERS, PUBLISHED, Row
from poc.values import LARGEST_NUMBER, UserError, checked, suggest, value

MAIN_MODEL = "cifar_resnet50_v2"  # the model of the main study with which measured runs are compared
MAIN_BATCH = 128  # batch per device, and global batch, of the main study's reference row
MAIN_EPOCHS = 12
MAIN_RECIPE = "SGD with momentum 0.9, crops of 28, horizontal flip, colour jitter"
_ALLOWED = {field.name for field in dataclasses.fields(Row)} - {"origin", "study", "kind"}
_MOST = {"accuracy": 1.0, "utilisation": 1.0, "efficiency_throughput": 2.0, "efficiency_wall": 2.0}
_MAY_BE_ZERO = ("devices", "spread", "utilisation", "communication_seconds_per_5120", "sync_seconds_per_5120")
_DATASETS = ("cifar10", "cifar100", "imagenet")
_COMMENTS = ("title", "authors", "year", "address", "about", "order")


@value
class Study:
    """The content of one file; texts are empty if the file has none."""

    name: str  # name of the file
    rows: tuple[Row, ...]  # in the order of the source
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
    studies = sorted(map(_read, files), key=lambda study: (study.order.zfill(9), study.name))
    for path in paths:
        if path.stem in {study.name for study in studies}:
            raise UserError(f"--study: {path.stem!r} is the name of another study; rename {path}")
        studies.append(_read(path))
    return studies


def _read(path: Path) -> Study:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(file)
        # Spreadsheets add commas to short lines, and quote a line that has some.
        head = list(itertools.takewhile(lambda line: line.startswith(("#", '"#')) or not line.strip(" ,\r\n"), lines))
        comments = dict(map(_comment, filter(lambda line: "#" in line, head)))
        reader = csv.DictReader(lines[len(head) :], strict=True, restval="")
        rows = []
        for cells in reader:
            if not any(cells.values()):
                continue
            try:
                rows.append(_row(path.stem, cells))
            except UserError as error:
                raise UserError(f"row {len(head) + reader.line_num}: {error}") from None
        if not rows:
            raise UserError("it has no rows; it needs a header and a row per result")
    except (OSError, ValueError, UserError, csv.Error) as error:
        raise UserError(f"study: {path}, {error}") from None
    return Study(**comments, name=path.stem, rows=tuple(rows))


def _comment(line: str) -> tuple[str, str]:
    """Return field and text of a line before the header. Raises UserError if it has another form."""
    line = next(csv.reader([line]))[0] if line.startswith('"') else line.rstrip(", \r\n")
    field, _, text = (part.strip() for part in line.lstrip("# ").partition(":"))
    if field not in _COMMENTS:
        raise UserError(f"line {line.strip()!r} is unknown; {suggest(field, _COMMENTS)}")
    return field, text


def _row(study: str, cells: Mapping[str | None, Any]) -> Row:
    """Return the row of a line; raises UserError for a cell that its column cannot have."""
    if any(cells.get(None, ())):
        raise UserError("it has more cells than the header")
    values: dict[str, Any] = {}
    for name, cell in cells.items():
        if not name and not any(cell):  # commas that a spreadsheet has added
            continue
        if name not in _ALLOWED:
            raise UserError(f"unknown column {name!r}; {suggest(name, _ALLOWED)}")
        if cell.strip():
            text = _in_digits(cell.strip()) if name in COUNTS else cell.strip()
            values[name] = checked(name, text, _kind(name))
    spelled = re.sub(r"[\W_]", "", values.get("dataset", "").lower())  # "CIFAR-10" as pages compare it
    if spelled in _DATASETS:
        values["dataset"] = spelled
    devices = values.get("devices")
    kind = "" if devices is None else "gpu" if devices else "cpu"
    return Row(origin=PUBLISHED, study=study, kind=kind, **values)


def _in_digits(cell: str) -> str:
    """Return a whole number such as 2.35E+07 in digits, and any other cell as it is."""
    with contextlib.suppress(ValueError):
        return f"{number:.0f}" if (number := float(cell)).is_integer() else cell
    return cell


def _kind(name: str) -> Any:
    if name not in NUMBERS:
        return Literal["weak", "strong"] if name == "scaling" else str
    lower_bound = Ge(0) if name in _MAY_BE_ZERO else Gt(0)
    return Annotated[int if name in COUNTS else float, lower_bound, Le(_MOST.get(name, LARGEST_NUMBER))]
