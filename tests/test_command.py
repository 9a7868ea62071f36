"""The command line: what it chooses, prints and refuses, and the way from a recipe to a page of results."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import poc.cli.options as cli
from poc import CIFAR10, Synthetic
from poc.cli import main
from poc.config.run import Run
from poc.data import sources
from poc.host import hardware
from poc.published import prices
from poc.records import journal, last_run
from poc.records.last_run import LastRun
from poc.records.record import COMPLETED, OUT_OF_MEMORY, Record
from poc.values import from_plain, to_plain
from tests.builders import add, recipe_file, record_of, run_of
from tests.launch import HOME, NO_PAGES, finish, nameless_user, python, records, run_here
from tests.test_search import Training


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("POC_DATA", raising=False)
    return tmp_path


@pytest.fixture
def home(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a recipe in each folder; the current folder is next to it."""
    for name in ("recipes/core", "recipes/studies/theirs", "recipes/research/search", "recipes/studies/_shared"):
        path = tmp_path / "home" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        recipe_file(path)
    monkeypatch.setattr(cli, "HOME", tmp_path / "home")
    monkeypatch.setattr(hardware, "PRODUCT_NAME", tmp_path / "product_name")
    return tmp_path / "home"


@pytest.mark.slow
def test_recipes_become_a_results_page_and_no_run_is_done_twice(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe_file(folder / "mine.py", kind=["cpu", "gpu"], epochs=2, repeats=2)
    recipe_file(folder / "yours.py", epochs=2, repeats=3)
    arguments = ["run", "mine.py", "yours.py", "--results", "out", "--machine", "A machine", "--price", "0.5"]
    assert main([*arguments, "--verbose"]) == 0
    progress = capfd.readouterr().err
    # The same run of another recipe shares its repeats.
    assert len(re.findall(r"yours .*: already in the journal", progress)) == 2
    records = journal.read(journal.paths(folder / "out"))
    assert all(record.run_id in progress for record in records)
    assert [record.outcome for record in records] == ["completed", "skipped", "completed", "completed"]
    assert len({record.run_id for record in records}) == 2
    assert records[0].price_per_hour == 0.5
    assert "A machine" in (folder / "out" / "results.md").read_text()
    assert (folder / "out" / "rows.csv").exists()
    last = last_run.read(folder / "out")
    assert last is not None
    assert (last.recipes, last.machine, last.quick) == (("mine.py", "yours.py"), "A machine", False)
    assert (last.runs, list(last.skipped.values())) == ((records[0].run_id,), [1])
    monkeypatch.setattr("poc.cli.run.write_report", lambda *_: None)
    assert main([*arguments, "--verbose"]) == 0
    assert capfd.readouterr().err.count("already in the journal") == 5
    assert journal.read(journal.paths(folder / "out")) == records
    # Another machine has a journal of its own.
    assert main(["run", "yours.py", "--quick", "--results", "out", "--machine", "B"]) == 0
    (other,) = journal.read([folder / "out" / "B" / journal.FILE])
    assert (other.infrastructure, other.run.quick) == ("B", True)
    assert journal.read(journal.paths(folder / "out")) == [*records, other]


def test_again_repeats_all_and_after_a_stop_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poc.run.sweep.LocalLauncher", lambda context: Training())
    results, rates = tmp_path / "results", [0.01, 0.02]
    recipe = recipe_file(tmp_path / "mine.py", lr=rates, epochs=1)
    # An earlier command was stopped after the first of two runs, both of which were recorded before.
    before, since, after = (f"2026-11-21T10:0{minute}:00+00:00" for minute in range(3))
    for rate, started in ((0.01, before), (0.02, before), (0.01, after)):
        record = replace(record_of(infrastructure="here", started=started), run=run_of(lr=rate, epochs=1))
        add(results, replace(record, hardware=hardware.detect()))
    request = LastRun(recipes=(str(recipe),), runs=(), skipped={}, machine="here", again_since=since)
    last_run.write(results, request)
    for expected in ([0.02], [0.02, *rates], [0.02, *rates, *rates]):
        if len(expected) > 3:  # a command with other recipes was stopped
            last_run.write(results, replace(request, recipes=("other.py",)))
        time.sleep(1)  # starts are recorded in whole seconds, and a run here may take less than one
        run_here(recipe, tmp_path, "--again")
        assert [record.run.learning_rate for record in records(tmp_path)[3:]] == expected


@pytest.mark.parametrize("limit", [320, 0])
def test_the_largest_batch_that_fits_is_found_and_nothing_is_tried_twice(
    folder: Path, printed: Any, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fate(run: Run) -> tuple[str, str]:
        if run.batch_per_device > limit:
            return OUT_OF_MEMORY, ""
        time.sleep(1)  # records of a run that start in the same second are the same one
        return COMPLETED, ""

    monkeypatch.setattr("poc.run.sweep.LocalLauncher", lambda context: Training(fate))
    data = Synthetic(train=640 if limit else 2, validation=160)
    recipe = recipe_file(folder / "mine.py", data=data, batch_per_device="largest", epochs=1, repeats=2)
    assert printed("plan", "mine.py", "--verbose").count("or the largest batch that fits") == 2
    run_here(recipe, folder)
    tried = [(record.run.batch_per_device, record.outcome) for record in records(folder)]
    too_large = [(batch, "out of memory") for batch in ((512, 384) if limit else (2, 1))]
    assert tried == [*too_large, *[(256, "completed")] * (2 if limit else 0)]
    run_here(recipe, folder)
    assert len(records(folder)) == len(tried)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("run cifar10_resnet5", "did you mean 'cifar10_resnet50'"),
        ("plan nowhere/quick.py", "nowhere/quick.py"),
        ("plan _shared", "'_shared'"),
        ("plan quick --set batch_per_devise=3", "quick.py: --set: no field 'batch_per_devise'; did you mean"),
        ("plan quick --set batch=3", "did you mean 'batch_per_device'?"),
        ("plan quick --set lr=1 --set lr=2", "--set lr: "),
        ("plan quick --set lr=1e999", "finite"),
        ("plan quick --set evaluate=no", "True or False"),
        ("plan quick.txt", "no Python file"),
        ("plan images.py mine.py --set model=nt.py:net", "images.py: model: there is no file 'nt.py'"),
        ("plan ended.py", "(ended.py, line 3)"),
        ("plan minee.py", "did you mean 'mine.py'?"),
        ("plan scripts/minee.py", "did you mean 'scripts/mine.py'?"),
        ("plan quick --price -1", "--price"),
        ("run quick --checkpoints /dev/null/x", "--checkpoints"),
        ("report --target 0", "--target"),
        ("advise images.py --steps 3", "--steps"),
        ("run quick --patience 1e999", "finite"),
        ("run quick --hours many", "--hours"),
        ("run quick --data nowhere", "--data: "),
        ("advise images.py --data empty --results out", "CIFAR-10"),
        ("run quick --only zzz", "'zzz'"),
        ("run quick --dollars 3 --machine mine", "--dollars"),
        ("run quick --machine caf\udce9", "--machine"),
        ("report --price p3.2xlarge", "NAME=DOLLARS"),
        ("report --results there --price EPIC-2=12", "did you mean 'EPYC-2'?"),
        ("report --results there --with nowhere", "nowhere"),
        ("report --results nowhere", "./run_all.sh --quick, or give --with "),
        ("publish --results empty", "./run_all.sh --quick"),
        ("publish --results there --price EPIC-2=12", "did you mean 'EPYC-2'?"),
        ("compare 0 1 --results there/EPYC-2", "MACHINE/journal.jsonl"),
        ("compare there other", "compare: "),
        ("compare there nowhere --results there", "two folders"),
        ("plan mine.py --set framework=mxnett", "mine.py: framework: 'mxnett' is not allowed; did you mean 'mxnet'?"),
        ("plan mine.py --set lr=Linear(base=0.1,per=128,warmup_epochs=99)", "mine.py: lr: warmup_epochs"),
        ("run mine.py --study mine.csv", "samples_per_second: 'fast'"),
        ("run mine.py --trace 3 --cluster local", "--trace"),
        ("advise largest.py --results out", "batch_per_device='largest'"),
        ("lr-range mine.py --low 0", "--low"),
        ("lr-range mine.py --low 20", "--low: 20"),
        ("lr-range mine.py --set kind=gpu", "mine.py: needs 1 GPU"),
        ("lr-range mine.py --set batch_per_device=largest", "batch_per_device"),
        ("", "required"),
    ],
)
def test_a_mistake_ends_with_one_line_and_exit_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, field: str
) -> None:
    recipe_file(folder / "mine.py")
    recipe_file(folder / "largest.py", kind="gpu", batch_per_device="largest")
    recipe_file(folder / "images.py", data=CIFAR10(crop=32))
    (folder / "empty").mkdir()
    (folder / "quick.txt").write_text("no recipe")
    (folder / "scripts").mkdir()
    (folder / "scripts/mine.py").touch()
    (folder / "ended.py").write_text("import asyncio\n\nraise asyncio.CancelledError\n")
    (folder / "mine.csv").write_text("model,samples_per_second\nvgg16,fast\n")
    for seed, name in enumerate(("there", "other")):  # without a common run
        add(folder / name, record_of(infrastructure="EPYC-2", run={"seed": seed}))
    before = set(folder.rglob("*"))
    results = ["--results", "out"] if arguments.startswith(("run ", "lr-range ")) else []
    assert main([*arguments.split(), *results]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert field in line
    assert set(folder.rglob("*")) == before


def test_a_journal_in_a_wrong_folder_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("", "EPYC-2", "old/EPYC-2"):
        journal.append(folder / "out" / place / journal.FILE, record_of())
    assert main(["show", record_of().run.id, "--results", "out"]) == 0
    message = capsys.readouterr().err
    named = [str(folder / "out" / place / journal.FILE) in message for place in ("", "EPYC-2", "old/EPYC-2")]
    assert named == [True, False, True]
    # The folder of one machine instead of that of all.
    assert main(["report", "--results", "out/EPYC-2"]) == 2
    assert f"--results {folder / 'out'}\n" in capsys.readouterr().err


def test_a_missing_folder_of_images_matters_only_to_recipes_of_real_images(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POC_DATA", str(folder / "nowhere"))
    recipe_file(folder / "skipped.py", kind="gpu")
    recipe_file(folder / "images.py", data=CIFAR10(crop=32))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # asks for no cluster
    monkeypatch.setattr("poc.cli.run.write_report", lambda *_: None)
    for recipe, status in (("skipped.py", 0), ("images.py", 2)):
        assert main(["run", recipe, "--machine", "here", "--results", "out"]) == status
    assert "POC_DATA" in capsys.readouterr().err.splitlines()[-1]
    (record,) = journal.read(journal.paths(folder / "out"))
    assert record.outcome == "skipped"


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without a name")
@pytest.mark.parametrize(("home", "module"), [(None, NO_PAGES), ("/", "poc")])
def test_a_user_without_a_name_or_a_home_to_write_in_sees_no_traceback(
    home: str | None, module: str, tmp_path: Path
) -> None:
    recipe = recipe_file(tmp_path / "mine.py", epochs=1)
    variables = {"HOME": home, "TMPDIR": str(tmp_path), "POC_CACHE": None, "MPLCONFIGDIR": None}
    variables |= dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME"))
    assert "Traceback" not in finish(
        recipe, tmp_path, prefix=nameless_user(tmp_path), environment=variables, module=module
    )
    assert [record.outcome for record in records(tmp_path)] == ["completed"]


def test_models_are_listed_with_their_cost(printed: Any) -> None:
    (line,) = [line for line in printed("models").splitlines() if line.startswith("vgg16 ")]
    assert line.split()[1:4] == ["3x224x224", "138,357,544", "15,470.3"]


def test_a_locale_without_dashes_and_arrows_shows_the_scorecard(tmp_path: Path) -> None:
    add(tmp_path, record_of(), record_of(run={"seed": 1}))
    report = f"from poc.cli import main; main(['report', '--results', {str(tmp_path)!r}])"
    done = python(report, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2192" in done.stdout


def test_a_plan_imports_no_package_of_the_pages_and_only_a_session_imports_a_framework() -> None:
    done = python(
        "import sys; from poc.cli import main; assert main(['plan', 'quick']) == 0; planned = {*sys.modules}\n"
        "import poc.data, poc.report, poc.run.parent, poc.run.worker, poc.frameworks as f\n"
        "labels = [f.load(name).LABEL for name in f.FRAMEWORKS]\n"
        "early = {'pandas', 'scipy', 'matplotlib', 'ray', 'torch', 'mxnet'} & planned\n"
        "print(early | {'mxnet', 'torch'} & {*sys.modules}, file=sys.stderr)"
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "set()"), done.stderr


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
    recipe_file(home.parent / "mine.py")
    planned = printed("plan", "--json", *arguments.split())["planned"]
    assert sorted({line["recipe"] for line in planned}) == names


def test_a_plan_has_what_is_done_what_is_left_and_what_is_skipped(home: Path, printed: Any) -> None:
    recipe_file(home / "recipes" / "core.py", kind=["cpu", "gpu"], lr=[0.01, 0.02])
    before = printed("plan", "--json", "--price", "36", "--machine", "mine")
    assert (before["runs"], before["done"], before["machine"]) == (2, 0, "mine")
    assert list(before["skipped"].values()) == [2]
    # A run in the journal of this machine is done.
    run = run_of(lr=0.01)
    fields = {**record_of().to_json(), "run": to_plain(run), "run_id": run.id, "infrastructure": "mine"}
    fields.update(dataset="synthetic", environment=None, wall=1.0, hardware=to_plain(hardware.detect()))
    add(home / "results", from_plain(Record, fields))
    after = printed("plan", "--json", "--machine", "mine")
    assert (after["runs"], after["done"], after["price_per_hour"]) == (2, 1, None)
    verbose = printed("plan", "--verbose")
    assert all(line["id"] in verbose for line in before["planned"])


@pytest.mark.parametrize("product", ["p4d.24xlarge", "Standard PC (Q35)", ""])
def test_an_instance_type_with_a_price_is_the_name_of_the_machine(home: Path, printed: Any, product: str) -> None:
    if product:
        (home.parent / "product_name").write_text(f"{product}\n")
    plan, doctor, facts = printed("plan", "--json"), printed("doctor"), printed("doctor", "--json")
    price = prices.load({}).of(product)
    assert plan["machine"] == (product if price else hardware.detect().describe())
    assert plan["machine"] in doctor.splitlines()[0]
    assert facts["machine"] == [plan["machine"]]
    assert plan["price_per_hour"] == (price and price.dollars_per_hour)
    assert (f"{price.dollars_per_hour:.2f}" if price else "--price") in doctor


def test_cpu_runs_on_a_machine_with_gpus_are_skipped_unless_they_are_named(
    home: Path, printed: Any, simulate: Any
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
    monkeypatch.setattr(sources, "usual_folders", lambda cache, name: [])
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


def test_doctor_gives_the_size_of_the_checkpoints_in_the_cache(
    printed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POC_CACHE", str(tmp_path))
    assert "disk" not in printed("doctor", "--json")
    folder = tmp_path / "checkpoints/a-run"
    folder.mkdir(parents=True)
    for number in (0, 1):
        (folder / f"worker{number}-10.npz").write_bytes(bytes(1_500_000))
    (line,) = printed("doctor", "--json")["disk"]
    assert "3 MB" in line
    assert str(folder.parent) in line


def test_run_all_and_poc_run_have_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    script = subprocess.run([HOME / "run_all.sh", "--help"], capture_output=True, text=True, check=True).stdout
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    command = capsys.readouterr().out
    options = [set(re.findall(r"^ +(--[a-z]+)", text, re.MULTILINE)) for text in (script, command)]
    for_the_installation = {"--framework", "--installed"}
    assert options[0] - for_the_installation == options[1] - {"--help"}
    assert len(options[0]) > 15


def test_show_and_compare_find_runs_in_all_folders(home: Path, printed: Any) -> None:
    runs = [record_of(), record_of(run={"learning_rate": 0.1}, run_id="other")]
    add(home / "results", *runs)
    first, second = (record.run.id for record in runs)
    assert first in printed("show", first)
    assert "lr " in printed("compare", first, f"{second}@test")
    # A record that somebody sent is compared with what was measured here.
    received = record_of(infrastructure="theirs", started="2026-12-01T10:00:00+00:00")
    add(home.parent / "received", received)
    names = (f"{first}@test", f"{first}@theirs")
    assert "machine " in printed("compare", *names, "--with", str(home.parent / "received"))
