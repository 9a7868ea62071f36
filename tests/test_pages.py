"""The pages as a reader finds them, made from records whose figures are known beforehand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poc import published, report
from poc.records import last_run
from poc.records.record import Record
from poc.report import chart, explorer, markdown
from poc.report import table as tables_of
from poc.report.page import figure as figures
from poc.report.results import LastRun, Results
from poc.report.sections import cost
from tests.builders import TEST_CPU, build, record_of
from tests.pages import Lines, tables

STUDIES = published.load()
MAIN = STUDIES[:1]
GPUS = [{"index": index, "name": "Test GPU", "capability": [7, 0], "memory_bytes": 2**34} for index in range(4)]
EPOCH = 50_000
OWN, K80, P100 = "this machine (test machine)", "8x Tesla K80 (2017)", "DGX-1, 8x P100 (2017)"
RATE = "samples/s (min–max, n)"


@pytest.fixture(autouse=True)
def quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes seconds and has tests of its own: figures are the labels of their lines."""
    if "whole" not in request.fixturenames:
        monkeypatch.setattr(
            chart, "svg", lambda figure: "\n".join(text.get_text() for text in figure.legends[0].get_texts())
        )
        monkeypatch.setattr(explorer, "page", lambda table, cache: "")
        monkeypatch.setattr(report, "PAGES", [made for made in report.PAGES if made.name == "settings"])


@pytest.fixture
def whole() -> None:
    """Make the whole pages."""


def on_gpus(rate: float, devices: int = 1, minute: int = 0, batch: int = 128, **changes: Any) -> Record:
    """Return a burst of 6 x 50,000 samples on GPUs; the first pass is 1.5 times as slow as the others."""
    run = {"kind": "gpu", "devices": devices, "batch_per_device": batch, "global_batch": batch * devices}
    run.update(recipe="scaling", seconds=60.0, evaluate=False, learning_rate=0.05 * devices * batch / 128)
    run.update(changes.pop("run", {}))
    fields: dict[str, Any] = {"hardware": {**TEST_CPU, "gpus": GPUS, "driver": "550.54"}, "accuracies": ()}
    fields.update(started=f"2026-11-21T{10 + minute // 60}:{minute % 60:02}:00+00:00", **changes)
    epochs = len(fields["accuracies"]) or 6
    made = record_of(run=run, epoch_seconds=[EPOCH / rate * 1.5, *[EPOCH / rate] * (epochs - 1)], **fields)
    return replace(made, windows=tuple(replace(window, samples=EPOCH, waited=0.0) for window in made.windows))


def trained(rate: float, last: float, reached: int | None = None, **changes: Any) -> Record:
    """Return a training of 12 epochs with this accuracy at its end, and 0.75 or more from the epoch `reached` on."""
    curve = [0.76 if reached and epoch >= reached else 0.3 for epoch in range(1, 12)]
    run = {"recipe": "core.py", "seconds": None, "evaluate": True, "epochs": 12, "steps": 120, **changes.pop("run", {})}
    return on_gpus(rate, accuracies=[*curve, last], run=run, **{"minute": 200, **changes})


def written(folder: Path, *records: Record, shown: Any = MAIN, others: Sequence[Record] = (), **options: Any) -> str:
    """Return the text of results.md of these records."""
    report.write(records, shown, page=folder / "results.md", folder=folder, others=others, **options)
    return (folder / "results.md").read_text()


def shown_by(folder: Path, *records: Record, last: LastRun, shown: Any = MAIN) -> str:
    """Return the text of results.md after that last run."""
    results = Results(build(*records), shown, "test machine", last_run=last)
    report.write_pages(results, page=folder / "results.md", folder=folder)
    return (folder / "results.md").read_text()


def first_table(page: str, title: str) -> Lines:
    (name,) = [name for name in tables(page) if name.startswith(title)]
    return tables(page)[name][0]


def scorecard(page: str, machine: str = OWN) -> list[str]:
    """Return the seven cells of a machine."""
    return [line[machine] for line in first_table(page, "Scorecard")]


