"""The ways for gradients to travel that a recipe may name. A framework has a table of those it knows, by their type."""

from __future__ import annotations

from typing import ClassVar

from poc.values import checked, choice, either, field, invalid, positive, value, whole, whole_or_zero, words


@value
class KVStore:
    """How the gradients of several devices come together."""

    name: ClassVar[str]
    inside: ClassVar[bool] = False
    """Between the devices of one process."""
    between: ClassVar[bool] = True
    """Between the processes of several workers."""
    sums: ClassVar[bool] = True
    """Whether each step is by the sum of all devices' gradients."""

    def __post_init__(self) -> None:
        checked(self, f"kvstore: {type(self).__name__}.")

    def __str__(self) -> str:
        """Its name, with all options that are not left at their default."""
        return ", ".join([self.name, *words(self).values()])


@value
class _Compressing(KVStore):
    two_bit: float | None = field(default=None, check=either(positive, None), label="2-bit (threshold {:g})")
    """Gradients are compressed to two bits: minus this threshold, zero or plus it, in the units of a gradient summed
    over the samples of a device. What a value was more or less than that is kept and added to the next one."""


@value
class Device(_Compressing):
    """Summed on the devices of one process."""

    name = "device"
    inside, between = True, False


@value
class Local(KVStore):
    """Summed on the CPU, from the devices of one process."""

    name = "local"
    inside, between = True, False


@value
class NCCL(KVStore):
    """NVIDIA's rings between the GPUs of one process."""

    name = "nccl"
    inside, between = True, False


@value
class DistSync(_Compressing):
    """Summed on servers, for all workers; every worker applies the same update."""

    gradient_bits: int = field(default=32, check=choice((16, 32)), label="{}-bit")
    """16: gradients travel as float16."""
    servers: int = field(default=1, check=whole, label="{} servers")
    """Processes that the sums are divided over."""

    name = "dist_sync"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.two_bit is not None and self.gradient_bits != 32:
            raise invalid(
                "kvstore: gradient_bits", self.gradient_bits, "two_bit compresses already; remove one of them"
            )


@value
class DistDeviceSync(DistSync):
    """As `DistSync`, summed on the devices of each worker first."""

    name = "dist_device_sync"


@value
class DistAsync(KVStore):
    """Servers update the parameters by each worker's gradients as they come."""

    servers: int = field(default=1, check=whole, label="{} servers")

    name = "dist_async"
    sums = False


@value
class SSP(KVStore):
    """Stale synchronous parallel on top of `DistAsync`: bounded staleness (Ho et al. 2013)."""

    staleness: int | None = field(
        check=either(whole_or_zero, None),
        label=lambda steps: "unbounded staleness" if steps is None else f"staleness {steps}",
    )
    """Steps that a worker may be ahead of the slowest one: 0 is synchronous, None sets no bound."""
    servers: int = field(default=1, check=whole, label="{} servers")

    name = "ssp"
    sums = False


@value
class Horovod(KVStore):
    """Horovod's ring between the workers, without servers (Sergeev and Del Balso 2018)."""

    gradient_bits: int = field(default=32, check=choice((16, 32)), label="{}-bit")
    """16: gradients travel as float16."""

    name = "horovod"


@value
class NoSync(KVStore):
    """No synchronisation at all: the upper bound of the speed."""

    name = "none"
    inside, sums = True, False


KVSTORES: dict[str, type[KVStore]] = {
    kind.name: kind for kind in (Device, Local, NCCL, DistSync, DistDeviceSync, DistAsync, SSP, Horovod, NoSync)
}
