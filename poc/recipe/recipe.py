"""What the user writes: one experiment, with a list wherever something is varied. Checked where it is made."""

from __future__ import annotations

import dataclasses
import itertools
import math
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Union

from poc.recipe import networks
from poc.recipe.rates import RULES, Linear
from poc.values import UserError, nearest, positive, value, whole

# Inside one process, between processes, and none at all: the ceiling.
INSIDE = ("device", "local", "nccl")
EXCHANGES = (*INSIDE, "dist_sync", "dist_device_sync", "dist_async", "horovod", "independent")
_IMAGENET_TRAIN = 1_281_167
_MOST_RUNS = 10_000
NODE = "node"
"""Cores of a worker: a NUMA node's."""
_SUMMING = ("dist_sync", "dist_device_sync")
_HALVING = (*_SUMMING, "horovod")


def _crop(data: Any, size: int) -> None:
    whole("data: crop", data.crop)
    whole("data: pad", data.pad, least=0)
    if data.crop > size:
        raise UserError(f"data: crop: {data.crop!r} is larger than the images; give at most {size}")


@value
class CIFAR10:
    """The 60,000 images of CIFAR-10; the defaults are the augmentation of MXNet 0.11's `train_cifar10.py`."""

    crop: int = 28
    """Height and width that the network sees, in pixels: a random crop in training, the centre in validation."""
    pad: int = 4
    """Pixels of border (value 127) put around the image before the random crop."""
    mirror: bool = True
    """Mirror with probability 1/2."""
    jitter: bool = True
    """Move hue, saturation and lightness by up to 36, 50 and 50, uniformly, in OpenCV's HLS space."""
    on_device: bool = False
    """The training images stay in the device's memory, where they are cropped and mirrored; without `jitter`."""

    name = "cifar10"
    classes = 10

    def __post_init__(self) -> None:
        _crop(self, 32)
        if not isinstance(self.on_device, bool):
            raise UserError(f"data: on_device: {self.on_device!r} is not allowed; give True or False")
        if self.on_device and self.jitter:
            raise UserError("data: on_device: colours are moved on the host only; give jitter=False")

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of what the network sees."""
        return (3, self.crop, self.crop)

    @property
    def train_samples(self) -> int:
        """Images in the training set."""
        return 50_000


@value
class Synthetic:
    """Made-up images that a network can learn, the same on every machine."""

    size: int = 32
    """Height and width of the images, in pixels."""
    classes: int = 10
    train: int = 50_000
    """Images in the training set."""
    validation: int = 10_000
    """Images in the validation set."""
    fixed: bool = False
    """Train on one and the same batch, which stays in the device's memory: the speed of training without any input
    pipeline, as `tf_cnn_benchmarks` and MXNet's `--benchmark 1` measure it."""
    crop: int = 32
    pad: int = 0
    mirror: bool = False
    jitter: bool = False

    name = "synthetic"
    on_device = False

    def __post_init__(self) -> None:
        for field in ("size", "classes", "train", "validation"):
            whole(f"data: Synthetic.{field}", getattr(self, field))
        if not isinstance(self.fixed, bool):
            raise UserError(f"data: Synthetic.fixed: {self.fixed!r} is not allowed; give True or False")
        _crop(self, self.size)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of what the network sees."""
        return (3, self.crop, self.crop)

    @property
    def train_samples(self) -> int:
        """Images in the training set."""
        return self.train


def synthetic(like: str, *, size: int | None = None, fixed: bool = True) -> Synthetic:
    """Made-up images in the shape of a data set, "cifar" (32 pixels) or "imagenet" (224): `size` pixels, if given.

    One fixed batch in the device's memory; without `fixed` they pass through the whole input pipeline. Raises UserError
    for another name.
    """
    if like == "cifar":
        size = 32 if size is None else size
        return Synthetic(size=size, crop=size, fixed=fixed)
    if like == "imagenet":
        size = 224 if size is None else size
        # As many as there are in ImageNet make an epoch; through the pipeline come a thousand of them, over and over.
        train = _IMAGENET_TRAIN if fixed else 1000
        return Synthetic(size=size, crop=size, classes=1000, train=train, validation=1000, fixed=fixed)
    raise UserError(f"synthetic: {like!r} is not allowed; {nearest(like, ('cifar', 'imagenet'))}")


@value
class ImageNet:
    """ImageNet (ILSVRC 2012) from RecordIO files that the user has, `imagenet_train.rec` and `imagenet_val.rec`.

    As MXNet's im2rec writes them. A random crop of the image, mirrored with probability 1/2, its shorter side first
    brought to `resize` pixels; the centre in validation. Decoded as the training goes, in threads.
    """

    crop: int = 224
    """Height and width that the network sees, in pixels."""
    resize: int = 256
    """Pixels of the shorter side before the crop."""
    mirror: bool = True
    train: int = 1_281_167
    """Images in the training file, for those who have a part of it."""
    validation: int = 50_000
    """Images in the validation file."""

    name = "imagenet"
    classes = 1000
    on_device = False

    def __post_init__(self) -> None:
        for field in ("crop", "resize", "train", "validation"):
            whole(f"data: ImageNet.{field}", getattr(self, field))
        if self.crop > self.resize:
            raise UserError(f"data: crop: {self.crop!r} is larger than the images; give at most {self.resize}")

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of what the network sees."""
        return (3, self.crop, self.crop)

    @property
    def train_samples(self) -> int:
        """Images in the training set."""
        return self.train


