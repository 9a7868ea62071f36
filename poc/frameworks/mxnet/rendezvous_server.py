"""Where the workers of a Horovod run find one another: Horovod's own rendezvous server, until it is killed.

    HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1 HOROVOD_GLOO_RENDEZVOUS_PORT=9200 HOROVOD_HOSTS=127.0.0.1:2 \
        python -m poc.frameworks.mxnet.rendezvous_server

`horovodrun` starts the same one, listening on every interface; this one listens where it is told to.
"""

from __future__ import annotations

import os

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer


def main() -> None:
    """Says "ready" when it listens, and serves."""
    address = (os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
    workers = int(os.environ["HOROVOD_SIZE"])
    server = RendezvousHTTPServer(address, RendezvousHandler, 0)
    server.init(get_host_assignments(parse_hosts(os.environ["HOROVOD_HOSTS"]), workers, workers))
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
