"""Rows and pages made from records whose figures are known beforehand."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from poc import report, studies
from poc.records import journal, timing
from poc.records.record import Record
from poc.report import rows, summary
from poc.report.tables import runs, scaling, speed
from poc.studies.row import COLUMNS, Row
from tests.builders import TEST_CPU, record_of

HOME = Path(__file__).resolve().parent.parent

# Of results/rows.csv, as docs and readers know them: names and order.
DESIGN = """
    origin study run_id infrastructure hardware framework network parameters dataset input_shape batch_per_device
    total_batch learning_rate lr_rule devices virtual workers exchange dtype layout epochs steps seed outcome
    accuracy seconds_per_epoch samples_per_second spread windows utilisation wall_seconds initialise_seconds
    warmup_seconds train_seconds data_seconds evaluate_seconds checkpoint_seconds rest_seconds speedup_throughput
    speedup_wall efficiency_throughput efficiency_wall note
"""

STUDIES = studies.load()


BLANK: dict[str, Any] = {"windows": [], "evaluations": [], "parts": {}, "wall": None, "memory": {}}


def skipped(devices: int, seed: int) -> Record:
    """A run that was not even tried."""
    run = {"devices": devices, "kind": "gpu", "seed": seed}
    reason = f"needs {devices} GPUs, this machine has none"
    return record_of(run=run, run_id=f"skipped{devices}{seed}", outcome="skipped", reason=reason, **BLANK)


def workers(count: int, epoch_seconds: Sequence[float], **changes: Any) -> Record:
    """Six epochs of 1,280 samples, whatever the number of workers."""
    run: dict[str, Any] = dict(devices=count, workers=count, cores_per_worker=1, exchange="dist_sync")
    run.update(batch_per_device=64, total_batch=64 * count, learning_rate=0.025 * count)
    run.update(steps_per_epoch=20 // count, steps=120 // count)
    run.update(changes.pop("run", {}))
    changes = {"run_id": f"workers-{count}", **changes}
    return record_of(run=run, epoch_seconds=epoch_seconds, accuracies=(), **changes)


# One and two workers: 1,280 samples in 8 s and in 4 s; the start takes 3 s on either.
DETAIL = dict(steps=24, whole_step_seconds=0.4, independent_step_seconds=0.3, exchange_seconds=0.15, sums_right=True)
DETAIL.update(exchange_bytes=3_000_000, bus_bytes_per_second=2e7, synchronisation_seconds=0.04, data_seconds=0.01)
ONE = workers(1, [8.0] * 6)
ALONE = workers(2, [4.0] * 6).to_json()
TWO = workers(
    2,
    [4.0] * 6,
    detail=DETAIL,
    workers=[{"worker": number, **{name: ALONE[name] for name in ("wall", "parts", "windows")}} for number in range(2)],
    monitor={"samples": 30, "devices": [{"device": "cpu", "utilisation": 0.9, "memory_peak_bytes": 2**30}]},
)
FOUR = {"devices": 4, "virtual": True, "total_batch": 512, "learning_rate": 0.2}
VIRTUAL = record_of(run=FOUR, run_id="virtual", dataset="cifar10 (jpeg)")
P100 = {"index": 0, "name": "Tesla P100", "capability": [6, 0], "memory_bytes": 2**34}
ELSEWHERE = record_of(
    infrastructure="another machine",
    run={"kind": "gpu"},
    hardware={**TEST_CPU, "gpus": [P100]},
    versions={"mxnet-cu112": "1.9.1", "python": "3.10.1", "numpy": "1.26.4"},
    monitor={"samples": 30, "devices": [{"device": "gpu 0", "power_watts": 100.0, "joules": 7680.0}]},
    price_per_hour=3.6,
)
RECORDS = [record_of(), ONE, TWO, VIRTUAL, ELSEWHERE, *(skipped(gpus, seed) for gpus in (1, 8) for seed in range(10))]


def collect(*records: Record) -> list[Row]:
    return rows.collect(rows.ordered(records), STUDIES)


def cells(text: str) -> list[dict[str, str]]:
    """The cells of a table under their headings."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    heading, _, *others = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(heading, line)) for line in others]


