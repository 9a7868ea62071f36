"""What a recipe may say, and what it comes to on a given machine."""

from __future__ import annotations

import dataclasses
import itertools
import json
import operator
import re
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from poc import (
    CIFAR10,
    SGD,
    SSP,
    DistSync,
    Fixed,
    Horovod,
    Linear,
    Muon,
    Nesterov,
    Recipe,
    Steps,
    Synthetic,
    config,
    frameworks,
)
from poc.__main__ import main
from poc.config.run import Run
from poc.host import hardware
from poc.host.hardware import GPU, Hardware
from poc.plan import Planned, plan, select
from poc.values import UserError
from tests import fake_gpus, simulated
from tests.launch import HOME, supported
from tests.test_host import use

RECIPES = sorted((HOME / "recipes").rglob("*.py"))
CPU = Hardware(cpu="Test CPU", cores=2, memory_bytes=2**34, cpu_flops=2e11)


def gpus(count: int, name: str = "Tesla P100", capability: tuple[int, int] = (6, 0)) -> Hardware:
    cards = tuple(GPU(index=i, name=name, capability=capability, memory_bytes=2**34) for i in range(count))
    return Hardware(cpu="Test CPU", cores=16, memory_bytes=2**36, cpu_flops=1e12, gpus=cards, driver="535.161")


@pytest.fixture(autouse=True)
def with_what_gpus_want(monkeypatch: pytest.MonkeyPatch) -> None:
    """As make_environment.sh would have installed it on those machines, beside what is here."""
    here = frameworks.versions
    monkeypatch.setattr(frameworks, "versions", lambda name: {**here(name), "mxnet-cu112": "1.9.1"})


WITH_BFLOAT16 = dataclasses.replace(CPU, bfloat16=True)


def planned(machine: Hardware = CPU, *, quick: bool = False, **fields: Any) -> list[Planned]:
    return plan("test", Recipe(**{"model": "cifar_resnet8_v2", **fields}), machine, quick=quick)


TWO = {"devices": 2, "workers": 2, "kvstore": "dist_sync"}
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"model": "cifar_resnet51_v2"}, r"model: 'cifar_resnet51_v2' .*did you mean 'cifar_resnet5"),
    ({"epoch": 3}, r"Recipe: no field 'epoch'; did you mean 'epochs'\?"),
    ({"batch_per_device": 0}, r"batch_per_device: 0 is not allowed"),
    ({"batch_per_device": [64, 12.5]}, r"batch_per_device: 12.5"),
    ({"batch_per_device": True}, r"batch_per_device: True"),
    ({"batch_per_device": 50_001}, r"larger than the 50000 training images"),
    ({"lr": -0.1}, r"lr: -0.1 is not allowed; .* above zero"),
    ({"lr": float("nan")}, r"lr: nan"),
    ({"lr": float("inf")}, r"lr: inf is not allowed; .* 1e\+12"),
    ({"lr": "0.1"}, r"lr: '0.1'"),
    ({"devices": 0}, r"devices: 0 is not allowed; .*kind=\"cpu\""),
    ({"devices": []}, r"devices: \[\] is not allowed"),
    ({"cases": [{"lr": []}, {"lr": 0.1}]}, r"lr: \[\] is not allowed"),
    ({"batch_per_device": "Largest"}, r"batch_per_device: 'Largest' .*'largest'"),
    ({"epochs": 0}, r"epochs: 0"),
    ({"steps": 0}, r"steps: 0"),
    ({"kvstore": "devise"}, r"kvstore: 'devise' is not allowed; did you mean 'device'\?"),
    ({"emulated": 1}, r"emulated: 1 is not allowed; .* True or False"),
    ({"data": "cifar10"}, r"data: 'cifar10' is not allowed; .* CIFAR10"),
    ({"cases": [{"device": 3}]}, r"cases: no field 'device'; did you mean 'devices'"),
    ({"cases": [3]}, r"cases: 3 is not allowed; .* dict"),
    ({"quick": {"cases": [{"device": 3}]}}, r"quick: cases: no field 'device'; did you mean 'devices'"),
    ({"quick": {"quick": {}}}, r"quick: no field 'quick'"),
    ({"devices": 3, "workers": 2, "kvstore": "dist_sync"}, r"workers=2 .*devices=3"),
    ({"devices": 2, "workers": 2}, r"kvstore='device' .*workers=2"),
    ({"devices": 2, "kvstore": "dist_sync"}, r"kvstore='dist_sync' .*workers"),
    ({"devices": 2, "workers": 2, "kvstore": "nccl"}, r"kvstore='nccl' .*workers=2"),
    ({**TWO, "kvstore": "ssp"}, r"kvstore: 'ssp' is not allowed"),
    ({"straggler": 0.3}, r"straggler=0.3 .*workers"),
    ({**TWO, "straggler": -1}, r"straggler: -1"),
    ({"target_accuracy": 1.0}, r"target_accuracy: 1.0 .* from 0 to below 1"),
    ({"target_accuracy": 0.9, "evaluate": False}, r"target_accuracy=0.9 .*evaluate"),
    ({**TWO, "target_accuracy": 0.9}, r"target_accuracy=0.9 .*worker"),
    ({"epochs": 3, "steps": 10}, r"epochs=3 and steps=10"),
    ({"cases": [{"epochs": 3}], "steps": 10}, r"epochs=3 and steps=10"),
    ({"kind": "tpu"}, r"kind: 'tpu' is not allowed"),
    ({"workers": "per_device"}, r"workers: 'per_device' is not allowed"),
    ({"restarts": -1}, r"restarts: -1"),
    ({"warmup_epochs": 1}, r"Recipe: no field 'warmup_epochs'"),
    ({"optimizer": "nestorov"}, r"optimizer: 'nestorov' is not allowed; did you mean 'nesterov'"),
    ({"label_smoothing": 1.0}, r"label_smoothing: 1.0 is not allowed"),
    ({"zero_init_gamma": 1}, r"zero_init_gamma: 1 is not allowed; .* True or False"),
    ({"model": "vgg16"}, r"data: crop: 28 is not allowed with vgg16; .* 224 pixels"),
    ({"model": "cifar_airbench94", "data": CIFAR10(crop=15)}, r"data: crop: 15 .* 16 to 32 pixels"),
    ({"data": [CIFAR10(), 3]}, r"data: 3 is not allowed; .* CIFAR10"),
    ({"dtype": "bfloat"}, r"dtype: 'bfloat' is not allowed; did you mean 'bfloat16'"),
    ({"layout": "NWHC"}, r"layout: 'NWHC' is not allowed; did you mean 'N"),
    ({"seconds": 0}, r"seconds: 0 is not allowed"),
    ({**TWO, "seconds": 5}, r"seconds=5 .*worker"),
    ({"cores_per_worker": "socket"}, r"cores_per_worker: 'socket' is not allowed"),
    ({"cores_per_worker": 0}, r"cores_per_worker: 0"),
    *(({"seeds": seeds}, r"seeds: ") for seeds in (0, True, "3", 1.5, [], [1, 1], [0, -1], [0.5], [[1, 2]])),
    ({"cases": [{"seeds": [2, 2]}]}, r"seeds: \[2, 2\]"),
    ({"lr": np.array([[0.1, 0.2]] * 99)}, r"lr: array\(\[0.1, 0.2\]\)"),
    ({"data": [np.zeros((99, 99))]}, r"data: array\(\[\[0"),
    *(({name: np.zeros((2, 2))}, rf"{name}: array") for name in ("devices", "epochs", "kvstore", "kind", "priority")),
    ({"batch_per_device": np.float64(12.5)}, r"batch_per_device: 12.5"),
    ({"batch_per_device": itertools.count()}, r" 10,000"),
]


