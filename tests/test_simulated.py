"""All pages of simulated machines (tests/simulated.py): complete, possible, and about that machine alone."""

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from poc import report
from poc.published import load, prices
from poc.records import journal
from poc.report import chart, explorer
from poc.report.markdown import RATE
from tests import simulated
from tests.pages import check, tables
from tests.simulated import MACHINES

# A machine, and the content of its journal: one of each kind in the quick suite.
QUICK = (("8 A100", "core"), ("4 A10G", "readme"), ("2 CPU cores", "quick"), ("8 V100", "other"), ("8 K80", "nothing"))
EVERY = (*QUICK, ("1 H100", "core"), ("2 CPU cores", "core"), ("8 V100", "failures"), ("8 K80", "detail"))
STUDIES = load()
K80, P100 = "8x Tesla K80 (2017)", "DGX-1, 8x P100 (2017)"
PUBLISHED = ("8x Tesla K80", "DGX-1, 8x P100", "CPU of AWS p2.8x", "Intel Xeon E5-2666 v3", "Intel Core i5-6300U")
MODEL = "cifar_resnet50_v2"


class Simulated:
    """The pages of one machine and its journal; those of `QUICK[0]` with all studies and figures."""

    def __init__(self, folder: Path, machine: str, content: str) -> None:
        self.folder, self.machine, self.content = folder, f"simulated {machine}", content
        self.gpus = MACHINES[machine][1]
        is_complete = (machine, content) == QUICK[0]
        with contextlib.redirect_stderr(io.StringIO()), pytest.MonkeyPatch.context() as patch:
            patch.setattr(explorer, "page", lambda table, cache: "")
            if not is_complete:
                patch.setattr(chart, "svg", lambda figure: "<svg/>")
                patch.setattr(chart, "lines", lambda *_, **__: None)
            self.journal = simulated.write_journal(machine, content, folder)
            self.written = report.write(
                journal.read([self.journal]),
                STUDIES if is_complete else STUDIES[:1],
                page=folder / "results.md",
                folder=folder,
                prices=prices.load({}),
            )
        self.pages = {path.name: path.read_text() for path in sorted(folder.glob("*.md"))}
        self.page = self.pages["results.md"]
        self.tables = {title: section[0] for title, section in tables(self.page).items()}
        self.records = [json.loads(line) for line in self.journal.read_text().splitlines()]

    @property
    def models(self) -> list[str]:
        """The pages about one model each."""
        return [self.page, *(page for name, page in self.pages.items() if name.startswith("model_"))]

    @property
    def scorecard(self) -> dict[str, list[str]]:
        """The seven cells of the scorecard by machine; this machine's name is without "this machine"."""
        (lines,) = (lines for title, lines in self.tables.items() if title.startswith("Scorecard"))
        names = [name for name in lines[0] if name != "metric"]
        own = f"this machine ({self.machine})"
        return {self.machine if name == own else name: [line[name] for line in lines] for name in names}


def every_page_is_complete_possible_and_about_this_machine(made: Simulated) -> None:
    assert len(made.page.splitlines()) <= 120
    assert not re.search(r"(^|,)(nan|None|inf)(,|$)", (made.folder / "rows.csv").read_text(), re.MULTILINE)
    for name in made.pages:
        check(made.folder / name)
    text = "\n".join(made.models)
    text += "".join(path.read_text() for path in (made.folder / "figures").glob("*.svg"))
    foreign = {f"simulated {name}" for name in MACHINES} - {made.machine}
    foreign |= {row.machine for study in STUDIES[1:] for row in study.rows} | {study.name for study in STUDIES[1:]}
    foreign |= {path.name for path in (simulated.HOME / "reference").iterdir() if path.is_dir()} - {"figures"}
    foreign = {name for name in foreign if len(name) > 3}  # some studies number their machines
    assert not [name for name in foreign if re.search(rf"\b{re.escape(name)}\b", text)]
    for lines in made.tables.values():
        names = {
            re.sub(r" \(2017\)|, quick|, whole trainings", "", line.get("machine", made.machine)) for line in lines
        }
        assert names <= {made.machine, *PUBLISHED}
    assert set(made.scorecard) == {made.machine} | (set() if made.content == "other" else {K80, P100})
    # Published rows are explained only where there are any.
    assert ("2017" in made.page) == (made.content != "other")


def the_header_has_the_counts_of_the_journal(made: Simulated) -> None:
    counts = Counter(
        record["reason"] if record["reason"] == "interrupted" else record["outcome"] for record in made.records
    )
    always = ("completed", "failed", "skipped")
    names = ("completed", "diverged", "out of memory", "failed", "interrupted", "skipped")
    expected = [f"{counts[name]} {name}" for name in names if counts[name] or name in always]
    assert ", ".join(expected) in made.page.split("\n## ")[0]
    skipped = made.tables.get("Not run", [])
    assert sum(int(line["runs"]) for line in skipped) == counts["skipped"]
    assert len(skipped) <= 5
    # The terminal has the same scorecard.
    assert all(cell in made.written for cell in made.scorecard[made.machine])


