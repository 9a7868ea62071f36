"""What a recipe may say, and what it comes to on a given machine."""

import contextlib
import functools
import itertools
import json
import operator
import sys
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np
import pytest

from poc import CIFAR10, SGD, SSP, DistSync, Fixed, Linear, Muon, Recipe, Steps, Synthetic, config, data, frameworks
from poc.config.run import WARMUP_STEPS, Run
from poc.host import hardware
from poc.host.hardware import GPU, Hardware
from poc.plan import Planned, estimate, plan, select, training_seconds
from poc.values import UserError, from_plain, to_plain
from tests import fake_gpus, simulated
from tests.builders import MACHINE, run_of
from tests.conftest import refused
from tests.launch import HOME
from tests.test_host import use

RECIPES = sorted((HOME / "recipes").rglob("*.py"))
PAGES = [HOME / "README.md", *(HOME / "docs").glob("*.md")]
DOCUMENTED = [block.split("```")[0] for page in PAGES for block in page.read_text().split("```python\n")[1:]]
CPU = Hardware(cpu="Test CPU", cores=2, memory_bytes=2**34, cpu_flops=2e11)


def gpus(count: int, name: str = "Tesla P100", capability: tuple[int, int] = (6, 0)) -> Hardware:
    cards = tuple(GPU(index=i, name=name, capability=capability, memory_bytes=2**34) for i in range(count))
    return Hardware(cpu="Test CPU", cores=16, memory_bytes=2**36, cpu_flops=1e12, gpus=cards, driver="535.161")


@pytest.fixture(autouse=True)
def with_what_gpus_want(monkeypatch: pytest.MonkeyPatch) -> None:
    """As make_environment.sh would have installed it on those machines, beside what is here."""
    here = frameworks.versions
    monkeypatch.setattr(frameworks, "versions", lambda name: {**here(name), "mxnet-cu112": "1.9.1"})


AMX = replace(CPU, bfloat16=True)
SHARED = {"kind": "cpu", "workers": "per-device", "cores_per_worker": "node", "kvstore": "dist_sync"}


def planned(machine: Hardware = CPU, *, quick: bool = False, **fields: Any) -> list[Planned]:
    return plan("test", Recipe(**{"model": "cifar_resnet8_v2", **fields}), machine, quick=quick)


TWO = {"devices": 2, "workers": 2, "kvstore": "dist_sync"}
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"model": "cifar_resnet51_v2"}, r"model: 'cifar_resnet51_v2' .*did you mean 'cifar_resnet5"),
    ({"model": None}, "model: None"),
    ({"model": "vgg16"}, r"data: crop: 28 is not allowed with vgg16; .* of 224 pixels"),
    ({"data": Synthetic(size=224, crop=224)}, r"crop: 224 is not allowed with cifar_resnet8_v2; .* of 8 to 64 pixels"),
    ({"epoch": 3}, r"Recipe: no field 'epoch'; did you mean 'epochs'\?"),
    ({"batch_per_device": True}, "batch_per_device: True"),
    ({"batch_per_device": [64, np.float64(12.5)]}, r"batch_per_device: 12.5"),
    ({"batch_per_device": "Largest"}, r"did you mean 'largest'"),
    ({"batch_per_device": 128, "accumulate": 400}, r"accumulate: the global batch 51200 is larger"),
    ({"accumulate": 0}, r"accumulate: 0 is not allowed"),
    ({"batch_per_device": 50_001}, r"larger than the 50000 training images"),
    ({"batch_per_device": itertools.count()}, r" 10,000"),
    *(({"lr": lr}, f"lr: {lr!r}") for lr in (-0.1, float("nan"), "0.1")),
    ({"lr": np.array([[0.1, 0.2]] * 99)}, r"lr: array\(\[0.1, 0.2\]\)"),
    *(({"devices": devices}, "devices: ") for devices in (0, [], np.zeros((2, 2)))),
    ({"kvstore": "devise"}, r"kvstore: 'devise' is not allowed; did you mean 'device'\?"),
    ({**TWO, "kvstore": "ssp"}, r"SSP: field 'staleness' is missing"),
    ({"optimizer": {"name": "sdg"}}, r"optimizer: "),
    ({"data": [CIFAR10(), 3]}, r"data: 3 .* cifar10"),
    ({"emulated": 1}, r"emulated: 1 is not allowed; it should be True or False"),
    ({"workers": "per_device"}, r"workers: 'per_device' is not allowed; did you mean 'per-device'"),
    ({"target_accuracy": 0.9, "evaluate": False}, r"target_accuracy=0.9 .*evaluate"),
    *(({"seeds": seeds}, r"seeds: ") for seeds in (0, True, "3", 1.5, [], [0, -1], [[1, 2]])),
    ({"seeds": 10**30}, " 10,000"),
    ({"cases": [{"device": 3}]}, r"cases: no field 'device'; did you mean 'devices'"),
    ({"cases": 3}, r"cases: 3 is not allowed; .* dict"),
    ({"cases": [{"lr": []}, {"lr": 0.1}]}, r"lr: \[\] is not allowed"),
    ({"cases": [{"epochs": 3}], "steps": 10}, r"epochs=3 and steps=10"),
    ({"quick": {"cases": [{"device": 3}]}}, r"quick: cases: no field 'device'; did you mean 'devices'"),
    ({"devices": 3, "workers": 2, "kvstore": "dist_sync"}, r"workers=2 .*devices=3"),
    ({"devices": 2, "workers": 2}, r"kvstore='device' .*workers=2"),
    ({"devices": 2, "kvstore": "dist_sync"}, r"kvstore='dist_sync' .*workers"),
    ({"straggler": 0.3}, r"straggler=0.3 .*workers"),
    *(
        ({**TWO, "kvstore": kvstore, **fields}, f"{next(iter(fields))}=.* kvstore=(dist|ssp)")
        for fields in ({"target_accuracy": 0.9}, {"seconds": 5})
        for kvstore in ("dist_async", SSP(2), DistSync(two_bit=0.5))
    ),
]


