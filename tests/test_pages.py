"""results.md as a reader sees it, made from records whose figures are known."""

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
from poc.report.markdown import figure as figures
from poc.report.results import LastRun, Results
from tests.builders import AUGMENTED, TEST_CPU, build, record_of
from tests.pages import GPUS, Lines, on_gpus, tables, trained

STUDIES = published.load()
OWN, K80, P100 = "this machine (test machine)", "8x Tesla K80 (2017)", "DGX-1, 8x P100 (2017)"
RATE = markdown.RATE
MODEL = "cifar_resnet20_v2"


@pytest.fixture(autouse=True)
def fast_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes seconds and has tests of its own; a figure becomes the labels of its lines."""
    monkeypatch.setattr(explorer, "page", lambda table, cache: "")
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(
            chart, "svg", lambda figure: "\n".join(text.get_text() for text in figure.legends[0].get_texts())
        )
    if "all_pages" not in request.fixturenames:
        monkeypatch.setattr(report, "PAGES", {"settings": report.PAGES["settings"]})


@pytest.fixture
def all_pages() -> None:
    """Make the pages of details, too."""


@pytest.fixture
def drawn() -> None:
    """Draw the figures."""


def written(folder: Path, *records: Record, studies: Any = STUDIES[:1], **options: Any) -> str:
    """Return the text of results.md of these records."""
    report.write(records, studies, page=folder / "results.md", folder=folder, **options)
    return (folder / "results.md").read_text()


def written_after(folder: Path, *records: Record, runs: Sequence[Record] = (), skipped: Any = None) -> str:
    """Return the text of results.md after a last run that planned these runs, and how many it skipped by reason."""
    last = LastRun(
        recipes=("mine",),
        runs=tuple(record.run.id for record in runs),
        skipped=skipped or {},
        machine="test machine",
    )
    results = Results(build(*records), STUDIES, "test machine", last_run=last)
    report.write_pages(results, page=folder / "results.md", folder=folder)
    return (folder / "results.md").read_text()


def first_table(page: str, title: str) -> Lines:
    (name,) = [name for name in tables(page) if name.startswith(title)]
    return tables(page)[name][0]


def scorecard(page: str, machine: str = OWN) -> list[str]:
    """Return the seven cells of a machine."""
    return [line[machine] for line in first_table(page, "Scorecard")]


@pytest.fixture(scope="module")
def records() -> list[Record]:
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
        trained(777, 0.71, run={**emulated, "learning_rate": 0.2}),
        trained(777, 0.72, run={**emulated, "learning_rate": 0.4}),
    ]


@pytest.fixture(scope="module")
def page(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of the records at $3.60 per hour."""
    prices = published.prices.load({"test machine": 3.6})
    return written(tmp_path_factory.mktemp("pages"), *records, prices=prices)


def test_the_scorecard_has_known_answers(page: str) -> None:
    # Epochs last 1.5, 1, 1, ... x 50,000 samples / rate.
    seconds, dollars = 7.5 * 50_000 / 4000, 7.5 * 50_000 / 4000 / 1000
    assert scorecard(page) == [
        "1,000 (990–1,020, n=3), 1 GPU",
        "3,700 (3,600–3,900, n=3), 4 GPUs",
        "3.70x (92%, n=3) / 2.00x (100%, n=1) on 2 / —",
        "0.800 (n=1) at 128 → 0.720 (n=1) at 1,024",
        "0.4 at 1,024, best of 2 tried",
        f"{seconds:.0f} s (n=1), 4 GPUs",
        f"${dollars:.2f} (n=1), 4 GPUs",
    ]
    assert scorecard(page, K80) == [
        *("1,100, 1 GPU", "6,800, 8 GPUs", "6.18x (77%) / 7.23x (90%) / 7.86x (98%)"),
        *("0.810 at 128 → 0.611 at 4,096", "0.4 at 4,096, best of 2 tried", "≤ 85 s, 8 GPUs", "≤ $0.17, 8 GPUs"),
    ]
    assert scorecard(page, P100) == [
        *("2,900, 1 GPU", "11,000, 8 GPUs", "3.79x (47%) / — / —", "0.817 at 128 → 0.604 at 4,096"),
        *("0.4 at 4,096, best of 2 tried", "≤ 54 s, 8 GPUs", "no price known"),
    ]