def the_scorecard_of_the_core_recipes_is_full(made: Simulated) -> None:
    cells = made.scorecard[made.machine]
    measured = [cell for cell in cells if re.match(r"\$?\d", cell)]
    if made.gpus > 1:
        assert len(measured) == 7
        assert cells[1].endswith(f"{made.gpus} GPUs")
        assert "—" not in cells[2]
    elif made.gpus == 1:
        assert [cell for cell in cells if cell not in measured] == ["this machine has one device"] * 2
    else:
        assert len(measured) >= 5
        assert "--price" in cells[6]
    # A recipe that measures what is missing exists.
    for recipe in re.findall(r"run_all\.sh (\w+)", made.page):
        assert (simulated.HOME / "recipes" / f"{recipe}.py").is_file()


def the_readmes_recipe_joins_the_comparison_with_its_warm_up(made: Simulated) -> None:
    lines = [line for line in made.tables["Accuracy and throughput"] if line["machine"] == made.machine]
    assert [line["devices"] for line in lines] == ["1 GPU", f"{made.gpus} GPUs"]
    assert all("warm-up" in line["lr"] for line in lines)
    assert all(line[column] for line in lines for column in (RATE, "accuracy", "s/epoch", "$ per run"))
    assert any(line["machine"] == K80 for line in made.tables["Scaling"])
    assert {line["recipe"] for line in made.tables["Your recipes"]} == {"mine"}


def other_models_have_pages_of_their_own(made: Simulated) -> None:
    models = {record["run"]["model"] for record in made.records if record["outcome"] == "completed"}
    assert len(made.models) == len(models)
    for page in made.models:
        assert "ResNet-50" not in page
        (lines,) = (section[0] for title, section in tables(page).items() if "Scorecard" in title)
        cells = [list(line.values())[1] for line in lines]
        assert len(cells) == 7
        assert any(re.match(r"\d", cell) for cell in cells[:2])  # samples/s on one device or on all
        assert not any("run_all" in cell for cell in cells)
        assert {"Accuracy and throughput", "Learning rate and global batch"} <= set(tables(page))
    titles = {"cifar_resnet20_v2": "# ResNet-20", "cifar_vgg16": "# VGG-16"}
    assert {page.split(" on ")[0] for page in made.models} == {titles[model] for model in models}


def what_failed_or_diverged_is_no_result_and_has_its_reason(made: Simulated) -> None:
    failed = [record for record in made.records if record["outcome"] not in ("completed", "skipped")]
    outcomes = {"failed"} if made.content == "nothing" else {"diverged", "failed", "out of memory"}
    assert {record["outcome"] for record in failed} == outcomes
    assert all(record["reason"] in made.pages["method.md"] for record in failed)
    assert any(record["reason"] in line["accuracy"] for record in failed for line in made.tables["Your recipes"])
    # A run that diverged has an accuracy of 0.1, and no other run has.
    sections = [section for page in made.pages.values() for section in tables(page).values()]
    lines = [line for section in sections for table in section for line in table]
    assert "0.100" not in [cell for line in lines for column, cell in line.items() if "accuracy" in column]
    if made.content == "nothing":
        assert {*made.scorecard[made.machine]} == {"failed: see Your recipes"}
        assert not [line for line in made.tables["Accuracy and throughput"] if line["machine"] == made.machine]


def figures_have_the_lines_that_they_should_have_in_letters_that_can_be_read(made: Simulated) -> None:
    figures = {path.stem: path.read_text() for path in (made.folder / "figures").glob("*.svg")}
    assert set(figures) == set(re.findall(r"\(figures/(\w+)\.svg\)", "\n".join(made.pages.values())))
    for name, text in figures.items():
        width = float(re.search(r'viewBox="\S+ \S+ (\S+) ', text)[1])  # type: ignore[index]
        sizes = re.findall(r"font[^;]*?([\d.]+)px", text)
        assert min(map(float, sizes)) * 390 / width >= 6, name  # on a telephone
    assert f"learning_rate_{MODEL}" in figures
    labels = figures[f"scaling_{MODEL}"]
    for batch in (64, 128, 256, 512):
        assert re.search(f">{re.escape(made.machine)}(, whole trainings)?, {batch} per device<", labels)
    assert all(f">{name}" in labels for name in ("8x Tesla K80, 128", "DGX-1, 8x P100, 128"))


CHECKS: dict[Callable[[Simulated], None], tuple[str, ...]] = {
    every_page_is_complete_possible_and_about_this_machine: (*simulated.CONTENTS,),
    the_header_has_the_counts_of_the_journal: (*simulated.CONTENTS,),
    the_scorecard_of_the_core_recipes_is_full: ("core",),
    the_readmes_recipe_joins_the_comparison_with_its_warm_up: ("readme",),
    other_models_have_pages_of_their_own: ("other",),
    what_failed_or_diverged_is_no_result_and_has_its_reason: ("nothing", "failures"),
}
"""The contents of journals with whose pages `test_pages` calls each function."""


@pytest.mark.parametrize(
    "pair", [pytest.param(pair, id=", ".join(pair), marks=() if pair in QUICK else pytest.mark.slow) for pair in EVERY]
)
def test_pages(pair: tuple[str, str], tmp_path: Path) -> None:
    made = Simulated(tmp_path, *pair)
    for function, contents in CHECKS.items():
        if made.content in contents:
            function(made)
    if pair == QUICK[0]:
        figures_have_the_lines_that_they_should_have_in_letters_that_can_be_read(made)
