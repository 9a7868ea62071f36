"""All pages of machines that nobody here has (tests/simulated.py): nothing in them is empty, broken or impossible."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import re
import statistics
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from poc import report, studies
from poc.records import journal
from poc.report import chart
from poc.studies import prices
from tests import simulated
from tests.simulated import CONTENTS, MACHINES

HOUR = 3600.0
# Gradient synchronisation of GPUs is that of CPUs' workers, too: two machines show all that there is.
COMBINATIONS = [
    (machine, content)
    for machine, content in itertools.product(MACHINES, CONTENTS)
    if content != "everything" and (content != "detail" or machine in ("8 A100", "2 CPU cores"))
]
GPUS = {machine: MACHINES[machine][1] for machine in MACHINES if MACHINES[machine][1] > 1}
NEVER_EMPTY = (
    *(
        "machine",
        "network",
        "device",
        "devices",
        "engine",
        "batch a device",
        "total batch",
        "way",
        "scaling",
        "minutes",
    ),
    *("division", "measured", "takes", "runs", "CPU", "cores", "target, reached", "whole step (ms)"),
)
BROKEN = r"\b(?<!loss was )(None|nan|NaN|inf|Infinity)\b|<NA>|\(\)|\( |, ,|\*\*\*\*| [.;:]( |$)"
# By which columns a reader tells the lines of a table apart.
TOLD_APART_BY = {
    "The same recipe on each machine": ("machine", "devices", "engine", "precision", "total batch"),
    "How it scales": ("machine", "batch a device", "exchange"),
    "Every measured series": ("machine", "network", "scaling", "devices"),
    "Every setting measured": ("machine", "network", "devices", "batch a device", "rate", "engine", "epochs"),
    "Ways to exchange gradients": ("machine", "network", "devices", "batch a device", "exchange"),
    "Engines": ("machine", "network", "batch a device", "precision"),
    "What the GPUs did": ("machine", "network", "devices", "batch a device", "engine", "precision"),
    "Every training": ("total batch", "way", "rate", "precision", "devices", "machine"),
}


class Made:
    """The pages of one machine, and its journal as it lies on disk."""

    def __init__(self, folder: Path, machine: str, content: str) -> None:
        self.folder, self.machine = folder, f"simulated {machine}"
        with contextlib.redirect_stderr(io.StringIO()):
            self.journal = simulated.write_journal(machine, content, folder)
        with pytest.MonkeyPatch.context() as patch:
            if content != "whole":  # to draw takes longer than all else
                patch.setattr(chart, "svg", lambda figure: "<svg/>")
            report.write(
                journal.read([self.journal]),
                studies.load(),
                page=folder / "results.md",
                folder=folder / "results",
                prices=prices.load({}),
                cache=folder.parent,
            )
        paths = [folder / "results.md", *(folder / "results").glob("*.md")]
        self.pages = {path.stem: path.read_text() for path in paths}

    def records(self) -> list[dict[str, Any]]:
        """Its journal's lines."""
        return [json.loads(line) for line in self.journal.read_text().splitlines()]

    def table(self, page: str, title: str) -> list[dict[str, str]]:
        """The lines of the table in a section, none where that is not there."""
        return next((lines for own, lines in tables(self.pages[page]) if own == title), [])


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes the pages of a machine and a content once."""
    base = tmp_path_factory.mktemp("simulated")

    @functools.cache
    def made(machine: str, content: str) -> Made:
        return Made(base / f"{machine}, {content}".replace(" ", "_"), machine, content)

    return made


def tables(page: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The title of each section that has a table, with its lines by their headings."""
    for section in page.split("\n## ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        if cells:
            yield section.splitlines()[0], [dict(zip(cells[0], line)) for line in cells[2:]]


def number(cell: str) -> float | None:
    """The first figure in a cell; None where there is none."""
    found = re.match(r"\**(?:≤ )?[$]?(-?[\d,]*\.?\d+(?:e-?\d+)?)", cell)
    return float(found[1].replace(",", "")) if found else None


@pytest.mark.parametrize(("machine", "content"), COMBINATIONS)
def test_every_page_is_whole_and_nothing_in_it_impossible(machine: str, content: str, make: Any) -> None:
    made = make(machine, content)
    for name, page in made.pages.items():
        assert not re.search(BROKEN, page, re.MULTILINE), name
        for section in page.split("\n## ")[1:]:
            title, _, body = section.partition("\n")
            assert title.strip(), name
            assert body.strip(), (name, title)
        for title, lines in tables(page):
            assert lines, (name, title)
            assert len(lines[0]) <= 9, (title, list(lines[0]))
            for line in lines:
                check(name, title, line)
            if columns := TOLD_APART_BY.get(title):
                told = [tuple(line.get(column, "") for column in columns) for line in lines]
                told = [line for line in told if not any("](" in cell or "][" in cell for cell in line)]
                assert len(told) == len(set(told)), (name, title, [line for line in told if told.count(line) > 1])
        path = made.folder / ("results.md" if name == "results" else f"results/{name}.md")
        links = [link for link in re.findall(r"\]\(([^)]+)\)", page) if not link.startswith("http")]
        assert all((path.parent / link).is_file() for link in links), name
        for reference in set(re.findall(r"\]\[(\w+)\]", page)):
            (address,) = re.findall(rf"^\[{reference}\]: (.+)", page, re.M)
            assert address.startswith("http") or (path.parent / address).is_file()
    assert not re.search(r"(^|,)(nan|None|inf)(,|$)", (made.folder / "results" / "rows.csv").read_text(), re.M)


def check(page: str, title: str, line: dict[str, str]) -> None:
    """A line of a table has what it must, and nothing that cannot be."""
    for column, cell in line.items():
        place = (page, title, column, line)
        assert column, place
        # Studies do not print all of it; what is predicted has no takes.
        assert cell or column not in NEVER_EMPTY or page == "studies" or title == "How it scales", place
        figure = number(cell)
        if figure is None:
            continue
        assert figure >= 0, place
        if "accuracy" in column or "last 4" in column:
            assert figure <= 1, place
        if column.startswith("efficiency") or column in ("of none", "of peak", "in use"):
            assert figure <= (130 if "%" in cell else 1.3), place
        if re.fullmatch(r"x\d+", column):
            assert figure <= 1.3 * int(column[1:]), place


@pytest.mark.parametrize("machine", MACHINES)
def test_figures_are_drawings_with_the_lines_that_they_should_have(machine: str, make: Any) -> None:
    made = make(machine, "whole")
    figures = {path.stem: path.read_text() for path in (made.folder / "results" / "figures").glob("*.svg")}
    assert {"machines", "learning_rate", "learning_curves", "scaling", "accuracy_time"} <= set(figures)
    for text in figures.values():
        assert ElementTree.fromstring(text).tag.endswith("svg")  # noqa: S314  # our own
    for name in ("machines", "accuracy_time"):
        # A K80's machine needs hours; within twelve epochs each reaches the accuracy.
        assert f">{made.machine}," in figures[name], name
    own = [f">{made.machine}, {batch} a device<" for batch in (64, 128)]
    assert all((line in figures["scaling"]) == (machine in GPUS) for line in own)
    assert all(label in figures["scaling"] for label in (">ideal<", ">8x Tesla K80, 128 a device<"))


def speedups(records: list[dict[str, Any]], batch: int) -> dict[int, float]:
    """By number of GPUs: samples/s over those of one, medians over repeats within an hour of one of the other side."""
    runs: dict[int, list[tuple[float, float]]] = {}
    for record in records:
        run = record["run"]
        if (run["kind"], run["model"], run["batch_per_device"]) == ("gpu", "cifar_resnet50_v2", batch):
            # The first window is the warm-up.
            rate = statistics.median(window["samples"] / window["seconds"] for window in record["windows"][1:])
            started = datetime.fromisoformat(record["started"]).timestamp()
            runs.setdefault(run["devices"], []).append((started, rate))
    found = {}
    for devices, several in runs.items():
        near = [
            statistics.median(rate for at, rate in own if any(abs(at - other) <= HOUR for other, _ in others))
            for own, others in ((several, runs[1]), (runs[1], several))
        ]
        found[devices] = near[0] / near[1]
    return found


@pytest.mark.parametrize("machine", GPUS)
@pytest.mark.parametrize("batch", [64, 128, 256])
def test_speed_ups_on_all_numbers_of_gpus_are_those_of_the_journal(machine: str, batch: int, make: Any) -> None:
    made = make(machine, "whole")
    records = [record for record in made.records() if record["outcome"] == "completed"]
    known = speedups(records, batch)
    assert sorted(known) == [count for count in (1, 2, 4, 8) if count <= GPUS[machine]]
    name = f"**{made.machine}**"
    (line,) = [
        line
        for line in made.table("results", "How it scales")
        if (line["machine"], line["batch a device"]) == (name, str(batch))
    ]
    shown = {int(column[1:]): float(cell) for column, cell in line.items() if re.fullmatch(r"x\d+", column) and cell}
    assert shown == pytest.approx({count: ratio for count, ratio in known.items() if count > 1}, rel=0.005)
    most = max(known)
    assert float(line["efficiency, most devices"]) == pytest.approx(known[most] / most, abs=0.006)
    rows = pd.read_csv(made.folder / "results" / "rows.csv", low_memory=False)
    rows = rows[(rows.origin == "measured") & (rows.kind == "gpu")]
    rows = rows[(rows.model == "cifar_resnet50_v2") & (rows.batch_per_device == batch)]
    for count, ratio in known.items():
        mine = rows[rows.devices == count].speedup_throughput.dropna()
        # There each run stands for itself, so that it has noise of its own.
        assert mine.tolist() == pytest.approx([ratio] * len(mine), rel=0.08)
        assert len(mine)
    if batch == 128:
        scaling = next(line for line in made.pages["results"].splitlines() if line.startswith("- **Scaling.**"))
        assert f"{most} GPUs here {known[most]:.2f}" in scaling


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_on_which_nothing_completed_says_so_and_why(machine: str, make: Any) -> None:
    made = make(machine, "nothing")
    findings = made.pages["results"].split("\n## ")[1]
    failed = [record for record in made.records() if record["outcome"] == "failed"]
    assert failed
    assert "Nothing has been measured yet" in findings
    assert f"{len(failed)} runs failed" in findings
    assert failed[0]["reason"] in findings
    assert "Latest on this machine" not in made.pages["results"]


@pytest.mark.parametrize("machine", MACHINES)
def test_what_diverged_failed_or_ran_out_of_memory_is_no_result(machine: str, make: Any) -> None:
    made = make(machine, "failures")
    lost = [record for record in made.records() if record["outcome"] not in ("completed", "skipped")]
    assert {record["outcome"] for record in lost} == {"diverged", "failed", "out of memory"}
    assert any(record["evaluations"] for record in lost if record["outcome"] == "diverged")
    for record in lost:
        assert record["reason"] in made.pages["method"]
    # Whatever diverged has an accuracy of 0.1, and nothing else has so little.
    shown = [line for page in made.pages.values() for _, lines in tables(page) for line in lines]
    assert "0.100" not in [cell for line in shown for column, cell in line.items() if "accuracy" in column]


@pytest.mark.parametrize("content", ["readme", "other"])
def test_a_recipe_of_one_s_own_is_on_the_first_page(content: str, make: Any) -> None:
    made = make("8 A100", content)
    lines = made.table("results", "Latest on this machine")
    assert lines
    assert all(line["machine"] == f"**{made.machine}**" for line in lines)
    if content == "readme":
        assert {line["devices"].split()[0] for line in lines} == {"1", "2", "4", "8"}


def test_what_is_said_of_virtual_devices_and_other_ways_is_said_where_there_are_some(make: Any) -> None:
    section = make("8 A100", "whole").pages["results"].split("\n## Which learning rate\n")[1].split("\n|")[0]
    assert "emulated" not in section
    assert "Open:" not in section


def test_simulated_journals_never_go_to_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("results", "results/mine", "reference"):
        with pytest.raises(SystemExit) as ended:
            simulated.main(["8 A100", "--results", str(simulated.HOME / folder)])
        assert ended.value.code == 2
        assert "--results" in capsys.readouterr().err