def test_scaling_has_known_answers(page: str) -> None:
    assert [[*line.values()] for line in first_table(page, "Scaling")] == [
        ["test machine", "128", "1,000", "", "3,700", "", "92% on 4", "3"],
        ["test machine", "256", "1,250", "2,500", "", "", "100% on 2", "1"],
        [K80, "128", "1,100", "2,200", "4,300", "6,800", "77% on 8", "1"],
        [K80, "256", "1,300", "2,600", "5,100", "9,400", "90% on 8", "1"],
        [K80, "512", "1,400", "", "", "11,000", "98% on 8", "1"],
        [P100, "128", "2,900", "6,100", "12,000", "11,000", "47% on 8", "1"],
        # One row on one GPU contradicts itself, so that there is no efficiency.
        [P100, "256", "", "7,500", "15,000", "17,000", "", "1"],
    ]


def test_a_scaling_series_goes_on_over_several_hosts(tmp_path: Path) -> None:
    hosts = {**TEST_CPU, "gpus": GPUS, "driver": "550.54", "hosts": 2}
    on_hosts = on_gpus(7000, 8, infrastructure="2 hosts, each test machine", hardware=hosts)
    page = written(tmp_path, on_hosts, on_gpus(1000, minute=1), on_gpus(3600, 4, minute=2))
    (line,) = [line for line in first_table(page, "Scaling") if "test machine" in line["machine"]]
    assert (line["machine"], line["efficiency"]) == ("test machine", "88% on 8")
    assert scorecard(page)[2].startswith("7.00x (88%")
    assert "1 completed" in written(tmp_path, on_hosts)  # of a machine that never ran alone
    # What failed on the hosts together has failed here, too.
    failed = replace(on_hosts, outcome="failed", reason="lost")
    page = written_after(tmp_path, failed, on_gpus(1000, minute=1), runs=[failed])
    assert "1 completed, 1 failed" in page
    assert "failed: lost" in first_table(page, "Your recipes")[0]["accuracy"]


def test_the_learning_rate_by_global_batch_and_its_recommendation(page: str, tmp_path: Path) -> None:
    lines = {line["global batch"]: list(line.values())[1:] for line in first_table(page, "Learning rate")}
    assert lines == {
        "128": ["0.05", "0.05", "0.800", "", "1", "0.810 (lr 0.05)", "0.817 (lr 0.05)"],
        "256": ["", "", "", "", "", "0.783 (lr 0.2)", "0.782 (lr 0.05)"],
        "512": ["0.2", "0.2, 0.4", "0.780", "-0.020", "1", "0.810 (lr 0.2)", "0.773 (lr 0.1)"],
        "1,024": ["0.4", "0.2, 0.4", "0.720", "-0.080", "1", "0.786 (lr 0.4)", "0.773 (lr 0.4)"],
        "2,048": ["", "", "", "", "", "0.722 (lr 0.4)", "0.733 (lr 0.4)"],
        "4,096": ["", "", "", "", "", "0.611 (lr 0.4)", "0.604 (lr 0.4)"],
    }
    pattern = r"batch ([\d,]+) use ([\d.]+) \(([-+.\d]+)"
    (sentence,) = re.findall(r"^\*\*Recommendation.*", page, re.MULTILINE)
    assert re.findall(pattern, sentence) == [("512", "0.2", "-0.020"), ("1,024", "0.4", "-0.080")]
    # Without trainings of this machine it is the published one.
    (sentence,) = re.findall(r"^\*\*Recommendation.*", written(tmp_path, on_gpus(1000)), re.MULTILINE)
    assert K80 in sentence
    assert re.findall(pattern, sentence)[2][:2] == ("1,024", "0.4")


def test_a_rate_is_advised_with_its_schedule(tmp_path: Path) -> None:
    at_512 = {"batch_per_device": 512, "global_batch": 512}
    tried: list[dict[str, Any]] = [{}, {"learning_rate": 0.4}, {"learning_rate": 0.4, "warmup_steps": 10}]
    records = [trained(1000, last, run={**at_512, **run}) for last, run in zip((0.72, 0.7, 0.78), tried)]
    page = written(tmp_path, trained(1000, 0.8), *records)
    cell = scorecard(page)[4]
    assert ("0.4 with warm-up" in cell, "best of 3 tried" in cell) == (True, True)
    assert "batch 512 use 0.4 with warm-up" in page


