"""The Gluon session against itself: however the devices are had, the same batches give the same parameters."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import SGD, Muon, Recipe, Synthetic, data, engines, synthetic
from poc.engines import gluon
from poc.machine.hardware import GPU, Hardware, detect
from poc.plan import plan
from poc.run import Run

pytestmark = pytest.mark.slow

HOME = Path(__file__).parent.parent
CPU = Hardware(cpu="Test CPU", cores=2, memory_bytes=2**34, cpu_flops=2e11)
DATA = Synthetic(size=16, crop=16, train=640, validation=70)
STEPS = 5


def run_of(**fields: Any) -> Run:
    base: dict[str, Any] = {"model": "cifar_resnet8_v2", "data": DATA, "kind": "cpu", "lr": 0.05, "batch_per_device": 8}
    return plan("", Recipe(**{**base, **fields}), CPU)[0].run


def trained(run: Run, steps: int = STEPS) -> dict[str, np.ndarray]:
    """Parameters and batch statistics after some steps over the same batches, whatever the devices."""
    session = engines.load("gluon").open_session(run)
    dataset = data.load(run.data, source=None, cache=Path("unused"))
    for batch in data.training_batches(dataset, run.data, total_batch=run.total_batch, seed=0, steps=steps):
        session.step(batch, run.learning_rate)
    session.drain()
    session.evaluate(data.validation_batches(dataset, run.data, batch=70))
    return dict(session.arrays())


def distance(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> float:
    """The largest relative difference of any parameter, each measured against its own size."""
    assert left.keys() == right.keys()
    return max(
        float(np.linalg.norm(left[name] - right[name]) / max(np.linalg.norm(right[name]), 1e-6)) for name in left
    )


@pytest.fixture(scope="module")
def four_devices() -> dict[str, np.ndarray]:
    return trained(run_of(devices=4))


@pytest.mark.parametrize("fields", [{"exchange": "local"}, {"virtual": True}], ids=["kvstore local", "virtual devices"])
def test_four_devices_agree_however_they_are_had(four_devices: dict[str, np.ndarray], fields: dict[str, Any]) -> None:
    run = run_of(devices=4, **fields)
    assert run.virtual == fields.get("virtual", False)
    assert distance(trained(run), four_devices) < 1e-5


def test_training_changes_every_parameter_and_the_seed_all_that_is_drawn(four_devices: dict[str, np.ndarray]) -> None:
    untrained = trained(run_of(devices=4), steps=0)
    still = [name for name in four_devices if np.array_equal(four_devices[name], untrained[name])]
    assert still == ["features.0.gamma"]  # fixed at 1 in the study's input batch norm
    other = trained(Run.from_json({**run_of(devices=4).to_json(), "seed": 1}), steps=0)
    assert distance(other, untrained) > 0.1


def test_batch_norm_and_relu_in_one_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from poc.engines.gluon import networks, session

    fused = trained(run_of())
    assert networks.can_fuse() or pytest.skip("this CPU has no fused operator")
    monkeypatch.setattr(session, "can_fuse", lambda: False)
    apart = trained(run_of())
    assert distance(fused, apart) < 1e-5
    assert distance(fused, trained(run_of(), steps=1)) > 1e-3


def test_without_exchange_devices_do_not_agree(four_devices: dict[str, np.ndarray]) -> None:
    assert distance(trained(run_of(devices=4, exchange="independent")), four_devices) > 1e-3


def test_batch_norm_is_what_sets_four_devices_apart_from_one() -> None:
    plain = "cifar_resnet20_v2_no_norm"
    one = trained(run_of(model=plain, devices=1, batch_per_device=128, lr=1e-5))
    four = trained(run_of(model=plain, devices=4, batch_per_device=32, lr=1e-5))
    assert distance(four, one) < 1e-5
    with_norm = trained(run_of(devices=1, batch_per_device=32))
    assert distance(trained(run_of(devices=4, batch_per_device=8)), with_norm) > 1e-3


@pytest.mark.parametrize(("name", "parameters"), [("cifar_resnet50_v2", 758_621), ("cifar_resnet110_v2", 1_730_781)])
def test_the_networks_have_the_studys_parameters(name: str, parameters: int) -> None:
    session = engines.load("gluon").open_session(run_of(model=name, data=Synthetic(size=28, crop=28)))
    assert session.parameters == parameters


def test_weights_and_gammas_decay_biases_and_betas_do_not() -> None:
    session: Any = engines.load("gluon").open_session(run_of())
    decayed = {p.name.rsplit("_", 1)[-1] for p in session._trained if p.wd_mult > 0}
    spared = {p.name.rsplit("_", 1)[-1] for p in session._trained if p.wd_mult == 0}
    assert (decayed, spared) == ({"weight", "gamma"}, {"beta", "bias"})


def test_evaluation_counts_every_image_once_on_any_number_of_devices(tmp_path: Path) -> None:
    # 70 images in batches of 32 leave a short one of 6, which four devices cannot share equally.
    found = []
    for devices in (1, 4):
        run = run_of(devices=devices)
        session = engines.load("gluon").open_session(run)
        dataset = data.load(run.data, source=None, cache=tmp_path)
        found.append(session.evaluate(data.validation_batches(dataset, run.data, batch=32)))
    assert found[0].samples == found[1].samples == 70
    assert found[0].correct == found[1].correct
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"devices": 2},
        {"devices": 2, "virtual": True},
        {"optimizer": SGD(momentum_correction=True)},
        {"optimizer": "nesterov"},
        {"optimizer": "lars"},
        {"optimizer": Muon(rate=0.02)},
        {"model": "cifar_vgg16", "data": Synthetic(size=32, crop=32, train=640, validation=70), "lr": 0.01},
    ],
    ids=["1", "2", "virtual", "momentum correction", "nesterov", "lars", "muon", "dropout"],
)
def test_a_session_goes_on_from_the_state_of_another(fields: dict[str, Any], tmp_path: Path) -> None:
    run = run_of(**fields)
    dataset = data.load(run.data, source=None, cache=tmp_path)
    batches = list(data.training_batches(dataset, run.data, total_batch=run.total_batch, seed=0, steps=4))
    whole = engines.load("gluon").open_session(run)
    for batch, rate in zip(batches[:2], (0.05, 0.02)):
        whole.step(batch, rate)
    state = whole.state()
    for batch, rate in zip(batches[2:], (0.04, 0.01)):
        whole.step(batch, rate)
    resumed = engines.load("gluon").open_session(run, first_step=2, state=state)
    assert all(np.array_equal(resumed.state()[name], state[name]) for name in state)
    for batch, rate in zip(batches[2:], (0.04, 0.01)):
        resumed.step(batch, rate)
    ended = whole.state()
    assert all(np.array_equal(resumed.state()[name], ended[name]) for name in ended)
    assert distance(resumed.arrays(), whole.arrays()) == 0
    assert distance(resumed.arrays(), engines.load("gluon").open_session(run).arrays()) > 1e-3


def test_the_loss_of_a_window_is_the_mean_over_its_samples(tmp_path: Path) -> None:
    run = run_of()
    session = engines.load("gluon").open_session(run)
    dataset = data.load(run.data, source=None, cache=tmp_path)
    (batch,) = data.training_batches(dataset, run.data, total_batch=8, seed=0, steps=1)
    session.step(batch, 0.0)
    once = session.drain()
    session.step(batch, 0.0)
    session.step(batch, 0.0)
    assert session.drain() == pytest.approx(once, rel=1e-5)
    assert np.isnan(session.drain())


@pytest.mark.parametrize(
    ("name", "capability", "runs"),
    [
        ("Tesla K80", (3, 7), False),
        ("Tesla M60", (5, 2), True),
        ("Tesla P100", (6, 0), True),
        ("Tesla V100", (7, 0), True),
        ("Tesla T4", (7, 5), True),
        ("A100", (8, 0), True),
        ("L4", (8, 9), True),
        ("H100", (9, 0), False),
        ("B200", (10, 0), False),
    ],
)
def test_which_cards_this_mxnet_runs_on(name: str, capability: tuple[int, int], runs: bool) -> None:
    reason = gluon.unsupported(GPU(index=0, name=name, capability=capability, memory_bytes=2**34))
    assert (reason is None) == runs
    if reason is not None:
        assert name in reason


@pytest.mark.parametrize(
    "module", ["poc", "poc.__main__", "poc.data", "poc.train.run", "poc.report", "poc.engines.gluon"]
)
def test_only_a_session_imports_mxnet(module: str) -> None:
    code = f"import sys, {module}; sys.exit('mxnet' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME).returncode == 0


def test_a_batch_that_comes_again_is_on_the_device_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(data=synthetic("cifar"))
    session: Any = engines.load("gluon").open_session(run)
    copies = []
    split = session._split
    monkeypatch.setattr(session, "_split", lambda *arrays: copies.append(1) or split(*arrays))
    dataset = data.load(run.data, source=None, cache=tmp_path)
    for batch in data.training_batches(dataset, run.data, total_batch=8, seed=0, steps=4):
        session.step(batch, 0.01)
    assert np.isfinite(session.drain())
    assert len(copies) == 1


def test_the_peak_is_that_of_a_matrix_product() -> None:
    session = engines.load("gluon").open_session(run_of())
    size = 1024
    left = np.ones((size, size), np.float32)
    left @ left
    start = time.perf_counter()
    left @ left
    numpy_flops = 2 * size**3 / (time.perf_counter() - start)
    # Two libraries on a shared machine: the order of magnitude.
    assert numpy_flops / 5 < session.peak_flops() < numpy_flops * 5


BFLOAT16 = """
import numpy as np
from tests.test_gluon import DATA, run_of, trained
both = {dtype: trained(run_of(dtype=dtype, lr=0.01)) for dtype in ("float32", "bfloat16")}
def distance(name):
    left, right = both["bfloat16"][name], both["float32"][name]
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))
weights = [name for name in both["float32"] if name.endswith("weight")]
print(max(map(distance, weights)), min(both["bfloat16"][name].dtype == np.float32 for name in weights))
"""

# What one step from the same weights adds to each: the learning rate times its gradient.
BFLOAT16_GRADIENTS = """
from pathlib import Path
import numpy as np
from poc import SGD, engines
from poc.data import load, training_batches
from poc.recipe import Synthetic
from tests.test_gluon import run_of
DATA = load(Synthetic(size=28, crop=28, train=256), source=None, cache=Path("unused"))
def gradients(dtype, fields):
    run = run_of(data=Synthetic(size=28, crop=28, train=256), batch_per_device=64 // fields.get("devices", 1),
                 optimizer=SGD(weight_decay=0.0, momentum=0.0), dtype=dtype, **fields)
    session = engines.load("gluon").open_session(run)
    (batch,) = training_batches(DATA, run.data, total_batch=64, seed=0, steps=1)
    before = session.arrays()
    session.step(batch, 1.0)
    return {name: (before[name] - after).ravel() for name, after in session.arrays().items() if "running" not in name}
