"""The data of the figures against hand-made and published rows; the files only for being stable and labelled."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from poc.records import timing
from poc.records.record import Record
from poc.report import chart, figures, points
from poc.report.rows import from_record
from poc.studies.row import Row
from tests.builders import TEST_CPU, record_of
from tests.test_ways import PRINTED, TWELVE, lines

MACHINE = "CPU: test, 2 cores"


def measured(*, engine: str = "gluon", **fields: Any) -> Row:
    """A measured row of the main study's setting, of a run of 100 s."""
    usual = dict(dataset="cifar10 (jpeg)", epochs=12, accuracy=0.75, samples_per_second=300.0, spread=4.0, windows=40)
    usual.update(seconds_per_epoch=166.0, wall_seconds=100.0)
    usual.update(zip((f"{part}_seconds" for part in timing.PARTS), (2.0, 3.0, 80.0, 1.0, 10.0, 0.5, 3.5)))
    row = dataclasses.replace(from_record(record(engine=engine)), **{**usual, **fields})
    return dataclasses.replace(row, total_batch=row.batch_per_device * max(1, row.devices))


def starting_slowly() -> tuple[Row, Row]:
    """1,000 samples at 100 samples/s on one device, 200 on two, after 10 s of start each."""
    work: dict[str, Any] = {f"{part}_seconds": 0.0 for part in timing.PARTS}
    work.update(samples_trained=1000, warmup_samples=0, usual_wait_per_sample=0.0, initialise_seconds=10.0)
    one = measured(**{**work, "samples_per_second": 100.0, "wall_seconds": 20.0, "train_seconds": 10.0})
    two = {"devices": 2, "samples_per_second": 200.0, "wall_seconds": 15.0, "train_seconds": 5.0}
    return one, measured(**{**work, **two}, exchange="dist_sync")


def record(**changes: Any) -> Record:
    """Three epochs, evaluated after 50, 110 and 170 s; the changes are of the run or of the record."""
    run = {"epochs": 3, "steps_per_epoch": 390, "steps": 1170}
    plain = {"epoch_seconds": (47, 59, 59), "accuracies": (0.4, 0.5, 0.6), "infrastructure": MACHINE}
    fields = {field.name for field in dataclasses.fields(Record)}
    plain.update({name: change for name, change in changes.items() if name in fields})
    run.update({name: change for name, change in changes.items() if name not in fields})
    return record_of(run=run, hardware={**TEST_CPU, "cpu": "test"}, **plain)


def test_accuracy_against_throughput_has_every_published_accuracy_and_marks_what_is_special() -> None:
    drawn = {line.label: line for line in points.accuracy_throughput([*PRINTED, measured()])}
    k80, p100 = drawn["8x Tesla K80 (AWS p2.8x)"], drawn["DGX-1, 8x P100"]
    assert (len(k80.points), len(p100.points)) == (17, 10)
    assert (6800.0, 0.786) in lines([k80])[k80.label]
    # The best and the worst accuracy.
    assert {(point.text, point.y) for point in k80.points if point.text} == {("64x2", 0.817), ("512x8", 0.278)}
    assert [(point.x, point.y) for point in p100.points if point.contradictory] == [(2600.0, 0.782)]
    assert not any(point.contradictory for point in k80.points)
    assert drawn[MACHINE].points == (chart.Point(x=300.0, y=0.75, text="128"),)
    assert (drawn[MACHINE].measured, k80.measured) == (True, False)


def test_accuracy_against_throughput_leaves_out_what_does_not_compare() -> None:
    others = dict(quick=True, dataset="synthetic", outcome="failed", epochs=2, network="vgg16", accuracy=None)
    for name, other in others.items():
        assert points.accuracy_throughput([measured(**{name: other})]) == [], name


def test_a_virtual_run_is_hollow_beside_accuracy_and_absent_where_devices_count() -> None:
    virtual = measured(devices=4, virtual=True, learning_rate=0.2)
    [series] = points.accuracy_throughput([virtual])
    assert series.points == (chart.Point(x=300.0, y=0.75, text="128x4", virtual=True),)
    assert points.throughput_devices([measured(), virtual])[1]["throughput"] == []
    assert not any(points.speedup_workers([measured(), virtual]).values())


def test_curves_share_accuracies_and_differ_in_what_they_stand_against() -> None:
    records = [record(), record(learning_rate=0.1)]
    common, curves = points.learning_curves(records)
    assert common == f"ResNet-50 (CIFAR), batch 128, cifar10, {MACHINE}, seed 0"
    assert lines(curves) == {label: [(1.0, 0.4), (2.0, 0.5), (3.0, 0.6)] for label in ("lr 0.05", "lr 0.1")}
    curves = points.accuracy_time(records)[1]
    assert lines(curves) == {label: [(50.0, 0.4), (110.0, 0.5), (170.0, 0.6)] for label in ("lr 0.05", "lr 0.1")}


