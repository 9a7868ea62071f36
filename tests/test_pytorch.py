"""PyTorch alone: initial weights, bfloat16 and float16, processes per device, and its absence."""

import dataclasses
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import AdamW, Muon, Synthetic, frameworks
from poc.frameworks import Session
from poc.host.hardware import detect
from tests import fake_gpus
from tests.extras import needs_compiler, of_torch
from tests.framework_worker import Arrays, batches, distance, interleaved, parameters, planned, trained, workers

AIRBENCH: dict[str, Any] = {
    "model": "cifar_airbench94",
    "data": Synthetic(size=32, crop=32, train=640, validation=70),
}


def on_card(test: Any) -> Any:
    """Skip the test without PyTorch for CUDA, which alone has the calls that the simulated card answers."""
    version = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else ""
    needs_cuda = pytest.mark.skipif("+cpu" in version, reason="PyTorch is its CPU build; a CUDA build is needed")
    return needs_cuda(needs_compiler(of_torch(test)))


@of_torch
@pytest.mark.parametrize("name", ["cifar_resnet20_v2", "cifar_resnet164_v2", "cifar_resnet20_v2_no_norm"])
def test_initial_weights_have_he_s_distribution(name: str) -> None:
    session = frameworks.open_session(planned("pytorch", model=name).run)
    for key, weight in session.state().items():
        if key.endswith("weight") and weight.size > 2000:
            deviation = np.sqrt(2 / weight[0].size)
            assert abs(weight.std() / deviation - 1) < 0.1, key
            assert abs(weight.mean()) < 0.1 * deviation, key
        if key.startswith("parameter/") and weight.ndim == 1:
            assert set(np.unique(weight)) <= {0.0, 1.0}, key


@of_torch
def test_a_profile_finds_wrong_sums_of_ddp_and_times_one_all_reduce(tmp_path: Path) -> None:
    run = planned("pytorch", devices=2).run
    parameters_of_one = frameworks.open_session(planned("pytorch").run).parameters
    for seen in workers(run, tmp_path, "wrong_sums"):
        assert seen["right"].tolist() == [True, False]
        assert seen["sent"].tolist() == [parameters_of_one]
        assert seen["interfaces"].tolist() == ["lo", "=lo"]


@of_torch
def test_bfloat16_trains_to_nearly_the_same_weights_which_stay_in_float32() -> None:
    if not detect().bfloat16:
        pytest.skip("this CPU has no bfloat16")
    wide, narrow = (
        trained(frameworks.open_session(run), run)
        for run in (planned("pytorch", dtype=dtype, layout="NHWC").run for dtype in ("float32", "bfloat16"))
    )
    convolutions = [name for name in wide if name.startswith("parameter/") and wide[name].ndim == 4]
    assert convolutions
    for name in convolutions:
        assert 0 < np.linalg.norm(wide[name] - narrow[name]) < 0.05 * np.linalg.norm(wide[name]), name


@of_torch
@pytest.mark.parametrize(
    ("fields", "dtype", "most"),
    [
        ({"model": "cifar_resnet50_v2"}, "float32", (420, 10)),
        ({"model": "cifar_resnet50_v2"}, "bfloat16", (450, 10)),
        ({**AIRBENCH, "optimizer": Muon(lr=0.02, unit_weights=True)}, "bfloat16", (110, 120)),
    ],
    ids=["float32", "bfloat16", "Muon"],
)
def test_a_step_has_few_operators(fields: dict[str, Any], dtype: Any, most: tuple[int, int]) -> None:
    from tests.torch_tape import of_a_step

    run = dataclasses.replace(planned("pytorch", layout="NHWC", batch_per_device=2, **fields).run, dtype=dtype)
    computed, updated = of_a_step(frameworks.open_session(run), *batches(run, steps=2))
    assert (computed.counts.total() <= most[0], updated.counts.total() <= most[1]) == (True, True), (computed, updated)


@of_torch
@pytest.mark.parametrize("fields", [{"model": "cifar_resnet8_v2"}, AIRBENCH], ids=str)
def test_weights_cast_together_give_autocast_s_gradients(fields: dict[str, Any]) -> None:
    import torch

    from poc.frameworks.pytorch.networks import LowPrecision

    session: Any = frameworks.open_session(planned("pytorch", layout="NHWC", **fields).run)
    images = torch.rand(4, 3, 32, 32)
    seen = []
    for net in (session._net, LowPrecision(session._net, torch.bfloat16)):
        session._optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            scores = net(images)
        scores.float().square().sum().backward()
        seen.append([scores, *session._gradients()])
    assert all(map(torch.equal, *seen))
    assert {gradient.dtype for gradient in seen[1][1:]} == {torch.float32}


