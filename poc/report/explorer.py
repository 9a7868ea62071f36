"""explorer.html: every row in one file that needs no network, with filters, a chart of any two columns, and each run.

DataTables draws the table and Vega-Lite the charts; their scripts come from the packages that carry them.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import math
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import vl_convert

from poc.records import timing
from poc.records.record import Record
from poc.records.timing import Window
from poc.report.tables import machine_of
from poc.studies.row import COLUMNS, MEASURED, PUBLISHED, Row

SHOWN = (
    *("run_id", "origin", "infrastructure", "network", "framework", "dtype", "total_batch", "devices"),
    *("samples_per_second", "accuracy", "exchange", "outcome"),
)
"""Columns that the table starts with, in this order; the others follow, and can be switched on."""
FILTERS = ("infrastructure", "network", "framework", "dtype", "exchange", "origin", "outcome")
MOST_WINDOWS = 120
"""Points of a run's chart of windows; where there are more windows, neighbours are taken together."""
_TITLES = {"infrastructure": "machine", "framework": "engine"}
_KINDS = {"Count": "number", "Measure": "number", "str": "text", "bool": "flag"}

# What of the charts does not depend on what the reader picks, in Vega-Lite's terms.
_OPAQUE = {"filled": True, "size": 40, "opacity": 1}
_INK, _LINE = "#3e4c59", "#9aa5b1"
_CONFIG = {
    "font": 'system-ui, "DejaVu Sans", sans-serif',
    "view": {"stroke": None},
    "axis": {
        **{"gridColor": "#e8ecf0", "domainColor": _LINE, "tickColor": _LINE, "labelColor": _INK, "titleColor": _INK},
        **{"titleFontWeight": 600, "labelFontSize": 11},
    },
    "legend": {
        **{"labelLimit": 230, "symbolLimit": 40, "titleFontWeight": 600},
        "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
    },
    "range": {"category": {"scheme": "tableau20"}, "ramp": {"scheme": "viridis"}},
}


def _quantity(field: str, title: str, **more: Any) -> dict[str, Any]:
    return {"field": field, "title": title, "type": "quantitative", **more}


def _if_picked(then: Any, otherwise: Any) -> dict[str, Any]:
    return {"condition": {"test": "datum.index === picked", "value": then}, "value": otherwise}


