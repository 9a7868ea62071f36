"""What the user writes: one experiment, with a list wherever something is varied. Checked where it is made."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import runpy
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from poc import values
from poc.config import networks
from poc.config.datasets import CIFAR10, Data, a_data_set
from poc.config.kvstores import KVSTORES, Device, KVStore
from poc.config.optimizers import OPTIMIZERS, SGD, Optimizer
from poc.config.rates import BASE, Linear, Rate, Schedule, Steps, rate, steps_per_epoch
from poc.values import UserError, checked, choice, either, field, flag, invalid, several, suggest, value, whole

T = TypeVar("T")
NODE = "node"
"""Cores of a worker: a NUMA node's."""
PER_DEVICE = "per-device"
"""Workers: one for each device."""
LARGEST = "largest"
"""Batch of a device: the largest that fits."""
AUTO = "auto"
"""Framework: the first that can do the run. Precision: bfloat16 where this machine has it. Layout: what the framework
is usually fastest with."""
EPOCHS = 12
"""Of a recipe that says nothing of its length: as many as the main study's."""
_MOST_RUNS = 10_000
_LARGEST_BATCH = 2**16  # a device with room for more has long had enough to do


def _meant(name: str, given: Any, kinds: Mapping[str, type[T]], spelled_out: Mapping[str, str]) -> T:
    """One of the `kinds` that is given, or that its name means where it has defaults for all; raises UserError.

    Those that have not are `spelled_out`, as they may be given.
    """
    if isinstance(given, tuple(kinds.values())):
        return given
    if isinstance(given, str) and given in kinds and given not in spelled_out:
        return kinds[given]()
    raise invalid(name, given, suggest(given, [spelled_out.get(kind, kind) for kind in kinds]))


def _devices(name: str, given: Any) -> None:
    if isinstance(given, int) and not given:
        raise invalid(name, given, 'use kind="cpu" to train on the CPU')
    whole(name, given)


def _seeds(name: str, given: Any) -> None:
    if not isinstance(given, (list, tuple)):
        whole(name, given)
        return
    for seed in given:
        values.whole_or_zero(name, seed)
    if not given or len(set(given)) < len(given):
        raise invalid(name, list(given), "use a number of seeds, or a list of different seeds, e.g. [42, 1337]")


