"""The processes that an exchange between workers needs beside them: MXNet's scheduler and servers, or Horovod's meeting
point."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from poc.frameworks import Cluster
from poc.host import processes

if TYPE_CHECKING:
    from poc.config.run import Run


@contextlib.contextmanager
def parameter_servers(run: Run, common: Mapping[str, str], hosts: Sequence[str]) -> Iterator[Cluster]:
    """Starts a scheduler and servers here, for workers on `hosts`; all get the environment variables in `common`."""
    servers = getattr(run.kvstore, "servers", 1)
    common = {
        **common,
        "DMLC_PS_ROOT_URI": hosts[0],
        "DMLC_PS_ROOT_PORT": str(processes.free_port(hosts[0])),
        "DMLC_NODE_HOST": hosts[0],
        "DMLC_NUM_WORKER": str(run.workers),
        "DMLC_NUM_SERVER": str(servers),
        # Several servers share every array that is not tiny; by default only those of a million values.
        "MXNET_KVSTORE_BIGARRAY_BOUND": str(10_000 if servers > 1 else 1_000_000),
    }
    roles = {"scheduler": "scheduler", **{f"server {number}": "server" for number in range(servers)}}
    started: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, role in roles.items():
            environment = {**common, "DMLC_ROLE": role, "OMP_NUM_THREADS": "1"}
            started[name] = processes.start("poc.frameworks.mxnet.kvstore_server", environment)
        places = [host for host in hosts for _ in range(run.workers // len(hosts))]
        environments = [{**common, "DMLC_ROLE": "worker", "DMLC_NODE_HOST": host} for host in places]
        yield Cluster(environments=environments, helpers=started)
    finally:
        # The run is over, well or badly: nothing that they hold is needed any more.
        processes.stop(started.values())


@contextlib.contextmanager
def rendezvous(run: Run, common: Mapping[str, str], hosts: Sequence[str]) -> Iterator[Cluster]:
    """Starts the server where Horovod's workers find one another; as `parameter_servers`."""
    each = run.workers // len(hosts)
    common = {
        **common,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(processes.free_port(hosts[0])),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_SIZE": str(run.workers),
        "HOROVOD_LOCAL_SIZE": str(each),
        "HOROVOD_CROSS_SIZE": str(len(hosts)),
    }
    environments = [
        {
            **common,
            "HOROVOD_RANK": str(worker),
            "HOROVOD_LOCAL_RANK": str(worker % each),
            "HOROVOD_CROSS_RANK": str(worker // each),
            "HOROVOD_HOSTNAME": hosts[worker // each],
        }
        for worker in range(run.workers)
    ]
    slots = ",".join(f"{host}:{each}" for host in hosts)
    server = processes.start(
        "poc.frameworks.mxnet.rendezvous_server", {**common, "HOROVOD_HOSTS": slots}, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        # Workers ask a few times, for a second or two. One that has died is found by whoever watches the helpers.
        server.stdout.readline()
        yield Cluster(environments=environments, helpers={"rendezvous": server})
    finally:
        processes.stop([server])
        server.stdout.close()


def check_name_resolves(address: str) -> None:
    """Raises OSError where this host takes part at `address` and its own name leads to itself alone.

    Horovod 0.28.1 forgets the interface that it was given when it connects a process set, and listens where the
    host's name leads.
    """
    name = socket.gethostname()
    try:
        found = socket.gethostbyname(name)
    except OSError as error:
        raise OSError(f"host name {name} has no address ({error}); Horovod needs {address} (/etc/hosts)") from None
    if found.startswith("127.") and not address.startswith("127."):
        raise OSError(f"host name {name} resolves to {found}; Horovod needs it to resolve to {address} (/etc/hosts)")
