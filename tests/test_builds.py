"""Which build of which framework runs on which card with which driver, docs/what_runs_where.md cell by cell; and
runs on simulated machines: that the code works, never how fast."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poc import CIFAR10, Recipe, Synthetic, frameworks
from poc.__main__ import main
from poc.cli import advise as advice
from poc.cli import doctor
from poc.frameworks import builds, mxnet
from poc.host import hardware, nvml
from poc.host.hardware import Hardware
from poc.plan import plan
from poc.run.launcher import own_gpus
from tests import fake_gpus, launch, what_runs_where
from tests.builders import GLUON, recipe_file
from tests.conftest import needs_torch
from tests.recorded_nvml import GIB, kernel_tree

CU102, CU112, CUDA12, CUDA13 = "mxnet-cu102 1.9.1", "mxnet-cu112 1.9.1", "torch 2.10.0", "torch 2.13.0"
MODEL = "cifar_resnet8_v2"

Simulate = Callable[..., Hardware]


@pytest.mark.parametrize(
    ("card", "driver", "libraries", "mxnet", "pytorch"),
    [
        ("K80", "470.256.02", True, CU102, "has compute capability 3.7, "),
        ("K80", "418.87.01", True, f"{CU102} needs driver 440.33", "has compute capability 3.7, "),
        ("P100", "440.33.01", True, CU102, "has compute capability 6.0, "),
        ("V100", "450.80.02", False, CU112, f"{CUDA12} needs driver 525.60.13"),
        ("H100", "515.65.01", False, "has compute capability 9.0, ", f"{CUDA13} needs driver 580.65.06"),
        ("B200", "580.95.05", False, "has compute capability 10.0, ", CUDA13),
    ],
)
def test_the_build_of_each_framework_or_why_there_is_none(
    card: str, driver: str, libraries: bool, mxnet: str, pytorch: str, simulate: Simulate, monkeypatch: Any
) -> None:
    if libraries:
        monkeypatch.setattr(builds, "shared_library", Path)
    monkeypatch.setitem(fake_gpus.MACHINES, "one", ([card], driver))
    machine = simulate("one")
    for name, expected in (("mxnet", mxnet), ("pytorch", pytorch)):
        build = builds.choose(frameworks.load(name).BUILDS, machine)
        reason = frameworks.unsupported(name, machine.gpus[0], machine)
        assert build is not None
        assert expected in (reason or str(build))
        assert bool(build.code) == (reason is None)


@pytest.mark.usefixtures("pytorch_planned")
@pytest.mark.parametrize(
    ("machine", "framework", "choice"),
    [
        ("2 V100 and a display card", "mxnet", "first supported framework"),
        ("1 H100", "pytorch", "not MXNet: needs 1 GPU, this machine has none that MXNet can use: NVIDIA H100"),
    ],
)
def test_auto_chooses_the_first_framework_that_runs_on_the_cards(
    machine: str, framework: str, choice: str, simulate: Simulate
) -> None:
    simulated = simulate(machine)
    (item,) = plan("r", Recipe(model=MODEL, data=CIFAR10()), simulated)
    (emulated,) = plan("r", Recipe(model=MODEL, devices=16, emulated=True), simulated)
    for planned in (item, emulated):
        assert (planned.skip, planned.run.framework, planned.run.kind) == ("", framework, "gpu")
    assert item.framework_choice.startswith(choice)


@pytest.mark.usefixtures("pytorch_planned")
def test_a_run_for_more_cards_is_skipped_for_the_reason_of_the_framework_that_can_use_the_most(
    simulate: Simulate,
) -> None:
    machine = simulate("1 H100")
    (any_framework,) = plan("r", Recipe(model=MODEL, devices=2), machine)
    (of_mxnet,) = plan("r", Recipe(model=MODEL, devices=2, workers=2, kvstore="dist_sync"), machine)
    assert (any_framework.run.framework, any_framework.skip) == ("pytorch", "needs 2 GPUs, this machine has 1")
    assert (of_mxnet.run.framework, "H100" in of_mxnet.skip) == ("mxnet", True)


def test_cards_without_a_common_build_do_not_train_together(simulate: Simulate, monkeypatch: Any) -> None:
    monkeypatch.setattr(builds, "shared_library", Path)
    monkeypatch.setitem(fake_gpus.MACHINES, "mixed", (["K80", "V100"], "470.256.02"))
    machine = simulate("mixed")
    one, two = plan("r", Recipe(model=MODEL, framework="mxnet", devices=[1, 2]), machine)
    assert (one.skip, own_gpus(one.run, machine, 1)) == ("", [[machine.gpus[0]]])
    assert two.skip.startswith("needs 2 GPUs, this machine has 1 that MXNet can use: ")


def test_cards_that_no_framework_can_use_are_a_problem(simulate: Simulate) -> None:
    names = ("4 V100", "no driver", "8 K80", "4 V100, too old a driver")
    reasons = [frameworks.gpu_problem(simulate(name)) for name in names]
    assert reasons[:2] == ["", ""]
    assert all("libcudart.so.10.2" in reason and "\n" not in reason for reason in reasons[2:])


def test_code_of_a_worktree_uses_the_environments_of_its_interpreter(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(frameworks, "HOME", tmp_path / "worktree")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "checkout" / ".venv"))
    assert frameworks.environment("pytorch") == tmp_path / "worktree" / ".venv-pytorch"
    (tmp_path / "checkout" / ".venv-pytorch").mkdir(parents=True)
    assert frameworks.environment("pytorch") == tmp_path / "checkout" / ".venv-pytorch"


@pytest.mark.parametrize(("name", "kind", "count"), [("2 V100 and a display card", "gpu", 2), ("no driver", "cpu", 1)])
def test_advice_is_on_the_first_setting_for_gpus_if_there_are_any(
    name: str, kind: str, count: int, simulate: Simulate
) -> None:
    cases = [{"kind": "cpu"}, {"kind": "gpu", "devices": 8}, {"kind": "gpu", "devices": 2, "kvstore": "nccl"}]
    recipe = Recipe(model=MODEL, batch_per_device=[128, 64], lr=0.1, cases=cases)
    machine = simulate(name)
    setting = advice.first_setting(recipe, machine)
    assert (setting.kind, setting.devices, setting.batches) == (kind, count, [128])
    probes = [item.run for item in advice.plan_probes(Path("x.py"), setting, machine, steps=40)]
    length = (1000, 10.0) if kind == "gpu" else (40, None)  # several windows
    assert [(run.devices, run.steps, run.seconds) for run in probes] == [(n + 1, *length) for n in range(count)]
    # Twice the batch has to fit in an epoch.
    few = dataclasses.replace(setting, devices=1, kvstore="device", data=Synthetic(train=200, validation=10))
    assert len(advice.plan_probes(Path("x.py"), few, machine)) == 1


def test_gradient_noise_needs_gradients_without_a_loss_scale(simulate: Simulate) -> None:
    (item,) = plan("r", Recipe(model=MODEL, devices=2, dtype="float16", gradient_noise=2), simulate("4 V100"))
    assert item.skip.startswith("gradient_noise=2 ")


def test_a_build_counts_as_installed_in_its_version_only(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    for_gpus, *_, for_cpus = frameworks.load("pytorch").BUILDS
    installed = [
        [build.is_installed({"torch": version}) for version in ("2.13.0", "2.13.0+cpu", "2.12.0")]
        for build in (for_cpus, for_gpus)
    ]
    assert installed == [[True, True, False], [True, False, False]]
    machine = simulate("4 V100")
    monkeypatch.setattr(frameworks, "versions", lambda framework: {"mxnet": "1.9.1", "torch": "2.13.0"})
    (item,) = plan("r", Recipe(model=MODEL), machine)
    assert "mxnet-cu112 1.9.1 is not installed: ./make_environment.sh" in item.skip


def test_the_page_has_what_simulated_machines_install_and_plan() -> None:
    assert what_runs_where.table() in what_runs_where.PAGE.read_text(), "python -m tests.what_runs_where"


def test_a_gpu_that_cannot_be_used_ends_a_plan_unless_it_is_for_cpus(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, printed: Any
) -> None:
    simulate("no driver")
    kernel_tree(tmp_path / "pci/0000:01:00.0", {"class": "0x030200", "vendor": "0x10de"})
    monkeypatch.setattr(hardware, "PCI_DEVICES", tmp_path / "pci")
    mixed = str(recipe_file(tmp_path / "mixed.py", kind=["cpu", "gpu"]))
    for_cpus = str(recipe_file(tmp_path / "cpu.py", kind="cpu"))
    commands = [["plan", mixed], ["plan", mixed, for_cpus], ["plan"], ["plan", mixed, "--quick"], ["advise", mixed]]
    for command in commands:
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "0000:01:00.0" in line
    for command in (
        ["plan", mixed, "--cpu"],
        ["plan", for_cpus],
        ["plan", mixed, "--set", "kind=cpu"],
        ["environment"],
    ):
        assert main(command) == 0
    capsys.readouterr()
    assert "0000:01:00.0" in printed("doctor")


def test_doctor_names_shared_memory_that_is_too_small_for_several_gpus(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch, printed: Any
) -> None:
    for name, size, named in (("4 V100", 64 << 20, True), ("4 V100", 1 << 30, False), ("1 H100", 64 << 20, False)):
        simulate(name)
        monkeypatch.setattr("shutil.disk_usage", lambda path, size=size: SimpleNamespace(total=size, free=1e12))
        assert ("--shm-size" in printed("doctor")) == named


def test_doctor_says_that_different_gpus_are_as_slow_as_the_slowest(simulate: Simulate, printed: Any) -> None:
    machines = {"a P100 and 2 A100": ["CUDA_VISIBLE_DEVICES=1,2"], "2 V100 and a display card": [], "8 A100": []}
    for name, settings in machines.items():
        simulate(name)
        lines = [line for line in printed("doctor").splitlines() if "slowest" in line]
        assert [line.split()[-1] for line in lines] == settings


def test_doctor_names_gpus_whose_memory_others_use(simulate: Simulate, printed: Any) -> None:
    """Their use is high while the driver starts, and is unknown of a virtual GPU."""
    for used, cards in ({}, ""), ({0: 1, 1: 3, 3: 3}, "GPU 1, 3: "):
        simulate("4 V100")
        for card, gib in used.items():
            nvml.pynvml.cards[card]["nvmlDeviceGetMemoryInfo"] = SimpleNamespace(used=gib * GIB, total=16 * GIB)
            del nvml.pynvml.cards[card]["nvmlDeviceGetUtilizationRates"]
        lines = [line for line in printed("doctor").splitlines() if "another process" in line]
        assert [cards in line and line.endswith("CUDA_VISIBLE_DEVICES=0,2") for line in lines] == [True] * bool(cards)


def test_mxnet_is_left_out_where_it_has_no_build(simulate: Simulate, monkeypatch: Any, capsys: Any) -> None:
    simulate("1 H100", installed=False)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("poc.cli.doctor._is_loadable", lambda name: False)  # Arm's GCC has no libquadmath
    assert main(["environment"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f".venv-pytorch requirements/{name}.txt" for name in ("torch", "torch-cu13")]
    (line,) = (line for line in printed.err.splitlines() if "aarch64" in line)
    assert "mxnet" in line
    assert main(["environment", "--framework", "mxnet"]) == 2
    assert main(["doctor"]) == 0
    assert "MXNet" not in capsys.readouterr().out  # it is not missing


MXNET, TORCH_CPU = ".venv requirements/mxnet.txt", [".venv requirements/torch.txt", ".venv requirements/torch-cpu.txt"]

EXTRAS = [".venv requirements/dev.txt", ".venv requirements/ray.txt"]
CU112_LIST, CUDA12_LIST = ".venv requirements/mxnet-cu112.txt", ".venv-pytorch requirements/torch-cu12.txt"


def test_a_build_for_gpus_stays_while_they_are_hidden(simulate: Simulate, monkeypatch: Any, printed: Any) -> None:
    simulate("no driver", installed=False)
    monkeypatch.setattr(doctor, "_is_loadable", lambda name: True)
    monkeypatch.setattr(frameworks, "versions", lambda name: {"mxnet-cu112": "1.9.1"} if name == "mxnet" else {})
    assert printed("environment").splitlines() == [CU112_LIST]


def test_a_gpu_that_cannot_be_used_is_named_before_packages_are_downloaded(simulate: Simulate, capsys: Any) -> None:
    simulate("4 V100", installed=False)
    nvml.pynvml.cards[2]["nvmlDeviceGetMigMode"] = [1, 1]
    assert main(["environment"]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("GPU 2 is divided")


@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        ("4 V100", ["--dev", "--ray"], [CU112_LIST, CUDA12_LIST, *EXTRAS]),
        ("4 V100", ["--framework", "mxnet"], [CU112_LIST]),
        ("no driver", ["--framework", "pytorch"], TORCH_CPU),
        ("8 K80", [], [MXNET]),
        ("1 H100, older driver", [], [MXNET, CUDA12_LIST]),
        ("no driver", ["--torch"], [MXNET, *TORCH_CPU]),
    ],
)
def test_the_lists_to_install(name: str, options: list[str], lines: list[str], simulate: Simulate, capsys: Any) -> None:
    simulate(name, installed=False)
    assert main(["environment", *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == lines
    assert "GB" in printed.err
    assert all((launch.HOME / line.split()[1]).is_file() for line in lines)


def test_what_prevents_an_installation_is_one_line(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, printed: Any
) -> None:
    simulate("4 V100", installed=False)
    (tmp_path / ".venv-pytorch").mkdir()
    with (tmp_path / ".venv-pytorch/large").open("w") as file:
        file.truncate(20 * 10**9)  # is not free once it is removed: uv's cache may have it, too
    with monkeypatch.context() as patch:
        patch.setattr(frameworks, "HOME", tmp_path)
        patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=1e12, free=3e9))
        assert main(["environment", "--dev"]) == 2
    assert "12.9 are needed" in capsys.readouterr().err.splitlines()[-1]
    simulate("no driver", installed=False)
    monkeypatch.setattr("poc.cli.doctor._is_loadable", lambda name: not name.startswith("libgomp"))
    assert main(["environment", "--ray"]) == 2
    assert "install libgomp1 " in capsys.readouterr().err.splitlines()[-1]
    (line,) = [line for line in printed("doctor").splitlines() if "apt-get" in line]  # names it, too
    assert (line.startswith("missing"), "apt-get install libgomp1 " in line) == (True, True)


def test_a_library_in_a_folder_of_python_s_own_is_not_missing(simulate: Any, monkeypatch: Any, printed: Any) -> None:
    (library,) = (Path(np.__file__).parents[1] / "numpy.libs").glob("libgfortran*")
    monkeypatch.setattr(doctor, "_MXNET_LIBRARIES", {library.name: "libgfortran5"})
    simulate("no driver")
    assert "apt-get" not in printed("doctor")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "framework", "devices", "completed"),
    [
        pytest.param("1 H100, older driver", "pytorch", [1, 2], [1], marks=needs_torch),
        ("8 K80, CUDA 10.2", "mxnet", 2, [2]),
    ],
)
def test_runs_on_cards(machine: str, framework: str, devices: Any, completed: list[int], tmp_path: Path) -> None:
    fields = {**GLUON, "framework": "auto", "kind": "gpu", "devices": devices, "batch_per_device": 16}
    recipe = recipe_file(tmp_path / "mine.py", **fields, epochs=None, steps=8, window=2)
    launch.finish(recipe, tmp_path, environment=fake_gpus.environment(machine))
    records = launch.records(tmp_path)
    on_cards = [record.run for record in records if record.run.kind == "gpu" and record.outcome == "completed"]
    assert [(run.framework, run.devices) for run in on_cards] == [(framework, count) for count in completed]
    reasons = [record.reason for record in records if record.outcome == "skipped"]
    assert len(reasons) == len(records) - len(completed)
    assert all("GPU" in reason and "\n" not in reason for reason in reasons)


def test_mxnet_for_cuda_10_loads_the_parts_of_cudnn_that_it_opens_later(tmp_path: Path, monkeypatch: Any) -> None:
    names = [*mxnet.CUDA_10_LIBRARIES, *mxnet.CUDNN_PARTS[:3]]
    for name in names:
        (tmp_path / name).touch()
    loaded: list[str] = []
    monkeypatch.setattr(mxnet, "versions", lambda name: {"mxnet-cu102": "1.9.1"})
    monkeypatch.setattr(mxnet, "shared_library", builds.shared_library.__wrapped__)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr("ctypes.CDLL", lambda path, mode: loaded.append(path))
    mxnet._load_cuda_libraries()
    assert loaded == [str(tmp_path / name) for name in names]
