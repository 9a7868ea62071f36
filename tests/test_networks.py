"""The registry's networks: their costs, by the literature and as frameworks build them; and that they train."""

import dataclasses
import json
import operator
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from poc import SGD, frameworks, synthetic
from poc.config.networks import AIRBENCHES, NETWORKS
from poc.data import Batch
from poc.frameworks.mxnet import prepare
from tests.builders import MACHINE
from tests.conftest import give_memory_back, needs_torch
from tests.framework_worker import planned
from tests.launch import HOME

prepare()
import mxnet as mx  # noqa: E402
from mxnet import autograd  # noqa: E402

from poc.frameworks.mxnet import networks as built  # noqa: E402
from tools.count_networks import count  # noqa: E402

RESNET = "He et al. 2016 (deep residual learning)"
IDENTITY = "He et al. 2016 (identity mappings), table 3"
DENSENET = "Huang et al. 2017, table 2"
PRUNING = "Li et al. 2017 (pruning filters), table 1"
TORCHVISION = "torchvision 0.28, table of weights"
# Trained parameters; millions of multiply-adds, where they are printed; how far ours may be off; the sources.
LITERATURE: dict[str, tuple[float, float | None, float, str]] = {
    # The paper's shortcuts between stages only pad; GluonCV's are projections, 1% of ResNet-20.
    "cifar_resnet20_v1": (0.27e6, None, 0.02, f"{RESNET}, table 6"),
    "cifar_resnet56_v1": (0.85e6, 125, 0.01, f"{RESNET}, table 6; {PRUNING}"),
    "cifar_resnet110_v1": (1.73e6, 253, 0.01, f"{RESNET}, table 6; {PRUNING}"),
    # Gluon's bottlenecks have biases in their 1x1 convolutions.
    "cifar_resnet164_v1": (1.70e6, None, 0.01, IDENTITY),
    "cifar_resnet50_v2": (758_621, None, 0.0, "MXNet 0.11's example"),
    "cifar_resnet164_v2": (1.70e6, None, 0.01, IDENTITY),
    "cifar_densenet40_k12": (1.0e6, None, 0.03, DENSENET),
    "cifar_densenet100_k12": (7.0e6, None, 0.01, DENSENET),
    "cifar_alexnet": (1_756_620 - 194, None, 0.0, "the Keras study, less an eleventh class (193) and 1 more"),
    "cifar_vgg16": (1.5e7, 313, 0.01, PRUNING),
    "cifar_lenet": (62_006, 0.651_720, 0.0, "its layers: 450 x 28 x 28 + 2,400 x 10 x 10 + 58,920, with three colours"),
    "cifar_mlp": (3072 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10, 0.402_048, 0.0, "its layers"),
    "alexnet": (61_100_840, 714, 0.001, TORCHVISION),
    "vgg16": (138_357_544, 15_470, 0.001, TORCHVISION),
    "googlenet": (6_624_904, 1_498, 0.001, f"{TORCHVISION}; Szegedy et al. 2015: 6.8 million, without batch norm"),
    # Torchvision counts the parameters of the auxiliary classifier.
    "inception_v3": (27_161_264 - 3_326_696, 5_713, 0.001, TORCHVISION),
    "inception_v4": (42_679_816, 12_300, 0.005, "timm, model card"),
    # Gluon has biases as above; the paper rounds its multiply-adds down.
    "resnet50_v1": (25_557_032, 3_800, 0.02, f"{TORCHVISION}; {RESNET}, table 1"),
    "resnet152_v1": (60_192_808, 11_300, 0.01, f"{TORCHVISION}; {RESNET}, table 1"),
    # Torchvision strides where Gluon's version 2 does, with the norms of version 1: 7,552 parameters more.
    "resnet50_v2": (25_557_032, 4_089, 0.001, TORCHVISION),
    "densenet121": (7_978_856, 2_834, 0.001, TORCHVISION),
}
DEEPER = {
    *(f"cifar_resnet{layers}_v2" for layers in (20, 32, 44, 56, 110)),
    *(f"cifar_resnet{layers}_v1" for layers in (32, 44, 50, 56, 110)),
    *(f"resnet{layers}_v{version}" for layers in (101, 152) for version in (1, 2)),
    *("cifar_densenet100_k12", "cifar_vgg19", "vgg19", "cifar_airbench94", "cifar_airbench95"),
    *("vgg16", "inception_v3", "resnet50_v1"),  # of Gluon's zoo, as AlexNet, DenseNet-121 and ResNet-50 v2
}
"""Networks that are only built and counted: like another one, but for more of its units, their width or their order."""


@pytest.mark.parametrize("name", LITERATURE)
def test_costs_are_those_of_the_literature(name: str) -> None:
    parameters, millions, tolerance, source = LITERATURE[name]
    cost = NETWORKS[name].cost
    assert cost.parameters == pytest.approx(parameters, rel=tolerance, abs=0), source
    assert millions is None or cost.forward_multiply_adds / 1e6 == pytest.approx(millions, rel=tolerance), source


def test_the_registry_s_costs_are_those_counted() -> None:
    assert {name: count(network) for name, network in NETWORKS.items()} == {n: net.cost for n, net in NETWORKS.items()}


