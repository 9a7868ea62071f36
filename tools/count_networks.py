"""Count the cost of each model as MXNet builds it, and write poc/config/network_costs.csv.

.venv/bin/python -m tools.count_networks
"""

import pandas as pd

from poc.config.networks import COSTS, NETWORKS, Cost, Network
from poc.frameworks.mxnet import prepare

prepare()
from poc.frameworks.mxnet import zoo  # noqa: E402
from poc.frameworks.mxnet.networks import registered  # noqa: E402


def count(network: Network) -> Cost:
    net = registered(network.name, network.classes, fused=False)
    return zoo.count(net, network.classes, network.input_size)


if __name__ == "__main__":
    costs = {name: count(network) for name, network in NETWORKS.items()}
    pd.DataFrame(costs.values(), index=pd.Index(costs, name="network")).to_csv(COSTS, lineterminator="\n")
