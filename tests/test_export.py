"""Export to TensorBoard and MLflow: their own readers give back what the journal has, once."""

import datetime
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from poc.cli import main
from poc.records import journal
from poc.records.record import Record
from tests.builders import add, record_of
from tests.launch import HOME

LOSS, SPEED = "train/loss", "train/samples_per_second"
ACCURACY, VALIDATION_LOSS = "evaluation/accuracy", "evaluation/loss"
Series = dict[str, list[tuple[int, float, float]]]
"""Samples trained, Unix time and value, by tag."""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of results; MLflow may keep its data in files, which needs no database."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return tmp_path / "results"


def export(results: Path, tracker: str, target: object, *options: str) -> int:
    return main(["export", tracker, str(target), "--results", str(results), *options])


def expected(record: Record) -> Series:
    began = datetime.datetime.fromisoformat(record.started).timestamp()
    windows, evaluations = record.windows, record.evaluations
    trained = [*accumulate(window.samples for window in windows)]
    ends = [began + window.start + window.seconds for window in windows]
    epochs = [each.epoch * record.run.steps_per_epoch * record.run.global_batch for each in evaluations]
    times = [began + each.at + each.seconds for each in evaluations]
    series: Any = {
        LOSS: zip(trained, ends, [window.loss for window in windows]),
        SPEED: zip(trained, ends, [window.samples / window.seconds for window in windows]),
        ACCURACY: zip(epochs, times, [each.accuracy for each in evaluations]),
        VALIDATION_LOSS: zip(epochs, times, [each.loss for each in evaluations]),
    }
    return {tag: [*points] for tag, points in series.items()}


def reader_of(folder: Path) -> Any:
    """Return TensorBoard's reader of its log folder: an EventAccumulator per run."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    return EventMultiplexer(size_guidance={"scalars": 0}).AddRunsFromDirectory(str(folder)).Reload()


def in_tensorboard(folder: Path) -> dict[str, Series]:
    """Return what TensorBoard reads in its log folder, by run."""
    reader = reader_of(folder)
    return {
        name: {
            tag: [(event.step, event.wall_time, event.value) for event in reader.Scalars(name, tag)]
            for tag in tags["scalars"]
        }
        for name, tags in reader.Runs().items()
    }


def mlflow_runs(uri: object) -> tuple[Any, list[Any]]:
    """Return MLflow's client and its runs that are not deleted."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=str(uri))
    return client, [*client.search_runs([client.get_experiment_by_name("poc-mxnet").experiment_id])]


def in_mlflow(uri: object) -> dict[str, Series]:
    """Return what MLflow's client reads, by name of the run."""
    client, runs = mlflow_runs(uri)

    def points(run: Any, tag: str) -> list[tuple[int, float, float]]:
        history = client.get_metric_history(run.info.run_id, tag)
        return [(metric.step, metric.timestamp / 1000, metric.value) for metric in history]

    return {run.data.tags["poc.name"]: {tag: points(run, tag) for tag in run.data.metrics} for run in runs}


READERS: dict[str, Callable[[Path], dict[str, Series]]] = {"tensorboard": in_tensorboard, "mlflow": in_mlflow}


@pytest.fixture(params=READERS)
def tracker(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def test_a_trackers_own_reader_gives_back_the_windows_and_accuracies_of_a_run(
    tracker: str, results: Path, tmp_path: Path
) -> None:
    plain = record_of(infrastructure="here")
    windows = tuple(replace(window, loss=2.0 / window.epoch) for window in plain.windows)
    evaluations = tuple(replace(evaluation, loss=3.0 / evaluation.epoch) for evaluation in plain.evaluations)
    record = replace(plain, windows=windows, evaluations=evaluations)
    add(results, record)
    assert export(results, tracker, tmp_path / "target") == 0
    ((name, series),) = READERS[tracker](tmp_path / "target").items()
    assert name.startswith(f"here/{record.run.model} 1x128 cpu lr0.05 {record.run.id} ")
    wanted = expected(record)
    assert series.keys() == wanted.keys()
    number = np.float32 if tracker == "tensorboard" else float
    for tag, points in wanted.items():
        assert [(step, value) for step, _, value in series[tag]] == [(step, number(value)) for step, _, value in points]
        times = [time for _, time, _ in points]
        assert [time for _, time, _ in series[tag]] == pytest.approx(times, abs=0.001, rel=0)


def test_exporting_again_adds_new_records_only(tracker: str, results: Path, tmp_path: Path, capsys: Any) -> None:
    first, repeat, other = (record_of(started=f"2026-11-21T1{hour}:00:00+00:00") for hour in (0, 1, 2))
    skipped = record_of(outcome="skipped", run={"seed": 1}, epoch_seconds=(), accuracies=())
    add(results, first, skipped)
    add(tmp_path / "received", other)
    target, received = tmp_path / "target", ("--with", str(tmp_path / "received"))
    sizes = []
    for arguments, new in (((), ()), ((), (repeat,)), (received, ()), (received, ())):
        add(results, *new)
        assert export(results, tracker, target, *arguments) == 0
        runs = READERS[tracker](target)
        sizes.append(len(runs))
        assert all(series.keys() == {LOSS, SPEED, ACCURACY} for series in runs.values())  # no unknown loss
        assert all(len(points) == 6 for series in runs.values() for points in series.values())
    assert sizes == [1, 2, 3, 3]
    *_, last = [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(target))]
    assert re.findall(r"\d+", last.removeprefix(str(target))) == ["0", "3"]


