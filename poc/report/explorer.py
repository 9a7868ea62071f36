"""explorer.html: every row in one file that needs no network, with filters, a chart of any two columns, and each run.

DataTables draws the table and Vega-Lite the charts; their scripts come from the packages that carry them. What of the
charts does not depend on what the reader picks stands in explorer.json, in Vega-Lite's own terms. They are zoomed with
Shift and the mouse alone: a wheel or a finger scrolls the page.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import math
import os
import tempfile
import zlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import vl_convert

from poc.records import timing
from poc.records.record import Record
from poc.records.timing import Window
from poc.report.tables import machine_of
from poc.studies.row import COLUMNS, Row

SHOWN = (
    *("run_id", "origin", "machine", "model", "framework", "dtype", "global_batch", "devices"),
    *("samples_per_second", "accuracy", "kvstore", "outcome"),
)
"""Columns that the table starts with, in this order; the others follow, and can be switched on."""
FILTERS = ("machine", "model", "framework", "dtype", "kvstore", "origin", "outcome")
MOST_WINDOWS = 120
"""Points of a run's chart of windows; where there are more windows, neighbours are taken together."""
_KINDS = {"Count": "number", "Measure": "number", "str": "text", "bool": "flag"}


def page(rows: Sequence[Row], records: Sequence[Record], cache: Path | None = None) -> str:
    """The text of explorer.html: all `rows`, and of `records` what a row does not hold.

    A row finds its record by machine, id and start. The same records give the same text. The scripts of others in it
    are kept in the folder `cache`, where one is given.
    """
    filled = [name for name in COLUMNS if any(getattr(row, name) not in (None, "") for row in rows)]
    names = sorted(filled, key=lambda name: SHOWN.index(name) if name in SHOWN else len(SHOWN))
    runs = {_key(record): _course(record) for record in records}
    data = {
        "columns": [_column(name) for name in names],
        "filters": [name for name in FILTERS if name in names],
        "values": {name: [_value(row, name) for row in rows] for name in names},
        "runs": [runs.get(_key(row)) if row.measured else None for row in rows],
        "charts": json.loads(_own("json")),
    }
    # Nothing that a user wrote stands in the page's own text: base64 holds no "<".
    text = _own("html").replace("SCRIPT", _own("js"))
    return text.replace("DATA", _packed(data)).replace("LIBRARIES", _libraries(cache))


def _own(ending: str) -> str:
    return Path(__file__).with_suffix(f".{ending}").read_text(encoding="utf-8")


@functools.cache  # vl_convert takes two seconds to put its scripts together
def _libraries(cache: Path | None) -> str:
    versions = "-".join(metadata.version(name) for name in ("itables", "vl-convert-python"))
    kept = cache / f"explorer-{versions}.txt" if cache else None
    with contextlib.suppress(OSError):
        if kept:
            return kept.read_text(encoding="ascii")
    bundle = metadata.distribution("itables").locate_file("itables/html/dt_bundle.js")
    table, style = (Path(str(bundle)).with_suffix(end).read_text(encoding="utf-8") for end in (".js", ".css"))
    chart = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed")
    packed = _packed({"table": table, "style": style, "chart": chart})
    if kept:
        with contextlib.suppress(OSError):  # without room for it the next page takes as long
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=kept.parent, encoding="ascii") as file:
                file.write(packed)
                file.flush()
                os.link(file.name, kept)  # whole, or not at all
    return packed


def _packed(data: dict[str, Any]) -> str:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # As gzip.compress does from Python 3.11 on; before, it wrote another header.
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return base64.b64encode(packer.compress(text.encode()) + packer.flush()).decode()


def _key(of: Row | Record) -> tuple[str, str, str]:
    return of.machine if isinstance(of, Row) else of.infrastructure, of.run_id, of.started


def _column(name: str) -> dict[str, Any]:
    about = COLUMNS[name].metadata
    title = about.get("title") or name.replace("_", " ")
    unit = about.get("unit", "")
    return {
        "name": name,
        "title": title if not unit or unit in title or "seconds" in title else f"{title} ({unit})",
        "about": about["about"],
        "digits": about.get("digits"),
        "kind": _KINDS[str(COLUMNS[name].type)],
        "shown": name in SHOWN,
    }


def _value(row: Row, name: str) -> Any:
    if name == "machine":
        return machine_of(row)
    held = getattr(row, name)
    return _rounded(held) if isinstance(held, float) else held


def _rounded(figure: float) -> float | None:
    return float(f"{figure:.6g}") if math.isfinite(figure) else None


def _course(record: Record) -> dict[str, Any]:
    """What the charts of a take draw: rates in samples/s, times in seconds."""
    windows = () if record.speed_withdrawn else record.windows
    dropped, wall = timing.warmup(windows), record.wall or 0.0
    return {
        "windows": [*_rates(windows[:dropped], "warm-up"), *_rates(windows[dropped:], "counted")],
        "accuracy": [{"epoch": one.epoch, "accuracy": _rounded(one.accuracy)} for one in record.evaluations],
        "parts": [
            {"order": order, "seconds": _rounded(seconds), "part": f"{part} {seconds:.1f} s ({seconds / wall:.0%})"}
            for order, (part, seconds) in enumerate((record.split() or {}).items())
        ],
    }


def _rates(windows: Sequence[Window], phase: str) -> list[dict[str, Any]]:
    """Where each window ends and its rate; of neighbours taken together, their samples over their seconds."""
    together = -(-len(windows) // MOST_WINDOWS) or 1
    groups = [windows[first : first + together] for first in range(0, len(windows), together)]
    return [
        {
            "at": _rounded(group[-1].start + group[-1].seconds),
            "rate": _rounded(sum(window.samples for window in group) / sum(window.seconds for window in group)),
            "phase": phase,
        }
        for group in groups
    ]
