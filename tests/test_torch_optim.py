"""Optimizers of `torch.optim` by name: their steps, checkpoints and labels, and what is refused."""

import dataclasses
from typing import Any

import pytest

from poc import Recipe, TorchOptimizer
from poc.config import literals
from poc.config.run import Run
from poc.values import UserError
from tests import test_frameworks
from tests.builders import run_of
from tests.conftest import refused
from tests.extras import of_torch
from tests.framework_worker import planned

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
        fields = run_of().to_json()
        return Run.from_json({**fields, "optimizer": vars(TorchOptimizer("Adam", **options))})

    ids = {run(**options).id for options in ({}, {"eps": 0.1}, {"amsgrad": True}, {"weight_decay": 0.1})}
    assert len(ids) == 4
    first = run(eps=0.1, betas=(0.8, 0.9))
    assert first.id == run(betas=(0.8, 0.9), eps=0.1).id
    assert Run.from_json(first.to_json()) == first
    assert "Adam (torch.optim), betas (0.8, 0.9), eps 0.1" in str(first)
    assert first.training_recipe.startswith("Adam (torch.optim), betas (0.8, 0.9), eps 0.1")
