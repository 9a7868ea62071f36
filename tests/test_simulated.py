"""All pages of simulated machines (tests/simulated.py), and every number of results.md computed again from rows.csv."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from poc import report
from poc.published import load, prices
from poc.records import journal
from poc.report import chart, explorer
from poc.report.markdown import RATE
from tests import simulated
from tests.pages import check, number, tables
from tests.simulated import MACHINES

Pair = tuple[str, str]
"""A machine, and the content of its journal."""
# One of each kind in the quick suite.
QUICK = (("8 A100", "core"), ("4 A10G", "readme"), ("2 CPU cores", "quick"), ("8 V100", "other"), ("8 K80", "nothing"))
EVERY = dict.fromkeys(
    [
        *QUICK,
        *((machine, "core") for machine in MACHINES if machine != "8 V100"),
        *((machine, content) for content in ("quick", "readme", "other") for machine in ("1 H100", "2 CPU cores")),
        *(("8 A100", "quick"), ("8 V100", "failures"), ("8 K80", "detail")),
    ]
)
STUDIES = load()
K80, P100 = "8x Tesla K80 (2017)", "DGX-1, 8x P100 (2017)"
PUBLISHED = ("8x Tesla K80", "DGX-1, 8x P100", "CPU of AWS p2.8x", "Intel Xeon E5-2666 v3", "Intel Core i5-6300U")
MODEL = "cifar_resnet50_v2"
Check = Callable[["Simulated"], None]
CHECKS: list[tuple[Check, list[Pair]]] = []
"""Functions that `test_pages` calls, and the pairs with whose pages it calls each."""


def checks(pairs: Iterable[Pair]) -> Callable[[Check], Check]:
    """Add a function to `CHECKS`."""

    def added(function: Check) -> Check:
        CHECKS.append((function, [*pairs]))
        return function

    return added


def having(*contents: str) -> list[Pair]:
    return [pair for pair in EVERY if pair[1] in contents]


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

    @functools.cached_property
    def rows(self) -> pd.DataFrame:
        """Its rows.csv, as anybody reads it."""
        return pd.read_csv(self.folder / "rows.csv", low_memory=False)

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


@pytest.fixture(scope="session")
def simulate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Simulated]:
    """Return a function that makes the pages of a machine and a content once."""
    base = tmp_path_factory.mktemp("simulated")
    return functools.cache(lambda machine, content: Simulated(base / f"{machine}, {content}", machine, content))


@checks(EVERY)
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


@checks(EVERY)
def the_header_has_the_counts_of_the_journal(made: Simulated) -> None:
    counts = Counter(
        record["reason"] if record["reason"] == "interrupted" else record["outcome"] for record in made.records
    )
    failed = counts["failed"] + counts["out of memory"]
    diverged, interrupted = ([f"{counts[name]} {name}"] if counts[name] else [] for name in ("diverged", "interrupted"))
    expected = [f"{counts['completed']} completed", *diverged, f"{failed} failed", *interrupted]
    assert ", ".join([*expected, f"{counts['skipped']} skipped"]) in made.page.split("\n## ")[0]
    skipped = made.tables.get("Not run", [])
    assert sum(int(line["runs"]) for line in skipped) == counts["skipped"]
    assert len(skipped) <= 5
    # The terminal has the same scorecard.
    assert all(cell in made.written for cell in made.scorecard[made.machine])


@checks(having("core"))
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


@checks(having("readme"))
def the_readmes_recipe_joins_the_comparison_with_its_warm_up(made: Simulated) -> None:
    if not made.gpus:  # it asks for GPUs
        assert {record["outcome"] for record in made.records} == {"skipped"}
        return
    lines = [line for line in made.tables["Accuracy and throughput"] if line["machine"] == made.machine]
    devices = [line["devices"] for line in lines]
    assert devices == (["1 GPU"] if made.gpus == 1 else ["1 GPU", f"{made.gpus} GPUs"])
    assert all("warm-up" in line["lr"] for line in lines)
    assert all(line[column] for line in lines for column in (RATE, "accuracy", "s/epoch", "$ per run"))
    assert any(line["machine"] == K80 for line in made.tables["Scaling"])
    assert {line["recipe"] for line in made.tables["Your recipes"]} == {"mine"}


@checks(having("other"))
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


@checks(having("nothing", "failures"))
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
        assert all("./run_all.sh" in cell for cell in made.scorecard[made.machine])
        assert not [line for line in made.tables["Accuracy and throughput"] if line["machine"] == made.machine]


# What follows is computed from rows.csv by pandas alone, for whoever doubts a number on the page.


def printed(value: float, digits: int = 3) -> str:
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def seconds_printed(value: float) -> str:
    return f"{printed(value, 2)} s" if value < 120 else f"{printed(value / 60, 2)} min"


def devices_printed(count: float) -> str:
    return f"{count:.0f} GPU" + ("s" if count > 1 else "")


def of_machine(rows: pd.DataFrame, machine: str) -> pd.DataFrame:
    """Return the rows of the baseline recipe on the GPUs of a machine, for the comparison."""
    hardware = {K80: "8x Tesla K80", P100: "DGX-1"}.get(machine)
    own = (rows.machine == machine) & (rows.outcome == "completed") & (rows.kind == "gpu") & rows.baseline & ~rows.quick
    published = (rows.study == "beeva_poc_mxnet") & rows.hardware.fillna("").str.startswith(hardware or "-")
    chosen = rows[(published if hardware else own) & (rows.model == MODEL) & (rows.devices > 0)]
    return chosen[~chosen.contradicts.fillna("").str.contains("samples_per_second|devices")]


def timed(rows: pd.DataFrame, devices: float, batch: int) -> pd.DataFrame:
    """Return all repeats of the length class that was scaled, or what was printed."""
    rows = rows[~rows.emulated & rows.samples_per_second.notna()]
    chosen = rows[rows.batch_per_device == batch]
    if (chosen.origin == "published").any():
        chosen = chosen[(chosen.devices == devices) & (chosen.scaling == "weak")]
        return chosen.drop_duplicates("samples_per_second")
    bursts = chosen[chosen.length == "burst"]
    chosen = bursts if bursts.devices.max() == rows.devices.max() else chosen[chosen.length == "training"]
    chosen = chosen[chosen.devices == devices]
    return chosen[chosen.lr == chosen.lr.min()]


def near(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the repeats that started within an hour of one of the others."""
    if (rows.origin == "published").any():
        return rows
    starts, other_starts = (pd.to_datetime(each.started) for each in (rows, others))
    return rows[[any(abs(start - other) <= pd.Timedelta("1h") for other in other_starts) for start in starts]]