def test_curves_take_runs_that_were_evaluated_twice_and_name_each_and_what_became_of_it() -> None:
    once = dataclasses.replace(record(), evaluations=record().evaluations[:1])
    others = [once, record(quick=True), record(outcome="failed"), record(outcome="skipped", evaluations=[])]
    assert points.learning_curves(others) == ("", [])
    _, curves = points.learning_curves([*others, record(), record(outcome="diverged", devices=4, virtual=True)])
    assert [one.label for one in curves] == ["batch 128", "batch 128x4 (virtual), diverged"]
    # Each has a name of its own.
    _, curves = points.learning_curves([record(), record(), record(seed=1)])
    assert [one.label for one in curves] == ["seed 0", "seed 0 (2)", "seed 1"]
    common, curves = points.learning_curves([record(), record(engine="pytorch", versions={"torch": "2.13.0"})])
    assert MACHINE in common
    assert [curve.label for curve in curves] == ["", "PyTorch 2.13.0"]


def test_throughput_and_efficiency_against_devices_of_the_main_study() -> None:
    common, panels = points.throughput_devices(PRINTED)
    throughput, efficiency = lines(panels["throughput"]), lines(panels["efficiency"])
    assert common == "ResNet-50 (CIFAR), exchange device"
    k80, p100 = "8x Tesla K80 (AWS p2.8x)", "DGX-1, 8x P100"
    with_one = {(k80, 128), (k80, 256), (k80, 512), (p100, 128), (p100, 256)}
    assert set(efficiency) == {f"{machine}, {batch} a device" for machine, batch in with_one}
    assert set(throughput) == {*efficiency, f"{k80}, 64 a device"}
    assert throughput[f"{k80}, 128 a device"] == [(1, 1100), (2, 2200), (4, 4300), (8, 6800)]
    assert efficiency[f"{k80}, 128 a device"][-1] == (8, pytest.approx(6800 / 1100 / 8))
    # Two rows, of two learning rates, at four and at eight devices; none with a throughput at one.
    assert throughput[f"{k80}, 64 a device"] == [(2, 1800), (4, 3600), (8, 6200)]
    crossed = {"throughput": [True, False, False, False], "efficiency": [True] * 4}
    for panel, series in panels.items():
        (doubtful,) = (line for line in series if line.label == f"{p100}, 256 a device")
        assert [point.contradictory for point in doubtful.points] == crossed[panel]


def test_a_series_over_devices_holds_everything_else_fixed() -> None:
    rows = [
        measured(samples_per_second=100.0),
        measured(devices=2, samples_per_second=190.0, exchange="device"),
        measured(devices=2, samples_per_second=180.0, exchange="dist_sync", workers=2),
        measured(devices=2, samples_per_second=200.0, exchange="independent"),
        measured(devices=4, batch_per_device=64, samples_per_second=999.0),
    ]
    for other in ({"dataset": "synthetic"}, {"quick": True}, {"setting": "on other cores"}):
        rows.append(measured(devices=2, samples_per_second=999.0, **other))
    _, panels = points.throughput_devices(rows)
    # Of the two ways to exchange gradients the faster; that of none is no way, but what both can be held against.
    device, independent = "exchange device", "exchange independent"
    assert lines(panels["throughput"]) == {device: [(1, 100), (2, 190)], independent: [(1, 100), (2, 200)]}
    efficiency = {device: [(1, 1), (2, pytest.approx(0.95))], independent: [(1, 1), (2, pytest.approx(1))]}
    assert lines(panels["efficiency"]) == efficiency


def test_throughput_against_batch_has_a_panel_for_each_network_with_two_batches() -> None:
    deep = dict(network="cifar_resnet110_v2", epochs=1, accuracy=None)
    rows = [
        measured(**deep, batch_per_device=256, samples_per_second=160.0),
        measured(**deep, samples_per_second=150.0, spread=2.0),
        measured(**deep, samples_per_second=154.0, spread=3.0, seed=1),
        measured(network="cifar_resnet20_v2"),
    ]
    panels = points.throughput_batch([*PRINTED, *rows])
    assert list(panels) == ["ResNet-50 (CIFAR)", "ResNet-110 (CIFAR)"]
    (own,) = (line for line in panels["ResNet-110 (CIFAR)"] if line.label == MACHINE)
    assert own.points == (chart.Point(x=128, y=152.0, spread=3.0), chart.Point(x=256, y=160.0, spread=4.0))
    fifty = lines(panels["ResNet-50 (CIFAR)"])
    assert fifty["8x Tesla K80 (AWS p2.8x)"] == [(128, 1100), (256, 1300), (512, 1400)]
    assert fifty["Intel Core i5-6300U, 4 processors (laptop)"] == [(256, 33)]