def by_id(records: Sequence[Record]) -> dict[str, Row]:
    return {row.run_id: row for row in collect(*records)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    report.write(RECORDS, STUDIES, page=folder / "results.md", folder=folder / "results")
    return folder


@pytest.fixture(scope="module")
def page(made: Path) -> str:
    return (made / "results.md").read_text()


def section(page: str, title: str) -> str:
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_known_answers_of_one_record() -> None:
    row = collect(record_of())[0]
    texts = dict(origin="measured", framework="MXNet 1.9.1", network="cifar_resnet50_v2", kind="cpu", exchange="")
    texts.update(input_shape="3x28x28", note="")
    numbers: dict[str, float] = dict(epochs=6, steps=60, accuracy=0.75, accuracy_last4=0.675, seconds_per_epoch=4.0)
    numbers.update(samples_per_second=320.0, spread=0.0, windows=5, dropped_windows=1, samples_trained=7680)
    numbers.update(wall_seconds=35.5, initialise_seconds=3.0, warmup_seconds=5.4, train_seconds=18.0, data_seconds=2.6)
    numbers.update(evaluate_seconds=6.0, checkpoint_seconds=0.0, rest_seconds=0.5)
    numbers.update(warmup_samples=1280, usual_wait_per_sample=0.4 / 1280)
    assert {name: getattr(row, name) for name in texts} == texts
    assert {name: getattr(row, name) for name in numbers} == pytest.approx(numbers)
    assert sum(getattr(row, f"{part}_seconds") for part in timing.PARTS) == pytest.approx(row.wall_seconds)
    assert (row.utilisation, row.speedup_throughput, row.repeats) == (None, None, None)
    # Hardware counters that are not there are empty.
    cpu, gpu = by_id(RECORDS)["workers-2"], collect(ELSEWHERE)[0]
    assert (cpu.utilisation, cpu.joules_per_sample, gpu.joules_per_sample) == (0.9, None, 1.0)


def test_an_epoch_that_was_cut_short_is_no_epoch() -> None:
    *whole, last = record_of().windows
    short = replace(record_of(), windows=(*whole, replace(last, steps=4, seconds=1.0)))
    (row,) = rows.collect([short], [])
    assert (row.seconds_per_epoch, row.epochs) == (4.0, 5)
    assert "stopped after 54 steps" in row.note
    assert rows.from_record(replace(short, windows=short.windows[-1:])).seconds_per_epoch is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": {"quick": True}}, "quick: a first look"),
        ({"dataset": "synthetic"}, "synthetic data"),
        ({"run": {"virtual": True, "devices": 4}}, "its throughput is not that of 4"),
        ({"outcome": "failed", "reason": "out of memory"}, "failed: out of memory"),
        ({"outcome": "diverged", "reason": "loss nan"}, "diverged: loss nan"),
        ({"others_busy_cores": 0.5}, "other processes kept 0.5 of 2 cores busy"),
    ],
)
def test_the_note_says_what_is_not_as_it_seems(changes: dict[str, Any], words: str) -> None:
    assert words in collect(record_of(**changes))[0].note


@pytest.mark.parametrize(
    ("engine", "versions", "framework"),
    [
        ("gluon", {"python": "3.11.7", "mxnet-cu112": "1.9.1"}, "MXNet 1.9.1"),
        ("pytorch", {"torch": "2.13.0", "mxnet": "1.9.1"}, "PyTorch 2.13.0"),
        ("reference", {"numpy": "1.26.4"}, "NumPy 1.26.4"),
        ("whose folder is gone", {"numpy": "1.26.4"}, "whose folder is gone"),
    ],
)
def test_a_row_says_which_engine_trained_it(engine: str, versions: dict[str, str], framework: str) -> None:
    row = rows.from_record(record_of(run={"engine": engine}, versions=versions))
    assert row.framework == framework
    # The note does where it is not the usual one.
    assert (framework in row.note) == (engine != "gluon")


