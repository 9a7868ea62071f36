"""Gluon blocks that are not registered: the user's own, and GluonCV's by name; and the cost of a block."""

import importlib
import json
import math
import re
import sys
from collections import defaultdict
from importlib import metadata
from types import ModuleType
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import nn

from poc.config.networks import Cost
from poc.config.run import Run
from poc.frameworks.own_models import make
from poc.values import UserError, suggest

_CLASSIFIERS = (
    *("alexnet", "cifarresnet", "cifarresnext", "cifarwideresnet", "densenet", "dla", "googlenet", "hrnet"),
    *("inception", "mobilenet", "mobilenetv3", "nasnet", "residual_attentionnet", "resnest", "resnet", "resnetv1b"),
    *("resnext", "se_resnet", "senet", "squeezenet", "vgg", "xception", "yolo.darknet"),
)
"""Modules of GluonCV's model zoo that have classifiers, and no other kind of model."""


def gluoncv(name: str) -> Any:
    """Import one module of GluonCV's model zoo; the whole package takes 0.3 s and fails together with PyTorch 2."""
    for package in ("gluoncv", "gluoncv.model_zoo"):  # without what they import
        if package not in sys.modules:
            module = sys.modules[package] = ModuleType(package)
            module.__path__ = [str(metadata.distribution("gluoncv").locate_file(package.replace(".", "/")))]
    return importlib.import_module(f"gluoncv.model_zoo.{name}")


def _from_gluoncv(name: str, run: Run) -> Any:
    """Return a classifier of GluonCV for the classes of `run`, without auxiliary outputs."""
    modules = [gluoncv(each) for each in _CLASSIFIERS]
    file = metadata.distribution("gluoncv").locate_file("gluoncv/model_zoo/model_zoo.py")
    # Not those for segmentation, nor those whose group norm, in Python, cannot be in a graph.
    pairs = re.findall(r"^    '([^']+)(?<!_s)(?<!_gn)' *: (\w+)", file.read_text(), re.MULTILINE)
    zoo = {key: getattr(module, function) for key, function in pairs for module in modules if hasattr(module, function)}
    if name not in zoo:
        raise UserError(f"gluoncv has no classifier {name!r}; {suggest(name, zoo)}")
    options = {"googlenet": {"aux_logits": False}, "resnest": {"input_size": run.data.crop}}
    options.update(nasnet={"use_aux": False}, hrnet={"num_classes": run.data.classes})
    of_family = next((each for family, each in options.items() if name.startswith(family)), {})
    return zoo[name](classes=run.data.classes, **of_family)


def own(run: Run) -> Any:
    """Return the block of the model of `run`, which is not registered; its weights may be initialised, or not."""
    return make(run, {"gluoncv": _from_gluoncv}, nn.HybridBlock, "a HybridBlock of Gluon")


def count(net: Any, classes: int, size: int) -> Cost:
    """Return the cost of a block for an image of `size` pixels, from its graph, without computing anything.

    Raises UserError if it does not give scores, (n, classes).
    """
    declared = {*net.collect_params()}
    with autograd.train_mode():
        net(mx.sym.var("data"))
    graph = net(mx.sym.var("data"))
    if not isinstance(graph, mx.sym.Symbol) or len(graph.list_outputs()) > 1:
        raise UserError("it returns several arrays, not only scores")
    internals = graph.get_internals()
    argument_shapes, output_shapes, _ = internals.infer_shape(data=(1, 3, size, size))
    if output_shapes[-1] != (1, classes):
        raise UserError(f"it returns an array of {output_shapes[-1]} for one image, not (1, {classes})")
    arguments = dict(zip(internals.list_arguments(), argument_shapes))
    outputs: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for name, shape in zip(internals.list_outputs(), output_shapes):
        outputs[re.sub(r"_output\d*$", "", name)].append(shape)
    nodes = json.loads(graph.tojson())["nodes"]
    # Nothing is computed or copied by these. A block that is used several times has as many nodes of one name.
    skipped = {node["name"] for node in nodes if node["op"] in ("null", "expand_dims", "squeeze", "Flatten")}
    activations = sum(math.prod(shape) for name in outputs.keys() - skipped for shape in outputs[name])
    multiply_adds = 0
    for node in nodes:
        if node["op"] in ("Convolution", "FullyConnected"):
            _, (weight, *_), *_ = node["inputs"]
            shape = outputs[node["name"]].pop(0)
            positions = shape[2:] if node["op"] == "Convolution" else shape[1:-1]
            multiply_adds += math.prod(positions) * math.prod(arguments[nodes[weight]["name"]])
    if hidden := arguments.keys() - declared - {"data"}:
        reason = "its block is made in the first pass, or is in a list or dict without register_child()"
        raise UserError(f"{min(hidden)} would be neither trained nor saved: {reason}")
    trained = _trained(net)
    if unused := trained.keys() - arguments.keys():
        raise UserError(f"its scores do not depend on {min(unused)}: remove it, or set grad_req = 'null'")
    for name, parameter in trained.items():
        if parameter.init is None and not (parameter._data or parameter._deferred_init) and len(arguments[name]) < 2:
            raise UserError(f"{name} has no initializer, and He's is for weights: set one, e.g. init='zeros'")
    parameters = sum(math.prod(arguments[name]) for name in trained)
    return Cost(parameters=parameters, forward_multiply_adds=multiply_adds, activations=activations)


def _trained(net: Any) -> dict[str, Any]:
    """Return the trained parameters by name; raises UserError if sessions would not train or save one as it is."""
    saved = {*net._collect_params_with_prefix().values()}
    trained = {}
    for name, parameter in net.collect_params().items():
        if parameter not in saved:
            raise UserError(f"{name} is no attribute of a block, and would not be saved")
        if parameter.grad_req == "null":
            continue
        if parameter.lr_mult != 1 or parameter.wd_mult not in (0, 1) or parameter.grad_req != "write":
            multipliers = "lr_mult, wd_mult other than 0 and 1, or grad_req='add'"
            raise UserError(f"{name} has {multipliers}, which are not supported; grad_req='null' freezes it")
        if np.dtype(parameter.dtype) != np.float32:
            raise UserError(f"{name} is {np.dtype(parameter.dtype)}, and parameters have to be float32")
        trained[name] = parameter
    return trained