@needs_torch
@pytest.mark.parametrize("name", frameworks.load("pytorch").NETWORKS)
def test_pytorch_s_networks_have_the_same_costs(name: str) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from poc.frameworks.pytorch.networks import BUILDERS

    network, (builder, arguments) = NETWORKS[name], BUILDERS[name]
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as flops:
        net = builder(network.classes, *arguments).eval()
        net(torch.zeros(1, 3, network.input_size, network.input_size))
        counted = flops.get_total_flops() // 2
        if name in AIRBENCHES:
            net(torch.zeros(1, 3, 30, 30))
            assert flops.get_total_flops() // 2 - counted == network.multiply_adds(30)
    trained = sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
    assert (trained, counted) == (network.cost.parameters, network.cost.forward_multiply_adds)


@needs_torch
def test_only_batch_norms_that_do_not_need_it_stop_counting() -> None:
    from torch import nn

    from poc.frameworks.pytorch.networks import stop_counting_batches

    layers = [nn.BatchNorm2d(3), nn.BatchNorm2d(3, momentum=None), nn.SyncBatchNorm(3)]
    stop_counting_batches(nn.Sequential(*layers))
    assert [layer.num_batches_tracked is None for layer in layers] == [True, False, False]


def test_an_unknown_network_is_refused_and_multiply_adds_grow_with_the_area() -> None:
    small = NETWORKS["cifar_resnet8_v2"]
    assert small.multiply_adds(64) == 4 * small.cost.forward_multiply_adds
    run = dataclasses.replace(planned("mxnet").run, model="unknown")
    assert (frameworks.unsupported_reason(run, MACHINE) or "").startswith("model=unknown")


def small(name: str) -> int:
    """Return a size of small images that leaves two by two values at the end of the network."""
    return 32 if NETWORKS[name].classes == 10 else 128 if name.startswith("inception") else 64


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_networks_train_and_are_compiled_to_the_same(part: int) -> None:
    # In processes of their own, whose end frees the memory; without the limit MXNet would cache much of a DenseNet.
    names = [name for name in NETWORKS if name not in DEEPER]
    command = [sys.executable, "-W", "ignore", "-m", "tests.test_networks", *names[part::2]]
    subprocess.run(command, check=True, cwd=HOME, env={**os.environ, "MXNET_MKLDNN_CACHE_NUM": "4"})


def trains_and_is_compiled_to_the_same(name: str) -> None:
    data = synthetic("cifar" if NETWORKS[name].classes == 10 else "imagenet", size=NETWORKS[name].input_size)
    run = planned("mxnet", model=name, data=data, batch_per_device=2, optimizer=SGD(momentum=0)).run
    images = dataclasses.replace(data, size=small(name), crop=small(name))
    session: Any = frameworks.load("mxnet").open_session(dataclasses.replace(run, data=images))
    # Where the last values lie in a row, a dense layer has fewer weights for small images.
    assert session.parameters == NETWORKS[name].cost.parameters or name.startswith(("alexnet", "vgg"))
    image = mx.nd.random.normal(shape=(1, *images.input_shape))
    session._sync_batch_stats()
    compiled = session._evaluating_net(image)
    session._evaluating_net.hybridize(active=False)
    check_close(compiled, session._evaluating_net(image), 1e-4)
    del session._evaluating_net, compiled
    give_memory_back()  # all that evaluated takes as much as what trains
    before = norms(session)
    pixels = np.random.default_rng(0).integers(0, 256, (2, *images.input_shape), np.uint8)
    session.step(Batch(images=pixels, labels=np.array([1, 7], np.float32)), 0.001)
    assert np.isfinite(session.drain())
    after = norms(session)
    assert sum(map(operator.ne, before, after)) >= 0.9 * len(session._trained)
    assert np.isfinite(after).all()


def norms(session: Any) -> list[float]:
    """Return the norm of every trained parameter; a copy of all would need as much memory as the largest networks."""
    return [float(parameter.data().norm().asscalar()) for parameter in session._trained]


def check_close(array: Any, expected: Any, tolerance: float) -> None:
    scale = float(np.abs(expected.asnumpy()).max())
    np.testing.assert_allclose(array.asnumpy(), expected.asnumpy(), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.slow
@pytest.mark.skipif(not built.can_fuse(), reason="oneDNN has no batch norm with ReLU for this CPU")
@pytest.mark.parametrize(
    ("name", "fuses"),
    [
        *((name, True) for name in ("cifar_resnet8_v2", "cifar_resnet20_v1", "cifar_inception", "densenet121")),
        ("cifar_densenet40_k12", False),
    ],
)
def test_batch_norm_and_relu_as_one_operator_change_nothing(name: str, fuses: bool) -> None:
    results = []
    for fused in (False, True):
        mx.random.seed(1)
        net = built.registered(name, NETWORKS[name].classes, fused=fused)
        net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
        operators = {node["op"] for node in json.loads(net(mx.sym.var("data")).tojson())["nodes"]}
        assert ("_contrib_BatchNormWithReLU" in operators) == (fused and fuses)
        net.hybridize(static_alloc=True, static_shape=True)
        images = mx.nd.random.normal(shape=(4, 3, small(name), small(name)))
        with autograd.record():
            scores = net(images)
            (scores * scores).mean().backward()
        results.append((scores, next(p for n, p in net.collect_params().items() if n.endswith("weight")).grad()))
    for apart, together in zip(*results):
        check_close(together, apart, 1e-3)


if __name__ == "__main__":
    for network_name in sys.argv[1:]:
        print(network_name)
        trains_and_is_compiled_to_the_same(network_name)
        give_memory_back()