@value
class Training:
    """What of a training its user decides and the plan passes on: a field is declared here and nowhere else.

    `check` is what a recipe may say, the type what the plan makes of it; `label` puts it into words where it is not at
    its default; `json` is its name in records, where that differs; `by_framework`: not every framework supports it.
    """

    model: str = field(check=lambda name, given: networks.network(given))
    """Name of a network (`poc/config/networks.py`)."""
    data: Data = field(default=CIFAR10(), check=a_data_set, label="{}")
    """What is trained on: `CIFAR10()`, `Synthetic()`, `synthetic("imagenet")` or `ImageNet()`."""
    kind: str = field(default="gpu", check=choice(("gpu", "cpu")))
    """What `devices` counts: "gpu", or "cpu": sets of this machine's cores."""
    devices: int = field(default=1, check=_devices)
    """How many train together. One CPU device has all cores."""
    emulated: bool = field(default=False, check=flag, json="virtual", label="emulated")
    """Where the machine has fewer devices of the kind, one of them plays all in turn: the accuracy is the real one, the
    speed is not."""
    batch_per_device: int = field(default=128, check=either(whole, LARGEST))
    """Samples each device takes a step; the global batch is that times the devices. "largest": as many as fit into its
    memory, of 2^k and 1.5 x 2^k up to an epoch or 65,536, which short runs find out."""
    evaluate: bool = field(default=True, check=flag, label="without evaluation")
    """Measure the accuracy over the whole validation set after every epoch."""
    optimizer: Optimizer = field(default=SGD(), label="{}")
    """How parameters follow gradients: `SGD()`, `Nesterov()`, `LARS()` or `Muon(lr=0.02)`, each with its momentum
    and weight decay; "sgd", "nesterov" and "lars" are these with their defaults."""
    label_smoothing: float = field(default=0.0, check=values.share, by_framework=True, label="label smoothing {:g}")
    """Share of a label that is spread over all classes (Szegedy et al. 2016)."""
    gradient_noise: int | None = field(
        default=None, check=either(whole, None), label="gradient noise scale every {} steps"
    )
    """Every so many steps the squared norms of one device's gradient and of all devices' are taken, which give the
    gradient noise scale (`poc/records/noise.py`); with several devices, emulated ones too."""
    zero_init_gamma: bool = field(
        default=False, check=flag, by_framework=True, json="zero_gamma", label="zero-init gamma"
    )
    """Residual units start as identities: the last batch norm of each with gammas of zero (Goyal et al. 2017), and in
    pre-activation networks ("_v2"), which have a convolution after it, that with weights of zero."""
    dtype: str = field(
        default="float32", check=choice(("float32", "tf32", "bfloat16", "float16", AUTO)), label="precision {}"
    )
    """Precision of the layers' arithmetic: "bfloat16", "float16" (with dynamic loss scaling), "tf32", which is float32
    on the tensor cores of a GPU; "auto" is bfloat16 where the framework has it and float32 elsewhere. Parameters,
    gradients and their sums stay in float32; in bfloat16 PyTorch's Muon orthogonalises in bfloat16."""
    layout: str = field(default="NCHW", by_framework=True, label="{}")
    compile: bool = field(default=False, check=flag, by_framework=True, label="compiled")
    """The framework compiles the network, where it does not do so anyway."""
    kvstore: KVStore = field(default=Device(), json="exchange", label="{}")
    """How gradients travel (`poc/config/kvstores.py`). Inside one process "device" (sum on the devices), "local" (on
    the CPU) or "nccl"; between workers "dist_sync", "dist_device_sync", "dist_async" (servers update with each worker's
    gradients as they come), `SSP(2)` (the same, but no worker more than 2 steps ahead) or "horovod" (a ring, without
    servers); "none" not at all. Names are the classes with their defaults: `DistSync(servers=2)`."""
    workers: int = field(default=1, check=either(whole, PER_DEVICE), label="{} workers")
    """Processes that the devices are divided over, equally; "per-device": as many as devices."""
    cores_per_worker: int | None = field(default=None, check=either(whole, None, NODE), label="cores per worker: {}")
    """CPU cores each worker is bound to, all of one NUMA node where that has so many; "node": a whole NUMA node, or its
    share of one. By default one worker has them all, several share them equally, and on GPUs none is bound."""
    straggler: float = field(
        default=0.0, check=values.positive_or_zero, json="slowed", label="last worker slowed by {:.0%}"
    )
    """The last of several workers takes so much longer for each step, on purpose: 0.3 is 30%."""
    restarts: int = field(default=0, check=values.whole_or_zero)
    """So often the run goes on from its last checkpoint after a process of it was lost; 0: it has failed then."""
    window: int = field(default=20, check=whole, label="windows of {} steps")
    """Steps between two readings of the clock; nothing is waited for in between."""
    seconds: float | None = field(default=None, check=either(values.positive, None), label="at most {:g} s")
    """Stop at the end of the first window after so many seconds of training; with one worker. The epochs or steps are
    then the most that it may take."""
    target_accuracy: float | None = field(default=None, check=either(values.share, None), label="until accuracy {:g}")
    """Stop at the first evaluation that reaches it; with one worker. The epochs are then the most that it may take."""
    framework: str = field(default=AUTO, json="engine", label="{}")
    """A folder of `poc/frameworks/`; "auto": the first of them that can do the run."""


