"""Data sets of a recipe. To add one: a class here, a member of `Data`, and its loader in `poc/data`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args

import pydantic
from annotated_types import Gt, Le

from poc.config.fields import by_name, configuration, field, labels, local_fields
from poc.values import Count, CountOrZero, Flag, UserError, suggest

HELD_OUT: Final = "held-out"
"""Validate on training images that are excluded from training."""


def held_out_images(images: int) -> int:
    """Return the size of the validation split of a training set: a tenth of it, at most 5,000 images."""
    return max(1, min(5_000, images // 10))


class DataId(NamedTuple):
    """Identity of a run's images. Repeats, comparisons and checkpoints need equal ones."""

    name: str
    """Name in tables: "cifar10", "cifar10 (jpeg)" (lossy copies), "cifar100" or "synthetic"; of the user's own images
    kind and start of the checksum, such as "folder-3fa9c1"."""
    checksum: str = ""
    """Checksum of images and labels; empty for synthetic images, which their recipe defines, and in old records."""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


LocalPath = Annotated[str, pydantic.BeforeValidator(lambda raw: str(raw) if isinstance(raw, Path) else raw)]
ValidateOn = Literal["test", "held-out"]
_VALIDATE_ON: Any = field(default="test", label="accuracy on the validation split")


class _Images:
    """Images with three channels; its defaults are for options of augmentation that a data set does not declare."""

    name: str
    crop: int
    classes: int
    train: Any
    """Images of the training set, or their file."""
    validation: Any = 10_000
    """Images of the test set."""
    validate_on: Any = "test"
    fixed = False
    alternate = False
    on_device = False
    jitter = False
    cutout = 0

    @property
    def train_images(self) -> int:
        """Images that an epoch trains on; 0 if the user's own files were not counted yet."""
        return int(self.train - (held_out_images(self.train) if self.validate_on == HELD_OUT else 0))

    @property
    def evaluation_images(self) -> int:
        """Images that an evaluation classifies."""
        return held_out_images(self.train_images * 10 // 9) if self.validate_on == HELD_OUT else self.validation

    @property
    def key(self) -> str:
        """Name of the files that it reads: equal for data sets that differ only in their augmentation."""
        return " ".join([self.name, *local_fields(self).values()])

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the model's input."""
        return (3, self.crop, self.crop)

    def __str__(self) -> str:
        """Return its name with all options that are not at their default."""
        return " ".join([self.name, *labels(self).values()])

    def check_crop(self, size: int) -> None:
        """Raise UserError if the crop is larger than images of `size` x `size` pixels."""
        if self.crop > size:
            raise UserError(f"data: crop: {self.crop} is larger than the images; use at most {size}")


@configuration
class Cifar(_Images):
    """Options of CIFAR-10 and CIFAR-100; the defaults are the augmentation of MXNet 0.11's `train_cifar10.py`."""

    name: str = ""
    crop: Count = field(default=28, label="crop {}")
    """Height and width of the model's input, in pixels: a random crop in training, the centre in validation."""
    pad: CountOrZero = field(default=4, label="pad {}")
    """Pixels of border (value 127) put around the image before the random crop."""
    mirror: Flag = field(default=True, label="without horizontal flip")
    """Flip with probability 1/2."""
    alternate: Flag = field(default=False, label="flip every other epoch")
    """An image is flipped by chance in the first epoch, and then every other time (Jordan 2024)."""
    jitter: Flag = field(default=True, label="without colour jitter")
    """Change hue, saturation and lightness by up to 36, 50 and 50, uniformly, in OpenCV's HLS space."""
    cutout: CountOrZero = field(default=0, label="cutout {} px")
    """Height and width of a square in the crop that is made grey (127): after DeVries and Taylor 2017, whose squares
    may reach over its edge."""
    on_device: Flag = field(default=False, label="augmented on the device")
    """The training images stay in the device's memory, where they are cropped and flipped, to the same batches; without
    `jitter` and `cutout`. On GPUs it is set wherever it works."""
    validate_on: ValidateOn = _VALIDATE_ON
    """"held-out": a tenth of the training images, at most 5,000, the same share of each class and always the same. They
    are not trained on: for tuning, so that the test set is left for the tuned recipes."""

    train = 50_000

    def __post_init__(self) -> None:
        self.check_crop(32)
        if self.alternate and not self.mirror:
            raise UserError("data: alternate=True needs mirror=True")
        if self.cutout > self.crop:
            raise UserError(f"data: cutout: {self.cutout} is larger than the crop; use at most {self.crop}")
        if self.on_device and (self.jitter or self.cutout):
            raise UserError("data: on_device=True works without jitter and cutout; set jitter=False, or remove it")


@configuration
class CIFAR10(Cifar):
    """The 60,000 images of CIFAR-10."""

    name: Literal["cifar10"] = "cifar10"
    classes = 10


@configuration
class CIFAR100(Cifar):
    """The 60,000 images of CIFAR-100 with its 100 fine labels."""

    name: Literal["cifar100"] = "cifar100"
    classes = 100


@configuration
class Synthetic(_Images):
    """Generated images that a model can learn, the same on every machine."""

    name: Literal["synthetic"] = "synthetic"
    size: Count = field(default=32, label="of {} px")
    """Height and width of the images, in pixels."""
    classes: Count = field(default=10, label="{} classes")
    train: Count = field(default=50_000, label="{:,} images")
    """Images in the training set."""
    validation: Count = field(default=10_000, label="{:,} for validation")
    """Images in the test set."""
    fixed: Flag = field(default=False, label="one fixed batch")
    """Train on one and the same batch, which stays in the device's memory: the speed of training without any input
    pipeline, as `tf_cnn_benchmarks` and MXNet's `--benchmark 1` measure it."""
    crop: Count = field(default=32, label="crop {}")
    pad: CountOrZero = field(default=0, label="pad {}")
    mirror: Flag = field(default=False, label="horizontal flip")
    jitter: Flag = field(default=False, label="colour jitter")

    def __post_init__(self) -> None:
        self.check_crop(self.size)
        if self.fixed and (self.pad or self.mirror or self.jitter):
            raise UserError("data: Synthetic.fixed=True works without pad, mirror and jitter; remove them")

    def __str__(self) -> str:
        """Return its name with all options that are not at their default, or "ImageNet" for the shape of its images."""
        like_imagenet = self == synthetic("imagenet", size=self.size, fixed=self.fixed)
        unsaid = {"classes", "train", "validation"} if like_imagenet else set()
        if self.crop == self.size:
            unsaid.add("crop")
        texts = [text for name, text in labels(self).items() if name not in unsaid]
        return " ".join([self.name, *(["ImageNet"] if like_imagenet else []), *texts])


def synthetic(like: str, *, size: int | None = None, fixed: bool = True) -> Synthetic:
    """Return generated images in the shape of a data set, "cifar" (32 pixels) or "imagenet" (224), or of `size` pixels.

    They are one fixed batch in the device's memory; without `fixed` they pass through the whole input pipeline.
    """
    sizes = {"cifar": 32, "imagenet": 224}
    if like not in sizes:
        raise UserError(f"synthetic: {like!r} is not allowed; {suggest(like, sizes)}")
    size = sizes[like] if size is None else size
    # An epoch has as many images as ImageNet's; the input pipeline gets a thousand of them, again and again.
    train = 1_281_167 if fixed else 1000
    shape: dict[str, Any] = {"classes": 1000, "train": train, "validation": 1000} if like == "imagenet" else {}
    return Synthetic(size=size, crop=size, fixed=fixed, **shape)


@configuration
class _Photos(_Images):
    """Options of the user's photos, of any size.

    A training crop has a random share of the image's area, from `scale` to 1, and a ratio of width to height of 3/4 to
    4/3; it is scaled to `crop` pixels and flipped with probability 1/2 (Szegedy et al. 2015). In validation the shorter
    side is scaled to `resize` pixels, then the centre is cropped.
    """

    crop: Count = field(default=224, label="crop {}")
    """Height and width of the model's input, in pixels."""
    resize: CountOrZero = field(default=0, label="resize {}")
    """Pixels of the shorter side before the validation crop; 0: 8/7 of `crop`, as 256 to 224."""
    scale: Annotated[float, pydantic.Strict(), Gt(0), Le(1)] = field(default=0.08, label="area from {:g}")
    """Smallest share of an image's area in a training crop."""
    mirror: Flag = field(default=True, label="without horizontal flip")
    validate_on: ValidateOn = _VALIDATE_ON
    train_images: CountOrZero = 0
    validation: CountOrZero = 0
    """Images in the test set; 0 before they are counted, as those in the training set and the classes."""

    def __post_init__(self) -> None:
        if self.crop > self.resized:
            raise UserError(f"data: crop: {self.crop} is larger than resize={self.resize}; use at most {self.resize}")

    @property
    def resized(self) -> int:
        """Pixels of the shorter side before the validation crop."""
        return self.resize or self.crop * 8 // 7


@configuration
class Folder(_Photos):
    """JPEG and PNG files in `path`/train/CLASS/ and `path`/val/CLASS/; classes are numbered by their sorted names."""

    name: Literal["folder"] = "folder"
    path: LocalPath = field(local=True)
    classes: CountOrZero = 0


@configuration
class Records(_Photos):
    """RecordIO files as im2rec writes them, with labels from 0 to `classes` - 1."""

    name: Literal["records"] = "records"
    train: LocalPath = field(local=True)
    val: LocalPath = field(local=True)
    classes: Count = field()


@configuration
class Arrays(_Images):
    """x_train, y_train, x_test and y_test in a file of NumPy (.npz), as Keras writes them.

    Images are uint8, (n, height, width, 3) or (n, height, width) in grey, and stay in memory.
    """

    name: Literal["arrays"] = "arrays"
    path: LocalPath = field(local=True)
    crop: CountOrZero = field(default=0, label="crop {}")
    """As in `CIFAR10`; 0: the shorter side."""
    pad: CountOrZero = field(default=0, label="pad {}")
    mirror: Flag = field(default=False, label="horizontal flip")
    validate_on: ValidateOn = _VALIDATE_ON
    classes: CountOrZero = 0
    train_images: CountOrZero = 0
    validation: CountOrZero = 0


Own = (Folder, Records, Arrays)
"""Data sets of the user's own files, whose paths are relative to the recipe's folder and no part of a run's id. Their
images are counted when the recipe is loaded (`poc.data.count`)."""
_DataSets = Union[CIFAR10, CIFAR100, Folder, Records, Arrays, Synthetic]
DATA: dict[str, type[_DataSets]] = {kind.name: kind for kind in get_args(_DataSets)}


def with_validation_split(data: _DataSets) -> _DataSets:
    """Return the data set with its accuracy on the validation split; synthetic images, which have none, as they are."""
    if isinstance(data, Synthetic) or data.validate_on == HELD_OUT:
        return data
    if isinstance(data, Own):
        remaining = data.train_images - held_out_images(data.train_images)
        return dataclasses.replace(data, validate_on=HELD_OUT, train_images=remaining)
    return dataclasses.replace(data, validate_on=HELD_OUT)


Data = Annotated[_DataSets, pydantic.Field(discriminator="name"), by_name("data", DATA)]
