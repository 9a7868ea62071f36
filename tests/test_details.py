"""The pages of details: what they show of small tables whose answers are known, and all that the studies printed."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from poc import published
from poc.published import Study, prices
from poc.records.record import Record
from poc.records.row import COLUMNS, Row
from poc.report import markdown, table
from poc.report.page import Block, Page
from poc.report.results import Results
from poc.report.sections.details import PAGES
from tests.builders import TEST_CPU, record_of

GPUS = [{"index": index, "name": "Test GPU", "capability": [7, 0], "memory_bytes": 2**34} for index in range(4)]
FOLDER = Path(published.__file__).parent
PRINTED_BY_STUDY = {study.name: study for study in published.load()}


def on_gpus(rate: float, minute: int, *, devices: int = 1, batch: int = 128, **changes: Any) -> Record:
    """Return the record of a training on GPUs with so many samples/s that began in that minute."""
    seconds = 10 * batch * devices / rate
    run = {"kind": "gpu", "devices": devices, "batch_per_device": batch, "global_batch": batch * devices}
    run.update(changes.pop("run", {}))
    started = f"2026-11-21T{10 + minute // 60}:{minute % 60:02}:00+00:00"
    hardware = {**TEST_CPU, "gpus": GPUS, "driver": "550.54"}
    return record_of(
        epoch_seconds=[seconds * 1.5, *[seconds] * 5], run=run, started=started, **{"hardware": hardware, **changes}
    )


def results_of(tmp_path: Path, records: Sequence[Record], shown: Sequence[Study] = (), **fields: Any) -> Results:
    """Return the results of records, as they are read back from the text of a rows.csv."""
    path = tmp_path / "rows.csv"
    path.write_text(table.write(table.build(records, shown, prices.load({}))))
    machine = records[0].infrastructure if records else ""
    return Results(table.read(path), shown, machine, **fields)


def page(name: str) -> Page:
    return next(made for made in PAGES if made.name == name)


def tables(blocks: Sequence[Block], title: str) -> list[list[dict[str, str]]]:
    """Return the tables of the section with that title, each as lines by column."""
    found, inside = [], False
    for block in blocks:
        if not isinstance(block, str):
            continue
        inside = block == f"## {title}" if block.startswith("## ") else inside
        if inside and block.startswith("|"):
            head, _, *lines = [
                [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
                for line in block.splitlines()
            ]
            found.append([dict(zip(head, line)) for line in lines])
    return found


def only_table(results: Results, name: str, title: str) -> list[dict[str, str]]:
    (lines,) = tables(page(name).blocks(results), title)
    return lines


def test_a_series_compares_repeats_with_those_on_one_device(tmp_path: Path) -> None:
    records = [on_gpus(rate, minute) for minute, rate in enumerate((990, 1000, 1010))]
    records += [on_gpus(rate, minute + 5, devices=4) for minute, rate in enumerate((2970, 3000, 3030))]
    records += [on_gpus(2000, 20, devices=4, batch=32)]
    lines = only_table(results_of(tmp_path, records), "scaling", "Measured series")
    weak, strong = ([line for line in lines if line["series"].startswith(kind)] for kind in ("weak", "strong"))
    assert [line["speed-up (efficiency, n)"] for line in weak] == ["3.00 (75%, n=3)"]
    assert weak[0]["samples/s, one → all"] == "1,000 → 3,000"
    assert [line["speed-up (efficiency, n)"] for line in strong] == ["2.00 (50%, n=1)"]


def test_repeats_hours_apart_are_in_no_series_and_give_no_ratio(tmp_path: Path) -> None:
    records = [on_gpus(1000, 0), on_gpus(3000, 120, devices=4), on_gpus(2000, 120, run={"dtype": "float16"})]
    results = results_of(tmp_path, records)
    assert not tables(page("scaling").blocks(results), "Measured series")
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
    tmp_path: Path, name: str, title: str, base: dict[str, Any], other: dict[str, Any], ratio: float
) -> None:
    versions = {"mxnet": "1.9.1", "torch": "2.5.1"}
    records = [
        on_gpus(4000 * factor * share, 3 * minute, devices=4, run=run, versions=versions)
        for minute, share in enumerate((0.99, 1.0, 1.01))
        for factor, run in ((1.0, base), (ratio, other))
    ]
    (line,) = only_table(results_of(tmp_path, records), name, title)
    cell = next(text for column, text in line.items() if column.startswith("ratio to"))
    assert float(cell.split()[0]) == pytest.approx(ratio)
    assert line["significant"].startswith("yes")


def test_the_largest_batch_lies_below_the_smallest_that_ran_out_of_memory(tmp_path: Path) -> None:
    failed = {"outcome": "out of memory", "windows": [], "evaluations": []}
    records = [on_gpus(1000, 0), on_gpus(1000, 1, batch=256), on_gpus(1000, 2, batch=512, **failed)]
    records += [on_gpus(1000, 3, batch=1024, **failed), on_gpus(900, 4, run={"model": "cifar_resnet8_v2"})]
    (line,) = only_table(results_of(tmp_path, records), "models", "Largest batch")
    assert (line["largest batch that fitted"], line["smallest that ran out of memory"]) == ("256", "512")


def test_trainings_on_the_validation_split_are_apart_from_those_on_the_test_set(tmp_path: Path) -> None:
    tuning = {"name": "cifar10", "crop": 28, "pad": 4, "mirror": True, "jitter": True, "validate_on": "held-out"}
    records = [record_of(), record_of(accuracies=(0.9,) * 6, run={"data": tuning, "learning_rate": 0.1})]
    blocks = page("learning_rate").blocks(results_of(tmp_path, records))
    ((trained,),), ((tuned,),) = tables(blocks, "Every training"), tables(blocks, "Tuning runs")
    assert (trained["accuracy"], trained["mean of last 4 epochs"], trained["lr"]) == ("0.750", "0.675", "0.05")
    assert (tuned["accuracy"], tuned["lr"]) == ("0.900", "0.1")


def _section(results: Results, study: Study) -> list[Block]:
    """Return the blocks of a study's section."""
    return page("studies").blocks(Results(results.table, [study], results.machine))