@pytest.mark.parametrize(("fields", "message"), MISTAKES)
def test_a_mistake_is_one_line_that_names_field_and_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Recipe(**{"model": "cifar_resnet8_v2", **fields})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SSP(-1), r"kvstore: SSP.staleness: -1"),
        (lambda: SSP(2, servers=0), r"kvstore: SSP.servers: 0"),
        (lambda: DistSync(two_bit=0), r"kvstore: DistSync.two_bit: 0 "),
        (lambda: DistSync(gradient_bits=8), r"kvstore: DistSync.gradient_bits: 8 is not allowed; valid: 16, 32"),
        (lambda: DistSync(two_bit=0.5, gradient_bits=16), r"gradient_bits: 16 is not allowed; .*two_bit"),
        (lambda: Horovod(servers=2), r"Horovod: no field 'servers'"),
        (lambda: SGD(momentum=1.0), r"optimizer: SGD.momentum: 1.0 is not allowed"),
        (lambda: Nesterov(momentum_correction=True), r"Nesterov: no field 'momentum_correction'"),
        (lambda: Muon(), r"Muon: field 'lr' is missing"),
        (lambda: Linear(base=0.1, per=128, warmup_from=0.1), r"warmup_from: 0.1 is not allowed; .*warmup_epochs"),
        (lambda: Synthetic(fixed=True, mirror=True), r"Synthetic.fixed=True .*mirror"),
        (lambda: Linear(0.1, 128), "Linear: .* got 0.1"),  # type: ignore[misc]
        (lambda: SSP(2, staleness=3), "SSP: .* got 2"),  # type: ignore[misc]
        (lambda: Recipe(), "'model' is missing"),  # type: ignore[call-arg]
        (lambda: CIFAR10(crop=33), "crop: 33 is larger than the images"),
        (lambda: CIFAR10(cutout=29), "cutout: 29 is larger than the crop; .* 28"),
        (lambda: CIFAR10(on_device=True, jitter=False, cutout=4), "on_device=True .*cutout"),
        (lambda: Linear(base=0, per=128), "above zero"),
        (lambda: Linear(base=0.1, per=0), "above zero"),
        (lambda: Fixed(base=0.1, decay="cosin"), "did you mean 'cosine'"),
        (lambda: Fixed(base=0.1, warmup_epochs=-1), "warmup_epochs: -1"),
        (lambda: Fixed(base=0.1, warmup_from="bases"), "warmup_from: 'bases'"),  # type: ignore[arg-type]
        *((lambda at=at: Steps(at=at), r"Steps\.at") for at in ([], [1.5], [0], "0.5")),
    ],
)
def test_what_a_value_may_not_hold_is_refused_where_it_is_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
    assert SSP(2) == SSP(staleness=2)  # the only field that has to be given may go without its name