def test_speedups_of_a_measured_series() -> None:
    table = by_id(RECORDS)
    one, two = table["workers-1"], table["workers-2"]
    assert (one.speedup_throughput, one.efficiency_wall, two.scaling) == (1.0, 1.0, "weak")
    speedups = (two.speedup_throughput, two.efficiency_throughput, two.speedup_wall)
    assert speedups == pytest.approx((2.0, 1.0, 57.5 / 33.5))
    assert table["virtual"].speedup_throughput is None
    # In the Theano study's terms, which add up to a step of 0.4 s.
    parts = [getattr(two, f"{part}_seconds_per_5120") for part in ("train", "communication", "sync")]
    assert parts == pytest.approx([0.3 * 40, 0.06 * 40, 0.04 * 40])


def test_seeds_are_summed_up() -> None:
    made = [record_of(run={"learning_rate": 0.1}, run_id="other")]
    for seed, accuracy in enumerate((0.70, 0.72, 0.77)):
        made.append(record_of(run={"seed": seed}, run_id=f"seed{seed}", accuracies=[0.6] * 5 + [accuracy]))
    table = by_id(made)
    assert {table[f"seed{seed}"].repeats for seed in range(3)} == {3}
    summed = (table["seed1"].accuracy_mean, table["seed1"].accuracy_spread, table["seed1"].throughput_mean)
    assert summed == pytest.approx((0.73, 0.0360555, 320), abs=1e-6)
    assert table["other"].repeats is None
    assert "| 3 | 0.7300 | 0.0361 |" in speed.repeats(list(table.values()))


def test_published_rows_stand_as_they_were_printed() -> None:
    source = [vars(row) for study in STUDIES for row in study.rows]
    table = [vars(row) for row in collect(*RECORDS) if row.origin == "published"]
    assert len(table) == len(source) == 186
    for row, printed in zip(table, source):
        filled = {name: cell for name, cell in printed.items() if cell not in (None, "")}
        assert {name: row[name] for name in filled} == filled
    name = "speedup_throughput"
    worked_out = {row["study"] for row, printed in zip(table, source) if row[name] != printed[name]}
    assert worked_out == {"beeva_poc_mxnet", "theano_mpi"}
    speedups = {row["printed"]: (row["speedup_throughput"], row["speedup_without_sync"]) for row in table}
    assert speedups["AlexNet_128b, t_8GPU"] == pytest.approx((3.27, 6.33), abs=0.005)
    assert speedups["128x8=1024 (lr=0.4) | 6800 (8-80%)"][0] == pytest.approx(6.18, abs=0.005)
    assert speedups["64x8 (lr=0.4)"][0] is None


def test_pandas_reads_every_row_of_rows_csv(made: Path) -> None:
    path = made / "results" / "rows.csv"
    table, collected = pd.read_csv(path), collect(*RECORDS)
    assert list(table.columns[: len(DESIGN.split())]) == DESIGN.split()
    assert len(table) == len(RECORDS) + 186
    for name, field in COLUMNS.items():
        expected = [getattr(row, name) for row in collected]
        assert field.metadata["about"], name
        assert field.metadata.get("unit") == "s" or "seconds" not in name, name
        if field.type in ("Count", "Measure"):
            figures = [math.nan if figure is None else figure for figure in expected]
            assert table[name].tolist() == pytest.approx(figures, rel=1e-9, nan_ok=True), name
        else:
            assert table[name].fillna("").astype(str).tolist() == [str(text) for text in expected], name
    assert not re.search(r"(^|,)(nan|none|<na>)(,|$)", path.read_text(), re.IGNORECASE | re.MULTILINE)


