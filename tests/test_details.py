"""The pages of details, made from small tables whose answers are known, and all that the studies printed."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from poc import published
from poc.published import Study
from poc.records.record import Record
from poc.records.row import COUNTS, NUMBERS, Row
from poc.report import PAGES, markdown
from poc.report.page import Block
from poc.report.results import Results
from tests.builders import build, record_of
from tests.pages import Lines, on_gpus, tables

STUDIES = {study.name: study for study in published.load()}


def results_of(*records: Record, studies: Sequence[Study] = ()) -> Results:
    return Results(build(*records, studies=studies), studies, records[0].infrastructure if records else "")


def blocks_of(results: Results, name: str) -> list[Block]:
    """Return the blocks of a page."""
    return next(page for page in PAGES if page.name == name).blocks(results)


def only_table(results: Results, name: str, title: str) -> Lines:
    (lines,) = tables(blocks_of(results, name))[title]
    return lines


def test_a_series_compares_repeats_with_those_on_one_device() -> None:
    records = [on_gpus(rate, minute=minute) for minute, rate in enumerate((990, 1000, 1010))]
    records += [on_gpus(rate, 4, minute + 5) for minute, rate in enumerate((2970, 3000, 3030))]
    records += [on_gpus(2000, 4, 20, batch=32)]
    lines = only_table(results_of(*records), "scaling", "Measured series")
    weak, strong = ([line for line in lines if line["series"].startswith(kind)] for kind in ("weak", "strong"))
    assert [line["speed-up (efficiency, n)"] for line in weak] == ["3.00 (75%, n=3)"]
    assert weak[0]["samples/s, one → all"] == "1,000 → 3,000"
    assert [line["speed-up (efficiency, n)"] for line in strong] == ["2.00 (50%, n=1)"]


def test_repeats_hours_from_each_other_are_in_no_series_and_give_no_ratio() -> None:
    records = [on_gpus(1000), on_gpus(3000, 4, 120), on_gpus(2000, 1, 120, run={"dtype": "float16"})]
    results = results_of(*records)
    assert "Measured series" not in tables(blocks_of(results, "scaling"))
    (line,) = only_table(results, "models", "Precisions")
    assert line["significant"] == "not interleaved"
    assert "2.00" not in line["ratio to float32"]


@pytest.mark.parametrize(
    ("name", "title", "base", "other", "ratio"),
    [
        ("scaling", "Kvstores", {"kvstore": "none"}, {"kvstore": "device"}, 0.75),
        ("models", "Precisions", {"dtype": "float32"}, {"dtype": "float16"}, 1.5),
        ("models", "Frameworks", {"framework": "mxnet"}, {"framework": "pytorch"}, 0.5),
    ],
)
def test_settings_are_compared_with_the_base_by_their_ratio(
    name: str, title: str, base: dict[str, Any], other: dict[str, Any], ratio: float
) -> None:
    versions = {"mxnet": "1.9.1", "torch": "2.5.1"}
    records = [
        on_gpus(4000 * factor * scatter, 4, 3 * minute, run=run, versions=versions)
        for minute, scatter in enumerate((0.99, 1.0, 1.01))
        for factor, run in ((1.0, base), (ratio, other))
    ]
    (line,) = only_table(results_of(*records), name, title)
    cell = next(text for column, text in line.items() if column.startswith("ratio to"))
    assert float(cell.split()[0]) == pytest.approx(ratio)
    assert line["significant"].startswith("yes")


def test_the_largest_batch_is_below_the_smallest_that_ran_out_of_memory() -> None:
    failed = {"outcome": "out of memory", "windows": [], "evaluations": []}
    records = [on_gpus(1000, batch=batch) for batch in (128, 256)]
    records += [on_gpus(1000, batch=batch, **failed) for batch in (512, 1024)]
    records += [on_gpus(900, run={"model": "cifar_resnet8_v2"})]
    (line,) = only_table(results_of(*records), "models", "Largest batch")
    assert (line["largest batch that fitted"], line["smallest that ran out of memory"]) == ("256", "512")


def test_tuning_runs_are_separate_and_machines_are_named_if_there_are_several() -> None:
    tuning = {"name": "cifar10", "crop": 28, "pad": 4, "mirror": True, "jitter": True, "validate_on": "held-out"}
    records = [record_of(), record_of(accuracies=(0.9,) * 6, run={"data": tuning, "learning_rate": 0.1})]
    by_title = tables(blocks_of(results_of(*records), "learning_rate"))
    ((trained,),), ((tuned,),) = by_title["Every training"], by_title["Tuning runs"]
    assert (trained["accuracy"], trained["mean of last 4 epochs"], trained["lr"]) == ("0.750", "0.675", "0.05")
    assert (tuned["accuracy"], tuned["lr"], tuned.get("machine")) == ("0.900", "0.1", None)
    results = results_of(record_of(), record_of(infrastructure="other"))
    lines = only_table(results, "learning_rate", "Every training")
    assert [line["machine"] for line in lines] == ["test machine", "other"]


def rows_of(numbers: str) -> set[int]:
    """Return the numbers that a text such as "1–3, 7" stands for."""
    ranges = [list(map(int, part.split("–"))) for part in numbers.split(", ")]
    return {number for ends in ranges for number in range(ends[0], ends[-1] + 1)}


def texts_of_rows(blocks: Sequence[Block], count: int) -> list[str]:
    """Return the whole text that the section of a study has on each of its rows."""
    texts = [""] * count
    for lines in next(iter(tables(blocks).values())):
        for line in lines:
            for number in rows_of(line["rows"]) if "rows" in line else {int(line["row"].split(".")[0])}:
                texts[number - 1] += "\n" + "\n".join(line.values())
    for text in blocks:
        for numbers, remark in re.findall(r"^- rows? ([\d–, ]+): (.*)$", str(text), re.MULTILINE):
            for number in rows_of(numbers):
                texts[number - 1] += "\n" + remark
    return texts


def is_shown(name: str, cell: str, text: str) -> bool:
    if name == "devices" and cell == "0":
        return "CPU" in text
    if name in NUMBERS:
        numbers = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)
        return float(cell) in {float(number.replace(",", "")) for number in numbers}
    return cell in text or markdown.model(cell) in text


@pytest.mark.parametrize("name", STUDIES)
def test_every_value_that_a_study_printed_is_shown_with_its_row(name: str) -> None:
    study = STUDIES[name]
    path = Path(published.__file__).parent / f"{name}.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    cells = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    blocks = blocks_of(results_of(studies=[study]), "studies")
    texts = texts_of_rows(blocks, len(cells))
    missing = [
        (number, column, cell)
        for number, (row, text) in enumerate(zip(cells, texts), start=1)
        for column, cell in row.items()
        if cell and column != "contradicts" and not is_shown(column, " ".join(cell.split()), text)
    ]
    assert not missing
    page = "\n".join(map(str, blocks))
    assert all(fact in page for fact in (study.title, study.authors, study.year, study.address, study.about))
    assert all(row.flag in text for row, text in zip(study.rows, texts))


def test_this_machine_is_shown_with_the_published_rows_of_the_same_setting() -> None:
    study = STUDIES["beeva_poc_mxnet"]
    on_cpu = record_of(run={"batch_per_device": 512, "global_batch": 512})
    results = results_of(on_gpus(1000), on_gpus(3000, 4, 1), on_cpu, studies=[study])
    (_, lines) = tables(blocks_of(results, "studies"))["beeva-poc-mxnet"]
    rates = {(128, 1): "1,000 GPU", (128, 4): "3,000 GPU", (512, 0): "1,280 CPU", (512, 1): "1,280 CPU"}
    for row, line in zip(study.rows, lines):
        expected = rates.get((row.batch_per_device, row.devices)) if row.model == "cifar_resnet50_v2" else None
        shown = re.match(r"([\d,]*\d).*([CG]PU)", line["this machine: samples/s"])
        assert (shown and " ".join(shown.groups())) == expected, row.printed


def test_a_study_with_every_column_has_tables_of_eight_columns() -> None:
    values: dict[str, Any] = {name: 7.25 for name in published.PRINTED if name in NUMBERS}
    values.update({name: 3 for name in values if name in COUNTS})
    values.update({name: f"a {name}" for name in published.PRINTED if name not in values})
    study = Study(name="full", rows=(Row(origin="published", study="full", **values),), title="Full")
    blocks = blocks_of(results_of(studies=[study]), "studies")
    (text,) = texts_of_rows(blocks, 1)
    assert all(len(line) <= 8 for lines in tables(blocks)["Full"] for line in lines)
    assert text.count("7.25") == list(values.values()).count(7.25)
    assert all(f"a {name}" in text for name in values if name not in NUMBERS)
