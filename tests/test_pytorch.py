"""The PyTorch engine: held to the Gluon engine's numbers, and to itself however the devices are had."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from poc.train.run import Place, execute

from poc import CIFAR10, SGD, Fixed, Muon, Recipe, Synthetic, data, engines
from poc.engines.pytorch import BUILDERS
from poc.machine.hardware import GPU, Hardware, detect
from poc.plan import plan
from poc.recipe import networks
from poc.report import rows
from poc.run import Run

pytestmark = pytest.mark.slow

HOME = Path(__file__).parent.parent
CPU = Hardware(cpu="Test CPU", cores=2, memory_bytes=2**34, cpu_flops=2e11)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
SMALL = Synthetic(size=16, crop=16, train=640, validation=70)


def run_of(engine: str = "pytorch", **fields: Any) -> Run:
    """Ten steps of a small network."""
    base: dict[str, Any] = {
        "model": "cifar_resnet8_v2",
        "data": SMALL,
        "kind": "cpu",
        "lr": 0.01,
        "batch_per_device": 64,
        "steps": 10,
        "engine": engine,
    }
    return plan("", Recipe(**{**base, **fields}), CPU)[0].run


def arrays(found: dict[str, np.ndarray], when: str = "after") -> list[np.ndarray]:
    return [found[name] for name in sorted(found) if name.startswith(when)]


def check_close(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    """Parameters and batch statistics within 1e-3, and within 1e-3 of their size where they are above one.

    PyTorch divides the variance of n values by n - 1 where it keeps it, MXNet by n: here a thousandth of half of it.
    """
    assert len(arrays(left)) == len(arrays(right)) > 20
    for one, other in zip(arrays(left), arrays(right)):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


WAYS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "a rate that changes": {"lr": Fixed(base=0.02, warmup_epochs=0.1, warmup_from=0.002, decay="linear")},
    "momentum correction": {
        "lr": Fixed(base=0.02, warmup_epochs=0.1, warmup_from=0.002),
        "optimizer": SGD(momentum_correction=True),
    },
    "nesterov": {"optimizer": "nesterov", "lr": Fixed(base=0.01, decay="cosine")},
    # Orthogonalising makes as much of a direction that is nearly rounding as of any other: small steps.
    "muon": {"optimizer": Muon(rate=0.001), "lr": 0.001},
    "smoothed labels, gammas spared": {"label_smoothing": 0.1, "optimizer": SGD(decay_gammas=False, weight_decay=0.01)},
    "units that start as identities": {"zero_gamma": True},
    "virtual devices": {"devices": 4, "virtual": True, "gradient_noise": 1},
    "without batch norm": {"model": "cifar_resnet20_v2_no_norm", "lr": 1e-4},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, np.ndarray], ...]]:
    """What each way gave with MXNet, and then from the same weights with PyTorch, each in a process of its own."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "runs.json").write_text(json.dumps([run_of(**fields).to_json() for fields in WAYS.values()]))
    for engine in ("gluon", "pytorch"):
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.engine_worker", engine, str(folder)], cwd=HOME, check=True
        )
    return {
        name: tuple(dict(np.load(folder / f"{engine}-{number}.npz")) for engine in ("gluon", "pytorch"))
        for number, name in enumerate(WAYS)
    }


@needs_torch
@pytest.mark.parametrize("name", WAYS)
def test_both_engines_take_the_same_steps(name: str, trained: dict[str, tuple[dict[str, np.ndarray], ...]]) -> None:
    gluon, torch = trained[name]
    assert [one.shape for one in arrays(gluon, "before")] == [one.shape for one in arrays(torch, "before")]
    assert all(np.array_equal(a, b) for a, b in zip(arrays(gluon, "before"), arrays(torch, "before")))
    # Without batch norm losses begin at hundreds of nats.
    np.testing.assert_allclose(torch["losses"], gluon["losses"], atol=1e-4, rtol=0 if gluon["losses"][0] < 5 else 1e-4)
    check_close(torch, gluon)
    assert gluon["parameters"] == torch["parameters"]
    np.testing.assert_allclose(torch["norms"], gluon["norms"], rtol=1e-2)
    assert torch["evaluated"][1] == gluon["evaluated"][1] == 70
    np.testing.assert_allclose(torch["evaluated"][2], gluon["evaluated"][2], rtol=1e-3)