@pytest.mark.parametrize("fields", [{"kvstore": "local"}, {"emulated": True}, {"gradient_noise": 5}], ids=str)
def test_a_field_that_says_nothing_of_any_run_is_refused(fields: dict[str, Any]) -> None:
    recipe = Recipe(model="cifar_resnet8_v2", **fields)
    with pytest.raises(UserError, match=f"{next(iter(fields))}={next(iter(fields.values()))} .*devices"):
        recipe.check_effects()
    Recipe(model="cifar_resnet8_v2", **{**fields, "devices": [1, 2]}).check_effects()


@pytest.mark.parametrize(
    ("machine", "fields", "names", "rows"),
    [
        (
            gpus(8),
            {"devices": [1, 2], "batch_per_device": [64, 128], "lr": [0.1, 0.2]},
            "devices batch_per_device learning_rate",
            [(devices, batch, lr) for devices in (1, 2) for batch in (64, 128) for lr in (0.1, 0.2)],
        ),
        (
            gpus(8),
            {"devices": 4, "batch_per_device": 128, "lr": Linear(base=0.05, per=128, warmup_epochs=5), "epochs": 12},
            "global_batch learning_rate steps_per_epoch steps warmup_steps kind emulated",
            [(512, 0.2, 97, 12 * 97, 5 * 97, "gpu", False)],
        ),
        (CPU, {"steps": 500, "batch_per_device": 128}, "steps epochs", [(500, 2)]),
        (
            CPU,
            {"epochs": 3, "cases": [{"lr": [0.1, 0.2]}, {"epochs": 5}]},
            "learning_rate epochs",
            [(0.1, 3), (0.2, 3), (0.05, 5)],
        ),
        (
            gpus(4),
            {"devices": [1, 2, 4], "workers": "per-device", "kvstore": "dist_sync"},
            "workers kvstore.name",
            [(1, "device"), (2, "dist_sync"), (4, "dist_sync")],
        ),
        (CPU, {"seeds": 3}, "seed", [0, 1, 2]),
        (CPU, {"seeds": [42, 1337]}, "seed", [42, 1337]),
        (CPU, {"seeds": [0]}, "seed", [0]),
        (CPU, {"seeds": range(1, 4)}, "seed", [1, 2, 3]),
        (CPU, {"seeds": 1, "cases": [{"seeds": [7, 5]}, {"lr": 0.2, "seeds": 2}]}, "seed", [7, 0, 1, 5]),
        (CPU, {"kind": "cpu", "devices": 4, "emulated": True}, "kind emulated devices", [("cpu", True, 4)]),
        (gpus(1), {"devices": 4, "emulated": True}, "kind emulated devices", [("gpu", True, 4)]),
        (gpus(4), {"devices": 4, "emulated": True}, "kind emulated devices", [("gpu", False, 4)]),
        (
            CPU,
            {"data": Synthetic(size=16, crop=16, train=640, validation=100, classes=4), "batch_per_device": 64},
            "steps_per_epoch data.input_shape data.classes",
            [(10, (3, 16, 16), 4)],
        ),
    ],
)
def test_what_a_recipe_comes_to(machine: Hardware, fields: dict[str, Any], names: str, rows: list[Any]) -> None:
    runs = [one.run for one in planned(machine, **fields)]
    assert list(map(operator.attrgetter(*names.split()), runs)) == rows
    assert len({run.id for run in runs}) == len(runs)


