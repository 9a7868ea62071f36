"""Every engine offers the seam; the reference engine's runs are whole: plan, processes, exchange, record."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mypy.api
import pytest

from poc import SGD, Device, Recipe, Synthetic, engines
from poc.machine.hardware import GPU, Hardware
from poc.plan import Planned, plan
from poc.records.record import Record
from poc.train.local import Place
from poc.train.parent import execute
from poc.values import UserError

HOME = Path(__file__).parent.parent
MACHINE = Hardware(cpu="Test CPU", cores=len(os.sched_getaffinity(0)), memory_bytes=2**34, cpu_flops=2e11)
IMAGES = Synthetic(train=2000, validation=400)
two_cores = pytest.mark.skipif(MACHINE.cores < 2, reason="two workers need two cores")


def planned(**fields: Any) -> Planned:
    base: dict[str, Any] = {"model": "cifar_mlp", "engine": "reference", "kind": "cpu", "data": IMAGES}
    base.update(batch_per_device=50, lr=0.05, epochs=2, window=5)
    (only,) = plan("test", Recipe(**{**base, **fields}), MACHINE)
    return only


def record_of(folder: Path, **fields: Any) -> Record:
    return execute(planned(**fields).run, Place(source=None, cache=folder), MACHINE, "here", detail=2)[0]


def losses(record: Record) -> list[float]:
    return [window.loss for window in record.windows]


@pytest.mark.slow
@pytest.mark.parametrize("module", ["poc.engines.gluon", "poc.engines.pytorch", "tests.engines.reference"])
def test_the_module_of_an_engine_has_the_types_of_the_seam(module: str) -> None:
    said, _, status = mypy.api.run(
        ["-c", f"import poc.engines\nimport {module}\nengine: poc.engines.Engine = {module}"]
    )
    assert status == 0, said


def test_every_engine_that_is_installed_says_which_package_it_is() -> None:
    assert {"gluon", "pytorch", "reference"} <= set(engines.ENGINES)
    labels = [engines.load(name).LABEL for name in engines.ENGINES]
    assert len(set(labels)) == len(labels)
    for engine in map(engines.load, engines.ENGINES):
        assert not engine.versions() or set(engine.PACKAGES) & set(engine.versions())


def test_what_an_engine_misses_for_the_gpus_of_a_machine_is_said_in_one_line() -> None:
    gpu = GPU(index=0, name="Tesla P100", capability=(6, 0), memory_bytes=2**34)
    gluon = engines.load("gluon")
    hint = gluon.missing(dataclasses.replace(MACHINE, gpus=(gpu,)))
    assert hint is None if "mxnet-cu112" in gluon.versions() else hint.startswith("mxnet without CUDA is installed")
    assert [engines.load(name).missing(MACHINE) for name in engines.ENGINES] == [None] * len(engines.ENGINES)


@pytest.mark.parametrize("inside", [True, False], ids=["named", "not named"])
def test_an_engine_of_ones_own_is_a_folder_that_poc_engines_names(inside: bool, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text('LABEL = "Mine"')
    script = "from poc import engines; print(engines.load('mine').LABEL, engines.load('gluon').LABEL)"
    folders = os.pathsep.join([str(HOME / "tests" / "engines"), str(tmp_path) if inside else ""])
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=HOME,
        env={**os.environ, "POC_ENGINES": folders},
        capture_output=True,
        text=True,
    )
    assert done.stdout == ("Mine MXNet\n" if inside else "")
    assert inside or "engine: 'mine' is not allowed; valid: gluon, pytorch, reference" in done.stderr


def test_an_engine_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'gluon'"):
        engines.load("gluom")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "cifar_resnet8_v2"}, "model cifar_resnet8_v2"),
        ({"optimizer": "nesterov"}, "optimizer Nesterov"),
        ({"optimizer": SGD(momentum_correction=True)}, "momentum correction"),
        ({"dtype": "bfloat16"}, "dtype bfloat16"),
        ({"devices": 2, "exchange": "local"}, "exchange Local"),
        ({"devices": 2, "exchange": Device(two_bit=0.5)}, "compressed gradients are"),
        ({"label_smoothing": 0.1}, "label_smoothing 0.1"),
        ({"layout": "NHWC"}, "layout NHWC"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_what_the_reference_engine_lacks_is_refused_by_its_name(fields: dict[str, Any], said: str) -> None:
    skip = planned(**fields).skip
    assert skip.startswith(said)
    assert " not NumPy's" in skip
    assert "\n" not in skip


@pytest.mark.slow
def test_a_run_of_the_reference_engine_learns(tmp_path: Path) -> None:
    record = record_of(tmp_path, epochs=4)
    assert (record.outcome, record.reason) == ("completed", "")
    assert record.parameters == 402_250  # counted by hand: 3072 x 128 + 128 x 64 + 64 x 10 weights, 202 biases
    assert [evaluation.samples for evaluation in record.evaluations] == [400] * 4
    assert record.evaluations[-1].accuracy > 0.9
    assert record.peak_flops > 1e9
    assert losses(record) == losses(record_of(tmp_path, epochs=4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"virtual": True},
        pytest.param({"workers": 2, "exchange": "dist_sync"}, marks=two_cores),
        pytest.param({"workers": 2, "exchange": "independent"}, marks=two_cores),
    ],
    ids=["virtual devices", "two workers", "two workers that exchange nothing"],
)
def test_however_four_devices_are_had_they_train_as_in_one_process(fields: dict[str, Any], tmp_path: Path) -> None:
    record, whole = (record_of(tmp_path, devices=4, **options) for options in (fields, {}))
    assert (record.outcome, record.reason) == ("completed", "")
    assert [evaluation.samples for evaluation in record.evaluations] == [400, 400]
    same = losses(record) == pytest.approx(losses(whole), rel=1e-4)
    assert same == (fields.get("exchange") != "independent")
    expected = True if fields.get("exchange") == "dist_sync" else None
    assert record.detail.sums_right is expected
