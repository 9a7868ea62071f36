"""Recipe x hardware -> every run with all its numbers worked out, and a reason where a run is skipped here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from poc import engines, networks
from poc.errors import UserError
from poc.hardware import Hardware
from poc.recipe import AUTO, DATA, NODE, Data, Muon, Recipe, Stale
from poc.schedule import BASE, RULES, Fixed, Schedule, Steps, steps_per_epoch
from poc.values import value

# For estimates only: the share of a matrix product's speed that training reaches on a CPU, and what a GPU reaches
# when nothing is known of it (a K80's published 1,100 samples/s of ResNet-50 are 0.6e12).
_CPU_EFFICIENCY = 0.8
_GPU_FLOPS = 0.6e12
_LOSS_SCALE = 1024.0
_START_SECONDS = 6.0
# A process with MXNet before it trains, and what of a machine's memory a run may take.
_PROCESS_BYTES = 0.6e9
_MEMORY_SHARE = 0.8


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


@value
class Planned:
    """One run of the plan on this machine."""

    run: Run
    skip: str = ""
    """Why it does not run here; empty where it does."""
    seconds: float = 0.0
    """Estimated wall time."""


def plan(name: str, recipe: Recipe, hardware: Hardware, *, quick: bool = False) -> list[Planned]:
    """Every run of `recipe` in the order of its grid, once each; `quick` plans its cut-down version."""
    planned: dict[str, Planned] = {}
    settings = (recipe.quickened() if quick else recipe).settings()
    # Repetitions are rounds over the whole grid, so that what is compared runs at about the same time.
    for seed in range(max(setting["seeds"] for setting in settings)):
        for setting in settings:
            if seed < setting["seeds"]:
                run, skip = _resolve(name, setting, seed, hardware, quick)
                planned.setdefault(run.id, Planned(run=run, skip=skip, seconds=estimate(run, hardware)))
    return list(planned.values())


def _resolve(name: str, setting: dict[str, Any], seed: int, hardware: Hardware, quick: bool) -> tuple[Run, str]:
    replicas = max(1, setting["devices"])
    kind = "cpu" if setting["devices"] == 0 else setting["kind"]
    virtual = False
    skip = ""
    if kind == "gpu":
        engine = engines.load(setting["engine"])
        reasons = [reason for reason in map(engine.unsupported, hardware.gpus) if reason]
        usable = (len(hardware.gpus) - len(reasons)) * (
            hardware.hosts if engine.workers(setting["workers"], replicas, False) > 1 else 1
        )
        if usable < replicas and setting["virtual"]:
            virtual = replicas > 1
            kind = "gpu" if usable else "cpu"
        elif usable < replicas:
            skip = f"needs {replicas} GPU{'s' * (replicas > 1)}, this machine has {usable or 'none'}"
            if reasons:
                skip += f" that {setting['engine']} can use: {reasons[0]}"
    elif setting["virtual"]:
        virtual = replicas > 1
    workers = engines.load(setting["engine"]).workers(setting["workers"], replicas, virtual)
    cores = setting["cores_per_worker"]
    hosts = hardware.hosts if workers > 1 else 1
    if workers % hosts:
        skip = f"{workers} workers do not share {hosts} hosts equally"
    available = hardware.cores * hosts
    if cores == NODE:
        nodes = hardware.numa_nodes or (hardware.cores,)
        cores = max(1, min(nodes) // -(-workers // hosts // len(nodes)))
    elif workers > 1 and cores is None and kind == "cpu":
        cores = max(1, available // workers)
    if cores is not None and cores * workers > available:
        skip = f"needs {cores * workers} cores, this machine has {available}"
    total = setting["batch_per_device"] * replicas
    per_epoch = steps_per_epoch(setting["data"].train_samples, total)
    steps = per_epoch * setting["epochs"]
    if setting["steps"] is not None:
        steps = min(steps, setting["steps"])
    lr = setting["lr"] if isinstance(setting["lr"], RULES) else Fixed(base=setting["lr"])
    muon = setting["optimizer"] if isinstance(setting["optimizer"], Muon) else None
    run = Run(
        recipe=name,
        model=setting["model"],
        data=setting["data"],
        engine=setting["engine"],
        kind=kind,
        devices=replicas,
        virtual=virtual,
        batch_per_device=setting["batch_per_device"],
        total_batch=total,
        lr_rule=str(lr),
        learning_rate=lr.rate(total),
        warmup_from=float(lr.base if lr.warmup_from == BASE else lr.warmup_from),
        warmup_steps=round(lr.warmup_epochs * per_epoch),
        momentum=float(setting["momentum"]),
        weight_decay=float(setting["weight_decay"]),
        epochs=-(-steps // per_epoch),
        steps_per_epoch=per_epoch,
        steps=steps,
        window=min(setting["window"], per_epoch),
        evaluate=setting["evaluate"],
        seed=seed,
        quick=quick,
        workers=workers,
        cores_per_worker=cores,
        restarts=setting["restarts"],
        decay="steps" if isinstance(lr.decay, Steps) else lr.decay,
        decay_at=tuple(lr.decay.at) if isinstance(lr.decay, Steps) else (),
        decay_factor=lr.decay.factor if isinstance(lr.decay, Steps) else 0.1,
        optimizer="muon" if muon else setting["optimizer"],
        muon_rate=muon.rate if muon else None,
        momentum_correction=setting["momentum_correction"],
        decay_gammas=setting["decay_gammas"],
        label_smoothing=float(setting["label_smoothing"]),
        zero_gamma=setting["zero_gamma"],
        gradient_noise=setting["gradient_noise"] if replicas > 1 else None,
        dtype="bfloat16" if setting["dtype"] == AUTO else setting["dtype"],
        layout=engines.load(setting["engine"]).LAYOUT if setting["layout"] == AUTO else setting["layout"],
        compile=setting["compile"],
        seconds=None if setting["seconds"] is None else float(setting["seconds"]),
        **_exchange(setting, replicas),
    )
    lacks = engines.load(run.engine).lacks
    if setting["dtype"] == AUTO and lacks(run, hardware):
        run = dataclasses.replace(run, dtype="float32")
    return run, lacks(run, hardware) or _too_large(run, hardware) or skip


def _too_large(run: Run, hardware: Hardware) -> str:
    """Why `run` does not fit the host's memory; empty where it does, and on GPUs, where trying is the way to know."""
    if run.kind == "gpu":
        return ""
    replicas = 1 if run.virtual else run.devices // hardware.hosts
    network = networks.network(run.model)
    needed = replicas * network.memory_bytes(run.data.crop, run.batch_per_device) + run.workers * _PROCESS_BYTES
    if needed <= _MEMORY_SHARE * hardware.memory_bytes:
        return ""
    return (
        f"needs about {needed / 2**30:.0f} GiB of memory, this machine has {hardware.memory_bytes / 2**30:.0f}: "
        "take a smaller batch"
    )