@of_torch
@pytest.mark.parametrize(
    "fields",
    [*({"optimizer": each} for each in ("sgd", Muon(lr=0.02), AdamW(epsilon=1e-3))), {"accumulate": 2}],
    ids=str,
)
def test_in_float16_a_step_that_overflows_changes_nothing_and_halves_the_scale(fields: dict[str, Any]) -> None:
    plan = planned("pytorch", **fields, lr=0.001).run
    run, wide = (dataclasses.replace(plan, dtype=dtype) for dtype in ("float16", "float32"))
    fed, rate = list(batches(run)), run.learning_rate

    def weights(session: Session) -> Arrays:
        return {name: array for name, array in parameters(session).items() if array.ndim > 1}

    session, other = frameworks.open_session(run), frameworks.open_session(wide)
    start = 1024.0 * run.global_batch
    for number, batch in enumerate(fed[:2], start=1):
        session.step(batch, rate)
        other.step(batch, rate)
        assert session.state()["loss_scale"].tolist() == [start, number]
    assert 0 < distance(weights(session), weights(other)) < 0.02
    # From a scale at which every gradient overflows, down to the largest at which none does.
    state = {name: array.copy() for name, array in session.state().items()}
    scale, good = 2.0**36, 0.0
    session = frameworks.open_session(run, first_step=2, state={**state, "loss_scale": np.array([scale, 7])})
    unchanged = [name for name, array in state.items() if array.dtype == np.float32 and "running" not in name]
    while not good:
        seen = session.state()
        assert all(np.array_equal(seen[name], state[name]) for name in unchanged)
        session.step(fed[2], rate)
        before, (scale, good) = scale, session.state()["loss_scale"]
        assert scale == (before if good else before / 2)
    other.step(fed[2], rate)
    assert 1 < scale < 2.0**36
    assert 0 < distance(weights(session), weights(other)) < 0.02


ON_A_CARD: tuple[dict[str, Any], ...] = (
    {"layout": "NHWC", "gradient_noise": 1, "devices": 2, "emulated": True},
    {"dtype": "tf32", "layout": "NCHW", "optimizer": Muon(lr=0.02)},
    {"dtype": "bfloat16", "layout": "NHWC", "optimizer": "nesterov"},
    {"dtype": "float16", "layout": "NCHW"},
    {"layout": "NCHW", "optimizer": AdamW(epsilon=1e-3), "lr": 0.001},
)
ON_TWO_CARDS: tuple[dict[str, Any], ...] = (
    {"layout": "NHWC", "gradient_noise": 2, "devices": 2},
    {"model": "cifar_resnet20_v2_no_norm", "lr": 1e-4, "steps": 2, "devices": 2},
    {"dtype": "float16", "layout": "NCHW", "kvstore": "none", "devices": 2},
)


@on_card
@pytest.mark.parametrize("several", [ON_A_CARD, ON_TWO_CARDS], ids=["one process", "two processes"])
def test_a_card_takes_the_cpu_s_steps(
    several: tuple[dict[str, Any], ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tests.fake_gpus import card

    runs = [planned("pytorch", **fields).run for fields in several]
    asked = [(run, "trained") for run in runs]
    on_cpu = [(dataclasses.replace(run, dtype="float32"), task) for run, task in asked]
    if several is ON_A_CARD:
        # Batches that another thread puts on the card are the same, new ones or one that comes again.
        for fixed in (False, True):
            data = Synthetic(size=16, crop=16, train=640, validation=70, fixed=fixed)
            run = planned("pytorch", data=data).run
            asked.append((run, "placed_ahead"))
            on_cpu.append((run, "trained"))
        cpu = [[trained(frameworks.open_session(run), run)] for run, _ in on_cpu]
        asked.append((runs[0], "peaks"))
    else:
        cpu = interleaved(on_cpu, tmp_path / "cpu")
    # Processes that start from here on have a CUDA card, whose kernels compute on the CPU.
    for name, setting in {**fake_gpus.environment("8 A100"), **card.environment(tmp_path)}.items():
        monkeypatch.setenv(name, setting)
    # Which records no graphs.
    simulated = [(dataclasses.replace(run, kind="gpu", graphs=False), task) for run, task in asked]
    gpu = interleaved(simulated, tmp_path / "card")
    if several is ON_A_CARD:
        ((before, after),) = (seen["bytes"] for seen in gpu[-1])
        assert 1e8 <= before[0] <= before[1]
        assert 0 < after[0] <= after[1] < 1e8
    for (run, task), made, expected in zip(asked, gpu, cpu):
        for seen, wanted in zip(made, expected):
            if run.dtype in ("float32", "tf32"):
                # AdamW counts its steps on the card, in float32, where 1 - 0.999 has few digits.
                assert distance(seen, wanted) <= (0.02 if isinstance(run.optimizer, AdamW) else 0), run
            else:
                assert distance(seen, wanted) > 0, run
                np.testing.assert_allclose(seen["losses"], wanted["losses"], rtol=0.005, err_msg=str(run))
            if task == "trained":
                np.testing.assert_array_equal(seen["norms"], wanted["norms"], err_msg=str(run))
                assert seen["sums right"] == wanted["sums right"], run


@pytest.mark.parametrize("installed", [{}, {"torch": "2.13.0"}])
def test_without_all_of_pytorch_its_runs_are_skipped_with_a_command_that_installs_it(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poc.frameworks.pytorch.versions", lambda name: installed)
    assert planned("pytorch", model="cifar_resnet8_v2").skip.endswith("./make_environment.sh --torch")


@of_torch
def test_compile_needs_a_compiler_and_python_s_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def skip() -> str:
        return planned("pytorch", model="cifar_resnet8_v2", compile=True).skip

    compiler = tmp_path / "g++"
    compiler.touch(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert str(tmp_path / "Python.h") in skip()
    (tmp_path / "Python.h").touch()
    assert skip() == ""
    compiler.unlink()
    assert "g++" in skip()


def test_a_worker_beside_a_gpu_has_one_openmp_thread() -> None:
    run = planned("pytorch", model="cifar_resnet8_v2").run
    threads = {}
    for kind in ("cpu", "gpu"):
        with frameworks.load("pytorch").cluster(dataclasses.replace(run, kind=kind), 7) as cluster:
            threads[kind] = cluster.environments[0]["OMP_NUM_THREADS"]
    assert threads == {"cpu": "7", "gpu": "1"}
