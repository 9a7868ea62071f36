"""The processes that MXNet's distributed kvstore needs beside the workers: a scheduler and one server, on this host."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_HOME = Path(__file__).resolve().parents[3]
# A process with one of these roles serves until the workers have gone, then ends by itself.
_SERVE = "from poc.engines.gluon import compatibility; compatibility.prepare(); import mxnet"


@contextlib.contextmanager
def parameter_server(workers: int) -> Iterator[dict[str, str]]:
    """Starts a scheduler and a server over loopback; gives the environment variables by which workers find them."""
    addresses = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_INTERFACE": "lo",
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": "1",
    }
    processes = []
    try:
        for role in ("scheduler", "server"):
            environment = {**os.environ, **addresses, "DMLC_ROLE": role, "OMP_NUM_THREADS": "1"}
            processes.append(subprocess.Popen([sys.executable, "-c", _SERVE], env=environment, cwd=_HOME))
        yield addresses
    finally:
        # The run is over, well or badly: nothing that they hold is needed any more.
        for process in processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
