"""The networks of the registry as Gluon blocks: GluonCV's and Gluon's own, changed where the studies' differ, and what
both lack."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, Callable

import mxnet as mx
import numpy as np
from gluoncv.model_zoo import cifarresnet
from gluoncv.model_zoo.googlenet import GoogLeNet
from mxnet import autograd
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import HybridConcurrent
from mxnet.gluon.model_zoo import vision
from mxnet.gluon.model_zoo.vision import resnet as zoo_resnet

from poc.recipe.networks import Network

# As in MXNet 0.11's resnet symbol; Gluon's own default epsilon is 1e-5.
_NORM = {"epsilon": 2e-5, "momentum": 0.9}


class _NoNorm(nn.HybridBlock):
    def __init__(self, **_: Any) -> None:
        super().__init__()

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803 (MXNet's name for the symbol or array module)
        return x


class _OnlyReLU(_NoNorm):
    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        return F.Activation(x, act_type="relu")


class _NormThenReLU(nn.BatchNorm):
    """Batch norm and ReLU one after the other; Gluon's BatchNormReLU is both in one."""

    def hybrid_forward(self, F: Any, x: Any, *parameters: Any, **named: Any) -> Any:  # noqa: N803
        return F.Activation(super().hybrid_forward(F, x, *parameters, **named), act_type="relu")


class _SpatialMean(nn.HybridBlock):
    """Global average pooling, (n, c, h, w) to (n, c), as a mean.

    On the CPU the gradient of MXNet's pooling operator takes a slow path of oneDNN's behind a blocked layout:
    ResNet-50 at batch 128 trained at 290 samples/s with it and at 320 without, on two cores.
    """

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        return F.mean(x, axis=(2, 3))


class _StudyUnit(cifarresnet.CIFARBasicBlockV2):
    """GluonCV's pre-activation unit, but with the projection behind the first batch norm and ReLU.

    That is where MXNet 0.11's and He et al.'s is; GluonCV projects the unit's raw input, and learns more slowly. Its
    norms are to apply ReLU themselves.
    """

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        activated = self.bn1(x)
        residual = self.downsample(activated) if self.downsample else x
        return self.conv2(self.bn2(self.conv1(activated))) + residual