@needs_torch
@pytest.mark.parametrize("name", [name for name in BUILDERS if name.startswith("cifar_")])
def test_networks_have_the_registry_s_parameters_from_the_same_distribution(name: str) -> None:
    session = engines.load("pytorch").open_session(run_of(model=name, data=Synthetic(size=32, crop=32, train=640)))
    assert session.parameters == networks.network(name).cost.parameters
    for key, weight in session.arrays().items():
        if weight.ndim > 1 and weight.size > 2000:
            fan_in = weight[0].size
            assert abs(weight.std() / np.sqrt(2 / fan_in) - 1) < 0.1, key
            assert abs(weight.mean()) < 0.1 * np.sqrt(2 / fan_in), key
        if weight.ndim == 1:
            assert set(np.unique(weight)) <= {0.0, 1.0}, key


@needs_torch
@pytest.mark.parametrize("exchange", ["device", "independent"])
def test_a_process_for_each_device_trains_as_one_that_plays_them(exchange: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"devices": 2, "exchange": exchange, "evaluate": True, "steps": 5}
    place = Place(source=None, cache=tmp_path / "cache", checkpoints=tmp_path / "kept")
    run = run_of(**fields)
    assert run.workers == 2
    record = execute(run, place, detect(), "here", detail=3)
    assert record["outcome"] == "completed", record["reason"]
    assert record["detail"]["sums_right"] is (True if exchange == "device" else None)
    assert record["evaluations"][0]["samples"] == 70
    both = [dict(np.load(next((tmp_path / "kept" / run.id).glob(f"worker{worker}-5-*.npz")))) for worker in (0, 1)]
    weights = [name for name in both[0] if name.endswith(("weight", "bias"))]
    agree = all(np.array_equal(both[0][name], both[1][name]) for name in weights)
    assert agree == (exchange == "device")
    if exchange == "device":
        played = run_of(**{**fields, "virtual": True})
        assert played.workers == 1
        execute(played, place, detect(), "here")
        alone = dict(np.load(next((tmp_path / "kept" / played.id).glob("worker0-5-*.npz"))))
        for name in alone:
            if name.endswith(("weight", "bias", "running_mean", "running_var")):
                np.testing.assert_allclose(both[0][name], alone[name], rtol=1e-4, atol=1e-5, err_msg=name)


@needs_torch
@pytest.mark.parametrize(
    "fields", [{}, {"optimizer": Muon(rate=0.02)}, {"optimizer": SGD(momentum_correction=True)}], ids=str
)
def test_a_session_goes_on_from_the_state_of_another(fields: dict[str, Any]) -> None:
    run = run_of(lr=Fixed(base=0.02, decay="linear"), **fields)
    dataset = data.load(run.data, source=None, cache=Path("unused"))
    load = engines.load("pytorch")

    def go(session: Any, first: int, last: int) -> Any:
        for step, batch in enumerate(
            data.training_batches(
                dataset, run.data, total_batch=run.total_batch, seed=0, first_step=first, steps=last - first
            ),
            start=first,
        ):
            session.step(batch, run.schedule.rate(step))
        session.drain()
        return session

    whole = go(load.open_session(run), 0, 8).arrays()
    cut = go(load.open_session(run), 0, 4).state()
    resumed = go(load.open_session(run, first_step=4, state=cut), 4, 8).arrays()
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("engine", ["gluon", pytest.param("pytorch", marks=needs_torch)])
def test_views_cut_on_the_device_are_those_cut_on_the_host(engine: str) -> None:
    generator = np.random.default_rng(0)
    split = data.Images(generator.integers(0, 256, (64, 32, 32, 3), np.uint8), (np.arange(64) % 10).astype(np.int32))
    dataset = data.Dataset("cifar10", split, split)
    losses = []
    for on_device in (False, True):
        spec = CIFAR10(crop=28, pad=4, jitter=False, on_device=on_device)
        run = dataclasses.replace(run_of(engine, batch_per_device=32, lr=0.001), data=spec)
        session = engines.load(engine).open_session(run)
        if on_device:
            session.hold(data.held(dataset, spec))
        for batch in data.training_batches(dataset, spec, total_batch=32, seed=0, steps=3):
            assert isinstance(batch.images, data.Views) == on_device
            session.step(batch, 0.001)
            losses.append(session.drain())
    np.testing.assert_allclose(losses[:3], losses[3:], rtol=1e-5)


