"""Which build of which framework runs on which card with which driver, docs/what_runs_where.md cell by cell; and
whole runs on such machines: that the code runs, never how fast."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from poc import CIFAR10, SSP, DistSync, Recipe, frameworks
from poc.__main__ import main
from poc.advice import advise as advice
from poc.frameworks import builds
from poc.host import hardware, nvml
from poc.host.hardware import Hardware
from poc.plan import plan
from poc.run.launcher import own_gpus
from tests import fake_gpus, launch
from tests.builders import GLUON, MACHINE, recipe_file
from tests.extras import needs_horovod, needs_torch, newer_python

CU102, CU112, CUDA12, CUDA13 = "mxnet-cu102 1.9.1", "mxnet-cu112 1.9.1", "torch 2.10.0", "torch 2.13.0"
OF_CUDA_10 = "libcudart.so.10.2"


def stand(name: str, monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """That machine, with the packages that it wants installed."""
    monkeypatch.setattr(nvml, "pynvml", fake_gpus.library(name))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = hardware.detect()
    packages = {framework: {build.package: build.version} for framework, build in frameworks.wanted(machine).items()}
    monkeypatch.setattr(frameworks, "versions", lambda framework: packages.get(framework, {}))
    return dataclasses.replace(machine, memory_bytes=2**40)


@pytest.mark.parametrize(
    ("card", "driver", "libraries", "mxnet", "pytorch"),
    [
        ("K80", "470.256.02", False, f"{CU102} needs {OF_CUDA_10}", "has compute capability 3.7, "),
        ("K80", "470.256.02", True, CU102, "has compute capability 3.7, "),
        ("K80", "418.87.01", True, f"{CU102} needs driver 440.33", "has compute capability 3.7, "),
        ("P100", "470.57.02", False, CU112, "has compute capability 6.0, "),
        ("P100", "450.80.02", False, CU112, "has compute capability 6.0, "),
        ("P100", "440.33.01", False, f"{CU112} needs driver 450.80.02", "has compute capability 6.0, "),
        ("P100", "440.33.01", True, CU102, "has compute capability 6.0, "),
        ("V100", "450.80.02", False, CU112, f"{CUDA12} needs driver 525.60.13"),
        ("V100", "535.161.08", False, CU112, CUDA12),
        ("A10G", "535.161.08", False, CU112, CUDA12),
        ("A100", "550.54.15", False, CU112, CUDA12),
        ("A100", "580.95.05", False, CU112, CUDA13),
        ("H100", "515.65.01", False, "has compute capability 9.0, ", f"{CUDA13} needs driver 580.65.06"),
        ("H100", "535.161.08", False, "has compute capability 9.0, ", CUDA12),
        ("H100", "580.95.05", False, "has compute capability 9.0, ", CUDA13),
        ("B200", "580.95.05", False, "has compute capability 10.0, ", CUDA13),
    ],
)
def test_the_build_of_each_engine_or_why_there_is_none(
    card: str, driver: str, libraries: bool, mxnet: str, pytorch: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if libraries:
        monkeypatch.setattr(builds, "shared_library", lambda name: tmp_path / name)
    monkeypatch.setitem(fake_gpus.MACHINES, "one", ([card], driver, False))
    machine = stand("one", monkeypatch)
    for name, expected in (("mxnet", mxnet), ("pytorch", pytorch)):
        build = builds.choose(frameworks.load(name).BUILDS, machine)
        reason = builds.unsupported(frameworks.load(name).BUILDS, machine.gpus[0], driver)
        assert build is not None
        assert str(build) == expected and bool(build.code) if reason is None else expected in reason, reason
        assert reason is None or "\n" not in reason


@pytest.mark.usefixtures("pytorch_planned")
@pytest.mark.parametrize(
    ("machine", "framework", "choice"),
    [
        ("4 V100", "mxnet", "first supported framework"),
        ("8 P100", "mxnet", "first supported framework"),
        ("2 V100 and a display card", "mxnet", "first supported framework"),
        ("1 H100", "pytorch", "not MXNet: needs 1 GPU, this machine has none that MXNet can use: NVIDIA H100"),
        ("1 H100, older driver", "pytorch", "not MXNet: needs 1 GPU"),
    ],
)
def test_auto_takes_the_first_engine_that_runs_on_the_cards_and_says_why(
    machine: str, framework: str, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = stand(machine, monkeypatch)
    (item,) = plan("r", Recipe(model="cifar_resnet8_v2", data=CIFAR10()), here)
    assert (item.skip, item.run.framework, item.run.kind) == ("", framework, "gpu")
    (played,) = plan("r", Recipe(model="cifar_resnet8_v2", devices=16, emulated=True), here)
    assert (played.skip, played.run.framework, played.run.kind) == ("", framework, "gpu")
    assert item.engine_choice.startswith(choice)


def test_cards_that_no_one_build_runs_on_do_not_train_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(builds, "shared_library", lambda name: tmp_path / name)
    monkeypatch.setitem(fake_gpus.MACHINES, "mixed", (["K80", "V100"], "470.256.02", False))
    here = stand("mixed", monkeypatch)
    assert [gpu.name for gpu in frameworks.usable("mxnet", here)] == [here.gpus[1].name]
    one, two = plan("r", Recipe(model="cifar_resnet8_v2", framework="mxnet", devices=[1, 2]), here)
    assert (one.skip, own_gpus(one.run, here, 1)) == ("", [[here.gpus[1]]])
    assert two.skip.startswith("needs 2 GPUs, this machine has 1 that MXNet can use: ")
    assert f"{here.gpus[0].name} has compute capability 3.7, mxnet-cu112" in two.skip


@pytest.mark.parametrize(("machine", "waits"), [("4 V100", True), ("8 K80", False), ("no driver", False)])
def test_rows_of_the_cpu_wait_where_there_are_gpus_that_can_be_used(
    machine: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = stand(machine, monkeypatch)
    fields: dict[str, Any] = {"model": "cifar_resnet8_v2", "framework": "mxnet"}
    for kinds, how, asked in (
        (["cpu", "gpu"], {}, False),
        (["cpu", "gpu"], {"cpu": True}, True),
        ("cpu", {}, True),
        ("cpu", {"named": False}, False),
    ):
        item = plan("r", Recipe(**fields, kind=kinds), here, **how)[0]  # type: ignore[arg-type]
        assert bool(item.skip) == (waits and not asked)


@pytest.mark.parametrize(("machine", "wanted"), [("2 V100 and a display card", ("gpu", 2)), ("no driver", ("cpu", 1))])
def test_advice_is_on_the_first_setting_that_can_run_on_gpus_where_there_are_any(
    machine: str, wanted: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [{"kind": "cpu"}, {"kind": "gpu", "devices": 8}, {"kind": "gpu", "devices": 2, "kvstore": "nccl"}]
    recipe = Recipe(model="cifar_resnet8_v2", batch_per_device=[128, 64], lr=0.1, cases=cases)
    setting = advice.first_setting(recipe, stand(machine, monkeypatch))
    assert (setting.kind, setting.devices, setting.batches) == (*wanted, [128])
    # Two cards are measured beside one; two contexts of a CPU would tell nothing of two such machines.
    assert [probe.devices for probe in advice.speed_probes(recipe.settings()[0])] == [1]
    assert len(advice.speed_probes(setting)) == setting.devices


def test_norms_of_scaled_gradients_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    here = stand("4 V100", monkeypatch)
    for noise in (None, 2):
        (item,) = plan("r", Recipe(model="cifar_resnet8_v2", devices=2, dtype="float16", gradient_noise=noise), here)
        assert item.skip.startswith("gradient_noise=2 ") == bool(item.skip) == bool(noise)


@pytest.mark.parametrize("exchange", ["dist_async", SSP(1), "none", DistSync(two_bit=0.5)], ids=str)
def test_norms_of_gradients_that_are_not_summed_exactly_are_not_taken(exchange: Any) -> None:
    recipe = Recipe(model="cifar_resnet8_v2", kind="cpu", devices=2, workers=2, kvstore=exchange, gradient_noise=2)
    (item,) = plan("r", recipe, MACHINE)
    assert item.skip.startswith("gradient_noise=2 ")


@needs_horovod
def test_horovod_as_it_is_built_here_is_not_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(model="cifar_resnet8_v2", devices=2, workers=2, kvstore="horovod")
    (item,) = plan("r", recipe, stand("4 V100", monkeypatch))
    assert item.skip.startswith("kvstore=horovod between GPUs needs NCCL")


def test_a_build_that_is_not_installed_is_no_reason_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = stand("4 V100", monkeypatch)
    monkeypatch.setattr(frameworks, "versions", lambda framework: {"mxnet": "1.9.1", "torch": "2.13.0"})
    (item,) = plan("r", Recipe(model="cifar_resnet8_v2"), machine)
    assert "mxnet-cu112 1.9.1 is not installed: ./make_environment.sh" in item.skip


@pytest.mark.parametrize(
    ("machine", "named", "lines"),
    [
        ("4 V100", [], [".venv requirements/mxnet-cu112.txt"]),
        ("8 K80", [], [".venv requirements/mxnet.txt"]),
        pytest.param(
            "1 H100, older driver",
            [],
            [".venv requirements/mxnet.txt", ".venv-pytorch requirements/torch-cu12.txt"],
            marks=newer_python,
        ),
        ("no driver", [], [".venv requirements/mxnet.txt"]),
        pytest.param(
            "no driver",
            ["pytorch"],
            [".venv requirements/mxnet.txt", ".venv requirements/torch.txt", ".venv requirements/torch-cu13.txt"],
            marks=newer_python,
        ),
    ],
)
def test_what_is_to_be_installed(
    machine: str,
    named: list[str],
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand(machine, monkeypatch)
    monkeypatch.setattr(frameworks, "versions", lambda framework: {})
    assert main(["environment", *named]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == lines
    assert "GB" in said.err
    assert all((fake_gpus.PATH.parents[2] / line.split()[1]).is_file() for line in lines)


def test_a_disk_without_room_is_one_line_that_says_how_much_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand("4 V100", monkeypatch)
    monkeypatch.setattr(frameworks, "versions", lambda framework: {})
    usage: Any = lambda path: type("Usage", (), {"free": 3e9})  # noqa: E731
    monkeypatch.setattr("shutil.disk_usage", usage)
    assert main(["environment"]) == 2
    assert "3.0 GB free, and 5.9 are needed: 3.9 for mxnet-cu112 1.9.1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "framework", "completed"),
    [
        ("4 V100, old driver", "mxnet", 2),
        pytest.param("1 H100, older driver", "pytorch", 1, marks=needs_torch),
        ("8 K80, CUDA 10.2", "mxnet", 2),
    ],
)
def test_runs_on_cards(machine: str, framework: str, completed: int, tmp_path: Path) -> None:
    fields = {**GLUON, "framework": "auto", "kind": "gpu", "devices": [1, 2], "batch_per_device": 16}
    recipe = recipe_file(tmp_path / "mine.py", **fields, epochs=None, steps=8, window=2)
    launch.finish(recipe, tmp_path, environment=fake_gpus.environment(machine))
    records = launch.records(tmp_path)
    on_cards = [record for record in records if record.run.kind == "gpu" and record.outcome == "completed"]
    assert [record.run.framework for record in on_cards] == [framework] * completed
    assert [record.run.devices for record in on_cards] == [1, 2][:completed]
    assert all(record.engine_choice for record in on_cards)
    reasons = [record.reason for record in records if record.outcome == "skipped"]
    assert len(reasons) == 2 - completed
    assert all("GPU" in reason and "\n" not in reason for reason in reasons)
    assert "ResNet-8" in (tmp_path / "results" / "results.md").read_text()
