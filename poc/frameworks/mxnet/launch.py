"""Helper processes of MXNet's workers: the scheduler and servers of a distributed kvstore, or Horovod's rendezvous."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from poc.config.run import Run
from poc.frameworks import Cluster, worker_environments
from poc.host import processes

_SERVERS = "poc.frameworks.mxnet.servers"


@contextlib.contextmanager
def parameter_servers(run: Run, cores: int, hosts: Sequence[str], common: Mapping[str, str]) -> Iterator[Cluster]:
    """Start a scheduler and servers here, for workers on `hosts`; all get the environment variables in `common`."""
    servers = getattr(run.kvstore, "servers", 1)
    common = {
        **common,
        "DMLC_PS_ROOT_URI": hosts[0],
        "DMLC_PS_ROOT_PORT": str(processes.free_port(hosts[0])),
        "DMLC_NUM_WORKER": str(run.workers),
        "DMLC_NUM_SERVER": str(servers),
        # Several servers share every array that is not tiny; by default only those of a million values.
        "MXNET_KVSTORE_BIGARRAY_BOUND": str(10_000 if servers > 1 else 1_000_000),
    }
    roles = {"scheduler": "scheduler", **{f"server {number}": "server" for number in range(servers)}}
    helpers: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, role in roles.items():
            environment = {**common, "DMLC_ROLE": role, "DMLC_NODE_HOST": hosts[0], "OMP_NUM_THREADS": "1"}
            helpers[name] = processes.start(_SERVERS, environment)
        common = {**common, "DMLC_ROLE": "worker"}
        environments = worker_environments(run, cores, hosts, common, {"DMLC_NODE_HOST": "host"})
        yield Cluster(environments=environments, helpers=helpers)
    finally:
        processes.stop(helpers.values())


@contextlib.contextmanager
def rendezvous(run: Run, cores: int, hosts: Sequence[str], common: Mapping[str, str]) -> Iterator[Cluster]:
    """Start the server where Horovod's workers find one another; as `parameter_servers`."""
    per_host = run.workers // len(hosts)
    common = {
        **common,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(processes.free_port(hosts[0])),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_SIZE": str(run.workers),
        "HOROVOD_LOCAL_SIZE": str(per_host),
        "HOROVOD_CROSS_SIZE": str(len(hosts)),
    }
    ranks = {"HOROVOD_RANK": "rank", "HOROVOD_LOCAL_RANK": "local_rank", "HOROVOD_CROSS_RANK": "host_rank"}
    environments = worker_environments(run, cores, hosts, common, {**ranks, "HOROVOD_HOSTNAME": "host"})
    slots = ",".join(f"{host}:{per_host}" for host in hosts)
    server = processes.start(_SERVERS, {**common, "HOROVOD_HOSTS": slots}, stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        # Workers try a few times, for a second or two. A dead server is noticed by the watcher of the helpers.
        server.stdout.readline()
        yield Cluster(environments=environments, helpers={"rendezvous": server})
    finally:
        processes.stop([server])
        server.stdout.close()