ways = ({}, {"devices": 2, "virtual": True})
# All in float32 first: the casts stay.
both = [[gradients(dtype, fields) for fields in ways] for dtype in ("float32", "bfloat16")]
for wide, narrow in zip(*both):
    trained = [name for name in wide if wide[name].any()]
    norm = np.linalg.norm
    print(
        min(float(wide[name] @ narrow[name] / (norm(wide[name]) * norm(narrow[name]) + 1e-30)) for name in trained),
        min(float(norm(narrow[name]) / norm(wide[name])) for name in trained),
    )
"""


@pytest.mark.skipif(not detect().bfloat16, reason="this CPU has no AVX-512 bf16")
def test_bfloat16_trains_to_nearly_the_same_weights_which_stay_in_float32() -> None:
    # Its casts change MXNet for good: a process of its own.
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", BFLOAT16], cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    furthest, whole = done.stdout.split()[-2:]
    assert 1e-5 < float(furthest) < 0.05
    assert whole == "True"


@pytest.mark.skipif(not detect().bfloat16, reason="this CPU has no AVX-512 bf16")
def test_bfloat16_gives_every_parameter_a_gradient_of_the_right_direction_and_size() -> None:
    # With the fused norm of float32 the first weights got a wrong one, and with virtual devices all weights a zero.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BFLOAT16_GRADIENTS], cwd=HOME, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    figures = [float(word) for word in done.stdout.split()]
    assert len(figures) == 4
    assert min(figures) > 0.8, figures