@value
class Stale:
    """Bounded staleness on top of `dist_async`: stale synchronous parallel (Ho et al. 2013)."""

    bound: int | None
    """Steps that a worker may be ahead of the slowest one: 0 is synchronous, None sets no bound."""

    def __post_init__(self) -> None:
        if self.bound is not None:
            whole("exchange: Stale.bound", self.bound, least=0)


@value
class Muon:
    """Orthogonalised momentum for convolutions, SGD with Nesterov momentum for the rest (Jordan et al. 2024)."""

    rate: float
    """Learning rate of the convolutions at the full rate, `lr`, of the rest; it has the same warm-up and decay."""

    COEFFICIENTS: ClassVar[tuple[float, float, float]] = (3.4445, -4.7750, 2.0315)
    """Of the quintic Newton-Schulz iteration that brings singular values near to one, as in Jordan et al. 2024."""
    ITERATIONS: ClassVar[int] = 5

    def __post_init__(self) -> None:
        positive("optimizer: Muon.rate", self.rate)


@value
class TwoBit:
    """MXNet's gradient compression to two bits a value: minus `threshold`, zero or plus `threshold`.

    What a value was more or less than that is kept and added to the next one.
    """

    threshold: float = 0.5
    """In the units of a gradient summed over the samples of a device."""

    def __post_init__(self) -> None:
        positive("compression: TwoBit.threshold", self.threshold)


Data = Union[CIFAR10, ImageNet, Synthetic]
DATA: dict[str, type[Data]] = {one.name: one for one in (CIFAR10, ImageNet, Synthetic)}
OPTIMIZERS = ("sgd", "nesterov", "lars")
AUTO = "auto"
"""Precision: bfloat16 where this machine has it. Layout: what the engine is usually fastest with."""
DTYPES = ("float32", "tf32", "bfloat16", "float16", AUTO)
LAYOUTS = ("NCHW", "NHWC", AUTO)