@pytest.fixture(scope="module")
def known() -> list[Record]:
    """Return repeats on 1 and on 4 GPUs, and trainings at four global batches, one of them on emulated devices."""
    bursts = [on_gpus(rate, minute=minute) for minute, rate in enumerate((990, 1000, 1020))]
    bursts += [on_gpus(rate, 4, minute=5 + minute) for minute, rate in enumerate((3600, 3700, 3900))]
    bursts += [on_gpus(1250, 1, 20, batch=256), on_gpus(2500, 2, 21, batch=256)]
    emulated = {"emulated": True, "devices": 8, "global_batch": 1024}
    return [
        *bursts,
        trained(1100, 0.80, 5),
        trained(4000, 0.78, 7, devices=4),
        trained(4000, 0.70, devices=4, run={"learning_rate": 0.4, "warmup_steps": 10}),
        trained(800, 0.71, run={**emulated, "learning_rate": 0.2}),
        trained(800, 0.72, run={**emulated, "learning_rate": 0.4}),
    ]


@pytest.fixture(scope="module")
def page(known: list[Record], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of the known records at $3.60 per hour."""
    prices = published.prices.load({"test machine": 3.6})
    return written(tmp_path_factory.mktemp("known"), *known, shown=STUDIES, prices=prices)


def planned(*runs: str, skipped: dict[str, int] | None = None) -> LastRun:
    """Return a last run that planned these runs, and how many it skipped by reason."""
    return LastRun(recipes=("mine",), runs=runs, skipped=skipped or {}, machine="test machine")


def test_the_scorecard_has_known_answers(page: str) -> None:
    # Epochs take 1.5, 1, 1, ... x 50,000 samples / rate.
    seconds, dollars = (5.5 * 50_000 / 1100, 7.5 * 50_000 / 4000), 7.5 * 50_000 / 4000 / 1000
    assert scorecard(page) == [
        "1,000 (990–1,020, n=3), 1 GPU",
        "3,700 (3,600–3,900, n=3), 4 GPUs",
        "3.70x (92%) / 2.00x (100%) on 2 / —",
        "0.800 at 128 → 0.720 at 1,024",
        "0.4 at 1,024, best of 2 tried",
        f"{min(seconds):.0f} s, 4 GPUs",
        f"${dollars:.2f}, 4 GPUs",
    ]


def test_the_scorecard_has_what_the_main_study_printed(page: str) -> None:
    speeds = ["1,100, 1 GPU", "6,800, 8 GPUs", "6.18x (77%) / 7.23x (90%) / 7.86x (98%)"]
    rates = ["0.810 at 128 → 0.611 at 4,096", "0.4 at 4,096, best of 2 tried"]
    assert scorecard(page, K80) == [*speeds, *rates, "≤ 85 s, 8 GPUs", "≤ $0.17, 8 GPUs"]
    speeds = ["2,900, 1 GPU", "11,000, 8 GPUs", "3.79x (47%) / — / —"]
    rates = ["0.817 at 128 → 0.604 at 4,096", "0.4 at 4,096, best of 2 tried"]
    assert scorecard(page, P100) == [*speeds, *rates, "≤ 54 s, 8 GPUs", "no price known"]


def test_the_learning_rate_by_global_batch_and_its_recommendation(page: str) -> None:
    lines = {line["global batch"]: list(line.values())[1:] for line in first_table(page, "Learning rate")}
    assert lines == {
        "128": ["0.05", "0.05", "0.800", "", "1", "0.810 (lr 0.05)", "0.817 (lr 0.05)"],
        "256": ["", "", "", "", "", "0.783 (lr 0.2)", "0.782 (lr 0.05)"],
        "512": ["0.2", "0.2, 0.4", "0.780", "-0.020", "1", "0.810 (lr 0.2)", "0.773 (lr 0.1)"],
        "1,024": ["0.4", "0.2, 0.4", "0.720", "-0.080", "1", "0.786 (lr 0.4)", "0.773 (lr 0.4)"],
        "2,048": ["", "", "", "", "", "0.722 (lr 0.4)", "0.733 (lr 0.4)"],
        "4,096": ["", "", "", "", "", "0.611 (lr 0.4)", "0.604 (lr 0.4)"],
    }
    (sentence,) = re.findall(r"^\*\*Recommendation.*", page, re.MULTILINE)
    assert re.findall(r"batch ([\d,]+) use ([\d.]+) \(([-+.\d]+)", sentence) == [
        ("512", "0.2", "-0.020"),
        ("1,024", "0.4", "-0.080"),
    ]


def test_a_recommendation_without_own_trainings_is_the_published_one_and_says_so(tmp_path: Path) -> None:
    page = written(tmp_path, on_gpus(1000))
    (sentence,) = re.findall(r"^\*\*Recommendation.*", page, re.MULTILINE)
    assert K80 in sentence
    assert re.findall(r"batch ([\d,]+) use ([\d.]+)", sentence)[2] == ("1,024", "0.4")


def test_time_and_cost_are_of_settings_all_of_whose_seeds_reached_the_accuracy(tmp_path: Path, page: str) -> None:
    lines = first_table(page, "Time and cost")
    assert [list(line.values()) for line in lines] == [
        ["test machine", "4 GPUs", "512", "baseline", "94 s", "$3.60", "$0.09", "1"],
        [K80, "8 GPUs", "1,024", "baseline", "≤ 85 s", "$7.20", "≤ $0.17", "1"],
        [P100, "8 GPUs", "1,024", "baseline", "≤ 54 s", "unknown", "", "1"],
    ]
    seeds = [trained(1000, 0.8, epoch, run={"seed": seed}, minute=seed) for seed, epoch in enumerate((3, 9, 5))]
    missed = trained(9000, 0.8, 2, devices=2), trained(9000, 0.7, devices=2, run={"seed": 1})
    tuned = trained(500, 0.9, 4, run={"optimizer": "nesterov"})
    own = [
        line for line in first_table(written(tmp_path, *seeds, *missed, tuned), "Time") if "2017" not in line["machine"]
    ]
    # The median seed: 5.5 times 50 s.
    assert [(line["devices"], line["recipe"], line["time"], line["n"]) for line in own] == [
        ("1 GPU", "baseline", "4.6 min", "3"),
        ("1 GPU", "tuned", "7.5 min", "1"),
    ]


def test_a_target_of_the_users_is_the_one_that_counts(tmp_path: Path, known: list[Record]) -> None:
    page = written(tmp_path, *known, target=0.79)
    assert [name for name in (line["metric"] for line in first_table(page, "Scorecard")) if "0.79" in name]
    assert scorecard(page)[5].startswith(f"{12.5 * 50_000 / 1100 / 60:.2g} min")
    assert "not reached: 0.800" in scorecard(written(tmp_path, *known, target=0.9))[5]


def test_bursts_and_trainings_are_never_one_number(tmp_path: Path) -> None:
    page = written(tmp_path, on_gpus(1000), trained(2000, 0.8, minute=5))
    assert scorecard(page)[0].startswith("1,000,")
    assert first_table(page, "Accuracy and throughput")[0][RATE] == "2,000"
    assert [line[RATE] for line in first_table(page, "Your recipes")] == ["2,000", "1,000"]


def test_a_speed_up_is_that_of_repeats_of_the_same_hour(tmp_path: Path) -> None:
    alone = on_gpus(1000), on_gpus(2000, minute=500)
    page = written(tmp_path, *alone, on_gpus(4000, 4, minute=505))
    assert (scorecard(page)[2], first_table(page, "Scaling")[0]["n"]) == ("2.00x (50%) / — / —", "1")
    page = written(tmp_path, *alone, on_gpus(4000, 4, minute=800))
    assert "test machine" not in [line["machine"] for line in first_table(page, "Scaling")]


def test_the_speed_of_emulated_devices_is_nowhere(tmp_path: Path) -> None:
    record = trained(777, 0.8, 5, run={"emulated": True, "devices": 4, "global_batch": 512})
    page = written(tmp_path, record)
    assert "4 emulated" in [line["devices"] for line in first_table(page, "Your recipes")]
    assert [line["accuracy"] for line in first_table(page, "Learning rate") if line["global batch"] == "512"] == [
        "0.800"
    ]
    texts = [path.read_text() for path in tmp_path.glob("*.md")]
    assert not any(re.search(r"\b777\b", text) for text in texts)
    assert "test machine" not in {line["machine"] for line in first_table(page, "Time and cost")}


def test_tuned_recipes_stand_apart_with_the_split_that_they_were_tuned_on(tmp_path: Path) -> None:
    data = {"name": "cifar10", "crop": 28, "pad": 4, "mirror": True, "jitter": True}
    held_out = {"optimizer": "nesterov", "data": {**data, "validate_on": "held-out"}}
    records = [trained(1000, 0.8), trained(1000, 0.9, run={"optimizer": "nesterov"}), trained(1000, 0.95, run=held_out)]
    records += [trained(1000, 0.85, run={"label_smoothing": 0.1, "batch_per_device": 64, "global_batch": 64})]
    baseline, tuned = tables(written(tmp_path, *records))["Learning rate and global batch"]
    assert next(line for line in baseline if line["global batch"] == "128")["accuracy"] == "0.800"
    shown = [(line["global batch"], line["accuracy"], line["tuned on"]) for line in tuned]
    assert shown == [("64", "0.850", "test set"), ("128", "0.900", "validation split")]


def test_the_page_is_about_the_machine_of_the_last_run_else_of_the_latest_record(tmp_path: Path) -> None:
    old, new = on_gpus(1000, infrastructure="old"), on_gpus(2000, minute=9, infrastructure="new")
    skipped = record_of(outcome="skipped", started="2027", infrastructure="skipped")
    assert "this machine (new)" in written(tmp_path, old, new, skipped)
    last = {"recipes": ["scaling.py"], "runs": [old.run.id], "skipped": {}, "machine": "old"}
    (tmp_path / last_run.FILE).write_text(json.dumps(last))
    assert "this machine (old)" in written(tmp_path, old, new, skipped)
    (tmp_path / last_run.FILE).write_text("{")
    assert "this machine (new)" in written(tmp_path, old, new, skipped)


def test_records_of_others_are_shown_with_it_and_it_stays_about_this_machine(tmp_path: Path) -> None:
    other = [on_gpus(5000 * n, n, minute=600, infrastructure="theirs") for n in (1, 4)]
    page = written(tmp_path, on_gpus(1000), on_gpus(3000, 4), others=other)
    assert scorecard(page)[0].startswith("1,000,")
    names = [line["machine"] for line in first_table(page, "Scaling")]
    assert names[:2] == ["test machine", "theirs"]
    assert ("**test machine**" in page, "**theirs**" in page) == (True, False)
    assert "theirs" in (tmp_path / "figures" / "scaling_cifar_resnet50_v2.svg").read_text()
    assert len(first_table(page, "Your recipes")) == 2
    # Without them, nothing of them is left.
    written(tmp_path, on_gpus(1000), on_gpus(3000, 4))
    texts = [path.read_text() for pattern in ("*.md", "figures/*.svg", "rows.csv") for path in tmp_path.glob(pattern)]
    assert not any("theirs" in text for text in texts)


def test_the_header_counts_the_runs_of_this_machine(tmp_path: Path) -> None:
    outcomes = ["completed", "completed", "diverged", "failed", "out of memory", "skipped"]
    records = [on_gpus(1000, outcome=outcome, run={"seed": seed}) for seed, outcome in enumerate(outcomes)]
    head = written(tmp_path, *records, others=[on_gpus(1000, infrastructure="theirs")]).split("\n## ")[0]
    facts = ("2 completed, 1 diverged, 2 failed, 1 skipped", "4x Test GPU", "550.54", "MXNet 1.9.1", "2026-11-21")
    assert [fact for fact in facts if fact not in head] == []
    page = shown_by(tmp_path, *records, last=planned(skipped={"no GPU": 3, "no time": 4}))
    assert "2 failed, 7 skipped" in page


def test_skipped_runs_are_counted_by_reason_in_at_most_five_lines(tmp_path: Path) -> None:
    page = shown_by(tmp_path, record_of(), last=planned(skipped={f"reason {number}": number for number in range(1, 9)}))
    assert [line["runs"] for line in first_table(page, "Not run")] == ["8", "7", "6", "5", str(4 + 3 + 2 + 1)]


def test_your_recipes_has_every_setting_of_the_last_run_also_quick_and_failed_ones(tmp_path: Path) -> None:
    quick = on_gpus(1500, run={"quick": True, "recipe": "mine"})
    failed = on_gpus(1000, outcome="failed", reason="killed by signal 9", run={"seed": 3, "batch_per_device": 256})
    before = trained(1000, 0.8, run={"recipe": "recipes/earlier.py"})
    chance = trained(1000, 0.1, run={"learning_rate": 9.0, "recipe": "mine"})
    runs = tuple(record.run.id for record in (quick, failed, chance))
    page = shown_by(tmp_path, quick, failed, before, chance, last=planned(*runs))
    lines = first_table(page, "Your recipes")
    (name,) = (line["recipe"] for line in lines if line[RATE] == "1,500")
    assert ("quick" in name, len(lines)) == (True, 3)
    assert all(any(word in line["accuracy"] for line in lines) for word in ("killed by signal 9", "chance"))


@pytest.mark.parametrize("count", [1, 60])
def test_the_page_has_at_most_120_lines_and_says_how_many_settings_are_not_on_it(count: int, tmp_path: Path) -> None:
    runs = [{"learning_rate": 0.001 * number, "devices": 1 + number % 2} for number in range(1, count + 1)]
    records = [trained(1000 + number, 0.7, run=run) for number, run in enumerate(runs)]
    last = planned(skipped={f"reason {number}": 1 for number in range(9)})
    page = shown_by(tmp_path, *records, last=last, shown=STUDIES)
    assert len(page.splitlines()) <= 120
    more = re.findall(r"^(\d+) more settings", page, re.MULTILINE)
    assert len(first_table(page, "Your recipes")) + sum(map(int, more)) == count
    assert len(first_table((tmp_path / "settings.md").read_text(), "test machine")) == count


def test_each_other_model_has_a_page_and_none_is_left_over(tmp_path: Path) -> None:
    other = {"model": "cifar_resnet20_v2", "recipe": "mine"}
    records = [trained(3000, 0.8, 5, run=other), trained(6000, 0.79, 6, devices=4, run=other)]
    page = written(tmp_path, trained(1000, 0.7), *records)
    (name,) = [path.name for path in tmp_path.glob("model_*.md")]
    assert f"({name})" in page
    text = (tmp_path / name).read_text()
    assert scorecard(text)[:4] == [
        "3,000, 1 GPU",
        "6,000, 4 GPUs",
        "2.00x (50%) / — / —",
        "0.800 at 128 → 0.790 at 512",
    ]
    assert K80 not in text
    figures = set(re.findall(r"\(figures/(.*?)\)", page + text))
    assert {path.name for path in (tmp_path / "figures").iterdir()} == figures
    # The model that was run alone is the page's.
    page = written(tmp_path, *records)
    assert not list(tmp_path.glob("model_*.md"))
    assert page.startswith("# ResNet-20")
    assert scorecard(page)[0] == "3,000, 1 GPU"


def test_other_models_without_the_baseline_recipe_are_shown_by_the_recipe_with_most_settings(tmp_path: Path) -> None:
    other = {"model": "cifar_resnet20_v2", "optimizer": "nesterov"}
    records = [trained(3000 * n, 0.8, devices=n, run={**other, "devices": n}) for n in (1, 4)]
    page = written(tmp_path, *records, trained(9000, 0.9, run={**other, "optimizer": "lars"}))
    assert scorecard(page)[:2] == ["3,000, 1 GPU", "12,000, 4 GPUs"]
    assert "./run_all.sh" not in page.split("\n## ")[1]
    about = page.split("\n## ")[2].split("|")[0]
    assert "Nesterov" in about
    # Of the main study's model only the baseline recipe is beside what it printed.
    same = written(
        tmp_path, *(replace(record, run=replace(record.run, model="cifar_resnet50_v2")) for record in records)
    )
    assert "./run_all.sh" in scorecard(same)[0]


def test_a_sample_says_so_at_its_top_and_has_no_explorer(tmp_path: Path) -> None:
    page = written(tmp_path, on_gpus(1000), sample="A sample of test machine.")
    assert "A sample of test machine." in page.splitlines()[:3]
    assert not (tmp_path / "explorer.html").exists()
    assert "explorer.html" not in page


def test_before_anything_was_measured_there_is_a_page_with_what_to_do(tmp_path: Path) -> None:
    page = written(tmp_path)
    assert "./run_all.sh --quick" in page.split("\n## ")[0]
    assert all("./run_all.sh" in cell for cell in scorecard(page, "this machine"))
    assert scorecard(page, K80)[0] == "1,100, 1 GPU"
    assert written(tmp_path, shown=[]).count("|") > 0


@pytest.mark.usefixtures("whole")
def test_the_same_rows_give_the_same_bytes_also_when_they_are_read_back(known: list[Record], tmp_path: Path) -> None:
    def bytes_of(folder: Path) -> dict[str, bytes]:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and path.name not in ("explorer.html", "rows.csv")
        }

    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    written(first, *known, shown=STUDIES)
    written(second, *reversed(known), shown=STUDIES)
    assert (second / "rows.csv").read_bytes() == (first / "rows.csv").read_bytes()
    results = Results(tables_of.read(first / "rows.csv"), STUDIES, "test machine")
    report.write_pages(results, page=third / "results.md", folder=third)
    assert len(bytes_of(first)) > 8
    assert bytes_of(first) == bytes_of(second) == bytes_of(third)


def test_names_cannot_break_a_table_or_a_figure(tmp_path: Path) -> None:
    name, recipe = "a | b  $x$ <b>", "mine | yours"
    records = [on_gpus(1000 * n, n, infrastructure=name, run={"recipe": recipe}) for n in (1, 4)]
    page = written(tmp_path, *records)
    assert recipe in [line["recipe"] for line in first_table(page, "Your recipes")]
    assert [line for line in first_table(page, "Scaling") if line["machine"] == " ".join(name.split())]


def test_numbers_are_printed_with_the_digits_that_they_have() -> None:
    numbers = [228.4, 1234.5, 0.01234, 0.0000123, 99.96, 0.0, math.nan]
    assert [*map(markdown.number, numbers)] == ["228", "1,234", "0.0123", "1.2e-05", "100", "0", ""]
    assert [*map(markdown.dollars, [0.1666, 1234.5, 0.00123, math.nan])] == ["$0.17", "$1,234.50", "$0.0012", ""]
    assert [*map(markdown.duration, [85.2, 150, 7200, math.nan])] == ["85 s", "2.5 min", "2 h", ""]


def test_the_cheapest_setting_need_not_be_the_fastest(tmp_path: Path) -> None:
    slow, fast = trained(1000, 0.8, 5, price_per_hour=1.0), trained(3000, 0.8, 5, devices=4, price_per_hour=8.0)
    results = Results(build(slow, fast), machine="test machine")
    rows = results.measured
    best = cost.fastest(rows), cost.cheapest(rows)
    assert [row.devices for row in best if row] == [4, 1]
    assert [row.dollars_to_target for row in best if row] == pytest.approx([5.5 * 50 / 3 * 8 / 3600, 5.5 * 50 / 3600])


def test_a_chart_draws_own_lines_in_colour_and_leaves_out_what_does_not_fit() -> None:
    several = [
        chart.Line(f"line {number}", {x: x * number for x in (1, 2, 4)}, own=number < 2) for number in range(1, 10)
    ]
    ((_, caption, figure),) = figures("name", "caption.", several, "title", "x", "y", log2=True)
    (axes,) = figure.axes
    drawn = axes.get_lines()
    assert len(drawn) == chart.MOST_LINES
    assert [line.get_xydata().tolist() for line in drawn][2] == [[1, 3], [2, 6], [4, 12]]
    greys = [len(set(re.findall("..", line.get_color()[1:]))) == 1 for line in drawn]
    assert greys == [False, *[True] * 6]
    assert "2 more" in caption
    assert not figures("name", "caption", [chart.Line("a point", {1: 1})], "title", "x", "y")
    assert chart.svg(figure) == chart.svg(figure)
    styles = {(line.get_marker(), line.get_linestyle()) for line in drawn}
    assert len(styles) == chart.MOST_LINES  # readable without colours
