"""Cells of Markdown tables: figures, names and notes as results.md shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from poc.recipe import networks
from poc.records.record import Record
from poc.report import compare
from poc.run import Run
from poc.studies.row import COLUMNS, Row

Cells = dict[str, str]

MAIN_NETWORKS = ("cifar_resnet50_v2", "cifar_resnet110_v2")


def markdown(cells: Sequence[Cells], keep: Sequence[str] = ()) -> str:
    """A table of the columns that any row fills, and of those in `keep`; figures to the right."""
    if not cells:
        return ""
    names = [name for name in cells[0] if name in keep or any(row[name] for row in cells)]
    body = [[re.sub(r"\s+", " ", row[name]).replace("|", "\\|") for name in names] for row in cells]
    number = re.compile(r"([-+(]?[\d.,]+%?\)?( .*)?)?")
    figures = [all(number.fullmatch(row[index]) for row in body) for index in range(len(names))]
    aligned = ["right" if figure else "left" for figure in figures]
    text = tabulate(body, headers=names, tablefmt="pipe", disable_numparse=True, colalign=aligned)
    # Columns padded to their longest note would make lines of a thousand blanks.
    return re.sub(r" {2,}", " ", re.sub(r"-{4,}", "---", text))


def aligned(cells: Sequence[Cells]) -> list[Cells]:
    """Rows with the same columns, in the order of the longest row; what a row lacks is empty."""
    longest_first = sorted(cells, key=lambda row: -len(row))
    names = list(dict.fromkeys(name for row in longest_first for name in row))
    return [{name: row.get(name, "") for name in names} for row in cells]


def columns(row: Row, names: str) -> Cells:
    """The cells of these columns of `row`, their names parted by blanks, under their titles."""
    return {COLUMNS[name].metadata["title"]: cell(row, name) for name in names.split()}


def cell(row: Row, name: str) -> str:
    """A published figure as it was printed, a measured one to the decimals of its column."""
    held = getattr(row, name)
    if held is None or isinstance(held, str):
        return held or ""
    digits = COLUMNS[name].metadata["digits"]
    return plain(held) if not row.measured or digits is None else f"{held:.{digits}f}"


def throughput_of(row: Row) -> str:
    """Samples/s; in brackets where virtual devices made it."""
    figure = cell(row, "samples_per_second")
    return f"({figure}) not comparable" if row.virtual else figure


def accuracy_of(row: Row, name: str) -> str:
    value = getattr(row, name)
    if value is None:
        return ""
    return f"{value:.4f}" if row.measured else f"{value:.3f}"


def plain(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def ratio_cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def five_digits(value: float | None) -> str:
    """As many digits as any of the sources prints of a ratio."""
    return "" if value is None else f"{value:.5g}"


def shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def right(sums: bool | None) -> str:
    return "" if sums is None else "yes" if sums else "NO"


def network_label(name: str) -> str:
    return networks.NETWORKS[name].label if name in networks.NETWORKS else name


def network_of(row: Row) -> str:
    return network_label(row.network)


def machine_of(row: Row) -> str:
    named, hardware = row.infrastructure, row.hardware
    return named if not hardware or hardware in named else f"{named} ({hardware})"


def infrastructure_of(row: Row) -> str:
    """A source's own name for a machine and what it is; a measured one's name."""
    if row.measured:
        return machine_of(row)
    return ": ".join(filter(None, [row.infrastructure, row.hardware]))


def joined(*words: str) -> str:
    """Those that are not empty."""
    return ", ".join(filter(None, words))


def place_of(row: Row) -> str:
    """The machine, and the cores of a worker where these are bound."""
    return joined(infrastructure_of(row), cores_of(row))


def cores_of(row: Row) -> str:
    cores = row.cores_per_worker
    return f"{cores:.0f} core{'s' * (cores > 1)} a worker" if cores else ""


def kind_of_device(row: Row) -> str:
    if (row.workers or 1) > 1:
        return "worker" if row.workers == row.devices else "device"
    return "GPU" if row.kind == "gpu" else "CPU device"


def gpus_of(row: Row) -> str:
    """As the source counts: GPUs in use, 0 for a CPU; with what played several replicas in brackets."""
    if row.devices is None:
        return ""
    if not row.measured:
        return str(row.devices)
    words = "virtual" if row.virtual else "workers" if (row.workers or 1) > 1 else "CPU devices"
    if row.virtual:
        return f"{int(row.kind == 'gpu')} ({row.devices} {words})"
    if row.kind == "gpu":
        return str(row.devices)
    return "0" if row.devices == 1 else f"0 ({row.devices} {words})"


def batch_size_of(row: Row) -> str:
    """In the source's own style: "128x4=512 (lr=0.2)"."""
    if not row.measured:
        return str(row.printed).split(" | ")[0]
    size = str(row.batch_per_device)
    if row.devices > 1:
        size += f"x{row.devices}={row.total_batch}"
    elif row.kind == "gpu":
        size += "x1"
    return f"{size} (lr={row.learning_rate:g})"