def _exchange(setting: dict[str, Any], replicas: int) -> dict[str, Any]:
    """The fields of a run that say how gradients travel: those of any exchange where there is only one replica."""
    exchange, compression = setting["exchange"], setting["compression"]
    if replicas == 1:
        return {"exchange": "device"}
    return {
        "exchange": "stale" if isinstance(exchange, Stale) else exchange,
        "staleness": exchange.bound if isinstance(exchange, Stale) else None,
        "two_bit": compression.threshold if compression else None,
        "gradient_bits": setting["gradient_bits"],
        "servers": setting["servers"],
        "slowed": float(setting["slowed"]),
    }


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


def estimate(run: Run, hardware: Hardware) -> float:
    """Seconds that `run` takes on this machine, roughly."""
    forward = 2 * networks.network(run.model).multiply_adds(run.data.input_shape[-1])
    flops = 3 * forward * run.steps * run.total_batch
    if run.evaluate:
        flops += forward * run.epochs * 10_000
    if run.kind == "cpu":
        share = run.workers * (run.cores_per_worker or hardware.cores) / hardware.cores  # above 1 with several hosts
        speed = hardware.cpu_flops * _CPU_EFFICIENCY * share * (2 if run.dtype == "bfloat16" else 1)
    else:
        speed = _GPU_FLOPS * (1 if run.virtual else run.devices)
    seconds = flops / speed
    return _START_SECONDS + (seconds if run.seconds is None else min(seconds, run.seconds))


def select(planned: list[Planned], ids: list[str] | None) -> list[Planned]:
    """The runs whose id starts with one of `ids`; all where that is None. Raises UserError for an id that none has."""
    if not ids:
        return planned
    for wanted in ids:
        if not any(one.run.id.startswith(wanted) for one in planned):
            raise UserError(f"--only: no run {wanted!r} in this plan; see the first column of `python -m poc plan`")
    return [one for one in planned if any(one.run.id.startswith(wanted) for wanted in ids)]