def test_throughput_against_batch_never_joins_or_averages_what_trains_in_another_way() -> None:
    torch = {"engine": "pytorch", "framework": "PyTorch 2.13.0+cpu"}
    ways = {300.0: {"setting": "plain"}, 200.0: torch, 100.0: {"setting": "larger images"}}
    rows = [measured(samples_per_second=50.0, **alone) for alone in ({"setting": "alone"}, {"infrastructure": "alone"})]
    for rate, way in ways.items():
        rows += [measured(batch_per_device=batch, samples_per_second=rate, **way) for batch in (128, 256)]
    labels = {300.0: MACHINE, 200.0: f"{MACHINE}, PyTorch 2.13.0+cpu", 100.0: f"{MACHINE} (2)"}
    drawn = lines(points.throughput_batch(rows)["ResNet-50 (CIFAR)"])
    assert drawn == {label: [(128, rate), (256, rate)] for rate, label in labels.items()}


def test_speedups_of_the_theano_study_with_and_without_synchronisation() -> None:
    panels = points.speedup_workers(PRINTED)
    without, with_sync = (lines(panels[f"{word} synchronisation"]) for word in ("without", "with"))
    assert set(without) == set(with_sync)
    assert len(without) == 5
    alexnet = "alexnet, 128 a device"
    assert [(x, round(y, 2)) for x, y in without[alexnet]] == [(1, 1.0), (2, 1.84), (4, 3.62), (8, 6.33)]
    assert round(with_sync[alexnet][-1][1], 2) == 3.27


def test_a_measured_series_stands_beside_them_if_its_batch_per_device_was_fixed() -> None:
    weak = measured(devices=2, exchange="dist_sync", samples_per_second=540.0)
    strong = measured(devices=2, batch_per_device=64, exchange="dist_sync", samples_per_second=500.0)
    panels = points.speedup_workers([measured(), weak, strong])
    assert panels["without synchronisation"] == []
    [series] = panels["with synchronisation"]
    assert (lines([series])[series.label], series.measured) == ([(1.0, 1.0), (2.0, pytest.approx(1.8))], True)

    parts = dict(train_seconds_per_5120=9.5, communication_seconds_per_5120=0.5, sync_seconds_per_5120=3.0)
    rows = [measured(train_seconds_per_5120=20.0), dataclasses.replace(weak, **parts)]
    [line] = lines(points.speedup_workers(rows)["without synchronisation"]).values()
    assert line == [(1.0, 1.0), (2.0, pytest.approx(2.0))]


def test_the_difference_between_the_speedups_is_the_sum_of_a_bar() -> None:
    one, two = starting_slowly()
    common, [bar] = points.speedup_reconciled([one, two])
    assert "weak scaling" in common
    assert bar.label == "2.000 less 1.333"
    assert tuple(bar.parts) == timing.PARTS
    assert bar.parts["initialise"] == pytest.approx(2 - 20 / 15)
    assert sum(abs(part) for part in bar.parts.values()) == pytest.approx(2 - 20 / 15)


def test_a_disturbed_run_is_in_the_split_of_time_only_where_all_are() -> None:
    disturbed = measured(learning_rate=0.1, disturbed=True)
    for rows, bars in (([measured(), disturbed], 1), ([disturbed, disturbed], 2)):
        assert len(points.time_split(rows)[1]) == bars
        _, caption = figures.build(rows, [])["time_split"]
        assert ("left out" in caption) == (bars == 1)


def test_the_parts_of_a_bar_add_up_to_the_wall_time() -> None:
    rows = [*PRINTED, measured(), measured(learning_rate=0.1), measured(seconds_per_epoch=None)]
    common, bars = points.time_split(rows)
    assert [bar.label for bar in bars] == ["lr 0.05", "lr 0.1"]
    assert "batch 128" in common
    for bar in bars:
        assert tuple(bar.parts) == timing.PARTS
        assert sum(bar.parts.values()) == pytest.approx(100.0)


@pytest.mark.parametrize(("seconds", "unit"), [(5.0, "s"), (600.0, "min"), (7200.0, "min"), (40_000.0, "h")])
def test_a_time_is_read_in_a_unit_of_its_size(seconds: float, unit: str) -> None:
    assert chart.time_unit(seconds)[1] == unit


def test_labels_that_would_touch_are_moved_apart_and_stay_inside() -> None:
    assert chart._apart([0.1, 0.5, 0.9], sizes=[0.1, 0.1, 0.1]) == [0.1, 0.5, 0.9]
    assert chart._apart([], sizes=[]) == []
    moved = chart._apart([0.5, 0.51, 0.98, 0.99], sizes=[0.1, 0.1, 0.1, 0.3])
    assert moved == pytest.approx([0.5, 0.6, 0.8, 1.0])


