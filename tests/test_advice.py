"""Throughput on more devices and its interval, hours and dollars, and `poc advise`."""

import dataclasses
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from poc.cli import advise
from poc.cli.advise import Estimate
from poc.config import Setting, load
from poc.plan import plan
from poc.published.prices import Price
from poc.records import journal, timing
from poc.records.row import Row
from poc.values import UserError
from tests.builders import MACHINE, build, recipe_file, record_of
from tests.launch import HOME
from tools import fit_scaling

SPEED = Estimate(median=1000.0, low=900.0, high=1100.0)


def test_a_prediction_keeps_the_efficiency_and_its_interval_is_widened_by_that_of_published_series() -> None:
    for doublings, hosts_added in advise.deviations():
        low, high = advise.deviations()[doublings, hosts_added]
        assert low < 1 <= high
        predicted = advise.predict(SPEED, 2, 2 * 2**doublings, hosts_added=hosts_added)
        expected = [2**doublings * number for number in (1000.0, low * 900.0, high * 1100.0)]
        assert predicted == pytest.approx(expected)


def test_the_table_is_the_fit_to_the_published_series_and_holds_for_studies_that_are_left_out() -> None:
    pairs = fit_scaling.load()
    assert len({pair.study for pair in pairs}) == 7
    fitted = fit_scaling.fit(pairs)
    assert {cell: pytest.approx(ends, abs=0.0006) for cell, ends in advise.deviations().items()} == fitted
    by_study = fit_scaling.left_out(pairs)
    for study, intervals in by_study.items():
        assert intervals == fit_scaling.fit([pair for pair in pairs if pair.study != study])
    inside = []
    for pair in pairs:
        low, high = by_study[pair.study][pair.cell]
        inside.append(low <= pair.ratio <= high)
    assert 0.85 <= sum(inside) / len(inside) <= 0.95


def test_pairs_are_of_rows_that_differ_only_in_the_number_of_devices() -> None:
    """Of what else may differ, the published series have no rows that a mistake would pair."""

    def row(devices: int, speed: float, kvstore: str = "nccl", scaling: str = "weak", hosts: int = 1) -> Row:
        series = {"study": "a", "model": "x", "batch_per_device": 64, "scaling": scaling, "kvstore": kvstore}
        return Row(devices=devices, samples_per_second=speed, hosts=hosts, **series)

    # One device has no synchronisation: its row is of both kvstores.
    rows = [row(1, 100, kvstore="device"), row(2, 180), row(8, 720, hosts=2), row(16, 1440, hosts=2)]
    rows += [row(2, 150, kvstore="device"), row(4, 1, scaling="strong")]
    pairs = {(*pair.cell, round(pair.ratio, 2)) for pair in fit_scaling.pairs(rows)}
    inside = {(1, False, 0.9), (1, False, 1.0), (1, False, 0.75)}  # from 8 to 16 the hosts are the same
    assert pairs == {*inside, (2, True, 1.0), (3, True, 0.9), (3, True, 1.0)}


SETTING = Setting(model="cifar_resnet50_v2", batch_per_device=128, epochs=12)


def test_hours_and_dollars_follow_from_the_throughput() -> None:
    price = Price(machine="x", dollars_per_hour=8.0, devices=8)
    one, *_, eight = advise.choices(SETTING, {1: SPEED}, price)
    assert one.hours == pytest.approx((600 / 3600, 600 / 3960, 600 / 3240))
    assert one.dollars is not None
    assert one.dollars == pytest.approx([8 * hours for hours in one.hours])  # nobody rents an eighth of the machine
    assert (eight.global_batch, eight.samples_per_second.median, eight.machines) == (1024, 8000, 1)
    assert eight.hours.low < eight.hours.median < eight.hours.high
    half = advise.choices(SETTING, {1: SPEED}, dataclasses.replace(price, devices=4))
    assert [(option.machines, option.dollars is None) for option in half] == [
        *((1, False), (1, False), (1, False), (None, True))
    ]
    # Without a price, or with one of the user's, for all GPUs of the machine.
    large = dataclasses.replace(SETTING, batch_per_device=8192)
    for known in (None, dataclasses.replace(price, devices=None)):
        machines = [(option.devices, option.machines) for option in advise.choices(large, {1: SPEED}, known, gpus=2)]
        assert machines == [(1, 1), (2, 1), (4, None)]


