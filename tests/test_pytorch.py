"""PyTorch alone: initial weights, bfloat16 and float16, processes per device, its optimizers, and its absence."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import AdamW, Muon, Recipe, Synthetic, TorchOptimizer, frameworks
from poc.config import literals
from poc.config.run import Run
from poc.frameworks import Session
from poc.host.hardware import detect
from poc.values import UserError, from_plain, to_plain
from tests import test_frameworks
from tests.builders import MACHINE, run_of
from tests.conftest import of_torch, refused
from tests.framework_worker import Arrays, batches, distance, interleaved, parameters, planned, trained

AIRBENCH: dict[str, Any] = {
    "model": "cifar_airbench94",
    "data": Synthetic(size=32, crop=32, train=640, validation=70),
}


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
    [{"accumulate": 2}, {"optimizer": Muon(lr=0.02)}, {"optimizer": AdamW(epsilon=1e-3)}],
    ids=str,
)
def test_in_float16_a_step_that_overflows_changes_nothing_and_halves_the_scale(fields: dict[str, Any]) -> None:
    plan = planned("pytorch", **fields, lr=0.001, batch_per_device=2).run
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
    scale, good = 2.0**22, 0.0
    session = frameworks.open_session(run, first_step=2, state={**state, "loss_scale": np.array([scale, 7])})
    unchanged = [name for name, array in state.items() if array.dtype == np.float32 and "running" not in name]
    while not good:
        seen = session.state()
        assert all(np.array_equal(seen[name], state[name]) for name in unchanged)
        session.step(fed[2], rate)
        before, (scale, good) = scale, session.state()["loss_scale"]
        assert scale == (before if good else before / 2)
    other.step(fed[2], rate)
    assert 1 < scale < 2.0**22
    assert 0 < distance(weights(session), weights(other)) < 0.02


@of_torch
@pytest.mark.parametrize(("batch", "scale"), [(32, 2**15), (128, 2**16)])
def test_the_mean_loss_is_scaled_at_first_as_that_of_64_samples_at_most(batch: int, scale: float) -> None:
    run = dataclasses.replace(planned("pytorch", batch_per_device=batch).run, dtype="float16")
    assert frameworks.open_session(run).state()["loss_scale"].tolist() == [scale, 0]


# Two workers: their processes, which take seconds to start, do all checks one after another


TWO = {"devices": 2}
FOR_TWO: dict[str, tuple[dict[str, Any], str]] = {
    "plain": (TWO, "trained"),
    "accumulating": ({**TWO, **test_frameworks.ACCUMULATING}, "counted"),
    "micro-batches": (test_frameworks.TWO_SHARES, "trained"),
    "none": ({**TWO, "kvstore": "none"}, "trained"),
    "replayed": ({**TWO, "accumulate": 2, "steps": 15}, "replayed"),
    "never replayed": ({**TWO, "accumulate": 2, "steps": 15}, "never_replayed"),
    "wrong sums": (TWO, "wrong_sums"),  # last, since it spoils all later ones
}
"""Fields and task by name."""


def of_two(name: str) -> Run:
    return planned("pytorch", **FOR_TWO[name][0]).run


@of_torch
@pytest.mark.skipif(MACHINE.cores < 2, reason="two workers need two cores")
def test_two_workers_train_as_emulated_devices_or_each_for_itself_and_replay_and_find_wrong_sums(
    tmp_path: Path,
) -> None:
    """Check all in one test, since test processes that share them would start the workers twice."""
    seen = dict(zip(FOR_TWO, interleaved([(of_two(name), task) for name, (_, task) in FOR_TWO.items()], tmp_path)))
    for name in ("plain", "accumulating", "none"):
        test_frameworks.check_devices(of_two(name), seen[name])
    test_frameworks.check_micro_batches(of_two("micro-batches"), seen["micro-batches"])
    for replayed, eager in zip(seen["replayed"], seen["never replayed"]):
        assert replayed.pop("recorded") == 1
        for name, array in eager.items():
            np.testing.assert_array_equal(replayed[name], array, err_msg=name)
    parameters_of_one = frameworks.open_session(planned("pytorch").run).parameters
    for profiled in seen["wrong sums"]:
        assert profiled["right"].tolist() == [True, False]
        assert profiled["sent"].tolist() == [parameters_of_one]
        assert profiled["interfaces"].tolist() == ["lo", "=lo"]


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


@of_torch
def test_processes_of_the_compiler_end_with_the_session_so_that_their_time_is_the_run_s_own() -> None:
    from torch._inductor.async_compile import AsyncCompile

    run = dataclasses.replace(planned("pytorch", model="cifar_resnet8_v2").run, compile=True)
    session = frameworks.open_session(run)
    assert AsyncCompile.process_pool().submit(sum, [1, 2]).result() == 3
    before = os.times().children_user
    session.close()
    assert os.times().children_user > before + 0.5  # to import torch


def test_a_worker_beside_a_gpu_has_one_openmp_thread() -> None:
    run = planned("pytorch", model="cifar_resnet8_v2").run
    threads = {}
    for kind in ("cpu", "gpu"):
        with frameworks.load("pytorch").cluster(dataclasses.replace(run, kind=kind), 7) as cluster:
            threads[kind] = cluster.environments[0]["OMP_NUM_THREADS"]
    assert threads == {"cpu": "7", "gpu": "1"}


# Optimizers of `torch.optim` by name: their steps, checkpoints and labels, and what is refused


RMSPROP = TorchOptimizer("RMSprop", alpha=0.9, momentum=0.9, centered=True, eps=1e-3, weight_decay=0.01)


@of_torch
@pytest.mark.parametrize(
    "optimizer",
    [
        RMSPROP,
        TorchOptimizer("Adagrad", initial_accumulator_value=0.1),
        TorchOptimizer("NAdam", betas=(0.8, 0.99), decoupled_weight_decay=True, weight_decay=0.01),
        TorchOptimizer("Adafactor", eps=(None, 1e-3)),
        TorchOptimizer("ASGD", t0=1),
    ],
    ids=str,
)
def test_a_run_resumes_to_the_same_bits(optimizer: TorchOptimizer) -> None:
    run = dataclasses.replace(planned("pytorch", layout="NHWC").run, optimizer=optimizer)
    test_frameworks.test_a_session_resumes_to_the_same_bits_from_the_state_of_another(run)


@of_torch
def test_the_steps_are_those_of_the_class_at_the_learning_rate_of_each_step() -> None:
    import torch

    from poc.frameworks.pytorch import optimizers

    ours, theirs = ([torch.ones(3, 2).requires_grad_(), torch.ones(2).requires_grad_()] for _ in range(2))
    run = planned("pytorch", optimizer=RMSPROP).run
    optimizer = optimizers.build(run, ours, [True, False])
    options: dict[str, Any] = {"alpha": 0.9, "momentum": 0.9, "centered": True, "eps": 1e-3}
    groups = [{"params": theirs[:1], "weight_decay": 0.01}, {"params": theirs[1:]}]
    reference = torch.optim.RMSprop(groups, **options)
    for rate in (0.1, 0.3, 0.0, 0.2):
        for parameter in (*ours, *theirs):
            parameter.grad = rate * parameter.detach() + 1
        optimizers.set_learning_rate(optimizer, rate)
        for group in reference.param_groups:
            group["lr"] = rate
        optimizer.step()
        reference.step()
    assert all(map(torch.equal, ours, theirs))
    assert not torch.equal(ours[0][0], ours[1])


@of_torch
@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (TorchOptimizer("RMSpro"), "did you mean 'RMSprop'"),
        (TorchOptimizer("lr_scheduler"), "no class 'lr_scheduler'"),
        (TorchOptimizer("RMSprop", alfa=0.9), "RMSprop has no option 'alfa'; did you mean 'alpha'"),
        (TorchOptimizer("RMSprop", alpha=-0.5), "Invalid alpha value: -0.5"),
    ],
    ids=str,
)
def test_an_unknown_class_or_option_or_a_wrong_value_is_found_by_a_plan(optimizer: TorchOptimizer, words: str) -> None:
    with refused(f"^TorchOptimizer: .*{words}"):
        planned("pytorch", optimizer=optimizer)


@pytest.mark.parametrize(
    ("algorithm", "options", "words"),
    [
        ("LBFGS", {}, "several times per step"),
        ("SparseAdam", {}, "sparse"),
        ("Rprop", {}, "no learning rate"),
        ("Muon", {}, r"use optimizer=Muon\("),
        ("SGD", {}, r"use optimizer=SGD\("),
        ("Adam", {"lr": 0.1}, "lr"),
        ("Adam", {"eps": "small"}, "'small'"),
        ("Adam", {"eps": float("inf")}, "inf"),
    ],
)
def test_what_does_not_fit_a_run_is_refused_at_once(algorithm: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"TorchOptimizer.*{words}"):
        TorchOptimizer(algorithm, **options)


@of_torch
def test_float16_is_skipped() -> None:
    assert "dtype=float16" in planned("pytorch", optimizer=RMSPROP, dtype="float16").skip


def test_name_and_options_identify_a_run() -> None:
    assert planned("mxnet", optimizer=RMSPROP).skip.startswith("optimizer=")
    (setting,) = Recipe(
        "cifar_resnet8_v2", **literals.fields(["optimizer=TorchOptimizer(Adam, eps=0.001, amsgrad=True)"])
    ).settings()
    assert setting.optimizer == TorchOptimizer("Adam", amsgrad=True, eps=0.001)

    def run(**options: Any) -> Run:
        fields = to_plain(run_of())
        return from_plain(Run, {**fields, "optimizer": vars(TorchOptimizer("Adam", **options))})

    ids = {run(**options).id for options in ({}, {"eps": 0.1}, {"amsgrad": True}, {"weight_decay": 0.1})}
    assert len(ids) == 4
    first = run(eps=0.1, betas=(0.8, 0.9))
    assert first.id == run(betas=(0.8, 0.9), eps=0.1).id
    assert from_plain(Run, to_plain(first)) == first
    assert "Adam (torch.optim), betas (0.8, 0.9), eps 0.1" in str(first)
    assert first.training_recipe.startswith("Adam (torch.optim), betas (0.8, 0.9), eps 0.1")
