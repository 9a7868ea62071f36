"""The page of published studies: all that each of them printed, with this machine's settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from poc.published import PRINTED, Study
from poc.records.row import NUMBERS, TITLES, Row
from poc.report import markdown
from poc.report.page import Block, section
from poc.report.results import Results
from poc.report.table import BURST

_IN_OTHER_CELLS = ("parameters", "batch_per_device", "global_batch", "devices", "hosts", "epochs")
_FIGURES = [name for name in PRINTED if name in NUMBERS and name not in _IN_OTHER_CELLS]
_MAX_FIGURES = 5
# Names in the Keras study for kvstores that work alike.
_KVSTORES = {"parameter_server (cpu)": "local", "parameter_server (gpu)": "device", "replicated, nccl (gpu)": "nccl"}


def every(results: Results) -> list[Block]:
    """Return a section for each study."""
    return [block for study in results.studies for block in _study(results, study)]


def _study(results: Results, study: Study) -> list[Block]:
    title, rows = study.title or study.name, study.rows
    facts = (f"[{title}]({study.address})" if study.address else title, study.authors, study.year, study.about)
    configurations = _numbered(map(_configuration, rows))
    remarks = _numbered(row.flag and f"contradiction: {row.flag}" for row in rows)
    remarks.update(_numbered(row.note for row in rows))
    remarks.pop("", None)
    return section(
        title.split(":")[0],
        "\n".join(f"- {fact}" for fact in facts if fact),
        markdown.table([{"rows": numbers, **dict(cells)} for cells, numbers in configurations.items()]),
        "As printed, with the source's own text after the number of the row. This machine: the same model, batch per "
        "device, number of devices and kvstore, in float32.",
        markdown.table(_figures(results, study)),
        "\n".join(f"- {'row' if where.isdigit() else 'rows'} {where}: {text}" for text, where in remarks.items()),
    )


def _configuration(row: Row) -> tuple[tuple[str, str], ...]:
    """Return what ran, as pairs of a column and its cell."""
    counts = {"parameters": row.parameters, "epochs": row.epochs, "hosts": row.hosts}
    parameters, epochs, hosts = (f"{count:,} {name}" if count else "" for name, count in counts.items())
    cells = {
        "machine": (row.hardware, row.machine, hosts),
        "framework": (row.framework,),
        "model": (markdown.model(row.model), parameters),
        "data": (row.dataset, row.input_shape, epochs),
        "layout": (row.layout, row.dtype),
        "kvstore; scaling": (row.kvstore, row.scaling),
    }
    return tuple((title, "; ".join(filter(None, texts))) for title, texts in cells.items())


def _figures(results: Results, study: Study) -> list[dict[str, str]]:
    """Return a line per row: the figures that any row has, the last of them in one cell if there are many."""
    filled = [name for name in _FIGURES if any(getattr(row, name) is not None for row in study.rows)]
    columns = filled if len(filled) <= _MAX_FIGURES else filled[: _MAX_FIGURES - 1]
    rates = _rates(results)
    # In the table, models of the registry have their own names, also in published rows.
    models = results.table[results.table.study == study.name].model
    lines = []
    for number, (row, model) in enumerate(zip(study.rows, models), start=1):
        figures = {name: _figure(getattr(row, name)) for name in filled}
        rest = [f"{TITLES[name]}: {figures[name]}" for name in filled if name not in columns and figures[name]]
        line = {"row": f"{number}. {row.printed}", "batch per device x devices = global batch": _batch(row)}
        line.update({TITLES[name]: figures[name] for name in columns})
        rate = _own_rate(rates, row, model)
        lines.append({**line, "other figures": ", ".join(rest), "this machine: samples/s": rate})
    return lines


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.10g}"


def _batch(row: Row) -> str:
    batch, devices, global_batch = map(_figure, (row.batch_per_device, row.devices, row.global_batch))
    if devices == "0":
        return f"{batch or global_batch} on a CPU"
    if not (batch or devices or global_batch):
        return ""
    return f"{batch or '?'} x {devices or '?'}" + (f" = {global_batch}" if global_batch else "")


def _rates(results: Results) -> dict[tuple[Any, ...], str]:
    """Return the samples/s of this machine by device kind, model, batch per device, devices and kvstore."""
    rows = results.timed
    rows = rows[(rows.machine == results.machine) & (rows.dtype == "float32") & (rows.straggler == 0)]
    rows = rows[(rows.devices > 1) | rows.cores_per_worker.isna()]
    rows = rows.assign(other_length=rows.length != BURST, other_framework=~rows.framework.str.startswith("MXNet"))
    rates: dict[tuple[Any, ...], str] = {}
    for row in markdown.records(rows.sort_values(["other_length", "noisy", "other_framework"], kind="stable")):
        key = (row.kind, row.model, row.batch_per_device, row.devices, row.kvstore)
        rates.setdefault(key, f"{markdown.rate(row)}, {markdown.devices(row)}")
    return rates


def _own_rate(rates: dict[tuple[Any, ...], str], row: Row, model: str) -> str:
    """Return the samples/s of this machine's setting for a published row; empty if there is none."""
    if row.devices is None:
        return ""
    kvstore = _KVSTORES.get(row.kvstore, row.kvstore) if row.devices > 1 else ""
    setting = (model, row.batch_per_device, max(row.devices, 1), kvstore)
    kinds = ("gpu", "cpu") if row.devices else ("cpu",)
    return next(filter(None, (rates.get((kind, *setting)) for kind in kinds)), "")


def _numbered(items: Iterable[Any]) -> dict[Any, str]:
    """Return distinct items with the numbers of their rows: "1–3, 7"."""
    ranges: dict[Any, list[list[int]]] = {}
    for number, item in enumerate(items, start=1):
        of_item = ranges.setdefault(item, [])
        if of_item and of_item[-1][-1] == number - 1:
            of_item[-1] = [of_item[-1][0], number]
        else:
            of_item.append([number])
    return {item: ", ".join("–".join(map(str, ends)) for ends in of_item) for item, of_item in ranges.items()}