def test_measured_and_published_stand_in_one_table_and_what_is_doubtful_is_marked(page: str) -> None:
    main = section(page, "Accuracy and throughput")
    assert len(re.findall(r"^\|.*\| published \|", main, re.MULTILINE)) == 34
    assert re.search(r"\| 0 \(4 virtual\) \|.*\| \(1280\.0\) not comparable \|", main)
    lines = [line for line in main.splitlines() if line.startswith("|")]
    alike = [index for index, line in enumerate(lines) if re.search(r"ResNet-50.*\| 128 \| 128 \| 0\.05 \|", line)]
    assert alike == list(range(alike[0], alike[0] + 4))
    machines = ["another machine (1x Tesla P100)", "test machine (CPU: Test, 2 cores)", "1: 8x Tesla K80 (AWS p2.8x)"]
    for machine in [*machines, "2: DGX-1, 8x P100"]:
        assert any(f"| {machine} |" in lines[index] for index in alike), machine
    assert "13.9 s an epoch is 3,597 samples/s, printed 2,600." in main
    assert "8 devices, but the utilisation is of 1." in main
    for number in re.findall(r"contradicts itself \((\d+)\)", main):
        assert f"\n- ({number}) " in main


def test_both_speedups_and_the_difference_are_shown(page: str) -> None:
    text = section(page, "Speed-up and efficiency")
    line = next(line for line in text.splitlines() if line.startswith("|") and "| 2.0000 |" in line)
    by_throughput, *parts, by_wall = [float(cell) for cell in line.strip("|").split("|")[1:]]
    assert (by_throughput, by_wall) == (2.0, pytest.approx(57.5 / 33.5, abs=1e-4))
    assert by_throughput + sum(parts) == pytest.approx(by_wall, abs=5e-4)


def test_exchanges_are_compared_with_none() -> None:
    faster = workers(2, [3.0] * 6, run={"exchange": "independent"}, run_id="apart")
    # At another rate there is nothing to compare it with.
    other = workers(2, [5.0] * 6, run={"exchange": "dist_async", "learning_rate": 0.5}, run_id="other")
    made = [*RECORDS, faster, other]
    table = scaling.exchanges(collect(*made), made)
    first, second = (line.split(" | ") for line in table.splitlines()[2:])
    # 1,280 samples in 3 s, and in 4 s with an exchange that exposes 0.4 - 0.3 s a step.
    assert first[5:10] == ["independent", "426.7", "0.0", "5", "1.000"]
    assert second[5:10] == ["dist_sync", "320.0", "0.0", "5", "0.750"]
    # In pairs: 0.3 s without the exchange and 0.04 s of waiting for the other, of 0.4 s.
    assert second[11:] == ["0.850", "100.0", "150.0", "0.020", "yes |"]
    assert scaling.exchanges(collect(*RECORDS), RECORDS) == ""  # nothing to compare


def test_throughput_stands_against_the_row_above_only_where_the_batch_alone_differs() -> None:
    def batch(samples: int, seconds: float, **run: Any) -> Record:
        fields = {"batch_per_device": samples, "total_batch": samples, "steps": 59, **run}
        return record_of(run=fields, epoch_seconds=[seconds] * 6, run_id=f"{samples}{run.get('optimizer', '')}")

    slower = workers(2, [5.0] * 6, run={"exchange": "dist_async"}, started="2026-11-22T10:00:00+00:00")
    made = [batch(128, 4.0), batch(256, 5.0), batch(128, 8.0, optimizer="nesterov"), TWO, slower]
    table = [line for line in cells(speed.throughput(collect(*made))) if line["origin"] == "measured"]
    against = {(line["samples/s"], line["exchange"]): line["against the row above"] for line in table}
    others = [("320.0", ""), ("160.0", ""), ("320.0", "dist_sync"), ("256.0", "dist_async")]
    assert against == {**dict.fromkeys(others, ""), ("512.0", ""): "+192.0 ± 0.0: more than noise"}


