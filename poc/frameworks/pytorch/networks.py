"""Networks of the registry for CIFAR-10 as PyTorch modules, layer for layer those of the MXNet framework; torchvision's
for ImageNet."""

from __future__ import annotations

import functools
import importlib.metadata
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from poc.config.networks import Cost, Network
from poc.frameworks.pytorch import NETWORKS

# As in MXNet 0.11's resnet symbol; PyTorch's momentum is what is taken of the new value.
_NORM = {"eps": 2e-5, "momentum": 0.1}


def _norm(channels: int, exists: bool) -> nn.Module:
    return nn.BatchNorm2d(channels, **_NORM) if exists else nn.Identity()


class _Unit(nn.Module):
    """A pre-activation unit (He et al. 2016) of convolutions with these kernels and widths.

    The projection, in the first unit of every stage, is behind the first batch norm and ReLU.
    """

    def __init__(
        self, entering: int, layers: list[tuple[int, int, int]], *, stride: int, projects: bool, norm: bool
    ) -> None:
        super().__init__()
        self.depth = len(layers)
        width = entering
        for number, (channels, kernel, step) in enumerate(layers, start=1):
            self.add_module(f"bn{number}", _norm(width, norm))
            self.add_module(f"conv{number}", nn.Conv2d(width, channels, kernel, step, kernel // 2, bias=False))
            width = channels
        self.downsample = nn.Conv2d(entering, width, 1, stride, bias=False) if projects else None

    def forward(self, x: Any) -> Any:
        """The images (n, channels, height, width) behind this unit."""
        y = functional.relu(self.bn1(x))
        residual = x if self.downsample is None else self.downsample(y)
        y = self.conv1(y)
        for number in range(2, self.depth + 1):
            y = getattr(self, f"conv{number}")(functional.relu(getattr(self, f"bn{number}")(y)))
        return y + residual


class PreactivationResNet(nn.Module):
    """The pre-activation ResNets for CIFAR as MXNet 0.11 has them: a batch norm on the input, which has a learnt shift
    and no scale, and a projection in the first unit of every stage."""

    def __init__(self, classes: int, layers: int, norm: bool = True) -> None:
        super().__init__()
        deep = layers >= 164
        widths = [64, 128, 256] if deep else [16, 32, 64]
        self.input_norm = _norm(3, norm)
        if norm:
            self.input_norm.weight.requires_grad_(False)
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        units = []
        entering = 16
        for stage, width in enumerate(widths):
            for number in range((layers - 2) // (9 if deep else 6)):
                stride = 2 if stage and number == 0 else 1
                inner = width // 4
                plan = (
                    [(inner, 1, 1), (inner, 3, stride), (width, 1, 1)] if deep else [(width, 3, stride), (width, 3, 1)]
                )
                units.append(_Unit(entering, plan, stride=stride, projects=number == 0, norm=norm))
                entering = width
        self.units = nn.Sequential(*units)
        self.output_norm = _norm(entering, norm)
        self.output = nn.Linear(entering, classes)

    def forward(self, x: Any) -> Any:
        """Scores (n, classes) of images (n, 3, height, width)."""
        x = functional.relu(self.output_norm(self.units(self.stem(self.input_norm(x)))))
        return self.output(x.mean(dim=(2, 3)))


class _Shift(nn.BatchNorm2d):
    """Batch norm with shifts alone, in tenths of what is learnt, so that they learn a hundred times as fast."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=_NORM["eps"], momentum=0.4)
        self.weight.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        """The values (n, channels, height, width), normalised and shifted."""
        # Gammas of one, and not none: in NHWC CUDA's backward pass would return no gradient of the shifts.
        given = (self.running_mean, self.running_var, self.weight, 10 * self.bias)
        return functional.batch_norm(x, *given, self.training, self.momentum, self.eps)


class Airbench(nn.Module):
    """The network of Jordan 2024, as the MXNet framework has it (`poc/frameworks/mxnet/networks.py`)."""

    def __init__(self, classes: int, *widths: int) -> None:
        super().__init__()
        self.whitening = nn.Conv2d(3, 24, 2)
        self.whitening.weight.requires_grad_(False)
        blocks: list[nn.Module] = []
        entering = 24
        for width in widths:
            blocks += [nn.Conv2d(entering, width, 3, 1, 1, bias=False), nn.MaxPool2d(2), _Shift(width), nn.GELU()]
            blocks += [nn.Conv2d(width, width, 3, 1, 1, bias=False), _Shift(width), nn.GELU()]
            entering = width
        self.blocks = nn.Sequential(*blocks)
        self.output = nn.Linear(entering, classes, bias=False)

    def forward(self, x: Any) -> Any:
        """Scores (n, classes) of images (n, 3, height, width)."""
        x = functional.gelu(functional.conv2d(x, self.whitening.weight, 10 * self.whitening.bias))
        return self.output(self.blocks(x).amax(dim=(2, 3))) / 7

    def start(self) -> None:
        """The first outputs of each convolution are its inputs."""
        for layer in self.blocks:
            if isinstance(layer, nn.Conv2d):
                nn.init.dirac_(layer.weight[: layer.in_channels])


def build(network: Network, classes: int, *, zero_branches: bool, seed: int) -> nn.Module:
    """Returns the module of `network` for inputs (n, 3, h, w), with weights drawn from `seed` as the study had them.

    He's normal distribution, of variance 2 / fan-in; biases are zero. With `zero_branches` residual units start as
    identities.
    """
    net = _built(network, classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                layer.weight.normal_(0.0, math.sqrt(2.0 / layer.weight[0].numel()), generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()
        if isinstance(net, Airbench):
            net.start()
        if zero_branches:
            # Gammas of zero before the last ReLU of a pre-activation unit would let no gradient through.
            ends = [getattr(unit, f"conv{unit.depth}") for unit in net.modules() if isinstance(unit, _Unit)]
            for end in ends + [unit.bn3 for unit in _bottlenecks(net)]:
                end.weight.zero_()
    return net


def _built(network: Network, classes: int) -> Any:
    builder, *arguments = NETWORKS[network.name]
    return globals()[builder](classes, *arguments)


@functools.cache
def _declare_operators() -> None:
    """Declare operators that `import torchvision` needs if its compiled ones cannot be loaded.

    The package index has torchvision for CUDA only. Its models use none of these operators.
    """
    if torch.version.cuda is None and "+cpu" not in importlib.metadata.version("torchvision"):
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def torchvision(classes: int, name: str, **options: Any) -> nn.Module:
    """A network of torchvision, whose import takes seconds."""
    _declare_operators()
    models = importlib.import_module("torchvision.models")
    net: nn.Module = getattr(models, name)(num_classes=classes, weights=None, **options)
    return net


def torchvision_inception(classes: int, name: str) -> nn.Module:
    """GoogLeNet and Inception-v3 without the auxiliary classifiers; their own initialisation is slow."""
    return torchvision(classes, name, aux_logits=False, init_weights=False)


def torchvision_resnet(classes: int, name: str) -> nn.Module:
    """A ResNet of bottlenecks with the stride in the first convolution, as He et al. 2016 and Gluon have it.

    Convolutions of 1 x 1 get biases, which are Gluon's too, though the batch norm after each takes them out.
    """
    net = torchvision(classes, name)
    for unit in _bottlenecks(net):
        first, middle, last = unit.conv1, unit.conv2, unit.conv3
        unit.conv1 = nn.Conv2d(first.in_channels, first.out_channels, 1, middle.stride)
        middle.stride = (1, 1)
        unit.conv3 = nn.Conv2d(last.in_channels, last.out_channels, 1)
    return net


def _bottlenecks(net: nn.Module) -> list[Any]:
    return [unit for unit in net.modules() if type(unit).__name__ == "Bottleneck"]


class _Values(TorchDispatchMode):
    """Counts the values that operators put out, but for those that only look at others: flatten, transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        outputs = operator(*arguments, **(named or {}))
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        if not operator.is_view:
            self.count += first.numel()
        return outputs


def count(network: Network) -> Cost:
    """What `network` costs, counted without computing anything."""
    with torch.device("meta"), torch.no_grad():
        net = _built(network, network.classes).eval()
        image = torch.zeros(1, 3, network.input_size, network.input_size)
        with FlopCounterMode(display=False) as flops, _Values() as values:
            net(image)
    trained = sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
    return Cost(parameters=trained, forward_multiply_adds=flops.get_total_flops() // 2, activations=values.count)
