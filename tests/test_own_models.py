"""Models of the user's own and of zoos: found, counted, trained and resumed by both frameworks; and their mistakes."""

import dataclasses
import importlib.util
import json
import math
import os
import py_compile
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import Recipe, Synthetic, frameworks
from poc.config import networks
from poc.config.networks import Cost
from poc.config.run import Run
from poc.frameworks import own_models
from poc.plan import Planned, plan
from poc.records.record import COMPLETED
from poc.values import UserError, from_plain, to_plain
from tests import test_frameworks
from tests.builders import MACHINE, executed, run_of
from tests.conftest import needs_torch, of_torch, refused
from tests.framework_worker import batches, distance, parameters, planned, trained

GLUON = """\
from mxnet.gluon import nn


def net(classes):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, padding=1), nn.Activation("relu"), nn.MaxPool2D(2))
    net.add(nn.Conv2D(16, 3, padding=1, groups=2, in_channels=8), nn.Activation("relu"), nn.GlobalAvgPool2D())
    net.add(nn.Dropout(DROPOUT), nn.Dense(classes))
    net[3].weight.grad_req = "null"  # frozen
    net[3].initialize()
    return net
"""
TORCH = """\
from torch import nn

from parts import convolution


def net(classes):
    frozen = convolution(8, 16, groups=2)
    frozen.weight.requires_grad_(False)
    layers = [convolution(3, 8), nn.ReLU(), nn.MaxPool2d(2), frozen, nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(DROPOUT), nn.Linear(16, classes))
"""
PARTS = """\
from torch import nn


def convolution(inputs, outputs, groups=1):
    return nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups)
"""
PARAMETERS = (3 * 9 + 1) * 8 + 16 + 17 * 10
"""Trained parameters of both for ten classes: the weights of the second convolution are frozen."""
MULTIPLY_ADDS = 32 * 32 * 27 * 8 + 16 * 16 * 4 * 9 * 16 + 160
CIFAR: dict[str, Any] = {"data": Synthetic(train=640, validation=70)}
ASK = own_models._ask
MODEL = {"mxnet": "gluon.py:net", "pytorch": "pytorch_net.py:net"}
slow_by_framework = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in MODEL
    if name == "mxnet" or frameworks.versions(name).keys() >= {"torch", "torchvision"}
]
both = pytest.mark.parametrize("framework", slow_by_framework)


