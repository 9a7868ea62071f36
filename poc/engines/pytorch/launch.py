"""How the processes of a run find one another: by torchrun's variables."""

from __future__ import annotations

from collections.abc import Sequence

from poc.machine.network import free_port

LOOPBACK = "127.0.0.1"


def environments(workers: int, hosts: Sequence[str]) -> list[dict[str, str]]:
    """The environment variables of every worker, where `hosts` are the addresses of all that take part, the first's
    first; the first worker waits for the others on a port that is free now."""
    each = workers // len(hosts)
    common = {
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(free_port(hosts[0])),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(each),
        # Where torchrun started this, its own processes meet at a store that is not the workers'.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    return [
        {
            **common,
            "RANK": str(worker),
            "LOCAL_RANK": str(worker % each),
            "GROUP_RANK": str(worker // each),
            # Gloo would take the address that this host's name leads to.
            "POC_OWN_ADDRESS": hosts[worker // each],
        }
        for worker in range(workers)
    ]
