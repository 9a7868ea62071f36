"""Fields of a recipe set by text: their values, mistakes, and the recipe with these fields."""

from pathlib import Path
from typing import Any

import pytest

from poc import CIFAR10, Folder, Linear, Recipe, Steps, config
from poc.config import literals
from poc.plan import plan
from tests.builders import MACHINE, SMALL, recipe_file
from tests.conftest import refused


def ids(recipe: Recipe, *, quick: bool = False) -> list[str]:
    return [item.run.id for item in plan("r", recipe, MACHINE, quick=quick)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x = 256,512", [256, 512]),
        ("x=1e-3", 0.001),
        ("x=-1", -1),
        ("x=None", None),
        ("x='a, b'", "a, b"),
        ("x=per-device", "per-device"),
        ("x=nets/my-own.py:net,timm:resnet18", ["nets/my-own.py:net", "timm:resnet18"]),
        ("x='mine.py:net'", "mine.py:net"),
        ("x=Folder('photos of 12:30/a')", Folder("photos of 12:30/a")),
        ("x=Linear(base=0.1, per=256, decay=Steps([0.5])),2", [Linear(base=0.1, per=256, decay=Steps([0.5])), 2]),
        ("x=CIFAR10(crop=32, validate_on=held-out)", CIFAR10(crop=32, validate_on="held-out")),
        ("x=CIFAR10,cifar10", [CIFAR10(), "cifar10"]),
    ],
)
def test_a_value_is_a_literal_a_call_or_a_word(text: str, value: Any) -> None:
    assert literals.fields([text]) == {"x": value}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((text, "FIELD=VALUE") for text in ("lr", "=3")),
        *((f"lr={text}", "lr") for text in ("", "0.1 0.2", "1] + [2", "2**64", "[x for x in y]", "(" * 10_000)),
        *((f"lr={text}", "lr") for text in ("(lambda: 1)()", "Fixed(*x)", "Linear(base=0.1, per=0)")),
        ("lr=__import__('os')", "__import__"),
        ("lr=Linar(base=0.1)", "did you mean 'Linear'"),
        ("data=synthetic(1, 2, 3)", "data"),
        ("optimizer=Muon", "'lr' is missing"),
    ],
    ids=lambda text: text[:20],
)
def test_a_text_without_a_value_is_a_mistake_in_one_line_and_nothing_is_called(text: str, name: str) -> None:
    with refused(f"^--set.*{name}"):
        literals.fields([text])


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
    before = {**SMALL, "cases": CASES, "quick": {"window": 3}}
    path = recipe_file(tmp_path / "mine.py", cases=CASES, quick={"window": 3})
    recipe = config.load(path, fields=literals.fields(settings))
    assert ids(recipe, quick=quick) == ids(Recipe(**{**before, **edited}), quick=quick)
    assert ids(recipe) != ids(Recipe(**before))


def test_fields_that_are_set_hold_in_the_quick_version_too() -> None:
    recipe = Recipe(**{**SMALL, "quick": {"batch_per_device": 16, "steps": 8, "cases": [{"lr": 0.1}, {"lr": 0.2}]}})
    for setting in recipe.with_fields({"lr": 0.3, "batch_per_device": 64}).quick_version().settings():
        assert (setting.lr.at(64), setting.batch_per_device, setting.steps) == (0.3, 64, 8)
    (setting,) = Recipe(**SMALL).with_fields({"epochs": 3}).quick_version().settings()
    assert (setting.epochs, setting.steps, setting.evaluate) == (3, None, False)
