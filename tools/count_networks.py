"""Count the cost of each model as MXNet builds it, and write poc/config/network_costs.csv.

.venv/bin/python -m tools.count_networks
"""

from __future__ import annotations

import json
import math

import pandas as pd

from poc.config.networks import COSTS, NETWORKS, Cost, Network
from poc.frameworks.mxnet import compatibility

compatibility.prepare()
import mxnet as mx  # noqa: E402

from poc.frameworks.mxnet.networks import build  # noqa: E402


def count(network: Network) -> Cost:
    """Count the cost of `network` from its graph, without computing anything."""
    net = build(network, network.classes, fused=False)
    graph = net(mx.sym.var("data"))
    internals = graph.get_internals()
    argument_shapes, output_shapes, _ = internals.infer_shape(data=(1, 3, network.input_size, network.input_size))
    arguments = dict(zip(internals.list_arguments(), argument_shapes))
    outputs = dict(zip(internals.list_outputs(), output_shapes))
    nodes = json.loads(graph.tojson())["nodes"]
    multiply_adds = activations = 0
    for node in nodes:
        if node["op"] in ("null", "expand_dims", "squeeze", "Flatten"):  # nothing is computed or copied
            continue
        output = outputs[f"{node['name']}_output"]
        activations += math.prod(output)
        if node["op"] in ("Convolution", "FullyConnected"):
            _, (weight, *_), *_ = node["inputs"]
            multiply_adds += math.prod(output[2:]) * math.prod(arguments[nodes[weight]["name"]])
    trained = [name for name, parameter in net.collect_params().items() if parameter.grad_req != "null"]
    parameters = sum(math.prod(arguments[name]) for name in trained)
    return Cost(parameters=parameters, forward_multiply_adds=multiply_adds, activations=activations)


if __name__ == "__main__":
    costs = {name: count(network) for name, network in NETWORKS.items()}
    pd.DataFrame(costs.values(), index=pd.Index(costs, name="network")).to_csv(COSTS, lineterminator="\n")
