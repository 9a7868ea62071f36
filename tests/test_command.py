"""The command line: what it shows, what it refuses, and the way from a recipe to a page of results."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from poc import CIFAR10, ImageNet, Synthetic
from poc.__main__ import main
from poc.records import journal, last_run
from tests.builders import recipe_file, record_of
from tests.launch import finish, python, records


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("POC_DATA", raising=False)
    return tmp_path


@pytest.mark.slow
def test_recipes_become_a_results_page_and_no_run_is_done_twice(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe_file(folder / "mine.py", kind=["cpu", "gpu"], epochs=2, repeats=2)
    recipe_file(folder / "yours.py", epochs=2, repeats=3)
    arguments = ["run", "mine.py", "yours.py", "--results", "out", "--machine", "A machine", "--price", "0.5"]
    assert main([*arguments, "--verbose"]) == 0
    progress = capfd.readouterr().err
    # The same run of another recipe shares its repeats.
    assert len(re.findall(r"yours [12]/3 .*: in the journal already", progress)) == 2
    records = journal.read(journal.paths(folder / "out"))
    assert all(record.run_id in progress for record in records)
    assert [record.outcome for record in records] == ["completed", "skipped", "completed", "completed"]
    assert len({record.run_id for record in records}) == 2
    assert records[0].price_per_hour == 0.5
    page = (folder / "out" / "results.md").read_text()
    assert "A machine" in page
    assert (folder / "out" / "rows.csv").exists()
    last = last_run.read(folder / "out")
    assert last is not None
    assert (last.recipes, last.machine, last.quick) == (("mine.py", "yours.py"), "A machine", False)
    assert (last.runs, list(last.skipped.values())) == ((records[0].run_id,), [1])
    assert main([*arguments, "--verbose"]) == 0
    assert capfd.readouterr().err.count("in the journal already") == 5
    assert journal.read(journal.paths(folder / "out")) == records
    assert (folder / "out" / "results.md").read_text() == page
    # Another machine has a journal of its own.
    assert main(["run", "yours.py", "--quick", "--results", "out", "--machine", "B"]) == 0
    (other,) = journal.read([folder / "out" / "B" / journal.FILE])
    assert (other.infrastructure, other.run.quick) == ("B", True)
    assert journal.read(journal.paths(folder / "out")) == [*records, other]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [320, 0])
def test_the_largest_batch_that_fits_is_found_and_nothing_is_tried_twice(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setenv("POC_FAULT", str(limit))
    data = Synthetic(train=640 if limit else 4, validation=160)
    recipe_file(folder / "mine.py", data=data, batch_per_device="largest", epochs=1, repeats=2)
    assert main(["plan", "mine.py", "--verbose"]) == 0
    assert capfd.readouterr().out.count("or the largest batch that fits") == 2
    arguments = ["run", "mine.py", "--results", "out", "--machine", "here"]
    assert main(arguments) == 0
    records = journal.read(journal.paths(folder / "out"))
    tried = [(record.run.batch_per_device, record.outcome) for record in records]
    too_large = [(batch, "out of memory") for batch in ((512, 384) if limit else (4, 3, 2, 1))]
    assert tried == [*too_large, *[(256, "completed")] * (2 if limit else 0)]
    assert main(arguments) == 0
    assert journal.read(journal.paths(folder / "out")) == records


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("run cifar10_resnet5", "did you mean 'cifar10_resnet50'"),
        ("plan nowhere/quick.py", "nowhere/quick.py"),
        ("plan _shared", "'_shared'"),
        ("plan bad.py", "bad.py: batch_per_device"),
        ("plan quick --set lr", "FIELD=VALUE"),
        ("plan quick --set batch_per_devise=3", "quick.py: --set: no field 'batch_per_devise'; did you mean"),
        ("plan quick --price -1", "--price"),
        ("report --target 0", "--target"),
        ("advise images.py --steps 3", "--steps"),
        ("run quick --patience 1e999", "--patience"),
        ("run quick --hours many", "--hours"),
        ("run quick --data nowhere", "--data: "),
        ("run imagenet.py --data empty", "imagenet_train.rec is missing"),
        ("advise images.py --data empty --results out", "CIFAR-10"),
        ("run quick --only zzz", "'zzz'"),
        ("run quick --dollars 3 --machine mine", "--dollars"),
        ("report --price p3.2xlarge", "NAME=DOLLARS"),
        ("report --results there --with nowhere", "--with: "),
        ("report --results nowhere", "./run_all.sh --quick"),
        ("publish --results empty", "./run_all.sh --quick"),
        ("compare 0 1 --results there/EPYC-2", "MACHINE/journal.jsonl"),
        ("rum", "invalid choice"),
        ("", "required"),
    ],
)
def test_a_mistake_ends_with_one_line_and_exit_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, field: str
) -> None:
    recipe_file(folder / "bad.py", batch_per_device=0)
    images = ImageNet(crop=32, resize=40, train=2, validation=1)
    recipe_file(folder / "imagenet.py", data=images, batch_per_device=1)
    recipe_file(folder / "images.py", data=CIFAR10(crop=32))
    (folder / "empty").mkdir()
    journal.append(folder / "there" / "EPYC-2" / journal.FILE, record_of(infrastructure="EPYC-2"))
    before = set(folder.rglob("*"))
    results = ["--results", "out"] if arguments.startswith("run ") else []
    assert main([*arguments.split(), *results]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert field in line
    assert set(folder.rglob("*")) == before


def test_a_missing_folder_of_images_matters_only_to_recipes_of_real_images(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POC_DATA", str(folder / "nowhere"))
    recipe_file(folder / "skipped.py", kind="gpu")
    recipe_file(folder / "images.py", data=CIFAR10(crop=32))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # asks for no cluster
    for recipe, status in (("skipped.py", 0), ("images.py", 2)):
        assert main(["run", recipe, "--machine", "here", "--results", "out"]) == status
    assert "POC_DATA" in capsys.readouterr().err.splitlines()[-1]
    (record,) = journal.read(journal.paths(folder / "out"))
    assert record.outcome == "skipped"


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without a name")
@pytest.mark.parametrize("home", [None, "/root", "/"])
def test_a_user_without_a_name_or_a_home_to_write_in_sees_no_traceback(home: str | None, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", epochs=1)
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == "root" and path.parent != Path("/"):
            path.chmod(0o777)
    variables = {"HOME": home, "TMPDIR": str(tmp_path), "POC_CACHE": None, "MPLCONFIGDIR": None}
    variables |= dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME"))
    # Root's capability to read, since Python may be in root's home, but not to write there.
    prefix = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "--inh-caps=+dac_read_search"]
    prefix.append("--ambient-caps=+dac_read_search")
    assert "Traceback" not in finish(recipe, tmp_path, prefix=prefix, environment=variables)
    assert [record.outcome for record in records(tmp_path)] == ["completed"]


def test_networks_are_listed_with_their_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["networks"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("vgg16 ")]
    assert line.split()[1:4] == ["3x224x224", "138,357,544", "15,470.3"]


def test_a_plan_imports_nothing_that_only_pages_need() -> None:
    done = python("import sys; from poc.cli import main; main(['plan', 'quick']); print(*sys.modules, file=sys.stderr)")
    assert done.returncode == 0
    assert not {"pandas", "scipy", "matplotlib", "ray", "torch", "mxnet"} & set(done.stderr.split())