def run_label(run: Run) -> str:
    """What tells a run from others of its machine, in words."""
    size = str(run.batch_per_device) + (f"x{run.devices}={run.total_batch}" if run.devices > 1 else "")
    words = [network_label(run.model), f"{size} (lr={run.learning_rate:g})"]
    words += [run.exchange_label] * run.exchanges + [run.dtype] * (run.dtype != "float32")
    words += ["virtual"] * run.virtual + ["quick"] * run.quick + [f"seed {run.seed}"] * (run.seed > 0)
    return ", ".join(words)


def run_cells(row: Row) -> Cells:
    return {"run": run_label(row.run), "id": row.run_id, "infrastructure": infrastructure_of(row), "data": row.dataset}


def record_cells(record: Record) -> Cells:
    return {"run": run_label(record.run), "id": record.run_id, "infrastructure": record.infrastructure}


PART_LABELS = {
    "initialise": "initialise",
    "warmup": "warm-up",
    "train": "train",
    "data": "wait for data",
    "evaluate": "evaluate",
    "checkpoint": "checkpoint",
    "rest": "rest",
}


def judged(difference: compare.Difference, form: str) -> str:
    if difference.margin is None:
        return f"{difference.value:{form}} (n = 1: cannot be judged)"
    margin = f"{difference.margin:{form.lstrip('+')}}"
    verdict = "within the noise" if difference.within_noise else "more than noise"
    return f"{difference.value:{form}} ± {margin}: {verdict}"


def windows_estimate(row: Row, factor: float = 1.0) -> compare.Estimate:
    return compare.Estimate(
        mean=row.samples_per_second * factor, spread=(row.spread or 0.0) * factor, n=row.windows or 1
    )


def footnote(row: Row, notes: list[str]) -> str:
    text = f"{infrastructure_of(row)}, {row.printed.split(' | ')[0]}: {row.flag}."
    if text not in notes:
        notes.append(text)
    return f"({notes.index(text) + 1})"


def footnotes(notes: Sequence[str]) -> list[str]:
    if not notes:
        return []
    listed = "\n".join(f"- ({number}) {text}" for number, text in enumerate(notes, start=1))
    return ["Rows whose own printed figures disagree, as found by recomputing them:\n\n" + listed]


def noted(row: Row, notes: list[str]) -> str:
    flag = f"contradicts itself {footnote(row, notes)}" if row.flag else ""
    # The flag says it computed; the source's own words for it would say it twice.
    words = [word for word in row.note.split("; ") if not (flag and word.startswith("contradicts itself"))]
    return "; ".join(filter(None, [flag, *words]))


def likeness(row: Row) -> tuple[Any, ...]:
    """Like beside like: network, total batch, batch per device, learning rate, devices, machine; unknown last."""
    names = ("total_batch", "batch_per_device", "learning_rate", "devices")
    figures = [math.inf if getattr(row, name) is None else getattr(row, name) for name in names]
    return (*network_order(row), *figures, row.measured, infrastructure_of(row), *tie(row))


def tie(row: Row) -> tuple[Any, ...]:
    return (row.virtual, row.quick, row.seed or 0, row.started, row.run_id, row.printed)


def network_order(row: Row) -> tuple[int, str]:
    name = row.network
    return (MAIN_NETWORKS.index(name) if name in MAIN_NETWORKS else len(MAIN_NETWORKS), name)