def _rows(numbers: str) -> set[int]:
    """Return the numbers that a text such as "1–3, 7" stands for."""
    ends = [list(map(int, part.split("–"))) for part in numbers.split(", ")]
    return {number for several in ends for number in range(several[0], several[-1] + 1)}


def _texts_of_rows(blocks: Sequence[Block], count: int) -> list[str]:
    """Return all that the section of a study says of each of its rows."""
    texts = [""] * count
    for lines in tables(blocks, next(block for block in blocks if isinstance(block, str))[3:]):
        for line in lines:
            numbers = _rows(line["rows"]) if "rows" in line else {int(line["row"].split(".")[0])}
            for number in numbers:
                texts[number - 1] += "\n" + "\n".join(line.values())
    for text in blocks:
        for numbers, remark in re.findall(r"^- rows? ([\d–, ]+): (.*)$", str(text), re.MULTILINE):
            for number in _rows(numbers):
                texts[number - 1] += "\n" + remark
    return texts


def _is_shown(name: str, cell: str, text: str) -> bool:
    if name == "devices" and cell == "0":
        return "CPU" in text
    if COLUMNS[name].type in ("Count", "Measure"):
        numbers = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)
        return float(cell) in {float(number.replace(",", "")) for number in numbers}
    return cell in text or markdown.model(cell) in text


@pytest.mark.parametrize("name", PRINTED_BY_STUDY)
def test_every_value_that_a_study_printed_stands_beside_its_row(tmp_path: Path, name: str) -> None:
    study = PRINTED_BY_STUDY[name]
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        printed = list(csv.DictReader(line for line in file if not line.startswith("#")))
    blocks = _section(results_of(tmp_path, [], [study]), study)
    texts = _texts_of_rows(blocks, len(printed))
    lost = [
        (number, column, cell)
        for number, (row, text) in enumerate(zip(printed, texts), start=1)
        for column, cell in row.items()
        if cell and not _is_shown(column, " ".join(cell.split()), text)
    ]
    assert not lost
    whole = "\n".join(map(str, blocks))
    assert all(fact in whole for fact in (study.title, study.authors, study.year, study.address, study.about))
    assert all(row.flag in text for row, text in zip(study.rows, texts))


