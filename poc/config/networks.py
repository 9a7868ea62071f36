"""Models by name, and the cost of a training step of each; names of models that are not registered.

A model is a line of networks.csv and a builder in a framework. `python -m tools.count_networks` builds it, counts
its costs and writes them to network_costs.csv.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poc.values import LARGEST_INTEGER, UserError, from_plain, suggest, value

MEAN = (123.68, 116.779, 103.939)
"""Subtracted per channel (RGB) from images in 0..255: as in MXNet 0.11's `train_cifar10.py`."""
Channels = tuple[float, float, float]
"""A number for each of red, green and blue."""
PREACTIVATION_RESNETS: dict[str, tuple[Any, ...]] = {
    **{f"cifar_resnet{layers}_v2": (layers,) for layers in (8, 20, 32, 44, 50, 56, 110, 164)},
    "cifar_resnet20_v2_no_norm": (20, False),
}
"""Number of layers, and whether there are batch norms."""
AIRBENCHES: dict[str, tuple[int, ...]] = {
    "cifar_airbench94": (64, 256, 256),
    "cifar_airbench94_slim": (64, 128, 256),
    "cifar_airbench95": (128, 384, 384),
}
"""Channels of the three blocks."""
ZOOS = ("timm", "torchvision", "gluoncv")
"""Packages whose models a recipe names as "timm:resnet18"."""
COSTS = Path(__file__).with_name("network_costs.csv")


@value
class Cost:
    """Cost of one image, at the model's `classes` and `input_size`."""

    parameters: int
    """Trainable parameters."""
    forward_multiply_adds: int
    """Multiply-adds of the forward pass through convolutions and dense layers."""
    activations: int
    """Output values of all layers, which training stores for the backward pass."""


UNKNOWN = Cost(parameters=0, forward_multiply_adds=0, activations=0)


@value
class Network:
    """One model of the registry, or one that is not registered, with the label, classes and size of its run."""

    name: str
    label: str
    """Name in tables and figures."""
    source: str = ""
    study_name: str = ""
    """Name in published studies; empty if it is in none."""
    classes: int
    """Classes of the data set that it was designed for; it is built for those of the run's data."""
    input_size: int
    """Height and width of the images that it was designed for, in pixels."""
    smallest: int = 1
    largest: int = LARGEST_INTEGER
    """Height and width of the largest images that it accepts, in pixels."""
    whitens: bool = False
    """Whether its first convolution whitens the training images, and is not trained."""
    normalises_input: bool = False
    """Whether a batch norm on the input scales the pixels, or, in a variant without batch norms, nothing does."""
    note: str = ""
    """Reason why a source prints another number of parameters."""
    cost: Cost = UNKNOWN
    """Counted cost; zeros if it is not known."""

    def multiply_adds(self, size: int) -> float:
        """Return the multiply-adds of one image's forward pass; a training step costs three times as many."""
        if self.name in AIRBENCHES:  # its sizes are rounded down, so that they do not grow with the area
            return self._airbench_multiply_adds(size)
        return self.cost.forward_multiply_adds * (size / self.input_size) ** 2

    def _airbench_multiply_adds(self, size: int) -> float:
        """Count those of the whitening and of each block's two convolutions, with a pooling between, and of the end."""
        side, channels = size - 1, 24
        total = side**2 * channels * 3 * 2**2
        for width in AIRBENCHES[self.name]:
            total += side**2 * 3**2 * channels * width
            side, channels = side // 2, width
            total += side**2 * 3**2 * channels**2
        return float(total + channels * self.classes)

    def memory_bytes(self, size: int, batch: int) -> float:
        """Estimate the memory of training in float32: values and gradients of all layers, parameters, momentum.

        MXNet shares the memory of many layers: measured peaks were 0.7 to 1.3 times the layers' values.
        """
        return 4 * (1.4 * self.cost.activations * (size / self.input_size) ** 2 * batch + 3 * self.cost.parameters)

    def check_input(self, size: int) -> None:
        """Raise UserError unless it accepts images of `size` x `size` pixels."""
        if not self.smallest <= size <= self.largest:
            limits = f"{self.smallest}" if self.smallest == self.largest else f"{self.smallest} to {self.largest}"
            raise UserError(f"data: crop: {size} is not allowed with {self.name}; use images of {limits} pixels")


def _rows(path: Path) -> list[dict[str, Any]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


_costs = {row.pop("network"): row for row in _rows(COSTS)}
NETWORKS: dict[str, Network] = {
    row["name"]: from_plain(Network, {**row, "cost": _costs.get(row["name"], UNKNOWN)})
    for row in _rows(Path(__file__).with_name("networks.csv"))
}


def network(name: str) -> Network:
    """Return the registered model `name`; raises UserError with the most similar valid name."""
    if name not in NETWORKS:
        raise UserError(f"model: {name!r} is unknown; {suggest(name, NETWORKS)}")
    return NETWORKS[name]


def resnet_stages(layers: int) -> tuple[int, list[int]]:
    """Return the units in each of the three stages of a ResNet for CIFAR, and the channels before and in them."""
    if layers < 164:
        return (layers - 2) // 6, [16, 16, 32, 64]
    return (layers - 2) // 9, [16, 64, 128, 256]  # bottlenecks, as in the paper


def preactivation_units(layers: int) -> Iterator[tuple[list[tuple[int, int, int]], bool]]:
    """Yield each unit of a ResNet: its convolutions, (channels, kernel, stride), and whether it projects its input."""
    units, (_, *widths) = resnet_stages(layers)
    for stage, width in enumerate(widths):
        for number in range(units):
            stride = 2 if stage and number == 0 else 1
            if layers < 164:
                yield [(width, 3, stride), (width, 3, 1)], number == 0
            else:
                yield [(width // 4, 1, 1), (width // 4, 3, stride), (width, 1, 1)], number == 0


def is_own(name: str) -> bool:
    """Return whether a recipe's model is not registered: "FILE.py:FUNCTION", "package.module:FUNCTION" or "ZOO:NAME".

    Raises UserError for a file without a function, and for a path: the file is beside the recipe.
    """
    where, colon, function = name.rpartition(":")
    if name.endswith(".py") or (colon and not function):
        raise UserError(f"model: {name!r} names no function; use 'FILE.py:FUNCTION'")
    if where.endswith(".py") and (Path(where).is_absolute() or ".." in Path(where).parts):
        raise UserError(f"model: {name!r} is not allowed; put the file into the recipe's folder")
    return bool(where)
