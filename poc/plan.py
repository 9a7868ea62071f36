"""Recipe x hardware -> every run with all its numbers, and the reason why a run is skipped on this machine."""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, cast

from poc import frameworks, search
from poc.config import AUTO, NODE, Device, Folder, Recipe, Records, Search, Setting, Training, networks
from poc.config.datasets import Cifar, with_validation_split
from poc.config.rates import steps_per_epoch
from poc.config.run import WARMUP_STEPS, Run
from poc.frameworks import own_models
from poc.frameworks.own_models import Inspected
from poc.host.environment import POC
from poc.host.hardware import Hardware, gpu_problem
from poc.values import UserError, counted, value

# For estimates only, by the runs in reference/: training reaches this share of a CPU's peak, bfloat16 is 1.5 times as
# fast, and each image costs 12 million operations beyond those of the model.
_CPU_EFFICIENCY, _CPU_BFLOAT16, _CPU_OPERATIONS = 0.8, 1.5, 1.2e7
# On a GPU 0.129 and 0.140 from the published 1,100 and 2,900 samples/s of ResNet-50 on a K80 (2,496 cores, 875 MHz) and
# a P100 (3,584, 1,480 MHz). With images of 224 pixels ResNet-50 reached 0.28 to 0.57 on a K80, a P100 and a V100
# (TensorFlow's benchmarks; NVIDIA NGC), and tensor cores made it three times as fast.
_SMALL_CROP, _GPU_EFFICIENCY, _GPU_EFFICIENCY_LARGE, _TENSOR_CORES, _TENSOR_CORES_LARGE = 64, 0.13, 0.45, 2, 3
# FLOP/s of a K80, for a card whose driver reports no clock.
_GPU_FLOPS = 4.4e12
# Seconds besides the training. Not measured on a GPU: imports and images 4, CUDA 2, cuDNN's search 5, peak and end 1.
START_SECONDS = {"cpu": 2.0, "gpu": 12.0}
_PHOTOS_PER_CORE_SECOND = 200  # that are decoded
# Batches that are estimated to need more than this multiple of a GPU's memory are skipped.
_HOPELESS = 4
# Memory of a process with a framework before it trains, and the share of a machine's memory that a run may use.
_PROCESS_BYTES = 0.6e9
_MEMORY_SHARE = 0.8
# Fields in which the settings of one search for a learning rate may differ.
_BATCH = ("batch_per_device", "devices", "accumulate", "workers")


@value
class Planned:
    """One run of the plan on this machine."""

    run: Run
    skip: str = ""  # reason why it does not run on this machine; empty if it does
    seconds: float = 0.0  # estimated wall time
    framework_choice: str = ""  # reason for its framework
    priority: int = 5  # runs of lower numbers are done first (`poc.config.recipe.Setting`)
    smaller: tuple[Run, ...] = ()  # with smaller batches, descending: the first that fits is done if `run` does not
    searched: tuple[tuple[Run, ...], ...] = ()  # candidates of a search by global batch, ascending; `run` is the first
    repeat: int = 1  # number of this repeat, counted from 1

    def __str__(self) -> str:
        if self.searched:
            batches = ", ".join(f"{candidates[0].global_batch:,}" for candidates in self.searched)
            epochs, grid, after = search.most_epochs(self.searched)
            seed = f", seed {self.run.seed}" if self.run.seed else ""
            return (
                f"{self.run.model}, search of lr {self.run.search} at global batch {batches}{seed}: "
                f"at most {epochs} epochs of the grid's {grid}, then {after} on the test set"
            )
        repeat = f", repeat {self.repeat}" if self.repeat > 1 else ""
        return f"{self.run}{repeat}" + ("; or the largest batch that fits" if self.smaller else "")


