"""Sweeps on all node types of a Ray cluster at once, and runs over several hosts. Nothing else imports Ray."""

import os
import secrets
from typing import Any

from poc.values import UserError


def connect(address: str, *, verbose: bool) -> None:
    """Join the cluster at `address`, or start one of this machine ("local"); raises UserError if that fails."""
    os.environ["RAY_AUTH_MODE"] = os.environ.get("RAY_AUTH_MODE") or "token"
    options: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # The monitor would end the node's actor where memory runs out, and the run would be lost with its node.
        options = {"include_dashboard": False, "_system_config": {"memory_monitor_refresh_ms": 0, "worker_niceness": 0}}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: ./make_environment.sh --ray") from None
    folder = os.getcwd()
    try:
        os.chdir("/")  # Ray adds the driver's current folder to the import path of every node
        ray.init(address=address, log_to_driver=verbose, logging_level="ERROR", **options)
    except Exception as error:  # Ray has many
        reason = " ".join(str(error).split())[:500]
        raise UserError(f"--cluster: cannot connect to {address}: {type(error).__name__}: {reason}") from None
    finally:
        os.chdir(folder)
