"""The gradient noise scale, on a quadratic whose answer is a formula, and the advice that is made of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import CIFAR10, Fixed, Linear, Muon, Synthetic, advice
from poc.__main__ import main
from poc.config import Setting, load
from poc.plan import plan
from poc.records import journal, noise
from poc.records.noise import Norms
from tests.builders import MACHINE, recipe_file, record_of
from tests.launch import HOME


@pytest.mark.parametrize(("small", "large"), [(8, 32), (64, 128), (1, 256)])
def test_a_quadratic_with_known_noise_gives_the_formula_s_answer(small: int, large: int) -> None:
    # The loss of sample i is |w - x_i|^2 / 2, so its gradient at w = 0 is -x_i: noise of the x_i around their mean.
    generator = np.random.default_rng(3)
    dimensions, deviation = 50, 2.0
    mean = generator.normal(size=dimensions)
    norms = []
    for step in range(2000):
        gradients = -generator.normal(mean, deviation, size=(large, dimensions))
        of_small, of_large = (float(np.square(part.mean(axis=0)).sum()) for part in (gradients[:small], gradients))
        norms.append(Norms(step=step, small=of_small, large=of_large))
    estimate = noise.estimate(norms, small_batch=small, large_batch=large)
    assert estimate.signal == pytest.approx(np.square(mean).sum(), rel=0.05)
    assert estimate.variance == pytest.approx(dimensions * deviation**2, rel=0.05)
    assert estimate.scale == pytest.approx(dimensions * deviation**2 / np.square(mean).sum(), rel=0.1)


def test_the_interval_of_the_scale_holds_what_a_quadratic_has() -> None:
    generator, mean, held = np.random.default_rng(5), np.ones(20), 0
    for _ in range(40):
        norms = []
        for step in range(60):
            gradients = generator.normal(mean, 3.0, size=(64, 20))
            of_small, of_large = (float(np.square(part.mean(axis=0)).sum()) for part in (gradients[:8], gradients))
            norms.append(Norms(step=step, small=of_small, large=of_large))
        low, high = noise.interval(norms, small_batch=8, large_batch=64) or (0.0, None)
        held += low < 9.0 < (high or np.inf)
    assert 30 <= held <= 40
    assert noise.interval([], small_batch=8, large_batch=64) is None
    # Where no gradient is to be seen there is no upper end.
    silent = [Norms(step=step, small=8.0, large=0.9) for step in range(9)]
    assert noise.interval(silent, small_batch=8, large_batch=64) == (float("inf"), None)


def test_the_scale_that_fits_is_the_one_that_made_the_epochs() -> None:
    batches = [128, 512, 2048, 8192]
    for scale in (60.0, 1000.0, 30_000.0):
        found = noise.fitted({batch: 3.7 * noise.epochs_at(batch, scale) for batch in batches})
        assert found == pytest.approx(scale, rel=0.01)
    # As many samples at every batch: no batch is too large; twice the samples at twice the batch: all are.
    assert noise.fitted(dict.fromkeys(batches, 5.0)) is None
    assert noise.fitted({batch: float(batch) for batch in batches}) is None


def test_without_signal_there_is_no_scale() -> None:
    estimate = noise.estimate([Norms(step=0, small=4.0, large=0.5)], small_batch=1, large_batch=4)
    assert estimate.signal < 0
    assert estimate.scale is None
    assert noise.estimate([], small_batch=1, large_batch=4) is None
    assert noise.estimate([Norms(step=0, small=1.0, large=1.0)], small_batch=4, large_batch=4) is None


def test_advice_goes_up_to_where_an_epoch_is_worth_four_fifths() -> None:
    setting = Setting(model="cifar_resnet8_v2", kind="cpu", batch_per_device=128, lr=Linear(base=0.05, per=128))
    choices, best = advice.advise(setting, 1024.0)
    # 1 + 128 / 1024 is 0.9 of 1 + 256 / 1024, and 0.75 of 1 + 512 / 1024.
    assert (best.batch, best.steps, best.samples) == (256, 5.0, 1.25)
    assert best.learning_rate == pytest.approx(0.05 * (1 + 1024 / 128) / 5)
    assert [choice.batch for choice in choices] == [2**power for power in range(6, 15)]
    # Never more than the linear rule, and never falling as the batch grows.
    rates = [choice.learning_rate for choice in choices]
    assert rates == sorted(rates)
    assert rates[-1] < 0.05 * (1 + 1024 / 128)
    assert all(choice.learning_rate <= 0.05 * choice.batch / 128 * 1.001 for choice in choices[1:])


@pytest.mark.parametrize(("optimizer", "least"), [("sgd", 0.5 * 2 / 9), (Muon(lr=0.05), 0.5 * (2 / 9) ** 0.5)])
def test_a_rate_that_does_not_scale_is_right_for_its_own_total_batch(optimizer: Any, least: float) -> None:
    lr = Fixed(base=0.5, decay="linear")
    setting = Setting(model="cifar_resnet8_v2", devices=8, batch_per_device=128, lr=lr, optimizer=optimizer)
    rates = {choice.batch: choice.learning_rate for choice in advice.advise(setting, 1024.0)[0]}
    assert rates[1024] == pytest.approx(0.5)
    assert rates[128] == pytest.approx(least)


def test_a_probe_is_short_and_looks_at_the_noise() -> None:
    setting = Setting(
        model="cifar_resnet8_v2",
        kind="cpu",
        batch_per_device=128,
        lr=Linear(base=0.1, per=64),
    )
    ((run, skip),) = [(planned.run, planned.skip) for planned in plan("", advice.probe(setting, steps=40), MACHINE)]
    assert (run.devices, run.emulated, run.batch_per_device, run.steps) == (8, True, 64, 40)
    assert (run.gradient_noise, run.evaluate, skip) == (2, False, "")
    assert run.learning_rate == pytest.approx(0.8)


@pytest.mark.usefixtures("pytorch_planned")
@pytest.mark.parametrize("path", sorted((HOME / "recipes").rglob("*.py")), ids=lambda path: path.stem)
def test_every_recipe_can_be_advised_on(path: Path) -> None:
    loaded = load(path)
    for_gpus_only = all(one.skip for one in plan("", loaded, MACHINE))
    setting = advice.first_setting(loaded, MACHINE)
    for short in (*advice.speed_probes(setting), advice.probe(setting)):
        assert bool(plan("", short, MACHINE)[0].skip) == for_gpus_only


def test_no_advice_on_a_batch_that_is_still_to_be_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = recipe_file(tmp_path / "mine.py", kind="gpu", batch_per_device="largest", epochs=6)
    assert main(["advise", str(recipe), "--results", str(tmp_path / "results")]) == 2
    assert "batch_per_device='largest'" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_the_command_turns_a_short_run_into_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POC_CACHE", str(tmp_path / "cache"))
    recipe = recipe_file(tmp_path / "mine.py", data=Synthetic(train=2560, validation=70), batch_per_device=16, epochs=6)
    results = tmp_path / "results"
    assert main(["advise", str(recipe), "--steps", "40", "--results", str(results)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("SYNTHETIC images: ")
    scale = int(re.findall(r"Gradient noise scale: (\d+) samples", said)[0])
    # Both probes are records, and the page puts what was advised beside what comes.
    timed, looked = journal.read(journal.paths(results))
    assert (looked.run.gradient_noise, timed.run.gradient_noise, timed.run.devices) == (2, None, 1)
    assert timed.detail
    assert [(option.devices, option.batch) for option in looked.advice.options] == [(n, 16 * n) for n in (1, 2, 4, 8)]
    assert "Gradient noise" in (results / "learning_rate.md").read_text()
    assert re.search(r"^ *8 +128 .* to .*\d", said, re.MULTILINE)
    assert "fastest" in said
    best = int(re.findall(r"^(\d+) <-", said, re.MULTILINE)[0])
    least = float(re.findall(r"6 epochs are worth ([\d.]+) at the recipe's own 16", said)[0])
    assert least == pytest.approx(6 * (1 + 16 / scale) / (1 + best / scale), abs=0.1)
    assert least >= 6 * advice.WORTH - 0.1


@pytest.mark.slow
def test_advice_says_that_its_images_are_synthetic_where_cifar10_is_to_be_had_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("POC_CACHE", "MXNET_HOME", "KERAS_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("POC_DATA", raising=False)
    recipe = recipe_file(tmp_path / "mine.py", data=CIFAR10(crop=32), batch_per_device=16, epochs=6)
    assert main(["advise", str(recipe), "--steps", "40", "--results", str(tmp_path / "results")]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert "SYNTHETIC" in first
    assert "--data" in first
    *_, looked = journal.read(journal.paths(tmp_path / "results"))
    assert looked.stood_in
    assert advice.warning(looked) == first
    assert advice.warning(record_of()) == ""
