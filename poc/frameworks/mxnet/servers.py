"""Main program of a helper of MXNet's workers, which serves until they have gone or it is killed.

DMLC_ROLE=server python -m poc.frameworks.mxnet.servers                a scheduler or server of a kvstore
HOROVOD_HOSTS=127.0.0.1:2 ... python -m poc.frameworks.mxnet.servers   the rendezvous of Horovod's workers
"""

from __future__ import annotations

import os

from poc.frameworks.mxnet import compatibility


def serve_kvstore() -> None:
    """Run a scheduler or server of MXNet's distributed kvstore.

    MXNet starts serving while it is still being imported, and could not import an optimizer of ours that a worker
    sends. So the role is set after the import.
    """
    role = os.environ["DMLC_ROLE"]
    os.environ["DMLC_ROLE"] = "worker"
    compatibility.prepare()
    from mxnet.kvstore import kvstore_server

    os.environ["DMLC_ROLE"] = role
    kvstore_server._init_kvstore_server_module()


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