def test_seeds_of_a_first_look_are_just_these() -> None:
    cut = Recipe(model="cifar_resnet8_v2", kind="cpu", seeds=3, cases=[{"lr": [0.1, 0.2]}], quick={"seeds": [9]})
    runs = plan("", cut, CPU, quick=True)
    assert [(one.run.seed, one.run.learning_rate) for one in runs] == [(9, 0.1), (9, 0.2)]


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"batch_per_device": list(2 ** np.arange(5, 8))}, {"batch_per_device": [32, 64, 128]}),
        ({"batch_per_device": 2 ** np.arange(5, 8)}, {"batch_per_device": [32, 64, 128]}),
        ({"batch_per_device": (2**power for power in range(5, 8))}, {"batch_per_device": [32, 64, 128]}),
        ({"batch_per_device": range(32, 97, 32)}, {"batch_per_device": (32, 64, 96)}),
        ({"epochs": np.int64(3), "evaluate": np.bool_(False)}, {"epochs": 3, "evaluate": False}),
        ({"lr": np.array([0.1, 0.2], dtype=np.float32)}, {"lr": [0.1, 0.2]}),
        ({"lr": [Fraction(1, 20), Decimal("0.1")]}, {"lr": [0.05, 0.1]}),
        ({"cases": ({"lr": np.float32(lr)} for lr in (0.1, 0.3))}, {"cases": [{"lr": 0.1}, {"lr": 0.3}]}),
        (
            {"seeds": np.array([3, 5]), "model": np.str_("cifar_resnet20_v2")},
            {"seeds": [3, 5], "model": "cifar_resnet20_v2"},
        ),
        (
            {"lr": Linear(base=np.float32(0.1), per=np.int32(128), decay=Steps(at=np.array([0.5, 0.75])))},
            {"lr": Linear(base=0.1, per=128, decay=Steps(at=[0.5, 0.75]))},
        ),
        (
            {"optimizer": SGD(momentum=np.float16(0.8)), "data": CIFAR10(crop=np.int8(24))},
            {"optimizer": SGD(momentum=0.8), "data": CIFAR10(crop=24)},
        ),
        ({"quick": {"batch_per_device": np.array([8, 16])}}, {"quick": {"batch_per_device": [8, 16]}}),
    ],
)
def test_numbers_and_lists_of_numpy_and_of_the_library_are_those_of_python(
    given: dict[str, Any], plain: dict[str, Any]
) -> None:
    made, same = (Recipe(**{"model": "cifar_resnet8_v2", "kind": "cpu", **fields}) for fields in (given, plain))
    for quick in (False, True, False):  # what can be read once, such as a generator, is planned more than once
        runs = [[one.run for one in plan("", each, CPU, quick=quick)] for each in (made, same)]
        assert runs[0] == runs[1]
        assert [run.id for run in runs[0]] == [run.id for run in runs[1]]
        json.dumps([run.to_json() for run in runs[0]])


def test_runs_that_differ_in_a_field_alone_share_the_key_without_it() -> None:
    sgd, muon = (one.run for one in planned(optimizer=[SGD(), Muon(lr=0.1, momentum=0.5)]))
    assert sgd.key() != muon.key()
    assert sgd.key("optimizer") == muon.key("optimizer")
    slow, fast = (one.run for one in planned(lr=[0.1, 0.2], optimizer=SGD()))
    assert slow.key("learning_rate") == fast.key("learning_rate") != slow.key("optimizer")


def test_by_which_rule_a_rate_was_worked_out_does_not_count_in_the_id() -> None:
    fields: dict[str, Any] = {"kind": "cpu", "batch_per_device": 512}
    (number,), (rule,), (other,) = (planned(**fields, lr=lr) for lr in (0.2, Linear(base=0.05, per=128), 0.1))
    assert number.run.id == rule.run.id != other.run.id
    assert number.run.lr_rule != rule.run.lr_rule
    assert Run.from_json(rule.run.to_json()) == rule.run
    # As it was recorded when the rule counted.
    assert json.loads(rule.run.key())["lr_rule"] == "fixed"


def test_records_keep_the_names_that_ids_are_made_of() -> None:
    fields: dict[str, Any] = {"kind": "cpu", "framework": "mxnet", "devices": 2, "zero_init_gamma": True}
    for kvstore, name in (("none", "independent"), (SSP(2), "stale")):
        (one,) = planned(**fields, kvstore=kvstore, optimizer=Muon(lr=0.1), workers=2)
        plain = one.run.to_json()
        assert (plain["engine"], plain["exchange"], plain["virtual"]) == ("gluon", name, False)
        assert (plain["total_batch"], plain["zero_gamma"], plain["muon_rate"]) == (one.run.global_batch, True, 0.1)
        assert Run.from_json(plain) == one.run


def test_the_cpu_plays_no_gpus() -> None:
    missing, played = planned(CPU, kind=["gpu", "cpu"], devices=4, emulated=True)
    assert missing.skip == "needs 4 GPUs, this machine has none"
    assert (played.skip, played.run.kind, played.run.emulated) == ("", "cpu", True)


def test_repeats_are_rounds_over_the_grid_every_other_one_backwards() -> None:
    cases = [dict(lr=0.1), dict(lr=0.2, repeats=3), dict(lr=0.3, repeats=2), dict(devices=4, repeats=3)]
    items = planned(gpus(1), cases=cases, seeds=1, repeats=1)
    rounds = [(item.run.learning_rate, item.repeat) for item in items if not item.skip]
    assert rounds == [(0.1, 1), (0.2, 1), (0.3, 1), (0.3, 2), (0.2, 2), (0.2, 3)]
    assert len({item.run.id for item in items}) == 4
    assert [item.skip for item in items if item.skip] == ["needs 4 GPUs, this machine has 1"]
    assert [item.repeat for item in planned(gpus(1), cases=cases, quick=True)] == [1] * 4
    several = planned(kind="cpu", lr=[0.1, 0.2], seeds=2, repeats=2)
    seeds = [(item.repeat, item.run.seed, item.run.learning_rate) for item in several]
    assert seeds[:4] == [(1, 0, 0.1), (1, 0, 0.2), (1, 1, 0.2), (1, 1, 0.1)]
    assert len(set(seeds)) == 8
    with pytest.raises(UserError, match="repeats: 0 is not allowed"):
        planned(repeats=0)


