"""Recipes: one experiment each, with a list wherever something is varied. Checked where it is made."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pydantic
from annotated_types import Gt, Le, Len

from poc.config import networks
from poc.config.datasets import CIFAR10, HELD_OUT, Data, with_validation_split
from poc.config.fields import Or, configuration, field
from poc.config.kvstores import SSP, AnyKVStore, Device, DistAsync
from poc.config.optimizers import SGD, AnyOptimizer
from poc.config.rates import AnyRate, Fixed, Linear, Schedule, Search, steps_per_epoch
from poc.values import Count, CountOrZero, Flag, Positive, PositiveOrZero, Share, UserError, as_list, invalid, suggest

NODE = "node"
"""Cores of a worker: one NUMA node."""
PER_DEVICE = "per-device"
"""Workers: as many as devices."""
LARGEST = "largest"
"""Batch per device: the largest that fits."""
AUTO: Final = "auto"
"""The first framework that supports the run; bfloat16 if this machine has it; the framework's fastest layout."""
EPOCHS = 12
"""Length of a recipe that sets none: the main study's."""
_MOST_RUNS = 10_000
_Deviation = Annotated[float, pydantic.Strict(), Gt(0), Le(1)]
_LARGEST_BATCH = 2**16  # larger batches make no device faster


@configuration
class Training:
    """Options of a training. Declare each option here only; the plan copies it to the run.

    `label` describes it where it is not at its default. `by_framework`: only the frameworks that name it support it.
    `training_recipe`: it changes what is learnt, so that the baseline has its default (`Run.is_baseline`).
    """

    model: str
    """Name of a registered model (`poc/config/networks.py`); or "FILE.py:FUNCTION" or "package.module:FUNCTION", a
    function of the number of classes that returns a Gluon HybridBlock or a PyTorch Module; or "ZOO:NAME"."""
    mean: tuple[Share, Share, Share] | None = field(default=None, training_recipe=True, label="mean {}")
    """Mean of each channel, of pixels in 0..1, that is subtracted; None: the registered model's, else ImageNet's."""
    std: tuple[_Deviation, _Deviation, _Deviation] | None = field(default=None, training_recipe=True, label="std {}")
    """Standard deviation of each channel, of pixels in 0..1, that they are divided by; None as for `mean`."""
    data: Data = field(default=CIFAR10(), label="{}")
    """Images (`poc/config/datasets.py`)."""
    kind: Literal["gpu", "cpu"] = "gpu"
    """Kind of the `devices`; "cpu": sets of this machine's cores."""
    devices: Count = 1
    """Number of devices that train together. A single CPU device has all cores."""
    emulated: Flag = field(default=False, label="emulated")
    """If the machine has too few devices of the kind, one does all the work: its accuracy is valid, not its speed."""
    batch_per_device: Annotated[Count, Or(LARGEST)] = 128
    """Samples per device and micro-batch; the global batch is that times the devices times `accumulate`. "largest": as
    many as fit into its memory, of 2^k and 1.5 x 2^k up to an epoch or 65,536, tried from above."""
    accumulate: Count = field(default=1, training_recipe=True, label="accumulate {}")
    """Micro-batches per device and step, one after another: their gradients are summed, and synchronised once per step.
    Each has batch statistics of its own, and updates the running ones."""
    evaluate: Flag = field(default=True, label="without evaluation")
    """Measure the accuracy after every epoch: over the whole test set, or with `validate_on="held-out"` over the
    validation split."""
    optimizer: AnyOptimizer = field(default=SGD(), label="{}")
    """An optimizer (`poc/config/optimizers.py`), or its name: that with its defaults."""
    label_smoothing: Share = field(default=0.0, by_framework=True, training_recipe=True, label="label smoothing {:g}")
    """Share of a label that is spread over all classes (Szegedy et al. 2016)."""
    gradient_noise: Count | None = field(default=None, label="gradient noise scale every {} steps")
    """Interval in steps at which the squared norms of one device's gradient and of all devices' are recorded, which
    give the gradient noise scale (`poc/records/noise.py`); with several devices, emulated ones too, or `accumulate`.
    With CUDA graphs these steps need the memory of the activations once more."""
    zero_init_gamma: Flag = field(default=False, by_framework=True, training_recipe=True, label="zero-init gamma")
    """Residual units start as identities: the gammas of the last batch norm of each are zero (Goyal et al. 2017), in
    pre-activation models ("_v2") the weights of the convolution after it."""
    dtype: Literal["float32", "tf32", "bfloat16", "float16", "auto"] = field(default="float32", label="precision {}")
    """Precision of the layers' arithmetic: "bfloat16", "float16" (with dynamic loss scaling), "tf32", which is float32
    on the tensor cores of a GPU; "auto" is bfloat16 where the framework has it and float32 elsewhere. Parameters,
    gradients and their sums stay in float32; in bfloat16 PyTorch's Muon orthogonalises in bfloat16."""
    layout: Literal["NCHW", "NHWC", "auto"] = field(default="NCHW", by_framework=True, label="{}")
    compile: Flag = field(default=False, by_framework=True, label="compiled")
    """Let the framework compile the model, where it does not do so anyway."""
    graphs: Flag = field(default=True, by_framework=True, label="without CUDA graphs")
    """On a GPU, record a step as a CUDA graph and replay it, so that no step waits for Python (PyTorch)."""
    kvstore: AnyKVStore = field(default=Device(), label="{}")
    """How gradients are synchronised (`poc/config/kvstores.py`); a name is the class with its defaults."""
    workers: Annotated[Count, Or(PER_DEVICE)] = field(default=1, label="{} workers")
    """Processes that the devices are divided over, equally; "per-device": as many as devices."""
    cores_per_worker: Annotated[Count, Or(NODE)] | None = field(default=None, label="cores per worker: {}")
    """CPU cores each worker is bound to, all of one NUMA node where that has so many; "node": a whole NUMA node, or its
    share of one. By default one worker has them all, several share them equally; on GPUs each may use all those of the
    NUMA nodes that its GPUs are attached to."""
    straggler: PositiveOrZero = field(default=0.0, label="last worker slowed by {:.0%}")
    """Slow-down of the last of several workers' steps, on purpose: 0.3 is 30%."""
    restarts: CountOrZero = 0
    """How often to restart from the last checkpoint after a worker dies. 0: the run fails."""
    window: Count = field(default=20, label="windows of {} steps")
    """Steps between two readings of the clock; nothing waits for the device in between. On GPUs it is the least number:
    a window has as many steps as take 0.5 s there."""
    seconds: Positive | None = field(default=None, label="at most {:g} s")
    """Stop at the end of the window in which so many seconds of training are over, or after the epochs or steps. The
    windows that begin in the first five steps do not count: in them libraries compile or search for algorithms."""
    target_accuracy: Share | None = field(default=None, label="until accuracy {:g}")
    """Stop at the first evaluation that reaches it, or after the epochs."""
    framework: str = field(default=AUTO, label="{}")
    """A folder of `poc/frameworks/`; "auto": the first of them that supports the run."""

    @property
    def workers_agree(self) -> bool:
        """True if workers can decide together, for which they need an exact sum of what each of them has."""
        inexact = isinstance(self.kvstore, (DistAsync, SSP)) or getattr(self.kvstore, "two_bit", None)
        return not (self.workers > 1 and inexact)


