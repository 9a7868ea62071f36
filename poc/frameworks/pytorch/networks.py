"""Networks of the registry as PyTorch modules: for CIFAR-10 as the MXNet ones, layer for layer; torchvision's."""

import functools
import importlib.metadata
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from poc.config.networks import AIRBENCHES, PREACTIVATION_RESNETS, preactivation_units

# As in MXNet 0.11's resnet symbol; PyTorch's momentum is the weight of the new value.
_NORM = {"eps": 2e-5, "momentum": 0.1}


def _norm(channels: int, exists: bool) -> nn.Module:
    return nn.BatchNorm2d(channels, **_NORM) if exists else nn.Identity()


class _Unit(nn.Module):
    """A pre-activation unit (He et al. 2016) of convolutions given as (channels, kernel, stride).

    The projection follows the first batch norm and ReLU.
    """

    def __init__(self, inputs: int, shapes: list[tuple[int, int, int]], *, projects: bool, norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = inputs
        for channels, kernel, step in shapes:
            layers += [_norm(width, norm), nn.ReLU()]
            layers.append(nn.Conv2d(width, channels, kernel, step, kernel // 2, bias=False))
            width = channels
        self.preactivation, self.branch = nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])
        stride = math.prod(step for _, _, step in shapes)
        self.projection = nn.Conv2d(inputs, width, 1, stride, bias=False) if projects else None

    def forward(self, x: Any) -> Any:
        y = self.preactivation(x)
        return self.branch(y) + (x if self.projection is None else self.projection(y))


class PreactivationResNet(nn.Module):
    """MXNet 0.11's pre-activation ResNet for CIFAR, with a batch norm on the input that has a learnt shift only."""

    def __init__(self, classes: int, layers: int, norm: bool = True) -> None:
        super().__init__()
        self.input_norm = _norm(3, norm)
        if norm:
            self.input_norm.weight.requires_grad_(False)
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        units = []
        inputs = 16
        for shapes, projects in preactivation_units(layers):
            units.append(_Unit(inputs, shapes, projects=projects, norm=norm))
            inputs, _, _ = shapes[-1]
        self.units = nn.Sequential(*units)
        self.output_norm = _norm(inputs, norm)
        self.output = nn.Linear(inputs, classes)

    def forward(self, x: Any) -> Any:
        x = functional.relu(self.output_norm(self.units(self.stem(self.input_norm(x)))))
        return self.output(x.mean(dim=(2, 3)))


class _Shift(nn.BatchNorm2d):
    """Batch norm with shifts alone, ten times the learnt values, so that they learn a hundred times as fast."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=_NORM["eps"], momentum=0.4)
        self.weight.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        # Gammas of one, and not None: in NHWC CUDA's backward pass would return no gradient of the shifts.
        arguments = (self.running_mean, self.running_var, self.weight, 10 * self.bias)
        return functional.batch_norm(x, *arguments, self.training, self.momentum, self.eps)


class Airbench(nn.Module):
    """The network of Jordan 2024, as `Airbench` in poc/frameworks/mxnet/networks.py."""

    def __init__(self, classes: int, *widths: int) -> None:
        super().__init__()
        self.whitening = nn.Conv2d(3, 24, 2)
        self.whitening.weight.requires_grad_(False)
        blocks: list[nn.Module] = []
        inputs = 24
        for width in widths:
            blocks += [nn.Conv2d(inputs, width, 3, 1, 1, bias=False), nn.MaxPool2d(2), _Shift(width), nn.GELU()]
            blocks += [nn.Conv2d(width, width, 3, 1, 1, bias=False), _Shift(width), nn.GELU()]
            inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.output = nn.Linear(inputs, classes, bias=False)

    def forward(self, x: Any) -> Any:
        x = functional.gelu(functional.conv2d(x, self.whitening.weight, 10 * self.whitening.bias))
        return self.output(self.blocks(x).amax(dim=(2, 3))) / 7


@functools.cache
def declare_operators() -> None:
    """Declare operators that `import torchvision` needs if its compiled ones cannot be loaded.

    The package index has torchvision for CUDA only. Its models use none of these operators.
    """
    if torch.version.cuda is None and "+cpu" not in importlib.metadata.version("torchvision"):
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def torchvision(classes: int, name: str, **options: Any) -> nn.Module:
    """A network of torchvision, whose import takes seconds."""
    declare_operators()
    models = importlib.import_module("torchvision.models")
    return getattr(models, name)(num_classes=classes, weights=None, **options)


def torchvision_resnet(classes: int, name: str) -> nn.Module:
    """A ResNet of bottlenecks with the stride in the first convolution, as in He et al. 2016 and Gluon.

    Convolutions of 1 x 1 have biases, as Gluon's, though the batch norm after each cancels them.
    """
    net = torchvision(classes, name)
    for unit in _bottlenecks(net):
        first, middle, last = unit.conv1, unit.conv2, unit.conv3
        unit.conv1 = nn.Conv2d(first.in_channels, first.out_channels, 1, middle.stride)
        middle.stride = (1, 1)
        unit.conv3 = nn.Conv2d(last.in_channels, last.out_channels, 1)
    return net


def torchvision_alexnet(classes: int) -> nn.Module:
    """AlexNet with dropout after its two hidden dense layers (Krizhevsky et al. 2012), as Gluon's."""
    net = torchvision(classes, "alexnet")
    first_drop, fc6, relu6, second_drop, fc7, relu7, output = net.classifier
    net.classifier = nn.Sequential(fc6, relu6, first_drop, fc7, relu7, second_drop, output)
    return net


# Without the auxiliary classifiers and their own, slow initialisation.
_without_auxiliary = functools.partial(torchvision, aux_logits=False, init_weights=False)
BUILDERS: dict[str, tuple[Callable[..., nn.Module], tuple[Any, ...]]] = {
    **{name: (PreactivationResNet, arguments) for name, arguments in PREACTIVATION_RESNETS.items()},
    **{name: (Airbench, widths) for name, widths in AIRBENCHES.items()},
    "alexnet": (torchvision_alexnet, ()),
    **{name: (torchvision, (name,)) for name in ("vgg16", "vgg19", "densenet121")},
    # Szegedy et al. 2015, as in GluonCV; torchvision's is half of that.
    "googlenet": (functools.partial(_without_auxiliary, dropout=0.4), ("googlenet",)),
    "inception_v3": (_without_auxiliary, ("inception_v3",)),
    **{f"resnet{layers}_v1": (torchvision_resnet, (f"resnet{layers}",)) for layers in (50, 101, 152)},
}
"""Builders of the networks in `pytorch.NETWORKS`, and their arguments after the number of classes."""


def registered(name: str, classes: int, *, zero_branches: bool, seed: int) -> nn.Module:
    """Return the module of a registered network for inputs (n, 3, h, w), its weights drawn from `seed` as in the study.

    He's normal distribution has variance 2 / fan-in; biases are zero. `zero_branches`: units start as identities.
    """
    builder, arguments = BUILDERS[name]
    net = builder(classes, *arguments)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                layer.weight.normal_(0.0, math.sqrt(2.0 / layer.weight[0].numel()), generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()
        for layer in net.blocks if isinstance(net, Airbench) else ():
            if isinstance(layer, nn.Conv2d):  # its first outputs are its inputs
                nn.init.dirac_(layer.weight[: layer.in_channels])
        if zero_branches:
            # Gammas of zero before the last ReLU of a pre-activation unit would pass no gradient.
            ends = [unit.branch[-1] for unit in net.modules() if isinstance(unit, _Unit)]
            for end in ends + [unit.bn3 for unit in _bottlenecks(net)]:
                end.weight.zero_()
    return net


def _bottlenecks(net: nn.Module) -> list[Any]:
    return [unit for unit in net.modules() if type(unit).__name__ == "Bottleneck"]


def stop_counting_batches(net: nn.Module) -> None:
    """Let the batch norms of `net` not count batches, an operator each per step, where nothing reads the count."""
    for layer in net.modules():
        # Without a momentum the running statistics are means over all batches.
        counts = isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, nn.SyncBatchNorm)
        is_own = type(layer).__module__.split(".")[0] not in ("torch", "timm", "poc")  # may count by itself
        if counts and layer.momentum is not None and not is_own:
            layer.num_batches_tracked = None


_GROUP_VALUES = 2_000_000  # DistributedDataParallel sends 25 MB at a time


class _Copies(torch.autograd.Function):
    """Copies of weights in a lower precision, made by one operator; another brings their gradients to float32."""

    @staticmethod
    def forward(context: Any, dtype: torch.dtype, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        torch._foreach_copy_(copies, weights)
        return tuple(copies)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        wide = [torch.empty_like(gradient, dtype=torch.float32) for gradient in gradients]
        torch._foreach_copy_(wide, gradients)
        return None, *wide


class LowPrecision(nn.Module):
    """A registered network for autocast to `dtype`, which alone would cast each weight and each gradient by itself."""

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self._net, self._dtype = net, dtype
        self._groups: list[dict[str, torch.Tensor]] = [{}]
        for name, layer in net.named_modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)) and layer.weight.requires_grad:
                # DistributedDataParallel can send the gradients of one group during the backward pass of the next.
                if sum(weight.numel() for weight in self._groups[-1].values()) > _GROUP_VALUES:
                    self._groups.append({})
                self._groups[-1][f"{name}.weight"] = layer.weight

    def forward(self, images: torch.Tensor) -> Any:
        weights: dict[str, torch.Tensor] = {}
        for group in self._groups:
            weights.update(zip(group, _Copies.apply(self._dtype, *group.values())))
        return functional_call(self._net, weights, (images,))
