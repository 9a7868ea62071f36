"""results.md as a reader sees it, made from records whose figures are known."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from poc import published, report
from poc.records import last_run
from poc.records.last_run import LastRun
from poc.records.record import Record
from poc.report import chart, explorer, markdown
from poc.report.results import Results
from poc.report.sections import cost, details, header, learning_rate, recipes, scaling, scorecard, throughput
from tests.builders import AUGMENTED, TEST_CPU, build, record_of
from tests.pages import GPUS, Lines, on_gpus, results_of, tables, trained

STUDIES = published.load()
OWN, K80, P100 = "this machine (test machine)", "8x Tesla K80 (2017)", "DGX-1, 8x P100 (2017)"
RATE = markdown.RATE
MODEL = "cifar_resnet20_v2"


def written(folder: Path, *records: Record, studies: Any = STUDIES[:1], **options: Any) -> str:
    """Return the text of results.md of these records.

    What takes seconds and has tests of its own is left out; a figure's file has the labels of its lines.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explorer, "page", lambda table, cache: "")
        patch.setattr(chart, "lines", lambda lines, *_, **__: [line.label for line in lines])
        patch.setattr(chart, "svg", str)
        patch.setattr(report, "PAGES", {name: report.PAGES[name] for name in ("settings", "studies")})
        report.write(records, studies, page=folder / "results.md", folder=folder, **options)
    return (folder / "results.md").read_text()


def after(*records: Record, runs: Sequence[Record] = (), skipped: Any = None) -> Results:
    """Return the results after a last run that planned these runs, and how many it skipped by reason."""
    ids = tuple(record.run.id for record in runs)
    last = LastRun(recipes=("mine",), runs=ids, skipped=skipped or {}, machine="test machine")
    return results_of(*records, last_run=last)


def first_table(page: str, title: str) -> Lines:
    (name,) = [name for name in tables(page) if name.startswith(title)]
    return tables(page)[name][0]


def table_of(section: ModuleType, *records: Record) -> Lines:
    """Return the first table that a section makes of these records."""
    results = results_of(*records)
    ((lines, *_),) = tables(section.blocks(results, results.subjects()[0])).values()
    return lines


def settings_of(results: Results) -> Lines:
    ((lines,),) = tables(recipes.blocks(results, 120, "settings.md")).values()
    return lines


def card(page: str, machine: str = OWN) -> list[str]:
    """Return the seven cells of a machine in the scorecard of a page."""
    return [line[machine] for line in first_table(page, "Scorecard")]