def test_engines_are_compared_pair_by_pair() -> None:
    def trained(engine: str, seed: int, seconds: float, layout: str, **versions: str) -> Record:
        run = {"engine": engine, "seed": seed, "layout": layout}
        return record_of(run=run, versions=versions, epoch_seconds=[seconds] * 6, run_id=f"{engine}{seed}")

    gluon = [trained("gluon", seed, seconds, "NCHW", mxnet="1.9.1") for seed, seconds in enumerate((4.0, 5.0, 4.0))]
    torch = [trained("pytorch", seed, seconds, "NHWC", torch="2.13.0") for seed, seconds in enumerate((2.0, 2.0, 4.0))]
    (line,) = cells(speed.engines(collect(*gluon, *torch)))
    assert (line["reference"], line["its samples/s"]) == ("MXNet 1.9.1", "320.0")
    assert (line["against it"], line["samples/s"]) == ("PyTorch 2.13.0, channels-last", "640.0")
    assert (line["ratio"], line["each pair"], line["pairs"]) == ("2.000", "2.000, 2.500, 1.000", "3")
    assert line["spread"] == f"{1.4826 * 0.5:.3f}"
    # What another recipe measured was not taken beside it, and one engine alone is compared with nothing.
    other = replace(gluon[0], run=replace(gluon[0].run, recipe="another"))
    assert "| 2 |" in speed.engines(collect(other, *gluon[1:], *torch))
    assert speed.engines(collect(*gluon)) == ""


def test_staleness_is_counted_over_all_workers() -> None:
    first = {"staleness": {"0": 60}, "stale_wait_seconds": 0.0}
    second = {"staleness": {"1": 20, "2": 40}, "stale_wait_seconds": 6.0}
    told = [{"worker": index, "windows": [], "exchanged": exchanged} for index, exchanged in enumerate([first, second])]
    run = {"exchange": "stale", "staleness": 2, "slowed": 0.3}
    stale = workers(2, [4.0] * 6, run=run, workers=told)
    (line,) = scaling.staleness(collect(stale), [stale]).splitlines()[2:]
    cells = line.strip("| ").split(" | ")
    # (20 x 1 + 40 x 2) / 120 steps; 6 s over two workers.
    assert cells[4:6] == ["2", "30%"]
    assert cells[9:13] == ["0.83", "2", "120", "3.0"]


def test_the_summary_is_worked_out(page: str) -> None:
    found = page.split("\n\n")[1]
    assert all(line.startswith("- ") for line in found.splitlines())
    for words in (
        "On test machine (CPU: Test, 2 cores), ResNet-50 (CIFAR) with 1 CPU device, batch 128",
        "trains at 320.0 samples/s (median of n = 5 windows, spread 0.0)",
        "reaches a validation accuracy of 0.7500 (n = 1 run; mean of the last four epochs 0.6750)",
        "1 GPU of 8x Tesla K80 (AWS p2.8x) is 3.4 times as fast (1,100 samples/s)",
        "with 4 virtual devices",
        "2.00 times as fast as one by throughput, an efficiency of 1.00, and 1.72 times by wall time (0.86)",
    ):
        assert words in found


def test_skipped_runs_of_one_reason_are_one_line_until_they_succeed(page: str) -> None:
    listed = section(page, "Runs skipped, failed or diverged").splitlines()
    assert [line.count("| 10 |") for line in listed if line.startswith("| test machine")] == [1, 1]
    early = skipped(1, 1)
    later = record_of(run={"kind": "gpu", "seed": 1}, started="2026-11-22T00:00:00+00:00")
    assert runs.not_run(rows.last_takes([later, early])) == ""
    assert "needs 1 GPU" in runs.not_run(rows.last_takes([early]))


