"""Gradient synchronisation: the key-value stores of a recipe.

To add one: a class here, a member of `AnyKVStore`, and its communication in a framework.
"""

from typing import Annotated, ClassVar, Literal, Union, get_args

import pydantic

from poc.config.fields import by_name, configuration, field, labels
from poc.values import Count, CountOrZero, Positive, invalid


@configuration
class KVStore:
    """Options that all key-value stores have."""

    name: str

    inside: ClassVar[bool] = False
    """Whether it works between the devices of one process."""
    between: ClassVar[bool] = True
    """Whether it works between the processes of several workers."""
    sums: ClassVar[bool] = True
    """Whether each step uses the sum of all devices' gradients."""

    def __str__(self) -> str:
        """Return its name with all options that are not at their default."""
        return ", ".join([self.name, *labels(self).values()])


@configuration
class _Compressing(KVStore):
    two_bit: Positive | None = field(default=None, label="2-bit (threshold {:g})")
    """Compress gradients to two bits: minus this threshold, zero or plus it, in the units of a gradient summed over the
    samples of a device (on servers: of a worker). The rounding error is added to the next gradient."""


@configuration
class _OnServers(_Compressing):
    gradient_bits: Literal[16, 32] = field(default=32, label="{}-bit")
    """16: gradients travel as float16."""
    servers: Count = field(default=1, label="{} servers")
    """Processes that the sums are divided over."""

    def __post_init__(self) -> None:
        if self.two_bit is not None and self.gradient_bits != 32:
            raise invalid("kvstore: gradient_bits", self.gradient_bits, "two_bit compresses already; remove one")


@configuration
class Device(_Compressing):
    """Sum on the devices of one process."""

    name: Literal["device"] = "device"

    inside, between = True, False


@configuration
class Local(KVStore):
    """Sum the gradients of one process's devices on the CPU."""

    name: Literal["local"] = "local"

    inside, between = True, False


@configuration
class NCCL(KVStore):
    """NVIDIA's rings between the GPUs of one process."""

    name: Literal["nccl"] = "nccl"

    inside, between = True, False


@configuration
class DistSync(_OnServers):
    """Sum the gradients of all workers on servers; every worker applies the same update."""

    name: Literal["dist_sync"] = "dist_sync"


@configuration
class DistDeviceSync(_OnServers):
    """Like `DistSync`, but sum on the devices of each worker first."""

    name: Literal["dist_device_sync"] = "dist_device_sync"


@configuration
class DistAsync(KVStore):
    """Servers update the parameters with each worker's gradients as they arrive."""

    name: Literal["dist_async"] = "dist_async"
    servers: Count = field(default=1, label="{} servers")

    sums = False


@configuration
class SSP(KVStore):
    """Stale synchronous parallel (Ho et al. 2013): `DistAsync`, but no worker is far ahead of the slowest."""

    name: Literal["ssp"] = "ssp"
    staleness: CountOrZero | None = field(
        label=lambda steps: "unbounded staleness" if steps is None else f"staleness {steps}"
    )
    """Steps that a worker may be ahead of the slowest: with 0 all advance together, None sets no bound. Momentum decays
    with every push: with n workers by momentum^n per step, also with 0."""
    servers: Count = field(default=1, label="{} servers")

    sums = False


@configuration
class Horovod(KVStore):
    """Horovod's ring between the workers, without servers (Sergeev and Del Balso 2018)."""

    name: Literal["horovod"] = "horovod"
    gradient_bits: Literal[16, 32] = field(default=32, label="{}-bit")


@configuration
class NoSync(KVStore):
    """No synchronisation: the upper bound of the speed."""

    name: Literal["none"] = "none"

    inside, sums = True, False


_KVStores = Union[Device, Local, NCCL, DistSync, DistDeviceSync, DistAsync, SSP, Horovod, NoSync]
KVSTORES: dict[str, type[KVStore]] = {kind.name: kind for kind in get_args(_KVStores)}
AnyKVStore = Annotated[_KVStores, pydantic.Field(discriminator="name"), by_name("kvstore", KVSTORES)]
