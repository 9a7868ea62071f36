"""Recipe x hardware -> every run with all its numbers worked out, and a reason where a run is skipped here."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from poc import frameworks
from poc.config import AUTO, NODE, Device, Recipe, Setting, Training, networks
from poc.config.rates import steps_per_epoch
from poc.config.run import Run
from poc.host.hardware import Hardware
from poc.values import UserError, value

# For estimates only: the share of a matrix product's speed that training reaches on a CPU, and that of a GPU's peak
# (0.129 and 0.140: the published 1,100 and 2,900 samples/s of ResNet-50 on a K80, of 2,496 cores and 875 MHz, and on a
# P100, of 3,584 and 1,480). A card of which nothing is known is taken for a K80.
_CPU_EFFICIENCY = 0.8
_GPU_EFFICIENCY = 0.13
_GPU_FLOPS = 4.4e12
_START_SECONDS = 6.0
# Steps of a run that shows whether its batch fits: momentum is there from the second on, and several are enqueued.
_PROBE_STEPS = 4
# A batch is not tried on a GPU of so many times less memory than it is estimated to take.
_HOPELESS = 4
# A process with a framework before it trains, and what of a machine's memory a run may take.
_PROCESS_BYTES = 0.6e9
_MEMORY_SHARE = 0.8


@value
class Planned:
    """One run of the plan on this machine."""

    run: Run
    skip: str = ""
    """Why it does not run here; empty where it does."""
    seconds: float = 0.0
    """Estimated wall time; the longest that it may take, where its batch is searched for."""
    engine_choice: str = ""
    """Why its framework."""
    priority: int = 5
    """Lower ones are done first (`poc.config.recipe.Setting`)."""
    search: tuple[tuple[Run, Run], ...] = ()
    """Where the largest batch that fits is searched for: for each that it may be, ascending, the short run that shows
    whether it fits, and the run with it; `run` is that with the last."""
    repeat: int = 1
    """How many times the plan has the run up to here."""

    def __str__(self) -> str:
        repeat = f", repeat {self.repeat}" if self.repeat > 1 else ""
        search = "; searches for the largest batch that fits, up to this one" if self.search else ""
        return f"{self.run}{repeat}{search}"


def plan(
    name: str, recipe: Recipe, hardware: Hardware, *, quick: bool = False, cpu: bool = False, named: bool = True
) -> list[Planned]:
    """Every run of `recipe`, as often as it is repeated, in rounds over the grid; `quick` plans its cut-down version.

    Repetitions are rounds so that what is compared runs at about the same time. Every other round goes backwards, so
    that none of two always comes first.
    On a machine whose GPUs can be used, runs on the CPU are skipped, which would be hours at a GPU's price, unless they
    are asked for: by `cpu`, or by whoever `named` a recipe that has no others.
    """
    planned: dict[tuple[str, bool, int], Planned] = {}
    settings = (recipe.quick_version() if quick else recipe).settings()
    named_for_cpu = named and all(setting.kind == "cpu" for setting in recipe.settings())
    cpu = cpu or named_for_cpu or not _has_usable_gpus(hardware)
    repeats = range(max(setting.repeats for setting in settings))
    places = range(max(len(setting.each_seed) for setting in settings))
    for number, (repeat, place) in enumerate(itertools.product(repeats, places)):
        for setting in settings[:: -1 if number % 2 else 1]:
            if place < len(setting.each_seed) and repeat < setting.repeats:
                seed = setting.each_seed[place]
                item = _planned(setting, hardware, {"recipe": name, "seed": seed, "quick": quick})
                if setting.kind == "cpu" and not cpu and not item.skip:
                    item = dataclasses.replace(item, skip="CPU run on a machine with GPUs (--cpu runs it)")
                if repeat and not item.skip:  # what is searched for is known by now
                    item = dataclasses.replace(item, repeat=repeat + 1, seconds=estimate(item.run, hardware))
                item = dataclasses.replace(item, priority=setting.priority)
                planned.setdefault((item.run.id, bool(item.search), item.repeat), item)
    return list(planned.values())


def _has_usable_gpus(hardware: Hardware) -> bool:
    return any(
        not frameworks.unsupported(name, gpu, hardware) for name in frameworks.FRAMEWORKS for gpu in hardware.gpus
    )


def _planned(setting: Setting, hardware: Hardware, named: dict[str, Any]) -> Planned:
    """The run of one setting; where that asks for the largest batch, with all among which it is searched for."""
    memory = max((gpu.memory_bytes for gpu in hardware.gpus), default=0)
    search: list[tuple[Run, Run]] = []
    for batch in setting.batches:
        tried = dataclasses.replace(setting, batch_per_device=batch)
        run, skip, choice = _resolve(tried, hardware, named)
        if setting.batches == [setting.batch_per_device] or (skip and not search):
            return Planned(run=run, skip=skip, seconds=estimate(run, hardware), engine_choice=choice)
        needed = networks.network(run.model).memory_bytes(run.data.crop, batch)
        if skip or (run.kind == "gpu" and memory and needed > _HOPELESS * memory):  # a driver may not tell it
            break
        # Nothing in it that takes no memory, so that runs which differ in that have it in common.
        endless: dict[str, Any] = {"epochs": None, "seconds": None, "target_accuracy": None}
        short = {"lr": 0.001, "steps": _PROBE_STEPS, "evaluate": False, **endless}
        tried = dataclasses.replace(tried, **short, window=min(tried.window, _PROBE_STEPS))
        search.append((_resolve(tried, hardware, {**named, "seed": 0, "quick": True})[0], run))
        taken = choice
    probe, run = search[-1]
    seconds = estimate(run, hardware) + len(search).bit_length() * estimate(probe, hardware)
    return Planned(run=run, seconds=seconds, engine_choice=taken, search=tuple(search))


def _resolve(setting: Setting, hardware: Hardware, named: dict[str, Any]) -> tuple[Run, str, str]:
    """The run of one setting, why it does not run on this machine, empty where it does, and why its framework."""
    if setting.framework != AUTO:
        return *_with_engine(setting.framework, setting, hardware, named), "set by the recipe"
    attempts: list[tuple[Run, str]] = []
    for name in frameworks.FRAMEWORKS:
        others = [f"not {frameworks.load(run.framework).LABEL}: {why}" for run, why in attempts]
        attempts.append(_with_engine(name, setting, hardware, named))
        if not attempts[-1][1]:
            return *attempts[-1], "; ".join(
                others
            ) or f"first supported framework of {', '.join(frameworks.FRAMEWORKS)}"
    return *attempts[0], ""


def _with_engine(name: str, setting: Setting, hardware: Hardware, named: dict[str, Any]) -> tuple[Run, str]:
    framework = frameworks.load(name)
    kind, emulated, too_few_devices = _devices(setting, name, hardware)
    workers = framework.workers(setting.workers, setting.devices, emulated)
    hosts = hardware.hosts if workers > 1 else 1
    cores, too_few_cores = _cores(setting, kind, workers, hosts, hardware)
    uneven = f"workers={workers} cannot be divided equally over {hosts} hosts" if workers % hosts else ""
    fields = {declared.name: getattr(setting, declared.name) for declared in dataclasses.fields(Training)}
    fields.update(
        framework=name,
        kind=kind,
        emulated=emulated,
        workers=workers,
        cores_per_worker=cores,
        layout=framework.LAYOUT if setting.layout == AUTO else setting.layout,
        global_batch=setting.global_batch,
        **_course(setting),
    )
    if setting.devices == 1:  # one replica has nothing to synchronise
        fields.update(kvstore=Device(), gradient_noise=None)
    precisions = ("bfloat16", "float32") if setting.dtype == AUTO else (setting.dtype,)
    runs = [Run(**{**fields, **named, "dtype": dtype}) for dtype in precisions]
    run = next((run for run in runs if not frameworks.unsupported_reason(run, hardware)), runs[-1])
    reasons = (
        frameworks.unsupported_reason(run, hardware),
        _too_large(run, hardware),
        too_few_cores,
        uneven,
        too_few_devices,
    )
    return run, next(filter(None, reasons), "")


def _devices(setting: Setting, name: str, hardware: Hardware) -> tuple[str, bool, str]:
    """What plays the devices, whether one plays them all, and why there are too few; empty where there are enough."""
    if setting.kind == "cpu":
        return "cpu", setting.emulated and setting.devices > 1, ""
    framework = frameworks.load(name)
    reasons = [reason for gpu in hardware.gpus if (reason := frameworks.unsupported(name, gpu, hardware))]
    over_hosts = framework.workers(setting.workers, setting.devices, False) > 1
    usable = (len(hardware.gpus) - len(reasons)) * (hardware.hosts if over_hosts else 1)
    if usable >= setting.devices:
        return "gpu", False, ""
    if setting.emulated and usable:
        return "gpu", setting.devices > 1, ""
    needed = "1 GPU" if setting.devices == 1 else f"{setting.devices} GPUs"
    skip = f"needs {needed}, this machine has {usable or 'none'}"
    if reasons:
        skip += f" that {framework.LABEL} can use: {reasons[0]}"
    return "gpu", False, skip


def _cores(setting: Setting, kind: str, workers: int, hosts: int, hardware: Hardware) -> tuple[int | None, str]:
    """Cores that each worker is bound to, and why there are too few of them; empty where there are enough."""
    cores: Any = setting.cores_per_worker
    available = hardware.cores * hosts
    if cores == NODE:
        nodes = hardware.numa_nodes or (hardware.cores,)
        cores = max(1, min(nodes) // -(-workers // hosts // len(nodes)))
    elif workers > 1 and cores is None and kind == "cpu":
        cores = max(1, available // workers)
    if cores is not None and cores * workers > available:
        return cores, f"needs {cores * workers} cores, this machine has {available}"
    return cores, ""


def _course(setting: Setting) -> dict[str, Any]:
    """The fields of a run that say how long it trains, and which learning rate each step has."""
    schedule, per_epoch = setting.schedule, steps_per_epoch(setting.data.train, setting.global_batch)
    return {
        **vars(schedule),
        "epochs": -(-schedule.steps // per_epoch),
        "steps_per_epoch": per_epoch,
        "window": min(setting.window, per_epoch),
        "seconds": None if setting.seconds is None else float(setting.seconds),
        "lr_rule": str(setting.lr),
    }


def _too_large(run: Run, hardware: Hardware) -> str:
    """Why `run` does not fit the host's memory; empty where it does, and on GPUs, where trying is the way to know."""
    if run.kind == "gpu":
        return ""
    hosts = hardware.hosts if run.workers > 1 else 1
    replicas = 1 if run.emulated else run.devices // hosts
    each = networks.network(run.model).memory_bytes(run.data.crop, run.batch_per_device)
    needed = replicas * each + run.workers // hosts * _PROCESS_BYTES
    if needed <= _MEMORY_SHARE * hardware.memory_bytes:
        return ""
    return (
        f"needs about {needed / 2**30:.0f} GiB of memory, this machine has {hardware.memory_bytes / 2**30:.0f}: "
        "use a smaller batch"
    )