def plan(
    name: str, recipe: Recipe, hardware: Hardware, *, quick: bool = False, cpu: bool = False, named: bool = True
) -> list[Planned]:
    """Return every run of `recipe` with its repeats, in rounds over the grid; `quick` plans its quick version.

    A round measures everything once, so that what is compared runs at about the same time. Every other round is
    reversed, so that order has no effect. On a machine with GPUs, CPU runs are skipped, because they would take hours
    at a GPU's price, unless `cpu` asks for them, or the user `named` a recipe that has no others.
    """
    planned: dict[tuple[Any, ...], Planned] = {}
    settings = (recipe.quick_version() if quick else recipe).settings()
    groups = _groups(settings)
    named_for_cpu = named and all(setting.kind == "cpu" for setting in recipe.settings())
    cpu = cpu or named_for_cpu or not hardware.gpus
    repeats = range(max(setting.repeats for setting in settings))
    indices = range(max(len(setting.seeds) for setting in settings))
    for number, (repeat, index) in enumerate(itertools.product(repeats, indices)):
        for group in groups[:: -1 if number % 2 else 1]:
            setting = group[0]
            if index >= len(setting.seeds) or repeat >= setting.repeats:
                continue
            common = {"recipe": name, "seed": setting.seeds[index], "quick": quick}
            if networks.is_own(setting.model):
                source_hash = own_models.source_hash(setting.model, recipe.folder)
                common.update(model_folder=str(recipe.folder.absolute()) if source_hash else "", model_hash=source_hash)
            is_search = isinstance(setting.lr, Search)
            for item in _searches(group, hardware, common) if is_search else [_planned(setting, hardware, common)]:
                left_out = "CPU run on a machine with GPUs (--cpu runs it)" if setting.kind == "cpu" and not cpu else ""
                skip = left_out or item.skip
                item = dataclasses.replace(item, skip=skip, repeat=1 if skip else repeat + 1, priority=setting.priority)
                # Folders of the same size differ only in their paths, which are no part of the id.
                key = (item.run.id, item.run.data.key, bool(item.smaller), item.searched, item.repeat)
                planned.setdefault(key, item)
    return list(planned.values())


def check_gpus(recipes: Iterable[Recipe], machine: Hardware, option: str) -> None:
    """Raise UserError, with the `option` for CPU runs, if this machine's GPUs are unusable and a recipe needs them."""
    is_for_cpu = all(setting.kind == "cpu" for recipe in recipes for setting in recipe.settings())
    if not is_for_cpu and (problem := gpu_problem() or frameworks.gpu_problem(machine)):
        raise UserError(f"{problem}. For CPU runs at this machine's price: {option}")


def _groups(settings: Iterable[Setting]) -> list[list[Setting]]:
    """Group the settings of each search, which differ only in their batch; any other setting is a group of its own."""
    groups: dict[Any, list[Setting]] = {}
    for number, setting in enumerate(settings):
        shared = {name: entry for name, entry in vars(setting).items() if name not in _BATCH}
        groups.setdefault(tuple(shared.items()) if isinstance(setting.lr, Search) else number, []).append(setting)
    return list(groups.values())


def _searches(settings: Iterable[Setting], hardware: Hardware, common: dict[str, Any]) -> list[Planned]:
    """Return the search of these settings, ascending by global batch, and each that is skipped on this machine."""
    planned: list[Planned] = []
    batches: list[tuple[Run, ...]] = []
    framework_choice = ""
    for setting in sorted(settings, key=lambda setting: (setting.global_batch, setting.devices)):
        rates = cast(Search, setting.lr)
        tuned = dataclasses.replace(setting, lr=rates.candidates[0][0])  # `search.candidates` sets rate and optimizer
        first = dataclasses.replace(tuned, data=with_validation_split(setting.data))
        (run, skip, choice), (training, _, _) = (_resolve(each, hardware, common) for each in (first, tuned))
        if skip:
            planned.append(Planned(run=run, skip=skip, seconds=estimate(run, hardware)))
            continue
        framework_choice = choice
        batches.append(tuple(search.candidates(dataclasses.replace(run, tunes=training, search=rates))))
    if batches:
        run, seconds = batches[0][0], search_seconds(batches, hardware)
        planned.append(Planned(run=run, searched=tuple(batches), seconds=seconds, framework_choice=framework_choice))
    return planned


def search_seconds(batches: Iterable[tuple[Run, ...]], hardware: Hardware, pace: float = 1.0) -> float:
    """Return an estimate, as `estimate`, of a search that drops no candidate early, with all its trainings."""
    seconds = 0.0
    for number, candidates in enumerate(batches):
        first = candidates[0]
        starts = len(candidates) + search.rungs(first.epochs, len(candidates))[1]
        epochs = search.rung_epochs(first.epochs, len(candidates))
        start = START_SECONDS[first.kind]
        seconds += starts * start + (estimate(first, hardware, pace) - start) * epochs / first.epochs
        has_rules = number > 0 and first.search and first.search.rules
        seconds += estimate(first.tunes or first, hardware, pace) * (3 if has_rules else 1)
    return seconds


def _planned(setting: Setting, hardware: Hardware, common: dict[str, Any]) -> Planned:
    """Return the run of one setting; of the candidates for the largest batch those that may fit, by an estimate."""
    memory = max((gpu.memory_bytes for gpu in hardware.gpus), default=0)  # 0: the driver does not report it
    smaller: list[Run] = []
    for batch in setting.batches:
        run, skip, choice = _resolve(dataclasses.replace(setting, batch_per_device=batch), hardware, common)
        needed = run.network.memory_bytes(run.data.crop, batch)
        hopeless = run.kind == "gpu" and memory and needed > _HOPELESS * memory
        if smaller and (skip or hopeless):
            break
        planned = Planned(run=run, skip=skip, seconds=estimate(run, hardware), framework_choice=choice)
        if skip:
            return planned
        smaller.append(run)
    return dataclasses.replace(planned, smaller=tuple(reversed(smaller[:-1])))


