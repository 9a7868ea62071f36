"""Optimizers of a recipe. To add one: a class here, a member of `AnyOptimizer`, and its update in a framework."""

from typing import Annotated, Any, ClassVar, Literal, Union, get_args

import pydantic
from pydantic_core import ArgsKwargs

from poc.config.fields import by_name, configuration, field, labels
from poc.values import Flag, Positive, PositiveOrZero, Share, UserError, invalid


@configuration
class Optimizer:
    """Constants that all optimizers have. The learning rate is the run's."""

    name: str

    label: ClassVar[str]
    momentum = 0.0

    def __str__(self) -> str:
        """Return its label with all options that are not at their default."""
        return ", ".join(filter(None, [self.label, *labels(self).values()]))


@configuration
class _Momentum(Optimizer):
    momentum: Share = field(default=0.9, label="momentum {:g}")
    weight_decay: PositiveOrZero = field(default=1e-4, label="weight decay {:g}")
    """L2 penalty on weights and batch-norm gammas, not on biases and betas, as in the study. Muon's convolutions shrink
    by it, times their learning rate (decoupled from their gradients)."""
    decay_gammas: Flag = field(default=True, label="no weight decay on gammas")
    """False: the penalty is on weights only (Goyal et al. 2017)."""


@configuration
class SGD(_Momentum):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"] = "sgd"
    momentum_correction: Flag = field(default=False, label="momentum correction")
    """The velocity follows when the learning rate changes (Goyal et al. 2017)."""

    label = "SGD"


@configuration
class Nesterov(_Momentum):
    """SGD with Nesterov momentum."""

    name: Literal["nesterov"] = "nesterov"

    label = "SGD with Nesterov momentum"


@configuration
class LARS(_Momentum):
    """Layer-wise adaptive rates (You et al. 2017): each weight's rate is scaled by |weight| / |gradient|."""

    name: Literal["lars"] = "lars"

    label = "LARS"


@configuration
class Muon(_Momentum):
    """Orthogonalised momentum for convolutions, SGD with Nesterov momentum for the rest (Jordan et al. 2024)."""

    name: Literal["muon"] = "muon"
    lr: Positive = field(label="lr {:g} for convolutions")
    """Learning rate of the convolutions while the others have the recipe's `lr`; warm-up and decay are the same."""
    unit_weights: Flag = field(default=False, label="unit-norm convolutions")
    """Before each step a convolution is scaled to the norm of an orthogonal one, the square root of its number of
    outputs (Jordan 2024, `airbench94_muon`), so that a learning rate is the same share of it at every step. Weights
    that start at zero, as with `zero_init_gamma` in "_v2", get that norm from their first gradient."""

    label = "Muon"
    coefficients: ClassVar[tuple[float, float, float]] = (3.4445, -4.7750, 2.0315)
    """Coefficients of the quintic Newton-Schulz iteration that brings singular values near to one."""
    iterations: ClassVar[int] = 5


@configuration
class AdamW(Optimizer):
    """Adam with decoupled weight decay and bias correction (Loshchilov and Hutter 2019)."""

    name: Literal["adamw"] = "adamw"
    beta1: Share = field(default=0.9, label="beta1 {:g}")
    """Decay rate of the mean of the gradients."""
    beta2: Share = field(default=0.999, label="beta2 {:g}")
    """Decay rate of the mean of their squares."""
    weight_decay: PositiveOrZero = field(default=0.01, label="weight decay {:g}")
    """Times the learning rate, the fraction of the weights that a step subtracts."""
    decay_gammas: Flag = field(default=True, label="no weight decay on gammas")
    epsilon: Positive = field(default=1e-8, label="epsilon {:g}")

    label = "AdamW"


_Number = Annotated[float, pydantic.Strict()]
_Option = Union[Flag, Annotated[int, pydantic.Strict()], _Number, tuple[Union[_Number, None], ...]]


@configuration
class TorchOptimizer(Optimizer):
    """Any other optimizer of `torch.optim` with its options: TorchOptimizer("RMSprop", alpha=0.9, weight_decay=1e-4).

    PyTorch checks class and options when it plans a run.
    """

    name: Literal["torch.optim"] = "torch.optim"
    algorithm: str = field(label="{} (torch.optim)")
    """Name of its class."""
    weight_decay: PositiveOrZero = field(default=0.0, label="weight decay {:g}")
    """That of the class, for weights and batch-norm gammas, not for biases and betas."""
    decay_gammas: Flag = field(default=True, label="no weight decay on gammas")
    options: tuple[tuple[str, _Option], ...] = field(
        default=(), label=lambda options: ", ".join(f"{name} {value}" for name, value in options)
    )
    """All other arguments, sorted by name."""

    label = ""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _gather_options(cls, arguments: Any) -> Any:
        """Gather the arguments of a call that are no fields as `options`."""
        if not isinstance(arguments, ArgsKwargs):  # e.g. fields from JSON
            return arguments
        options = dict(arguments.kwargs or {})
        declared = {name: options.pop(name) for name in [*options] if name in cls.__dataclass_fields__}
        return ArgsKwargs((), {"options": tuple(sorted(options.items())), **declared})

    def __post_init__(self) -> None:
        reasons = {kind.__name__: f"use optimizer={kind.__name__}(...)" for kind in (SGD, AdamW, Muon)}
        reasons["LBFGS"] = "it computes the gradients several times per step"
        reasons["SparseAdam"] = "it is for sparse gradients only"
        reasons["Rprop"] = "it uses no learning rate"
        if reason := reasons.get(self.algorithm):
            raise invalid("TorchOptimizer", self.algorithm, reason)
        if "lr" in dict(self.options):
            raise UserError("TorchOptimizer: remove lr; it is a field of the recipe")


_Optimizers = Union[SGD, Nesterov, LARS, Muon, AdamW, TorchOptimizer]
OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in get_args(_Optimizers)}
AnyOptimizer = Annotated[_Optimizers, pydantic.Field(discriminator="name"), by_name("optimizer", OPTIMIZERS)]
