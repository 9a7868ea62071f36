"""The networks that the suite knows, by name: which a recipe may ask for, and what a training step of each costs.

A network is an entry here and a builder in a framework. What it costs is counted in it as it is built:
`python -m poc networks --count` writes that beside this file.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from pathlib import Path
from typing import Any

from poc.values import UserError, suggest, value

MEAN = (123.68, 116.779, 103.939)
"""Subtracted per channel (RGB) from images in 0..255: as in MXNet 0.11's `train_cifar10.py`."""
_COSTS = Path(__file__).with_name("network_costs.csv")


@value
class Cost:
    """What one image costs, at the network's `classes` and `input_size`."""

    parameters: int
    """Trained ones."""
    forward_multiply_adds: int
    """Of its forward pass through convolutions and dense layers."""
    activations: int
    """Values that all layers put out for it, which training keeps for the backward pass."""


@value
class Network:
    """One network of the registry."""

    name: str
    label: str
    """In tables and figures."""
    source: str
    classes: int
    """Of the data set that it was made for; it is built for as many as there are."""
    input_size: int
    """Height and width of the images that it was made for, in pixels."""
    sizes: tuple[int, int]
    """The smallest and the largest images that it takes."""
    note: str = ""
    """Why a source prints another number of parameters, where one does."""
    study_name: str = ""
    """What published studies call it, where it is in one."""
    whitens: bool = False
    """Its first convolution whitens the training images, and is not trained."""
    input_scale: float = 1 / 58.0
    """What images less `MEAN` are multiplied by: one over ImageNet's deviation; 1 before a batch norm on the input, and
    in the network that is one less its norms."""

    @property
    def cost(self) -> Cost:
        """What it costs; raises UserError where that has not been counted yet."""
        if self.name not in _costs():
            raise UserError(f"model: {self.name} is not in {_COSTS.name}; run `python -m poc networks --count`")
        return _costs()[self.name]

    def multiply_adds(self, size: int) -> float:
        """Multiply-adds of one forward pass over one `size` x `size` image; a training step costs three times that."""
        return self.cost.forward_multiply_adds * (size / self.input_size) ** 2

    def memory_bytes(self, size: int, batch: int) -> float:
        """Roughly what training takes in float32: values and gradients of all layers, parameters, momentum.

        MXNet shares the memory of many layers: measured peaks were 0.7 to 1.3 times the layers' values.
        """
        return 4 * (1.4 * self.cost.activations * (size / self.input_size) ** 2 * batch + 3 * self.cost.parameters)

    def check_input(self, size: int, name: str = "crop") -> None:
        """Raises UserError unless it takes images of `size` x `size` pixels, which `name` asks for."""
        smallest, largest = self.sizes
        if not smallest <= size <= largest:
            allowed = f"of {smallest}" if smallest == largest else f"of {smallest} to {largest}"
            raise UserError(f"data: {name}: {size} is not allowed with {self.name}; use images {allowed} pixels")


@functools.cache
def _costs() -> dict[str, Cost]:
    with _COSTS.open(newline="") as file:
        return {row.pop("network"): Cost(**{name: int(row[name]) for name in row}) for row in csv.DictReader(file)}


def write_costs(costs: dict[str, Cost]) -> None:
    """Writes the file of costs anew, of networks by name."""
    with _COSTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["network", *(field.name for field in dataclasses.fields(Cost))])
        writer.writerows([name, *dataclasses.astuple(cost)] for name, cost in costs.items())
    _costs.cache_clear()


CIFAR_RESNET_V1 = (20, 32, 44, 50, 56, 110, 164)
CIFAR_RESNET_V2 = (8, 20, 32, 44, 50, 56, 110, 164)
"""Layers of the ResNets for CIFAR; those of 164 are of bottlenecks."""

_RESNET = "He et al. 2016, Deep Residual Learning for Image Recognition"
_IDENTITY = "He et al. 2016, Identity Mappings in Deep Residual Networks"
_VGG = "Simonyan and Zisserman 2015, Very Deep Convolutional Networks"
_DENSENET = "Huang et al. 2017, Densely Connected Convolutional Networks"
_INCEPTION = "MXNet's Inception with batch norm for 28x28 images, after Ioffe and Szegedy 2015"
_GOOGLENET = "Szegedy et al. 2015, Going Deeper with Convolutions; batch norm, without the auxiliary classifiers"
_INCEPTION_V3 = "Szegedy et al. 2016, Rethinking the Inception Architecture; without the auxiliary classifier"
_INCEPTION_V4 = "Szegedy et al. 2016, Inception-v4, Inception-ResNet"
_AIRBENCH = "after Jordan 2024, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU"
_ABLATION = "ablation: cifar_resnet20_v2 without batch norms, for exact comparisons between devices"
_ELEVEN = "(tf_cnn_benchmarks, which has an eleventh class)"