def test_time_and_cost_are_of_settings_all_of_whose_seeds_reached_the_accuracy(tmp_path: Path, page: str) -> None:
    assert [list(line.values()) for line in first_table(page, "Time and cost")] == [
        ["test machine", "1 GPU", "128, 0.05", "baseline", "4.2 min", "$3.60", "$0.25", "1"],
        ["test machine", "4 GPUs", "512, 0.2", "baseline", "94 s", "$3.60", "$0.09", "1"],
        [K80, "8 GPUs", "1,024, 0.4", "baseline", "≤ 85 s", "$7.20", "≤ $0.17", "1"],
        [P100, "8 GPUs", "1,024, 0.4", "baseline", "≤ 54 s", "unknown", "", "1"],
    ]
    seeds = [trained(1000, 0.8, epoch, run={"seed": seed}, minute=seed) for seed, epoch in enumerate((3, 9, 5))]
    missed = trained(9000, 0.8, 2, devices=2), trained(9000, 0.7, devices=2, run={"seed": 1})
    tuned = replace(trained(500, 0.9, 4, run={"optimizer": "nesterov"}), others_busy_cores=4.0)
    # A seed that diverged has not reached it; a repeat that was interrupted says nothing.
    lost = trained(9000, 0.3, devices=4, run={"seed": 1})
    unstable = trained(9000, 0.8, 2, devices=4), replace(lost, outcome="diverged", reason="nan", evaluations=())
    cut = trained(1000, 0.3, run={"seed": 0}, minute=300)
    interrupted = replace(cut, outcome="failed", reason="interrupted", evaluations=cut.evaluations[:2])
    lines = first_table(written(tmp_path, *seeds, *missed, *unstable, interrupted, tuned), "Time")
    # The median seed: 5.5 times 50 s.
    shown = [(line["devices"], line["training recipe"], line["time"], line["n"]) for line in lines[:-2]]
    assert shown == [
        ("1 GPU", "baseline", "4.6 min", "3"),
        ("1 GPU", "tuned", "7.5 min (noisy)", "1"),
    ]


def test_a_model_with_only_tuning_runs_has_no_page_of_its_own(tmp_path: Path) -> None:
    tuning = {"model": "lenet5", "data": {**AUGMENTED, "validate_on": "held-out"}}
    written(tmp_path, trained(1000, 0.8), trained(1000, 0.6, run=tuning))
    assert not list(tmp_path.glob("model_*"))