@pytest.mark.parametrize(
    ("machine", "fields", "skip"),
    [
        (CPU, {"kind": "cpu"}, ""),
        (CPU, {"devices": 1}, "needs 1 GPU, this machine has none"),
        (CPU, {"devices": 4}, "needs 4 GPUs, this machine has none"),
        (gpus(2), {"devices": 4}, "needs 4 GPUs, this machine has 2"),
        (gpus(2), {"devices": 2}, ""),
        (gpus(1, "Tesla K80", (3, 7)), {"devices": 1}, "mxnet-cu102 1.9.1 needs libcudart.so.10.2"),
        (gpus(1, "H100", (9, 0)), {"devices": 1}, "H100 has compute capability 9.0"),
        (gpus(1, "RTX 4090", (8, 9)), {"devices": 1}, ""),
        (CPU, {"devices": 4, "kind": "cpu"}, ""),
        (CPU, {"devices": 4, "kind": "cpu", "kvstore": "nccl"}, "kvstore=nccl "),
        (gpus(4), {"devices": 4, "kvstore": "nccl"}, ""),
        (
            CPU,
            {"devices": 4, "kind": "cpu", "workers": 4, "cores_per_worker": 1, "kvstore": "dist_sync"},
            "needs 4 cores, this machine has 2",
        ),
        (WITH_BFLOAT16, {"kind": "cpu", "dtype": "bfloat16"}, ""),
        (CPU, {"kind": "cpu", "dtype": "bfloat16"}, "needs a CPU with AVX-512 bf16"),
        (gpus(1), {"devices": 1, "dtype": "bfloat16"}, "dtype=bfloat16 needs a CPU"),
        (CPU, {"kind": "cpu", "dtype": "float16"}, "dtype=float16 needs a GPU"),
        (gpus(1), {"devices": 1, "dtype": "float16"}, ""),
        (gpus(1), {"devices": 1, "layout": "NHWC"}, "layout=NHWC is not supported by MXNet"),
        (CPU, {"kind": "cpu", "batch_per_device": 32768}, "GiB of memory, this machine has 16"),
        (dataclasses.replace(CPU, hosts=2), {"kind": "cpu", "batch_per_device": 32768}, "GiB of memory, this machine"),
        (gpus(1), {"devices": 1, "batch_per_device": 32768}, ""),
    ],
)
def test_what_this_machine_cannot_do_is_skipped_with_the_reason(
    machine: Hardware, fields: dict[str, Any], skip: str
) -> None:
    (one,) = planned(machine, model="cifar_resnet50_v2", framework="mxnet", **fields)
    assert skip in one.skip
    assert bool(skip) == bool(one.skip)


def test_an_automatic_precision_is_the_short_one_where_it_can_be_had_and_makes_the_same_run() -> None:
    for machine, kind, dtype in (
        (WITH_BFLOAT16, "cpu", "bfloat16"),
        (CPU, "cpu", "float32"),
        (gpus(1), "gpu", "float32"),
    ):
        (one,) = planned(machine, kind=kind, dtype="auto")
        (named,) = planned(machine, kind=kind, dtype=dtype)
        assert (one.run, one.skip) == (named.run, "")


@pytest.mark.parametrize("installed", [True, False])
def test_horovod_is_an_extra(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if installed else None)
    (one,) = planned(devices=2, workers=2, kind="cpu", kvstore="horovod")
    assert one.skip == ("" if installed else "Horovod is not installed: ./make_environment.sh --horovod")


@pytest.mark.parametrize(
    ("nodes", "workers", "cores"),
    [((8, 8), 2, 8), ((8, 8), 4, 4), ((8, 6), 2, 6), ((8, 8), 3, 4), ((16,), 2, 8), ((8, 8), 1, 8), ((), 2, 8)],
)
def test_a_worker_may_have_a_numa_node_or_its_share_of_one(nodes: tuple[int, ...], workers: int, cores: int) -> None:
    machine = Hardware(cpu="Test CPU", cores=16, memory_bytes=2**34, cpu_flops=2e11, numa_nodes=nodes)
    exchange = "dist_sync" if workers > 1 else "device"
    (one,) = planned(machine, devices=workers, workers=workers, kind="cpu", cores_per_worker="node", kvstore=exchange)
    assert (one.run.cores_per_worker, one.skip) == (cores, "")


