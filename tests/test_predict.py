"""Prediction of throughput: laws that are known come back, nothing left out is looked at, and the command."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import advice, predict
from poc.__main__ import main
from poc.config import Linear, Setting
from poc.predict import rivals, series, trial
from poc.predict.limits import Apart
from poc.predict.quantiles import Prediction, learn, splits
from poc.predict.series import Point, Series
from poc.predict.trial import MODEL
from poc.published import prices
from poc.published.prices import Price
from poc.records import journal
from poc.records.record import FAILED, Record
from poc.values import UserError
from tests.builders import TEST_CPU, TWO_WORKERS, recipe_file, record_of

HEAD = "model,devices,batch_per_device,samples_per_second,scaling,hardware,printed\n"


def made(study: str, rate: Callable[[int], float], counts: tuple[int, ...] = (1, 2, 4, 8)) -> Series:
    """A series of that law."""
    points = tuple(Point(devices=count, rate=rate(count)) for count in counts)
    return Series(study=study, label=study, scaling="weak", points=points)


def amdahl(serial: float) -> Callable[[int], float]:
    return lambda n: 100 * n / (1 + serial * (n - 1))


def noisy(studies: int, each: int, seed: int) -> list[Series]:
    """Series of Amdahl's law with serial fractions and measurements that vary, of several studies."""
    draws = np.random.default_rng(seed)
    found = []
    for study in range(studies):
        for _ in range(each):
            law, off = amdahl(float(draws.exponential(0.05))), draws.normal(0, 0.02, 9)
            found.append(made(f"study {study}", lambda n, law=law, off=off: law(n) * math.exp(off[n])))  # type: ignore[misc]
    return found


@pytest.mark.parametrize("serial", [0.0, 0.02, 0.2])
def test_the_fitted_laws_give_a_series_of_their_own_back(serial: float) -> None:
    points = made("x", amdahl(serial)).points[:3]
    for rule in (rivals.amdahl, rivals.scalability):
        assert rule(points, 16) == pytest.approx(amdahl(serial)(16), rel=0.01)


def test_a_law_that_all_studies_follow_is_recovered() -> None:
    known = [made(f"study {n}", amdahl(serial)) for n, serial in enumerate((0.01, 0.03, 0.05, 0.1, 0.2))]
    tested = made("another", amdahl(0.07))
    (one,) = learn(known).predict(tested.points[:3], tested.points[3:])
    assert one.rate == pytest.approx(tested.points[3].rate, rel=0.03)
    assert one.low < tested.points[3].rate < one.high


def test_intervals_hold_about_nine_tenths_of_what_was_left_out() -> None:
    found = trial.by_study(noisy(studies=5, each=6, seed=1))[MODEL]
    assert len(found) == 5 * 6 * 5
    assert 0.8 <= trial.score(MODEL, found).inside <= 0.98


def test_what_is_left_out_is_not_looked_at() -> None:
    known = noisy(studies=4, each=3, seed=2)
    halved = tuple(dataclasses.replace(point, rate=point.rate / point.devices**0.5) for point in known[0].points)
    changed = [dataclasses.replace(known[0], points=halved), *known[1:]]
    asked = made("new", amdahl(0.1))
    left_out = [learn([one for one in given if one.study != "study 0"]) for given in (known, changed)]
    assert left_out[0] == left_out[1]
    # What was seen does count, and the rate of the point that is asked does not.
    assert learn(known) != learn(changed)
    unknown = [dataclasses.replace(point, rate=1.0) for point in asked.points[2:]]
    learnt = left_out[0]
    assert learnt.predict(asked.points[:2], asked.points[2:]) == learnt.predict(asked.points[:2], unknown)


def test_from_every_one_of_the_fewest_counts_up_to_four_times_as_many() -> None:
    found = [
        ([point.devices for point in measured], [point.devices for point in asked])
        for measured, asked in splits(made("x", amdahl(0.1), (1, 2, 8, 32)))
    ]
    assert found == [([1], [2]), ([1, 2], [8]), ([1, 2, 8], [32])]


