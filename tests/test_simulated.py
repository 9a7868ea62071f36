"""All pages of machines that nobody here has (tests/simulated.py): whole, possible, and of no other machine."""

from __future__ import annotations

import contextlib
import functools
import html
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from poc import report, studies
from poc.records import journal
from poc.report import chart, explorer
from poc.studies import prices
from tests import simulated
from tests.pages import WIDTH, check, font, number, tables
from tests.simulated import MACHINES
from tests.test_explorer import chromium  # noqa: F401  # a fixture

# One of each kind in the quick suite.
QUICK = (("8 A100", "core"), ("4 A10G", "readme"), ("2 CPU cores", "quick"), ("8 V100", "other"), ("8 K80", "nothing"))
EVERY = dict.fromkeys(
    [
        *QUICK,
        *((machine, content) for content in ("core", "quick", "readme", "other") for machine in MACHINES),
        *(("8 V100", "failures"), ("8 K80", "detail")),
    ]
)
COMBINATIONS = [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in EVERY]
GPUS = {machine: MACHINES[machine][1] for machine in MACHINES}
STUDIES = studies.load()
K80, P100 = "8x Tesla K80 (2017)", "DGX-1, 8x P100 (2017)"
PUBLISHED = ("8x Tesla K80", "DGX-1, 8x P100", "CPU of AWS p2.8x", "Intel Xeon E5-2666 v3", "Intel Core i5-6300U")
MODEL = "cifar_resnet50_v2"
RATE = "samples/s (min–max, n)"


def slow_but(machine: str) -> list[Any]:
    """Return all machines as parameters; only one of them is in the quick suite."""
    return [pytest.param(name, marks=() if name == machine else pytest.mark.slow) for name in MACHINES]