def test_hyperparameters_are_the_fields_that_are_not_at_their_default(
    tracker: str, results: Path, tmp_path: Path
) -> None:
    wanted: dict[str, Any] = {"learning_rate": 0.4, "devices": 2, "emulated": True}
    add(results, record_of(run={**wanted, "optimizer": {"name": "nesterov"}, "recipe": "/home/me/mine"}))
    wanted["optimizer.name"] = "nesterov"
    assert export(results, tracker, tmp_path / "target") == 0
    if tracker == "mlflow":
        fields = mlflow_runs(tmp_path / "target")[1][0].data.params
        wanted = {name: str(value) for name, value in wanted.items()}
    else:
        from tensorboard.plugins.hparams import metadata

        reader = reader_of(tmp_path / "target")
        (name,) = reader.Runs()
        content = reader.SummaryMetadata(name, metadata.SESSION_START_INFO_TAG).plugin_data.content
        hparams = metadata.parse_session_start_info_plugin_data(content).hparams
        fields = {field: getattr(value, value.WhichOneof("kind")) for field, value in hparams.items()}
    assert fields.items() >= wanted.items()
    assert not {"recipe", "dtype", "optimizer"} & fields.keys()


def test_mlflow_has_where_a_run_was_done_and_how_it_ended(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    add(results, record_of(), record_of(run={"seed": 1}, outcome="failed", reason="worker 1 ended", commit=""))
    assert export(results, "mlflow", tmp_path / "target") == 0
    completed, failed = sorted(mlflow_runs(tmp_path / "target")[1], key=lambda run: str(run.data.tags["outcome"]))
    tags = {"machine": "test machine", "hardware": record_of().hardware.describe(), "version.mxnet": "1.9.1"}
    assert completed.data.tags.items() >= {**tags, "commit": "abcdef", "images": "cifar10"}.items()
    assert completed.info.end_time - completed.info.start_time == round(1000 * (record_of().wall or 0))
    assert failed.data.tags.items() >= {**tags, "reason": "worker 1 ended"}.items()
    assert (completed.info.status, failed.info.status) == ("FINISHED", "FAILED")


@pytest.mark.faults
def test_an_interrupted_export_is_repeated(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("mlflow").MlflowClient
    record = record_of(epoch_seconds=[1.0] * 1100, accuracies=())  # 2,200 values: three requests
    add(results, record)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(client, "set_terminated", interrupted)
        assert export(results, "mlflow", tmp_path / "target") == 130
    for _ in range(2):
        assert export(results, "mlflow", tmp_path / "target") == 0
        (series,) = in_mlflow(tmp_path / "target").values()
        assert [value for _, _, value in series[SPEED]] == [window.rate for window in record.windows]


@pytest.mark.parametrize("package", ["tensorboard", "mlflow"])
def test_a_missing_package_is_one_line_that_says_how_to_install_it(
    package: str, results: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(results, record_of())
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert export(results, package, tmp_path / "target") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"-m pip install {package}" in line
    assert not (tmp_path / "target").exists()


def test_a_server_that_refuses_is_one_line(results: Path, capsys: Any) -> None:
    pytest.importorskip("mlflow")
    add(results, record_of())
    assert export(results, "mlflow", "nonsense://server") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nonsense://server" in line


@pytest.mark.slow
def test_every_line_of_the_reference_is_valid_by_the_schema_that_the_documentation_makes() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    (command,) = re.findall(r"^\.venv/bin/python (-c .*json_schema.*)$", (HOME / "docs/columns.md").read_text(), re.M)
    text = subprocess.check_output(["bash", "-c", f'"$0" {command}', sys.executable], cwd=HOME, text=True)
    validator = jsonschema.Draft202012Validator(json.loads(text))
    paths = [*(HOME / "reference").rglob(journal.FILE)]
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert len(lines) >= 125
    for line in lines:  # some have thousands of windows: one of each combination of types
        line["windows"] = [*{(*map(type, window.values()),): window for window in line["windows"]}.values()]
    assert [error.message for line in lines for error in validator.iter_errors(line)] == []
    (missing,) = validator.iter_errors({name: value for name, value in lines[0].items() if name != "started"})
    assert "started" in missing.message
