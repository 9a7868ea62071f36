"""Tables as GitHub shows them: one function, and the columns that measurements have in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Callable

from tabulate import tabulate

from poc.recipe import networks
from poc.report.measurements import Known, Measurement
from poc.studies.row import Row

RATE = "samples/s (range, takes)"
TOO_SHORT = "too short to time"
SPEED_WITHDRAWN = "withdrawn"
"""In place of the samples/s of a run without a window, of images at their full size, after warm-up."""
_LONG_NAME = 24
# A figure, with a range, a number or a short unit behind it.
_NUMBER = re.compile(r"(\*\*)?((≤ )?[-+(]?[$]?[\d.,]+%?\)?[*†]*(, .*| [^a-z].*| [a-zA-Z]{1,3}\b.*)?)?(\*\*)?")


def markdown(lines: Sequence[Mapping[str, str]]) -> str:
    """A table whose columns are the keys of its lines, those that any of them fills; figures stand to the right."""
    names = list(dict.fromkeys(name for line in lines for name in line if any(other.get(name) for other in lines)))
    if not names:
        return ""
    body = [[re.sub(r"\s+", " ", line.get(name, "")).replace("|", "\\|") for name in names] for line in lines]
    figures = [all(_NUMBER.fullmatch(row[index]) for row in body) for index in range(len(names))]
    aligned = ["right" if figure else "left" for figure in figures]
    text = tabulate(body, headers=names, tablefmt="pipe", disable_numparse=True, colalign=aligned)
    # Columns padded to their longest cell would make long lines of blanks.
    return re.sub(r" {2,}", " ", re.sub(r"-{4,}", "---", text))


def network_label(name: str) -> str:
    """A network's name in tables and figures."""
    return networks.NETWORKS[name].label if name in networks.NETWORKS else name


def network_of(row: Row) -> str:
    """The network of the registry that a row means, by its own name or as a study calls it; else the study's word."""
    small = str(row.dataset).startswith("cifar")
    known = networks.NETWORKS.values()
    called = (one.name for one in known if one.study_name == row.model and (one.classes == 10) == small)
    return row.model if row.model in networks.NETWORKS or not row.model else next(called, row.model)


def machine_of(row: Row) -> str:
    """What its user calls a machine; what a study's machine is, which tells more than the study's name for it."""
    return row.machine if row.measured else row.hardware or row.machine


def short_machine(row: Row) -> str:
    """A machine's name for a figure: without what stands in brackets, or after the first comma of a long one."""
    name = machine_of(row).split(" (")[0]
    return name if len(name) <= _LONG_NAME else name.split(",")[0]


def devices_of(row: Row) -> str:
    """How many replicas trained, and what they were: 8 GPUs, 2 workers, a CPU, with as many cores as the run had."""
    if row.devices is None:
        return ""
    if row.kind == "cpu" and row.devices <= 1:
        if row.fewer_threads:
            return f"CPU, {row.fewer_threads} of {row.cores} cores"
        cores = row.cores_per_worker or row.cores
        return f"CPU, {cores} core{'s' * (cores > 1)}" if cores else "CPU"
    alone = row.workers == row.devices > 1  # a process for each
    name = "emulated" if row.emulated else "GPU" if row.kind == "gpu" else "worker" if alone else "CPU device"
    return f"{row.devices} {name}" + "s" * (row.devices > 1 and not row.emulated)


def is_copy(row: Row) -> bool:
    """Whether its accuracy was measured on copies of the images, compressed with loss."""
    return row.measured and row.accuracy is not None and row.dataset.endswith("(jpeg)")


def exchange_of(row: Row) -> str:
    """How its gradients travelled, and whether a worker was slowed."""
    return row.kvstore.replace("last worker slowed by", "one slowed")


def network_and_data(row: Row) -> str:
    """The network of a measured row, and whether it trained on synthetic data, one fixed batch or a few steps."""
    name = network_label(row.model) + ", synthetic data" * (row.dataset == "synthetic")
    return name + ", fixed batch" * row.fixed + ", quick" * row.quick


def devices_and_exchange(row: Row) -> str:
    """How many replicas of a measured row trained, and how their gradients travelled."""
    return ", ".join(filter(None, [devices_of(row), exchange_of(row) if row.run.synchronises else ""]))


def counted(number: int | None) -> str:
    """A whole number, thousands parted; empty where unknown."""
    return "" if number is None else f"{number:,}"


def rounded(figure: float | None, digits: int = 3) -> str:
    """So many significant digits, thousands parted; empty where unknown."""
    if figure is None:
        return ""
    if figure != 0 and abs(figure) < 10 ** (digits - 1):
        return f"{figure:.{digits}g}" if abs(figure) >= 1e-3 else f"{figure:.1e}"
    return f"{figure:,.0f}"


def interval(middle: float, low: float, high: float) -> str:
    """What was predicted, and in which interval it may lie."""
    return f"{rounded(middle)} ({rounded(low)}-{rounded(high)})"


def ranged(figures: Known) -> str:
    """The median, and where there are several takes their range and number."""
    if figures is None:
        return ""
    median, low, high = map(rounded, (figures.median, figures.low, figures.high))
    return median if figures.n == 1 else f"{median} ({low}-{high}, n={figures.n})"


def rate_of(measurement: Measurement) -> str:
    """Samples/s with range and number of takes, and what is to be said against them."""
    if measurement.rate:
        return ranged(measurement.rate) + measurement.signs
    return SPEED_WITHDRAWN if measurement.row.speed_withdrawn else TOO_SHORT


def accuracy_of(figures: Known) -> str:
    """The middle accuracy, and of several runs their number; to as many digits as studies print."""
    if figures is None:
        return ""
    return f"{figures.median:.3f}" + (f" (n={figures.n})" if figures.n > 1 else "")


COLUMNS: Mapping[str, Callable[[Measurement], str]] = {
    "network": lambda taken: network_label(taken.row.model),
    "epochs": lambda taken: counted(taken.row.epochs),
    "devices": lambda taken: devices_of(taken.row),
    "batch a device": lambda taken: counted(taken.row.batch_per_device),
    "total batch": lambda taken: counted(taken.row.global_batch),
    "precision": lambda taken: taken.row.dtype,
    "engine": lambda taken: taken.row.framework,
    RATE: rate_of,
}
"""Columns by their titles, and what a measurement has in them."""


def cells(taken: Measurement, *titles: str) -> dict[str, str]:
    """What a measurement has in these of `COLUMNS`."""
    return {title: COLUMNS[title](taken) for title in titles}
