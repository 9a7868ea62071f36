"""The learning-rate range test: its curve, the rates that follow from it, its runs, and `poc lr-range`."""

import dataclasses
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import SGD, AdamW, Exponential, Folder, Muon, Recipe, frameworks
from poc.cli import main
from poc.cli.lr_range import RangeTest, _records, find_rates, plan_tests, range_test
from poc.config.datasets import DataId
from poc.records import journal
from poc.records.record import COMPLETED, DIVERGED
from poc.run.sweep import Sweep
from tests.builders import MACHINE, SMALL, TWO_WORKERS, place_in, recipe_file, record_of, run_of
from tests.conftest import needs_torch
from tests.framework_worker import batches, planned
from tests.launch import records

RATES = [10 ** (-4 + number / 20) for number in range(101)]
"""From 0.0001 to 10, 20 to a decade."""


def find(loss: Any, noise: float = 0.0) -> RangeTest:
    """Return the rates of a curve, a function of the logarithm of the learning rate to base 10."""
    draw = random.Random(0)
    return find_rates({rate: loss(math.log10(rate)) + draw.gauss(0, noise) for rate in RATES})


def valley(x: float) -> float:
    """Fall by 1 from 0.001 to 0.1, fastest at 0.01; rise from 0.3 on, through the first loss near 1."""
    if x < -3:
        return 2.5
    if x < -1:
        return 2.0 + math.cos(math.pi * (x + 3) / 2) / 2
    return 1.5 + max(0.0, x + 0.5) ** 2 * 4


# A smoothed curve is late: by up to 0.1 decades of half-life / ln 2.
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_rates_are_those_of_a_curve_that_falls_and_then_explodes(noise: float) -> None:
    test = find(valley, noise)
    assert test.steepest is not None
    assert test.minimum is not None
    assert test.explodes is not None
    assert test.interval is not None
    assert math.log10(test.steepest) == pytest.approx(-2 + 0.14, abs=0.05 if noise == 0 else 0.5)
    assert 0.1 <= test.minimum <= 0.5
    assert 1.0 <= test.explodes <= 1.6
    low, high = test.interval
    assert low < test.steepest < test.minimum < high < test.explodes
    assert high / low <= 50 + 1e-9


@pytest.mark.parametrize("loss", [lambda x: 2.3, lambda x: 2.3 + 100 * max(0.0, x), lambda x: 8 + x])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_loss_that_never_falls_gives_no_interval(loss: Any, noise: float) -> None:
    test = find(loss, noise)
    assert (test.interval, test.steepest, test.minimum) == (None, None, None)


@pytest.mark.parametrize("end", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_an_explosion_and_is_not_drawn(end: float) -> None:
    test = find(lambda x: 2.5 - (x + 4) / 4 if x < -1.01 else end)
    assert test.explodes == pytest.approx(0.1)
    assert test.minimum == pytest.approx(10**-1.05)
    assert test.interval is not None
    assert test.interval[1] <= test.explodes
    assert all(map(math.isfinite, test.losses.values()))
    nothing = find(lambda x: end)
    assert (nothing.losses, nothing.interval, nothing.explodes) == ({}, None, pytest.approx(1e-4))


def test_a_falling_loss_that_never_explodes_has_an_interval_too() -> None:
    test = find(lambda x: -x)
    assert test.explodes is None
    assert test.minimum == pytest.approx(10)


def test_a_range_test_is_planned_for_each_model_optimizer_and_global_batch() -> None:
    grid = {**SMALL, "devices": [1, 2], "batch_per_device": [16, 32], "lr": [0.1, 0.2], "seeds": 3, "repeats": 2}
    recipe = Recipe(**{**grid, "optimizer": [SGD(), AdamW()], "framework": "mxnet", "seconds": 3.0})
    planned = plan_tests("mine", recipe, MACHINE, Exponential(low=0.01, high=1.0))
    runs = [item.run for item in planned if not item.skip]
    expected = [(batch, optimizer) for batch in (16, 32, 64) for optimizer in (SGD(), AdamW())]
    assert [(run.global_batch, run.optimizer) for run in runs] == expected
    for run in runs:
        assert (run.seed, run.evaluate, run.seconds, run.steps, run.window) == (0, False, None, 100, 1)
        assert [run.rate(step) for step in (0, 99)] == pytest.approx([0.01, 1.0])
    # An epoch of more than 100 steps, in about 100 windows; what this machine cannot run gives way to what it can.
    other = Recipe(**{**SMALL, "kind": ["gpu", "cpu"], "batch_per_device": 2})
    ((run, skip),) = [(item.run, item.skip) for item in plan_tests("mine", other, MACHINE, Exponential(low=1, high=2))]
    assert (run.kind, skip, run.steps, run.window) == ("cpu", "", 320, 3)


def test_two_folders_of_as_many_images_have_each_its_own_test(tmp_path: Path) -> None:
    runs = [dataclasses.replace(run_of(), data=Folder(name, crop=32)) for name in ("first", "second")]
    images = {run.data.key: DataId("folder", run.data.path) for run in runs if isinstance(run.data, Folder)}
    sweep = Sweep([], tmp_path, place_in(tmp_path, images=images))
    for run, (name, checksum) in zip(runs, images.values()):
        record = record_of(infrastructure="here", dataset=name, data_checksum=checksum)
        journal.append(sweep.path, dataclasses.replace(record, run=run, run_id=run.id))
    assert [record.data_id for record in _records(sweep, runs)] == [*images.values()]


GROWING = {"lr": Exponential(low=1e-3, high=0.2), "epochs": None, "steps": 60, "window": 1, "evaluate": False}


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["mxnet", pytest.param("pytorch", marks=needs_torch)])
def test_convolutions_keep_the_rate_of_muon(framework: str) -> None:
    run = planned(framework, **{**GROWING, "optimizer": Muon(lr=0.02)}).run
    changes = []
    for rate in (0.01, 0.1):
        session = frameworks.open_session(run)
        before = {name: array.copy() for name, array in session.state().items()}
        session.step(next(batches(run)), rate)
        after = session.state()
        changes.append({name: after[name] - array for name, array in before.items() if name.startswith("parameter/")})
    names = {axes: [name for name, change in changes[0].items() if change.ndim == axes] for axes in (2, 4)}
    assert len(names[4]) > 3
    for axes, factor in ((2, 10), (4, 1)):
        for name in names[axes]:
            assert np.abs(changes[0][name]).max() > 0
            np.testing.assert_allclose(factor * changes[0][name], changes[1][name], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_the_command_prints_an_interval_draws_a_figure_and_adds_nothing_to_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    recipe_file(tmp_path / "mine.py", **TWO_WORKERS, lr=[0.1, 0.2])
    arguments = ["lr-range", "mine.py", "--results", "results", "--machine", "here", "--high", "1000"]
    assert main(arguments) == 0
    (record,) = records(tmp_path)
    assert record.outcome in (COMPLETED, DIVERGED)
    assert record.run.is_range_test
    rates = [*range_test(record).losses]
    assert rates == pytest.approx([record.run.rate(step) for step in range(len(rates))])
    printed = capfd.readouterr().out
    low, high = map(float, re.findall(r"Search\(low=([\d.e-]+), high=([\d.e-]+)\)", printed)[0])
    assert 0 < low < high <= 55 * low
    figure = tmp_path / "results" / "here" / "lr_range_mine.svg"
    assert figure.read_text().startswith("<?xml")
    assert str(figure) in printed
    # The second time nothing is trained, and the answer is the same.
    assert main(arguments) == 0
    assert capfd.readouterr().out == printed
    assert records(tmp_path) == [record]
