"""Building blocks of a page: sections, figures, tables, and how a value of rows.csv is printed in a cell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple, Union

import matplotlib.figure
import pandas as pd
from tabulate import tabulate

from poc.config import networks
from poc.report import chart
from poc.values import counted

_NUMBER = re.compile(r"(\*\*)?[-+≤$ ]*[\d.,]+[%x]?( [^A-Z].*)?(\*\*)?")
_LONG_NAME = 24


class Figure(NamedTuple):
    """A figure; `name` is that of its file without an ending."""

    name: str
    caption: str
    figure: matplotlib.figure.Figure


Block = Union[str, Figure]


def figure(name: str, caption: str, lines: Sequence[chart.Line], *titles: str, **axes: Any) -> list[Figure]:
    """Return a figure of lines, with the titles and axes of `chart.lines`; nothing if no line has two points."""
    if not any(len(line.points) > 1 for line in lines):
        return []
    hidden = len(lines) - chart.MAX_LINES
    caption += f" {hidden} more: see the table." if hidden > 0 else ""
    return [Figure(file_name(name), caption, chart.lines(lines, *titles, **axes))]


def section(title: str, *blocks: Block | Iterable[Figure]) -> list[Block]:
    """Return texts, tables and figures under a heading; nothing if there is no table or figure among them."""
    flat: list[Block] = []
    for block in blocks:
        flat += [block] if isinstance(block, (str, Figure)) else block
    if not any(isinstance(block, Figure) or block.startswith("|") for block in flat):
        return []
    return [f"## {title}", *(block for block in flat if block)]


def table(lines: Sequence[Mapping[str, str]]) -> str:
    """Return a table whose columns are the keys that any line fills; columns of numbers are aligned to the right."""
    filled = {name for line in lines for name, cell in line.items() if cell}
    names = [name for name in dict.fromkeys(name for line in lines for name in line) if name in filled]
    if not names:
        return ""
    texts = [dict(zip(names, names)), *lines]
    head, *body = [[re.sub(r"\s+", " ", line.get(name, "")).replace("|", "\\|") for name in names] for line in texts]
    numeric = [all(_NUMBER.fullmatch(row[index]) or not row[index] for row in body) for index in range(len(names))]
    aligned = ["right" if is_number else "left" for is_number in numeric]
    text = tabulate(body, headers=head, tablefmt="pipe", disable_numparse=True, colalign=aligned)
    # Without padding, since a long cell would make all lines of its table long.
    return re.sub(r" {2,}", " ", re.sub(r"-{4,}", "---", text))


def escape(text: str) -> str:
    """Escape a text, so that a page shows it as it is: an error message with <class 'float'> or __init__()."""
    return re.sub(r"([\\`*_<\[])", r"\\\1", text)


def number(value: float, digits: int = 3) -> str:
    """Return `digits` significant digits with thousands separated; empty if the value is unknown."""
    if pd.isna(value):
        return ""
    if value and abs(value) < 10 ** (digits - 1):
        return f"{value:.{digits}g}" if abs(value) >= 1e-3 else f"{value:.1e}"
    return f"{value:,.0f}"


def formatted(value: float, form: str) -> str:
    """Return the value in a format such as ".3f"; empty if unknown."""
    return "" if pd.isna(value) else f"{value:{form}}"


def count(value: float) -> str:
    """Return a whole number with thousands separated; empty if unknown."""
    return formatted(value, ",.0f")


def dollars(value: float) -> str:
    """Return an amount with cents, or two significant digits below one cent; empty if unknown."""
    if pd.isna(value):
        return ""
    return f"${value:,.2f}" if value >= 0.01 else f"${value:.2g}"


def duration(seconds: float) -> str:
    """Return seconds, minutes or hours, whichever is readable; empty if unknown."""
    if pd.isna(seconds):
        return ""
    if seconds < 120:
        return f"{number(seconds, 2)} s"
    value, unit = (seconds / 60, "min") if seconds < 7200 else (seconds / 3600, "h")
    return f"{value:,.0f} {unit}" if value >= 9.95 else f"{value:.1f} {unit}"


def rate(row: Any) -> str:
    """Return samples/s of a setting with range and number of repeats, and remarks on their quality."""
    if pd.isna(row.samples_per_second):
        return "too few steps to time" if row.outcome == "completed" else ""
    remarks = {
        f"{number(row.rate_low)}–{number(row.rate_high)}": row.n > 1,
        f"n={row.n:.0f}": row.n > 0 and row.origin == "measured",
        **{"noisy": row.noisy, "waits for data": row.data_wait > 0.05, "quick": row.quick},
    }
    listed = ", ".join(remark for remark, applies in remarks.items() if applies)
    return number(row.samples_per_second) + (f" ({listed})" if listed else "")


def accuracy(row: Any) -> str:
    """Return the accuracy of a setting, with the number of seeds if it was measured; empty on synthetic images."""
    known = pd.notna(row.accuracy) and row.dataset != "synthetic"
    return f"{row.accuracy:.3f}{seeds(row, row.seeds)}" if known else ""


def seeds(row: Any, number: float) -> str:
    """Return the number of seeds behind a number of a measured setting; empty for a published one."""
    diverged = f", {row.diverged:.0f} diverged" if getattr(row, "diverged", 0) > 0 else ""
    return f" (n={number:.0f}{diverged})" if row.origin == "measured" and number > 0 else ""


def lr(row: Any) -> str:
    """Return the learning rate, with its schedule if that is not constant."""
    return formatted(row.lr, "g") + (f", {row.schedule}" if row.schedule and pd.notna(row.lr) else "")


def lr_in_words(row: Any) -> str:
    """Return the learning rate for a sentence: "0.4 with warm-up 1 epoch, decay linear"."""
    return lr(row).replace(", ", " with ", 1)


def file_name(name: str) -> str:
    """Return a name of a page or a figure that may have a model of the user's in it."""
    return re.sub(r"[^\w.-]+", "-", name)