def write(folder: Path, path: Path, *, whole: bool = False, others: Path | None = None) -> report.Written:
    """Write the pages of a journal; unless they are `whole`, of the main study alone and without drawing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explorer, "page", lambda table, cache: "")
        if not whole:
            patch.setattr(chart, "svg", lambda figure: "<svg/>")
            patch.setattr(chart, "lines", lambda *_, **__: None)
        return report.write(
            journal.read([path]),
            STUDIES if whole else STUDIES[:1],
            page=folder / "results.md",
            folder=folder,
            prices=prices.load({}),
            others=journal.read([others]) if others else (),
        )


class Made:
    """The pages of one machine, and its journal as it lies on disk."""

    def __init__(self, folder: Path, machine: str, content: str) -> None:
        self.folder, self.machine, self.content = folder, f"simulated {machine}", content
        with contextlib.redirect_stderr(io.StringIO()):
            self.journal = simulated.write_journal(machine, content, folder)
        self.written = write(folder, self.journal, whole=(machine, content) == QUICK[0])
        self.pages = {path.name: path.read_text() for path in sorted(folder.glob("*.md"))}
        self.page = self.pages["results.md"]
        self.tables = {title: found[0] for title, found in tables(self.page).items()}

    @functools.cached_property
    def records(self) -> list[dict[str, Any]]:
        """The lines of its journal."""
        return [json.loads(line) for line in self.journal.read_text().splitlines()]

    @functools.cached_property
    def rows(self) -> pd.DataFrame:
        """Its rows.csv, as anybody reads it."""
        return pd.read_csv(self.folder / "rows.csv", low_memory=False)

    @property
    def scorecard(self) -> dict[str, dict[str, str]]:
        """The cells of the scorecard by machine and metric."""
        (lines,) = (lines for title, lines in self.tables.items() if title.startswith("Scorecard"))
        names = [f"this machine ({self.machine})", *list(lines[0])[2:]]
        return {name: {line["metric"]: line[name] for line in lines} for name in names}

    @property
    def own(self) -> list[str]:
        """The seven cells of this machine."""
        return list(next(iter(self.scorecard.values())).values())


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Made]:
    """Make the pages of a machine and a content once."""
    base = tmp_path_factory.mktemp("simulated")
    return functools.cache(lambda machine, content: Made(base / f"{machine}, {content}", machine, content))


@pytest.mark.parametrize(("machine", "content"), COMBINATIONS)
def test_every_page_is_whole_and_nothing_on_it_impossible(machine: str, content: str, make: Any) -> None:
    made = make(machine, content)
    assert len(made.page.splitlines()) <= 120
    assert not re.search(r"(^|,)(nan|None|inf)(,|$)", (made.folder / "rows.csv").read_text(), re.MULTILINE)
    for name in made.pages:
        check(made.folder / name)


@pytest.mark.parametrize(("machine", "content"), COMBINATIONS)
def test_the_page_is_about_this_machine_and_the_main_study(machine: str, content: str, make: Any) -> None:
    made = make(machine, content)
    text = "\n".join([made.page, *(page for name, page in made.pages.items() if name.startswith("model_"))])
    text += "".join(path.read_text() for path in (made.folder / "figures").glob("*.svg"))
    assert made.machine in made.page.split("\n## ")[0]
    others = {f"simulated {name}" for name in MACHINES} - {made.machine}
    others |= {row.machine for study in STUDIES[1:] for row in study.rows} | {study.name for study in STUDIES[1:]}
    others |= {path.name for path in (simulated.HOME / "reference").iterdir() if path.is_dir()} - {"figures"}
    others = {name for name in others if len(name) > 3}  # some studies number their machines
    assert not [name for name in others if re.search(rf"\b{re.escape(name)}\b", text)]
    for lines in made.tables.values():
        names = {re.sub(r" \(2017\)|, quick", "", line.get("machine", made.machine)) for line in lines}
        assert names <= {made.machine, *PUBLISHED}
    assert set(made.scorecard) - {f"this machine ({made.machine})"} == (set() if content == "other" else {K80, P100})


@pytest.mark.parametrize(("machine", "content"), COMBINATIONS)
def test_the_header_has_the_counts_of_the_journal(machine: str, content: str, make: Any) -> None:
    made = make(machine, content)
    counts = Counter(record["outcome"] for record in made.records)
    failed = sum(number for outcome, number in counts.items() if outcome not in ("completed", "diverged", "skipped"))
    diverged = [f"{counts['diverged']} diverged"] if counts["diverged"] else []
    expected = [f"{counts['completed']} completed", *diverged, f"{failed} failed", f"{counts['skipped']} skipped"]
    assert ", ".join(expected) in made.page.split("\n## ")[0]
    skipped = made.tables.get("Not run", [])
    assert sum(int(line["runs"]) for line in skipped) == counts["skipped"]
    assert len(skipped) <= 5
    # The terminal has the same scorecard.
    assert all(cell in made.written.scorecard for cell in made.own)


@pytest.mark.parametrize("machine", slow_but("8 A100"))
def test_the_scorecard_of_the_core_recipes_is_full(machine: str, make: Any) -> None:
    made = make(machine, "core")
    assert made.page.split("\n## ")[1].startswith("Scorecard")
    measured = [cell for cell in made.own if re.match(r"\$?\d", cell)]
    if GPUS[machine] > 1:
        assert len(measured) == 7
        assert made.own[1].endswith(f"{GPUS[machine]} GPUs")
        assert "—" not in made.own[2]
    elif GPUS[machine] == 1:
        assert [cell for cell in made.own if cell not in measured] == ["same: one device", "one device"]
    else:
        assert len(measured) >= 5
        assert "--price" in made.own[6]
    # Whatever was not measured is measured by a recipe that there is.
    for recipe in re.findall(r"run_all\.sh (\w+)", made.page):
        assert (simulated.HOME / "recipes" / f"{recipe}.py").is_file()


@pytest.mark.parametrize("machine", slow_but("4 A10G"))
def test_the_readmes_recipe_lands_in_the_comparison_with_its_warm_up(machine: str, make: Any) -> None:
    made = make(machine, "readme")
    if not GPUS[machine]:  # it asks for GPUs
        assert {record["outcome"] for record in made.records} == {"skipped"}
        return
    lines = [line for line in made.tables["Accuracy and throughput"] if line["machine"] == made.machine]
    devices = [line["devices"] for line in lines]
    assert devices == (["1 GPU"] if GPUS[machine] == 1 else ["1 GPU", f"{GPUS[machine]} GPUs"])
    assert all("warm-up" in line["lr"] for line in lines)
    assert all(line[column] for line in lines for column in (RATE, "accuracy", "s/epoch", "$ per run"))
    assert any(line["machine"] == K80 for line in made.tables["Scaling"])
    assert {line["recipe"] for line in made.tables["Your recipes"]} == {"mine"}


@pytest.mark.parametrize("machine", slow_but("8 V100"))
def test_other_models_have_pages_of_their_own(machine: str, make: Any) -> None:
    made = make(machine, "other")
    pages = [made.page, *(page for name, page in made.pages.items() if name.startswith("model_"))]
    models = {record["run"]["model"] for record in made.records if record["outcome"] == "completed"}
    assert len(pages) == len(models)
    for page in pages:
        assert "ResNet-50" not in page
        cells = [
            list(line.values())[1] for title, found in tables(page).items() if "Scorecard" in title for line in found[0]
        ]
        assert len(cells) == 7
        assert re.match(r"\d", cells[0])
        assert not any("run_all" in cell for cell in cells)
        assert {"Accuracy and throughput", "Learning rate and global batch"} <= set(tables(page))
    titles = {"cifar_resnet20_v2": "# ResNet-20", "cifar_vgg16": "# VGG-16"}
    assert {page.split(" on ")[0] for page in pages} == {titles[model] for model in models}


@pytest.mark.parametrize(
    ("machine", "content"), [pair for pair in COMBINATIONS if pair.values[1] in ("nothing", "failures")]
)
def test_what_failed_or_diverged_is_no_result_and_says_why(machine: str, content: str, make: Any) -> None:
    made = make(machine, content)
    lost = [record for record in made.records if record["outcome"] not in ("completed", "skipped")]
    outcomes = {"failed"} if content == "nothing" else {"diverged", "failed", "out of memory"}
    assert {record["outcome"] for record in lost} == outcomes
    assert all(record["reason"] in made.pages["method.md"] for record in lost)
    assert any(record["reason"] in line["accuracy"] for record in lost for line in made.tables["Your recipes"])
    # Whatever diverged has an accuracy of 0.1, and nothing else has so little.
    shown = [
        line for page in made.pages.values() for found in tables(page).values() for lines in found for line in lines
    ]
    assert "0.100" not in [cell for line in shown for column, cell in line.items() if "accuracy" in column]
    if content == "nothing":
        assert all("./run_all.sh" in cell for cell in made.own)
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
    chosen = rows[(rows.batch_per_device == batch) & ~rows.emulated & rows.samples_per_second.notna()]
    if (chosen.origin == "published").any():
        chosen = chosen[(chosen.devices == devices) & (chosen.scaling == "weak")]
        return chosen.drop_duplicates("samples_per_second")
    bursts = chosen[chosen.length == "burst"]
    chosen = bursts if (bursts.devices > 1).any() else chosen[chosen.length == "training"]
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
    found = tried.loc[tried.groupby("global_batch").accuracy.idxmax()].set_index("global_batch")
    return found.assign(tried=tried.groupby("global_batch").size())


def to_target(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the seconds of training to an accuracy of 0.75, by row."""
    found = {}
    for index, row in rows[~rows.emulated].iterrows():
        if row.origin == "published":
            if row.accuracy >= 0.75:
                found[index] = row.epochs * row.seconds_per_epoch
        elif isinstance(row.accuracy_by_epoch, str) and row.length == "training":
            curve = [pair.split(":") for pair in row.accuracy_by_epoch.split()]
            reached = [epoch for epoch, accuracy in curve if float(accuracy) >= 0.75]
            ends = dict(pair.split(":") for pair in row.seconds_by_epoch.split())
            if reached:
                found[index] = float(ends[reached[0]])
    return pd.Series(found, dtype=float)