def _resolve(setting: Setting, hardware: Hardware, common: dict[str, Any]) -> tuple[Run, str, str]:
    """Return the run of one setting, the reason to skip it on this machine or "", and the reason for its framework."""
    is_set = setting.framework != AUTO
    attempts: list[tuple[Run, str, Inspected]] = []
    for name in (setting.framework,) if is_set else frameworks.FRAMEWORKS:
        run, skip, model = _with_framework(name, setting, hardware, common)
        if not skip:
            rejected = [f"not {frameworks.load(attempt.framework).LABEL}: {why}" for attempt, why, _ in attempts]
            first = f"first supported framework of {', '.join(frameworks.FRAMEWORKS)}"
            return run, "", "set by the recipe" if is_set else "; ".join(rejected) or first
        attempts.append((run, skip, model))
    accepted = [attempt for attempt in attempts if attempt[2].cost]
    mistakes = [model.refusal for _, _, model in attempts if model.is_mistake and not accepted]
    if mistakes or not (is_set or any(not model.refusal for _, _, model in attempts)):
        refusals = [f"{frameworks.load(run.framework).LABEL}: {model.refusal}" for run, _, model in attempts]
        raise UserError("model: " + (mistakes[0] if mistakes else "; ".join(refusals)))
    not_refused = [attempt for attempt in attempts if not attempt[2].refusal]
    run, skip, _ = max(accepted or not_refused or attempts, key=lambda attempt: _suitability(attempt[0], hardware))
    return run, skip, "set by the recipe" if is_set else ""


def _suitability(run: Run, hardware: Hardware) -> tuple[bool, int]:
    """Rank a run that no framework can do, to choose the reason: all options are supported, number of usable GPUs."""
    return frameworks.unsupported_reason(run, hardware) is None, len(frameworks.usable(run.framework, hardware))