def test_this_machine_stands_beside_the_published_rows_of_the_same_setting(tmp_path: Path) -> None:
    study = PRINTED_BY_STUDY["beeva_poc_mxnet"]
    on_cpu = record_of(run={"batch_per_device": 512, "global_batch": 512})
    results = results_of(tmp_path, [on_gpus(1000, 0), on_gpus(3000, 1, devices=4), on_cpu], [study])
    _, lines = tables(_section(results, study), "beeva-poc-mxnet")
    rates = {(128, 1): "1,000 GPU", (128, 4): "3,000 GPU", (512, 0): "1,280 CPU", (512, 1): "1,280 CPU"}
    for row, line in zip(study.rows, lines):
        expected = rates.get((row.batch_per_device, row.devices)) if row.model == "cifar_resnet50_v2" else None
        beside = re.match(r"([\d,]*\d).*([CG]PU)", line["this machine: samples/s"])
        assert (beside and " ".join(beside.groups())) == expected, row.printed


def test_a_study_with_every_column_has_tables_of_eight_columns(tmp_path: Path) -> None:
    values: dict[str, Any] = {name: 7.25 for name in published.PRINTED if COLUMNS[name].type == "Measure"}
    values.update({name: 3 for name in published.PRINTED if COLUMNS[name].type == "Count"})
    values.update({name: f"a {name}" for name in published.PRINTED if name not in values})
    study = Study(name="full", rows=(Row(origin="published", study="full", **values),), title="Full")
    blocks = _section(results_of(tmp_path, [], [study]), study)
    (text,) = _texts_of_rows(blocks, 1)
    assert all(len(line) <= 8 for lines in tables(blocks, "Full") for line in lines)
    assert text.count("7.25") == sum(COLUMNS[name].type == "Measure" for name in values)
    assert all(f"a {name}" in text for name in values if COLUMNS[name].type == "str")


def _several_machines() -> list[Record]:
    other = {"infrastructure": "other machine", "hardware": {**TEST_CPU, "cpu": "Other"}}
    detail = dict(
        steps=7, whole_step_seconds=0.5, independent_step_seconds=0.4, exchange_seconds=0.05, data_seconds=0.1
    )
    detail.update(exchange_bytes=4000, bus_bytes_per_second=8e9, sums_right=True, synchronisation_seconds=0.01)
    return [
        *(on_gpus(1000, minute, devices=devices) for minute, devices in enumerate((1, 2, 4, 1, 2, 4))),
        on_gpus(900, 9, devices=2, run={"kvstore": "none"}),
        *(record_of(run={"seed": seed, "learning_rate": lr}, **other) for seed in range(2) for lr in (0.05, 0.1)),
        record_of(run={"batch_per_device": 64, "global_batch": 64}, **other),
        on_gpus(800, 10, devices=2, detail=detail),
    ]


FAILED = {"outcome": "failed", "reason": "worker 0: killed by signal 9", "windows": [], "evaluations": []}


@pytest.mark.parametrize(
    "records",
    [[], [record_of(**FAILED)], [record_of()], [on_gpus(1000, 0)], _several_machines()],
    ids=["nothing", "failures only", "a CPU", "a GPU", "several machines"],
)
@pytest.mark.parametrize("shown", [[], list(PRINTED_BY_STUDY.values())], ids=["no studies", "studies"])
def test_pages_have_no_broken_cell_and_at_most_eight_columns(
    tmp_path: Path, records: list[Record], shown: list[Study]
) -> None:
    results = results_of(tmp_path, records, shown)
    for made in PAGES:
        blocks = made.blocks(results)
        for title in (block[3:] for block in blocks if str(block).startswith("## ")):
            for lines in tables(blocks, title):
                assert lines
                assert all(len(line) <= 8 for line in lines)
                assert not [cell for line in lines for cell in line.values() if re.search(r"\b(nan|None|inf)\b", cell)]


def test_the_column_of_machines_is_there_only_if_there_are_several(tmp_path: Path) -> None:
    for records, names in (([record_of()], {None}), (_several_machines(), {"**test machine**", "other machine"})):
        blocks = page("learning_rate").blocks(results_of(tmp_path, records))
        assert {line.get("machine") for lines in tables(blocks, "Every training") for line in lines} == names