def card_of(*records: Record, **fields: Any) -> list[str]:
    """Return the seven cells of the scorecard of these records."""
    results = results_of(*records, **fields)
    return [line[OWN] for line in scorecard.lines(results, results.subjects()[0])]


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
    assert card(page) == [
        "1,000 (990–1,020, n=3), 1 GPU",
        "3,700 (3,600–3,900, n=3), 4 GPUs",
        "3.70x (92%, n=3) / 2.00x (100%, n=1) on 2 / —",
        "0.800 (n=1) at 128 → 0.720 (n=1) at 1,024",
        "0.4 at 1,024, best of 2 tried",
        f"{seconds:.0f} s (n=1), 4 GPUs",
        f"${dollars:.2f} (n=1), 4 GPUs",
    ]
    assert card(page, K80) == [
        *("1,100, 1 GPU", "6,800, 8 GPUs", "6.18x (77%) / 7.23x (90%) / 7.86x (98%)"),
        *("0.810 at 128 → 0.611 at 4,096", "0.4 at 4,096, best of 2 tried", "≤ 85 s, 8 GPUs", "≤ $0.17, 8 GPUs"),
    ]
    assert card(page, P100) == [
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


def test_a_speedup_over_noisy_repeats_on_one_device_is_noisy() -> None:
    records = [on_gpus(500, others_busy_cores=1.5), on_gpus(3600, 4, minute=2)]
    assert card_of(*records)[2].startswith("7.20x (180%, n=1, noisy)")
    assert table_of(scaling, *records)[0]["machine"].endswith("noisy")
    by_kvstore = tables(details.scaling_and_kvstores(results_of(*records)))["Weak scaling by kvstore"]
    assert by_kvstore[0][0]["model, framework"].endswith("noisy")


def test_a_scaling_series_goes_on_over_several_hosts() -> None:
    hosts = {**TEST_CPU, "gpus": GPUS, "driver": "550.54", "hosts": 2}
    on_hosts = on_gpus(7000, 8, infrastructure="2 hosts, each test machine", hardware=hosts)
    (line,) = table_of(scaling, on_gpus(1000, minute=1), on_gpus(3600, 4, minute=2), on_hosts)
    assert (line["machine"], line["efficiency"]) == ("test machine", "88% on 8")
    assert card_of(on_gpus(1000, minute=1), on_gpus(3600, 4, minute=2), on_hosts)[2].startswith("7.00x (88%")
    assert "1 completed" in header.lines(results_of(on_hosts))  # of a machine that never ran alone
    # What failed on the hosts together has failed here, too.
    failed = replace(on_hosts, outcome="failed", reason="lost")
    results = after(on_gpus(1000, minute=1), failed, runs=[failed])
    assert "1 completed, 1 failed" in header.lines(results)
    assert settings_of(results)[0]["accuracy"] == "failed: lost"


def test_trainings_over_several_hosts_are_among_the_learning_rates() -> None:
    hosts = {"infrastructure": "2 hosts, each test machine", "hardware": {**TEST_CPU, "gpus": GPUS, "hosts": 2}}
    bursts = [on_gpus(1000, minute=1), on_gpus(3600, 4, minute=2), on_gpus(7000, 8, minute=3, **hosts)]
    ends = [trained(1000, 0.8), trained(3600, 0.78, devices=4), trained(7000, 0.75, devices=8, **hosts)]
    assert [line["global batch"] for line in table_of(learning_rate, *bursts, *ends)] == ["128", "512", "1,024"]
    _, on_this, speedup, accuracy, rate, *_ = card_of(*bursts, *ends)
    assert (on_this[-6:], speedup[:20], rate[:12]) == ("4 GPUs", "7.00x (88%, n=1) on ", "0.4 at 1,024")
    assert accuracy.endswith("→ 0.750 (n=1) at 1,024")


def test_numbers_of_a_machine_that_had_other_cores_are_of_one_of_them_and_named() -> None:
    other = {"hardware": {**TEST_CPU, "cores": 64, "cpu": "Other", "gpus": GPUS}}
    slow = [on_gpus(500, minute=minute, hardware={**TEST_CPU, "gpus": GPUS}) for minute in range(3)]
    slow.append(trained(500, 0.8, hardware=slow[0].hardware.__dict__ | {"gpus": GPUS}))
    fast = [on_gpus(3000, minute=90, **other), on_gpus(9000, 4, minute=91, **other), trained(3000, 0.79, **other)]
    results = results_of(*slow, *fast)
    assert "Other, 64 cores" in header.lines(results)
    assert f"{slow[0].hardware.cpu}, {slow[0].hardware.cores} cores" in header.lines(results)
    assert card_of(*slow, *fast)[0].startswith("3,000 (n=1)")
    (subject,) = results.subjects()
    assert "Other, 64 cores" in str(scorecard.blocks(results, subject, scorecard.lines(results, subject)))
    assert {line["samples/s (min–max, n)"] for line in table_of(throughput, *slow, *fast)} == {
        "3,000 (n=1)",
        "9,000 (n=1)",
    }
    models = {line["model"] for line in settings_of(results)}
    assert {"64 cores" in model for model in models} == {True, False}


def test_the_framework_is_named_where_it_is_not_that_of_the_scorecard() -> None:
    torch: Any = {"run": {"model": MODEL, "framework": "pytorch"}, "versions": {"torch": "2.13.0"}}
    first, faster = trained(1000, 0.8, 3, run={"model": MODEL}), trained(4000, 0.8, 3, minute=230, **torch)
    (line,) = table_of(cost, first, faster)
    assert "PyTorch" in line["machine"]
    assert "PyTorch" not in table_of(cost, first)[0]["machine"]


def test_of_several_rates_that_searches_chose_no_table_takes_the_best_one_on_the_test_set() -> None:
    seeds = [(0.1, 0.80), (0.1, 0.80), (0.4, 0.82)]
    runs = [{"learning_rate": rate, "seed": seed} for seed, (rate, _) in enumerate(seeds)]
    table = build(*(trained(1000, last, run=run) for run, (_, last) in zip(runs, seeds)))
    results = Results(table.assign(chosen=True, candidates=10.0), (), "test machine")
    for section, column in ((throughput, "lr"), (learning_rate, "best lr")):
        ((lines, *_),) = tables(section.blocks(results, results.subjects()[0])).values()
        assert (lines[0][column], lines[0]["accuracy"][:5]) == ("0.1", "0.800")


def test_the_explorer_has_no_times_of_emulated_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[pd.DataFrame] = []
    monkeypatch.setattr(explorer, "_vega", lambda cache: "")
    monkeypatch.setattr(explorer, "_rows", lambda table: "")
    monkeypatch.setattr(explorer, "_data", lambda table: shown.append(table) or "")
    explorer.page(build(trained(1000, 0.8), trained(1000, 0.8, devices=4, run={"emulated": True})), None)
    (table,) = shown
    assert table.wall_seconds.notna().tolist() == (table.seconds_by_epoch != "").tolist() == (~table.emulated).tolist()


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
    pattern = r"batch ([\d,]+) use ([\d.]+) \(([-+.\d]+)"
    (sentence,) = re.findall(r"^\*\*Recommendation.*", page, re.MULTILINE)
    assert re.findall(pattern, sentence) == [("512", "0.2", "-0.020"), ("1,024", "0.4", "-0.080")]
    # Without trainings of this machine it is the published one.
    results = results_of(on_gpus(1000), studies=STUDIES[:1])
    blocks = map(str, learning_rate.blocks(results, results.subjects()[0]))
    (sentence,) = [block for block in blocks if block.startswith("**Recommendation")]
    assert K80 in sentence
    assert re.findall(pattern, sentence)[2][:2] == ("1,024", "0.4")
    # The command that it names does nothing on a CPU without this field.
    other = record_of(run={"model": "cifar_lenet"})
    of_cpu = results_of(other, studies=STUDIES[:1])
    main = results.subjects()[0]
    for shown in (learning_rate.blocks(of_cpu, main), scorecard.lines(of_cpu, main)):
        assert "learning_rate --set kind=cpu" in str(shown)


def test_a_rate_is_advised_with_its_schedule() -> None:
    at_512 = {"batch_per_device": 512, "global_batch": 512}
    tried: list[dict[str, Any]] = [{}, {"learning_rate": 0.4}, {"learning_rate": 0.4, "warmup_steps": 10}]
    records = [trained(1000, last, run={**at_512, **run}) for last, run in zip((0.72, 0.7, 0.78), tried)]
    results = results_of(trained(1000, 0.8), *records)
    (subject,) = results.subjects()
    cell = scorecard.lines(results, subject)[4][OWN]
    assert ("0.4 with warm-up" in cell, "best of 3 tried" in cell) == (True, True)
    assert "batch 512 use 0.4 with warm-up" in str(learning_rate.blocks(results, subject))


def test_time_and_cost_are_of_settings_all_of_whose_seeds_reached_the_accuracy(page: str) -> None:
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
    lines = table_of(cost, *seeds, *missed, *unstable, interrupted, tuned)
    # The median seed: 5.5 times 50 s.
    assert [(line["devices"], line["training recipe"], line["time"], line["n"]) for line in lines] == [
        ("1 GPU", "baseline", "4.6 min", "3"),
        ("1 GPU", "tuned", "7.5 min (noisy)", "1"),
    ]
    # The CPU of a GPU machine is a device of its own.
    on_cpu = trained(100, 0.8, 3, run={"kind": "cpu"})
    assert [line["devices"] for line in table_of(cost, *seeds, on_cpu)] == ["1 GPU", "CPU, 2 cores"]


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
    # A model with only tuning runs has no page.
    tuning = {"model": "lenet5", "data": {**AUGMENTED, "validate_on": "held-out"}}
    written(tmp_path, trained(1000, 0.8), trained(1000, 0.6, run=tuning))
    after = {path.name for path in {*tmp_path.rglob("*")} - own}
    assert {"model_lenet5_cifar10.md", "scaling_cifar_resnet50_v2.svg"} <= before - after
    assert all(path.exists() for path in own)


def test_the_target_may_be_the_users(records: list[Record]) -> None:
    assert card_of(*records, target=0.79)[5].startswith(f"{12.5 * 50_000 / 1100 / 60:.2g} min")
    results = results_of(*records, target=0.79)
    assert re.search(r"\b0\.780\b.* 4 GPUs", str(cost.blocks(results, results.subjects()[0])))
    assert "not reached (best accuracy 0.800)" in card_of(*records, target=0.9)[5]
    assert "not reached (best accuracy 0.9339)" in card_of(trained(1000, 990 / 1060), target=0.934)[5]


def test_the_speed_of_emulated_devices_is_on_no_page(page: str) -> None:
    assert "8 emulated" in [line["devices"] for line in first_table(page, "Your recipes")]
    assert not re.search(r"\b777\b", page)


def test_runs_that_accumulate_are_named_and_not_compared_with_others() -> None:
    accumulating = on_gpus(3000, 4, minute=5, run={"accumulate": 4, "global_batch": 2048})
    results = results_of(on_gpus(1000), accumulating, studies=STUDIES)
    assert {line["batch"] for line in settings_of(results)} == {"128", "128, accumulate 4"}
    assert "3.00x" not in str(scorecard.lines(results, results.subjects()[0]))
    pages = {name for name, (_, blocks) in report.PAGES.items() if "3,000" in str(blocks(results))}
    assert pages == {"settings"}


def test_tuned_recipes_are_listed_with_the_split_that_they_were_tuned_on() -> None:
    held_out = {"optimizer": "nesterov", "data": {**AUGMENTED, "validate_on": "held-out"}}
    records = [trained(1000, 0.8), trained(1000, 0.9, run={"optimizer": "nesterov"}), trained(1000, 0.95, run=held_out)]
    smoothed = {"label_smoothing": 0.1, "batch_per_device": 64, "global_batch": 64}
    records += [trained(1000, last, run={**smoothed, "learning_rate": lr}) for last, lr in ((0.85, 0.1), (0.84, 0.2))]
    warm = {"batch_per_device": 32, "global_batch": 32, "warmup_steps": 10}
    results = results_of(*records, trained(1000, 0.82, run={**smoothed, **warm}))
    (baseline,), tuned = tables(learning_rate.blocks(results, results.subjects()[0])).popitem()[1]
    assert (baseline["global batch"], baseline["accuracy"]) == ("128", "0.800")
    assert tuned[0]["lr"] == "0.05, warm-up 1 epoch"
    shown = [(line["global batch"], line["accuracy"], line["tuned on"]) for line in tuned]
    # At 32 there was no choice.
    assert shown == [("32", "0.820", ""), ("64", "0.850", "test set"), ("128", "0.900", "validation split")]


def test_the_page_is_about_the_machine_of_the_last_run_else_of_the_latest_record() -> None:
    old, new = on_gpus(1000, infrastructure="old"), on_gpus(2000, minute=9, infrastructure="new")
    table = build(old, new, record_of(outcome="skipped", started="2027", infrastructure="skipped"))
    for machine, shown in (("old", "old"), ("gone", "new")):
        last = LastRun(recipes=(), runs=(), skipped={}, machine=machine)
        assert report.this_machine(table, last) == shown
    assert report.this_machine(table, None) == "new"


def test_records_of_others_are_added_and_the_page_stays_about_this_machine(tmp_path: Path) -> None:
    own = on_gpus(1000), on_gpus(3000, 4), on_gpus(1000, minute=700, infrastructure="later")
    others = [on_gpus(5000 * n, n, minute=600, infrastructure="theirs") for n in (1, 4)]
    last = {"recipes": ["scaling.py"], "runs": [own[0].run.id, own[1].run.id], "skipped": {}, "machine": "test machine"}
    (tmp_path / last_run.FILE).write_text(json.dumps(last))
    page = written(tmp_path, *own, others=others)
    assert card(page)[0].startswith("1,000 (n=1),")
    assert {"test machine", "theirs"} < {line["machine"] for line in first_table(page, "Scaling")}
    assert ("**test machine**" in page, "**theirs**" in page) == (True, False)
    assert "theirs" in (tmp_path / "figures" / "scaling_cifar_resnet50_v2.svg").read_text()
    assert len(first_table(page, "Your recipes")) == 2
    # Without them, nothing of them remains.
    written(tmp_path, *own)
    texts = [path.read_text() for pattern in ("*.md", "figures/*.svg", "rows.csv") for path in tmp_path.glob(pattern)]
    assert not any("theirs" in text for text in texts)


def test_your_recipes_has_every_setting_of_the_last_run_also_quick_and_failed_ones() -> None:
    quick = on_gpus(1500, run={"quick": True, "recipe": "mine"})
    failed = on_gpus(1000, outcome="failed", reason="killed by signal 9", run={"seed": 3, "batch_per_device": 256})
    before = trained(1000, 0.8, run={"recipe": "recipes/earlier.py"})
    environment = {"DNNL_MAX_CPU_ISA": "SSE41"}
    chance = trained(1000, 0.1, run={"learning_rate": 9.0, "recipe": "mine"}, environment=environment)
    skipped = {f"reason {number}": number for number in range(1, 9)}
    results = after(quick, failed, before, chance, runs=[quick, failed, chance], skipped=skipped)
    (runs_line,) = header.lines(results).split("**Runs:**")[1:]
    assert re.findall(r"\d+", runs_line) == ["3", "1", str(sum(range(9)))], runs_line
    lines = settings_of(results)
    (name,) = (line["recipe"] for line in lines if line[RATE] == "1,500 (n=1)")
    assert ("quick" in name, len(lines)) == (True, 3)
    assert all(any(word in line["accuracy"] for line in lines) for word in ("killed by signal 9", "chance"))
    assert [line["model"].endswith("DNNL_MAX_CPU_ISA=SSE41") for line in lines].count(True) == 1
    ((lines,),) = tables(recipes.not_run(results)).values()
    assert [line["runs"] for line in lines] == ["8", "7", "6", "5", str(4 + 3 + 2 + 1)]


def test_a_long_page_has_120_lines_and_counts_the_settings_that_are_not_on_it(tmp_path: Path) -> None:
    runs = [{"learning_rate": 0.001 * number, "devices": 1 + number % 2} for number in range(1, 61)]
    records = [trained(1000 + number, 0.7, run=run) for number, run in enumerate(runs)]
    records += [replace(records[0], outcome="skipped", reason=f"reason {chr(65 + number)}") for number in range(9)]
    page = written(tmp_path, *records)
    assert len(page.splitlines()) <= 120
    (more,) = re.findall(r"^(\d+) more: .*\(settings.md\)", page, re.MULTILINE)
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
    assert card(text)[:3] == ["3,000 (n=1), 1 GPU", "12,000 (n=1), 4 GPUs", "4.00x (100%, n=1) / — / —"]
    assert K80 not in text
    names = set(re.findall(r"\(figures/(.*?)\)", page + text))
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names


def test_the_scorecard_of_another_model_is_at_the_batch_that_it_was_run_with() -> None:
    run = {"model": MODEL, "batch_per_device": 32}
    records = [trained(900 * n, 0.8, devices=n, run={**run, "global_batch": 32 * n}) for n in (1, 4)]
    cells = card_of(*records, trained(500, 0.7, run={**run, "batch_per_device": 64, "global_batch": 64}))
    assert cells[:3] == ["900 (n=1), 1 GPU", "3,600 (n=1), 4 GPUs", "4.00x (100%, n=1) / — / —"]
    assert "0.800 (n=1) at 32" in cells[3]
    unscaled = card_of(on_gpus(900, batch=32, run={"model": MODEL}))
    assert ["--set devices=1,4" in cell for cell in unscaled] == [number in (1, 2) for number in range(7)]


def test_before_anything_was_measured_there_is_a_page_with_what_to_do(tmp_path: Path) -> None:
    page = written(tmp_path)
    assert "./run_all.sh --quick" in page.split("\n## ")[0]
    assert all("./run_all.sh" in cell for cell in card(page, "this machine"))
    assert card(page, K80)[0] == "1,100, 1 GPU"
    assert tables((tmp_path / "studies.md").read_text())
    sample = written(tmp_path / "sample", studies=[], sample="A sample.")
    assert ("A sample." in sample, (tmp_path / "sample" / "explorer.html").exists()) == (True, False)


@pytest.mark.parametrize("model", ["cifar_resnet50_v2", MODEL])
def test_a_model_that_did_not_complete_has_a_scorecard_and_no_advice_to_repeat_it(model: str) -> None:
    diverged = replace(trained(1000, 0.8, run={"model": model}), outcome="diverged", reason="nan", evaluations=())
    cells = card_of(diverged)
    assert cells[3] == cells[5] == "diverged: see Your recipes"
    # So it has if its throughput was measured.
    cells = card_of(on_gpus(1000, run={"model": model}), diverged)
    assert cells[3] == cells[5] == "diverged: see Your recipes"
    assert "nan" not in " ".join(cells)
    failed = [on_gpus(1000, n, run={"model": model}, outcome="failed", reason="no driver") for n in (1, 4)]
    assert card_of(*failed)[:3] == ["failed: see Your recipes"] * 3
    interrupted = [replace(record, reason="interrupted") for record in failed]
    assert not [cell for cell in card_of(*interrupted) if "see Your recipes" in cell]


def test_names_cannot_break_a_table() -> None:
    name, recipe = "a | b  $x$ <b>", "mine | yours"
    records = [on_gpus(1000 * n, n, infrastructure=name, run={"recipe": recipe}) for n in (1, 4)]
    assert {line["recipe"] for line in settings_of(results_of(*records))} == {recipe}
    assert [line["machine"] for line in table_of(scaling, *records)] == [" ".join(name.split())]


def test_an_error_is_shown_as_it_was_printed() -> None:
    """Also where a page would take parts of it for tags, which it leaves out, or for bold letters."""
    reason = "TypeError: Net.__init__() got <class 'float'> in **kwargs | [0] `x`"
    failed = on_gpus(1000, outcome="failed", reason=reason)
    results = after(failed, runs=[failed], skipped={reason: 1})
    assert settings_of(results)[0]["accuracy"] == f"failed: {reason}"
    ((not_run,),) = tables(recipes.not_run(results)).values()
    assert not_run[0]["reason"] == reason
    for page in (recipes.blocks(results, 120, ""), details.method(results), recipes.not_run(results)):
        assert r"Net.\_\_init\_\_() got \<class 'float'>" in str(page[-1])


def test_numbers_are_printed_with_the_digits_that_they_have() -> None:
    numbers = [228.4, 1234.5, 0.01234, 0.0000123, 99.96, 0.0, math.nan]
    assert [*map(markdown.number, numbers)] == ["228", "1,234", "0.0123", "1.2e-05", "100", "0", ""]
    assert [*map(markdown.dollars, [0.1666, 1234.5, 0.00123, math.nan])] == ["$0.17", "$1,234.50", "$0.0012", ""]
    assert [*map(markdown.duration, [85.2, 150, 7200, math.nan])] == ["85 s", "2.5 min", "2.0 h", ""]


def test_a_chart_draws_own_lines_in_colour_and_at_most_as_many_as_can_be_told_apart() -> None:
    lines = [chart.Line(f"line {k}", {x: x * k for x in (1, 2, 4)}, measured=k < 2) for k in range(1, 10)]
    ((_, caption, figure),) = markdown.figure("name", "caption.", lines, "title", "x", "y", log2=True)
    drawn = figure.axes[0].get_lines()
    assert len(drawn) == chart.MAX_LINES
    assert drawn[2].get_xydata().tolist() == [[1, 3], [2, 6], [4, 12]]
    assert [len(set(re.findall("..", line.get_color()[1:]))) == 1 for line in drawn] == [False, *[True] * 6]  # greys
    assert len({(line.get_marker(), line.get_linestyle()) for line in drawn}) == chart.MAX_LINES
    assert "2 more" in caption
    assert not markdown.figure("name", "caption", [chart.Line("a point", {1: 1})], "title", "x", "y")


def test_other_machines_are_shown_in_the_precision_of_this_one() -> None:
    other = {"infrastructure": "other machine"}
    short = [trained(2000, 0.6, run={"dtype": "bfloat16", "learning_rate": rate}, **other) for rate in (0.1, 0.2)]
    lines = table_of(throughput, trained(1000, 0.8, 9), trained(900, 0.7, **other), *short)
    assert [line["accuracy"] for line in lines] == ["0.800 (n=1)", "0.700 (n=1)"]


def seed(number: int, rate: float, last: float, reached: int | None = None, **changes: Any) -> Record:
    """Return a training with this seed, which starts as many hours later."""
    run = {**changes.pop("run", {}), "seed": number}
    return trained(rate, last, reached, run=run, minute=200 + 60 * number, **changes)


def test_seeds_that_diverged_are_counted_and_a_rate_without_one_comes_first() -> None:
    high = {"learning_rate": 1.6}
    diverged = replace(seed(1, 1000, 0.1, run=high), outcome="diverged", reason="nan", evaluations=())
    first, low = seed(0, 1000, 0.8, run=high), seed(0, 1000, 0.7)
    assert "0.800 (n=1, 1 diverged)" in card_of(first, diverged)[3]
    assert card_of(first, diverged, low)[3].startswith("0.700 (n=1)")
    assert table_of(throughput, first, diverged, low)[0]["accuracy"] == "0.700 (n=1)"
    assert table_of(learning_rate, first, diverged, low)[0]["lr tried"] == "0.05, 1.6 (diverged)"
    # A repeat of the same seed that came to its end counts in its place.
    completed = replace(seed(1, 1000, 0.82, run=high), started="2026-11-23T10:00:00+00:00")
    assert "0.810 (n=2)" in card_of(first, diverged, completed)[3]


def test_rates_that_diverged_are_listed_and_never_advised() -> None:
    def at(lr: float, batch: int = 1024, **changes: Any) -> Record:
        run = {"learning_rate": lr, "batch_per_device": batch, "global_batch": batch}
        return trained(1000, 0.7, run=run, **changes)

    end: Any = {"outcome": "diverged", "reason": "nan", "evaluations": ()}
    results = results_of(trained(1000, 0.8), at(0.2), at(0.4), replace(at(0.8), **end), replace(at(0.4, 2048), **end))
    blocks = learning_rate.blocks(results, results.subjects()[0])
    ((lines, *_),) = tables(blocks).values()
    shown = {line["global batch"]: (line["lr tried"], line["accuracy"]) for line in lines}
    assert shown["1,024"] == ("0.2, 0.4, 0.8 (diverged)", "0.700")
    assert shown["2,048"] == ("0.4 (diverged)", "")
    assert scorecard.lines(results, results.subjects()[0])[3][OWN].endswith("1,024 → diverged at 2,048")
    assert ("best of 3 tried" in str(blocks), "try a higher one" in str(blocks)) == (True, False)
    held_out = {"learning_rate": 0.1, "data": {**AUGMENTED, "validate_on": "held-out"}}
    (line,) = table_of(learning_rate, trained(1000, 0.8), replace(trained(1000, 0.7, run=held_out), **end))
    assert line["lr tried"] == "0.05"


def test_runs_with_and_without_an_option_of_the_framework_have_labels_of_their_own() -> None:
    kinds: Any = ((1000, {}), (600, {"graphs": False}), (1300, {"compile": True}))
    bursts = [on_gpus(rate, minute=n, run={"framework": "pytorch", **run}) for n, (rate, run) in enumerate(kinds)]
    models = [line["model"] for line in settings_of(results_of(*bursts))]
    assert len({*models}) == len(models) == 3
    assert card_of(*bursts)[0].startswith(table_of(scaling, *bursts)[0]["samples/s on 1"])


@pytest.mark.parametrize("run", [{"cores_per_worker": 4}, {"kvstore": {"name": "dist_sync", "servers": 2}}])
def test_cores_of_a_gpu_s_worker_and_a_number_of_servers_hide_no_speed(run: dict[str, Any]) -> None:
    bursts = [on_gpus(1000, run={**run, "kvstore": "device"}), on_gpus(1900, 2, 1, run=run)]
    assert card_of(*bursts)[:3] == ["1,000 (n=1), 1 GPU", "1,900 (n=1), 2 GPUs", "1.90x (95%, n=1) / — / —"]


def test_the_speed_of_a_cpu_is_that_of_all_its_cores_and_of_any_batch_the_accuracy() -> None:
    kind = {"hardware": TEST_CPU, "run": {"kind": "cpu"}}
    later = {"batch_per_device": 256, "global_batch": 256, "kind": "cpu"}
    records = [on_gpus(320, **kind), on_gpus(160, minute=9, threads=1, **kind)]
    records += [trained(300, 0.8, hardware=TEST_CPU, run=later)]
    assert card_of(*records)[0] == "320 (n=1), CPU, 2 cores"
    assert table_of(throughput, *records)[0]["accuracy"] == "0.800 (n=1)"


def test_a_quick_run_hides_no_other() -> None:
    quick = [on_gpus(900 * n, n, minute=n, run={"quick": True}) for n in (1, 4)]
    shown = table_of(throughput, *quick, trained(1000, 0.8, devices=4, minute=60))
    assert [line["accuracy"] for line in shown if line["devices"] == "4 GPUs"] == ["0.800 (n=1)"]


def test_a_speed_is_of_a_clean_setting_rather_than_one_with_more_repeats_and_of_equals_of_the_latest() -> None:
    noisy = [on_gpus(500, minute=minute, others_busy_cores=1.0) for minute in range(3)]
    assert card_of(*noisy, on_gpus(1000, minute=5, run={"learning_rate": 0.1}))[0].startswith("1,000 (n=1)")
    equals = on_gpus(1000), on_gpus(900, minute=1, run={"warmup_steps": 10}), on_gpus(800, run={"decay": "linear"})
    assert card_of(*equals)[0].startswith("900 (n=1)")


def test_time_to_accuracy_is_by_the_clean_repeat_of_a_seed() -> None:
    clean, noisy = seed(0, 1000, 0.8, 5), trained(100, 0.8, 5, minute=400, others_busy_cores=1.0)
    assert card_of(clean, noisy)[5] == card_of(clean)[5]
    # A seed whose only repeat is noisy counts if it missed the accuracy, and for the accuracy in any case.
    three = [clean, *(seed(number, 1000, 0.8, 5) for number in (1, 2))]
    of_three, of_four = card_of(*three), card_of(*three, seed(3, 100, 0.8, 5, others_busy_cores=1.0))
    assert (of_four[5], of_four[3]) == (of_three[5], of_three[3].replace("n=3", "n=4"))
    assert "not reached by every seed" in card_of(*three, seed(3, 100, 0.7, others_busy_cores=1.0))[5]


def test_a_training_that_ended_at_its_target_is_no_result_of_its_learning_rate() -> None:
    short = trained(1000, 0.9, run={"target_accuracy": 0.85, "learning_rate": 0.4})
    assert card_of(trained(1000, 0.8), short)[3] == "0.800 (n=1) at 128"
    # Nor did it miss an accuracy above its target.
    assert "0.710" not in card_of(trained(1000, 0.71, run={"target_accuracy": 0.7}))[5]


def test_a_batch_s_throughput_is_of_the_setting_with_most_seeds() -> None:
    two = {"devices": 2, "global_batch": 256, "learning_rate": 0.1}
    other = trained(900, 0.77, run={**two, "kvstore": "dist_sync", "workers": 2})
    usual = [seed(number, 2000, 0.76, run=two) for number in range(3)]
    (line,) = table_of(throughput, *usual, other)
    assert line["accuracy"] == "0.760 (n=3)"


def test_reduced_clocks_of_any_repeat_are_noted() -> None:
    heat = {"samples": 30, "devices": [{"device": "gpu 0", "throttled": {"heat": 0.2}}]}

    def notes(*records: Record) -> int:
        results = results_of(*records)
        return len(header.notes(results, results.subjects()[0]).splitlines())

    for hot, cool in ((0, 1), (1, 0)):
        cooled = on_gpus(1000, minute=cool)
        assert notes(on_gpus(700, minute=hot, monitor=heat), cooled) == notes(on_gpus(700, minute=hot), cooled) + 1


def test_no_table_has_an_accuracy_on_synthetic_images() -> None:
    synthetic = [trained(1000, 0.1, devices=devices, dataset="synthetic") for devices in (1, 4)]
    assert not any(line.get("accuracy") for line in table_of(throughput, *synthetic) + settings_of(after(*synthetic)))


def test_no_note_is_left_out_because_there_are_others() -> None:
    jpeg, own = {"dataset": "cifar10 (jpeg)"}, {"run": {"learning_rate": 0.2}}
    records = [trained(1000, 0.8, **jpeg), on_gpus(900, others_busy_cores=1.0, **own)]
    records += [trained(1000, 0.8, devices=4, run={"emulated": True}, **jpeg), on_gpus(900, run={"quick": True})]
    results = results_of(*records, studies=STUDIES[:1])
    text = header.notes(results, results.subjects()[0])
    assert all(word in text for word in ("JPEG", "Published rows", "Emulated", '"quick"', '"noisy"'))


def test_the_latest_version_of_a_framework_is_shown() -> None:
    before, newer = trained(1000, 0.8), seed(1, 2000, 0.7, versions={"mxnet": "2.0.0"})
    assert card_of(before, newer)[0].startswith("2,000 ")
    assert card_of(newer, replace(before, started="2026-12-01T00:00:00+00:00"))[0].startswith("1,000 ")


def test_an_interrupted_repeat_is_no_repeat_of_an_efficiency() -> None:
    records = [on_gpus(1000, minute=minute) for minute in range(3)] + [on_gpus(2000, 2, 5 + m) for m in range(3)]
    records += [on_gpus(500, 2, 9, outcome="failed", reason="interrupted")]
    assert card_of(*records)[2].startswith("2.00x (100%, n=3)")
    assert "0 failed, 1 interrupted" in header.lines(results_of(*records))