@pytest.mark.parametrize(("fields", "message"), MISTAKES)
def test_a_mistake_is_one_line_with_field_and_value(fields: dict[str, Any], message: str) -> None:
    with refused(message):
        Recipe(**{"model": "cifar_resnet8_v2", **fields})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SSP(2, servers=0), r"SSP.servers: 0"),
        (lambda: SSP(2, staleness=3), "SSP: .* got 2"),  # type: ignore[misc]
        (lambda: SGD(momentum=1.0), r"SGD.momentum: 1.0 is not allowed; it should be less than 1"),
        (lambda: Muon(), r"Muon: field 'lr' is missing"),
        (lambda: Synthetic(fixed=True, mirror=True), r"Synthetic.fixed=True .*mirror"),
        (lambda: CIFAR10(crop=33), "crop: 33 is larger than the images"),
        (lambda: CIFAR10(on_device=True, jitter=False, cutout=4), "on_device=True .*cutout"),
        (lambda: Linear(0.1, 128), "Linear: .* got 0.1"),  # type: ignore[misc]
        (lambda: Linear(base=0.1, per=128, warmup_from=0.1), r"warmup_from: 0.1 is not allowed; .*warmup_epochs"),
        (lambda: Fixed(base=0.1, decay="cosin"), "did you mean 'cosine'"),  # type: ignore[arg-type]
        *((lambda at=at: Steps(at=at), r"Steps\.at") for at in ([], [1.5], "0.5")),
    ],
)
def test_a_mistake_in_an_option_is_refused_where_it_is_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("fields", [{"kvstore": "local"}, {"emulated": True}, {"gradient_noise": 5}], ids=str)
def test_a_field_without_effect_is_refused(fields: dict[str, Any]) -> None:
    recipe = Recipe(model="cifar_resnet8_v2", **fields)
    with pytest.raises(UserError, match=f"{next(iter(fields))}={next(iter(fields.values()))} .*devices"):
        recipe.check_effects()
    Recipe(model="cifar_resnet8_v2", **{**fields, "devices": [1, 2]}).check_effects()
    if "gradient_noise" in fields:
        Recipe(model="cifar_resnet8_v2", **fields, accumulate=2).check_effects()