def test_a_report_removes_what_only_an_earlier_one_made(tmp_path: Path) -> None:
    for name in ("figures/mine.svg", "model_card.md", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("precious")
    own = {*tmp_path.rglob("*")}
    written(tmp_path, on_gpus(1000), on_gpus(1900, 2, minute=1), trained(1000, 0.6, run={"model": "lenet5"}))
    page = tmp_path / "results.md"  # to which a user may add
    links = ["![mine](figures/mine.svg)", "[model card](model_card.md), [my notes](notes.md)"]
    page.write_text("\n\n".join([page.read_text(), *links]))
    before = {path.name for path in {*tmp_path.rglob("*")} - own}
    written(tmp_path, trained(1000, 0.8))
    after = {path.name for path in {*tmp_path.rglob("*")} - own}
    assert {"model_lenet5_cifar10.md", "scaling_cifar_resnet50_v2.svg"} <= before - after
    assert all(path.exists() for path in own)


def test_the_target_may_be_the_users(tmp_path: Path, records: list[Record]) -> None:
    page = written(tmp_path, *records, target=0.79)
    assert scorecard(page)[5].startswith(f"{12.5 * 50_000 / 1100 / 60:.2g} min")
    assert re.search(r"4 GPUs .*\b0\.780\b", page.split("## Time and cost")[1])
    assert "not reached (best accuracy 0.800)" in scorecard(written(tmp_path, *records, target=0.9))[5]


def test_the_speed_of_emulated_devices_is_on_no_page(page: str) -> None:
    assert "8 emulated" in [line["devices"] for line in first_table(page, "Your recipes")]
    assert not re.search(r"\b777\b", page)


def test_runs_that_accumulate_are_named_and_not_compared_with_others(tmp_path: Path, all_pages: None) -> None:
    accumulating = on_gpus(3000, 4, minute=5, run={"accumulate": 4, "global_batch": 2048})
    page = written(tmp_path, on_gpus(1000), accumulating, studies=STUDIES)
    assert {line["batch"] for line in first_table(page, "Your recipes")} == {"128", "128, accumulate 4"}
    assert "3.00x" not in page
    assert "3,000" in (tmp_path / "settings.md").read_text()
    details = [path.read_text() for path in tmp_path.glob("*.md") if path.stem not in ("results", "settings")]
    assert details
    assert not any("3,000" in text for text in details)


def test_tuned_recipes_are_listed_with_the_split_that_they_were_tuned_on(tmp_path: Path) -> None:
    held_out = {"optimizer": "nesterov", "data": {**AUGMENTED, "validate_on": "held-out"}}
    records = [trained(1000, 0.8), trained(1000, 0.9, run={"optimizer": "nesterov"}), trained(1000, 0.95, run=held_out)]
    smoothed = {"label_smoothing": 0.1, "batch_per_device": 64, "global_batch": 64}
    records += [trained(1000, last, run={**smoothed, "learning_rate": lr}) for last, lr in ((0.85, 0.1), (0.84, 0.2))]
    warm = {"batch_per_device": 32, "global_batch": 32, "warmup_steps": 10}
    records += [trained(1000, 0.82, run={**smoothed, **warm})]
    baseline, tuned = tables(written(tmp_path, *records))["Learning rate and global batch"]
    assert next(line for line in baseline if line["global batch"] == "128")["accuracy"] == "0.800"
    assert tuned[0]["lr"] == "0.05, warm-up 1 epoch"
    shown = [(line["global batch"], line["accuracy"], line["tuned on"]) for line in tuned]
    # At 32 there was no choice.
    assert shown == [("32", "0.820", ""), ("64", "0.850", "test set"), ("128", "0.900", "validation split")]


def test_the_page_is_about_the_machine_of_the_last_run_else_of_the_latest_record(tmp_path: Path) -> None:
    old, new = on_gpus(1000, infrastructure="old"), on_gpus(2000, minute=9, infrastructure="new")
    skipped = record_of(outcome="skipped", started="2027", infrastructure="skipped")
    last = {"recipes": ["scaling.py"], "runs": [old.run.id], "skipped": {}, "machine": "old"}
    for text, machine in ((None, "new"), (json.dumps(last), "old"), ("{", "new")):
        if text:
            (tmp_path / last_run.FILE).write_text(text)
        assert f"this machine ({machine})" in written(tmp_path, old, new, skipped)


def test_records_of_others_are_added_and_the_page_stays_about_this_machine(tmp_path: Path) -> None:
    own = on_gpus(1000), on_gpus(3000, 4)
    others = [on_gpus(5000 * n, n, minute=600, infrastructure="theirs") for n in (1, 4)]
    page = written(tmp_path, *own, others=others)
    assert scorecard(page)[0].startswith("1,000 (n=1),")
    assert [line["machine"] for line in first_table(page, "Scaling")][:2] == ["test machine", "theirs"]
    assert ("**test machine**" in page, "**theirs**" in page) == (True, False)
    assert "theirs" in (tmp_path / "figures" / "scaling_cifar_resnet50_v2.svg").read_text()
    assert len(first_table(page, "Your recipes")) == 2
    # Without them, nothing of them remains.
    written(tmp_path, *own)
    texts = [path.read_text() for pattern in ("*.md", "figures/*.svg", "rows.csv") for path in tmp_path.glob(pattern)]
    assert not any("theirs" in text for text in texts)


def test_your_recipes_has_every_setting_of_the_last_run_also_quick_and_failed_ones(tmp_path: Path) -> None:
    quick = on_gpus(1500, run={"quick": True, "recipe": "mine"})
    failed = on_gpus(1000, outcome="failed", reason="killed by signal 9", run={"seed": 3, "batch_per_device": 256})
    before = trained(1000, 0.8, run={"recipe": "recipes/earlier.py"})
    environment = {"DNNL_MAX_CPU_ISA": "SSE41"}
    chance = trained(1000, 0.1, run={"learning_rate": 9.0, "recipe": "mine"}, environment=environment)
    skipped = {f"reason {number}": number for number in range(1, 9)}
    runs = [quick, failed, chance]
    page = written_after(tmp_path, quick, failed, before, chance, runs=runs, skipped=skipped)
    runs_line = page.split("**Runs:**")[1].splitlines()[0]
    assert re.findall(r"\d+", runs_line) == ["3", "1", str(sum(range(9)))], runs_line
    lines = first_table(page, "Your recipes")
    (name,) = (line["recipe"] for line in lines if line[RATE] == "1,500 (n=1)")
    assert ("quick" in name, len(lines)) == (True, 3)
    assert all(any(word in line["accuracy"] for line in lines) for word in ("killed by signal 9", "chance"))
    assert [line["model"].endswith("DNNL_MAX_CPU_ISA=SSE41") for line in lines].count(True) == 1
    assert [line["runs"] for line in first_table(page, "Not run")] == ["8", "7", "6", "5", str(4 + 3 + 2 + 1)]


def test_a_long_page_has_120_lines_and_counts_the_settings_that_are_not_on_it(tmp_path: Path) -> None:
    runs = [{"learning_rate": 0.001 * number, "devices": 1 + number % 2} for number in range(1, 61)]
    records = [trained(1000 + number, 0.7, run=run) for number, run in enumerate(runs)]
    page = written_after(tmp_path, *records, skipped={f"reason {number}": 1 for number in range(9)})
    assert len(page.splitlines()) <= 120
    (more,) = re.findall(r"^(\d+) more .*\(settings.md\)", page, re.MULTILINE)
    assert len(first_table(page, "Your recipes")) + int(more) == 60
    assert len(first_table((tmp_path / "settings.md").read_text(), "test machine")) == 60


def test_each_other_model_has_a_page(tmp_path: Path) -> None:
    records = [trained(3000 * n, 0.8, 5, devices=n, run={"model": MODEL, "optimizer": "nesterov"}) for n in (1, 4)]
    records += [trained(9000, 0.9, run={"model": MODEL, "optimizer": "lars"})]
    page = written(tmp_path, trained(1000, 0.7), *records)
    (path,) = tmp_path.glob("model_*.md")
    text = path.read_text()
    assert f"({path.name})" in page
    # Without the baseline recipe it is about the recipe with most settings.
    assert scorecard(text)[:3] == ["3,000 (n=1), 1 GPU", "12,000 (n=1), 4 GPUs", "4.00x (100%, n=1) / — / —"]
    assert K80 not in text
    names = set(re.findall(r"\(figures/(.*?)\)", page + text))
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names


def test_the_scorecard_of_another_model_is_at_the_batch_that_it_was_run_with(tmp_path: Path) -> None:
    run = {"model": MODEL, "batch_per_device": 32}
    records = [trained(900 * n, 0.8, devices=n, run={**run, "global_batch": 32 * n}) for n in (1, 4)]
    page = written(tmp_path, *records, trained(500, 0.7, run={**run, "batch_per_device": 64, "global_batch": 64}))
    assert scorecard(page)[:3] == ["900 (n=1), 1 GPU", "3,600 (n=1), 4 GPUs", "4.00x (100%, n=1) / — / —"]
    assert "0.800 (n=1) at 32" in scorecard(page)[3]
    unscaled = scorecard(written(tmp_path / "unscaled", on_gpus(900, batch=32, run={"model": "cifar_resnet20_v2"})))
    assert ["--set devices=1,4" in cell for cell in unscaled] == [number in (1, 2) for number in range(7)]


def test_before_anything_was_measured_there_is_a_page_with_what_to_do(tmp_path: Path, all_pages: None) -> None:
    page = written(tmp_path)
    assert "./run_all.sh --quick" in page.split("\n## ")[0]
    assert all("./run_all.sh" in cell for cell in scorecard(page, "this machine"))
    assert scorecard(page, K80)[0] == "1,100, 1 GPU"
    assert tables((tmp_path / "studies.md").read_text())
    assert written(tmp_path, studies=[]).count("|") > 0


def test_a_model_that_only_diverged_has_the_page_and_no_advice_to_repeat_it(tmp_path: Path) -> None:
    for model in ("cifar_resnet50_v2", MODEL):
        lost = replace(trained(1000, 0.8, run={"model": model}), outcome="diverged", reason="nan", evaluations=())
        page = written(tmp_path, lost)
        assert markdown.model(model).split()[0] in page.splitlines()[0]
        assert scorecard(page)[3] == scorecard(page)[5] == "diverged: see Your recipes"


def test_the_same_records_give_the_same_bytes(
    records: list[Record], tmp_path: Path, all_pages: None, drawn: None
) -> None:
    def bytes_of(folder: Path) -> dict[str, bytes]:
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}

    first, second = (tmp_path / name for name in ("first", "second"))
    written(first, *records, sample="A sample.")
    written(second, *reversed(records), sample="A sample.")
    assert len(bytes_of(first)) > 8
    assert bytes_of(first) == bytes_of(second)
    assert not (first / "explorer.html").exists()  # a sample has none


