"""GluonCV's networks, changed where the studies' differ from them."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from gluoncv.model_zoo import cifarresnet
from mxnet import autograd
from mxnet.gluon import nn

from poc.networks import Network

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


class _StudyResNet(cifarresnet.CIFARResNetV2):
    """GluonCV's pre-activation ResNet for CIFAR made into MXNet 0.11's.

    Beside the unit above, it lacks a 1x1 projection in the first unit of the first stage and a learnt shift in the
    batch norm of the input: with 50 layers it has 758,362 parameters, not 758,621.
    """

    def __init__(self, layers: int, classes: int, norm_layer: Any, norm_relu: Any, norm_kwargs: dict[str, Any]) -> None:
        self._norm_relu = norm_relu
        units, channels = cifarresnet._get_resnet_spec(layers)
        super().__init__(
            _StudyUnit,
            units,
            channels,
            classes,
            norm_layer=norm_layer,
            norm_kwargs=norm_kwargs,
        )
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


def build(network: Network, classes: int, *, fused: bool) -> Any:
    """Returns the uninitialised Gluon block of `network` for inputs (n, 3, h, w).

    `fused`: batch norm and ReLU as one operator, which gives the same numbers. On two cores it made ResNet-50 at batch
    128 8% faster (median of 16 pairs of 6 steps each).
    """
    if not network.batch_norm:
        return _StudyResNet(network.layers, classes, _NoNorm, _OnlyReLU, {})
    return _StudyResNet(network.layers, classes, nn.BatchNorm, nn.BatchNormReLU if fused else _NormThenReLU, _NORM)


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