WARM = Linear(base=0.05, per=128, warmup_epochs=5)


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
            {"devices": 4, "batch_per_device": 128, "lr": WARM},
            "global_batch learning_rate steps_per_epoch steps warmup_steps kind emulated",
            [(512, 0.2, 97, 12 * 97, 5 * 97, "gpu", False)],
        ),
        (
            gpus(2),
            {"devices": [1, 2], "batch_per_device": 32, "accumulate": 4, "gradient_noise": 5},
            "global_batch learning_rate steps_per_epoch gradient_noise",
            [(128, 0.05, 390, 5), (256, 0.1, 195, 5)],
        ),
        (CPU, {"steps": 500, "batch_per_device": 128}, "steps epochs", [(500, 2)]),
        (CPU, {"epochs": 3, "cases": [{"lr": [0.1, 0.2]}, {"epochs": 5}]}, "epochs", [3, 3, 5]),
        (
            gpus(4),
            {"devices": [1, 2, 4], "workers": "per-device", "kvstore": "dist_sync"},
            "workers kvstore.name",
            [(1, "device"), (2, "dist_sync"), (4, "dist_sync")],
        ),
        *((CPU, {"seeds": seeds}, "seed", list(range(3))) for seeds in (3, [0, 1, 2], range(3), np.arange(3))),
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
        *(
            (each, {"dtype": "auto", "kind": "cpu"}, "dtype", [dtype])
            for each, dtype in ((CPU, "float32"), (AMX, "bfloat16"))
        ),
        *(
            (replace(CPU, cores=16, numa_nodes=nodes), {**SHARED, "devices": count}, "cores_per_worker", [cores])
            for nodes, count, cores in (((8, 8), 2, 8), ((8, 6), 2, 6), ((8, 8), 3, 4), ((16,), 2, 8), ((), 2, 8))
        ),
        # GPUs augment images themselves where they can.
        (gpus(1), {"data": CIFAR10(jitter=False)}, "data.on_device", [True]),
        (gpus(1), {"data": [CIFAR10(), CIFAR10(jitter=False, cutout=4)]}, "data.on_device", [False, False]),
        (CPU, {"kind": "cpu", "data": CIFAR10(jitter=False)}, "data.on_device", [False]),
        # PyTorch has channels last on tensor cores.
        *(
            (gpus(1, "H100", (9, 0)), {"framework": "pytorch", "dtype": dtype}, "layout", [layout])
            for dtype, layout in (("float32", "NCHW"), ("tf32", "NHWC"), ("bfloat16", "NHWC"))
        ),
    ],
)
def test_a_recipe_gives_runs(machine: Hardware, fields: dict[str, Any], names: str, rows: list[Any]) -> None:
    runs = [item.run for item in planned(machine, **fields)]
    assert list(map(operator.attrgetter(*names.split()), runs)) == rows
    assert len({run.id for run in runs}) == len(runs)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (
            {"batch_per_device": 2 ** np.arange(5, 8), "lr": np.array([0.1, 0.2], dtype=np.float32)},
            {"batch_per_device": [32, 64, 128], "lr": [0.1, 0.2]},
        ),
        (
            {"batch_per_device": (2**power for power in range(5, 8)), "lr": [Fraction(1, 20), Decimal("0.1")]},
            {"batch_per_device": [32, 64, 128], "lr": [0.05, 0.1]},
        ),
        (
            {"epochs": np.int64(3), "evaluate": np.bool_(False), "optimizer": SGD(momentum=np.float16(0.8))},
            {"epochs": 3, "evaluate": False, "optimizer": SGD(momentum=0.8)},
        ),
        (
            {"cases": ({"lr": np.float32(lr)} for lr in (0.1, 0.3)), "quick": {"batch_per_device": np.array([8, 16])}},
            {"cases": [{"lr": 0.1}, {"lr": 0.3}], "quick": {"batch_per_device": [8, 16]}},
        ),
        ({"data": CIFAR10(crop=np.int8(24))}, {"data": CIFAR10(crop=24)}),
        ({"data": CIFAR10, "optimizer": [SGD]}, {"data": CIFAR10(), "optimizer": ["sgd"]}),
    ],
)
def test_numbers_and_lists_of_numpy_and_of_the_library_are_those_of_python(
    given: dict[str, Any], plain: dict[str, Any]
) -> None:
    both = [Recipe(**{"model": "cifar_resnet8_v2", "kind": "cpu", **fields}) for fields in (given, plain)]
    for quick in (False, True, False):  # a generator can be read once, but planned more than once
        first, second = ([item.run for item in plan("", recipe, CPU, quick=quick)] for recipe in both)
        assert first == second
        json.dumps([to_plain(run) for run in first])