def test_names_cannot_break_a_table_or_a_figure(tmp_path: Path) -> None:
    name, recipe = "a | b  $x$ <b>", "mine | yours"
    page = written(tmp_path, *(on_gpus(1000 * n, n, infrastructure=name, run={"recipe": recipe}) for n in (1, 4)))
    assert recipe in [line["recipe"] for line in first_table(page, "Your recipes")]
    assert [line for line in first_table(page, "Scaling") if line["machine"] == " ".join(name.split())]


def test_numbers_are_printed_with_the_digits_that_they_have() -> None:
    numbers = [228.4, 1234.5, 0.01234, 0.0000123, 99.96, 0.0, math.nan]
    assert [*map(markdown.number, numbers)] == ["228", "1,234", "0.0123", "1.2e-05", "100", "0", ""]
    assert [*map(markdown.dollars, [0.1666, 1234.5, 0.00123, math.nan])] == ["$0.17", "$1,234.50", "$0.0012", ""]
    assert [*map(markdown.duration, [85.2, 150, 7200, math.nan])] == ["85 s", "2.5 min", "2.0 h", ""]


def test_a_chart_draws_own_lines_in_colour_and_at_most_as_many_as_can_be_told_apart() -> None:
    lines = [chart.Line(f"line {k}", {x: x * k for x in (1, 2, 4)}, measured=k < 2) for k in range(1, 10)]
    ((_, caption, figure),) = figures("name", "caption.", lines, "title", "x", "y", log2=True)
    drawn = figure.axes[0].get_lines()
    assert len(drawn) == chart.MAX_LINES
    assert drawn[2].get_xydata().tolist() == [[1, 3], [2, 6], [4, 12]]
    assert [len(set(re.findall("..", line.get_color()[1:]))) == 1 for line in drawn] == [False, *[True] * 6]  # greys
    assert len({(line.get_marker(), line.get_linestyle()) for line in drawn}) == chart.MAX_LINES
    assert "2 more" in caption
    assert not figures("name", "caption", [chart.Line("a point", {1: 1})], "title", "x", "y")