@needs_torch
def test_bfloat16_trains_to_nearly_the_same_weights_which_stay_in_float32() -> None:
    if not detect().bfloat16:
        pytest.skip("this CPU has no bfloat16")
    found = []
    for dtype in ("float32", "bfloat16"):
        run = run_of(dtype=dtype, layout="NHWC")
        session = engines.load("pytorch").open_session(run)
        dataset = data.load(run.data, source=None, cache=Path("unused"))
        for batch in data.training_batches(dataset, run.data, total_batch=16, seed=0, steps=3):
            session.step(batch, 0.01)
        session.drain()
        found.append(session.arrays())
    assert all(one.dtype == np.float32 for one in found[1].values())
    names = [name for name in found[0] if name.endswith("weight") and found[0][name].ndim == 4]
    assert all(0 < np.linalg.norm(found[0][n] - found[1][n]) < 0.05 * np.linalg.norm(found[0][n]) for n in names)


@needs_torch
def test_a_row_names_the_engine(tmp_path: Path) -> None:
    run = run_of(steps=12, evaluate=False)
    record = execute(run, Place(source=None, cache=tmp_path), detect(), "here")
    assert record["outcome"] == "completed", record["reason"]
    row = rows.from_record(record)
    assert row.framework.startswith("PyTorch 2.")
    assert record["peak_flops"] > 1e9


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"devices": 2, "workers": 2, "exchange": "dist_sync"}, "exchange dist_sync is not PyTorch's; it has device"),
        ({"optimizer": "lars"}, "optimizer lars is MXNet's"),
        ({"dtype": "tf32"}, "tf32 is for GPUs"),
        ({"model": "cifar_vgg16", "data": Synthetic()}, "cifar_vgg16 is none of this engine's networks"),
    ],
)
def test_what_it_cannot_do_is_a_reason(fields: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poc.engines.pytorch.importlib.util.find_spec", lambda name: object())
    (planned,) = plan(
        "", Recipe(**{"model": "cifar_resnet8_v2", "data": SMALL, "kind": "cpu", "engine": "pytorch", **fields}), CPU
    )
    assert planned.skip.startswith(reason)


def test_without_pytorch_its_runs_are_skipped_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poc.engines.pytorch.importlib.util.find_spec", lambda name: None)
    (planned,) = plan("", Recipe(model="cifar_resnet8_v2", data=SMALL, engine="pytorch"), CPU)
    assert planned.skip == "PyTorch is not installed: ./make_environment.sh --torch"
    hopper = GPU(index=0, name="NVIDIA H100", capability=(9, 0), memory_bytes=2**36)
    told = engines.load("pytorch").unsupported(hopper)
    assert told is not None
    assert "--torch" in told


def test_the_rest_works_without_its_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(HOME / "poc", home / "poc", ignore=shutil.ignore_patterns("__pycache__", "pytorch"))
    shutil.copytree(HOME / "recipes", home / "recipes")
    for name, recipe in {
        "mine": "from poc import Recipe, Synthetic\nrecipe = Recipe(model='cifar_resnet8_v2', data=Synthetic(size=16,"
        " crop=16, train=640, validation=70), batch_per_device=32, epochs=1)\n",
        "other": "from poc import Recipe\nrecipe = Recipe(model='cifar_resnet8_v2', engine='pytorch')\n",
    }.items():
        (home / f"{name}.py").write_text(recipe)

    def poc(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "poc", *arguments],
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(home), "POC_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
        )

    assert poc("doctor").returncode == 0
    done = poc("run", "mine.py", "--results", str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr
    done = poc("plan", "other.py")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("poc: other.py: engine: 'pytorch' is not allowed")