@pytest.mark.parametrize(
    ("machine", "rate"),
    [("8 K80", 1100), ("8 P100", 2900), ("2 V100 and a display card", 4300), ("1 H100", 18_000), ("untold", 1100)],
)
def test_the_time_is_estimated_by_the_card(machine: str, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples/s of ResNet-50 on one card: as published for K80 and P100, and in proportion to cores and clock."""
    library = fake_gpus.library("8 K80" if machine == "untold" else machine)
    if machine == "untold":
        for card in library.cards:
            del card["nvmlDeviceGetNumGpuCores"]
    use(library, monkeypatch)
    cards = hardware.detect()
    most = min(2, len([card for card in cards.gpus if card.capability > (3, 5)]))
    for devices in {1, most}:
        fields = {"model": "cifar_resnet50_v2", "evaluate": False, "epochs": 12}
        (one,) = planned(cards, devices=devices, **fields)
        seconds = one.seconds - 6.0
        assert one.run.steps * one.run.global_batch / seconds == pytest.approx(rate * devices, rel=0.1)


def test_the_largest_batch_is_searched_for_among_those_that_may_fit() -> None:
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
    fields = {"devices": 4, "batch_per_device": "largest", "data": Synthetic(train=500), "lr": [0.1, 0.2], "seeds": 2}
    fields["target_accuracy"] = 0.9
    *items, again = planned(gpus(4), **fields, repeats=2)[:5]
    assert again.seconds < items[0].seconds  # what fits is known then
    assert len(items) == 4  # two rates, two seeds
    for item in items:
        assert [run.batch_per_device for _, run in item.search] == sizes
        assert item.run == item.search[-1][1]
        for probe, run in item.search:
            assert (probe.batch_per_device, probe.steps, probe.evaluate) == (run.batch_per_device, 4, False)
            assert probe.quick
            assert (probe.target_accuracy, run.target_accuracy) == (None, 0.9)
            assert probe.learning_rate != run.learning_rate
    assert len({probe.id for item in items for probe, _ in item.search}) == len(sizes)
    # What the estimate says cannot fit is not tried: on a CPU as in any plan, on a GPU beyond four times its memory.
    for machine, kind in ((CPU, "cpu"), (gpus(1), "gpu")):
        (item,) = planned(machine, kind=kind, batch_per_device="largest", model="cifar_resnet110_v2")
        assert "largest batch" in str(item)
        assert 500 < item.run.batch_per_device < 32768
    (item,) = planned(CPU, batch_per_device="largest", devices=1)
    assert (item.search, item.skip) == ((), "needs 1 GPU, this machine has none")


def test_a_first_look_has_no_target_to_reach() -> None:
    (one,) = planned(kind="cpu", target_accuracy=0.9, quick=True)
    assert (one.run.target_accuracy, one.run.evaluate) == (None, False)


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, "dist_sync"),
        ({"kvstore": SSP(2)}, "ssp, staleness 2"),
        ({"kvstore": SSP(None), "straggler": 0.3}, "ssp, unbounded staleness, last worker slowed by 30%"),
        ({"kvstore": DistSync(two_bit=0.25, servers=2)}, "dist_sync, 2-bit (threshold 0.25), 2 servers"),
        ({"kvstore": DistSync(gradient_bits=16)}, "dist_sync, 16-bit"),
    ],
)
def test_an_exchange_is_told_with_its_options(fields: dict[str, Any], label: str) -> None:
    (one,) = planned(**{**TWO, "kind": "cpu", **fields})
    assert one.run.kvstore_label == label
    assert Run.from_json(json.loads(json.dumps(one.run.to_json()))) == one.run


def test_one_replica_exchanges_nothing_whatever_the_recipe_says() -> None:
    (reference,) = planned(kind="cpu")
    for exchange in ("dist_sync", SSP(2), "none"):
        assert planned(kind="cpu", kvstore=exchange)[0].run.id == reference.run.id


def test_an_id_names_what_is_computed_and_nothing_else() -> None:
    (first,), (other_name,) = (plan(n, Recipe(model="cifar_resnet8_v2"), CPU) for n in ("one", "two"))
    assert first.run.id == other_name.run.id
    assert planned(lr=0.1)[0].run.id != first.run.id
    assert planned(restarts=2)[0].run.id == planned()[0].run.id
    assert Run.from_json(json.loads(json.dumps(first.run.to_json()))) == first.run
    # What earlier versions called a one-cycle was linear.
    assert Run.from_json({**first.run.to_json(), "decay": "one-cycle"}).decay == "linear"
    # Published in reference/: a change here would make every recorded run look new.
    (reference,) = plan(
        "", Recipe(model="cifar_resnet50_v2", kind="cpu", batch_per_device=128, lr=0.05, epochs=12), CPU
    )
    assert reference.run.id == "ee46ec34d6"


def test_a_field_of_several_types_is_read_on_the_oldest_python() -> None:
    script = (
        "from __future__ import annotations",
        "import sys, types, typing",
        "sys.modules['numpy'] = types.SimpleNamespace(floating=(), generic=())  # it need not be installed for this",
        f"sys.path.insert(0, {str(HOME / 'poc')!r})",
        "import values",
        "Left, Right = (values.value(type(name, (), {'__annotations__': {'number': 'int'}})) for name in 'LR')",
        "Either = typing.Union[Left, Right]",
        "@values.value",
        "class Holder:",
        "    held: Either",
        "assert values.from_plain(Holder, {'held': Right(1)}) == Holder(Right(1))",
    )
    subprocess.run([supported("3.9"), "-I", "-c", "\n".join(script)], check=True)


def test_runs_are_selected_by_the_start_of_their_id() -> None:
    runs = planned(lr=[0.1, 0.2])
    assert select(runs, [runs[1].run.id[:6]]) == [runs[1]]
    assert select(runs, None) == runs
    with pytest.raises(UserError, match="'zz'"):
        select(runs, ["zz"])


def recipe_in(folder: Path, text: str, **files: str) -> Path:
    """A recipe file with these lines in it, and `files` beside it by the names of their modules."""
    for name, lines in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(lines)
    path = folder / "mine.py"
    path.write_text(f"from poc import *\n{text}\n")
    return path


WARM = "Linear(base=0.05, per=128, warmup_epochs={}{})"
SCHEDULES = [
    # With a batch of 128 an epoch has 390 steps.
    ("epochs=2", WARM.format(10, ""), "warmup_epochs: 10"),
    ("epochs=2", WARM.format(2, ""), "warmup_epochs: 2"),
    ("epochs=2", WARM.format(1.99, ""), ""),
    ("steps=390", WARM.format(1, ""), "warmup_epochs: 1"),
    ("steps=391", WARM.format(1, ""), ""),
    ("epochs=12", WARM.format(12, ", decay='linear'"), "warmup_epochs: 12"),
    ("cases=[dict(epochs=2), dict(steps=12)]", WARM.format(1, ""), "warmup_epochs: 1"),
    ("epochs=2", WARM.format(1, ", warmup_from=5.0"), "warmup_from: 5.0"),
    ("epochs=2", WARM.format(1, ", warmup_from=0.05"), ""),
    ("epochs=2, batch_per_device=[128, 64]", WARM.format(1, ", warmup_from='base'"), "warmup_from: 'base'"),
    ("epochs=2", WARM.format(1, ", decay=Steps(at=[0.5])"), "Steps.at: 0.5"),
    ("epochs=2", WARM.format(1, ", decay=Steps(at=[0.9, 0.4])"), "Steps.at: 0.4"),
    ("epochs=2", WARM.format(1, ", decay=Steps(at=[0.51, 0.75])"), ""),
    ("steps=10", "Fixed(base=0.1, decay=Steps(at=[0.95]))", "Steps.at: 0.95"),
    ("steps=10", "Fixed(base=0.1, decay=Steps(at=[0.9]))", ""),
    ("steps=10", "Fixed(base=0.1, decay=Steps(at=[0.51, 0.52]))", "Steps.at: 0.52"),
]


@pytest.mark.parametrize(("length", "lr", "names"), SCHEDULES)
def test_a_schedule_with_a_rate_that_no_step_has_is_refused(length: str, lr: str, names: str, tmp_path: Path) -> None:
    path = recipe_in(tmp_path, f"recipe = Recipe(model='cifar_resnet8_v2', kind='cpu', {length}, lr={lr})")
    if names:
        with pytest.raises(UserError, match=f"mine.py: lr: .*{re.escape(names)}") as caught:
            config.load(path)
        assert "\n" not in str(caught.value)
    else:
        run = plan("", config.load(path), CPU)[0].run
        rates = [run.rate(step) for step in range(run.steps)]
        assert max(rates) == run.learning_rate == 0.05 or run.decay == "steps"
        falls = len(run.decay_at)
        assert {round(run.learning_rate * 0.1**fall, 12) for fall in range(falls + 1)} <= {round(r, 12) for r in rates}


def test_a_first_look_may_end_in_the_warm_up(tmp_path: Path) -> None:
    path = recipe_in(tmp_path, f"recipe = Recipe(model='cifar_resnet8_v2', kind='cpu', lr={WARM.format(5, '')})")
    (one,) = plan("", config.load(path), CPU, quick=True)
    assert one.run.quick
    assert one.run.steps < one.run.warmup_steps


def test_recipes_import_files_beside_them_and_each_its_own(tmp_path: Path) -> None:
    text = "from helper import LR\nfrom helpers.deep import STEPS\nimport random\nfrom csv import reader\n"
    text += "recipe = Recipe(model='cifar_resnet8_v2', kind='cpu', lr=LR, steps=STEPS)"
    path, modules = list(sys.path), set(sys.modules)
    for lr in (0.1, 0.2):
        folder = tmp_path / str(lr)
        files = {"helper": f"LR = {lr}", "helpers/__init__": "", "helpers/deep": "STEPS = 7", "csv": "1 / 0"}
        made = config.load(recipe_in(folder, text, random="1 / 0", **files))
        assert plan("", made, CPU)[0].run.learning_rate == lr
        assert sys.path == path
        assert set(sys.modules) - modules == set()


@pytest.mark.parametrize(
    "before", ["", "import pathlib, sys; sys.path.insert(0, str(pathlib.Path(__file__).parent))\n"]
)
def test_nothing_beside_a_recipe_takes_the_place_of_what_poc_imports_later(before: str, tmp_path: Path) -> None:
    """Even where the recipe itself puts its folder first."""
    late = ["csv", "matplotlib", "pandas", "random", "scipy", "six", "tabulate", "tqdm"]
    text = f"{before}import helper, six, tqdm\nrecipe = Recipe(model='cifar_resnet8_v2')"
    path = recipe_in(tmp_path, text, helper="", **dict.fromkeys(late, ""))
    script = f"from poc import config; from pathlib import Path; config.load(Path({str(path)!r}))\n"
    script += f"import {', '.join(late)}\nprint(*(module.__file__ for module in ({', '.join(late)})), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    files = done.stdout.splitlines()
    assert len(files) == len(late), done.stderr
    assert not [file for file in files if file.startswith(str(tmp_path))]


@pytest.mark.parametrize(
    ("helper", "says"),
    [
        ("\n\nLR = 1 / 0", r"ZeroDivisionError: division by zero \(helper.py, line 3\)"),
        ("def f(:", r"SyntaxError: .*\(helper.py, line 1\)"),
        ("from poc import *\nLR = Linear(base=-1, per=128)", r"Linear.base: -1 .*\(helper.py, line 2\)"),
        ("raise ValueError('two\\nlines')", r"ValueError: two lines \(helper.py, line 1\)"),
        ("import json\njson.loads('x')", r"JSONDecodeError: .*\(helper.py, line 2\)"),
        ("", r"ImportError: cannot import name 'LR' from 'helper' .*\(mine.py, line 2\)"),
    ],
)
def test_an_error_in_a_file_beside_a_recipe_is_told_with_its_line(helper: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says) as caught:
        config.load(recipe_in(tmp_path, "from helper import LR", helper=helper))
    assert str(caught.value).startswith("mine.py: ")
    assert "\n" not in str(caught.value)
    assert "helper" not in sys.modules


@pytest.mark.parametrize("command", ["plan", "run", "advise"])
def test_a_wrong_engine_is_refused_with_the_name_of_the_recipe(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe_in(tmp_path, "recipe = Recipe(model='cifar_resnet8_v2', framework='mxnett', kind='cpu', steps=4)")
    assert main([command, str(path)]) == 2
    assert re.search(r"mine\.py: framework: 'mxnett' .*'mxnet'", capsys.readouterr().err)


@pytest.mark.usefixtures("pytorch_planned")
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
@pytest.mark.parametrize("quick", [False, True])
def test_every_recipe_can_be_planned_and_runs_somewhere(path: Path, quick: bool) -> None:
    runs = [one for machine in (CPU, gpus(8)) for one in plan(path.stem, config.load(path), machine, quick=quick)]
    assert any(not one.skip for one in runs)
    assert all(one.seconds > 0 and one.run.quick == quick for one in runs)


def test_quick_takes_five_minutes_on_two_cores() -> None:
    core = (HOME / "recipes").glob("*.py")
    runs = {one.run.id: one for path in core for one in plan(path.stem, config.load(path), CPU, quick=True)}
    assert 30 < sum(one.seconds for one in runs.values() if not one.skip) < 200


@pytest.mark.parametrize(("machine", "minutes"), [("2 CPU cores", 120), ("8 A100", 60)])
def test_the_core_recipes_take_less_than_two_hours_on_two_cores_and_one_on_eight_a100(
    machine: str, minutes: int
) -> None:
    hardware = simulated.hardware(machine)
    core = sorted((HOME / "recipes").glob("*.py"))
    with simulated.installed(hardware):
        runs = {(one.run.id, one.repeat): one for path in core for one in plan(path.stem, config.load(path), hardware)}
    assert 10 < sum(one.seconds for one in runs.values() if not one.skip) / 60 < minutes


@pytest.mark.parametrize("machine", [CPU, gpus(8)], ids=["cpu", "8 gpus"])
def test_no_two_runs_of_all_recipes_have_the_same_line(machine: Hardware) -> None:
    planned = [one for path in RECIPES for quick in (0, 1) for one in plan("", config.load(path), machine, quick=quick)]
    lines: dict[str, set[str]] = {}
    for one in planned:
        lines.setdefault(str(one), set()).add(one.run.id)
    assert {line: ids for line, ids in lines.items() if len(ids) > 1} == {}


def test_the_studys_table_is_in_the_recipe() -> None:
    path = next(path for path in RECIPES if path.stem == "cifar10_resnet50")
    found = {
        (one.run.devices, one.run.batch_per_device, one.run.learning_rate)
        for one in plan("", config.load(path), gpus(8))
        if one.run.kind == "gpu"
    }
    assert {(8, 64, 0.05), (8, 64, 0.4), (4, 64, 0.2), (8, 128, 0.4), (1, 128, 0.05), (8, 256, 0.4)} <= found
    assert {(1, 512, 0.05), (1, 512, 0.4), (8, 512, 3.2), (8, 512, 0.4), (8, 512, 0.8), (2, 256, 0.1)} <= found
