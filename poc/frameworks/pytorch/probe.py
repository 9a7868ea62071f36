"""Print which torch the running Python has, and whether this project and, with --gpu, the cards here can use it.

`poc.frameworks.builds` starts this file with the user's Python and describes the output.
"""

import importlib.metadata
import importlib.util
import json
import re
import sys
from typing import Any

OLDEST, NEWEST = (2, 10), (2, 14)  # minor releases that the tests of this project passed with


def torch_or_reason(needs_gpu: bool) -> dict[str, Any]:
    """Return the fields to print. Import torch only if its release is supported."""
    if importlib.util.find_spec("torch") is None:
        return {"reason": ""}
    version = importlib.metadata.version("torch")  # 2.9.0a0+145a3a7bda.nv25.10 in NVIDIA's images
    minor = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if not OLDEST <= minor <= NEWEST:
        supported = " to ".join(f"{major}.{number}" for major, number in (OLDEST, NEWEST))
        return {"reason": f"torch {version} is not one of the supported {supported}"}
    if importlib.util.find_spec("torchvision") is None:
        return {"reason": f"torch {version} is without torchvision"}
    import torch

    code = []
    if needs_gpu:
        if not torch.cuda.is_available():
            build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs"
            return {"reason": f"torch {version} {build} finds no GPU that it can use"}
        # Machine code alone: PTX ("compute_90") would be translated at each start.
        matches = [re.fullmatch(r"sm_(\d+)(\d)[a-z]?", name) for name in torch.cuda.get_arch_list()]
        code = [[int(match[1]), int(match[2])] for match in matches if match]
    return {"package": "torch", "version": version, "code": code}


if __name__ == "__main__":
    print(json.dumps(torch_or_reason("--gpu" in sys.argv)))