def test_more_cpus_are_more_machines() -> None:
    price = Price(machine="x", dollars_per_hour=8.0, devices=1)
    chosen = advise.choices(dataclasses.replace(SETTING, kind="cpu"), {1: SPEED}, price)
    assert [option.machines for option in chosen] == [1, 2, 4, 8]
    between_hosts = advise.predict(SPEED, 1, 8, hosts_added=True)
    assert chosen[-1].samples_per_second == pytest.approx(between_hosts)


def test_the_interval_of_a_measurement_is_that_of_its_windows_and_of_runs() -> None:
    # 1.4826 x the median deviation of five windows after the first, and 6% between runs.
    record = record_of(epoch_seconds=[1280 / rate for rate in (100, 98, 99, 100, 101, 104)])
    factor = math.exp(1.645 * math.hypot(1.4826 / 100, 0.06))
    assert advise.measured_speed(record) == pytest.approx((100, 100 / factor, 100 * factor))


def test_a_noisy_measurement_is_called_so() -> None:
    lines = [advise.measured_run(record_of(others_busy_cores=cores)) for cores in (0.01, 1.0)]
    assert ["noisy" in line for line in lines] == [False, True]


def test_nine_in_ten_clean_repeats_are_inside_the_interval_of_the_first_windows_of_another() -> None:
    records = [each for each in journal.read(journal.paths(HOME / "reference")) if each.timed and not each.is_noisy]
    records = [each for each in records if each.run.kind == "cpu"]
    measured = {(each.infrastructure, each.started): each for each in records}
    shares = []
    for _, rows in build(*records).groupby("setting"):
        inside: list[bool] = []
        for machine, started in zip(rows.machine, rows.started):
            short = dataclasses.replace(measured[machine, started], windows=measured[machine, started].windows[:6])
            if timing.throughput(short.timed):
                _, low, high = advise.measured_speed(short)
                inside.extend(rows.samples_per_second[rows.started != started].between(low, high))
        shares += [statistics.fmean(inside)] if inside else []
    assert 0.85 <= statistics.fmean(shares) <= 0.95


@pytest.mark.usefixtures("pytorch_planned")
@pytest.mark.parametrize("path", sorted((HOME / "recipes").rglob("*.py")), ids=lambda path: path.stem)
def test_every_recipe_can_be_advised_on(path: Path) -> None:
    recipe = load(path)
    setting = advise.first_setting(recipe, MACHINE)
    if all(planned.skip for planned in plan("", recipe, MACHINE)):  # it is for GPUs
        with pytest.raises(UserError, match=r"^x\.py"):
            advise.plan_probes(Path("x.py"), setting, MACHINE)
    else:
        (planned,) = advise.plan_probes(Path("x.py"), setting, MACHINE)
        assert planned.run.steps == advise.STEPS


@pytest.mark.slow
def test_an_own_model_is_found_beside_the_recipe(tmp_path: Path) -> None:
    code = "from mxnet.gluon import nn\n\n\ndef dense(classes):\n    return nn.Dense(classes)\n"
    (tmp_path / "net.py").write_text(code)
    path = recipe_file(tmp_path / "mine.py", framework="mxnet", model="net.py:dense", kind="cpu")
    setting = advise.first_setting(load(path), MACHINE)
    (planned,) = advise.plan_probes(path, setting, MACHINE)
    assert (planned.run.model_folder, planned.skip) == (str(tmp_path.resolve()), "")


@pytest.mark.slow
def test_the_command_measures_predicts_and_names_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Any
) -> None:
    monkeypatch.setenv("POC_CACHE", str(tmp_path / "cache"))
    recipe = recipe_file(tmp_path / "mine.py", batch_per_device=16, epochs=6)
    results = tmp_path / "results"
    text = printed("advise", str(recipe), "--results", str(results), "--price", "0.5", "--steps", "40")
    (record,) = journal.read(journal.paths(results))
    assert (record.run.steps, record.run.devices) == (40, 1)
    assert record.run.id in text
    assert re.findall(r"^ *(\d+) +(\d+) +\d.* to ", text, re.MULTILINE) == [
        (f"{count}", f"{16 * count}") for count in (1, 2, 4, 8)
    ]
    assert (results / "results.md").exists()
