"""Recipe x hardware -> every run with all its numbers worked out, and a reason where a run is skipped here."""

from __future__ import annotations

import dataclasses
from typing import Any

from poc import engines
from poc.machine.hardware import Hardware
from poc.recipe import AUTO, NODE, Muon, Recipe, Stale, networks
from poc.recipe.rates import BASE, RULES, Fixed, Steps, steps_per_epoch
from poc.run import Run
from poc.values import UserError, value

# For estimates only: the share of a matrix product's speed that training reaches on a CPU, and what a GPU reaches
# when nothing is known of it (a K80's published 1,100 samples/s of ResNet-50 are 0.6e12).
_CPU_EFFICIENCY = 0.8
_GPU_FLOPS = 0.6e12
_START_SECONDS = 6.0
# A process with MXNet before it trains, and what of a machine's memory a run may take.
_PROCESS_BYTES = 0.6e9
_MEMORY_SHARE = 0.8


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