def _seeds(value: Any) -> Any:
    """Return 0 and upwards for a number of seeds, no more than makes the recipe too large."""
    return tuple(range(min(value, _MOST_RUNS + 1))) if type(value) is int and value > 0 else value


@configuration
class Setting(Training):
    """One combination of a recipe's grid. Raises UserError for the first field whose value is not allowed."""

    layout: Literal["NCHW", "NHWC", "auto"] = AUTO
    """Order of the axes of images in memory: "NHWC" is channels-last; "auto" the framework's fastest."""
    lr: AnyRate = Linear(base=0.05, per=128)
    """Learning rate (`poc/config/rates.py`); a number is used as it is."""
    epochs: Count | None = None
    """Passes over the training set; 12 where neither they nor steps are set."""
    steps: Count | None = None
    """Optimizer steps, in place of epochs: for runs that only measure throughput."""
    seeds: Annotated[tuple[CountOrZero, ...], Len(1), pydantic.BeforeValidator(_seeds)] = (0,)
    """Repeat every run with so many seeds, 0 upwards; a list is no dimension of the grid, but just these seeds."""
    repeats: Count = 1
    """Measure every run so many times, each in new processes. `--quick` has one."""
    priority: Count = 5
    """Runs with lower numbers are done first, across all recipes: 1 answers a reader's first question."""

    def __post_init__(self) -> None:
        if self.workers == PER_DEVICE:  # type: ignore[comparison-overlap]
            object.__setattr__(self, "workers", self.devices)
        if self.data.train_images:  # else its files are counted later
            if not networks.is_own(self.model):
                networks.network(self.model).check_input(self.data.crop)
            steps_per_epoch(self.data.train_images, self.global_batch)
        devices, workers, target, kvstore = self.devices, self.workers, self.target_accuracy, self.kvstore
        several = workers > 1
        conflicts = {
            f"epochs={self.epochs} and steps={self.steps} both set the length; remove one": self.epochs and self.steps,
            f"target_accuracy={target} needs evaluations; remove evaluate=False": target and not self.evaluate,
            f"workers={workers} cannot share devices={devices} equally": devices % workers,
            f"kvstore={kvstore.name!r} works within one process; remove workers={workers}, or use "
            "kvstore='dist_sync'": several and not kvstore.between,
            f"kvstore={kvstore.name!r} needs at least 2 workers; set workers=": devices > 1
            and not (several or kvstore.inside),
            f"emulated=True works within one process; remove workers={workers}": several and self.emulated,
            f"seconds={self.seconds} does not work with kvstore={kvstore}; use steps=": self.seconds
            and not self.workers_agree,
            f"target_accuracy={target} does not work with kvstore={kvstore}": target and not self.workers_agree,
            f"straggler={self.straggler} needs at least 2 workers": devices == 1 and self.straggler,
            **self._search_conflicts(),
        }
        for message, is_conflict in conflicts.items():
            if is_conflict:
                raise UserError(message)

    def _search_conflicts(self) -> dict[str, Any]:
        """Return messages about fields that a search for the learning rate cannot do, and whether each is so."""
        search = self.lr
        if not isinstance(search, Search):
            return {}
        fields = {declared.name for declared in dataclasses.fields(self.optimizer)}
        missing = {name for name in ("momentum", "weight_decay") if getattr(search, name) and name not in fields}
        return {
            f"lr=Search(...) needs whole epochs; use epochs= in place of steps={self.steps}": self.steps,
            f"lr=Search(...) needs whole epochs; remove seconds={self.seconds}": self.seconds,
            f"lr=Search(...) needs whole epochs; remove target_accuracy={self.target_accuracy}": self.target_accuracy,
            "lr=Search(...) needs evaluations; remove evaluate=False": not self.evaluate,
            "lr=Search(...) uses the validation split in any case; remove validate_on='held-out', or the training with "
            "the best rate would use it, too": self.data.validate_on == HELD_OUT,
            f"lr=Search(...) is done once per seed; use seeds= in place of repeats={self.repeats}": self.repeats > 1,
            "lr=Search(...) needs a number as batch_per_device": self.batch_per_device == LARGEST,  # type: ignore[comparison-overlap]
            f"lr: Search: optimizer={self.optimizer.name!r} has no {', '.join(missing)}; remove it": missing,
        }

    @property
    def schedule(self) -> Schedule:
        """The learning rate of each step, at the global batch; of a setting without a search."""
        assert not isinstance(self.lr, Search)
        per_epoch = steps_per_epoch(self.data.train_images, self.global_batch)
        return self.lr.schedule(self.global_batch, per_epoch, self.steps or per_epoch * (self.epochs or EPOCHS))

    def check_schedule(self) -> None:
        """Raise UserError if no step has one of the learning rates of the schedule."""
        if self.batch_per_device == LARGEST:  # type: ignore[comparison-overlap]
            return  # its steps depend on which batch fits
        if isinstance(self.lr, Search):
            for rate, _ in self.lr.candidates:
                dataclasses.replace(self, lr=rate, data=with_validation_split(self.data)).check_schedule()
            return
        schedule = self.schedule
        drops = [math.ceil(point * schedule.steps) for point in schedule.decay_at]
        if schedule.warmup_steps and schedule.warmup_from > schedule.learning_rate:
            full = f"{schedule.learning_rate:g}, the learning rate at a global batch of {self.global_batch}"
            raise invalid(f"lr: {type(self.lr).__name__}.warmup_from", schedule.warmup_from, f"use at most {full}")
        if isinstance(self.lr, Fixed) and self.lr.warmup_epochs and schedule.warmup_steps < 2:
            epoch = f"an epoch has {steps_per_epoch(self.data.train_images, self.global_batch)} steps"
            raise invalid("lr: warmup_epochs", self.lr.warmup_epochs, f"use two steps or more; {epoch}")
        steps = [schedule.warmup_steps, *drops, schedule.steps]
        if any(step >= following for step, following in itertools.pairwise(steps)):
            field_name = "Steps.at" if drops else "warmup_epochs"
            ends = f"warm-up, drops and end of training are at steps {steps}, which must increase"
            raise UserError(f"lr: {field_name}: {ends}; change it, or train longer")

    @property
    def batches(self) -> list[int]:
        """Candidates for the batch per device, ascending: the batch, or those to try for the largest."""
        if self.batch_per_device != LARGEST:  # type: ignore[comparison-overlap]
            return [self.batch_per_device]
        limit = min(self.data.train_images // (self.devices * self.accumulate), _LARGEST_BATCH)
        sizes = {size for power in range(17) for size in (2**power, 3 * 2**power // 2)}
        return sorted(size for size in sizes if size <= limit) or [1]

    @property
    def global_batch(self) -> int:
        """Samples per step over all devices; an upper limit where the largest batch is searched for."""
        return self.batches[-1] * self.devices * self.accumulate


_WHOLE = ("seeds", "mean", "std")
"""Fields in which a list is one value, and not a dimension of the grid."""
_SETTING = tuple(declared.name for declared in dataclasses.fields(Setting))
_QUICK: dict[str, Any] = {"steps": 12, "window": 4, "evaluate": False, "target_accuracy": None}
"""Fields that `--quick` sets if a recipe has no `quick`."""


class Recipe:
    """One experiment: fields of `Training` and `Setting`. Raises UserError for a mistake.

    Every list is a dimension of the grid, except for `seeds`, `mean` and `std`. `folder` has the user's model files; it
    is that of the recipe's file, and not for users to set.

    `cases` makes several grids: each is a dict of the fields that it adds to, or sets in place of, the common ones.
    `quick` has the fields that `--quick` sets; by default a few steps of each run and no accuracy. {}: no change.
    """

    def __init__(
        self, model: Any = None, *, cases: Any = (), quick: Any = None, folder: Path = Path(), **fields: Any
    ) -> None:
        self.folder = folder
        common = _known_fields("Recipe", {"model": model, **fields}, _SETTING)
        self.grids = [{**common, **case} for case in _known_cases("cases", cases)]
        change = _known_fields("quick", _QUICK if quick is None else quick, (*_SETTING, "cases"))
        quick_cases = change.pop("cases", None)
        change = _one_length({"repeats": 1, **change})
        if quick_cases is None:
            self.quick_grids = [{**grid, **change} for grid in self.grids]
        else:
            self.quick_grids = [{**common, **change, **case} for case in _known_cases("quick: cases", quick_cases)]
        runs = sum(len(setting.seeds) * setting.repeats for setting in self.settings())
        if runs > _MOST_RUNS:
            raise UserError(f"seeds and repeats: this recipe has {runs:,} runs; the maximum is {_MOST_RUNS:,}")

    def settings(self) -> list[Setting]:
        """Return every combination of the grids, in the order written. Raises UserError if they are too many."""
        settings = []
        for fields in self.grids:
            choices = [
                value if isinstance(value, list) and name not in _WHOLE else [value] for name, value in fields.items()
            ]
            for name, values in zip(fields, choices):
                if not values:
                    raise invalid(name, values, "use at least one value, or remove the field")
            runs = math.prod(map(len, choices))
            if runs > _MOST_RUNS:
                raise UserError(f"the grid of this recipe has {runs:,} runs; the maximum is {_MOST_RUNS:,}")
            settings += [Setting(**dict(zip(fields, chosen))) for chosen in itertools.product(*choices)]
        return settings

    def check_effects(self) -> None:
        """Raise UserError for a field without effect on any run of this recipe, or a learning rate that no step has.

        The quick version is not checked: it may well end in the warm-up.
        """
        settings = self.settings()
        for setting in settings:
            setting.check_schedule()
        several, accumulates = (any(getattr(each, name) > 1 for each in settings) for name in ("devices", "accumulate"))
        for name, setting in itertools.product(("kvstore", "emulated", "gradient_noise"), settings):
            value, has_effect = getattr(setting, name), several or (accumulates and name == "gradient_noise")
            if not has_effect and value != getattr(Setting, name):
                how = "set devices= or accumulate=" if name == "gradient_noise" else "set devices="
                raise UserError(f"{name}={value} needs at least 2 devices; {how}, or remove it")

    def with_fields(self, fields: Mapping[str, Any]) -> Recipe:
        """Return this recipe with other values of some fields, in its quick version, too.

        Epochs replace steps, and steps replace epochs. Raises UserError for a field or a value that is not allowed.
        """
        fields = _one_length(_known_fields("--set", fields, _SETTING))
        return self._changed(lambda grid: {**grid, **fields})

    def replace(self, name: str, change: Callable[[Any], Any]) -> Recipe:
        """Return this recipe with `change` applied to each value of a field, in its quick version, too."""

        def replaced(grid: dict[str, Any]) -> dict[str, Any]:
            value = grid.get(name)
            new = [*map(change, value)] if isinstance(value, list) else change(value)
            return {**grid, name: new} if name in grid else grid

        return self._changed(replaced)

    def _changed(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Recipe:
        grids, quick_grids = ([*map(change, grids)] for grids in (self.grids, self.quick_grids))
        return Recipe(cases=grids, quick={"cases": quick_grids}, folder=self.folder)

    def quick_version(self) -> Recipe:
        """Return the same experiment cut down to a first look (`--quick`), with one rate in place of a search."""
        return Recipe(cases=self.without_search().quick_grids, folder=self.folder)

    def without_search(self) -> Recipe:
        """Return this recipe with the middle rate in place of each search for one."""
        return self.replace("lr", lambda rate: rate.middle if isinstance(rate, Search) else rate)


def _one_length(fields: dict[str, Any]) -> dict[str, Any]:
    """Let epochs replace steps, and steps replace epochs."""
    return {"epochs": None, "steps": None, **fields} if fields.keys() & {"epochs", "steps"} else fields


def _known_cases(name: str, cases: object) -> list[dict[str, Any]]:
    """Return the cases, or [{}], with every iterable as a list; raises UserError for anything but dicts of fields."""
    cases = as_list(cases)
    return [_known_fields(name, case, _SETTING) for case in (cases if isinstance(cases, list) else [cases])] or [{}]


def _known_fields(name: str, fields: object, names: Collection[str]) -> dict[str, Any]:
    """Return the fields with every iterable as a list; raises UserError for one that is not among `names`."""
    if not isinstance(fields, Mapping):
        raise invalid(name, fields, "use a dict of fields, e.g. dict(devices=8, lr=0.4)")
    for field_name in fields:
        if field_name not in names:
            raise UserError(f"{name}: no field {field_name!r}; {suggest(field_name, names)}")
    return {field_name: as_list(value) for field_name, value in fields.items()}
