"""What a scheduler or server of MXNet's distributed kvstore runs: it serves until the workers have gone.

    DMLC_ROLE=server python -m poc.frameworks.mxnet.kvstore_server

MXNet starts serving while it is still being imported, so what a worker sends to be run here, such as an optimizer of
ours, could not import it. The role is therefore withheld until the import is done.
"""

from __future__ import annotations

import os

from poc.frameworks.mxnet import compatibility


def main() -> None:
    """Serves; returns when the workers have gone."""
    role = os.environ["DMLC_ROLE"]
    os.environ["DMLC_ROLE"] = "worker"
    compatibility.prepare()
    from mxnet.kvstore import kvstore_server

    os.environ["DMLC_ROLE"] = role
    kvstore_server._init_kvstore_server_module()


if __name__ == "__main__":
    main()