@value
class Setting(Training):
    """One combination of a recipe's grid. Raises UserError for the first field that holds what it may not."""

    layout: str = field(default=AUTO, check=choice(("NCHW", "NHWC", AUTO)))
    """Order of the axes of images in memory: "NHWC" is channels-last; "auto" what the framework is fastest with."""
    lr: Rate = Linear(base=0.05, per=128)
    """Learning rate: a number is used as it is; `Linear(base=0.05, per=128)` and `SquareRoot(...)` are scaled with the
    global batch, `Fixed(base=0.1)` is not; all may have a warm-up and a decay: `warmup_epochs=2, decay="cosine"`."""
    epochs: int | None = field(default=None, check=either(whole, None))
    """Passes over the training set; 12 where neither they nor steps are given."""
    steps: int | None = field(default=None, check=either(whole, None))
    """Optimizer steps, in place of epochs: for runs that only measure throughput."""
    seeds: int | Sequence[int] = field(default=1, check=_seeds)
    """Repeat every run with so many seeds, 0 upwards; a list is no dimension of the grid, but just these seeds."""
    repeats: int = field(default=1, check=whole)
    """Measure every run so many times, each in fresh processes: the windows of one run do not show by how much runs
    differ. `--quick` has one."""
    priority: int = field(default=5, check=whole)
    """Of the runs of all recipes those of the lowest number are done first: 1 answers a reader's first question."""

    def __post_init__(self) -> None:
        for name, meant in (
            ("optimizer", _meant("optimizer", self.optimizer, OPTIMIZERS, {"muon": "Muon(lr=0.02)"})),
            ("kvstore", _meant("kvstore", self.kvstore, KVSTORES, {"ssp": "SSP(staleness=2)"})),
            ("lr", rate(self.lr)),
        ):
            object.__setattr__(self, name, meant)
        checked(self)
        if self.epochs is not None and self.steps is not None:
            raise UserError(f"epochs={self.epochs} and steps={self.steps} both set the length; remove one")
        if self.target_accuracy is not None and not self.evaluate:
            raise UserError(f"target_accuracy={self.target_accuracy} needs evaluations; remove evaluate=False")
        if self.workers == PER_DEVICE:  # type: ignore[comparison-overlap]
            object.__setattr__(self, "workers", self.devices)
        network = networks.network(self.model)
        network.check_input(self.data.crop)
        self._check_workers()
        steps_per_epoch(self.data.train, self.global_batch)

    def _check_workers(self) -> None:
        workers, devices = self.workers, self.devices
        if devices % workers:
            raise UserError(f"workers={workers} cannot share devices={devices} equally; use a divisor of {devices}")
        if workers > 1:
            if not self.kvstore.between:
                raise UserError(
                    f"kvstore={self.kvstore.name!r} works within one process; remove workers={workers}, "
                    "or use kvstore='dist_sync'"
                )
            if self.emulated:
                raise UserError(f"emulated=True works within one process; remove workers={workers}")
            if self.seconds is not None:
                raise UserError(f"seconds={self.seconds} works with one worker only; use steps=")
            if self.target_accuracy is not None:
                raise UserError(f"target_accuracy={self.target_accuracy} works with one worker only")
        elif devices > 1 and not self.kvstore.inside:
            raise UserError(f"kvstore={self.kvstore.name!r} needs at least 2 workers; set workers= or another kvstore")
        elif self.straggler and devices == 1:
            raise UserError(f"straggler={self.straggler} needs at least 2 workers")

    @property
    def each_seed(self) -> Sequence[int]:
        """The seeds that every run is repeated with."""
        return range(self.seeds) if isinstance(self.seeds, int) else self.seeds

    @property
    def schedule(self) -> Schedule:
        """The learning rate of each step, at the global batch."""
        rate, per_epoch = self.lr, steps_per_epoch(self.data.train, self.global_batch)
        falls: dict[str, Any] = {"decay": rate.decay}
        if isinstance(rate.decay, Steps):
            falls = {"decay": "steps", "decay_at": tuple(rate.decay.at), "decay_factor": rate.decay.factor}
        return Schedule(
            learning_rate=rate.at(self.global_batch),
            warmup_from=float(rate.base if rate.warmup_from == BASE else rate.warmup_from),
            warmup_steps=round(rate.warmup_epochs * per_epoch),
            steps=self.steps or per_epoch * (self.epochs or EPOCHS),
            **falls,
        )

    def check_schedule(self) -> None:
        """Raises UserError where no step has one of the rates that the schedule asks for."""
        schedule, rate = self.schedule, f"lr: {type(self.lr).__name__}"
        steps, last = schedule.steps, schedule.warmup_steps
        if last >= steps:
            lengths = f"the warm-up takes {last:,} steps, the whole training {steps:,}"
            raise invalid(f"{rate}.warmup_epochs", self.lr.warmup_epochs, f"{lengths}; shorten it, or train longer")
        if last and schedule.warmup_from > schedule.learning_rate:
            full = f"{schedule.learning_rate:g}, the learning rate at a global batch of {self.global_batch}"
            raise invalid(f"{rate}.warmup_from", self.lr.warmup_from, f"use at most {full}, or remove it")
        for point in sorted(schedule.decay_at):
            fall = math.ceil(point * steps)
            if not last < fall < steps:
                between = f"after step {last:,} (warm-up or previous drop) and before step {steps:,} (the end)"
                raise invalid("lr: Steps.at", point, f"the drop is at step {fall:,}; use a fraction {between}")
            last = fall

    @property
    def batches(self) -> list[int]:
        """The batches per device that it may have, ascending: the one given, or those to be tried for the largest."""
        if self.batch_per_device != LARGEST:  # type: ignore[comparison-overlap]
            return [self.batch_per_device]
        most = min(self.data.train // self.devices, _LARGEST_BATCH)
        sizes = sorted(size for power in range(17) for size in (2**power, 3 * 2**power))
        return [1, *(size for size in sizes[1:] if size <= most)]

    @property
    def global_batch(self) -> int:
        """Samples of a step, over all devices; at most, where the largest is searched for."""
        return self.batches[-1] * self.devices


@value
class Recipe(Setting):
    """One experiment: the fields of `Training` and `Setting`. Every list is a dimension of the grid, but for seeds."""

    cases: Sequence[dict[str, Any]] = ()
    """Several grids in place of one: each a dict of the fields that it adds to, or sets in place of, the others."""
    quick: dict[str, Any] | None = None
    """Fields that `--quick` sets; by default a few steps of each run and no accuracy. {}: it is quick as it is."""

    def __post_init__(self) -> None:
        for name in _SETTING:
            object.__setattr__(self, name, several(getattr(self, name)))
        object.__setattr__(self, "cases", _known_cases("cases", self.cases))
        if self.quick is not None:
            quick = _known_fields("quick", self.quick, (*_SETTING, "cases"))
            if "cases" in quick:
                quick["cases"] = _known_cases("quick: cases", quick["cases"])
            object.__setattr__(self, "quick", quick)
        runs = sum(len(setting.each_seed) * setting.repeats for setting in self.settings())
        if runs > _MOST_RUNS:
            raise UserError(f"seeds and repeats: this recipe has {runs:,} runs; the maximum is {_MOST_RUNS:,}")

    def settings(self) -> list[Setting]:
        """Every combination of the grid, in the order written. Raises UserError where they are too many."""
        common = {name: getattr(self, name) for name in _SETTING}
        grid = []
        for case in self.cases or [{}]:
            fields = {**common, **case}
            if isinstance(fields["seeds"], list):
                fields["seeds"] = [tuple(fields["seeds"])]
            choices = [given if isinstance(given, list) else [given] for given in fields.values()]
            for name, given in zip(fields, choices):
                if not given:
                    raise invalid(name, given, "use at least one value, or remove the field")
            runs = math.prod(map(len, choices))
            if runs > _MOST_RUNS:
                raise UserError(f"the grid of this recipe has {runs:,} runs; the maximum is {_MOST_RUNS:,}")
            grid += [Setting(**dict(zip(fields, chosen))) for chosen in itertools.product(*choices)]
        return grid

    def check_effects(self) -> None:
        """Raises UserError for a field that says nothing of any run of this recipe, or a rate that no step has.

        The cut-down version is not asked: it may well end in the warm-up.
        """
        settings = self.settings()
        for setting in settings:
            setting.check_schedule()
        if all(setting.devices == 1 for setting in settings):
            for name in ("kvstore", "emulated", "gradient_noise"):
                changed = [held for setting in settings if (held := getattr(setting, name)) != getattr(Setting, name)]
                if changed:
                    raise UserError(f"{name}={changed[0]} needs at least 2 devices; set devices=, or remove it")

    def with_fields(self, fields: Mapping[str, Any]) -> Recipe:
        """Return this recipe with other values of some fields, in its cases and its quick version, too.

        Cases that differ in nothing else become one. Epochs take the place of steps, and steps that of epochs. Raises
        UserError for a field or a value that a recipe may not have.
        """
        fields = _known_fields("--set", fields, _SETTING)
        if "epochs" in fields or "steps" in fields:
            fields = {"epochs": None, "steps": None, **fields}

        def unique(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
            kept: list[dict[str, Any]] = []
            for case in cases:
                rest = {name: given for name, given in case.items() if name not in fields}
                kept += [] if rest in kept else [rest]
            return kept

        quick = {**(_SHORT if self.quick is None else self.quick), **fields}
        if "cases" in quick:
            quick["cases"] = unique(quick["cases"])
        return dataclasses.replace(self, cases=unique(self.cases), quick=quick, **fields)

    def quick_version(self) -> Recipe:
        """The same experiment cut down to a first look (`--quick`)."""
        change = {"repeats": 1, **(_SHORT if self.quick is None else self.quick)}
        if "steps" in change or "epochs" in change:
            change = {"steps": None, "epochs": None, **change}
        # A case must not undo what the quick version sets.
        cases = [{name: given for name, given in case.items() if name not in change} for case in self.cases]
        return dataclasses.replace(self, **{"cases": cases, **change})


_SETTING = tuple(declared.name for declared in dataclasses.fields(Setting))
_SHORT: dict[str, Any] = {"steps": 12, "window": 4, "evaluate": False, "target_accuracy": None}
"""What `--quick` sets where a recipe does not say."""


def load(path: Path, frameworks: Collection[str] = (), fields: Mapping[str, Any] | None = None) -> Recipe:
    """Reads the recipe in the Python file `path`, which may name one of the `frameworks`, if these are given.

    It may import files beside it. `fields` are set in place of its own (`Recipe.with_fields`). Raises UserError where
    there is no recipe or it is wrong.
    """
    if not path.is_file():
        raise UserError(f"recipe: {path} is not a file")
    folder = path.resolve().parent
    try:
        with _importable(folder):
            recipe = runpy.run_path(str(path)).get("recipe")
        if not isinstance(recipe, Recipe):
            raise UserError("`recipe = Recipe(...)` is missing")
        recipe = recipe.with_fields(fields) if fields else recipe
        recipe.check_effects()
        for setting in recipe.settings() if frameworks else ():
            choice((AUTO, *frameworks))("framework", setting.framework)
    except UserError as error:
        raise UserError(f"{path.name}: {error}{_last_line(error, folder)}") from None
    except (Exception, SystemExit) as error:  # a recipe is the user's own Python: what it raises is theirs to read
        place = "" if isinstance(error, SyntaxError) else _last_line(error, folder)  # it has one of its own
        raise UserError(f"{path.name}: {type(error).__name__}: {' '.join(str(error).split())}{place}") from None
    return recipe


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let the block import what lies in `folder`, under names that neither Python nor a package here has.

    Afterwards the path is what it was, and modules from elsewhere are forgotten: another recipe may have other files
    of the same names, and poc must not find them in place of its own.
    """
    known, path = set(sys.modules), list(sys.path)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        places = {Path(entry).resolve() for entry in path} - {folder}
        new = {name: module for name, module in sys.modules.items() if name not in known}
        own = {name for name, module in new.items() if "." not in name and not _is_in(module, places)}
        for name in new:
            if name.partition(".")[0] in own:
                del sys.modules[name]


def _is_in(module: object, places: Collection[Path]) -> bool:
    """Whether `module` is built in, or lies in one of the `places`."""
    files = [*getattr(module, "__path__", [getattr(module, "__file__", None)])]
    return all(file is None or Path(file).resolve().parent in places for file in files)


def _last_line(error: BaseException, folder: Path) -> str:
    """The last line of a file in `folder` that `error` went through, in brackets; empty where there is none."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    own = ((Path(frame.filename), frame.lineno) for frame in frames)
    return next((f" ({file.name}, line {line})" for file, line in own if file.resolve().parent == folder), "")


def _known_cases(name: str, given: object) -> list[dict[str, Any]]:
    """The cases that are `given`, with lists of values as such; raises UserError where they are none."""
    cases = several(given)
    if not isinstance(cases, list):
        raise invalid(name, given, "use a list of dicts of fields")
    return [_known_fields(name, case, _SETTING) for case in cases]


def _known_fields(name: str, given: object, known: Sequence[str]) -> dict[str, Any]:
    """The fields that are `given`, with lists of values as such; raises UserError where one is not `known`."""
    if not isinstance(given, dict):
        raise invalid(name, given, "use a dict of fields, e.g. dict(devices=8, lr=0.4)")
    for field_name in given:
        if field_name not in known:
            raise UserError(f"{name}: no field {field_name!r}; {suggest(field_name, known)}")
    return {field_name: several(held) for field_name, held in given.items()}