@value
class Recipe:
    """One experiment. Every field that holds a list is a dimension of the grid of runs."""

    model: Any
    """Name of a network (`poc/recipe/networks.py`), or a list of names."""
    data: Any = CIFAR10()
    """What is trained on: `CIFAR10()`, `Synthetic()`, `synthetic("imagenet")` or `ImageNet()`."""
    devices: Any = 0
    """How many devices train together; a list for several. 0: this machine's CPU, all its cores as one device."""
    batch_per_device: Any = 128
    """Samples each device takes a step; the total batch is that times the devices."""
    lr: Any = Linear(base=0.05, per=128)
    """Learning rate: a number is used as it is; `Linear(base=0.05, per=128)` and `SquareRoot(...)` are scaled with the
    total batch, `Fixed(base=0.1)` is not; all may have a warm-up and a decay: `warmup_epochs=2, decay="cosine"`."""
    epochs: Any = 12
    """Passes over the training set."""
    seconds: float | None = None
    """Stop at the end of the first window after so many seconds of training, whatever the epochs; with one worker."""
    steps: int | None = None
    """Stop after so many optimizer steps, whatever the epochs: for runs that only measure throughput."""
    evaluate: bool = True
    """Measure the accuracy over the whole validation set after every epoch."""
    optimizer: Any = "sgd"
    """How parameters follow gradients, with momentum: "sgd", "nesterov", "lars" (You et al. 2017) or `Muon(rate)`."""
    momentum: Any = 0.9
    momentum_correction: bool = False
    """The velocity follows when the learning rate changes (Goyal et al. 2017); with "sgd"."""
    weight_decay: Any = 1e-4
    """L2 penalty on weights and batch norm's gammas; not on biases and betas, as in the study."""
    decay_gammas: bool = True
    """False: the penalty is on weights only (Goyal et al. 2017)."""
    label_smoothing: Any = 0.0
    """Share of a label that is spread over all classes (Szegedy et al. 2016)."""
    gradient_noise: int | None = None
    """Every so many steps the squared norms of one device's gradient and of all devices' are taken, which give the
    gradient noise scale (`poc/records/noise.py`); with several devices, virtual ones too."""
    zero_gamma: bool = False
    """Residual units start as identities: the last batch norm of each with gammas of zero (Goyal et al. 2017), and in
    pre-activation networks ("_v2"), which have a convolution after it, that with weights of zero."""
    dtype: Any = "float32"
    """Precision of the layers' arithmetic: "bfloat16" (with MXNet on a CPU with AVX-512 bf16 only), "float16" on a GPU
    (with a constant loss scale), "tf32", which is float32 on the tensor cores of a GPU, with engine="pytorch"; "auto"
    is bfloat16 where it can be had and float32 elsewhere. Parameters, gradients and their sums stay in float32."""
    layout: Any = "NCHW"
    """Order of the axes of images in memory; "NHWC" with engine="pytorch" only, which calls it channels-last; "auto"
    is "NHWC" there and "NCHW" with MXNet."""
    compile: bool = False
    """Of PyTorch: `torch.compile`. MXNet compiles always."""
    exchange: Any = "device"
    """How gradients travel. Inside one process MXNet's kvstore `device` (sum on the devices), `local` (on the CPU) or
    `nccl`; between workers `dist_sync`, `dist_device_sync`, `dist_async` (servers update with each worker's gradients
    as they come), `Stale(2)` (the same, but no worker more than 2 steps ahead) or `horovod` (a ring, without servers);
    `independent` not at all."""
    compression: Any = None
    """`TwoBit(threshold)` with `device`, `dist_sync` and `dist_device_sync`."""
    gradient_bits: Any = 32
    """16: gradients travel as float16, with `dist_sync`, `dist_device_sync` and `horovod`."""
    servers: Any = 1
    """Processes that the exchange between workers is divided over."""
    workers: Any = 1
    """Processes that the devices are divided over, equally."""
    cores_per_worker: int | str | None = None
    """CPU cores each worker is bound to, all of one NUMA node where that has so many; "node": a whole NUMA node, or its
    share of one. By default one worker has them all, several share them equally, and on GPUs none is bound."""
    slowed: Any = 0.0
    """The last of several workers takes so much longer for each step, on purpose: 0.3 is 30%."""
    restarts: int = 0
    """So often the run goes on from its last checkpoint after a process of it was lost; 0: it has failed then."""
    kind: str = "gpu"
    """What `devices` counts: "gpu", or "cpu" for CPU contexts, which share this machine's cores."""
    virtual: bool = False
    """Where the machine has fewer devices, play them in turn on one: the accuracy is the real one, the speed is not."""
    seeds: int = 1
    """Repeat every run with so many seeds, 0 upwards."""
    window: int = 20
    """Steps between two readings of the clock; nothing is waited for in between."""
    engine: Any = "gluon"
    """ "gluon" (MXNet) or "pytorch", which has networks of its own for `cifar_resnet*_v2`, torchvision's where that is
    installed, and the exchanges `device`, `nccl` and `independent`, with one process for each device."""
    only: Sequence[dict[str, Any]] = ()
    """Single combinations in place of the grid: each a dict of the fields it sets."""
    quick: dict[str, Any] | None = None
    """Fields that `--quick` sets; by default a few steps of each run and no accuracy. {}: it is quick as it is."""

    def __post_init__(self) -> None:
        _known_combinations("only", self.only)
        if self.quick is not None:
            quick = dict(self.quick) if isinstance(self.quick, dict) else self.quick
            _known_combinations("quick: only", quick.pop("only", ()) if isinstance(quick, dict) else ())
            _known_fields("quick", quick)
        runs = 0
        for setting in self.settings():
            _check(setting)
            runs += setting["seeds"]
        if runs > _MOST_RUNS:
            raise UserError(f"seeds: with them this recipe has {runs:,} runs; give at most {_MOST_RUNS:,}")

    def settings(self) -> list[dict[str, Any]]:
        """Every combination of the grid, in the order written: a dict of all fields with single values.

        Raises UserError where they are too many.
        """
        base = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        base.pop("only"), base.pop("quick")
        grid = []
        for combination in self.only or [{}]:
            fields = {**base, **combination}
            choices = [value if isinstance(value, (list, tuple)) else [value] for value in fields.values()]
            runs = math.prod(map(len, choices))
            if runs > _MOST_RUNS:
                raise UserError(f"the grid of this recipe has {runs:,} runs; give at most {_MOST_RUNS:,}")
            grid += [dict(zip(fields, chosen)) for chosen in itertools.product(*choices)]
        if not grid:
            raise UserError("a list of this recipe is empty; give at least one value, or leave the field out")
        return grid

    def quickened(self) -> Recipe:
        """The same experiment cut down to a first look (`--quick`)."""
        change = {"epochs": 1, "steps": 12, "window": 4, "evaluate": False} if self.quick is None else self.quick
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if "only" not in change:
            # A combination must not undo what the quick version sets.
            fields["only"] = [{k: v for k, v in one.items() if k not in change} for one in self.only]
        return Recipe(**{**fields, **change})