def _cifar(name: str, label: str, source: str, study_name: str = "", **fields: Any) -> Network:
    made_for = {"classes": 10, "input_size": 32, "sizes": (8, 64), **fields}
    return Network(name=f"cifar_{name}", label=f"{label} (CIFAR)", source=source, study_name=study_name, **made_for)


def _imagenet(name: str, label: str, source: str, study_name: str = "", size: int = 224) -> Network:
    made_for: dict[str, Any] = {"classes": 1000, "input_size": size, "sizes": (size, size)}
    return Network(name=name, label=label, source=source, study_name=study_name, **made_for)


def _cifar_resnet_v1(layers: int) -> Network:
    source = _RESNET if layers < 164 else f"{_IDENTITY}: the original ResNet-164, with bottlenecks"
    note = {20: f"the study printed 271,164 {_ELEVEN}", 110: f"the study printed 1,736,124 {_ELEVEN}"}.get(layers, "")
    return _cifar(f"resnet{layers}_v1", f"ResNet-{layers} v1", source, f"resnet{layers}", note=note)


def _cifar_resnet_v2(layers: int) -> Network:
    source = f"{_IDENTITY}, as in MXNet 0.11's CIFAR-10 example" if layers < 164 else f"{_IDENTITY}, with bottlenecks"
    return _cifar(f"resnet{layers}_v2", f"ResNet-{layers}", source, input_scale=1.0)


def _cifar_densenet(layers: int, millions: float, printed: str) -> Network:
    note = f"{millions} million in the paper (without bottlenecks); the study printed {printed}, of another version"
    return _cifar(f"densenet{layers}_k12", f"DenseNet-{layers} (k=12)", _DENSENET, f"densenet{layers}_k12", note=note)


_NETWORKS = [
    *map(_cifar_resnet_v2, CIFAR_RESNET_V2),
    _cifar("resnet20_v2_no_norm", "ResNet-20, no batch norm", _ABLATION, input_scale=1.0),
    *map(_cifar_resnet_v1, CIFAR_RESNET_V1),
    _cifar_densenet(40, 1.0, "364,772"),
    _cifar_densenet(100, 7.0, "2,259,652"),
    _cifar(
        "alexnet",
        "AlexNet",
        "Krizhevsky's cuda-convnet, as in tf_cnn_benchmarks",
        "alexnet",
        note="the study printed 1,756,620; 193 of the 194 more are its eleventh class",
        sizes=(32, 32),
    ),
    _cifar("vgg16", "VGG-16", f"{_VGG}; batch norm, and dense layers of 512", "vgg_16", sizes=(32, 63)),
    _cifar("vgg19", "VGG-19", f"{_VGG}; batch norm, and dense layers of 512", "vgg_19", sizes=(32, 63)),
    _cifar("inception", "Inception", _INCEPTION),
    _cifar("lenet", "LeNet-5", "LeCun et al. 1998, with three input channels", sizes=(32, 32)),
    _cifar("airbench94", "airbench94", _AIRBENCH, sizes=(16, 32), whitens=True),
    _cifar("airbench94_slim", "airbench94, second block of 128", _AIRBENCH, sizes=(16, 32), whitens=True),
    _cifar("airbench95", "airbench95", f"{_AIRBENCH}, its wider one for 95%", sizes=(16, 32), whitens=True),
    _cifar("mlp", "MLP 128-64", "the perceptron of MXNet's examples", "mlp", sizes=(32, 32)),
    _imagenet("alexnet", "AlexNet", "Krizhevsky 2014, One weird trick for parallelizing CNNs", "alexnet"),
    _imagenet("vgg16", "VGG-16", _VGG, "vgg16"),
    _imagenet("vgg19", "VGG-19", _VGG),
    _imagenet("googlenet", "GoogLeNet", _GOOGLENET, "googlenet"),
    _imagenet("inception_v3", "Inception-v3", _INCEPTION_V3, "inceptionv3", 299),
    _imagenet("inception_v4", "Inception-v4", _INCEPTION_V4, "inception_v4", 299),
    _imagenet("resnet50_v1", "ResNet-50 v1", _RESNET, "resnet50"),
    _imagenet("resnet50_v2", "ResNet-50 v2", _IDENTITY),
    _imagenet("resnet101_v1", "ResNet-101 v1", _RESNET, "resnet101"),
    _imagenet("resnet101_v2", "ResNet-101 v2", _IDENTITY),
    _imagenet("resnet152_v1", "ResNet-152 v1", _RESNET, "resnet152"),
    _imagenet("resnet152_v2", "ResNet-152 v2", _IDENTITY),
    _imagenet("densenet121", "DenseNet-121", _DENSENET),
]
NETWORKS: dict[str, Network] = {network.name: network for network in _NETWORKS}


def network(name: str) -> Network:
    """Returns the registered network called `name`; raises UserError with the nearest valid name."""
    if not isinstance(name, str) or name not in NETWORKS:
        raise UserError(f"model: {name!r} is unknown; {suggest(name, NETWORKS)}")
    return NETWORKS[name]