STALE = [record(exchange="stale", devices=2, staleness=bound) for bound in (2, None)]


def everything() -> tuple[list[Row], list[Record]]:
    rows = [
        measured(),
        measured(batch_per_device=256, samples_per_second=320.0),
        measured(devices=4, virtual=True),
        measured(network="vgg16", multiply_adds=1.5e10, peak_flops=2e11, peak_share=0.7, dtype="float32"),
        # Series over devices that have nothing in common.
        measured(network="vgg19", dataset="synthetic"),
        measured(network="vgg19", dataset="synthetic", devices=2, exchange="horovod", samples_per_second=400.0),
        *starting_slowly(),
    ]
    records = [record(), record(learning_rate=0.1), record(devices=4, virtual=True), *STALE, *TWELVE]
    return [*PRINTED, *rows], records


def test_every_figure_is_drawn_the_same_twice_with_a_caption_and_labels_and_small(tmp_path: Path) -> None:
    first = figures.draw(*everything(), tmp_path / "first")
    second = figures.draw(*everything(), tmp_path / "second")
    assert set(first) == set(figures.FIGURES)
    for name, (path, caption) in first.items():
        assert path.name == f"{name}.svg"
        assert path.read_bytes() == second[name][0].read_bytes()
        assert path.stat().st_size < 150_000
        assert caption.endswith(".")
        assert ": ." not in caption
    assert {path.name for path in (tmp_path / "first").iterdir()} == {f"{name}.svg" for name in first}
    # Every axis has a label.
    for name, (figure, _) in figures.build(*everything()).items():
        assert figure.axes, name
        for axes in figure.axes:
            shares_y = figure.axes[0] in axes.get_shared_y_axes().get_siblings(axes)
            assert axes.get_xlabel(), name
            assert axes.get_ylabel() or (shares_y and axes is not figure.axes[0]), name


def test_a_figure_without_data_is_not_drawn_and_its_file_goes(tmp_path: Path) -> None:
    figures.draw(*everything(), tmp_path)
    (tmp_path / "another.svg").write_text("not ours")
    drawn = figures.draw(PRINTED, [], tmp_path)
    assert set(drawn) == {"accuracy_throughput", "throughput_devices", "throughput_batch", "speedup_workers"}
    assert {path.stem for path in tmp_path.iterdir()} == {*drawn, "another"}
    assert figures.draw([], [], tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["another.svg"]


def test_accuracy_under_staleness_stands_against_steps_and_time_and_in_no_other_figure() -> None:
    records = [*STALE, record()]
    common, panels = points.staleness(records)
    assert list(lines(panels["steps"])) == ["exchange stale, bound 2", "exchange stale, no bound"]
    assert "ResNet-50" in common
    assert lines(panels["steps"])["exchange stale, bound 2"] == [(390, 0.4), (780, 0.5), (1170, 0.6)]
    minutes = [(pytest.approx(at / 60), accuracy) for at, accuracy in ((50, 0.4), (110, 0.5), (170, 0.6))]
    assert lines(panels["minutes"])["exchange stale, bound 2"] == minutes
    assert len(points.learning_curves(records)[1]) == 1


def test_throughput_stands_against_arithmetic_below_what_the_device_can_do() -> None:
    arithmetic = {"multiply_adds": 1e8, "peak_flops": 2e11, "peak_share": 0.9, "dtype": "float32"}
    slower = measured(**arithmetic, samples_per_second=200.0)
    other = measured(**{**arithmetic, "peak_flops": 4e11}, network="vgg16", samples_per_second=5.0)
    short = measured(**{**arithmetic, "dtype": "bfloat16"})
    series, peaks = points.roofline([slower, measured(**arithmetic), other, short, measured(dtype="float32")])
    # The faster of two runs of a network.
    assert {line.label: {(point.text, point.y) for point in line.points} for line in series} == {
        f"{MACHINE}, float32": {("ResNet-50 (CIFAR)", 300.0), ("VGG-16", 5.0)},
        f"{MACHINE}, bfloat16": {("ResNet-50 (CIFAR)", 300.0)},
    }
    assert peaks == {f"{MACHINE}, float32": 2e11, f"{MACHINE}, bfloat16": 2e11}


def test_names_that_would_run_into_one_another_are_left_out() -> None:
    places = {"usual": (1e8, 100.0), "beside it": (1.1e8, 95.0), "slow": (1e8, 10.0), "large": (1e10, 1.0)}
    shown = chart.readable([chart.Point(x=x, y=y, text=name) for name, (x, y) in places.items()])
    # The slow for their arithmetic come first: 1e9, then 1e10 multiply-adds a second.
    assert [point.text for point in shown] == ["slow", "large", "usual"]
