"""PyTorch modules that are not registered: the user's own, torchvision's and timm's by name; and the cost of one."""

import importlib
import importlib.util
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from poc.config.networks import Cost
from poc.config.run import Run
from poc.frameworks import HOME
from poc.frameworks.own_models import OtherFrameworkError, make
from poc.frameworks.pytorch.networks import declare_operators, torchvision
from poc.values import UserError, suggest


def _from_torchvision(name: str, run: Run) -> nn.Module:
    """Return a classifier of torchvision for the classes of `run`, without auxiliary outputs."""
    models = importlib.import_module("torchvision.models")
    names = models.list_models(module=models)
    if name not in names:
        raise UserError(f"torchvision has no classifier {name!r}; {suggest(name, names)}")
    options = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    return torchvision(run.data.classes, name, **options)


def _from_timm(name: str, run: Run) -> nn.Module:
    """Return a model of timm for the classes of `run`, and for the size of its images where that is fixed."""
    if importlib.util.find_spec("timm") is None:
        install = f"{sys.executable} -m pip install --no-deps -r {HOME / 'requirements' / 'timm.txt'}"
        raise OtherFrameworkError(f"timm is not installed: {install}")
    timm = importlib.import_module("timm")
    names = timm.list_models()
    if name.split(".")[0] not in names:  # after the point are weights
        raise UserError(f"timm has no model {name!r}; {suggest(name, names)}")
    config = timm.get_pretrained_cfg(name)
    size = {"img_size": run.data.crop} if config is not None and config.fixed_input_size else {}
    net: nn.Module = timm.create_model(name, pretrained=False, num_classes=run.data.classes, **size)
    return net


def own(run: Run) -> nn.Module:
    """Return a model that is not registered, with the weights that its function draws after the run's seed is set."""
    declare_operators()  # the user's file may import torchvision
    torch.manual_seed(run.seed)
    zoos = {"torchvision": _from_torchvision, "timm": _from_timm}
    net: nn.Module = make(run, zoos, nn.Module, "a module of PyTorch")
    if any(map(is_lazy, net.parameters())):
        with torch.no_grad():
            net.eval()(torch.zeros(2, *run.data.input_shape))
        net.train()
    norms = [layer for layer in net.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    if run.emulated and any(isinstance(norm, nn.SyncBatchNorm) or norm.momentum is None for norm in norms):
        raise UserError("with SyncBatchNorm, or a batch norm without momentum, emulated devices train differently")
    return net


class _Outputs(TorchDispatchMode):
    """Counts the values that operators compute."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.count += sum(each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor))
        return result


def _check_scores(scores: Any, expected: tuple[int, int], where: str = "") -> None:
    """Raise UserError if what a model returns has another shape."""
    shape = tuple(getattr(scores, "shape", ()))
    if shape != expected:
        got = f"a tensor of {shape}" if shape else type(scores).__name__
        raise UserError(f"it returns {got} for {expected[0]} images{where}, not {expected}")


def count(run: Run) -> Cost:
    """Return the cost of the model of `run`; raises UserError if it does not give scores, (n, classes)."""
    layout = torch.channels_last if run.layout == "NHWC" else torch.contiguous_format
    # In evaluation PyTorch has fused operators that are not counted.
    net = own(run).to(memory_format=layout).train()
    declared = {name for name, _ in net.named_parameters()}
    images = 2  # a batch norm of one value would fail
    batch = torch.zeros(images, *run.data.input_shape).to(memory_format=layout)
    # Attention in operators that are counted.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _Outputs() as outputs, FlopCounterMode(display=False) as flops:
        _check_scores(net(batch), (images, run.data.classes))
    if late := [name for name, _ in net.named_parameters() if name not in declared]:
        raise UserError(f"it makes {late[0]} in its first pass, too late: make it in __init__, or use a lazy layer")
    if unsaved := [name for name, each in net.state_dict().items() if not isinstance(each, torch.Tensor)]:
        raise UserError(f"its state has {unsaved[0]}, which is no tensor and would not be in a checkpoint")
    with torch.no_grad():
        _check_scores(net.eval()(batch), (images, run.data.classes), " in evaluation")
    net.train()
    trained = {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
    if trained:
        net(batch).sum().backward()
    if unused := [name for name, parameter in trained.items() if parameter.grad is None]:
        # Workers would wait for its gradient.
        raise UserError(f"its scores do not depend on {unused[0]}: remove it, or set requires_grad = False")
    return Cost(
        parameters=sum(parameter.numel() for parameter in trained.values()),
        forward_multiply_adds=flops.get_total_flops() // 2 // images,
        activations=outputs.count // images,
    )