def test_scores_are_those_of_their_definitions() -> None:
    one = trial.Guess(
        series=(of := made("x", amdahl(0.1))),
        measured=of.points[:1],
        point=Point(devices=2, rate=100.0),
        made=predict.quantiles.Prediction(devices=2, rate=110.0, low=105.0, high=120.0),
    )
    score = trial.score("x", [one])
    assert score.twice == pytest.approx(0.1)
    assert (score.within, score.inside, score.four_times) == (1.0, 0.0, None)
    assert score.mean_log_error == pytest.approx(math.log(1.1))
    assert score.winkler == pytest.approx(math.log(120 / 105) + 20 * math.log(1.05))


def test_series_are_found_in_the_studies() -> None:
    found = series.published()
    p100 = next(one for one in found if "P100" in one.label and "batch per device 128" in one.label)
    assert [(point.devices, point.rate) for point in p100.points] == [(1, 2900), (2, 6100), (4, 12000), (8, 11000)]
    # Synchronisation is in: 5,120 images in 2.63 + 0.61 + 3.03 s.
    alexnet = next(one for one in found if one.study == "theano_mpi" and "alexnet" in one.label)
    assert alexnet.points[-1].rate == pytest.approx(5120 / 6.27)
    # TensorFlow's own medians name no network.
    assert not any(one.study == "keras_multi_gpu" and "P100" in one.label for one in found)
    assert {one.points[-1].hosts for one in found if one.study == "dlperf" and one.points[-1].devices == 32} == {4}
    assert {one.scaling for one in found if one.study == "keras_multi_gpu"} == {"weak", "strong"}


def test_what_is_kept_beats_its_rivals() -> None:
    kept = predict.kept()
    assert kept.series == len(series.published())
    for scores in (kept.by_study, kept.weak_by_study, kept.by_series):
        own, *others = scores
        assert own.winkler < min(one.winkler for one in others)
        assert own.mean_log_error < min(one.mean_log_error for one in others)


@pytest.mark.slow
def test_a_study_of_one_s_own_is_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "mine.csv"
    rates = {1: 100, 2: 195, 4: 380, 8: 700}
    lines = [f"resnet50,{n},64,{rate},weak,4x Test,row {n}" for n, rate in rates.items()]
    own.write_text(HEAD + "\n".join(lines) + "\n")
    assert main(["predict", "--study", str(own)]) == 0
    said = capsys.readouterr().out
    assert said.count("4x Test, resnet50, batch per device 64") == 5
    assert all(name in said for name in (MODEL, *rivals.RIVALS))