def test_an_id_names_what_is_computed_and_nothing_else() -> None:
    (first,), (other_name,) = (plan(name, Recipe(model="cifar_resnet8_v2"), CPU) for name in ("one", "two"))
    assert first.run.id == other_name.run.id == planned(restarts=2)[0].run.id
    assert planned(lr=0.1)[0].run.id != first.run.id
    # The rule that a learning rate was computed by does not count.
    fields: dict[str, Any] = {"kind": "cpu", "batch_per_device": 512}
    (number,), (rule,), (other,) = (planned(**fields, lr=lr) for lr in (0.2, Linear(base=0.05, per=128), 0.1))
    assert number.run.id == rule.run.id != other.run.id
    assert number.run.lr_rule != rule.run.lr_rule
    # Nor does the order of drops.
    assert Steps(at=[0.75, 0.5]) == Steps(at=[0.5, 0.75])
    # Options at their default do not count: a field that is added later renames no run.
    options = set(json.loads(rule.run.fingerprint()))
    assert not options & {"optimizer", "kvstore", "compile", "layout", "dtype", "graphs"}
    # One device has nothing to synchronise.
    assert {planned(kind="cpu", kvstore=kvstore)[0].run.id for kvstore in ("device", "dist_sync", SSP(2), "none")} == {
        planned(kind="cpu")[0].run.id
    }
    # Published in reference/: a change here would make every recorded run look new.
    (reference,) = planned(model="cifar_resnet50_v2", kind="cpu", framework="mxnet", lr=0.05, epochs=12)
    assert reference.run.id == "fd05648696"


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, "dist_sync"),
        ({"kvstore": SSP(2)}, "ssp, staleness 2"),
        ({"kvstore": SSP(None), "straggler": 0.3}, "ssp, unbounded staleness, last worker slowed by 30%"),
        ({"kvstore": DistSync(two_bit=0.25, servers=2)}, "dist_sync, 2-bit (threshold 0.25), 2 servers"),
        ({"optimizer": Muon(lr=0.1), "data": Synthetic(train=640), "batch_per_device": 32}, "dist_sync"),
    ],
)
def test_a_run_is_described_and_read_again_from_json(fields: dict[str, Any], label: str) -> None:
    (item,) = planned(**{**TWO, "kind": "cpu", **fields})
    assert item.run.kvstore_label == label
    assert label in str(item.run)
    plain = json.loads(json.dumps(to_plain(item.run)))
    assert plain["kvstore"]["name"] == item.run.kvstore.name
    assert from_plain(Run, plain) == item.run
    for broken in ({**plain, "bogus": 1}, {**plain, "kvstore": {"name": "bogus"}}, {**plain, "steps": "many"}):
        with pytest.raises(UserError):
            from_plain(Run, broken)


def test_repeats_are_rounds_over_the_grid_every_other_one_backwards() -> None:
    cases = [dict(lr=0.1), dict(lr=0.2, repeats=3), dict(lr=0.3, repeats=2), dict(devices=4, repeats=3)]
    items = planned(gpus(1), cases=cases, seeds=1, repeats=1)
    rounds = [(item.run.learning_rate, item.repeat) for item in items if not item.skip]
    assert rounds == [(0.1, 1), (0.2, 1), (0.3, 1), (0.3, 2), (0.2, 2), (0.2, 3)]
    assert len({item.run.id for item in items}) == 4
    assert [item.repeat for item in planned(gpus(1), cases=cases, quick=True)] == [1] * 4
    items = planned(kind="cpu", lr=[0.1, 0.2], seeds=2, repeats=2)
    seeds = [(item.repeat, item.run.seed, item.run.learning_rate) for item in items]
    assert seeds[:4] == [(1, 0, 0.1), (1, 0, 0.2), (1, 1, 0.2), (1, 1, 0.1)]
    assert len(set(seeds)) == 8


