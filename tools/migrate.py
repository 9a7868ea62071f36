"""Convert the journals in a folder to the current schema: nested configuration, today's field names and run ids.

    .venv/bin/python -m tools.migrate reference

Each journal.jsonl in the folder and below it is replaced, and the ids in last_run.json. A line that is not convertible,
such as a record of an option that was removed, goes to journal.dropped next to it. To run it again changes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poc.config.kvstores import KVSTORES
from poc.config.optimizers import OPTIMIZERS
from poc.config.run import Run
from poc.records import journal, last_run
from poc.records.record import SCHEMA, Record
from poc.values import UserError, write_atomically

_RUN_FIELDS = {
    "engine": "framework",
    "virtual": "emulated",
    "total_batch": "global_batch",
    "slowed": "straggler",
    "zero_gamma": "zero_init_gamma",
}
_OPTIONS = {"muon_rate": "lr"}
_RECORD_FIELDS = {"engine_choice": "framework_choice", "exchanged": "sync_stats"}
_NAMES = {"gluon": "mxnet", "independent": "none", "stale": "ssp", "one-cycle": "linear"}
_REMOVED_DATA = {"shrink": 0, "shrink_epochs": 0}
_REMOVED_RUN = {"averaged_views": 1}
_REMOVED_RECORD = ("checksum", "predicted", "advice")


def migrate(folder: Path) -> dict[str, str]:
    """Convert all journals in `folder`; return the new ids by old ones."""
    ids: dict[str, str] = {}
    for path in sorted(folder.rglob(journal.FILE)):
        lines, dropped = [], []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                fields = json.loads(line)
                converted = Record.from_json(fields).to_json() if fields["schema"] == SCHEMA else record(fields)
            except (ValueError, LookupError, TypeError, UserError) as error:
                print(f"{path}: dropped {line[:60]}...: {error}")
                dropped.append(f"{line}\n")
                continue
            ids[fields["run_id"]] = converted["run_id"]
            lines.append(json.dumps(converted, sort_keys=True, allow_nan=False) + "\n")
        if dropped:
            with path.with_suffix(".dropped").open("a", encoding="utf-8") as file:
                file.writelines(dropped)
        write_atomically(path, "".join(lines))
    for path in sorted(folder.rglob(last_run.FILE)):
        past = last_run.read(path.parent)
        if past is not None:
            last_run.write(path.parent, dataclasses.replace(past, runs=tuple(ids.get(old, old) for old in past.runs)))
    return ids


def record(old: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a record of schema 1 or 2; raises UserError for one of a removed option."""
    run = Run.from_json(run_fields(old["run"]))
    fields = _renamed(old, _RECORD_FIELDS)
    fields = {name: value for name, value in fields.items() if value is not None and name not in _REMOVED_RECORD}
    fields["workers"] = [_renamed(worker, _RECORD_FIELDS) for worker in fields.get("workers", [])]
    fields.update(run=run.to_json(), run_id=run.id)
    return Record.from_json(fields).to_json()


def run_fields(old: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields of a run: options of optimizer and kvstore were next to the run's own."""
    fields = _renamed(old, _RUN_FIELDS)
    _drop(fields, _REMOVED_RUN)
    fields["data"] = dict(fields["data"])
    _drop(fields["data"], _REMOVED_DATA)
    options = _renamed(fields, _OPTIONS)
    for name in ("framework", "decay"):
        fields[name] = _NAMES.get(fields.get(name, "constant"), fields.get(name, "constant"))
    # One device has nothing to synchronise, whatever early versions recorded.
    kvstore = "device" if fields["devices"] == 1 else _NAMES.get(fields["exchange"], fields["exchange"])
    fields["kvstore"] = {"name": kvstore, **(_options(KVSTORES[kvstore], options) if fields["devices"] > 1 else {})}
    optimizer = fields.get("optimizer", "sgd")
    fields["optimizer"] = {"name": optimizer, **_options(OPTIMIZERS[optimizer], options)}
    known = {declared.name for declared in dataclasses.fields(Run)}
    return {name: value for name, value in fields.items() if name in known}


def _options(kind: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    names = {declared.name for declared in dataclasses.fields(kind)} - {"name"}
    return {name: fields[name] for name in names & fields.keys()}


def _renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}


def _drop(fields: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    for name, default in defaults.items():
        if fields.pop(name, default) != default:
            raise UserError(f"{name} was removed")


def main() -> None:
    """Convert the journals in the folder that the command line names, and say how many ids changed."""
    ids = migrate(Path(sys.argv[1]))
    print(f"{sum(old != new for old, new in ids.items())} of {len(ids)} run ids changed")


if __name__ == "__main__":
    main()
