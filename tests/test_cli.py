"""What the command line chooses and shows before anything trains: recipes, plans, names, prices, data."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from poc.cli import chosen, main
from poc.cli.parser import parser
from poc.data import sources
from poc.host import hardware
from poc.published import prices
from poc.records import journal
from tests.builders import recipe_file, record_of
from tests.launch import HOME
from tests.test_builds import simulate  # noqa: F401  # a fixture


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a recipe in each folder, and the current folder beside it."""
    monkeypatch.setenv("POC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("POC_DATA", raising=False)
    for name in ("recipes/core", "recipes/studies/theirs", "recipes/research/search", "recipes/studies/_shared"):
        path = tmp_path / "home" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        recipe_file(path)
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.setattr(chosen, "HOME", tmp_path / "home")
    monkeypatch.setattr(hardware, "PRODUCT_NAME", tmp_path / "product_name")
    return tmp_path / "home"


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command prints, which has to end well; as an object where it prints JSON."""

    def run(*arguments: str) -> Any:
        assert main(arguments) == 0
        text = capsys.readouterr().out
        return json.loads(text) if "--json" in arguments else text

    return run


def recipes_of(plan: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(line["recipe"] for line in plan["planned"]))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["core"]),
        (["--all"], ["core", "theirs", "search"]),
        (["theirs"], ["theirs"]),
        (["theirs.py", "core"], ["theirs", "core"]),
        (["recipes/research/search.py"], ["search"]),
        (["mine.py"], ["mine"]),
        (["./mine.py", "mine.py"], ["mine"]),
    ],
)
def test_core_recipes_are_the_default_and_others_are_named_or_asked_for(
    home: Path, shown: Any, arguments: list[str], names: list[str]
) -> None:
    recipe_file(home.parent / "user" / "mine.py")
    assert sorted(recipes_of(shown("plan", "--json", *arguments))) == sorted(names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plan thiers", "did you mean 'theirs'"),
        ("plan nowhere/core.py", "nowhere/core.py is not a file"),
        ("plan _shared", "no '_shared'"),
        ("plan core --all", "--all"),
        ("plan --set lr", "give FIELD=VALUE"),
        ("plan --set batch_per_devise=3", "core.py: --set: no field 'batch_per_devise'; did you mean"),
        ("plan --set batch_per_device=0", "core.py: batch_per_device: 0 is not allowed"),
        ("plan --price -1", "--price"),
        ("run --target 1.5", "--target: 1.5 is not allowed"),
        ("report --target 0", "--target: 0.0 is not allowed"),
        ("publish", "no runs yet"),
        ("doctor --data nowhere", "nowhere does not exist"),
    ],
)
def test_a_mistake_is_one_line(home: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str) -> None:
    (home / "results").mkdir()
    assert main(arguments.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said


def test_set_plans_the_runs_of_an_edited_recipe(home: Path, shown: Any) -> None:
    recipe_file(home.parent / "user" / "edited.py", batch_per_device=[16, 64], lr=0.5)
    settings = ("--set", "batch_per_device=16,64", "--set", "lr=0.5")
    plans = [shown("plan", "--json", *arguments)["planned"] for arguments in (("core", *settings), ("edited.py",))]
    ids, edited = ([line["id"] for line in plan] for plan in plans)
    assert ids == edited
    assert len(ids) == 2


def test_a_plan_sums_up_what_is_done_what_is_left_and_why_the_rest_is_skipped(home: Path, shown: Any) -> None:
    counts = [2, 4, 8]
    recipe_file(home / "recipes" / "core.py", kind=["cpu", "gpu"], lr=[0.01, 0.02])
    recipe_file(home / "recipes" / "more.py", kind="gpu", devices=counts, lr=[0.01, 0.02])
    before = shown("plan", "--json", "--price", "36", "--machine", "mine")
    assert (before["runs"], before["done"], before["machine"]) == (2, 0, "mine")
    assert before["dollars"] == pytest.approx(before["seconds"] / 100)
    reasons = Counter(line["skipped"] for line in before["planned"] if line["skipped"])
    assert sum(reasons.values()) == 8
    # Reasons that differ only in a number are one.
    assert list(before["skipped"].values()) == [6, 2]
    assert "2 to 8 GPUs" in next(iter(before["skipped"]))
    # What the journal of this machine holds is done.
    (first, *_) = (line for line in before["planned"] if not line["skipped"])
    record = record_of()
    (run,) = (item.run for _, items in planned(home) for item in items if item.run.id == first["id"])
    fields = {**record.to_json(), "run": run.to_json(), "run_id": run.id, "infrastructure": "mine"}
    fields.update(dataset="synthetic", environment=None, wall=1.0)
    journal.append(home / "results" / "mine" / journal.FILE, type(record).from_json(fields))
    after = shown("plan", "--json", "--machine", "mine")
    assert (after["runs"], after["done"], after["dollars"]) == (2, 1, None)
    assert after["seconds"] < before["seconds"]
    # A person is shown a few lines, or with --verbose each run.
    assert len(shown("plan").splitlines()) < 12
    verbose = shown("plan", "--verbose")
    assert all(line["id"] in verbose for line in before["planned"])


def planned(home: Path) -> Any:
    options = parser().parse_args(["plan"])
    return chosen.plans(options, hardware.detect())


def test_no_more_than_five_reasons_are_shown_and_the_rest_is_summed(home: Path, shown: Any) -> None:
    words = ["gpu"] * 8
    cases = [{"kind": word, "workers": 1, "devices": 1, "lr": 0.01 + number} for number, word in enumerate(words)]
    frameworks = {"framework": ["mxnet", "reference"], "dtype": ["float32", "float16", "bfloat16", "tf32"]}
    recipe_file(home / "recipes" / "core.py", cases=cases, **frameworks, kind=["cpu", "gpu"])
    plan = shown("plan", "--json")
    text = shown("plan").splitlines()
    skipped = [line for line in text if re.match(r" +\d+  ", line)]
    assert len(skipped) <= 5
    assert sum(int(line.split()[0]) for line in skipped) == sum(plan["skipped"].values())


@pytest.mark.parametrize("product", ["p4d.24xlarge", "Standard PC (Q35)", ""])
def test_an_instance_type_with_a_price_is_the_name_of_the_machine(home: Path, shown: Any, product: str) -> None:
    if product:
        (home.parent / "product_name").write_text(f"{product}\n")
    plan, doctor = shown("plan", "--json"), shown("doctor", "--json")
    known = prices.load({}).of(product)
    assert plan["machine"] == (product if known else hardware.detect().describe()) == doctor["machine"]
    assert plan["price_per_hour"] == (known and known.dollars_per_hour)
    assert (f"{known.dollars_per_hour:.2f}" if known else "--price") in doctor["price"]
    assert shown("plan", "--json", "--machine", "mine")["machine"] == "mine"


def test_cpu_runs_on_a_machine_with_gpus_are_for_whoever_asks(
    home: Path,
    shown: Any,
    simulate: Any,  # noqa: F811  # the fixture
) -> None:
    simulate("4 V100")
    fields: dict[str, Any] = {"framework": "mxnet", "model": "cifar_resnet8_v2"}
    recipe_file(home / "recipes" / "core.py", **fields, kind=["cpu", "gpu"])
    recipe_file(home / "recipes" / "studies" / "theirs.py", **fields, kind="cpu", lr=0.02)

    def skipped(*arguments: str) -> dict[str, int]:
        return dict(shown("plan", "--json", *arguments)["skipped"])

    reason = "CPU run on a machine with GPUs (--cpu runs it)"
    assert skipped() == skipped("core") == {reason: 1}
    assert skipped("--all") == {reason: 3}
    for asked in (("--cpu",), ("theirs",), ("core", "--set", "kind=cpu"), ("--set", "kind=gpu")):
        assert skipped(*asked) == {}


def test_doctor_names_the_data_and_the_command_that_mends_what_is_missing(
    home: Path, shown: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sources, "usual_folders", lambda release: [])
    facts = shown("doctor", "--json")
    assert "download" in facts["data"]
    assert any("POC_DATA" in missing["command"] for missing in facts["missing"])
    assert {"cores", "gpus"} < facts["hardware"].keys()
    folder = tmp_path / "cifar"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").touch()
    for there in (False, True):
        if there:
            (folder / "test_batch.bin").touch()
        for arguments, variable in ((["--data", str(folder)], ""), ([], str(folder))):
            monkeypatch.setenv("POC_DATA", variable)
            facts = shown("doctor", "--json", *arguments)
            assert (f"CIFAR-10 in {folder}" in facts["data"]) == there
            wanted = [missing for missing in facts["missing"] if str(folder) in missing["what"]]
            assert len(wanted) == (not there)
    text = shown("doctor")
    assert all(missing["command"] in text for missing in facts["missing"])
    assert facts["price"] in text


def test_run_all_and_poc_run_have_the_same_options(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = subprocess.run([HOME / "run_all.sh", "--help"], capture_output=True, text=True, check=True).stdout
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    own = capsys.readouterr().out
    options = [set(re.findall(r"^ +(--[a-z]+)", text, re.MULTILINE)) for text in (script, own)]
    assert options[0] == options[1] - {"--help"}
    assert {"--set", "--all", "--cpu", "--target", "--verbose", "--machine"} <= options[0]


def test_programs_read_what_show_and_compare_found(home: Path, shown: Any) -> None:
    runs = [record_of(), record_of(run={"learning_rate": 0.1}, run_id="other")]
    for record in runs:
        journal.append(home / "results" / "mine" / journal.FILE, record)
    first, second = (record.run.id for record in runs)
    assert shown("show", first, "--json")["run_id"] == first
    compared = shown("compare", first, f"{second}@test", "--json")
    assert compared["run_ids"] == [first, second]
    assert "lr" in compared["differences"]
    assert compared["samples_per_second"]["interval"] is None
    # What somebody sent is compared with what was measured here.
    sent = record_of(infrastructure="theirs", started="2026-12-01T10:00:00+00:00")
    journal.append(home.parent / "sent" / "theirs" / journal.FILE, sent)
    names = (f"{first}@test", f"{first}@theirs")
    assert "machine" in shown("compare", *names, "--with", str(home.parent / "sent"), "--json")["differences"]