@pytest.mark.parametrize(
    ("machine", "fields", "skip"),
    [
        (CPU, {"kind": "cpu"}, ""),
        (CPU, {"devices": 1}, "needs 1 GPU, this machine has none"),
        (gpus(2), {"devices": 4}, "needs 4 GPUs, this machine has 2"),
        (gpus(1, "Tesla K80", (3, 7)), {}, "mxnet-cu102 1.9.1 needs libcudart.so.10.2"),
        (gpus(1, "H100", (9, 0)), {}, "H100 has compute capability 9.0"),
        (CPU, {"devices": 4, "kind": "cpu", "kvstore": "nccl"}, "kvstore=nccl "),
        (
            CPU,
            {"devices": 4, "kind": "cpu", "workers": 4, "cores_per_worker": 1, "kvstore": "dist_sync"},
            "needs 4 cores, this machine has 2",
        ),
        (AMX, {"kind": "cpu", "dtype": "bfloat16"}, ""),
        (CPU, {"kind": "cpu", "dtype": "bfloat16"}, "needs a CPU with AVX-512 bf16"),
        (gpus(1), {"dtype": "bfloat16"}, "dtype=bfloat16 needs a CPU"),
        (CPU, {"kind": "cpu", "dtype": "float16"}, "dtype=float16 needs a GPU"),
        (gpus(1), {"layout": "NHWC"}, "layout=NHWC is not supported by MXNet"),
        (CPU, {"kind": "cpu", "batch_per_device": 32768}, "GiB of memory, this machine has 16"),
        (replace(CPU, hosts=2), {"kind": "cpu", "batch_per_device": 32768}, "GiB of memory, this machine"),
        (gpus(1), {"batch_per_device": 32768}, ""),
    ],
)
def test_a_run_that_this_machine_cannot_do_is_skipped_with_the_reason(
    machine: Hardware, fields: dict[str, Any], skip: str
) -> None:
    (item,) = planned(machine, model="cifar_resnet50_v2", framework="mxnet", **fields)
    assert skip in item.skip
    assert bool(skip) == bool(item.skip)


def test_the_time_of_evaluations_is_that_of_their_images() -> None:
    sizes = [run_of(data=Synthetic(train=320, validation=images), epochs=1) for images in (320, 3200)]
    less, more, without = (estimate(run, MACHINE) for run in (*sizes, replace(sizes[0], evaluate=False)))
    # A training step costs three forward passes.
    assert (more - less) / (less - without) == pytest.approx(9)
    assert CIFAR10(validate_on="held-out").evaluation_images == 5_000