def batch(row: Any) -> str:
    """Return the batch per device, and how many of them each device accumulates per step: "32, accumulate 4"."""
    micro_batches = row.global_batch / (row.batch_per_device * row.devices) if row.origin == "measured" else 1
    return count(row.batch_per_device) + (f", accumulate {micro_batches:.0f}" if micro_batches > 1 else "")


def model(name: str) -> str:
    return networks.NETWORKS[name].label if name in networks.NETWORKS else name


def devices(row: Any) -> str:
    """Return how many replicas trained and on what: "8 GPUs", "CPU, 2 cores", "2 workers x 1 core", "8 emulated"."""
    if pd.isna(row.devices):
        return ""
    if row.emulated:
        return f"{row.devices:.0f} emulated"
    if row.origin == "published" and row.devices == 0:
        return "CPU"
    if row.kind != "cpu":
        return counted(row.devices, "GPU")
    if row.devices > 1:
        if row.workers != row.devices:
            return f"{row.devices:.0f} CPU contexts"
        return f"{row.devices:.0f} workers x {counted(row.cores_per_worker, 'core')}"
    if row.fewer_threads > 0:
        return f"CPU, {row.fewer_threads:.0f} of {row.cores:.0f} cores"
    return f"CPU, {counted(row.cores_per_worker if row.cores_per_worker > 0 else row.cores, 'core')}"


def processors(rows: pd.DataFrame) -> pd.Series[str]:
    """Return CPU and number of cores of each row: "AMD EPYC, 2 cores"."""
    return rows.cpu + ", " + rows.cores.map(lambda cores: counted(cores, "core"))


def devices_and_kvstore(row: Any) -> str:
    """Return the devices, and how gradients are synchronised if that is not the usual way."""
    return ", ".join([devices(row), *{row.kvstore} - {"", "device"}])


def link(text: str, address: str) -> str:
    return f"[{text}]({address})" if address else text


def machine(row: Any) -> str:
    """Return a machine's name; of a published one its hardware."""
    return str(row.machine if row.origin == "measured" else row.hardware or row.machine)


def short_machine(row: Any) -> str:
    """Return a machine's name for a figure, of a published one without the part in brackets."""
    if row.origin == "measured":
        return str(row.machine)
    name = machine(row).split(" (")[0]
    return name if len(name) <= _LONG_NAME else name.split(",")[0]


def short_framework(row: Any) -> str:
    """Return the framework, with the precision if that is not float32."""
    return ", ".join([str(row.framework), *{row.dtype} - {"", "float32"}, *filter(None, [row.options])])


def images(row: Any) -> str:
    """Return the name of images other than those of published studies, else ""."""
    return "" if row.dataset in STUDIED else row.dataset


def differences(rows: Iterable[Any]) -> Callable[[Any], str]:
    """Return a function that names framework and images of a measured row, as far as those of the `rows` differ."""
    measured = [row for row in rows if row.origin == "measured"]
    shows = [show for show in (short_framework, lambda row: row.dataset) if len({*map(show, measured)}) > 1]
    return lambda row: "".join(f", {show(row)}" for show in shows if row.origin == "measured")


def _model(row: Any) -> str:
    return ", ".join(filter(None, [model(row.model), "fixed batch" if row.fixed else images(row)]))


def model_and_framework(row: Any) -> str:
    return ", ".join(filter(None, [_model(row), short_framework(row)]))


STUDIED = ("cifar10", "imagenet")  # first words of the data sets of published studies
RATE = "samples/s (min–max, n)"
Show = Union[str, Callable[[Any], str]]  # a column of rows.csv, or a function of a row that returns the text of a cell
Column = Union[str, tuple[str, Show]]  # the title of a usual column, or a title and what its cells show
_COLUMNS: dict[str, Show] = {
    "machine": "machine_cell",
    "model": _model,
    "model, framework": model_and_framework,
    "devices": devices,
    "devices, kvstore": devices_and_kvstore,
    "batch per device": batch,
    "global batch": "global_batch",
    "lr": lr,
    "training recipe": "recipe_cell",
    "accuracy": accuracy,
    RATE: rate,
}


def records(rows: pd.DataFrame) -> list[Any]:
    """Return rows with an attribute per column; with over a hundred of them `itertuples` and `to_dict` are slow."""
    cells = zip(*(column.tolist() for _, column in rows.items()))
    return [SimpleNamespace(**dict(zip(rows.columns, row))) for row in cells]


def lines(rows: pd.DataFrame | Iterable[Any], *columns: Column) -> list[dict[str, str]]:
    """Return the cells of each row by the titles of the columns."""
    pairs = [(column, _COLUMNS.get(column, column)) if isinstance(column, str) else column for column in columns]
    listed = records(rows) if isinstance(rows, pd.DataFrame) else rows
    return [{title: _cell(row, show) for title, show in pairs} for row in listed]


def _cell(row: Any, show: Show) -> str:
    if callable(show):
        return show(row)
    value = getattr(row, show)
    return value if isinstance(value, str) else number(value)


def listing(title: str, about: str, rows: pd.DataFrame, *columns: Column) -> list[Block]:
    """Return a section with a text and the table of `rows`; nothing if there are none."""
    return section(title, about, table(lines(rows, *columns)))