def expected_scorecard(rows: pd.DataFrame, is_own: bool) -> list[str]:
    """Return the seven cells of a machine."""

    def rate(devices: float) -> str:
        values = timed(rows, devices, 128).samples_per_second
        spread = f" ({printed(values.min())}–{printed(values.max())}, n={len(values)})" if len(values) > 1 else ""
        return f"{printed(values.median())}{spread}, {devices_printed(devices)}"

    most, accuracies, seconds = rows[~rows.emulated].devices.max(), best(rows), to_target(rows)
    ratios = [speedup(rows, most, batch)[0] for batch in (128, 256, 512)]
    cells = [f"{ratio:.2f}x ({ratio / most:.0%})" if ratio > 0 else "—" for ratio in ratios]
    first, last = accuracies.loc[128], accuracies.iloc[-1]
    dollars = (seconds / 3600 * rows.dollars_per_hour).dropna()
    bound = "" if is_own else "≤ "
    return [
        *(rate(1), rate(most), " / ".join(cells)),
        f"{first.accuracy:.3f} at 128 → {last.accuracy:.3f} at {last.name:,.0f}",
        f"{last.lr:g} at {last.name:,.0f}, best of {last.tried:.0f} tried",
        f"{bound}{seconds_printed(seconds.min())}, {devices_printed(rows.devices[seconds.idxmin()])}",
        f"{bound}${dollars.min():.2f}, {devices_printed(rows.devices[dollars.idxmin()])}"
        if len(dollars)
        else "no price known",
    ]