def test_the_last_take_of_a_run_stands_and_no_take_is_hidden(tmp_path: Path) -> None:
    slow = record_of(run_id="same", epoch_seconds=[8.0] * 6)
    fast = record_of(run_id="same", started="2026-11-22T10:00:00+00:00")
    broken = record_of(run_id="same", outcome="failed", reason="x", started="2026-11-23T10:00", **BLANK)
    elsewhere = record_of(run_id="same", infrastructure="another", epoch_seconds=[8.0] * 6)
    synthetic = record_of(run_id="same", dataset="synthetic", started="2026-11-24T10:00:00+00:00")
    takes = [fast, synthetic, broken, elsewhere, slow]
    standing = [(take.infrastructure, take.started[:10]) for take in rows.last_takes(rows.ordered(takes))]
    assert standing == [("another", "2026-11-21"), ("test machine", "2026-11-22"), ("test machine", "2026-11-24")]
    report.write(takes, STUDIES, page=tmp_path / "results.md", folder=tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert "160.0" not in section(text, "Accuracy and throughput").split("test machine")[1]
    listed = re.findall(r"^\| ResNet-50.*", section(text, "Runs taken more than once"), re.MULTILINE)
    assert [line.split(" | ")[5] for line in listed] == ["completed", "completed", "failed", "completed"]
    assert ["| yes |" in line for line in listed] == [False, True, False, True]
    assert ("160.0" in listed[0], "320.0" in listed[1]) == (True, True)
    assert sum(row.superseded for row in collect(*takes)) == 2
    # One that does not stand is in no series.
    early = workers(1, [40.0] * 6, started="2026-11-20T10:00:00+00:00")
    table = collect(early, *RECORDS)
    assert [(row.started, row.speedup_wall) for row in table if row.superseded] == [(early.started, None)]
    (two,) = (row for row in table if row.run_id == "workers-2")
    assert two.speedup_wall == by_id(RECORDS)["workers-2"].speedup_wall


def test_links_lead_somewhere_and_every_table_is_whole(made: Path, page: str) -> None:
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert "results/rows.csv" in links
    assert any(link.startswith("results/figures/") for link in links)
    assert [link for link in links if not (made / link).is_file()] == []
    assert not [path for path in made.rglob("*") if path.name.startswith(".") or path.suffix == ".tmp"]
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block.splitlines()[0]


def test_the_same_records_give_the_same_bytes(made: Path, tmp_path: Path) -> None:
    report.write(RECORDS[::-1], STUDIES, page=tmp_path / "results.md", folder=tmp_path / "results")

    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert contents(made) == contents(tmp_path)


def test_without_any_record_the_published_rows_are_shown(tmp_path: Path) -> None:
    report.write([], STUDIES, page=tmp_path / "results.md", folder=tmp_path)
    page = (tmp_path / "results.md").read_text()
    assert "Nothing has been measured" in page
    assert len(re.findall(r"^\|.*\| published \|", section(page, "Accuracy and throughput"), re.MULTILINE)) == 34
    assert "(rows.csv)" in page


TWELVE_EPOCHS = record_of(run={"epochs": 12, "steps": 120}, epoch_seconds=[4.0] * 12)
BUSY = record_of(run_id="d" * 10, infrastructure="a busy one", others_busy_cores=1.0)


@pytest.mark.parametrize(
    ("records", "words", "not_said"),
    [
        # Accuracies are compared after as many epochs, of the same images.
        ([TWELVE_EPOCHS], "(1,100 samples/s, accuracy 0.810)", "(1,100 samples/s)"),
        ([replace(TWELVE_EPOCHS, dataset="synthetic")], "(1,100 samples/s)", "accuracy 0.810)"),
        # A disturbed speed leads only where there is no other.
        ([record_of(), BUSY], "On test machine", "a busy one"),
        ([BUSY], "On a busy one", "On test machine"),
        ([record_of(run={"quick": True, "steps": 12})], "Only quick runs so far", "On test machine"),
    ],
)
def test_the_summary_compares_like_with_like(records: list[Record], words: str, not_said: str) -> None:
    text = summary.summary(collect(*records))
    assert words in text
    assert not_said not in text


@pytest.mark.skipif(not (HOME / "results" / "journal.jsonl").exists(), reason="no results yet")
def test_committed_results_are_what_the_journal_says(tmp_path: Path) -> None:
    records = journal.read([HOME / "results" / "journal.jsonl"])
    report.write(records, STUDIES, page=tmp_path / "results.md", folder=tmp_path / "results")
    for path in [HOME / "results.md", HOME / "results" / "rows.csv", *(HOME / "results" / "figures").glob("*.svg")]:
        assert (tmp_path / path.relative_to(HOME)).read_bytes() == path.read_bytes(), path.name
    # A user's own rows may be more than the README shows, but what it shows is measured or published.
    shown = re.findall(r".*\| (?:measured|published) \|.*", (HOME / "README.md").read_text())
    assert shown
    table = [row for row in collect(*records) if not row.superseded]
    assert set(shown) <= set(speed.brief(table).splitlines())


def test_a_network_s_arithmetic_and_its_share_of_the_peak(tmp_path: Path) -> None:
    fixed = {"name": "synthetic", "size": 224, "crop": 224, "classes": 1000, "fixed": True}
    model = {"model": "vgg16", "data": fixed, "batch_per_device": 4, "total_batch": 4}
    # 40 samples in 4 s.
    made = record_of(run=model, dataset="synthetic", evaluations=[], peak_flops=2e12)
    row, flops = collect(made)[0], 6 * 15_470_264_320 * 10
    assert (row.multiply_adds, row.fixed) == (15_470_264_320, True)
    assert (row.flops, row.peak_share) == (pytest.approx(flops), pytest.approx(flops / 2e12))
    report.write([made], STUDIES, page=tmp_path / "results.md", folder=tmp_path)
    page = (tmp_path / "results.md").read_text()
    table = cells(section(page, "How near to the limit"))
    (own,) = [line for line in table if line["origin"] == "measured"]
    names = ("network", "samples/s", "GFLOP/s", "peak", "of peak")
    assert [own[name] for name in names] == ["VGG-16", "10.0", "928.2", "2,000", "46%"]
    # The Theano study's, on one device: 5,120 images in 358.29 and 343.37 s.
    assert {line["samples/s"] for line in table if line["origin"] == "published"} == {"14.3", "14.9"}
    # Neither a fixed batch's data nor its time are those of a training.
    assert "VGG-16" not in section(page, "How it was measured")
    assert "## Where the time went" not in page


def test_a_precision_is_said_and_makes_another_series() -> None:
    plain, short = (rows.from_record(record_of(run=run)) for run in ({}, {"dtype": "bfloat16"}))
    assert (plain.dtype, short.dtype) == ("float32", "bfloat16")
    assert plain.setting != short.setting
    assert "precision bfloat16" in short.note
    # Records made before there was a choice are of the same series as those made since.
    assert rows.from_record(record_of(run={"dtype": "float32", "layout": "NCHW"})).setting == plain.setting
    data = [{"name": "cifar10", "jitter": False, **place} for place in ({}, {"on_device": False}, {"on_device": True})]
    settings = [rows.from_record(record_of(run={"data": images})).setting for images in data]
    assert settings[0] == settings[1] != settings[2]


def test_the_largest_batch_that_fits_is_told() -> None:
    def batch(size: int, **changes: Any) -> Record:
        return record_of(run={"batch_per_device": size, "total_batch": size}, run_id=f"r{size}", **changes)

    skip = {"outcome": "skipped", **BLANK}
    large = [batch(size, reason=f"needs about {size} GiB of memory", **skip) for size in (512, 256)]
    fits = [batch(64), batch(128)]
    (sentence,) = speed.largest_batches([*large, *fits])
    assert "fits is 128; 256: needs about 256 GiB of memory" in sentence
    assert speed.largest_batches(fits) == []


def test_a_run_that_several_series_start_from_is_shown_once() -> None:
    two = [workers(2, [4.0, 3.0], run={"exchange": name}, run_id=name) for name in ("dist_sync", "horovod")]
    text = scaling.speedups(collect(workers(1, [6.0, 4.0]), *two))
    assert text.count("| horovod |") == text.count("| dist_sync |") == 1
    assert sum("| measured |" in line for line in text.splitlines()) == 3
