"""The data sets that a recipe may name."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Union

from poc.values import UserError, checked, choice, field, flag, invalid, suggest, value, whole, whole_or_zero, words

_IMAGENET_TRAIN = 1_281_167
HELD_OUT = "held-out"
"""Validate on training images that are kept from training."""
HELD_OUT_IMAGES = 5_000


class DataId(NamedTuple):
    """The images that a run was of. Repeats, comparisons and checkpoints belong together only where these are equal."""

    name: str
    """As tables show it: "cifar10", "cifar10 (jpeg)" (lossy copies), "imagenet" or "synthetic"."""
    checksum: str = ""
    """Checksum of the images and labels; empty for synthetic images, which their recipe defines, and in old records."""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


class _Images:
    """What all sets of colour images have; a fixed batch stays in the device's memory."""

    name: ClassVar[str]
    crop: int
    train: int
    """Images in the training set."""
    fixed = False
    alternate = False
    on_device = False
    cutout = 0

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of what the network sees."""
        return (3, self.crop, self.crop)

    def __str__(self) -> str:
        """Its name, and all that is not at its default."""
        return " ".join([self.name, *words(self).values()])


def _check(data: Any, size: int) -> None:
    checked(data, "data: ")
    if data.crop > size:
        raise UserError(f"data: crop: {data.crop!r} is larger than the images; use at most {size}")


@value
class CIFAR10(_Images):
    """The 60,000 images of CIFAR-10; the defaults are the augmentation of MXNet 0.11's `train_cifar10.py`."""

    crop: int = field(default=28, check=whole, label="crop {}")
    """Height and width that the network sees, in pixels: a random crop in training, the centre in validation."""
    pad: int = field(default=4, check=whole_or_zero, label="pad {}")
    """Pixels of border (value 127) put around the image before the random crop."""
    mirror: bool = field(default=True, check=flag, label="without horizontal flip")
    """Mirror with probability 1/2."""
    alternate: bool = field(default=False, check=flag, later=True, label="flip every other epoch")
    """An image is mirrored by chance in the first epoch, and then every other time (Jordan 2024)."""
    jitter: bool = field(default=True, check=flag, label="without colour jitter")
    """Move hue, saturation and lightness by up to 36, 50 and 50, uniformly, in OpenCV's HLS space."""
    cutout: int = field(default=0, check=whole_or_zero, later=True, label="cutout {} px")
    """Height and width of a square, anywhere in the crop, that is made grey (127) (DeVries and Taylor 2017)."""
    on_device: bool = field(default=False, check=flag, later=True, label="augmented on the device")
    """The training images stay in the device's memory, where they are cropped and mirrored; without `jitter` and
    `cutout`."""
    validate_on: str = field(
        default="test", check=choice(("test", HELD_OUT)), later=True, label="accuracy on the validation split"
    )
    """"held-out": 5,000 of the training images, 500 of each class and always the same, which are not trained on: for a
    search, so that the test set is for the ways that it chose."""

    name = "cifar10"
    classes = 10

    @property
    def train(self) -> int:  # type: ignore[override]
        """Images that are trained on."""
        return 50_000 - HELD_OUT_IMAGES * (self.validate_on == HELD_OUT)

    def __post_init__(self) -> None:
        _check(self, 32)
        if self.alternate and not self.mirror:
            raise UserError("data: alternate=True needs mirror=True")
        if self.cutout > self.crop:
            raise UserError(f"data: cutout: {self.cutout} is larger than the crop; use at most {self.crop}")
        for name in ("jitter", "cutout"):
            if self.on_device and getattr(self, name):
                raise UserError(f"data: on_device=True works without {name}; remove one of them")


@value
class Synthetic(_Images):
    """Made-up images that a network can learn, the same on every machine."""

    size: int = field(default=32, check=whole, label="of {} px")
    """Height and width of the images, in pixels."""
    classes: int = field(default=10, check=whole, label="{} classes")
    train: int = field(default=50_000, check=whole, label="{:,} images")
    """Images in the training set."""
    validation: int = field(default=10_000, check=whole, label="{:,} for validation")
    """Images in the validation set."""
    fixed: bool = field(default=False, check=flag, later=True, label="one fixed batch")
    """Train on one and the same batch, which stays in the device's memory: the speed of training without any input
    pipeline, as `tf_cnn_benchmarks` and MXNet's `--benchmark 1` measure it."""
    crop: int = field(default=32, check=whole, label="crop {}")
    pad: int = field(default=0, check=whole_or_zero, label="pad {}")
    mirror: bool = field(default=False, check=flag, label="horizontal flip")
    jitter: bool = field(default=False, check=flag, label="colour jitter")

    name = "synthetic"

    def __post_init__(self) -> None:
        _check(self, self.size)
        if self.fixed and (self.pad or self.mirror or self.jitter):
            raise UserError("data: Synthetic.fixed=True works without pad, mirror and jitter; remove them")

    def __str__(self) -> str:
        like = self == synthetic("imagenet", size=self.size, fixed=self.fixed)
        whole_image = ("crop",) if self.crop == self.size else ()
        left_out = (*whole_image, "classes", "train", "validation") if like else whole_image
        said = [word for name, word in words(self).items() if name not in left_out]
        return " ".join([self.name, *["ImageNet"] * like, *said])


def synthetic(like: str, *, size: int | None = None, fixed: bool = True) -> Synthetic:
    """Made-up images in the shape of a data set, "cifar" (32 pixels) or "imagenet" (224): `size` pixels, if given.

    One fixed batch in the device's memory; without `fixed` they pass through the whole input pipeline. Raises UserError
    for another name.
    """
    usual = {"cifar": 32, "imagenet": 224}
    if like not in usual:
        raise UserError(f"synthetic: {like!r} is not allowed; {suggest(like, usual)}")
    size = usual[like] if size is None else size
    # As many as there are in ImageNet make an epoch; through the pipeline come a thousand of them, over and over.
    train = _IMAGENET_TRAIN if fixed else 1000
    shape: dict[str, Any] = {"classes": 1000, "train": train, "validation": 1000} if like == "imagenet" else {}
    return Synthetic(size=size, crop=size, fixed=fixed, **shape)


@value
class ImageNet(_Images):
    """ImageNet (ILSVRC 2012) from RecordIO files that the user has, `imagenet_train.rec` and `imagenet_val.rec`.

    As MXNet's im2rec writes them. A random crop of the image, mirrored with probability 1/2, its shorter side first
    brought to `resize` pixels; the centre in validation. Decoded as the training goes, in threads.
    """

    crop: int = field(default=224, check=whole, label="crop {}")
    """Height and width that the network sees, in pixels."""
    resize: int = field(default=256, check=whole, label="resize {}")
    """Pixels of the shorter side before the crop."""
    mirror: bool = field(default=True, check=flag, label="without horizontal flip")
    train: int = field(default=_IMAGENET_TRAIN, check=whole, label="{:,} images")
    """Images in the training file, for those who have a part of it."""
    validation: int = field(default=50_000, check=whole, label="{:,} for validation")
    """Images in the validation file."""

    name = "imagenet"
    classes = 1000

    def __post_init__(self) -> None:
        _check(self, self.resize)


Data = Union[CIFAR10, ImageNet, Synthetic]
DATA: dict[str, type[Data]] = {kind.name: kind for kind in (CIFAR10, ImageNet, Synthetic)}


def a_data_set(name: str, given: object) -> None:
    """Raises UserError unless `given` is one of `DATA`."""
    if not isinstance(given, tuple(DATA.values())):
        raise invalid(name, given, "use CIFAR10(...), ImageNet(...) or Synthetic(...)")