TRACED = [
    pytest.param("8 A100", "core"),
    pytest.param("4 A10G", "readme"),
    *(pytest.param(machine, "core", marks=pytest.mark.slow) for machine in ("4 A10G", "8 V100", "8 K80")),
]


@pytest.mark.parametrize(("machine", "content"), TRACED)
def test_every_number_of_the_scorecard_is_in_rows_csv(machine: str, content: str, make: Any) -> None:
    made = make(machine, content)
    for name, cells in made.scorecard.items():
        is_own = name.startswith("this machine")
        rows = of_machine(made.rows, made.machine if is_own else name)
        assert list(cells.values()) == expected_scorecard(rows, is_own), name


@pytest.mark.parametrize(("machine", "content"), TRACED)
def test_every_number_of_accuracy_and_throughput_is_in_rows_csv(machine: str, content: str, make: Any) -> None:
    made = make(machine, content)
    rows = made.rows[made.rows.model == MODEL]
    for line in made.tables["Accuracy and throughput"]:
        count = 0 if line["devices"] == "CPU" else int(line["devices"].split()[0])
        is_own = line["machine"] == made.machine
        published = (rows.origin == "published") & rows.hardware.str.startswith(line["machine"])
        place = rows.machine == line["machine"] if is_own else published
        chosen = rows[place & (rows.devices == count) & (rows.global_batch == number(line["global batch"]))]
        chosen = chosen[(chosen.kind != "cpu") | (line["devices"].startswith("CPU"))]
        chosen = chosen[(chosen.length != "burst") & ~chosen.emulated & (chosen.lr == float(line["lr"].split(",")[0]))]
        (row,) = chosen.itertuples()
        assert line[RATE] == printed(row.samples_per_second)
        assert line["accuracy"] == ("" if math.isnan(row.accuracy) else f"{row.accuracy:.3f}")
        assert line["s/epoch"] == ("" if math.isnan(row.seconds_per_epoch) else printed(row.seconds_per_epoch))
        seconds = row.wall_seconds if is_own else row.epochs * row.seconds_per_epoch
        dollars = seconds / 3600 * row.dollars_per_hour
        assert line["$ per run"] == ("" if math.isnan(dollars) else f"${dollars:.2f}")


@pytest.mark.parametrize(("machine", "content"), TRACED)
def test_every_number_of_scaling_is_in_rows_csv(machine: str, content: str, make: Any) -> None:
    made = make(machine, content)
    seen = set()
    for line in made.tables["Scaling"]:
        rows, batch = of_machine(made.rows, line["machine"]), int(number(line["batch per device"]))
        rates = {devices: timed(rows, devices, batch).samples_per_second for devices in (1, 2, 4, 8)}
        cells = {f"samples/s on {devices}": printed(rate.median()) for devices, rate in rates.items() if len(rate)}
        assert {name: cell for name, cell in line.items() if name.startswith("samples/s") and cell} == cells
        most = max(devices for devices, rate in rates.items() if len(rate))
        ratio, n = speedup(rows, most, batch)
        assert (line["efficiency"], line["n"]) == (f"{ratio / most:.0%} on {most}", str(n))
        seen.add((line["machine"], batch))
    # No series is left out.
    for name in (made.machine, K80, P100):
        rows = of_machine(made.rows, name)
        batches = {
            batch for batch in rows.batch_per_device.unique() if any(speedup(rows, n, batch)[1] for n in (2, 4, 8))
        }
        assert batches == {batch for machine_name, batch in seen if machine_name == name}