@pytest.mark.parametrize("counts", [[1], [1, 8, 64]])  # the second is too far apart
def test_a_study_without_a_series_is_refused(
    counts: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "mine.csv"
    own.write_text(HEAD + "".join(f"resnet50,{n},64,{100 * n},weak,Test,row\n" for n in counts))
    assert main(["predict", "--study", str(own)]) == 2
    assert "at least three device counts" in capsys.readouterr().err


def test_the_command_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict"]) == 0
    said = capsys.readouterr().out
    assert "Leave one study out" in said
    assert predict.ASSUMED in said


def test_advice_counts_epochs_hours_and_dollars() -> None:
    setting = Setting(model="cifar_resnet50_v2", batch_per_device=128, lr=Linear(base=0.05, per=128), epochs=12)
    speed = advice.Speed(middle=1000.0, low=900.0, high=1100.0, source="test")
    price = Price(machine="x", dollars_per_hour=8.0, devices=8)
    one, *_, eight = advice.options(setting, (1024.0, 512.0, 2048.0), [speed], price)
    assert one.epochs == pytest.approx((12, 12, 12))
    assert one.hours == pytest.approx((600 / 3600, 600 / 3960, 600 / 3240))
    assert one.dollars == pytest.approx(one.hours)
    assert (eight.batch, eight.epochs[0]) == (1024, pytest.approx(12 * 2 / 1.125))
    assert 3000 < eight.rate[0] < 8000
    assert eight.hours[1] < eight.hours[0] < eight.hours[2]
    assert eight.dollars
    assert eight.dollars[0] == pytest.approx(8 * eight.hours[0])
    wide = dataclasses.replace(setting, batch_per_device=8192)  # eight of them are more than all images
    assert [option.devices for option in advice.options(wide, (1024.0, 512.0, 2048.0), [speed])] == [1, 2, 4]


def test_the_speed_of_a_machine_that_is_not_here() -> None:
    setting = Setting(model="cifar_resnet50_v2", batch_per_device=128)
    known = prices.load({})
    speed = advice.published_speed(setting, "p2.8xlarge", known)
    assert (speed.middle, speed.low) == (1100, 1100)
    assert advice.published_speed(dataclasses.replace(setting, batch_per_device=64), "p2.8xlarge", known).low < 1100
    with pytest.raises(UserError, match="no study has"):
        advice.published_speed(setting, "p5.48xlarge", known)


def at(speed: float, *, detail: dict[str, Any] | None = None, **run: Any) -> Record:
    """What a worker with a core of its own was measured at, in samples/s, or several."""
    total = run.get("batch_per_device", 128) * run.get("devices", 1)
    run.update(global_batch=total, workers=run.get("devices", 1), cores_per_worker=1)
    return record_of(run=run, epoch_seconds=[10 * total / speed] * 6, detail=detail)


def test_a_forecast_is_made_of_runs_on_fewer_devices_that_are_the_same_otherwise() -> None:
    two = at(1.0, devices=2, kvstore="dist_sync").run
    seen = [at(90.0), at(100.0, learning_rate=0.2, steps=30)]
    failed = dataclasses.replace(at(500.0), outcome=FAILED)
    others = [
        at(500.0, zero_init_gamma=True),
        at(500.0, batch_per_device=64),
        at(500.0, devices=2, kvstore="horovod"),
        failed,
    ]
    learnt, asked = predict.kept().learnt, [Point(devices=2, rate=0.0)]
    (weak,) = learnt.predict([Point(devices=1, rate=100.0)], asked)
    found = predict.forecast(two, [*others, *seen])
    assert found is not None
    assert dataclasses.astuple(found)[:-1] == pytest.approx((weak.rate, weak.low, weak.high, 1))
    (strong,) = learnt.predict([Point(devices=1, rate=100.0)], asked, "strong")
    found = predict.forecast(two, [*others, at(100.0, batch_per_device=256)])
    assert found is not None
    assert dataclasses.astuple(found)[:-1] == pytest.approx((strong.rate, strong.low, strong.high, 1))
    assert predict.forecast(two, others) is None
    assert predict.forecast(seen[0].run, seen) is None
    assert predict.forecast(at(1.0, devices=2, kvstore="none").run, seen) is None


def test_what_takes_differ_by_widens_a_forecast() -> None:
    two = at(1.0, devices=2, kvstore="dist_sync").run
    # Takes of two runs, each a tenth above and below their mean, in logarithms: a variance of 0.02 of each.
    lower, upper = (math.exp(off) for off in (-0.1, 0.1))
    runs = ((50, {"batch_per_device": 64}), (5, {"zero_init_gamma": True}))
    apart = [at(speed * factor, **run) for speed, run in runs for factor in (lower, upper)]
    assert predict.between_takes(apart) == pytest.approx(math.sqrt(0.02))
    calm, shared = (predict.forecast(two, [*before, at(100.0)]) for before in ([], apart))
    assert calm
    assert shared
    assert shared.rate == calm.rate
    off = 1.645 * 0.2  # of two takes, so times the root of two
    for end in ("low", "high"):
        logs = [abs(math.log(getattr(found, end) / found.rate)) for found in (calm, shared)]
        assert logs[1] == pytest.approx(math.hypot(logs[0], off))


STEP: dict[str, Any] = dict(
    steps=24, whole_step_seconds=0.12, independent_step_seconds=0.11, data_seconds=0.01, exchange_seconds=0.02,
    exchange_bytes=4, bus_bytes_per_second=None, sums_right=True, synchronisation_seconds=None,
)  # fmt: skip
ONE_CARD = {"kind": "gpu", "devices": 1, "global_batch": 100}
ON_TWO = {"devices": 2, "batch_per_device": 100, "global_batch": 200, "workers": 1}


@pytest.mark.parametrize(
    ("run", "step", "on_two", "on_four", "limit"),
    [
        # Each card has a thread that issues to it; a process that had one card makes the batches of both.
        (ONE_CARD, {"issue_seconds": 0.2}, 1000, 2000, "host"),
        (ONE_CARD, {"issue_seconds": 0.09}, 2000, 4000, "devices"),
        (ONE_CARD, {"pipeline_seconds": 0.08}, 1250, 1250, "input pipeline"),
        # A tenth of a second for 100 samples, whatever the devices.
        ({}, {}, 2000, 4000, "devices"),
        # All-reduce: 2 (n - 1) / n of the gradients; from two devices to four 1.5 times as long.
        ({}, {"exchange_seconds": 0.2}, 1000, 400 / 0.3, "link"),
        # 32 cores make batches with 16 threads a worker: twice the workers, twice as many.
        ({"kind": "gpu"}, {"pipeline_seconds": 0.08}, 2000, 2500, "input pipeline"),
        ({"kind": "gpu", "workers": 2}, {"pipeline_seconds": 0.16}, 1250, 1250, "input pipeline"),
        ({"kind": "gpu"}, {"issue_seconds": 0.2}, 1000, 2000, "host"),
        # On a CPU it may be what computes.
        ({}, {"issue_seconds": 0.2}, 2000, 4000, "devices"),
        # A CPU's worker makes its batches with one thread, as long as there are cores for one more.
        ({"workers": 2}, {"pipeline_seconds": 0.2}, 1000, 2000, "input pipeline"),
    ],
)  # fmt: skip
def test_what_limits_more_devices_is_told_by_a_step_taken_apart(
    run: dict[str, Any], step: dict[str, Any], on_two: float, on_four: float, limit: str
) -> None:
    record = record_of(run={**ON_TWO, **run}, detail={**STEP, **step}, hardware={**TEST_CPU, "cores": 32})
    assert record.detail
    apart = Apart(run=record.run, machine=record.hardware, step=record.detail)
    four = 4 if record.run.workers == 2 else 1
    assert min(apart.ceilings(2, record.run.workers).values()) == pytest.approx(on_two)
    assert min(apart.ceilings(4, four).values()) == pytest.approx(on_four)
    within, found = apart.within(Prediction(devices=4, rate=5000.0, low=4000.0, high=6000.0), four)
    assert found == limit
    if limit == "devices":  # they may be faster than when they were taken apart
        on_four = 5000.0
    assert (within.rate, within.low, within.high) == pytest.approx((on_four, 0.8 * on_four, 1.2 * on_four))


def test_few_cores_issue_to_many_cards_in_turn() -> None:
    record = record_of(run={**ON_TWO, **ONE_CARD}, detail={**STEP, "issue_seconds": 0.2}, hardware=TEST_CPU)
    assert record.detail
    apart = Apart(run=record.run, machine=record.hardware, step=record.detail)
    # Two cores: as long as one card's for one card or two, four times as long for eight.
    assert [apart.ceilings(devices, 1)["host"] for devices in (1, 2, 8)] == pytest.approx([500, 1000, 800 / 0.8])


def test_a_forecast_keeps_to_what_the_machine_s_own_step_allows() -> None:
    on_gpus = {"kind": "gpu", "workers": 1, "cores_per_worker": None}
    two = dataclasses.replace(at(1.0, devices=2).run, **on_gpus)
    seen = at(100.0, detail={**STEP, "pipeline_seconds": 1.0})
    found = predict.forecast(two, [dataclasses.replace(seen, run=dataclasses.replace(seen.run, **on_gpus))])
    assert found
    # Two devices of 128 samples each, and twice 1 s to make their batches.
    assert (found.rate, found.limit) == (pytest.approx(2 * 128 / 2.0), "input pipeline")
    assert "limited by the input pipeline" in str(found)


ONE = {"batch_per_device": 16, "cores_per_worker": 1}


@pytest.mark.slow
def test_a_run_is_predicted_before_it_is_measured(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", cases=[ONE, {**TWO_WORKERS, **ONE}])
    assert main(["run", str(recipe), "--results", str(tmp_path), "--machine", "here"]) == 0
    alone, together = journal.read(journal.paths(tmp_path))
    assert alone.predicted is None
    assert together.predicted is not None
    assert together.predicted == predict.forecast(together.run, [alone])