def test_other_machines_are_shown_in_the_precision_of_this_one(tmp_path: Path) -> None:
    other = {"infrastructure": "other machine"}
    short = [
        replace(trained(2000, 0.6, run={"dtype": "bfloat16", "learning_rate": rate}), **other) for rate in (0.1, 0.2)
    ]
    records = [trained(1000, 0.8, 9), replace(trained(900, 0.7), **other), *short]
    page = written(tmp_path, *records)
    accuracies = [line["accuracy"] for line in first_table(page, "Accuracy and throughput")]
    assert accuracies[:2] == ["0.800 (n=1)", "0.700 (n=1)"]


def seed(number: int, rate: float, last: float, reached: int | None = None, **changes: Any) -> Record:
    """Return a training with this seed, which starts as many hours later."""
    run = {**changes.pop("run", {}), "seed": number}
    return trained(rate, last, reached, run=run, minute=200 + 60 * number, **changes)


def test_seeds_that_diverged_are_counted_and_a_rate_without_one_comes_first(tmp_path: Path) -> None:
    high = {"learning_rate": 1.6}
    diverged = replace(seed(1, 1000, 0.1, run=high), outcome="diverged", reason="nan", evaluations=())
    page = written(tmp_path, seed(0, 1000, 0.8, run=high), diverged)
    assert "0.800 (n=1, 1 diverged)" in scorecard(page)[3]
    page = written(tmp_path, seed(0, 1000, 0.8, run=high), diverged, seed(0, 1000, 0.7))
    assert scorecard(page)[3].startswith("0.700 (n=1)")
    assert first_table(page, "Accuracy and throughput")[0]["accuracy"] == "0.700 (n=1)"
    assert first_table(page, "Learning rate")[0]["lr tried"] == "0.05, 1.6 (diverged)"
    # A repeat of the same seed that came to its end counts in its place.
    completed = replace(seed(1, 1000, 0.82, run=high), started="2026-11-23T10:00:00+00:00")
    assert "0.810 (n=2)" in scorecard(written(tmp_path, seed(0, 1000, 0.8, run=high), diverged, completed))[3]