def speedup(rows: pd.DataFrame, devices: float, batch: int) -> tuple[float, int]:
    """Return the ratio of medians, and the number of repeats on the side with fewer; NaN and 0 if there is none."""
    several, alone = timed(rows, devices, batch), timed(rows, 1, batch)
    sides = near(several, alone), near(alone, several)
    medians = [side.samples_per_second.median() if len(side) else math.nan for side in sides]
    return medians[0] / medians[1], min(map(len, sides))


def best(rows: pd.DataFrame) -> pd.DataFrame:
    """Return accuracy and learning rate at each global batch, by the best of the `tried` rates in 12 epochs."""
    trained = rows[(rows.epochs == 12) & rows.accuracy.notna() & (rows.length == "training") & rows.lr.notna()]
    trained = trained.assign(usual=trained.batch_per_device == 128).sort_values("usual", kind="stable")
    tried = trained.drop_duplicates(["global_batch", "lr"], keep="last")
    accurate = tried.loc[tried.groupby("global_batch").accuracy.idxmax()].set_index("global_batch")
    return accurate.assign(tried=tried.groupby("global_batch").size())


def to_target(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the seconds of training to an accuracy of 0.75, by row."""
    seconds = {}
    for index, row in rows[~rows.emulated].iterrows():
        if row.origin == "published":
            if row.accuracy >= 0.75:
                seconds[index] = row.epochs * row.seconds_per_epoch
        elif isinstance(row.accuracy_by_epoch, str) and row.length == "training":
            curve = [pair.split(":") for pair in row.accuracy_by_epoch.split()]
            reached = [epoch for epoch, accuracy in curve if float(accuracy) >= 0.75]
            ends = dict(pair.split(":") for pair in row.seconds_by_epoch.split())
            if reached:
                seconds[index] = float(ends[reached[0]])
    return pd.Series(seconds, dtype=float)


def expected_scorecard(rows: pd.DataFrame, is_own: bool) -> list[str]:
    """Return the seven cells of a machine."""

    def rate(devices: float) -> str:
        values = timed(rows, devices, 128).samples_per_second
        spread = f"{printed(values.min())}–{printed(values.max())}, " if len(values) > 1 else ""
        remarks = f" ({spread}n={len(values)})" if is_own else ""
        return f"{printed(values.median())}{remarks}, {devices_printed(devices)}"

    most, accuracies, seconds = rows[~rows.emulated].devices.max(), best(rows), to_target(rows)
    cells = []
    for ratio, pairs in (speedup(rows, most, batch) for batch in (128, 256, 512)):
        remark = f", n={pairs}" if is_own else ""
        cells.append(f"{ratio:.2f}x ({ratio / most:.0%}{remark})" if ratio > 0 else "—")
    first, last = accuracies.loc[128], accuracies.iloc[-1]
    dollars = (seconds / 3600 * rows.dollars_per_hour).dropna()
    bound, n = ("", " (n=1)") if is_own else ("≤ ", "")
    return [
        *(rate(1), rate(most), " / ".join(cells)),
        f"{first.accuracy:.3f}{n} at 128 → {last.accuracy:.3f}{n} at {last.name:,.0f}",
        f"{last.lr:g} at {last.name:,.0f}, "
        + (f"best of {last.tried:.0f} tried" if last.tried > 1 else "the only one tried"),
        f"{bound}{seconds_printed(seconds.min())}{n}, {devices_printed(rows.devices[seconds.idxmin()])}",
        f"{bound}${dollars.min():.2f}{n}, {devices_printed(rows.devices[dollars.idxmin()])}"
        if len(dollars)
        else "no price known",
    ]


TRACED = (*QUICK[:2], ("4 A10G", "core"), ("8 K80", "core"))


@checks(TRACED)
def every_number_of_the_scorecard_is_in_rows_csv(made: Simulated) -> None:
    for name, cells in made.scorecard.items():
        assert cells == expected_scorecard(of_machine(made.rows, name), name == made.machine), name


@checks((*TRACED, ("1 H100", "core")))
def every_number_of_scaling_is_in_rows_csv(made: Simulated) -> None:
    seen = set()
    for line in made.tables["Scaling"]:
        machine, batch = line["machine"].removesuffix(", whole trainings"), int(number(line["batch per device"]))
        rows = of_machine(made.rows, machine)
        rates = {devices: timed(rows, devices, batch).samples_per_second for devices in (1, 2, 4, 8)}
        cells = {f"samples/s on {devices}": printed(rate.median()) for devices, rate in rates.items() if len(rate)}
        assert {name: cell for name, cell in line.items() if name.startswith("samples/s") and cell} == cells
        most = max(devices for devices, rate in rates.items() if len(rate))
        ratio, n = speedup(rows, most, batch)
        if n and most > 1:
            assert (line["efficiency"], line["n"]) == (f"{ratio / most:.0%} on {most}", str(n))
            seen.add((machine, batch))
        else:  # on one device, or published without it
            assert (line["efficiency"], line["n"]) == ("", str(len(rates[most])))
    # No series is left out, and no batch on a machine with one device.
    for name in (made.machine, K80, P100):
        rows, counts = of_machine(made.rows, name), (2, 4, 8)
        batches = {batch for batch in rows.batch_per_device.unique() if any(speedup(rows, n, batch)[1] for n in counts)}
        assert batches == {batch for machine, batch in seen if machine == name}
    if made.rows[made.rows.machine == made.machine].devices.max() == 1:
        own = [line for line in made.tables["Scaling"] if line["machine"] == made.machine]
        assert {number(line["batch per device"]) for line in own} == {
            *of_machine(made.rows, made.machine).batch_per_device
        }


# All tests of a pair follow one another, so that a process which shares the tests with others makes few pairs.
CASES = [
    pytest.param(
        pair,
        function,
        id=f"{', '.join(pair)}: {function.__name__}",
        marks=() if pair in QUICK else pytest.mark.slow,
    )
    for pair in EVERY
    for function, pairs in CHECKS
    if pair in pairs
]


@pytest.mark.parametrize(("pair", "function"), CASES)
def test_pages(pair: Pair, function: Check, simulate: Any) -> None:
    function(simulate(*pair))


def test_figures_have_the_lines_that_they_should_have_in_letters_that_can_be_read(simulate: Any) -> None:
    made = simulate(*QUICK[0])
    figures = {path.stem: path.read_text() for path in (made.folder / "figures").glob("*.svg")}
    assert set(figures) == set(re.findall(r"\(figures/(\w+)\.svg\)", "\n".join(made.pages.values())))
    for name, text in figures.items():
        width = float(re.search(r'viewBox="\S+ \S+ (\S+) ', text)[1])  # type: ignore[index]
        sizes = re.findall(r"font[^;]*?([\d.]+)px", text)
        assert min(map(float, sizes)) * 390 / width >= 6, name  # on a telephone
    assert f"learning_rate_{MODEL}" in figures
    labels = figures[f"scaling_{MODEL}"]
    assert all(f">{made.machine}, {batch} per device<" in labels for batch in (64, 128, 256, 512))
    assert all(f">{name}" in labels for name in ("8x Tesla K80, 128", "DGX-1, 8x P100, 128"))


def test_simulated_journals_never_go_to_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("results", "results/mine", "reference"):
        with pytest.raises(SystemExit) as ended:
            simulated.main(["8 A100", "--results", str(simulated.HOME / folder)])
        assert ended.value.code == 2
        assert "--results" in capsys.readouterr().err