class _StudyBottleneck(nn.HybridBlock):
    """He et al. 2016's pre-activation bottleneck: 1x1, 3x3 and 1x1, the last with four times the channels."""

    def __init__(
        self, channels: int, stride: int, downsample: bool, *, norm_layer: Any, norm_kwargs: Any, **named: Any
    ) -> None:
        named.pop("in_channels")
        super().__init__(**named)
        with self.name_scope():
            for number, (width, kernel, step) in enumerate(
                [(channels // 4, 1, 1), (channels // 4, 3, stride), (channels, 1, 1)], start=1
            ):
                setattr(self, f"bn{number}", norm_layer(**norm_kwargs))
                conv = nn.Conv2D(width, kernel, step, kernel // 2, use_bias=False)
                setattr(self, f"conv{number}", conv)
            self.downsample = nn.Conv2D(channels, 1, stride, use_bias=False) if downsample else None

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        activated = self.bn1(x)
        residual = self.downsample(activated) if self.downsample else x
        return self.conv3(self.bn3(self.conv2(self.bn2(self.conv1(activated))))) + residual


class _StudyResNet(cifarresnet.CIFARResNetV2):
    """GluonCV's pre-activation ResNet for CIFAR made into MXNet 0.11's.

    Beside the unit above, it lacks a 1x1 projection in the first unit of the first stage and a learnt shift in the
    batch norm of the input: with 50 layers it has 758,362 parameters, not 758,621.
    """

    def __init__(
        self,
        unit: Any,
        units: int,
        channels: Sequence[int],
        classes: int,
        *,
        norm_layer: Any,
        norm_relu: Any,
        norm_kwargs: dict[str, Any],
    ) -> None:
        self._norm_relu = norm_relu
        super().__init__(unit, [units] * 3, channels, classes, norm_layer=norm_layer, norm_kwargs=norm_kwargs)
        with self.name_scope():
            changed = nn.HybridSequential(prefix="")
            changed.add(norm_layer(scale=False, center=True, **norm_kwargs))
            for layer in list(self.features)[1:]:
                changed.add(_SpatialMean() if isinstance(layer, nn.GlobalAvgPool2D) else layer)
            self.features: nn.HybridSequential = changed

    def _make_layer(
        self,
        block: Any,
        layers: int,
        channels: int,
        stride: int,
        stage_index: int,
        in_channels: int = 0,
        **norm: Any,
    ) -> Any:
        norm["norm_layer"] = self._norm_relu
        # GluonCV projects where the channels change; telling it that they are unknown makes it project always.
        return super()._make_layer(block, layers, channels, stride, stage_index, in_channels=0, **norm)


def _preactivation(layers: int, classes: int, *, fused: bool, norm: bool = True) -> Any:
    """The CIFAR ResNets of He et al. 2016: basic units, and bottlenecks from 164 layers on, as in the paper."""
    deep = layers >= 164
    unit = _StudyBottleneck if deep else _StudyUnit
    units = (layers - 2) // (9 if deep else 6)
    channels = [16, 64, 128, 256] if deep else [16, 16, 32, 64]
    if not norm:
        return _StudyResNet(unit, units, channels, classes, norm_layer=_NoNorm, norm_relu=_OnlyReLU, norm_kwargs={})
    norm_relu = nn.BatchNormReLU if fused else _NormThenReLU
    return _StudyResNet(unit, units, channels, classes, norm_layer=nn.BatchNorm, norm_relu=norm_relu, norm_kwargs=_NORM)


def _postactivation(layers: int, classes: int) -> Any:
    """The CIFAR ResNets of He et al. 2015, from GluonCV; with 164 layers of Gluon's bottlenecks."""
    if layers < 164:
        return cifarresnet.get_cifar_resnet(version=1, num_layers=layers, classes=classes)

    def bottleneck(channels: int, stride: int, downsample: bool, in_channels: int, prefix: str, **_: Any) -> Any:
        return zoo_resnet.BottleneckV1(channels, stride, downsample, in_channels, prefix=prefix)

    units = (layers - 2) // 9
    return cifarresnet.CIFARResNetV1(bottleneck, [units] * 3, [16, 64, 128, 256], classes)


def _sequence(*blocks: Any) -> Any:
    joined = nn.HybridSequential(prefix="")
    for block in blocks:
        joined.add(block)
    return joined


def _beside(*blocks: Any) -> Any:
    """The outputs of all blocks, for the same input, one after the other along the channels."""
    joined = HybridConcurrent(axis=1, prefix="")
    for block in blocks:
        joined.add(block)
    return joined


def _conv(channels: int, kernel: Any, stride: int = 1, padding: Any = None, *, epsilon: float = 1e-3) -> Any:
    """A convolution, its batch norm and ReLU; by default the size stays as it is."""
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = tuple(side // 2 for side in kernel) if padding is None else padding
    convolution = nn.Conv2D(channels, kernel, stride, padding, use_bias=False)
    return _sequence(convolution, nn.BatchNorm(epsilon=epsilon), nn.Activation("relu"))


class _Grown(nn.HybridBlock):
    """A DenseNet layer: its input, and behind it along the channels what `layer` makes of it.

    Concatenated with an axis more than images have: oneDNN's own concatenation, which takes four, fails in the backward
    pass where the channels are no multiple of eight ("could not construct a sub-memory").
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        both = [F.expand_dims(one, axis=2) for one in (x, self.layer(x))]
        return F.squeeze(F.concat(*both, dim=1), axis=2)


def _densenet(layers: int, growth: int, classes: int) -> Any:
    """DenseNet for CIFAR (Huang et al. 2017), without bottlenecks and compression: three blocks of 3x3 convolutions."""
    net = nn.HybridSequential()
    with net.name_scope():
        width = 16
        net.add(nn.Conv2D(width, 3, 1, 1, use_bias=False))
        for block in range(3):
            for _ in range((layers - 4) // 3):
                convolution = nn.Conv2D(growth, 3, 1, 1, use_bias=False)
                net.add(_Grown(_sequence(nn.BatchNorm(), nn.Activation("relu"), convolution)))
                width += growth
            net.add(nn.BatchNorm(), nn.Activation("relu"))
            if block < 2:
                net.add(nn.Conv2D(width, 1, use_bias=False), nn.AvgPool2D(2, 2))
        net.add(_SpatialMean(), nn.Dense(classes))
    return net


def _cifar_alexnet(classes: int) -> Any:
    """AlexNet's CIFAR-10 form of tf_cnn_benchmarks: two 5x5 convolutions and three dense layers.

    The local response normalisations are behind the first pooling and before the second, as there.
    """
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Conv2D(64, 5, padding=2, activation="relu"), nn.MaxPool2D(3, 2, 1))
        net.add(_LocalNorm(), nn.Conv2D(64, 5, padding=2, activation="relu"), _LocalNorm(), nn.MaxPool2D(3, 2, 1))
        net.add(nn.Dense(384, activation="relu"), nn.Dense(192, activation="relu"), nn.Dense(classes))
    return net


class _LocalNorm(nn.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        return F.LRN(x, nsize=9, alpha=0.001, beta=0.75, knorm=1.0)


def _cifar_vgg(layers: int, classes: int) -> Any:
    """VGG's convolutions (Simonyan and Zisserman 2015) with batch norm, and a head of 512 for small images.

    ImageNet's head of twice 4,096 has 90% of the parameters and nothing to do at 32x32.
    """
    depths, widths = vision.vgg.vgg_spec[layers]
    net = nn.HybridSequential()
    with net.name_scope():
        for depth, width in zip(depths, widths):
            for _ in range(depth):
                net.add(_conv(width, 3, epsilon=1e-5))
            net.add(nn.MaxPool2D(2, 2))
        net.add(nn.Dense(512, activation="relu"), nn.Dropout(0.5), nn.Dense(classes))
    return net


def _cifar_inception(classes: int) -> Any:
    """MXNet's own Inception for 28x28 images, with batch norm (Ioffe and Szegedy 2015; Zhang et al. 2017, appendix)."""

    def simple(one: int, three: int) -> Any:
        return _beside(_conv(one, 1), _conv(three, 3))

    def down(channels: int) -> Any:
        return _beside(_conv(channels, 3, 2), nn.MaxPool2D(3, 2, 1))

    net = nn.HybridSequential()
    with net.name_scope():
        net.add(_conv(96, 3), simple(32, 32), simple(32, 48), down(80))
        net.add(simple(112, 48), simple(96, 64), simple(80, 80), simple(48, 96), down(96))
        net.add(simple(176, 160), simple(176, 160), _SpatialMean(), nn.Dense(classes))
    return net


def _lenet(classes: int) -> Any:
    """LeNet-5 (LeCun et al. 1998) with a plain dense output and three colours in."""
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Conv2D(6, 5, activation="tanh"), nn.AvgPool2D(2, 2))
        net.add(nn.Conv2D(16, 5, activation="tanh"), nn.AvgPool2D(2, 2))
        net.add(nn.Dense(120, activation="tanh"), nn.Dense(84, activation="tanh"), nn.Dense(classes))
    return net


def _mlp(classes: int) -> Any:
    """The perceptron of MXNet's examples: 128, 64 and the classes."""
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(classes))
    return net


def _inception_v4(classes: int) -> Any:
    """Inception-v4 (Szegedy et al. 2016, figures 3 to 9)."""

    def valid(channels: int, kernel: int, stride: int = 1) -> Any:
        return _conv(channels, kernel, stride, 0)

    def pooled(channels: int) -> Any:
        return _sequence(nn.AvgPool2D(3, 1, 1, count_include_pad=False), _conv(channels, 1))

    def across(channels: int) -> Any:
        return _beside(_conv(channels, (1, 3)), _conv(channels, (3, 1)))

    def block_a() -> Any:
        return _beside(
            _conv(96, 1),
            _sequence(_conv(64, 1), _conv(96, 3)),
            _sequence(_conv(64, 1), _conv(96, 3), _conv(96, 3)),
            pooled(96),
        )

    def block_b() -> Any:
        return _beside(
            _conv(384, 1),
            _sequence(_conv(192, 1), _conv(224, (1, 7)), _conv(256, (7, 1))),
            _sequence(_conv(192, 1), _conv(192, (7, 1)), _conv(224, (1, 7)), _conv(224, (7, 1)), _conv(256, (1, 7))),
            pooled(128),
        )

    def block_c() -> Any:
        return _beside(
            _conv(256, 1),
            _sequence(_conv(384, 1), across(256)),
            _sequence(_conv(384, 1), _conv(448, (3, 1)), _conv(512, (1, 3)), across(256)),
            pooled(256),
        )

    net = nn.HybridSequential()
    with net.name_scope():
        net.add(valid(32, 3, 2), valid(32, 3), _conv(64, 3))
        net.add(_beside(nn.MaxPool2D(3, 2), valid(96, 3, 2)))
        net.add(
            _beside(
                _sequence(_conv(64, 1), valid(96, 3)),
                _sequence(_conv(64, 1), _conv(64, (1, 7)), _conv(64, (7, 1)), valid(96, 3)),
            )
        )
        net.add(_beside(valid(192, 3, 2), nn.MaxPool2D(3, 2)))
        net.add(*(block_a() for _ in range(4)))
        net.add(
            _beside(
                valid(384, 3, 2),
                _sequence(_conv(192, 1), _conv(224, 3), valid(256, 3, 2)),
                nn.MaxPool2D(3, 2),
            )
        )
        net.add(*(block_b() for _ in range(7)))
        net.add(
            _beside(
                _sequence(_conv(192, 1), valid(192, 3, 2)),
                _sequence(_conv(256, 1), _conv(256, (1, 7)), _conv(320, (7, 1)), valid(320, 3, 2)),
                nn.MaxPool2D(3, 2),
            )
        )
        net.add(*(block_c() for _ in range(3)))
        net.add(_SpatialMean(), nn.Dropout(0.2), nn.Dense(classes))
    return net


def _zoo(name: str) -> Callable[[int], Any]:
    """A network of Gluon's own model zoo."""
    return lambda classes: vision.get_model(name, classes=classes)


_BUILDERS: dict[str, Callable[[int], Any]] = {
    **{f"cifar_resnet{n}_v1": functools.partial(_postactivation, n) for n in (20, 32, 44, 50, 56, 110, 164)},
    "cifar_densenet40_k12": functools.partial(_densenet, 40, 12),
    "cifar_densenet100_k12": functools.partial(_densenet, 100, 12),
    "cifar_alexnet": _cifar_alexnet,
    "cifar_vgg16": functools.partial(_cifar_vgg, 16),
    "cifar_vgg19": functools.partial(_cifar_vgg, 19),
    "cifar_inception": _cifar_inception,
    "cifar_lenet": _lenet,
    "cifar_mlp": _mlp,
    "alexnet": _zoo("alexnet"),
    "vgg16": _zoo("vgg16"),
    "vgg19": _zoo("vgg19"),
    "googlenet": lambda classes: GoogLeNet(classes=classes, aux_logits=False),
    "inception_v3": _zoo("inceptionv3"),
    "inception_v4": _inception_v4,
    **{f"resnet{n}_v{v}": _zoo(f"resnet{n}_v{v}") for n in (50, 101, 152) for v in (1, 2)},
    "densenet121": _zoo("densenet121"),
}


def build(network: Network, classes: int, *, fused: bool) -> Any:
    """Returns the uninitialised Gluon block of `network` for inputs (n, 3, h, w).

    `fused`: batch norm and ReLU as one operator, which gives the same numbers. On two cores it made ResNet-50 at batch
    128 8% faster (median of 16 pairs of 6 steps each).
    """
    if network.preactivation_layers:
        return _preactivation(network.preactivation_layers, classes, fused=fused, norm=network.batch_norm)
    net = _BUILDERS[network.name](classes)
    _rebuild(net, fused=fused)
    return net


def _rebuild(net: Any, *, fused: bool) -> None:
    """Gives the rows of layers in a library's network the faster operators of ours, wherever in it they are."""
    for child in net._children.values():
        _rebuild(child, fused=fused)
    if type(net) is not nn.HybridSequential:
        return
    layers = list(net._children.items())
    for (name, layer), (after, follower) in zip(layers, [*layers[1:], ("", None)]):
        if _is_global_mean(layer):
            net._children[name] = _SpatialMean()
        elif fused and isinstance(layer, nn.BatchNorm) and getattr(follower, "_act_type", "") == "relu":
            layer.fuse_relu = True
            del net._children[after]


def _is_global_mean(layer: Any) -> bool:
    """Whether it averages all that is left of an image: 7x7 or 8x8 values, in the networks that say how many."""
    if isinstance(layer, nn.AvgPool2D):
        return bool(layer._kwargs["kernel"] in ((7, 7), (8, 8)))
    return isinstance(layer, nn.GlobalAvgPool2D)


def branch_ends(net: Any) -> list[Any]:
    """What scales the end of the branch of each residual unit of `net`; none where it has no such units.

    The gammas of a last batch norm. A pre-activation unit has a ReLU and a convolution after its last norm, and with
    gammas of zero that ReLU would never let a gradient through: there it is the weights of the last convolution.
    """
    found: list[Any] = []

    def visit(block: Any) -> None:
        for child in block._children.values():
            visit(child)
        last = getattr(block, "conv3", getattr(block, "conv2", None)) if hasattr(block, "bn2") else None
        if last is not None:
            found.append(last.weight)
        elif getattr(block, "body", None) is not None:
            found.extend([layer.gamma for layer in block.body if isinstance(layer, nn.BatchNorm)][-1:])

    visit(net)
    return found


def count(network: Network) -> dict[str, int]:
    """What `network` costs at its own input and classes, worked out from its graph, without training it.

    `parameters`: trained ones. `multiply_adds`: of one sample's forward pass, in convolutions and dense layers.
    `activations`: values that all its layers put out for one sample, which training keeps for the backward pass.
    """
    net = build(network, network.classes, fused=False)
    graph = net(mx.sym.var("data"))
    size = network.input_size
    internals = graph.get_internals()
    shapes, outputs, _ = internals.infer_shape(data=(1, 3, size, size))
    by_name = dict(zip(internals.list_outputs(), outputs))
    arguments = dict(zip(internals.list_arguments(), shapes))
    multiply_adds = activations = 0
    for node in json.loads(graph.tojson())["nodes"]:
        if node["op"] in ("null", "expand_dims", "squeeze", "Flatten"):  # nothing is computed or copied
            continue
        shape = by_name.get(f"{node['name']}_output") or by_name[f"{node['name']}_output0"]
        activations += int(np.prod(shape))
        if node["op"] in ("Convolution", "FullyConnected"):
            weight = arguments[f"{node['name'].removesuffix('_fwd')}_weight"]
            positions = int(np.prod(shape[2:]))
            multiply_adds += positions * int(np.prod(weight))
    trained = {name for name, parameter in net.collect_params().items() if parameter.grad_req != "null"}
    parameters = sum(int(np.prod(shape)) for name, shape in arguments.items() if name in trained)
    return {"parameters": parameters, "multiply_adds": multiply_adds, "activations": activations}


def can_fuse() -> bool:
    """Whether oneDNN has batch norm and ReLU as one operator for this CPU, as it has not for every one."""
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
