"""What the command line chooses and prints before anything trains: recipes, plans, names, prices, data."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import poc.cli.options as cli
from poc.cli import main
from poc.data import sources
from poc.host import hardware
from poc.published import prices
from poc.records import journal
from poc.records.record import Record
from tests.builders import recipe_file, record_of, run_of
from tests.launch import HOME
from tests.test_builds import simulate  # noqa: F401  # a fixture


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a recipe in each folder; the current folder is next to it."""
    monkeypatch.setenv("POC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("POC_DATA", raising=False)
    for name in ("recipes/core", "recipes/studies/theirs", "recipes/research/search", "recipes/studies/_shared"):
        path = tmp_path / "home" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        recipe_file(path)
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.setattr(cli, "HOME", tmp_path / "home")
    monkeypatch.setattr(hardware, "PRODUCT_NAME", tmp_path / "product_name")
    return tmp_path / "home"


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command that succeeds prints; as an object if that is JSON."""

    def run(*arguments: str) -> Any:
        assert main(arguments) == 0
        text = capsys.readouterr().out
        return json.loads(text) if "--json" in arguments else text

    return run


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("", ["core"]),
        ("--all", ["core", "search", "theirs"]),
        ("theirs.py core", ["core", "theirs"]),
        ("recipes/research/search.py", ["search"]),
        ("./mine.py mine.py", ["mine"]),
        ("mine.py --all", ["core", "mine", "search", "theirs"]),
    ],
)
def test_core_recipes_are_the_default_and_others_are_named(
    home: Path, printed: Any, arguments: str, names: list[str]
) -> None:
    recipe_file(home.parent / "user" / "mine.py")
    planned = printed("plan", "--json", *arguments.split())["planned"]
    assert sorted({line["recipe"] for line in planned}) == names


def test_set_plans_the_runs_of_an_edited_recipe(home: Path, printed: Any) -> None:
    recipe_file(home.parent / "user" / "edited.py", batch_per_device=[16, 64], lr=0.5)
    settings = ("core", "--set", "batch_per_device=16,64", "--set", "lr=0.5")
    plans = [printed("plan", "--json", *arguments)["planned"] for arguments in (settings, ("edited.py",))]
    ids, edited = ([line["id"] for line in planned] for planned in plans)
    assert ids == edited
    assert len(ids) == 2


def test_a_plan_has_what_is_done_what_is_left_and_what_is_skipped(home: Path, printed: Any) -> None:
    recipe_file(home / "recipes" / "core.py", kind=["cpu", "gpu"], lr=[0.01, 0.02])
    before = printed("plan", "--json", "--price", "36", "--machine", "mine")
    assert (before["runs"], before["done"], before["machine"]) == (2, 0, "mine")
    assert before["dollars"] == pytest.approx(before["seconds"] / 100)
    assert list(before["skipped"].values()) == [2]
    # A run in the journal of this machine is done.
    run = run_of(lr=0.01)
    fields = {**record_of().to_json(), "run": run.to_json(), "run_id": run.id, "infrastructure": "mine"}
    fields.update(dataset="synthetic", environment=None, wall=1.0)
    journal.append(home / "results" / "mine" / journal.FILE, Record.from_json(fields))
    after = printed("plan", "--json", "--machine", "mine")
    assert (after["runs"], after["done"], after["dollars"]) == (2, 1, None)
    assert after["seconds"] < before["seconds"]
    verbose = printed("plan", "--verbose")
    assert all(line["id"] in verbose for line in before["planned"])


@pytest.mark.parametrize("product", ["p4d.24xlarge", "Standard PC (Q35)", ""])
def test_an_instance_type_with_a_price_is_the_name_of_the_machine(home: Path, printed: Any, product: str) -> None:
    if product:
        (home.parent / "product_name").write_text(f"{product}\n")
    plan, doctor = printed("plan", "--json"), printed("doctor")
    price = prices.load({}).of(product)
    assert plan["machine"] == (product if price else hardware.detect().describe())
    assert plan["machine"] in doctor.splitlines()[0]
    assert plan["price_per_hour"] == (price and price.dollars_per_hour)
    assert (f"{price.dollars_per_hour:.2f}" if price else "--price") in doctor


def test_cpu_runs_on_a_machine_with_gpus_are_skipped_unless_they_are_named(
    home: Path,
    printed: Any,
    simulate: Any,  # noqa: F811  # the fixture
) -> None:
    simulate("4 V100")
    fields: dict[str, Any] = {"framework": "mxnet", "model": "cifar_resnet8_v2"}
    recipe_file(home / "recipes" / "core.py", **fields, kind=["cpu", "gpu"])
    recipe_file(home / "recipes" / "studies" / "theirs.py", **fields, kind="cpu", lr=0.02)
    for arguments, skipped in (("", 1), ("core", 1), ("--all", 3), ("--cpu", 0), ("theirs", 0)):
        assert sum(printed("plan", "--json", *arguments.split())["skipped"].values()) == skipped


def test_doctor_names_the_data_and_the_command_that_adds_it(
    home: Path, printed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sources, "usual_folders", lambda cache: [])
    assert "POC_DATA" in printed("doctor")
    folder = tmp_path / "cifar"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").touch()
    for complete in (False, True):
        if complete:
            (folder / "test_batch.bin").touch()
        for arguments, variable in ((["--data", str(folder)], ""), ([], str(folder))):
            monkeypatch.setenv("POC_DATA", variable)
            lines = [line.split(maxsplit=1) for line in printed("doctor", *arguments).splitlines()]
            (kind,) = (kind for kind, text in lines if f"CIFAR-10 in {folder}" in text)
            assert kind == ("data" if complete else "missing")


def test_run_all_and_poc_run_have_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    script = subprocess.run([HOME / "run_all.sh", "--help"], capture_output=True, text=True, check=True).stdout
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    command = capsys.readouterr().out
    options = [set(re.findall(r"^ +(--[a-z]+)", text, re.MULTILINE)) for text in (script, command)]
    assert options[0] == options[1] - {"--help"}
    assert len(options[0]) > 15


def test_show_and_compare_find_runs_in_all_folders(home: Path, printed: Any) -> None:
    runs = [record_of(), record_of(run={"learning_rate": 0.1}, run_id="other")]
    for record in runs:
        journal.append(home / "results" / "mine" / journal.FILE, record)
    first, second = (record.run.id for record in runs)
    assert first in printed("show", first)
    assert "lr " in printed("compare", first, f"{second}@test")
    # A record that somebody sent is compared with what was measured here.
    received = record_of(infrastructure="theirs", started="2026-12-01T10:00:00+00:00")
    journal.append(home.parent / "received" / "theirs" / journal.FILE, received)
    names = (f"{first}@test", f"{first}@theirs")
    assert "machine " in printed("compare", *names, "--with", str(home.parent / "received"))
