"""The registry's networks as Gluon builds them: their size against the literature, and that they train."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from poc import Recipe, engines, synthetic
from poc.data import Batch
from poc.engines.gluon import compatibility
from poc.machine.hardware import Hardware
from poc.plan import plan
from poc.recipe import networks
from poc.recipe.networks import NETWORKS
from poc.values import UserError

pytestmark = pytest.mark.slow

compatibility.prepare()
import mxnet as mx  # noqa: E402
from mxnet import autograd  # noqa: E402

from poc.engines.gluon import networks as built  # noqa: E402

CPU = Hardware(cpu="Test CPU", cores=2, memory_bytes=2**36, cpu_flops=2e11)

# Trained parameters: of the paper, or of an implementation that others measure by, and how far they may be off.
LITERATURE = {
    "cifar_resnet20_v1": (0.27e6, 0.02, "He et al. 2016, table 6"),
    "cifar_resnet32_v1": (0.46e6, 0.02, "He et al. 2016, table 6"),
    "cifar_resnet44_v1": (0.66e6, 0.02, "He et al. 2016, table 6"),
    "cifar_resnet56_v1": (0.85e6, 0.02, "He et al. 2016, table 6"),
    "cifar_resnet110_v1": (1.73e6, 0.01, "He et al. 2016, table 6"),
    "cifar_resnet110_v2": (1.73e6, 0.01, "He et al. 2016"),
    "cifar_resnet50_v2": (758_621, 0.0, "MXNet 0.11's example"),
    "cifar_resnet164_v2": (1.70e6, 0.01, "He et al. 2016 (identity mappings), table 3"),
    "cifar_resnet164_v1": (1.70e6, 0.02, "He et al. 2016 (identity mappings), table 3"),
    "cifar_densenet40_k12": (1.0e6, 0.03, "Huang et al. 2017, table 2"),
    "cifar_densenet100_k12": (7.0e6, 0.01, "Huang et al. 2017, table 2"),
    "cifar_alexnet": (1_756_620 - 194, 0.0, "the Keras study, less an eleventh class (193) and one more"),
    "cifar_lenet": (62_006, 0.0, "LeNet-5 for 3x32x32 images with dense output"),
    "cifar_mlp": (3072 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10, 0.0, "its layers"),
    "alexnet": (61_100_840, 0.0, "Krizhevsky 2014, as in torchvision"),
    "vgg16": (138_357_544, 0.0, "Simonyan and Zisserman 2015: 138 million"),
    "vgg19": (143_667_240, 0.0, "Simonyan and Zisserman 2015: 144 million"),
    "googlenet": (6.6e6, 0.06, "Szegedy et al. 2015: 6.8 million; with batch norm"),
    "inception_v3": (23_834_568, 0.0, "torchvision, without the auxiliary classifier"),
    "inception_v4": (42_679_816, 0.0, "timm"),
    "resnet50_v1": (25.6e6, 0.01, "He et al. 2016"),
    "resnet101_v1": (44.5e6, 0.01, "He et al. 2016"),
    "resnet152_v1": (60.2e6, 0.01, "He et al. 2016"),
    "densenet121": (7_978_856, 0.0, "Huang et al. 2017: 8 million"),
}
# Multiply-adds of a forward pass, in 1e9, rounded in the literature.
OPERATIONS = {"vgg16": 15.5, "vgg19": 19.6, "resnet50_v1": 3.86, "resnet152_v1": 11.3, "inception_v3": 5.7}


@pytest.mark.parametrize("name", NETWORKS)
def test_what_the_registry_says_is_what_is_built(name: str) -> None:
    network = NETWORKS[name]
    found = built.count(network)
    assert found == {
        "parameters": network.parameters,
        "multiply_adds": network.forward_multiply_adds,
        "activations": network.activations,
    }


@pytest.mark.parametrize("name", LITERATURE)
def test_parameters_are_those_of_the_literature(name: str) -> None:
    printed, tolerance, source = LITERATURE[name]
    assert NETWORKS[name].parameters == pytest.approx(printed, rel=tolerance, abs=0), source


@pytest.mark.parametrize("name", OPERATIONS)
def test_multiply_adds_are_those_of_the_literature(name: str) -> None:
    assert NETWORKS[name].forward_multiply_adds / 1e9 == pytest.approx(OPERATIONS[name], rel=0.02)


@pytest.mark.parametrize("name", NETWORKS)
def test_it_trains_for_two_steps(name: str) -> None:
    network = NETWORKS[name]
    data = synthetic("cifar" if network.classes == 10 else "imagenet", size=network.input_size)
    recipe = Recipe(model=name, data=data, kind="cpu", batch_per_device=2, lr=0.001)
    session: Any = engines.load("gluon").open_session(plan("", recipe, CPU)[0].run)
    assert session.parameters == network.parameters
    pixels = np.random.default_rng(0).integers(0, 256, (2, *data.input_shape), np.uint8)
    batch = Batch(images=pixels, labels=np.array([1, 7], np.float32))
    before = session.state()
    session.step(batch, 0.001)
    session.step(batch, 0.001)
    assert np.isfinite(session.drain())
    after = session.state()
    moved = [key for key in before if not np.array_equal(before[key], after[key])]
    assert len(moved) >= 0.9 * len(session._trained)
    assert all(np.isfinite(array).all() for array in after.values())


@pytest.mark.parametrize("name", NETWORKS)
def test_compiling_it_changes_nothing(name: str) -> None:
    network = NETWORKS[name]
    mx.random.seed(1)
    net = built.build(network, network.classes, fused=False)
    net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    image = mx.nd.random.normal(shape=(1, 3, network.input_size, network.input_size))
    plain = net(image).asnumpy()
    net.hybridize(static_alloc=True, static_shape=True)
    compiled = net(image).asnumpy()
    np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-4 * float(np.abs(plain).max()))


def test_multiply_adds_go_with_the_area() -> None:
    network = NETWORKS["cifar_resnet50_v2"]
    assert network.multiply_adds(28) == pytest.approx(network.forward_multiply_adds * 49 / 64)
    # The number that the study's 28 pixels were planned with: 85 million.
    assert network.multiply_adds(28) == pytest.approx(85e6, rel=0.03)


@pytest.mark.parametrize(
    ("name", "size", "allowed"),
    [
        ("vgg16", 28, "of 224 pixels"),
        ("inception_v3", 224, "of 299 pixels"),
        ("cifar_resnet50_v2", 224, "of 8 to 64 pixels"),
        ("cifar_lenet", 28, "of 32 pixels"),
    ],
)
def test_a_network_names_the_images_that_it_takes(name: str, size: int, allowed: str) -> None:
    with pytest.raises(UserError, match=f"crop: {size} is not allowed with {name}; give images {allowed}"):
        networks.network(name).check_input(size)


@pytest.mark.skipif(not built.can_fuse(), reason="oneDNN has no batch norm with ReLU for this CPU")
@pytest.mark.parametrize("name", ["cifar_resnet20_v1", "cifar_inception", "densenet121"])
def test_batch_norm_and_relu_as_one_operator_change_nothing(name: str) -> None:
    network = NETWORKS[name]
    image = mx.nd.random.normal(shape=(4, 3, network.input_size, network.input_size))
    found = []
    for fused in (False, True):
        mx.random.seed(1)
        net = built.build(network, network.classes, fused=fused)
        net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
        with autograd.record():
            out = net(image)
            loss = (out * out).mean()
        loss.backward()
        gradient = next(p for n, p in net.collect_params().items() if n.endswith("weight")).grad()
        operators = {node["op"] for node in json.loads(net(mx.sym.var("data")).tojson())["nodes"]}
        assert ("_contrib_BatchNormWithReLU" in operators) == fused
        found.append((out.asnumpy(), gradient.asnumpy()))
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * float(np.abs(one).max()))