def _with_framework(
    name: str, setting: Setting, hardware: Hardware, common: dict[str, Any]
) -> tuple[Run, str, Inspected]:
    """Return the run of one setting with a framework, the reason to skip it on this machine or "", and its model."""
    framework = frameworks.load(name)
    kind, emulated, too_few_devices = _devices(setting, name, hardware)
    workers = framework.workers(setting.workers, setting.devices, emulated)
    hosts = hardware.hosts if workers > 1 else 1
    cores, too_few_cores = _cores(setting, kind, workers, hosts, hardware)
    if common["quick"] and kind == "gpu" and setting.steps is not None:  # else it would measure the warm-up alone
        setting = dataclasses.replace(setting, steps=setting.steps + framework.WARMUP_STEPS)
    schedule, per_epoch = setting.schedule, steps_per_epoch(setting.data.train_images, setting.global_batch)
    data = setting.data
    if kind == "gpu" and isinstance(data, Cifar) and not (data.jitter or data.cutout):
        data = dataclasses.replace(data, on_device=True)
    fields = {declared.name: getattr(setting, declared.name) for declared in dataclasses.fields(Training)}
    fields.update(
        **common,
        **vars(schedule),
        framework=name,
        kind=kind,
        emulated=emulated,
        data=data,
        workers=workers,
        cores_per_worker=cores,
        layout=framework.layout(kind, setting.dtype) if setting.layout == AUTO else setting.layout,
        global_batch=setting.global_batch,
        epochs=-(-schedule.steps // per_epoch),
        steps_per_epoch=per_epoch,
        window=min(setting.window, per_epoch),
        lr_rule=str(setting.lr),
    )
    if setting.devices == 1:  # a single replica has nothing to synchronise
        fields.update(kvstore=Device(), gradient_noise=setting.gradient_noise if setting.accumulate > 1 else None)
    for dtype in ("bfloat16", "float32") if setting.dtype == AUTO else (setting.dtype,):
        run = Run(**{**fields, "dtype": dtype})
        unsupported = frameworks.unsupported_reason(run, hardware)
        if not unsupported:
            break
    model = own_models.inspect(run) if run.has_own_model else Inspected()
    if model.refusal and setting.layout == AUTO and run.layout != "NCHW":  # `view` may need the usual layout
        run = dataclasses.replace(run, layout="NCHW")
        model = own_models.inspect(run)
    run = dataclasses.replace(run, cost=model.cost)
    uneven = f"workers={workers} cannot be divided equally over {hosts} hosts" if workers % hosts else ""
    reasons = (unsupported, model.refusal, _too_large(run, hardware), too_few_cores, uneven, too_few_devices)
    return run, next(filter(None, reasons), ""), model


def _devices(setting: Setting, name: str, hardware: Hardware) -> tuple[str, bool, str]:
    """Return the kind of devices, whether one emulates them all, and why there are too few, or ""."""
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
    skip = f"needs {counted(setting.devices, 'GPU')}, this machine has {usable or 'none'}"
    if reasons:
        skip += f" that {framework.LABEL} can use: {reasons[0]}"
    return "gpu", False, skip


def _cores(setting: Setting, kind: str, workers: int, hosts: int, hardware: Hardware) -> tuple[int | None, str]:
    """Return the cores that each worker is bound to, and why there are too few of them, or ""."""
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


def _too_large(run: Run, hardware: Hardware) -> str:
    """Return why `run` does not fit in the host's memory, or ""; on GPUs only a trial shows it."""
    if run.kind == "gpu":
        return ""
    hosts = hardware.hosts if run.workers > 1 else 1
    replicas = 1 if run.emulated else run.devices // hosts
    each = run.network.memory_bytes(run.data.crop, run.batch_per_device)
    needed = replicas * each + run.workers // hosts * _PROCESS_BYTES
    if needed <= _MEMORY_SHARE * hardware.memory_bytes:
        return ""
    gib, available = needed / 2**30, hardware.memory_bytes / 2**30
    return f"needs about {gib:.0f} GiB of memory, this machine has {available:.0f}: use a smaller batch"


def estimate(run: Run, hardware: Hardware, pace: float = 1.0) -> float:
    """Return a rough estimate of the wall time of `run` on this machine, in seconds.

    `pace` is the measured over the estimated time of such trainings.
    """
    return START_SECONDS[run.kind] + seconds_at_most(run, pace * training_seconds(run, hardware))


def seconds_at_most(run: Run, seconds: float) -> float:
    """Return how long a run trains whose steps and evaluations take so many `seconds` if its time is not limited.

    However short its time is, it has windows of warm-up and one that is timed.
    """
    if run.seconds is None:
        return seconds
    step, warmup_steps = seconds / run.last_step, -(-WARMUP_STEPS // run.window) * run.window
    return min(seconds, warmup_steps * step + max(run.window * step, run.seconds))


def training_seconds(run: Run, hardware: Hardware) -> float:
    """Return a rough estimate of the time for all steps and evaluations of `run`, in seconds, without its start."""
    trained, evaluated = run.last_step * run.global_batch, run.last_epoch * run.data.evaluation_images * run.evaluate
    forward = 2 * run.network.multiply_adds(run.data.input_shape[-1])
    is_small = run.data.input_shape[-1] <= _SMALL_CROP
    if run.kind == "cpu":
        share = run.workers * (run.cores_per_worker or hardware.cores) / hardware.cores  # above 1 with several hosts
        speed = hardware.cpu_flops * _CPU_EFFICIENCY * share * (_CPU_BFLOAT16 if run.dtype == "bfloat16" else 1)
        forward += _CPU_OPERATIONS
    else:
        replicas = 1 if run.emulated else run.devices
        peaks = sorted((gpu.flops for gpu in hardware.gpus), reverse=True)[: -(-replicas // hardware.hosts)]
        efficiency = _GPU_EFFICIENCY if is_small else _GPU_EFFICIENCY_LARGE
        if run.dtype != "float32" and min((gpu.capability for gpu in hardware.gpus), default=(0, 0)) >= (7, 0):
            efficiency *= _TENSOR_CORES if is_small else _TENSOR_CORES_LARGE
        speed = replicas * efficiency * (min(peaks, default=0.0) or _GPU_FLOPS)  # the slowest sets the pace
    seconds = (3 * trained + evaluated) * forward / speed
    if isinstance(run.data, (Folder, Records)):
        decoding = (trained + evaluated) / (_PHOTOS_PER_CORE_SECOND * hardware.cores * hardware.hosts)
        seconds = seconds + decoding if run.kind == "cpu" else max(seconds, decoding)
    return seconds


def select(planned: list[Planned], ids: list[str] | None) -> list[Planned]:
    """Return the runs whose id starts with one of `ids`; all for None. Raises UserError for an id without a run."""
    for wanted in ids or []:
        if not any(candidate.run.id.startswith(wanted) for candidate in planned):
            raise UserError(f"--only: no run id in this plan starts with {wanted!r}; {POC} plan --verbose lists them")
    return [candidate for candidate in planned if not ids or candidate.run.id.startswith(tuple(ids))]