def load(path: Path) -> Recipe:
    """Reads the recipe in the Python file `path`; raises UserError where there is none or it is wrong."""
    if not path.is_file():
        raise UserError(f"recipe: no file {path}")
    try:
        found = runpy.run_path(str(path)).get("recipe")
    except UserError as error:
        raise UserError(f"{path.name}: {error}") from None
    except (Exception, SystemExit) as error:  # a recipe is the user's own Python: what it raises is theirs to read
        raise UserError(f"{path.name}: {type(error).__name__}: {error}") from None
    if not isinstance(found, Recipe):
        raise UserError(f"{path.name}: it defines no `recipe = Recipe(...)`")
    return found


def _known_combinations(field: str, given: object) -> None:
    if not isinstance(given, (list, tuple)):
        raise UserError(f"{field}: {given!r} is not allowed; give a list of dicts of fields")
    for combination in given:
        _known_fields(field, combination)


def _known_fields(field: str, given: object) -> None:
    names = {one.name for one in dataclasses.fields(Recipe)} - {"only", "quick"}
    if not isinstance(given, dict):
        raise UserError(f"{field}: {given!r} is not allowed; give a dict of fields, e.g. dict(devices=8, lr=0.4)")
    for name in given:
        if name not in names:
            raise UserError(f"{field}: no field {name!r}; {nearest(name, names)}")


def _check_exchange(setting: dict[str, Any]) -> None:
    workers, devices, exchange = setting["workers"], max(1, setting["devices"]), setting["exchange"]
    compression = setting["compression"]
    if devices % workers:
        raise UserError(f"workers: {workers} do not share {devices} devices equally; give a divisor of {devices}")
    if workers > 1 and exchange in INSIDE:
        raise UserError(
            f"exchange: {exchange!r} knows no workers; leave workers out, or give an exchange between them: 'dist_sync'"
        )
    if workers == 1 and devices > 1 and exchange not in (*INSIDE, "independent"):
        raise UserError(f"exchange: {exchange!r} is between processes; with one worker give 'device'")
    if compression is not None and not isinstance(compression, TwoBit):
        raise UserError(f"compression: {compression!r} is not allowed; give TwoBit(threshold) or None")
    if compression is not None and exchange not in ("device", *_SUMMING):
        raise UserError(f"compression: not with exchange {exchange!r}; it works with 'device' and {_SUMMING}")
    if setting["gradient_bits"] not in (16, 32):
        raise UserError(f"gradient_bits: {setting['gradient_bits']!r} is not allowed; give 16 or 32")
    if setting["gradient_bits"] == 16 and (exchange not in _HALVING or compression is not None):
        raise UserError(f"gradient_bits: 16 works with the exchanges {_HALVING}, without compression")
    if exchange == "horovod" and setting["servers"] != 1:
        raise UserError("servers: 'horovod' has none; leave it out")
    for field, default in (("slowed", 0), ("servers", 1)):
        if setting[field] != default and workers == 1:
            raise UserError(f"{field}: {setting[field]!r} says nothing of one worker alone; give two workers or more")


