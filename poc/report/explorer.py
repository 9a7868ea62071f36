"""explorer.html: every row of the table with filters and charts, in one file that opens from disk without a network.

itables (DataTables) draws the table and Vega-Lite the charts in explorer.json; their scripts come from the packages
that carry them. The reader picks what a chart shows by Vega-Lite's bound parameters, and filters its rows in the table.
"""

import contextlib
import functools
import json
import math
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd
import vl_convert
from itables import javascript, options
from itables.typing import JavascriptFunction

from poc.records.record import COMPLETED
from poc.records.row import COLUMNS, MEASURED
from poc.report import markdown
from poc.values import write_atomically

FIRST = (
    *("run_id", "origin", "machine", "model", "framework", "dtype", "global_batch", "devices"),
    *("samples_per_second", "accuracy", "kvstore", "outcome"),
)
"""Columns that the table starts with, in this order; the hidden follow, and can be switched on."""
AXES = (
    *("global_batch", "batch_per_device", "devices", "lr", "samples_per_second", "seconds_per_epoch", "accuracy"),
    *("wall_seconds", "speedup_throughput", "efficiency_throughput", "mfu", "dollars_per_run", "noise_scale"),
)
COLOURS = (
    *("machine", "model", "framework", "dtype", "kvstore", "devices", "global_batch", "lr", "origin", "recipe"),
    "accuracy_on",
)
_CURVE = ("accuracy_by_epoch", "seconds_by_epoch")
_CHOICES: dict[str, Any] = {"AXES": AXES, "COLOURS": COLOURS, "TOOLTIP": [{"field": name} for name in FIRST]}
"""Lists that the charts in explorer.json refer to by name."""
_PAGE = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
_CHARTS = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
_ON_DRAW = "function () { showRows(this.api().rows({search: 'applied'}).indexes().toArray()); }"
_KNOWN_NUMBER = "function (value) { return Number.isNaN(value) ? '' : value; }"


def page(table: pd.DataFrame, cache: Path | None) -> str:
    """Return the text of explorer.html; Vega-Lite's script, which takes seconds to assemble, is kept in `cache`."""
    digits = {name: table[name].map("{:.6g}".format).astype(float) for name in table if COLUMNS[name] == "Measure"}
    machines = [markdown.machine(row) for row in markdown.records(table)]
    table = table.assign(machine=machines, **digits).reset_index(drop=True)
    speeds = ["samples_per_second", "seconds_per_epoch", "wall_seconds"]
    table.loc[table.emulated, [*speeds, "seconds_by_epoch"]] = [*(math.nan for _ in speeds), ""]  # not of real devices
    parts = {"vega": _vega(cache), "table": _rows(table), "data": _data(table)}
    return _PAGE.substitute(parts, all=len(table), measured=(table.origin == MEASURED).sum())


def _rows(table: pd.DataFrame) -> str:
    """Return the table and the scripts that draw it; in its heads texts are picked from lists and numbers compared."""
    hidden = [name for name in table if name not in FIRST and (table[name].notna() & (table[name] != "")).any()]
    table = table[[*FIRST, *hidden]]
    numbers = [index for index, dtype in enumerate(table.dtypes) if dtype.kind == "f"]
    filters = {"extend": "dropdown", "icon": "search"}
    settings: dict[str, Any] = {
        **{"table_id": "rows", "connected": False, "showIndex": False, "text_in_header_can_be_selected": False},
        **{"maxBytes": 0, "maxColumns": 0, "pageLength": 25, "drawCallback": JavascriptFunction(_ON_DRAW)},
        "layout": {"topStart": "buttons", "bottomStart": ["pageLength", "info"]},
        "buttons": [{"extend": "colvis", "text": "Columns", "collectionLayout": "fixed columns"}, "csv"],
        "columnControl": [{**filters, "content": ["searchList"]}],
        "columnDefs": [
            {"targets": list(range(len(FIRST), table.shape[1])), "visible": False},
            {"targets": numbers, "columnControl": [{**filters, "content": ["searchNumber"]}]},
            {"targets": numbers, "render": JavascriptFunction(_KNOWN_NUMBER), "type": "num"},
        ],
    }
    scripts = javascript.generate_init_offline_itables_html(options.dt_bundle)
    return scripts + javascript.to_html_datatable(table, **settings)


@functools.cache
def _vega(cache: Path | None) -> str:
    if cache is None:
        return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed"))
    file = cache / f"vega-{metadata.version('vl-convert-python')}.js"
    with contextlib.suppress(OSError):  # A folder that cannot be written only makes the next page as slow.
        if not file.exists():
            write_atomically(file, _vega(None))
        return file.read_text(encoding="utf-8")
    return _vega(None)


def _data(table: pd.DataFrame) -> str:
    """Return the charts and the rows that they draw, as JSON that no text in it can break out of."""
    drawn = table[table.outcome.isin([COMPLETED, ""])]
    names = dict.fromkeys([*FIRST, *AXES, *COLOURS, *_CURVE])
    rows = [
        {name: value for name, value in row.items() if value != "" and pd.notna(value)}
        for row in drawn.assign(row=drawn.index)[["row", *names]].to_dict("records")
    ]
    charts = json.loads(
        _CHARTS, object_hook=lambda part: {key: _CHOICES.get(str(part[key]), part[key]) for key in part}
    )
    data = {"charts": charts, "rows": rows}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
