"""Export of records to TensorBoard and MLflow: a run there per record.

A run's name identifies its record, and a run of that name is left as it is: exporting again adds new records only. The
step of a value is the number of samples trained until then, so that runs with different batches share an axis.
"""

import json
import math
import os
import re
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from poc.records import journal
from poc.records.record import DONE, SKIPPED, Record
from poc.values import UserError, counted


def export(records: Iterable[Record], tracker: str, target: str) -> str:
    """Add `records` to one of `TRACKERS`; return a line about what was added.

    `target` is TensorBoard's log folder, or MLflow's tracking URI. Raises UserError if a package is missing or refuses.
    """
    runs = {_name(record): record for record in records if record.outcome != SKIPPED}
    try:
        added = sum(TRACKERS[tracker](name, record, target) for name, record in runs.items())
    except ImportError as error:
        package = "mlflow-skinny" if error.name == "mlflow" else error.name
        raise UserError(f"export: {error.name} is not installed: {sys.executable} -m pip install {package}") from None
    return f"{target}: {counted(added, 'run')} added, {len(runs) - added} were there already"


def _name(record: Record) -> str:
    """Return MACHINE/MODEL DEVICESxBATCH KIND LR ID START, which is a path; repeats of a run differ in START (UTC)."""
    run = record.run
    setting = f"{run.model[-60:]} {run.devices}x{run.batch_per_device} {run.kind} lr{run.learning_rate:g} {run.id}"
    name = re.sub(r"[^\w .+-]", "-", f"{setting} {record.started[:19].replace(':', '')}")
    return f"{journal.folder(Path(), record.infrastructure)}/{name}"


def hyperparameters(record: Record) -> dict[str, Any]:
    """Return what its run computes where that is not the default; the fields of an option as OPTION.FIELD."""
    fields = json.loads(record.run.fingerprint())
    for option in [name for name, value in fields.items() if isinstance(value, dict)]:
        fields |= {f"{option}.{name}": value for name, value in fields.pop(option).items()}
    return {name: value if isinstance(value, (int, float)) else str(value) for name, value in fields.items()}


def scalars(record: Record) -> list[tuple[str, float, int, float]]:
    """Return tag, value, samples trained and seconds since the start of each known value of windows and evaluations."""
    points: list[tuple[str, Any, int, float]] = []
    trained, samples_by_epoch = 0, {}
    for window in record.windows:
        samples_by_epoch[window.epoch] = trained = trained + window.samples
        at = (trained, window.start + window.seconds)
        points += [("train/loss", window.loss, *at), ("train/samples_per_second", window.rate, *at)]
    for each in record.evaluations:
        at = (samples_by_epoch.get(each.epoch, trained), each.at + each.seconds)
        points += [("evaluation/accuracy", each.accuracy, *at), ("evaluation/loss", each.loss, *at)]
    return [point for point in points if point[1] is not None and not math.isnan(point[1])]


def _add_to_tensorboard(name: str, record: Record, folder: str) -> bool:
    """Write an event file for this run if it has none; return whether it had none."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = Path(folder, name, "events.out.tfevents.poc")
    if path.exists():
        return False
    began = datetime.fromisoformat(record.started).timestamp()
    events = [Event(wall_time=began, file_version="brain.Event:2")]
    events.append(Event(wall_time=began, summary=hparams_pb(hyperparameters(record), start_time_secs=began)))
    for tag, value, step, seconds in scalars(record):
        value_of_tag = {"value": [{"tag": tag, "simple_value": value}]}
        events.append(Event(wall_time=began + seconds, step=step, summary=value_of_tag))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name("unfinished")  # TensorBoard reads no file of that name
    with unfinished.open("wb") as file:
        for event in events:
            RecordWriter(file).write(event.SerializeToString())
    unfinished.replace(path)
    return True


def _add_to_mlflow(name: str, record: Record, uri: str) -> bool:
    """Log this run if the server does not have it; return whether it did not."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # or a wrong address takes minutes
    from mlflow import MlflowClient, MlflowException
    from mlflow.entities import Metric, Param

    tags = {"poc.name": name, "machine": record.infrastructure, "hardware": record.hardware.describe()}
    tags |= {"images": str(record.data_id), "outcome": record.outcome, "reason": record.reason, "commit": record.commit}
    tags |= {f"version.{package}": version for package, version in record.versions.items()}
    params = [Param(field, str(value)) for field, value in hyperparameters(record).items()]
    start = round(1000 * datetime.fromisoformat(record.started).timestamp())
    metrics = [Metric(tag, value, start + round(1000 * time), step) for tag, value, step, time in scalars(record)]
    title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "poc-mxnet")
    try:
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(title)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(title)
        logged = client.search_runs([experiment_id], f"tags.`poc.name` = '{name}'")
        if any(run.info.status != "RUNNING" for run in logged):
            return False
        for run in logged:  # its export was interrupted
            client.delete_run(run.info.run_id)
        filled = {tag: text for tag, text in tags.items() if text}
        run_id = client.create_run(experiment_id, start, filled, Path(name).name).info.run_id
        client.log_batch(run_id, params=params)
        for first in range(0, len(metrics), 1000):  # MLflow's limit
            client.log_batch(run_id, metrics=metrics[first : first + 1000])
        end = start + round(1000 * (record.wall or 0.0))
        client.set_terminated(run_id, "FINISHED" if record.outcome in DONE else "FAILED", end)
    except MlflowException as error:
        raise UserError(f"export: {uri}: {' '.join(str(error).split())[:400]}") from None
    return True


TRACKERS = {"tensorboard": _add_to_tensorboard, "mlflow": _add_to_mlflow}
"""Functions that add a run to the tracker of that name unless it is there; they return whether they added it."""
