"""Helper processes of MXNet's workers: the scheduler and servers of a distributed kvstore, or Horovod's rendezvous.

Each is this module as a main program, which serves until the workers have gone or it is killed:

DMLC_ROLE=server python -m poc.frameworks.mxnet.servers                a scheduler or server of a kvstore
HOROVOD_HOSTS=127.0.0.1:2 ... python -m poc.frameworks.mxnet.servers   the rendezvous of Horovod's workers
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from poc.config.run import Run
from poc.frameworks import Cluster, worker_environments
from poc.frameworks.mxnet import prepare
from poc.host import processes


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
    helpers: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in ("scheduler", *(f"server {number}" for number in range(servers))):
            role = {"DMLC_ROLE": name.split()[0], "DMLC_NODE_HOST": hosts[0], "OMP_NUM_THREADS": "1"}
            helpers[name] = processes.start(__name__, {**common, **role})
        common = {**common, "DMLC_ROLE": "worker"}
        environments = worker_environments(run, cores, hosts, common, {"DMLC_NODE_HOST": "host"})
        yield Cluster(environments=environments, helpers=helpers)
    finally:
        processes.stop(helpers.values())


def serve_kvstore() -> None:
    """Run a scheduler or server of MXNet's distributed kvstore.

    MXNet starts serving while it is still being imported, and could not import an optimizer of ours that a worker
    sends. So the role is set after the import.
    """
    role = os.environ["DMLC_ROLE"]
    os.environ["DMLC_ROLE"] = "worker"
    prepare()
    from mxnet.kvstore import kvstore_server

    os.environ["DMLC_ROLE"] = role
    kvstore_server._init_kvstore_server_module()


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
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "86400",  # by default 30: a first import may take longer; `--patience` ends it
    }
    ranks = {"HOROVOD_RANK": "rank", "HOROVOD_LOCAL_RANK": "local_rank", "HOROVOD_CROSS_RANK": "host_rank"}
    environments = worker_environments(run, cores, hosts, common, {**ranks, "HOROVOD_HOSTNAME": "host"})
    slots = ",".join(f"{host}:{per_host}" for host in hosts)
    server = processes.start(__name__, {**common, "HOROVOD_HOSTS": slots}, stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        # Workers try a few times, for a second or two. A dead server is noticed by the watcher of the helpers.
        server.stdout.readline()
        yield Cluster(environments=environments, helpers={"rendezvous": server})
    finally:
        processes.stop([server])
        server.stdout.close()


def serve_rendezvous() -> None:
    """Run Horovod's rendezvous server at its address alone; `horovodrun`'s listens on every interface."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    address = (os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
    workers = int(os.environ["HOROVOD_SIZE"])
    server = RendezvousHTTPServer(address, RendezvousHandler, 0)
    server.init(get_host_assignments(parse_hosts(os.environ["HOROVOD_HOSTS"]), workers, workers))
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve_kvstore() if "DMLC_ROLE" in os.environ else serve_rendezvous()
