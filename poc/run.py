"""One training, fully resolved: what the plan makes, the engines train, and records keep."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from poc.recipe import DATA, Data
from poc.recipe.rates import Schedule
from poc.values import UserError, value

_LOSS_SCALE = 1024.0


@value
class Run:
    """One training, fully resolved: nothing after the plan works out a hyper-parameter."""

    recipe: str
    model: str
    data: Data
    engine: str
    kind: str
    """What plays the devices: "gpu" or "cpu"."""
    devices: int
    """Replicas of the network; at least 1."""
    virtual: bool
    """The replicas are played in turn by one device."""
    batch_per_device: int
    total_batch: int
    lr_rule: str
    learning_rate: float
    warmup_from: float
    warmup_steps: int
    momentum: float
    weight_decay: float
    epochs: int
    steps_per_epoch: int
    steps: int
    """Optimizer steps in all."""
    window: int
    evaluate: bool
    exchange: str
    seed: int
    quick: bool
    workers: int = 1
    """Processes that the replicas are divided over, equally."""
    cores_per_worker: int | None = None
    """CPU cores each worker is bound to; None: all that this machine has."""
    staleness: int | None = None
    """Of exchange `stale`: steps that a worker may be ahead of the slowest; None: any number."""
    two_bit: float | None = None
    """Threshold of the gradients' compression to two bits; None: no compression."""
    gradient_bits: int = 32
    servers: int = 1
    slowed: float = 0.0
    """Share by which the last worker's steps are made longer on purpose."""
    dtype: str = "float32"
    """Of the layers' arithmetic."""
    compile: bool = False
    layout: str = "NCHW"
    seconds: float | None = None
    """Training stops at the end of the first window after so many."""
    decay: str = "constant"
    """Of the learning rate after the warm-up; "steps": by `decay_factor` at each share of training in `decay_at`."""
    decay_at: tuple[float, ...] = ()
    decay_factor: float = 0.1
    optimizer: str = "sgd"
    muon_rate: float | None = None
    """Learning rate of the convolutions, with optimizer "muon"."""
    momentum_correction: bool = False
    decay_gammas: bool = True
    label_smoothing: float = 0.0
    zero_gamma: bool = False
    gradient_noise: int | None = None
    """Steps from one look at the gradients' norms to the next."""
    restarts: int = 0
    """How often the run goes on from its last checkpoint after a process of it was lost."""

    @property
    def schedule(self) -> Schedule:
        """Its learning rate over the steps."""
        return Schedule(
            target=self.learning_rate,
            start=self.warmup_from,
            warmup_steps=self.warmup_steps,
            steps=self.steps,
            decay=self.decay,
            decay_at=self.decay_at,
            decay_factor=self.decay_factor,
        )

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by before the backward pass, and gradients are divided by.

        float16 has no values below 6e-8, which gradients have (Micikevicius et al. 2018, Mixed Precision Training).
        """
        return _LOSS_SCALE if self.dtype == "float16" else 1.0

    @property
    def id(self) -> str:
        """Stable name of this run: a hash of what it computes, so not of the recipe's name.

        A field that has a default counts only where it differs from it, so that one added later renames no run.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        computed = {
            name: field
            for name, field in self.to_json().items()
            if name not in ("recipe", "restarts") and field != defaults[name]
        }
        # The same rule for fields of the data.
        for later in ("fixed", "on_device"):
            if not computed["data"].get(later, True):
                computed["data"].pop(later)
        return hashlib.sha256(json.dumps(computed, sort_keys=True).encode()).hexdigest()[:10]

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same run."""
        fields = dataclasses.asdict(self)
        return {**fields, "data": {"name": self.data.name, **fields["data"]}}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Run:
        """The run that `to_json` wrote; raises UserError where it did not write that."""
        kinds = {field.name: str(field.type) for field in dataclasses.fields(Run)}
        wrong = [name for name, held in fields.items() if not _fits(kinds.get(name, ""), held)]
        if wrong:
            raise UserError(f"its {wrong[0]} is {fields[wrong[0]]!r}")
        kind = dict(fields["data"])
        data = DATA[kind.pop("name")](**kind)
        return Run(**{**fields, "data": data, "decay_at": tuple(fields.get("decay_at", ()))})


def _fits(kind: str, held: object) -> bool:
    """Whether what JSON holds is of the kind that a field of `Run` is annotated with."""
    if kind == "Data":
        return isinstance(held, dict) and held.get("name") in tuple(DATA)
    if kind.startswith("tuple"):
        return isinstance(held, (list, tuple)) and all(_fits("float", one) for one in held)
    if kind.endswith(" | None") and held is None:
        return True
    kinds: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": (int, float)}
    plain = kinds.get(kind.removesuffix(" | None"))
    return plain is not None and isinstance(held, plain) and (isinstance(held, bool) == (plain is bool))


def exchange_label(run: Mapping[str, Any]) -> str:
    """How the gradients of `run`, in the form of `Run.to_json`, travel: with all options not left at their default."""
    words = [run["exchange"]]
    if run["exchange"] == "stale":
        bound = run.get("staleness")
        words = ["stale, " + ("no bound" if bound is None else f"bound {bound}")]
    if run.get("two_bit") is not None:
        words.append(f"2-bit (threshold {run['two_bit']:g})")
    if run.get("gradient_bits", 32) != 32:
        words.append(f"{run['gradient_bits']}-bit")
    if run.get("servers", 1) > 1:
        words.append(f"{run['servers']} servers")
    if run.get("slowed"):
        words.append(f"last worker slowed by {run['slowed']:.0%}")
    return ", ".join(words)
