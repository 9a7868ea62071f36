"""The networks that the suite knows, by registry name: what every engine has to build, and what a step of it costs."""

from __future__ import annotations

from poc.errors import UserError
from poc.values import nearest, value


@value
class Network:
    """One network of the registry."""

    name: str
    label: str
    """What the studies call it."""
    source: str
    layers: int
    batch_norm: bool = True

    def multiply_adds(self, size: int) -> float:
        """Multiply-adds of one forward pass over one `size` x `size` image; a training step costs three times that."""
        # Two 3x3 convolutions a unit; 16, 32 and 64 channels at 1, 1/4 and 1/16 of the pixels cost the same.
        units = (self.layers - 2) // 6
        first = 3 * 16 * 9
        stage = 16 * 16 * 9 * 2 * units
        return float(size * size * (first + 3 * stage))


_PREACTIVATION = "He et al. 2016, Identity Mappings in Deep Residual Networks, as in MXNet 0.11's CIFAR-10 example"
_PLAIN = "an ablation of ours: cifar_resnet20_v2 with its batch norms left out, for exact comparisons between devices"


def _resnet(layers: int) -> Network:
    return Network(
        name=f"cifar_resnet{layers}_v2",
        label=f"ResNet-{layers} (CIFAR)",
        source=_PREACTIVATION,
        layers=layers,
    )


NETWORKS: dict[str, Network] = {
    network.name: network
    for network in [
        *(_resnet(layers) for layers in (8, 20, 32, 50, 56, 110)),
        Network(
            name="cifar_resnet20_v2_no_norm",
            label="ResNet-20 (CIFAR, no batch norm)",
            source=_PLAIN,
            layers=20,
            batch_norm=False,
        ),
    ]
}


def network(name: str) -> Network:
    """Returns the registered network called `name`; raises UserError with the nearest valid name."""
    if name not in NETWORKS:
        raise UserError(f"model: unknown network {name!r}; {nearest(name, NETWORKS)}")
    return NETWORKS[name]