_ROWS_CHART = {
    "height": "container",
    "mark": {"type": "point", "filled": True, "opacity": 0.8, "clip": True},
    "params": [
        {"name": "picked", "value": -1},
        {
            "name": "zoom",
            "bind": "scales",
            # By the mouse with Shift alone: a wheel or a finger scrolls the page.
            "select": {
                "type": "interval",
                "zoom": "wheel![event.shiftKey]",
                "translate": "[mousedown, window:mouseup] > window:mousemove!",
            },
        },
    ],
    "encoding": {
        "shape": {
            "field": "origin",
            "scale": {"domain": [MEASURED, PUBLISHED], "range": ["circle", "triangle-up"]},
        },
        "stroke": _if_picked("#000", "#fff"),
        "strokeWidth": _if_picked(2, 0.5),
        "size": _if_picked(180, 60),
    },
}
_PHASES = ("warm-up", "counted")
_WINDOWS_CHART = {
    "title": "Throughput over its windows",
    "encoding": {
        "x": _quantity("at", "seconds since the run began", scale={"nice": False}),
        "y": _quantity("rate", "samples/s", axis={"tickCount": 5}),
    },
    "layer": [
        {"mark": {"type": "line", "color": "#b8c2cc", "strokeWidth": 1}},
        {
            "mark": {"type": "point", "tooltip": True, **_OPAQUE},
            "encoding": {
                "color": {
                    **{"field": "phase", "title": None, "legend": {"orient": "top"}},
                    "scale": {"domain": _PHASES, "range": ("#e69f00", "#0072b2")},
                }
            },
        },
    ],
}
_ACCURACY_CHART = {
    "title": "Validation accuracy",
    "mark": {"type": "line", "point": {**_OPAQUE, "color": "#009e73"}, "color": "#009e73", "tooltip": True},
    "encoding": {
        "x": _quantity("epoch", "epoch", axis={"labelExpr": "datum.value % 1 ? '' : datum.value"}),
        "y": _quantity("accuracy", "accuracy", scale={"zero": False}, axis={"tickCount": 5}),
    },
}
_PART_COLOURS = ("#999999", "#e69f00", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
_PARTS_CHART = {
    "title": "Where its wall time went",
    "mark": {"type": "bar", "height": 26, "tooltip": True},
    "encoding": {
        "x": _quantity("seconds", "seconds", stack="zero"),
        "order": {"field": "order"},
        "color": {
            **{"field": "part", "title": None, "sort": None, "scale": {"range": _PART_COLOURS}},
            "legend": {"orient": "bottom", "columns": 2},
        },
    },
}
_CHARTS = {
    **{"config": _CONFIG, "rows": _ROWS_CHART},
    "take": {"windows": _WINDOWS_CHART, "accuracy": _ACCURACY_CHART, "parts": _PARTS_CHART},
}
_HOME = Path(__file__).parent


def page(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """The text of explorer.html: all `rows`, and of `records` what a row does not hold.

    A row finds its record by machine, id and start. The same records give the same text.
    """
    filled = [name for name in COLUMNS if any(getattr(row, name) not in (None, "") for row in rows)]
    names = sorted(filled, key=lambda name: SHOWN.index(name) if name in SHOWN else len(SHOWN))
    runs = {_key(record): _course(record) for record in records}
    data = {
        "columns": [_column(name) for name in names],
        "filters": [name for name in FILTERS if name in names],
        "values": {name: [_value(row, name) for row in rows] for name in names},
        "runs": [runs.get(_key(row)) if row.measured else None for row in rows],
        "charts": _CHARTS,
    }
    # Nothing that a user wrote stands in the page's own text: base64 holds no "<".
    text = _HOME.joinpath("explorer.html").read_text(encoding="utf-8")
    text = text.replace("SCRIPT", _HOME.joinpath("explorer.js").read_text(encoding="utf-8"))
    return text.replace("LIBRARIES", _libraries()).replace("DATA", _packed(data))


@functools.cache  # vl_convert takes two seconds to put its scripts together
def _libraries() -> str:
    bundle = metadata.distribution("itables").locate_file("itables/html/dt_bundle.js")
    table, style = (Path(str(bundle)).with_suffix(end).read_text(encoding="utf-8") for end in (".js", ".css"))
    chart = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed")
    return _packed({"table": table, "style": style, "chart": chart})


def _packed(data: dict[str, Any]) -> str:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _key(of: Row | Record) -> tuple[str, str, str]:
    return of.infrastructure, of.run_id, of.started


def _column(name: str) -> dict[str, Any]:
    about = COLUMNS[name].metadata
    title = _TITLES.get(name) or about.get("title") or name.replace("_", " ")
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
    if name == "infrastructure":
        return machine_of(row)
    held = getattr(row, name)
    return _rounded(held) if isinstance(held, float) else held


def _rounded(figure: float) -> float | None:
    return float(f"{figure:.6g}") if math.isfinite(figure) else None


def _course(record: Record) -> dict[str, Any]:
    """What the charts of a take draw: rates in samples/s, times in seconds."""
    windows, dropped, wall = record.windows, timing.warmup(record.windows), record.wall or 0.0
    split = record.split() or {}
    return {
        "windows": [*_rates(windows[:dropped], _PHASES[0]), *_rates(windows[dropped:], _PHASES[1])],
        "accuracy": [{"epoch": one.epoch, "accuracy": _rounded(one.accuracy)} for one in record.evaluations],
        "parts": [
            {
                "order": order,
                "seconds": _rounded(seconds),
                "part": f"{part} {seconds:.1f} s ({seconds / wall:.0%})",
            }
            for order, (part, seconds) in enumerate(split.items())
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
