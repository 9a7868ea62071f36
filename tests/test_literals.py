"""Fields of a recipe set by text: what it means, what it refuses, and that it is the recipe with those values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poc import CIFAR10, Linear, Recipe, Steps, config
from poc.config import literals
from poc.plan import plan
from poc.values import UserError
from tests.builders import MACHINE, SMALL, recipe_file


def ids(made: Recipe, *, quick: bool = False) -> list[str]:
    return [item.run.id for item in plan("r", made, MACHINE, quick=quick)]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("x=256", 256),
        ("x = 256,512", [256, 512]),
        ("x=[1, 2]", [1, 2]),
        ("x=1e-3", 0.001),
        ("x=-1", -1),
        ("x=True", True),
        ("x=None", None),
        ("x=nccl", "nccl"),
        ("x='a, b'", "a, b"),
        ("x=per-device", "per-device"),
        ("x=Linear(base=0.1, per=256)", Linear(base=0.1, per=256)),
        ("x=Linear(base=0.1, per=256, decay=Steps([0.5])),2", [Linear(base=0.1, per=256, decay=Steps([0.5])), 2]),
        ("x=CIFAR10(crop=32, validate_on=held-out)", CIFAR10(crop=32, validate_on="held-out")),
    ],
)
def test_a_value_is_a_literal_a_call_or_a_word(text: str, meant: Any) -> None:
    assert literals.fields([text]) == {"x": meant}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "give FIELD=VALUE"),
        ("=3", "give FIELD=VALUE"),
        ("lr=", "--set lr: '' cannot be read"),
        ("lr=0.1 0.2", "cannot be read"),
        ("lr=1] + [2", "cannot be read"),
        ("lr=2**64", "cannot be read"),
        ("lr=1j", "cannot be read"),
        ("lr=[x for x in y]", "cannot be read"),
        ("lr=(lambda: 1)()", "cannot be read"),
        ("lr=__import__('os')", "there is no '__import__'"),
        ("lr=Linar(base=0.1)", "did you mean 'Linear'"),
        ("lr=Linear(bas=0.1)", "did you mean 'base'"),
        ("lr=Linear(base=0.1, per=0)", "--set lr: lr: Linear.per: 0 is not allowed"),
        ("lr=Fixed(*x)", "cannot be read"),
        ("data=synthetic(1, 2, 3)", "cannot be read"),
        ("lr=" + "(" * 10_000, "cannot be read"),
    ],
)
def test_what_is_no_value_is_one_line_and_nothing_is_called(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        literals.fields([text])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_field_is_set_once() -> None:
    with pytest.raises(UserError, match="lr: it is set twice"):
        literals.fields(["lr=0.1", "lr=0.2"])


CASES = [{"lr": 0.1, "batch_per_device": 16}, {"lr": 0.2, "batch_per_device": 16}, {"batch_per_device": [8, 64]}]


@pytest.mark.parametrize(
    ("settings", "edited"),
    [
        (["lr=0.3"], {"lr": 0.3, "cases": [{"batch_per_device": 16}, {"batch_per_device": [8, 64]}]}),
        (
            ["batch_per_device=32,48", "epochs=2"],
            {"batch_per_device": [32, 48], "epochs": 2, "cases": [{"lr": 0.1}, {"lr": 0.2}, {}]},
        ),
        (["steps=7"], {"epochs": None, "steps": 7}),
        (["seeds=42,1337"], {"seeds": [42, 1337]}),
    ],
)
@pytest.mark.parametrize("quick", [False, True])
def test_the_runs_are_those_of_the_edited_recipe(
    settings: list[str], edited: dict[str, Any], quick: bool, tmp_path: Path
) -> None:
    own = {**SMALL, "cases": CASES, "quick": {"window": 3}}
    path = recipe_file(tmp_path / "mine.py", cases=CASES, quick={"window": 3})
    made = config.load(path, fields=literals.fields(settings))
    assert ids(made, quick=quick) == ids(Recipe(**{**own, **edited}), quick=quick)
    assert ids(made) != ids(Recipe(**own))


def test_what_is_set_holds_in_the_quick_version_too() -> None:
    own = Recipe(**{**SMALL, "quick": {"batch_per_device": 16, "steps": 8, "cases": [{"lr": 0.1}, {"lr": 0.2}]}})
    (setting,) = own.with_fields({"lr": 0.3, "batch_per_device": 64}).quick_version().settings()
    assert (setting.lr.at(64), setting.batch_per_device, setting.steps) == (0.3, 64, 8)
    (setting,) = Recipe(**SMALL).with_fields({"epochs": 3}).quick_version().settings()
    assert (setting.epochs, setting.steps, setting.evaluate) == (3, None, False)


def test_a_field_in_all_cases_leaves_each_setting_once() -> None:
    cases = [{"lr": 0.1, "seeds": 2}, {"lr": 0.2, "seeds": 2}, {"lr": 0.3}]
    made = Recipe(**{**SMALL, "cases": cases}).with_fields({"lr": 0.5})
    assert len(ids(made)) == 2
    assert [item.run.seed for item in plan("r", made, MACHINE)] == [0, 1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_per_devise": 1}, "no field 'batch_per_devise'; did you mean 'batch_per_device'"),
        ({"cases": []}, "no field 'cases'"),
        ({"batch_per_device": 0}, "batch_per_device: 0 is not allowed"),
        ({"lr": "fast"}, "lr: 'fast' is not allowed"),
        ({"lr": Linear(base=0.1, per=128, warmup_epochs=99)}, "the warm-up takes"),
    ],
)
def test_a_mistake_names_the_recipe_and_the_field(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        config.load(recipe_file(tmp_path / "mine.py"), fields=fields)
    assert str(caught.value).startswith("mine.py: ")
    assert message in str(caught.value)