@pytest.mark.parametrize(
    ("machine", "rate"),
    [("8 K80", 1100), ("8 P100", 2900), ("2 V100 and a display card", 4300), ("no clock", 1100)],
)
def test_the_time_is_estimated_by_the_card(machine: str, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples/s of ResNet-50 on one card: as published for K80 and P100, and in proportion to cores and clock."""
    library = fake_gpus.library("8 K80" if machine == "no clock" else machine)
    for card in library.cards if machine == "no clock" else ():
        del card["nvmlDeviceGetNumGpuCores"]
    use(library, monkeypatch)
    cards = hardware.detect()
    for devices in {1, min(2, len([card for card in cards.gpus if card.capability > (3, 5)]))}:
        run = planned(cards, devices=devices, model="cifar_resnet50_v2", evaluate=False, epochs=12)[0].run
        assert run.steps * run.global_batch / training_seconds(run, cards) == pytest.approx(rate * devices, rel=0.1)


def test_the_largest_batch_is_among_those_that_may_fit() -> None:
    fields = {"devices": 4, "batch_per_device": "largest", "data": Synthetic(train=500), "lr": [0.1, 0.2]}
    for item in planned(gpus(4), **fields):
        sizes = [run.batch_per_device for run in (item.run, *item.smaller)]
        assert sizes == [96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1]
    # A batch is not tried if by the estimate it cannot fit: on a CPU as in any plan, on a GPU in four times its memory.
    for machine, kind in ((CPU, "cpu"), (gpus(1), "gpu")):
        (item,) = planned(machine, kind=kind, batch_per_device="largest", model="cifar_resnet110_v2")
        assert 500 < item.run.batch_per_device < 32768
    (item,) = planned(CPU, batch_per_device="largest", devices=1)
    assert (item.smaller, item.skip) == ((), "needs 1 GPU, this machine has none")


def test_runs_are_selected_by_the_start_of_their_id() -> None:
    runs = planned(lr=[0.1, 0.2])
    assert select(runs, [runs[1].run.id[:6]]) == [runs[1]]
    assert select(runs, None) == runs


def recipe_in(folder: Path, text: str, **files: str) -> Path:
    """Write a recipe file with these lines, and `files` in its folder by the names of their modules."""
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        (folder / f"{name}.py").write_text(lines)
    path = folder / "mine.py"
    path.write_text(f"from poc import *\n{text}\n")
    return path


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        # With a batch of 128 an epoch has 390 steps.
        ({"epochs": 2, "lr": Fixed(base=0.1, warmup_epochs=2)}, "warmup_epochs"),
        ({"epochs": 2, "lr": Fixed(base=0.1, warmup_epochs=1.99)}, ""),
        ({"epochs": 2, "lr": Fixed(base=0.1, warmup_epochs=0.003)}, "warmup_epochs"),  # one step
        ({"steps": 391, "lr": Fixed(base=0.1, warmup_epochs=1)}, ""),
        ({"batch_per_device": "largest", "lr": Fixed(base=0.1, warmup_epochs=1)}, ""),
        ({"cases": [{"epochs": 2}, {"steps": 12}], "lr": Fixed(base=0.1, warmup_epochs=1)}, "warmup_epochs"),
        ({"epochs": 2, "lr": Fixed(base=0.1, warmup_epochs=1, warmup_from=5.0)}, "Fixed.warmup_from: 5.0"),
        ({"epochs": 2, "lr": Fixed(base=0.1, warmup_epochs=1, warmup_from=0.1)}, ""),
        ({"epochs": 2, "lr": Fixed(base=0.1, warmup_epochs=1, decay=Steps(at=[0.9, 0.4]))}, "Steps.at"),
        ({"epochs": 2, "lr": Fixed(base=0.1, warmup_epochs=1, decay=Steps(at=[0.75, 0.51]))}, ""),
        ({"steps": 10, "lr": Fixed(base=0.1, decay=Steps(at=[0.95]))}, "Steps.at"),
        ({"steps": 10, "lr": Fixed(base=0.1, decay=Steps(at=[0.51, 0.52]))}, "Steps.at"),
    ],
)
def test_a_schedule_with_a_rate_that_no_step_has_is_refused(fields: dict[str, Any], name: str) -> None:
    recipe = Recipe(model="cifar_resnet8_v2", **fields)
    with pytest.raises(UserError, match=f"^lr: {name}") if name else contextlib.nullcontext():
        recipe.check_effects()


def test_recipes_import_files_in_their_folder_and_each_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from helper import STEPS\nfrom common.rates import LR\nimport sys\nfrom csv import reader\n"
    text += "sys.path.insert(0, 'x')\n"
    text += "print(recipe := Recipe(model='cifar_resnet8_v2', kind='cpu', lr=LR, steps=STEPS))"
    path, modules = list(sys.path), set(sys.modules)
    monkeypatch.delitem(sys.modules, "csv")
    for lr in (0.1, 0.2):
        files = {"helper": "STEPS = 7", "common/rates": f"LR = {lr}", "csv": "1 / 0"}
        (tmp_path / str(lr) / "common").mkdir(parents=True)
        recipe = config.load(recipe_in(tmp_path / str(lr), text, **files))
        assert (sys.path, set(sys.modules) - modules) == (path, set())
        assert plan("", recipe, CPU)[0].run.learning_rate == lr
        modules = set(sys.modules)
    assert capsys.readouterr().out == ""  # which is for programs


def test_two_files_may_import_one_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "installed", SimpleNamespace(recipe=Recipe("cifar_resnet8_v2")))
    for folder in (tmp_path / "one", tmp_path / "two"):
        assert config.load(recipe_in(folder, "from installed import recipe")).folder == folder


IMPORT = "from helper import LR"


@pytest.mark.parametrize(
    ("text", "helper", "message"),
    [
        (IMPORT, "\n\nLR = 1 / 0", r"ZeroDivisionError: division by zero \(helper.py, line 3\)"),
        (IMPORT, "def f(:", r"SyntaxError: .*\(helper.py, line 1\)"),
        (IMPORT, "from poc import *\nLR = Linear(base=-1, per=128)", r"Linear.base: -1 .*\(helper.py, line 2\)"),
        (IMPORT, "", r"ImportError: cannot import name 'LR' from 'helper' .*\(mine.py, line 2\)"),
        ("recipe = {'model': 'cifar_resnet20_v2'}", "", r"`recipe = Recipe"),
        ("data = Foldr('photos')", "", r"NameError: .*did you mean 'Folder'\? \(mine.py, line 2\)"),
        ("raise SystemExit(0)", "", r"SystemExit"),
        ("import os\nos.environ['POC_NO_SUCH']", "", r"KeyError: 'POC_NO_SUCH' \(mine.py, line 3\)"),
        ("recipe = Recipe('cifar_resnet8_v2', folder='photos')", "", r"no field 'folder'"),
        ("def f(): f()\nf()", "", r"RecursionError"),
        ("\x00", "", r"Error"),
    ],
)
def test_an_error_in_a_recipe_file_is_one_line_with_its_place(
    text: str, helper: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(f"^mine.py: .*{message}"):
        config.load(recipe_in(tmp_path, text, helper=helper))
    assert "helper" not in sys.modules


@functools.cache
def on_both(path: Path, quick: bool) -> list[Planned]:
    """Return the plan of a recipe on a CPU and on eight GPUs."""
    recipe = config.load(path)
    return [item for machine in (CPU, gpus(8)) for item in plan(path.stem, recipe, machine, quick=quick)]


@pytest.mark.usefixtures("pytorch_planned")
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
@pytest.mark.parametrize("quick", [False, True])
def test_every_recipe_can_be_planned_and_runs_somewhere(path: Path, quick: bool) -> None:
    runs = on_both(path, quick)
    assert any(not one.skip for one in runs)
    assert all(one.seconds > 0 and one.run.quick == quick for one in runs)
    assert {one.run.kind for one in runs} == {one.run.kind for one in on_both(path, not quick)}
    on_gpus = [one.run for one in runs if one.run.kind == "gpu"]
    assert all(run.steps >= frameworks.load(run.framework).WARMUP_STEPS + run.window for run in on_gpus)
    assert all(one.run.steps >= WARMUP_STEPS + one.run.window for one in runs)  # else none would be timed


@pytest.mark.parametrize("text", DOCUMENTED)
def test_recipes_in_the_documentation_can_be_planned(text: str, tmp_path: Path) -> None:
    for split, label in itertools.product(("train", "val"), ("cat", "dog")):
        (tmp_path / "photos" / split / label).mkdir(parents=True)
        for number in range(32):
            (tmp_path / "photos" / split / label / f"{number}.png").touch()
    (tmp_path / "mine.py").write_text(text)
    runs = plan("mine", config.load(tmp_path / "mine.py", count=data.count), gpus(8))
    assert any(not item.skip for item in runs)


@pytest.mark.parametrize(
    ("machine", "quick", "minutes"),
    [("2 CPU cores", True, (0.5, 5)), ("2 CPU cores", False, (10, 120)), ("8 A100", False, (10, 60))],
)
def test_the_core_recipes_take_less_time_than_promised(machine: str, quick: bool, minutes: tuple[float, float]) -> None:
    hardware, core = simulated.hardware(machine), sorted((HOME / "recipes").glob("*.py"))
    with simulated.installed(hardware):
        plans = [plan(path.stem, config.load(path), hardware, quick=quick) for path in core]
    seconds = {(item.run.id, item.repeat): item.seconds for items in plans for item in items if not item.skip}
    assert minutes[0] < sum(seconds.values()) / 60 < minutes[1]


@pytest.mark.usefixtures("pytorch_planned")
def test_no_two_runs_of_all_recipes_have_the_same_line() -> None:
    lines: dict[str, set[str]] = {}
    for path, quick in itertools.product(RECIPES, (False, True)):
        for item in on_both(path, quick):
            lines.setdefault(str(item), set()).add(item.run.id)
    assert {line: ids for line, ids in lines.items() if len(ids) > 1} == {}


def test_the_studys_table_is_in_the_recipe() -> None:
    runs = [item.run for item in plan("", config.load(HOME / "recipes/cifar10_resnet50.py"), gpus(8))]
    found = {(run.devices, run.batch_per_device, run.learning_rate) for run in runs if run.kind == "gpu"}
    assert {(8, 64, 0.05), (8, 64, 0.4), (4, 64, 0.2), (8, 128, 0.4), (1, 128, 0.05), (8, 256, 0.4)} <= found
    assert {(1, 512, 0.05), (1, 512, 0.4), (8, 512, 3.2), (8, 512, 0.4), (8, 512, 0.8), (2, 256, 0.1)} <= found
