"""The cluster as its driver sees it: the connection, who may join, and the nodes that answer. Only this imports Ray."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any, Callable

from poc.cluster.node import Supervisor
from poc.host.hardware import Hardware
from poc.values import UserError

LOCAL = "local"
"""As an address: a cluster of this machine alone, which ends with the command."""
LABEL = "infrastructure"
"""A node's label of that name is what results call such a machine: `ray start --labels=infrastructure=p3.8xlarge`."""
ANSWER_SECONDS = 20.0
_START_SECONDS = 60.0
_NOBODY_MAY = (
    "RAY_AUTH_TOKEN: there is no token; create one with `.venv/bin/ray get-auth-token --generate`, copy it to "
    "~/.ray/auth_token on every node, and start each node with RAY_AUTH_MODE=token"
)


class NodeLostError(Exception):
    """A node has gone, or has been silent for too long; says why."""


class Node:
    """A machine of the cluster, with a supervisor that has all of it; raises NodeLostError once it is lost."""

    def __init__(self, known: dict[str, Any]) -> None:
        """Starts the supervisor on one of `ray.nodes()`; where another command has the machine it waits."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.id: str = known["NodeID"]
        self.address: str = known["NodeManagerAddress"]
        self.name = f"{known['NodeManagerHostname']} ({self.address})"
        self.label: str = known["Labels"].get(LABEL, "")
        self.lost = ""
        """Why it is of no use any more."""
        has = known["Resources"]
        options: dict[str, Any] = {"num_cpus": has["CPU"], "num_gpus": has.get("GPU", 0), "max_restarts": 0}
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self.id, soft=False)
        self._actor = ray.remote(**options)(Supervisor).remote()

    def ask(self, what: str, *, seconds: float = ANSWER_SECONDS, **told: Any) -> dict[str, Any]:
        """What the supervisor answers, a method of it; raises UserError for a mistake that it found."""
        return self.tell(what, **told)(seconds)

    def tell(self, what: str, **told: Any) -> Callable[[float], dict[str, Any]]:
        """As `ask`, without waiting: what this gives does, for so many seconds at most."""
        if self.lost:
            raise NodeLostError(self.lost)
        reference = self._actor.ask.remote(json.dumps({"what": what, **told}))
        return lambda seconds: self._answer(reference, seconds)

    def _answer(self, reference: Any, seconds: float) -> dict[str, Any]:
        import ray

        try:
            answer: dict[str, Any] = json.loads(ray.get(reference, timeout=seconds))
        except ray.exceptions.GetTimeoutError:
            raise self._gone(f"no answer for {seconds:.0f} s") from None
        except ray.exceptions.RayError as error:
            raise self._gone(f"lost ({' '.join(str(error).split())[:200]})") from None
        if "mistake" in answer:
            raise UserError(f"{self.name}: {answer['mistake']}")
        if "error" in answer:
            raise self._gone(answer["error"])
        return answer

    def described(self) -> None:
        """Asks what it has: `machine`, `kind` (what results call it), `software` and `free_bytes`."""
        told = self.ask("describe", seconds=_START_SECONDS)
        self.machine = Hardware.from_json(told["machine"])
        self.kind = self.label or self.machine.describe()
        self.software: dict[str, Any] = told["software"]
        self.free_bytes: int = told["free_bytes"]
        self.auth_mode: str = told["auth_mode"]

    def release(self) -> None:
        """Ends the supervisor, and all that it started; others may have the machine."""
        import ray

        with contextlib.suppress(Exception):
            ray.kill(self._actor)

    def _gone(self, why: str) -> NodeLostError:
        self.lost = why
        self.release()  # or, should it come back, it would go on
        return NodeLostError(why)


def connect(address: str) -> None:
    """Joins the cluster at `address` as its driver; raises UserError where that cannot be."""
    if not os.environ.setdefault("RAY_AUTH_MODE", "token"):
        raise UserError("RAY_AUTH_MODE is empty; unset it, or set it to token")
    files = (os.environ.get("RAY_AUTH_TOKEN_PATH"), os.path.expanduser("~/.ray/auth_token"))
    if address == LOCAL:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    elif os.environ["RAY_AUTH_MODE"] == "token" and not (
        os.environ.get("RAY_AUTH_TOKEN") or any(file and Path(file).is_file() for file in files)
    ):
        raise UserError(_NOBODY_MAY)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: ./make_environment.sh --ray") from None
    own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == LOCAL else {}
    folder = os.getcwd()
    try:
        os.chdir("/")  # Ray has every node import first of all from the folder that the driver is in
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    except Exception as error:  # Ray has many
        why = " ".join(str(error).split())[:300]
        raise UserError(f"--cluster: cannot connect to {address}: {type(error).__name__}: {why}") from None
    finally:
        os.chdir(folder)


def alive() -> list[dict[str, Any]]:
    """Those of `ray.nodes()` that are alive and may be used: one without CPUs, as a head may be, is not."""
    import ray

    return [known for known in ray.nodes() if known["Alive"] and known["Resources"].get("CPU")]