def test_figures_have_the_lines_that_they_should_have_and_can_be_read_on_a_telephone(make: Any) -> None:
    made = make(*QUICK[0])
    figures = {path.stem: path.read_text() for path in (made.folder / "figures").glob("*.svg")}
    named = {name for page in made.pages.values() for name in re.findall(r"\(figures/(\w+)\.svg\)", page)}
    assert set(figures) == named
    assert {f"scaling_{MODEL}", f"learning_rate_{MODEL}"} <= named
    for name, text in figures.items():
        root = ElementTree.fromstring(text)  # noqa: S314  # our own
        _, _, figure_width, _ = map(float, root.attrib["viewBox"].split())
        texts = [element for element in root.iter() if element.tag.endswith("text")]
        assert texts
        for element in texts:
            sizes = [
                float(size) for size in re.findall(r"font[^;]*?([\d.]+)px", ElementTree.tostring(element).decode())
            ]
            assert min(sizes) * 390 / figure_width >= 6, (name, element.text)
            if "text-anchor: start" in element.attrib.get("style", "") and element.text:
                end = float(element.attrib["x"]) + font("normal").getlength(element.text) / 16 * sizes[0]
                assert end <= figure_width * 1.02, (name, element.text)
    labels = figures[f"scaling_{MODEL}"]
    assert all(f">{made.machine}, {batch} per device<" in labels for batch in (64, 128, 256, 512))
    assert all(f">{name}" in labels for name in ("8x Tesla K80, 128", "DGX-1, 8x P100, 128"))


@pytest.mark.slow
def test_tables_are_as_wide_as_a_page_in_a_browser(make: Any, chromium: Any, tmp_path: Path) -> None:  # noqa: F811
    made = [make(*pair) for pair in (QUICK[0], ("1 H100", "quick"), ("8 K80", "nothing"), ("8 K80", "detail"))]
    found = [lines for each in made for page in each.pages.values() for many in tables(page).values() for lines in many]
    cells = [[list(lines[0]), *(list(line.values()) for line in lines)] for lines in found]
    body = "".join(
        "<table>"
        + "".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in line) for line in lines)
        + "</table>"
        for lines in cells
    )
    style = "body {width: 880px; font: 16px/1.5 Helvetica, Arial, sans-serif} td {padding: 6px 13px; border: 1px solid}"
    style += "table {border-collapse: collapse; display: block; width: max-content; max-width: 100%; overflow: auto}"
    path = tmp_path / "tables.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><style>{style} tr:first-child {{font-weight: 600}}</style>{body}"
    )
    chromium.get(path.as_uri())
    widths = chromium.execute_script("return [...document.querySelectorAll('table')].map(table => table.scrollWidth)")
    assert len(widths) == len(found)
    assert [(list(lines[0]), each) for lines, each in zip(found, widths) if each > WIDTH] == []


@pytest.mark.slow
def test_a_folder_that_somebody_sent_is_shown_with_this_machine(make: Any, tmp_path: Path) -> None:
    mine, sent = make("4 A10G", "readme"), make("8 V100", "other")
    write(tmp_path, mine.journal, others=sent.journal)
    text = (tmp_path / "results.md").read_text()
    assert tables(text)["Scorecard: ResNet-50 on CIFAR-10"][0] == mine.tables["Scorecard: ResNet-50 on CIFAR-10"]
    assert mine.tables["Your recipes"] == tables(text)["Your recipes"][0]
    assert {mine.machine, sent.machine} <= set(pd.read_csv(tmp_path / "rows.csv", low_memory=False).machine)
    assert all(name in (tmp_path / "method.md").read_text() for name in (mine.machine, sent.machine))


def test_simulated_journals_never_go_to_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("results", "results/mine", "reference"):
        with pytest.raises(SystemExit) as ended:
            simulated.main(["8 A100", "--results", str(simulated.HOME / folder)])
        assert ended.value.code == 2
        assert "--results" in capsys.readouterr().err