def test_rates_that_diverged_are_listed_and_never_advised(tmp_path: Path) -> None:
    def at(lr: float, batch: int = 1024, **changes: Any) -> Record:
        run = {"learning_rate": lr, "batch_per_device": batch, "global_batch": batch}
        return trained(1000, 0.7, run=run, **changes)

    end: Any = {"outcome": "diverged", "reason": "nan", "evaluations": ()}
    page = written(
        tmp_path, trained(1000, 0.8), at(0.2), at(0.4), replace(at(0.8), **end), replace(at(0.4, 2048), **end)
    )
    lines = {line["global batch"]: line for line in first_table(page, "Learning rate")}
    held_out = {"learning_rate": 0.1, "data": {**AUGMENTED, "validate_on": "held-out"}}
    tuned = replace(trained(1000, 0.7, run=held_out), **end)
    assert first_table(written(tmp_path, trained(1000, 0.8), tuned), "Learning rate")[0]["lr tried"] == "0.05"
    assert lines["1,024"]["lr tried"] == "0.2, 0.4, 0.8 (diverged)"
    assert (lines["2,048"]["lr tried"], lines["2,048"]["accuracy"]) == ("0.4 (diverged)", "")
    assert "best of 3 tried" in page
    assert "try a higher one" not in page


def test_runs_with_and_without_an_option_of_the_framework_have_labels_of_their_own(tmp_path: Path) -> None:
    torch = {"framework": "pytorch"}
    kinds: Any = ((1000, {}), (600, {"graphs": False}), (1300, {"compile": True}))
    bursts = [on_gpus(rate, minute=n, run={**torch, **fields}) for n, (rate, fields) in enumerate(kinds)]
    page = written(tmp_path, *bursts)
    models = [line["model"] for line in first_table(page, "Your recipes")]
    assert len({*models}) == len(models) == 3
    assert scorecard(page)[0].startswith(first_table(page, "Scaling")[0]["samples/s on 1"])


@pytest.mark.parametrize("run", [{"cores_per_worker": 4}, {"kvstore": {"name": "dist_sync", "servers": 2}}])
def test_cores_of_a_gpu_s_worker_and_a_number_of_servers_hide_no_speed(run: dict[str, Any], tmp_path: Path) -> None:
    bursts = [on_gpus(1000, run={**run, "kvstore": "device"}), on_gpus(1900, 2, 1, run=run)]
    assert scorecard(written(tmp_path, *bursts))[:3] == [
        *("1,000 (n=1), 1 GPU", "1,900 (n=1), 2 GPUs", "1.90x (95%, n=1) / — / —"),
    ]


def test_the_speed_of_a_cpu_is_that_of_all_its_cores_and_of_any_batch_the_accuracy(tmp_path: Path) -> None:
    kind = {"hardware": TEST_CPU, "run": {"kind": "cpu"}}
    later = {"batch_per_device": 256, "global_batch": 256, "kind": "cpu"}
    records = [on_gpus(320, **kind), on_gpus(160, minute=9, threads=1, **kind)]
    page = written(tmp_path, *records, trained(300, 0.8, hardware=TEST_CPU, run=later))
    assert scorecard(page)[0] == "320 (n=1), CPU, 2 cores"
    assert [line["accuracy"] for line in first_table(page, "Accuracy and throughput")][:1] == ["0.800 (n=1)"]