def _check_optimizer(setting: dict[str, Any]) -> None:
    optimizer = setting["optimizer"]
    if optimizer not in OPTIMIZERS and not isinstance(optimizer, Muon):
        raise UserError(
            f"optimizer: {optimizer!r} is not allowed; {nearest(str(optimizer), (*OPTIMIZERS, 'Muon(rate)'))}"
        )
    if setting["momentum_correction"] and optimizer != "sgd":
        raise UserError(f"momentum_correction: not with optimizer {optimizer!r}; it works with 'sgd'")
    on_servers = setting["exchange"] == "dist_async" or isinstance(setting["exchange"], Stale)
    if on_servers and (optimizer != "sgd" or setting["momentum_correction"]):
        raise UserError(f"optimizer: with exchange {setting['exchange']!r} servers update, by 'sgd'; give that")


def _check(setting: dict[str, Any]) -> None:
    """Raises UserError for the first field of one combination that holds what it may not."""
    if not isinstance(setting["data"], tuple(DATA.values())):
        raise UserError(f"data: {setting['data']!r} is not allowed; give CIFAR10(...), ImageNet(...) or Synthetic(...)")
    networks.network(setting["model"]).check_input(setting["data"].crop)
    whole("devices", setting["devices"], least=0)
    for field in ("batch_per_device", "epochs", "window", "seeds", "workers", "servers"):
        whole(field, setting[field])
    whole("restarts", setting["restarts"], least=0)
    for field in ("steps", "gradient_noise"):
        if setting[field] is not None:
            whole(field, setting[field])
    if setting["cores_per_worker"] not in (None, NODE):
        whole("cores_per_worker", setting["cores_per_worker"])
    if not isinstance(setting["lr"], RULES):
        positive("lr", setting["lr"])
    _check_optimizer(setting)
    for field in ("momentum", "weight_decay", "slowed", "label_smoothing"):
        positive(field, setting[field], zero=True)
    if setting["momentum"] >= 1:
        raise UserError(f"momentum: {setting['momentum']!r} is not allowed; give a number from 0 to below 1")
    if setting["seconds"] is not None:
        positive("seconds", setting["seconds"])
        if setting["workers"] > 1:
            raise UserError("seconds: workers have to stop after the same step; with several give steps")
    choices = {
        "exchange": EXCHANGES,
        "kind": ("gpu", "cpu"),
        "dtype": DTYPES,
        "layout": LAYOUTS,
    }
    for field, valid in choices.items():
        if setting[field] not in valid and not (field == "exchange" and isinstance(setting[field], Stale)):
            raise UserError(f"{field}: {setting[field]!r} is not allowed; {nearest(setting[field], valid)}")
    if setting["label_smoothing"] >= 1:
        raise UserError(f"label_smoothing: {setting['label_smoothing']!r} is not allowed; give a share below 1")
    for field in ("evaluate", "virtual", "momentum_correction", "decay_gammas", "zero_gamma", "compile"):
        if not isinstance(setting[field], bool):
            raise UserError(f"{field}: {setting[field]!r} is not allowed; give True or False")
    _check_exchange(setting)
    if setting["workers"] > 1 and setting["virtual"]:
        raise UserError("virtual: one device plays all replicas; leave workers at 1")
    total = setting["batch_per_device"] * max(1, setting["devices"])
    samples = setting["data"].train_samples
    if total > samples:
        raise UserError(
            f"batch_per_device: {setting['batch_per_device']} x {max(1, setting['devices'])} devices is more than "
            f"the {samples} training images; give less"
        )
