"""A CUDA card for PyTorch where there is none: its streams, events, pinned copies, allocator and threads run, and its
kernels compute on the CPU, in the memory that the card has in the host's (card.cpp).

A process has it that starts on a stand-in machine with `environment()`, too.
"""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_AS_THEY_ARE = ("empty", "new_empty", "empty_strided", "new_empty_strided", "empty_like", "record_stream", "set_")
_COPIES = ("_to_copy", "copy_", "_pin_memory", "is_pinned", "_local_scalar_dense")


def environment(folder: Path) -> dict[str, str]:
    """What a process needs besides `fake_gpus.environment` to have the card, which is compiled into `folder`."""
    library = folder / "libcuda.so.1"
    source = Path(__file__).with_suffix(".cpp")
    subprocess.run(["g++", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", source, "-o", library], check=True)
    return {"LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(folder), "POC_CARD": "1"}


def take_place() -> None:
    """From here on this thread computes on the card, and NCCL, which would ask for a real one, is Gloo."""
    torch.backends.cudnn.enabled = False
    join = dist.init_process_group
    dist.init_process_group = lambda backend, **options: join("cpu:gloo,cuda:gloo", **options)
    Kernels().__enter__()


class Kernels(TorchDispatchMode):
    """Computes on the CPU what would run on the card; allocations, views and plain copies are PyTorch's own."""

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        name = operator._schema.name.partition("::")[2]
        given = [each for each in tree_leaves((arguments, named)) if isinstance(each, torch.Tensor)]
        if operator.is_view or name in _AS_THEY_ARE or (name in _COPIES and _plain(name, arguments, named)):
            return operator(*arguments, **named)
        if not any(each.is_cuda for each in given) and torch.device(named.get("device") or "cpu").type != "cuda":
            return operator(*arguments, **named)
        seen: dict[int, torch.Tensor] = {}

        def host(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_cuda:
                there = _on_host(value)
                seen[id(there)] = value
                return there
            return torch.device("cpu") if isinstance(value, torch.device) else value

        kept = tree_map(host, (arguments, {**named, "device": torch.device("cpu")} if "device" in named else named))
        wanted = torch.device(named.get("device") or "cuda")
        result = operator(*kept[0], **kept[1])
        if wanted.type == "cpu":
            return result
        return tree_map(lambda value: seen.get(id(value), _on_card(value)), result)


def _plain(name: str, arguments: Any, named: Any) -> bool:
    """Whether a copy is one of bytes, or none."""
    if name == "copy_":
        to, source = arguments[:2]
    elif name == "_to_copy":
        source, to = arguments[0], None
        if named.get("dtype", source.dtype) != source.dtype or named.get("memory_format") not in (
            None,
            torch.preserve_format,
        ):
            return False
    else:
        return True
    dense = source.is_contiguous() and (to is None or (to.is_contiguous() and to.dtype == source.dtype))
    return dense and (to is None or to.shape == source.shape)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU in the same memory."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    whole = torch.frombuffer(memory, dtype=tensor.dtype, count=storage.nbytes() // tensor.itemsize)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _on_card(value: Any) -> Any:
    """What an operator gave, in memory of the card; what is no tensor as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    there = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    if value.numel():
        _on_host(there).copy_(value)
    return there