def test_a_quick_run_hides_no_other(tmp_path: Path) -> None:
    quick = [on_gpus(900 * n, n, minute=n, run={"quick": True}) for n in (1, 4)]
    page = written(tmp_path, *quick, trained(1000, 0.8, devices=4, minute=60))
    shown = first_table(page, "Accuracy and throughput")
    assert next(line["accuracy"] for line in shown if line["devices"] == "4 GPUs") == "0.800 (n=1)"


def test_time_to_accuracy_is_by_the_clean_repeat_of_a_seed(tmp_path: Path) -> None:
    clean, noisy = seed(0, 1000, 0.8, 5), trained(100, 0.8, 5, minute=400)
    noisy = replace(noisy, others_busy_cores=noisy.hardware.cores / 2)
    alone = scorecard(written(tmp_path, clean))[5]
    assert scorecard(written(tmp_path, clean, noisy))[5] == alone
    # A seed whose only repeat is noisy counts if it missed the accuracy, and for the accuracy in any case.
    others = [seed(number, 1000, 0.8, 5) for number in (1, 2)]
    of_three = scorecard(written(tmp_path, clean, *others))
    slow = replace(seed(3, 100, 0.8, 5), others_busy_cores=noisy.hardware.cores / 2)
    card = scorecard(written(tmp_path, clean, *others, slow))
    assert (card[5], card[3]) == (of_three[5], of_three[3].replace("n=3", "n=4"))
    missed = replace(seed(3, 100, 0.7), others_busy_cores=slow.others_busy_cores)
    assert "not reached by every seed" in scorecard(written(tmp_path, clean, *others, missed))[5]


def test_a_training_that_ended_at_its_target_is_no_result_of_its_learning_rate(tmp_path: Path) -> None:
    short = trained(1000, 0.9, run={"target_accuracy": 0.85, "learning_rate": 0.4})
    page = written(tmp_path, trained(1000, 0.8), short)
    assert scorecard(page)[3] == "0.800 (n=1) at 128"
    # Nor did it miss an accuracy above its target.
    page = written(tmp_path, trained(1000, 0.71, run={"target_accuracy": 0.7}))
    assert "0.710" not in scorecard(page)[5]


def test_a_batch_s_throughput_is_of_the_setting_with_most_seeds(tmp_path: Path) -> None:
    other = trained(900, 0.77, run={"kvstore": "dist_sync", "workers": 2, "devices": 2, "global_batch": 256})
    usual = [seed(number, 2000, 0.76, run={"devices": 2, "global_batch": 256}) for number in range(3)]
    lines = first_table(
        written(tmp_path, *usual, replace(other, run=replace(other.run, learning_rate=0.05))), "Accuracy"
    )
    assert [line["accuracy"] for line in lines if line["machine"] == "test machine"] == ["0.760 (n=3)"]


def test_reduced_clocks_of_any_repeat_are_noted(tmp_path: Path) -> None:
    heat = {"samples": 30, "of_windows": True, "devices": [{"device": "gpu 0", "throttled": {"heat": 0.2}}]}
    records = [on_gpus(700, minute=0, monitor=heat), on_gpus(1000, minute=1)]
    for order in (records, records[::-1]):
        again = [replace(record, started=started.started) for record, started in zip(order, records)]
        assert "lowered their clocks" in written(tmp_path, *again)


def test_the_latest_version_of_a_framework_is_shown(tmp_path: Path) -> None:
    before, after = trained(1000, 0.8), seed(1, 2000, 0.7)
    after = replace(after, versions={**after.versions, "mxnet": "2.0.0"})
    assert scorecard(written(tmp_path, before, after))[0].startswith("2,000 ")
    assert scorecard(written(tmp_path, after, replace(before, started="2026-12-01T00:00:00+00:00")))[0].startswith(
        "1,000 "
    )


def test_an_interrupted_repeat_is_no_repeat_of_an_efficiency(tmp_path: Path) -> None:
    records = [on_gpus(1000, minute=minute) for minute in range(3)] + [on_gpus(2000, 2, 5 + m) for m in range(3)]
    stopped = replace(on_gpus(500, 2, 9), outcome="failed", reason="interrupted")
    page = written(tmp_path, *records, stopped)
    assert scorecard(page)[2].startswith("2.00x (100%, n=3)")
    assert "0 failed, 1 interrupted" in page
