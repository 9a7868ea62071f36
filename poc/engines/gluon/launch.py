"""The processes that MXNet's distributed kvstore needs beside the workers: a scheduler and servers, on this host."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator

from poc import processes


@contextlib.contextmanager
def parameter_servers(workers: int, servers: int) -> Iterator[tuple[dict[str, str], dict[str, subprocess.Popen[str]]]]:
    """Starts a scheduler and servers over loopback.

    Gives the environment variables by which workers find them, and their processes by name.
    """
    addresses = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_INTERFACE": "lo",
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
