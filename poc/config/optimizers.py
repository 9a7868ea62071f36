"""The optimizers that a recipe may name. A framework has a table of those that it knows, by their type."""

from __future__ import annotations

from typing import ClassVar

from poc.values import checked, field, flag, positive, positive_or_zero, share, value, words


@value
class Optimizer:
    """How parameters follow gradients, with momentum. The learning rate is the run's."""

    momentum: float = field(default=0.9, check=share, label="momentum {:g}")
    weight_decay: float = field(default=1e-4, check=positive_or_zero, label="weight decay {:g}")
    """L2 penalty on weights and batch norm's gammas; not on biases and betas, as in the study. Muon's convolutions
    shrink by it, times their rate, apart from their gradients."""
    decay_gammas: bool = field(default=True, check=flag, label="no weight decay on gammas")
    """False: the penalty is on weights only (Goyal et al. 2017)."""

    name: ClassVar[str]
    label: ClassVar[str]
    sized_by_gradient: ClassVar[bool] = True
    """Whether a larger gradient makes a larger update."""

    def __post_init__(self) -> None:
        checked(self, f"optimizer: {type(self).__name__}.")

    def __str__(self) -> str:
        """Its name, with all options that are not left at their default."""
        return ", ".join([self.label, *words(self).values()])


@value
class SGD(Optimizer):
    """Stochastic gradient descent with momentum."""

    momentum_correction: bool = field(default=False, check=flag, label="momentum correction")
    """The velocity follows when the learning rate changes (Goyal et al. 2017)."""

    name = "sgd"
    label = "SGD"


@value
class Nesterov(Optimizer):
    """SGD with Nesterov momentum."""

    name = "nesterov"
    label = "SGD with Nesterov momentum"


@value
class LARS(Optimizer):
    """Layer-wise adaptive rates (You et al. 2017): each weight's rate is scaled by |weight| / |gradient|."""

    name = "lars"
    label = "LARS"
    sized_by_gradient = False


@value
class Muon(Optimizer):
    """Orthogonalised momentum for convolutions, SGD with Nesterov momentum for the rest (Jordan et al. 2024)."""

    lr: float = field(check=positive, json="muon_rate", label="lr {:g} for convolutions")
    """Learning rate of the convolutions at the full rate, the recipe's `lr`, of the rest; it has the same warm-up and
    decay."""
    unit_weights: bool = field(default=False, check=flag, label="unit-norm convolutions")
    """Before each step a convolution is scaled to the norm of an orthogonal one, the root of its outputs (Jordan 2024,
    `airbench94_muon`), so that a rate means the same share of it from the first step to the last. Weights that start at
    zero, as `zero_init_gamma` has them in "_v2", get that size from their first gradient."""

    name = "muon"
    label = "Muon"
    sized_by_gradient = False
    coefficients: ClassVar[tuple[float, float, float]] = (3.4445, -4.7750, 2.0315)
    """Of the quintic Newton-Schulz iteration that brings singular values near to one."""
    iterations: ClassVar[int] = 5


@value
class AdamW(Optimizer):
    """Adam with decoupled weight decay and bias correction (Loshchilov and Hutter 2019)."""

    momentum: ClassVar[float] = 0.0  # type: ignore[misc]  # no option of it: beta1 takes its place
    beta1: float = field(default=0.9, check=share, label="beta1 {:g}")
    """Decay rate of the mean of the gradients."""
    beta2: float = field(default=0.999, check=share, label="beta2 {:g}")
    """Decay rate of the mean of their squares."""
    weight_decay: float = field(default=0.01, check=positive_or_zero, label="weight decay {:g}")
    """Times the learning rate, the fraction of the weights that a step subtracts."""
    epsilon: float = field(default=1e-8, check=positive, label="epsilon {:g}")

    name = "adamw"
    label = "AdamW"
    sized_by_gradient = False


OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (SGD, Nesterov, LARS, Muon, AdamW)}
