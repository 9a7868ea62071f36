"""Networks of the registry as Gluon blocks: Gluon's and GluonCV's, changed where the studies' differ, and others."""

import math
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import HybridConcurrent
from mxnet.gluon.model_zoo import vision

from poc.config.networks import AIRBENCHES, PREACTIVATION_RESNETS, preactivation_units, resnet_stages
from poc.frameworks.mxnet.zoo import gluoncv

# As in MXNet 0.11's resnet symbol; Gluon's own default epsilon is 1e-5.
_NORM = {"epsilon": 2e-5, "momentum": 0.9}


def _sequence(*blocks: Any) -> Any:
    joined = nn.HybridSequential(prefix="")
    joined.add(*blocks)
    return joined


def _concat(*branches: Any) -> Any:
    """Concatenate the outputs of all branches along the channels: blocks, or lists of the arguments of `_conv`."""
    joined = HybridConcurrent(axis=1, prefix="")
    for branch in branches:
        joined.add(_sequence(*(_conv(*shape) for shape in branch)) if isinstance(branch, list) else branch)
    return joined


def _conv(channels: int, kernel: Any, stride: int = 1, padding: Any = None, *, epsilon: float = 1e-3) -> Any:
    """Return a convolution with batch norm and ReLU; by default the padding keeps the size."""
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = tuple(side // 2 for side in kernel) if padding is None else padding
    convolution = nn.Conv2D(channels, kernel, stride, padding, use_bias=False)
    return _sequence(convolution, nn.BatchNorm(epsilon=epsilon), nn.Activation("relu"))


def _spatial_mean() -> Any:
    """Return global average pooling, (n, c, h, w) to (n, c), as a mean.

    On the CPU the gradient of MXNet's pooling operator is slow for a blocked layout: ResNet-50 at batch 128 trained at
    290 samples/s with it and at 320 without, on two cores.
    """
    return nn.HybridLambda(lambda ops, x: ops.mean(x, axis=(2, 3)))


class _PreactivationUnit(nn.HybridBlock):
    """A pre-activation unit of He et al. 2016: batch norm, ReLU and a convolution (channels, kernel, stride), repeated.

    The projection follows the first batch norm and ReLU, as in MXNet 0.11 and the paper; GluonCV's does not.
    """

    def __init__(self, shapes: list[tuple[int, int, int]], norm: bool, *, projects: bool) -> None:
        super().__init__(prefix="")
        width, stride = shapes[-1][0], math.prod(step for _, _, step in shapes)
        # Channels of each input, 0 where a first pass infers them: its weights are drawn after those of the others, so
        # that this decides what a seed draws.
        declared = [0, 0, 0] if len(shapes) == 3 else [0 if projects else width, width]
        parts = []
        for (channels, kernel, step), inputs in zip(shapes, declared):
            parts += [nn.BatchNorm(**_NORM), nn.Activation("relu")] if norm else [nn.Activation("relu")]
            parts.append(nn.Conv2D(channels, kernel, step, kernel // 2, use_bias=False, in_channels=inputs))
        first = len(parts) // len(shapes) - 1
        self.preactivation, self.branch = _sequence(*parts[:first]), _sequence(*parts[first:])
        self.projection = nn.Conv2D(width, 1, stride, use_bias=False) if projects else None

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        y = self.preactivation(x)
        residual = self.projection(y) if self.projection else x  # first: the order decides what a seed draws
        return self.branch(y) + residual


class PreactivationResNet(nn.HybridBlock):
    """MXNet 0.11's pre-activation ResNet for CIFAR, of He et al. 2016.

    Besides the unit above, GluonCV's has no 1x1 projection in the first unit of the first stage and no learnt shift in
    the batch norm of the input: with 50 layers it has 758,362 parameters, not 758,621.
    """

    def __init__(self, classes: int, layers: int, norm: bool = True) -> None:
        super().__init__()
        self.features = nn.HybridSequential(prefix="")
        if norm:
            self.features.add(nn.BatchNorm(scale=False, **_NORM))
        self.features.add(nn.Conv2D(16, 3, 1, 1, use_bias=False))
        for shapes, projects in preactivation_units(layers):
            self.features.add(_PreactivationUnit(shapes, norm, projects=projects))
        if norm:
            self.features.add(nn.BatchNorm(**_NORM))
        self.output = nn.Dense(classes, in_units=shapes[-1][0])

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        return self.output(F.mean(F.Activation(self.features(x), act_type="relu"), axis=(2, 3)))


class _Shift(nn.BatchNorm):
    """Batch norm with shifts alone, ten times the learnt values, so that they learn a hundred times as fast."""

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any, **statistics: Any) -> Any:  # noqa: N803
        return super().hybrid_forward(F, x, gamma=gamma, beta=10 * beta, **statistics)


class _Whitening(nn.Conv2D):
    """A convolution whose shifts are ten times the learnt values, too."""

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any) -> Any:  # noqa: N803
        return super().hybrid_forward(F, x, weight=weight, bias=10 * bias)


class Airbench(nn.HybridBlock):
    """The network of Jordan 2024 ("94% on CIFAR-10 in 3.29 Seconds on a Single GPU").

    Its first convolution whitens patches of 2 x 2, and only its shifts are trained; three blocks of two convolutions
    follow, which begin as identities. Constant factors replace the original's separate learning rates. What else
    differs from the original's training, in this repository's recipes: five Newton-Schulz iterations and not three; the
    head and the shifts have Muon's momentum, with which their steps add up to about 0.4 of the original's, and no
    weight decay; the whitening's shifts are trained to the end; images are padded with grey, not reflected; other
    initial weights; pixels less ImageNet's mean, divided by 58; an epsilon of 2e-5 in the norms; no test-time
    augmentation. The original is `airbench94_muon.py`, which its author published after the paper.
    """

    def __init__(self, classes: int, *widths: int) -> None:
        super().__init__()
        self.whitening = _Whitening(24, 2, in_channels=3)
        self.whitening.weight.grad_req = "null"
        self.blocks = nn.HybridSequential(prefix="")
        inputs, options = 24, {"use_bias": False, "weight_initializer": _Identity()}
        for width in widths:
            for channels, pools in ((inputs, True), (width, False)):
                self.blocks.add(nn.Conv2D(width, 3, 1, 1, in_channels=channels, **options))
                if pools:
                    self.blocks.add(nn.MaxPool2D(2, 2))
                self.blocks.add(_Shift(scale=False, epsilon=_NORM["epsilon"], momentum=0.6), nn.GELU())
            inputs = width
        self.output = nn.Dense(classes, use_bias=False, in_units=inputs)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        x = self.blocks(F.LeakyReLU(self.whitening(x), act_type="gelu"))
        return self.output(F.max(x, axis=(2, 3))) / 7


class _Identity(mx.init.Initializer):
    """He's normal initialisation, except that the first outputs of a convolution are its inputs."""

    def _init_weight(self, name: str, array: Any) -> None:
        inputs, height, width = array.shape[1:]
        drawn = np.random.normal(0, math.sqrt(2 / (inputs * height * width)), array.shape)
        drawn[:inputs] = 0
        drawn[range(inputs), range(inputs), height // 2, width // 2] = 1
        array[:] = drawn


def cifar_resnet_v1(classes: int, layers: int) -> Any:
    """The CIFAR ResNets of He et al. 2015, from GluonCV; with 164 layers of Gluon's bottlenecks."""

    def bottleneck(channels: int, stride: int, downsample: bool, in_channels: int, prefix: str, **_: Any) -> Any:
        return vision.BottleneckV1(channels, stride, downsample, in_channels, prefix=prefix)

    units, channels = resnet_stages(layers)
    cifarresnet = gluoncv("cifarresnet")
    unit = cifarresnet.CIFARBasicBlockV1 if layers < 164 else bottleneck
    return cifarresnet.CIFARResNetV1(unit, [units] * 3, channels, classes)


class _DenseLayer(nn.HybridBlock):
    """A DenseNet layer: its input and the output of `layer`, concatenated along the channels.

    The arrays have an additional axis: oneDNN's concatenation, for four axes, fails in the backward pass if the
    channels are no multiple of eight ("could not construct a sub-memory").
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        parts = [F.expand_dims(part, axis=2) for part in (x, self.layer(x))]
        return F.squeeze(F.concat(*parts, dim=1), axis=2)


def cifar_densenet(classes: int, layers: int, growth: int) -> Any:
    """DenseNet for CIFAR (Huang et al. 2017), without bottlenecks and compression: three blocks of 3x3 convolutions."""
    width = 16
    net = _sequence(nn.Conv2D(width, 3, 1, 1, use_bias=False))
    for block in range(3):
        for _ in range((layers - 4) // 3):
            convolution = nn.Conv2D(growth, 3, 1, 1, use_bias=False)
            net.add(_DenseLayer(_sequence(nn.BatchNorm(), nn.Activation("relu"), convolution)))
            width += growth
        net.add(nn.BatchNorm(), nn.Activation("relu"))
        if block < 2:
            net.add(nn.Conv2D(width, 1, use_bias=False), nn.AvgPool2D(2, 2))
    net.add(_spatial_mean(), nn.Dense(classes))
    return net


def cifar_alexnet(classes: int) -> Any:
    """AlexNet's CIFAR-10 form of tf_cnn_benchmarks: two 5x5 convolutions and three dense layers.

    The local response normalisations follow the first pooling and precede the second, as in the original.
    """
    first_norm, second_norm = (
        nn.HybridLambda(lambda ops, x: ops.LRN(x, nsize=9, alpha=0.001, beta=0.75, knorm=1.0)) for _ in range(2)
    )
    return _sequence(
        *(nn.Conv2D(64, 5, padding=2, activation="relu"), nn.MaxPool2D(3, 2, 1), first_norm),
        *(nn.Conv2D(64, 5, padding=2, activation="relu"), second_norm, nn.MaxPool2D(3, 2, 1)),
        *(nn.Dense(384, activation="relu"), nn.Dense(192, activation="relu"), nn.Dense(classes)),
    )


def cifar_vgg(classes: int, layers: int) -> Any:
    """VGG's convolutions (Simonyan and Zisserman 2015) with batch norm, and a head of 512 for small images.

    ImageNet's head of twice 4,096 has 90% of the parameters and is useless at 32x32.
    """
    net = _sequence()
    for depth, width in zip(*vision.vgg.vgg_spec[layers]):
        net.add(*(_conv(width, 3, epsilon=1e-5) for _ in range(depth)), nn.MaxPool2D(2, 2))
    net.add(nn.Dense(512, activation="relu"), nn.Dropout(0.5), nn.Dense(classes))
    return net


def cifar_inception(classes: int) -> Any:
    """MXNet's own Inception for 28x28 images, with batch norm (Ioffe and Szegedy 2015; Zhang et al. 2017, appendix)."""

    def simple(pointwise: int, three: int) -> Any:
        return _concat([(pointwise, 1)], [(three, 3)])

    def down(channels: int) -> Any:
        return _concat([(channels, 3, 2)], nn.MaxPool2D(3, 2, 1))

    return _sequence(
        *(_conv(96, 3), simple(32, 32), simple(32, 48), down(80)),
        *(simple(112, 48), simple(96, 64), simple(80, 80), simple(48, 96), down(96)),
        *(simple(176, 160), simple(176, 160), _spatial_mean(), nn.Dense(classes)),
    )


def cifar_lenet(classes: int) -> Any:
    """LeNet-5 (LeCun et al. 1998) with a plain dense output and three input channels."""
    return _sequence(
        *(nn.Conv2D(6, 5, activation="tanh"), nn.AvgPool2D(2, 2)),
        *(nn.Conv2D(16, 5, activation="tanh"), nn.AvgPool2D(2, 2)),
        *(nn.Dense(120, activation="tanh"), nn.Dense(84, activation="tanh"), nn.Dense(classes)),
    )


def cifar_mlp(classes: int) -> Any:
    """The perceptron of MXNet's examples: 128, 64 and the classes."""
    return _sequence(nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(classes))


def inception_v4(classes: int) -> Any:
    """Inception-v4 (Szegedy et al. 2016, figures 3 to 9). A convolution without padding has a 0 after its stride."""
    rows, columns = (1, 7), (7, 1)

    def pooled(channels: int) -> Any:
        return _sequence(nn.AvgPool2D(3, 1, 1, count_include_pad=False), _conv(channels, 1))

    def across() -> Any:
        return _concat([(256, (1, 3))], [(256, (3, 1))])

    def block_c() -> Any:
        deeper = _sequence(_conv(384, 1), _conv(448, (3, 1)), _conv(512, (1, 3)), across())
        return _concat([(256, 1)], _sequence(_conv(384, 1), across()), deeper, pooled(256))

    block_a = [(96, 1)], [(64, 1), (96, 3)], [(64, 1), (96, 3), (96, 3)]
    twice = [(192, 1), (192, columns), (224, rows), (224, columns), (256, rows)]
    block_b = [(384, 1)], [(192, 1), (224, rows), (256, columns)], twice
    wide = [(256, 1), (256, rows), (320, columns), (320, 3, 2, 0)]
    return _sequence(
        *(_conv(32, 3, 2, 0), _conv(32, 3, 1, 0), _conv(64, 3)),
        _concat(nn.MaxPool2D(3, 2), [(96, 3, 2, 0)]),
        _concat([(64, 1), (96, 3, 1, 0)], [(64, 1), (64, rows), (64, columns), (96, 3, 1, 0)]),
        _concat([(192, 3, 2, 0)], nn.MaxPool2D(3, 2)),
        *(_concat(*block_a, pooled(96)) for _ in range(4)),
        _concat([(384, 3, 2, 0)], [(192, 1), (224, 3), (256, 3, 2, 0)], nn.MaxPool2D(3, 2)),
        *(_concat(*block_b, pooled(128)) for _ in range(7)),
        _concat([(192, 1), (192, 3, 2, 0)], wide, nn.MaxPool2D(3, 2)),
        *(block_c() for _ in range(3)),
        *(_spatial_mean(), nn.Dropout(0.2), nn.Dense(classes)),
    )


def gluon_zoo(classes: int, name: str) -> Any:
    """A network of Gluon's own model zoo, with this project's initialisation (its VGG has one of its own)."""
    net = vision.get_model(name, classes=classes)
    net.collect_params(".*weight").setattr("init", None)
    return net


_GLUON_RESNETS = [f"resnet{layers}_v{version}" for layers in (50, 101, 152) for version in (1, 2)]
BUILDERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{name: (PreactivationResNet, arguments) for name, arguments in PREACTIVATION_RESNETS.items()},
    **{f"cifar_resnet{layers}_v1": (cifar_resnet_v1, (layers,)) for layers in (20, 32, 44, 50, 56, 110, 164)},
    **{name: (Airbench, widths) for name, widths in AIRBENCHES.items()},
    **{f"cifar_densenet{layers}_k12": (cifar_densenet, (layers, 12)) for layers in (40, 100)},
    **{f"cifar_vgg{layers}": (cifar_vgg, (layers,)) for layers in (16, 19)},
    "cifar_alexnet": (cifar_alexnet, ()),
    "cifar_inception": (cifar_inception, ()),
    "cifar_lenet": (cifar_lenet, ()),
    "cifar_mlp": (cifar_mlp, ()),
    "googlenet": (lambda classes: gluoncv("googlenet").GoogLeNet(classes=classes, aux_logits=False), ()),
    "inception_v4": (inception_v4, ()),
    "inception_v3": (gluon_zoo, ("inceptionv3",)),
    **{name: (gluon_zoo, (name,)) for name in ("alexnet", "vgg16", "vgg19", "densenet121", *_GLUON_RESNETS)},
}
"""Builders of all networks, and their arguments after the number of classes."""


def registered(name: str, classes: int, *, fused: bool) -> Any:
    """Return the uninitialised Gluon block of a registered network for inputs (n, 3, h, w).

    `fused`: batch norm and ReLU as one operator, which gives the same numbers; but if two layers use its output its
    gradient is right only once the block is hybridized, and it is wrong where the input has a plain layout and the
    gradient oneDNN's blocked one, as after a `_DenseLayer`. On two cores it made ResNet-50 at batch 128 8% faster
    (median of 16 pairs of 6 steps each).
    """
    builder, arguments = BUILDERS[name]
    net = builder(classes, *arguments)
    _optimise(net, fused=fused and builder is not cifar_densenet)
    return net


def _optimise(net: Any, *, fused: bool) -> None:
    """Replace layers by faster operators in all sequences of a network."""
    for child in net._children.values():
        _optimise(child, fused=fused)
    if type(net) is not nn.HybridSequential:
        return
    layers = list(net._children.items())
    for (name, layer), (after, follower) in zip(layers, [*layers[1:], ("", None)]):
        # A pooling of 7 x 7 or 8 x 8 averages all values of an image, in the networks that have one.
        averages_all = isinstance(layer, nn.AvgPool2D) and layer._kwargs["kernel"] in ((7, 7), (8, 8))
        if averages_all or isinstance(layer, nn.GlobalAvgPool2D):
            net._children[name] = _spatial_mean()
        elif fused and isinstance(layer, nn.BatchNorm) and getattr(follower, "_act_type", "") == "relu":
            layer.fuse_relu = True
            del net._children[after]


def branch_ends(net: Any) -> list[Any]:
    """Return the parameters that scale the end of the branch of each residual unit of `net`.

    They are the gammas of the last batch norm. A pre-activation unit has a ReLU and a convolution after its last norm,
    and with gammas of zero that ReLU would never pass a gradient: there they are the weights of the last convolution.
    """
    ends: list[Any] = []

    def collect(block: Any) -> None:
        if isinstance(block, _PreactivationUnit):
            ends.append(block.branch[-1].weight)
        elif isinstance(block, vision.BottleneckV2):
            ends.append(block.conv3.weight)
        elif hasattr(block, "body"):
            ends.extend([layer.gamma for layer in block.body if isinstance(layer, nn.BatchNorm)][-1:])

    net.apply(collect)
    return ends


def draw_by_mxnet(block: Any) -> None:
    """Let a drop-out layer on a GPU draw from MXNet's generators; those of cuDNN do not start at MXNet's seed."""
    if isinstance(block, nn.Dropout) and block._rate > 0:
        options = {"p": block._rate, "axes": block._axes, "cudnn_off": True}
        block.hybrid_forward = lambda operators, images: operators.Dropout(images, **options)


def can_fuse() -> bool:
    """Tell whether oneDNN has batch norm and ReLU as one operator for this CPU."""
    image = mx.nd.ones((1, 16, 4, 4))
    image.attach_grad()
    channels = [mx.nd.ones(16) for _ in range(4)]
    try:
        with autograd.record():
            out = mx.nd.contrib.BatchNormWithReLU(image, *channels)
        out.backward()
        mx.nd.waitall()
    except mx.MXNetError:
        return False
    return True
