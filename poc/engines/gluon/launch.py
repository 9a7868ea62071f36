"""The processes that MXNet's distributed kvstore needs beside the workers: a scheduler and servers."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator

from poc import processes

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def parameter_servers(
    workers: int, servers: int, host: str
) -> Iterator[tuple[dict[str, str], dict[str, subprocess.Popen[str]]]]:
    """Starts a scheduler and servers here, where `host` is this host's address for all that take part.

    Gives the environment variables by which workers find them, and their processes by name.
    """
    addresses = {
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": str(_free_port(host)),
        "DMLC_NODE_HOST": host,
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        # Several servers share every array that is not tiny; by default only those of a million values.
        "MXNET_KVSTORE_BIGARRAY_BOUND": str(10_000 if servers > 1 else 1_000_000),
    }
    roles = {"scheduler": "scheduler", **{f"server {number}": "server" for number in range(servers)}}
    started: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, role in roles.items():
            environment = {**addresses, "DMLC_ROLE": role, "OMP_NUM_THREADS": "1"}
            started[name] = processes.start("poc.engines.gluon.serve", environment)
        yield addresses, started
    finally:
        # The run is over, well or badly: nothing that they hold is needed any more.
        processes.stop(started.values())


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