@pytest.fixture(autouse=True)
def cache_is_empty(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POC_CACHE", str(tmp_path_factory.mktemp("cache")))
    own_models._inspected.clear()
    monkeypatch.setattr(own_models, "_ask", own_models._answer)  # frameworks need seconds to start in a process


@pytest.fixture
def own_processes(cache_is_empty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count models as a user's plan does."""
    monkeypatch.setattr(own_models, "_ask", ASK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model for each framework, without dropout."""
    write(tmp_path)
    return tmp_path


def write(folder: Path, dropout: float = 0.0) -> None:
    (folder / "gluon.py").write_text(GLUON.replace("DROPOUT", str(dropout)))
    (folder / "pytorch_net.py").write_text(TORCH.replace("DROPOUT", str(dropout)))
    (folder / "parts.py").write_text(PARTS)


def own(framework: str, folder: Path, **fields: Any) -> Planned:
    """Plan five steps of the framework's model in `folder`."""
    return planned(framework, **{"model": MODEL.get(framework), "folder": folder, **CIFAR, **fields})


def plans(model: str, folder: Path, **fields: Any) -> list[Planned]:
    """Plan a model for whichever framework can train it."""
    return plan("test", Recipe(model=model, folder=folder, kind="cpu", steps=5, **{**CIFAR, **fields}), MACHINE)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("mine.py", "FILE.py:FUNCTION"),
        ("mine.py:", "FILE.py:FUNCTION"),
        ("/home/me/mine.py:net", "recipe's folder"),
        ("../mine.py:net", "recipe's folder"),
        ("glun.py:net", "did you mean 'gluon.py'"),
        ("torchvison:resnet18", "did you mean 'torchvision'"),
        ("no_such_package.nets:net", "no module 'no_such_package.nets'"),
        ("__main__:net", "no module '__main__'"),
        ("cifar_resnet50_v3", "did you mean 'cifar_resnet50_v"),
    ],
)
def test_a_wrong_name_is_one_line_before_anything_is_started(
    model: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # as where a script was started
    with refused(f"^model: .*{re.escape(words)}"):
        plans(model, folder)


FILES = {
    "net.py": "from layers.blocks import Block\nimport json\n",
    "layers/__init__.py": "",
    "layers/blocks.py": "from . import parts\nfrom .deep.more import x\n",
    "layers/parts.py": "",
    "layers/deep/__init__.py": "",
    "layers/deep/more.py": "from ..shared import y\nimport broken\n",
    "layers/shared.py": "",
    "broken.py": "syntax error(",
    "unrelated.py": "",
    "site/small.py": "import torch",  # the first folder of sys.path
    "site/torch.py": "",
    "elsewhere/installed/__init__.py": "",
    "elsewhere/installed/models.py": "from installed.layers import x\nimport other",
    "elsewhere/installed/layers.py": "",
    "elsewhere/other.py": "",
}
COVERED = {
    "net.py:net": {name for name in FILES if name.startswith(("net", "layers", "broken"))},
    "layers.parts:net": {"layers/__init__.py", "layers/parts.py"},
    "layers.deep.more:net": {
        *("layers/__init__.py", "layers/deep/__init__.py", "layers/deep/more.py", "layers/shared.py", "broken.py")
    },
    "small:net": {"site/small.py"},
    "installed.models:net": {name for name in FILES if name.startswith("elsewhere/installed")},
    "timm:resnet18": set(),
}


@pytest.mark.parametrize("model", COVERED)
def test_the_hash_covers_the_file_its_packages_and_what_they_import_of_the_recipe_s_folder_and_their_own(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        """As an editable installation leaves one in place of a folder in sys.path."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            file = tmp_path / "elsewhere" / name / "__init__.py"
            return importlib.util.spec_from_file_location(name, file) if name == "installed" else None

    for name, code in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    covered, before = set(), own_models.source_hash(model, tmp_path)
    assert bool(before) == bool(COVERED[model])
    assert own_models.source_hash(f"{model}2", tmp_path) == before  # another function
    for name in FILES:
        (tmp_path / name).write_text(f"{FILES[name]}\n# changed")
        after = own_models.source_hash(model, tmp_path)
        covered |= {name} if after != before else set()
        before = after
    assert covered == COVERED[model]


def test_a_module_is_one_of_the_folder_or_an_installed_one(tmp_path: Path) -> None:
    (tmp_path / "nets" / "small").mkdir(parents=True)
    for file in ("nets/one.py", "nets/small/__init__.py"):
        (tmp_path / file).touch()
    assert own_models.source("nets.one:net", tmp_path) == tmp_path / "nets" / "one.py"
    assert own_models.source("nets.small:net", tmp_path) == tmp_path / "nets" / "small" / "__init__.py"
    assert own_models.source("numpy.random:net", tmp_path) == Path(np.random.__file__)
    assert own_models.source("json:net", tmp_path) == Path(json.__file__)
    with pytest.raises(UserError, match=r"nets\.two"):
        own_models.source("nets.two:net", tmp_path)


def own_run(**fields: Any) -> Run:
    """A run of a model of the user's, as a journal of another machine has it: its file is not here."""
    cost = Cost(parameters=10, forward_multiply_adds=1000, activations=100)
    own_fields = {"model": "mine.py:net", "model_hash": "abc", "model_folder": "/home/me/nets", "cost": cost}
    return dataclasses.replace(run_of(), **{**own_fields, **fields})


def test_a_run_on_another_machine_needs_no_file_and_keeps_its_id() -> None:
    run = own_run()
    assert run.network.multiply_adds(run.data.crop) == 1000
    assert run.network.memory_bytes(run.data.crop, 2) == 4 * (1.4 * 100 * 2 + 3 * 10)
    assert run == from_plain(Run, json.loads(json.dumps(to_plain(run))))
    assert run.id == own_run(model_folder="", cost=None).id
    assert run.id != own_run(model_hash="abd").id


def test_mean_and_deviation_have_defaults_and_are_one_value_each() -> None:
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 0.125]
    (planned_run,) = plan("test", Recipe("cifar_mlp", kind="cpu", data=CIFAR["data"], mean=mean, std=std), MACHINE)
    assert planned_run.run.normalisation == ((25.5, 51.0, 76.5), tuple(1 / (255 * each) for each in std))
    plain = run_of()
    assert plain.normalisation == (networks.MEAN, 1 / 58)
    assert "mean" not in plain.fingerprint()
    assert dataclasses.replace(plain, model="cifar_resnet50_v2").normalisation == (networks.MEAN, 1.0)
    own_mean, own_scale = own_run().normalisation
    assert own_mean == pytest.approx((123.675, 116.28, 103.53))
    assert 1 / np.array(own_scale) == pytest.approx([58.395, 57.12, 57.375])
    for wrong in (
        {"std": (0.2, 0.0, 0.2)},
        {"std": (58, 57, 57)},
        {"mean": (123.7, 116.8, 103.9)},
        {"mean": (0.5, 0.5)},
        {"mean": 0.5},
    ):
        with pytest.raises(UserError, match=next(iter(wrong))):
            Recipe("cifar_mlp", data=CIFAR["data"], **wrong)


@both
def test_sessions_normalise_by_mean_and_deviation(framework: str) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 0.125)
    run = planned(framework, mean=mean, std=std).run
    session = frameworks.open_session(run)
    batch = next(batches(run))
    ((images, _),) = session._inputs(session.place(batch), 0)
    axes = (1, 3, 1, 1)
    expected = (batch.images / 255 - np.reshape(mean, axes)) / np.reshape(std, axes)
    seen = images.asnumpy() if framework == "mxnet" else images.numpy()
    np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("own_processes")
@both
def test_a_model_is_counted_when_it_is_planned_and_the_answer_is_kept(
    framework: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_models, "_SILENT_SECONDS", 0.01)
    (item,) = plans(MODEL[framework], folder)
    assert f"{MODEL[framework]} with {framework}" in capsys.readouterr().err  # it takes longer than that
    assert (item.run.framework, item.skip) == (framework, "")
    assert item.run.cost is not None
    assert (item.run.cost.parameters, item.run.cost.forward_multiply_adds) == (PARAMETERS, MULTIPLY_ADDS)
    own_models._inspected.clear()
    monkeypatch.setattr(own_models, "_ask", pytest.fail)
    assert own(framework, folder).run.cost == item.run.cost


@both
def test_a_changed_file_is_another_run_and_does_not_train_as_the_old_one(framework: str, folder: Path) -> None:
    before = own(framework, folder).run
    assert before.id == own(framework, folder).run.id
    write(folder, dropout=0.1)
    assert own(framework, folder).run.id != before.id
    with pytest.raises(UserError, match="has changed"):
        frameworks.open_session(before)


@pytest.mark.parametrize("model", ["net.py:net", "stale.net:net"])
def test_a_model_is_the_hashed_code_and_not_bytecode_of_files_of_the_same_size_and_time(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from stale.part import DEPTH\nfrom stale_part import WIDTH\ndef net(classes): return WIDTH, DEPTH, "
    (tmp_path / "stale").mkdir()
    for number in "12":
        for name in ("net", "stale/net", "stale/part", "stale_part"):
            text = code if name.endswith("net") else "WIDTH = DEPTH = "
            (tmp_path / f"{name}.py").write_text(text + number)
            os.utime(tmp_path / f"{name}.py", (1, 1))
            if number == "1":
                py_compile.compile(str(tmp_path / f"{name}.py"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("stale")]:
        monkeypatch.delitem(sys.modules, name)
    run = own_run(model=model, model_folder=str(tmp_path), model_hash=own_models.source_hash(model, tmp_path))
    assert own_models.make(run, {}, tuple, "a tuple") == (2, 2, 2)


USUAL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, stride=4), nn.LazyLinear(classes)
        self.register_buffer("mask", torch.full((2, 2), -torch.inf))

    def forward(self, images):
        features = self.first(images)
        return self.last(features.view(features.size(0), -1))


class Unused(Net):
    def __init__(self, classes):
        super().__init__(classes)
        self.extra = nn.Linear(2, 3)
"""
PAIR_IN_EVALUATION = """\
from torch import nn


class Net(nn.Sequential):
    def forward(self, images):
        scores = super().forward(images)
        return scores if self.training else (scores, images)


def net(classes):
    return Net(nn.Flatten(), nn.LazyLinear(classes))
"""
LATE = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, images):
        self.last = self.last or nn.Linear(3, 10)
        return self.last(images.mean(dim=(2, 3)))


def net(classes):
    return Net()
"""
STATEFUL = """\
import random

import numpy as np
import torch
from torch import nn


class CountingNorm(nn.BatchNorm2d):
    def forward(self, images):
        self.num_batches_tracked += 1
        return super().forward(images)


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.norm, self.last = CountingNorm(3), nn.Linear(3, classes)
        self.register_buffer("mean", torch.zeros(()), persistent=False)
        self.register_buffer("short", torch.full((2,), 0.3, dtype=torch.bfloat16))
        self.register_buffer("constant", torch.ones(1).expand(3))
        self.register_buffer("late", None)
        self.register_buffer("sized", torch.zeros(0, dtype=torch.bfloat16))

    def forward(self, images):
        scale = 1.0
        if self.late is None:
            self.late, self.sized = torch.zeros(()), torch.zeros(images.shape[1], dtype=torch.bfloat16)
        if self.training:
            self.late.add_(0.1)
            self.sized.add_(0.1)
            self.mean.mul_(0.9).add_(images.detach().mean() + 1, alpha=0.1)
            scale = random.choice((0.5, 1.0)) * np.random.choice((0.5, 1.0))
        return scale * (1 + self.late) * self.last(self.norm(images * self.constant[0] - self.mean).mean(dim=(2, 3)))


class Noted(Net):
    def get_extra_state(self):
        return {"mean": 0}
"""
DEFERRED = """\
import mxnet as mx
from mxnet.gluon import nn


def net(classes):
    net = nn.HybridSequential()
    net.add(nn.Flatten(), nn.Dense(classes))
    net.initialize(mx.init.Constant(0.25))
    return net


def slower(classes):
    block = net(classes)
    block[1].weight.lr_mult = 0.5
    return block


class Scores(nn.HybridBlock):
    def __init__(self, classes):
        super().__init__()
        self.classes, self.dense, self.listed = classes, nn.Dense(classes), []

    def hybrid_forward(self, F, images, **parameters):
        return self.dense(images)


class Unused(Scores):
    def __init__(self, classes):
        super().__init__(classes)
        self.extra = nn.Dense(3, in_units=2)


class Listed(Scores):
    def __init__(self, classes):
        super().__init__(classes)
        self.listed.append(self.params.get("scale", shape=(1,)))


class Layers(Scores):
    def __init__(self, classes):
        super().__init__(classes)
        self.listed.append(nn.Dense(classes))

    def hybrid_forward(self, F, images):
        return self.listed[0](images)


class Vector(Scores):
    def __init__(self, classes):
        super().__init__(classes)
        self.scale = self.params.get("scale", shape=(1,))

    def hybrid_forward(self, F, images, scale):
        return F.broadcast_mul(self.dense(images), scale)


class Late(Scores):
    def hybrid_forward(self, F, images):
        self.last = nn.Dense(self.classes)
        return self.last(images)


class Double(Scores):
    def __init__(self, classes):
        super().__init__(classes)
        self.cast("float64")


class Asking(Scores):
    def hybrid_forward(self, F, images):
        return self.dense(images) * (0 if mx.autograd.is_training() else 1)


class Norm(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        for name, first, trained in (("g", 1, 1), ("b", 0, 1), ("moving_mean", 0, 0), ("moving_var", 1, 0)):
            init, grad_req = mx.init.Constant(first), "write" if trained else "null"
            setattr(self, name, self.params.get(name, shape=(3,), init=init, grad_req=grad_req))

    def hybrid_forward(self, F, images, g, b, moving_mean, moving_var):
        return F.BatchNorm(images, g, b, moving_mean, moving_var, fix_gamma=False)


def renamed(classes):
    net = nn.HybridSequential()
    net.add(Norm(), nn.Dense(classes))
    return net


def reused(classes):
    convolution, net = nn.Conv2D(3, 1, in_channels=3), nn.HybridSequential()
    net.add(convolution, nn.MaxPool2D(), convolution, nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes))
    return net
"""


@pytest.mark.slow
def test_a_gluon_block_that_is_used_twice_counts_at_each_size(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(DEFERRED)
    run = own("mxnet", tmp_path, model="net.py:reused").run
    side, classes = run.data.crop, run.data.classes
    small = (side // 2) ** 2
    assert run.cost is not None
    assert run.cost.forward_multiply_adds == 9 * (side**2 + small) + 3 * classes
    assert run.cost.activations == 3 * (side**2 + 2 * small + 1) + classes


@needs_torch
@pytest.mark.slow
def test_a_torch_model_may_be_lazy_use_view_and_have_infinite_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(USUAL)
    item = own("pytorch", tmp_path, model="net.py:Net")
    assert (item.skip, item.run.layout) == ("", "NCHW")
    monkeypatch.chdir(tmp_path)
    record = executed(tmp_path / "results", framework="pytorch", model="net.py:Net", **CIFAR)
    assert record.outcome == COMPLETED, record.reason


@pytest.mark.slow
def test_a_gluon_block_keeps_the_initializer_of_layers_whose_shapes_are_not_known_yet(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(DEFERRED)
    run = own("mxnet", tmp_path, model="net.py:net").run
    weights = [values for name, values in parameters(frameworks.open_session(run)).items() if "weight" in name]
    assert [np.unique(values).tolist() for values in weights] == [[0.25]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("slower", "lr_mult"),
        ("Listed", "scale .*not be saved"),
        ("Layers", "dense.*_bias .*list"),
        ("Vector", "scale .*initializer"),
        ("Late", "first pass"),
        ("Double", "float64"),
    ],
)
def test_what_training_would_ignore_or_lose_of_a_gluon_block_is_refused(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(DEFERRED)
    with pytest.raises(UserError, match=words):
        own("mxnet", tmp_path, model=f"net.py:{name}")


@pytest.mark.slow
def test_batch_statistics_of_any_name_are_averaged_over_devices_real_or_emulated(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(DEFERRED)
    for fields in ({}, {"accumulate": 2}):
        run = own("mxnet", tmp_path, model="net.py:renamed", devices=2, **fields).run
        real, emulated = (dataclasses.replace(run, emulated=flag) for flag in (False, True))
        assert distance(*(trained(frameworks.open_session(each), each) for each in (real, emulated))) < 1e-5


@pytest.mark.slow
def test_a_gluon_block_trains_as_it_asks_for_when_it_is_traced(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(DEFERRED)
    run = own("mxnet", tmp_path, model="net.py:Asking").run
    session = frameworks.open_session(run)
    for batch in batches(run, steps=2):
        session.step(batch, 0.1)
    assert session.drain() == pytest.approx(math.log(run.data.classes), rel=1e-5)  # of equal scores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "code"), [("mxnet", DEFERRED), pytest.param("pytorch", USUAL, marks=needs_torch)]
)
def test_a_parameter_that_the_scores_do_not_depend_on_is_refused(framework: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(code)
    with pytest.raises(UserError, match=r"do not depend on .*(extra|dense)"):
        own(framework, tmp_path, model="net.py:Unused")


@needs_torch
@pytest.mark.slow
def test_a_framework_that_cannot_train_it_is_skipped_with_the_reason(folder: Path) -> None:
    for framework, model in MODEL.items():
        (other,) = {*MODEL} - {framework}
        assert f"model={model}: it " in own(other, folder, model=model).skip
    assert frameworks.load("pytorch").LABEL in own("pytorch", folder, model="gluoncv:cifar_resnet20_v1").skip
    assert own("reference", folder, model=MODEL["mxnet"]).skip.endswith("NumPy trains registered models only")


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def net(classes:\n    pass\n", ("SyntaxError", "mine.py, line 1")),
        ("import torch\n\n\ndef net(classes):\n    return torch.nn.Liner(3, 1)\n", ("Liner", "(mine.py, line 5)")),
        ("def nett(classes):\n    return None\n", ("'net'", "did you mean 'nett'")),
        ("def net(classes):\n    return classes\n", ("MXNet: ", "returns int", "PyTorch: ")),
        ("import no_such_module\n", ("no_such_module", "(mine.py, line 1)")),
        ("from torch import nn\n\n\ndef net(classes):\n    return nn.Flatten()\n", ("(2, 3072)", "(2, 10)")),
        (PAIR_IN_EVALUATION, ("returns tuple", "in evaluation")),
        (LATE, ("last.weight", "first pass")),
        (f"{STATEFUL}\n\nnet = Noted", ("_extra_state", "checkpoint")),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(code: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code)
    with refused(f"^model: .*{'.*'.join(map(re.escape, words))}"):
        plans("mine.py:net", tmp_path)


@pytest.mark.parametrize("model", ["nets/one.py:net", "nets.one:net"])
def test_an_error_during_training_names_a_line_beside_the_model_s_file(model: str, tmp_path: Path) -> None:
    file = tmp_path / "nets" / "one.py"
    file.parent.mkdir()
    file.write_text("def net(classes):\n    return 1 / 0\n")
    run = own_run(model=model, model_folder=str(tmp_path), model_hash=own_models.source_hash(model, tmp_path))
    with pytest.raises(ZeroDivisionError) as caught:
        own_models.make(run, {}, object, "an object")
    assert own_models.last_line(caught.value, run) == " (one.py, line 2)"
    assert own_models.last_line(caught.value, run_of()) == ""
    file.unlink()
    assert own_models.last_line(caught.value, run) == ""


@needs_torch
@pytest.mark.slow
def test_batch_norms_that_emulated_devices_train_differently_are_refused(folder: Path) -> None:
    code = TORCH.replace("nn.Dropout(DROPOUT)", "nn.BatchNorm1d(16, momentum=None)")
    (folder / "pytorch_net.py").write_text(code)
    assert not own("pytorch", folder).skip
    with refused("batch norm without momentum"):
        own("pytorch", folder, devices=2, emulated=True)


@pytest.mark.usefixtures("own_processes")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os._exit(3)", "exit code 3"),
        ("os._exit(0)", "exit code 0"),
        ("sys.exit()", r"SystemExit.*\(mine.py, line 5\)"),
    ],
)
def test_a_model_that_ends_its_process_is_a_mistake_too(end: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"import os, sys\n\n\ndef net(classes):\n    {end}\n")
    with pytest.raises(UserError, match=f"^model: .*{words}"):
        plans("mine.py:net", tmp_path, framework="mxnet")


@both
def test_two_devices_equal_one_and_frozen_weights_stay(framework: str, folder: Path, tmp_path: Path) -> None:
    two = own(framework, folder, devices=2, batch_per_device=8).run
    test_frameworks.test_devices_train_as_emulated_ones_or_without_synchronisation_each_for_itself(two, tmp_path)
    one = own(framework, folder).run
    alone = trained(frameworks.open_session(one), one)
    changed = {
        name for name in alone if name.startswith("parameter/") and (alone[name] != alone[f"start/{name}"]).any()
    }
    assert len(changed) == 5
    assert len(parameters(frameworks.open_session(one))) == 6


@needs_torch
@pytest.mark.slow
def test_a_model_with_states_of_every_kind_resumes_to_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(STATEFUL)
    run = own("pytorch", tmp_path, model="net.py:Net").run
    test_frameworks.test_a_session_resumes_to_the_same_bits_from_the_state_of_another(run)


@pytest.mark.slow
def test_a_run_in_its_own_process_trains_and_evaluates(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    record = executed(tmp_path / "results", framework="mxnet", model=MODEL["mxnet"], epochs=2)
    assert (record.outcome, len(record.evaluations)) == (COMPLETED, 2), record.reason
    assert (record.parameters, record.speeds["multiply_adds"]) == (PARAMETERS, MULTIPLY_ADDS)


ZOO_MODELS = {
    "gluoncv:mobilenetv2_1.0": ("mobilenet_v2", 0.301),
    "torchvision:googlenet": ("googlenet", 1.498),
    "torchvision:swin_t": ("swin_t", 4.491),
    "torchvision:vit_b_32": ("vit_b_32", 4.409),
    "timm:mobilenetv2_100": ("mobilenet_v2", 0.301),
}
"""The same architecture in torchvision, and 10^9 multiply-adds at 224 pixels that torchvision's pages print for it."""


def skip_without(model: str) -> None:
    """Skip the test if the zoo of this model is not installed."""
    for package in {"torchvision": ["torch"], "timm": ["torch", "timm"]}.get(model.split(":")[0], []):
        pytest.importorskip(package)


@pytest.mark.slow
@pytest.mark.parametrize("model", ZOO_MODELS)
def test_models_of_zoos_have_the_published_cost_and_train_a_step(model: str) -> None:
    skip_without(model)
    data = Synthetic(size=224, crop=224, classes=1000, train=4, validation=2)
    (item,) = plans(model, Path(), data=data, batch_per_device=2, lr=0.001)
    assert not item.skip
    assert item.run.cost is not None
    published, billions = ZOO_MODELS[model]
    assert item.run.cost.forward_multiply_adds / 1e9 == pytest.approx(billions, rel=0.01, abs=0.0006), published
    if model == "torchvision:vit_b_32":
        return  # its step would take 2.3 GiB of memory, more than any other test, so it is counted only
    session = frameworks.open_session(item.run)
    session.step(next(batches(item.run)), 0.001)
    assert np.isfinite(session.drain())
    assert session.parameters == item.run.cost.parameters


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gluoncv:hrnet_w18_small_v1_c", "gluoncv:darknet53"])
def test_a_classifier_of_gluoncv_has_the_classes_of_the_run(model: str) -> None:
    (item,) = plans(model, Path(), data=Synthetic(size=32, crop=32, classes=3), batch_per_device=2)
    assert item.skip == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "nearest"),
    [
        ("gluoncv:resnet50_v1x", "resnet50_v1"),
        ("gluoncv:resnet50_v1b_gn", "resnet50_v1b"),
        ("torchvision:resnet_50", "resnet50"),
        ("timm:resnet5O", "resnet50"),
    ],
)
def test_a_typo_in_a_zoo_s_name_gets_the_nearest_name(model: str, nearest: str) -> None:
    skip_without(model)
    with pytest.raises(UserError, match=f"did you mean '{nearest}"):
        plans(model, Path())


@of_torch
def test_without_timm_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"timm is not installed: .* -r .*requirements/timm\.txt"):
        plans("timm:resnet18", Path())
