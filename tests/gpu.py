"""The first minutes on a GPU: whether each option trains as on the CPU.

.venv/bin/python -m tests.gpu          less than ten minutes
.venv/bin/python -m tests.gpu --cpu    the same in tiny sizes, without a GPU
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import sys
from typing import Any
from unittest import mock

import numpy as np

from poc import CIFAR10, SGD, AdamW, Fixed, Muon, Synthetic, TorchOptimizer, frameworks
from poc.config.run import Run
from poc.frameworks import Session
from poc.host import hardware, nvml, processes
from tests.framework_worker import Arrays, planned, trained

STEPS = 6  # more than those before one is recorded; still more would amplify the rounding of sums in another order
RATE = Fixed(base=0.002, decay="linear")
CORES = 8
DROPOUT = "tests.gpu:with_dropout"
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"graphs": False},
    {"layout": "NCHW"},
    {"accumulate": 2},
    {"label_smoothing": 0.1},
    {"zero_init_gamma": True},
    {"devices": 2, "emulated": True, "gradient_noise": 1},
    {"data": Synthetic(size=16, crop=16, train=640, validation=70, fixed=True)},
    {"data": CIFAR10(crop=32, jitter=False, on_device=True)},
    {"optimizer": SGD(momentum_correction=True)},
    {"optimizer": "nesterov"},
    {"optimizer": "lars", "lr": 1.0},
    {"optimizer": Muon(lr=0.005)},
    {"optimizer": Muon(lr=0.005, unit_weights=True)},
    # The step of a gradient near zero does not depend on its size, so epsilon is large here.
    {"optimizer": AdamW(epsilon=1e-3), "lr": 0.001},
    {"optimizer": TorchOptimizer("RMSprop", foreach=True, eps=1e-3), "lr": 0.001},
    {"dtype": "tf32"},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "optimizer": Muon(lr=0.005), "label_smoothing": 0.1},
    {"dtype": "float16"},
    {"dtype": "float16", "accumulate": 2},
    {"compile": True},
    {"compile": True, "dtype": "bfloat16"},
    {"model": DROPOUT},
)
TOLERANCES = {"float32": 0.05, "tf32": 0.2, "float16": 0.2, "bfloat16": 0.6}


def with_dropout(classes: int) -> Any:
    """Return a model with drop-out."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, classes))


def run_of(framework: str, kind: str, dtype: str = "float32", **fields: Any) -> tuple[Run, str]:
    """Return a small run, and why it is not possible here, or ""; a CPU computes in every precision, if slowly."""
    item = planned(framework, **{"lr": RATE, "steps": STEPS, "batch_per_device": 16, **fields})
    run = dataclasses.replace(item.run, kind=kind, dtype=dtype)
    is_possible = kind == "cpu" and not run.compile
    return run, item.skip or ("" if is_possible else frameworks.unsupported_reason(run, hardware.detect()) or "")


def opened(run: Run) -> Session:
    """Open a session, in which a tape takes the place of CUDA graphs on a CPU."""
    if run.kind == "gpu" or run.compile or not run.graphs:
        return frameworks.open_session(run)
    from poc.frameworks.pytorch.session import TorchSession
    from tests.torch_tape import Tape

    return TorchSession(run, new_graph=Tape)


@functools.cache
def expected(run: Run) -> Arrays:
    """Return what a check is compared with: the same on the CPU; with drop-out, which draws otherwise there, eager."""
    if run.model != DROPOUT:
        run = dataclasses.replace(run, kind="cpu")
    return trained(frameworks.open_session(dataclasses.replace(run, graphs=False)), run)


def difference(seen: Arrays, wanted: Arrays) -> float:
    """Return the largest relative difference of losses, norms, and of what training changed in any parameter.

    What changed less than a hundredth of all parameters or all batch statistics counts as a hundredth.
    """
    relative = [
        np.abs(np.subtract(seen[name], wanted[name])) / np.abs(wanted[name])
        for name in ("losses", "norms")
        if np.size(wanted[name])
    ]
    for is_statistic in (False, True):
        start = {
            name[6:]: array
            for name, array in wanted.items()
            if name.startswith("start/") and ("running" in name) == is_statistic
        }
        changed = {name: np.linalg.norm(wanted[name] - array) for name, array in start.items()}
        least = 0.01 * np.linalg.norm([*changed.values()])
        relative += [np.linalg.norm(seen[name] - wanted[name]) / max(size, least) for name, size in changed.items()]
    return float(np.max([np.max(each) for each in relative]))