def estimate(run: Run, hardware: Hardware) -> float:
    """Seconds that `run` takes on this machine, roughly."""
    forward = 2 * networks.network(run.model).multiply_adds(run.data.input_shape[-1])
    flops = 3 * forward * run.steps * run.global_batch
    if run.evaluate:
        flops += forward * run.epochs * 10_000
    if run.kind == "cpu":
        share = run.workers * (run.cores_per_worker or hardware.cores) / hardware.cores  # above 1 with several hosts
        speed = hardware.cpu_flops * _CPU_EFFICIENCY * share * (2 if run.dtype == "bfloat16" else 1)
    else:
        replicas = 1 if run.emulated else run.devices
        peaks = sorted((gpu.flops for gpu in hardware.gpus), reverse=True)[: -(-replicas // hardware.hosts)]
        speed = replicas * _GPU_EFFICIENCY * (min(peaks, default=0.0) or _GPU_FLOPS)  # the slowest sets the pace
    seconds = flops / speed
    return _START_SECONDS + (seconds if run.seconds is None else min(seconds, run.seconds))


def select(planned: list[Planned], ids: list[str] | None) -> list[Planned]:
    """The runs whose id starts with one of `ids`; all where that is None. Raises UserError for an id that none has."""
    for wanted in ids or []:
        if not any(candidate.run.id.startswith(wanted) for candidate in planned):
            raise UserError(f"--only: no run id in this plan starts with {wanted!r}; `poc plan --verbose` lists them")
    return [candidate for candidate in planned if not ids or candidate.run.id.startswith(tuple(ids))]