def check(framework: str, kind: str, factor: float, only: str, tf32: bool | None = None) -> bool:
    """Print a line per variant with `only` in its name; return whether all are right. `factor` multiplies the rate.

    `tf32`: just the variants with this precision, or without it, since a process has one environment.
    """
    all_right = True
    for fields in VARIANTS:
        name = ", ".join(f"{field} {value}" for field, value in fields.items()) or "plain"
        if only not in name or tf32 not in (None, fields.get("dtype") == "tf32"):
            continue
        if framework != "pytorch" and fields.get("model") == DROPOUT:
            continue
        run, reason = run_of(framework, kind, **fields)
        if reason:
            print(f"  {name}: skipped, {reason}", flush=True)
            continue
        wanted = expected(dataclasses.replace(run, dtype="float32", layout="NCHW", compile=False, graphs=True))
        session: Any = opened(run)
        seen = trained(session, dataclasses.replace(run, learning_rate=factor * run.learning_rate))
        largest, replays = difference(seen, wanted), getattr(session, "_replays", None)
        verdict = "ok" if largest <= TOLERANCES[run.dtype] else "WRONG"
        if replays and not replays.recorded:
            verdict = "WRONG, no graph was recorded"
        all_right &= verdict == "ok"
        print(f"  {name}: {largest:.2g} {verdict}", flush=True)
    return all_right


def work(task: dict[str, Any]) -> int:
    """Check one framework, in a process of that framework's environment; return the exit code."""
    print(f"{task['framework']}: largest relative difference from the CPU in float32", flush=True)
    with contextlib.ExitStack() as stack:
        if task["kind"] == "cpu":
            # Optimizers take the CPU for a card, on which they read the learning rate from its memory.
            for name in ("adam", "rmsprop"):
                stack.enter_context(
                    mock.patch(f"torch.optim.{name}._get_capturable_supported_devices", return_value=["cpu"])
                )
        all_right = check(**task)
    return int(not all_right)


def environment_of(framework: str, kind: str, dtype: str, cores: int) -> dict[str, str]:
    """Return the variables of a run's only worker."""
    run = dataclasses.replace(planned(framework).run, kind=kind, dtype=dtype)
    with frameworks.load(framework).cluster(run, cores) as cluster:
        return {**cluster.environments[0], **frameworks.library_path(framework)}


def check_all(kind: str, wrong_rate: bool, only: str) -> int:
    """Check training with every framework that can use the card, or PyTorch on the CPU; return 1 if any is wrong."""
    machine, status = hardware.detect(), 0
    for name in frameworks.FRAMEWORKS if kind == "gpu" else ["pytorch"]:
        cards = [gpu for gpu in machine.gpus if not frameworks.unsupported(name, gpu, machine)]
        if kind == "gpu" and not cards:
            continue
        for tf32 in (False, True) if kind == "gpu" else (None,):
            task = {"framework": name, "kind": kind, "factor": 2.0 if wrong_rate else 1.0, "only": only, "tf32": tf32}
            environment = environment_of(name, kind, "tf32" if tf32 else "float32", min(CORES, machine.cores))
            if kind == "gpu":
                environment["CUDA_VISIBLE_DEVICES"] = nvml.cuda_setting([cards[0].index])
            environment["POC_CHECK"] = json.dumps(task)
            process = processes.start("tests.gpu", environment, python=frameworks.interpreter(name))
            status |= process.wait() != 0
    return status


def main() -> int:
    """Check training; return 1 if any is wrong or failed, 2 without a GPU that can be used."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="on the CPU")
    parser.add_argument("--only", default="", metavar="TEXT", help="the checks with this in their name")
    parser.add_argument("--wrong-rate", action="store_true", help="double the learning rates, which is wrong")
    options = parser.parse_args()
    machine = hardware.detect()
    problem = hardware.gpu_problem() or frameworks.gpu_problem(machine)
    if not options.cpu and (problem or not machine.gpus):
        print(f"{problem or 'this machine has no GPU'}. Without: --cpu")
        return 2
    return check_all("cpu" if options.cpu else "gpu", options.wrong_rate, options.only)


if __name__ == "__main__":
    if "POC_CHECK" in os.environ:
        os._exit(work(json.loads(os.environ["POC_CHECK"])))  # at a normal exit CUDA may crash
    sys.exit(main())
