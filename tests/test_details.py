"""The pages of details, made from small tables whose answers are known, and all that the studies printed."""

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from poc import published
from poc.records.record import DIVERGED, Record
from poc.report import PAGES, markdown
from poc.report.markdown import Block
from poc.report.results import Results, Subject
from tests.builders import AUGMENTED, TEST_CPU, build, record_of
from tests.pages import Lines, on_gpus, results_of, tables, trained

STUDIES = {study.name: study for study in published.load()}


def blocks_of(results: Results, name: str) -> list[Block]:
    return PAGES[name][1](results)


def only_table(results: Results, name: str, title: str) -> Lines:
    (lines,) = tables(blocks_of(results, name))[title]
    return lines


def test_each_kvstore_has_its_series_from_repeats_of_the_same_hour() -> None:
    records = [on_gpus(rate, minute=minute) for minute, rate in enumerate((990, 1000, 1010))]
    records += [on_gpus(rate, 4, minute + 5) for minute, rate in enumerate((2970, 3000, 3030))]
    records += [on_gpus(3600, 4, 20, run={"kvstore": "none"}), on_gpus(9000, 2, 120)]
    lines = only_table(results_of(*records), "scaling", "Weak scaling by kvstore")
    figures = {line["kvstore"]: (line["samples/s"], line["efficiency"], line["n"]) for line in lines}
    assert figures == {"device": ("1,000 → 3,000", "75% on 4", "3"), "none": ("1,000 → 3,600", "90% on 4", "1")}
    # What ran on one device at another time, with more repeats, is not compared with them and does not hide them.
    later = [on_gpus(1100, 1, minute, run={"learning_rate": 0.01}) for minute in range(300, 304)]
    # A series of whole trainings has another name than that of bursts.
    longer = [trained(900, 0.7), trained(1800, 0.7, run={"devices": 2, "global_batch": 256})]
    again = only_table(results_of(*records, *later, *longer), "scaling", "Weak scaling by kvstore")
    series = {(line["model, framework"], line["kvstore"]): line["efficiency"] for line in again}
    assert sorted(series.values()) == ["100% on 2", "75% on 4", "90% on 4"]


def test_the_breakdown_says_which_gpus_wait_for_the_host() -> None:
    times = dict(whole_step_seconds=0.01, independent_step_seconds=0.009, exchange_seconds=0.001)
    times.update(bus_bytes_per_second=1e9, synchronisation_seconds=None)
    records = [
        on_gpus(1000, 4, detail=dict(times, issue_seconds=issue), run={"learning_rate": n + 1.0})
        for n, issue in enumerate((0.002, 0.0095))
    ]
    records.append(on_gpus(500, 8, detail=dict(times, issue_seconds=None), run={"emulated": True}))  # no speed of eight
    lines = only_table(results_of(*records), "scaling", "Step-time breakdown")
    assert [line["enqueue (ms)"] for line in lines] == ["2", "9.5 (launch-bound)"]


def test_a_headline_is_of_one_environment_and_of_what_diverges_now() -> None:
    records = [on_gpus(rate, devices, devices) for devices, rate in ((1, 1000), (4, 3600), (8, 7000))]
    records += [on_gpus(900, devices, 9, environment={"NCCL_P2P_DISABLE": "1"}) for devices in (1, 8)]
    lost = trained(900, 0.1, outcome=DIVERGED, evaluations=())
    results = results_of(*records, lost, trained(900, 0.7, minute=400), trained(900, 0.7, run={"learning_rate": 0.01}))
    rows = results.headline(Subject("cifar_resnet50_v2", "cifar10"))
    assert ({*rows.environment}, len(rows), len(results.diverged(rows))) == ({""}, 5, 0)
    assert len(results_of(*records, lost).diverged(rows)) == 1


def test_the_noise_scale_of_a_setting_is_the_median_of_its_runs_and_may_have_no_upper_end() -> None:
    table = build(*(trained(900, 0.7, run={"seed": seed}) for seed in range(3)))
    for highs in ((500.0, 600.0, math.nan), (500.0, math.nan, math.nan)):
        table = table.assign(noise_scale=[100.0, 200.0, 300.0], noise_low=50.0, noise_high=highs)
        (line,) = only_table(Results(table, machine="here"), "learning_rate", "Gradient noise scale")
        assert (line["noise scale"], line["n"]) == ("200", "3")
        assert (line["90% interval"] == "50 to 600") == (highs[1] == 600.0)


def test_each_precision_and_batch_size_has_its_speed_on_one_device() -> None:
    records = [on_gpus(1000), on_gpus(2000, run={"dtype": "float16"}), on_gpus(1200, batch=256), on_gpus(3000, 4)]
    fewer_threads_than_cores = record_of(threads=1, run={"model": "cifar_resnet20_v2"})
    lines = only_table(results_of(*records, fewer_threads_than_cores), "models", "One device")
    rates = {(line["model, framework"], line["batch per device"]): line[markdown.RATE].split()[0] for line in lines}
    mxnet = lines[0]["model, framework"]
    assert rates == {(mxnet, "128"): "1,000", (f"{mxnet}, float16", "128"): "2,000", (mxnet, "256"): "1,200"}


def test_a_noisy_setting_with_more_repeats_hides_no_quiet_one() -> None:
    noisy = [on_gpus(500, minute=minute, others_busy_cores=1.0) for minute in range(3)]
    quiet = [on_gpus(1000, minute=minute, run={"learning_rate": 0.1}) for minute in (5, 6)]
    (line,) = only_table(results_of(*noisy, *quiet), "models", "One device")
    assert line[markdown.RATE].startswith("1,000 ")


def test_tuning_runs_are_separate_and_machines_are_named_if_there_are_several() -> None:
    tuning = {**AUGMENTED, "validate_on": "held-out"}
    records = [record_of(), record_of(accuracies=(0.9,) * 6, run={"data": tuning, "learning_rate": 0.1})]
    by_title = tables(blocks_of(results_of(*records), "learning_rate"))
    ((trained,),), ((tuned,),) = by_title["Every training"], by_title["Tuning runs"]
    assert (trained["accuracy"], trained["lr"]) == ("0.750 (n=1)", "0.05")
    assert (tuned["accuracy"], tuned["lr"], tuned.get("machine")) == ("0.900 (n=1)", "0.1", None)
    results = results_of(record_of(), record_of(infrastructure="other"))
    lines = only_table(results, "learning_rate", "Every training")
    assert [line["machine"] for line in lines] == ["test machine", "other"]


@pytest.mark.parametrize("name", STUDIES)
def test_every_row_of_a_study_is_shown_as_printed_with_its_numbers(name: str) -> None:
    study = STUDIES[name]
    blocks = blocks_of(results_of(studies=[study]), "studies")
    (lines,) = next(iter(tables(blocks).values()))
    assert len(lines) == len(study.rows)
    for row, line in zip(study.rows, lines):
        assert line["as printed"] == " ".join(row.printed.split())
        assert not row.accuracy or float(line["accuracy"]) == pytest.approx(row.accuracy, abs=5e-4)
        assert not row.samples_per_second or line["samples/s"] == markdown.number(row.samples_per_second)
        assert not row.speedup_wall or line["speed-up by wall time"] == markdown.number(row.speedup_wall)
    page = "\n".join(map(str, blocks))
    assert all(fact in page for fact in (study.title, study.authors, study.year, study.address, study.about))
    assert all(row.flag in page for row in study.rows)


def test_this_machine_is_shown_with_the_published_rows_of_the_same_setting() -> None:
    study = STUDIES["beeva_poc_mxnet"]
    on_cpu = record_of(run={"batch_per_device": 512, "global_batch": 512})
    larger = on_gpus(500, run={"data": {"name": "cifar10", "crop": 32}, "learning_rate": 0.01})  # other images
    # Later and with more repeats, but not on the study's kind of device, or not by its framework.
    others = [on_gpus(100, minute=minute, hardware=TEST_CPU, run={"kind": "cpu"}) for minute in range(1, 6)]
    others += [on_gpus(100, 2, hardware=TEST_CPU, run={"kind": "cpu"})]
    pytorch = {"run": {"framework": "pytorch"}, "versions": {"pytorch": "2.13.0"}}
    others += [on_gpus(2000, devices, minute=9, **pytorch) for devices in (1, 2)]
    fixed = on_gpus(9000, 2, run={"data": {"name": "synthetic", "crop": 28, "size": 28, "fixed": True}})
    results = results_of(on_gpus(1000), on_gpus(3000, 4, 1), larger, on_cpu, *others, fixed, studies=[study])
    (lines,) = tables(blocks_of(results, "studies"))["beeva-poc-mxnet"]
    rates = {(128, 1): "1,000 GPU", (128, 2): "2,000 GPU", (128, 4): "3,000 GPU"}
    rates |= {(512, 0): "1,280 CPU", (512, 1): "1,280 CPU"}
    for row, line in zip(study.rows, lines):
        expected = rates.get((row.batch_per_device, row.devices)) if row.model == "cifar_resnet50_v2" else None
        shown = re.match(r"([\d,]*\d).*([CG]PU)", line["this machine: samples/s"])
        assert (shown and " ".join(shown.groups())) == expected, row.printed


def on_fixed_batch(rate: float, batch: int, size: int = 224, dtype: str = "float32") -> Record:
    """Return a burst of an ImageNet model on one GPU that reads no images."""
    data = {"name": "synthetic", "size": size, "crop": size, "classes": 1000, "fixed": True}
    run = {"model": "resnet50_v1", "data": data, "dtype": dtype}
    return on_gpus(rate, batch=batch, run=run, dataset="synthetic")


def test_a_published_row_is_compared_in_its_own_precision() -> None:
    (study,) = published.load([Path("tools/series/nvidia_mxnet_examples.csv")])[-1:]
    records = [on_fixed_batch(rate, 256, dtype=dtype) for rate, dtype in ((300, "float32"), (900, "float16"))]
    ((lines,),) = tables(blocks_of(results_of(*records, studies=[study]), "studies")).values()
    shown = {
        row.dtype: line["this machine: samples/s"].partition(" ")[0]
        for row, line in zip(study.rows, lines)
        if (row.batch_per_device, row.devices) == (256, 1)
    }
    assert shown == {"float16": "900", "tf32": ""}


@pytest.mark.parametrize(("size", "is_shown"), [(224, True), (64, False)])
def test_a_fixed_batch_stands_beside_a_study_that_read_no_images_if_it_has_their_size(
    size: int, is_shown: bool
) -> None:
    results = results_of(on_fixed_batch(300, 64, size), studies=[STUDIES["theano_mpi"]])
    ((lines,),) = tables(blocks_of(results, "studies")).values()
    assert sum(bool(line.get("this machine: samples/s")) for line in lines) == is_shown


def test_recipes_are_compared_by_their_times_to_one_accuracy_in_pairs() -> None:
    def seeds(lr: float, rates: Sequence[float], reached: int | None, minute: int = 0) -> list[Record]:
        runs = [{"learning_rate": lr, "seed": seed} for seed in range(len(rates))]
        return [
            trained(rate, 0.76 if reached else 0.5, reached, run=run, minute=minute + 90 * run["seed"])
            for rate, run in zip(rates, runs)
        ]

    fast, rates = seeds(0.05, (1000, 800, 1250), 3), (1000, 800 / 1.1, 1250 * 1.1)
    others = [*seeds(0.1, rates, 6, minute=20), *seeds(0.2, rates, 6, minute=70), *seeds(0.4, rates, None)]
    others += seeds(0.8, rates[:2], 6)

    def compared(*records: Record) -> Lines:
        return only_table(results_of(*fast, *records), "time_to_accuracy", "Recipes to the same accuracy")

    lines = compared(*others)
    # The page's accuracy, and the one that all seeds of both reached.
    assert [line["accuracy"] for line in lines] == ["0.75", "0.75", "0.76", "0.76"]
    # The ratios' logarithms are log(6.5 / 3.5) + (0, 0.0953, -0.0953); Student's t of 2 degrees of freedom is 4.303.
    assert [
        (line["global batch, lr"], line["time (min–max, n)"], line["ratio to the fastest"]) for line in lines[2:]
    ] == [
        ("128, 0.05", "2.9 min (2.3 min–3.6 min, n=3)", "1"),
        ("128, 0.1", "5.4 min (3.9 min–7.4 min, n=3)", "1.86 (1.47–2.35)"),
    ]
    assert {line["devices, kvstore"] for line in lines} == {"1 GPU"}
    assert not blocks_of(results_of(*fast, *others[3:]), "time_to_accuracy")
    # A faster recipe that compares with none, as it has one seed.
    assert lines == compared(*others, *seeds(0.3, (3000,), 2, minute=40))
    # Nor do two with one seed each, however accurate, decide at which accuracy the others compare.
    assert lines == compared(*others, *(trained(900, 0.99, run={"learning_rate": lr}, minute=40) for lr in (0.6, 0.7)))
    # A machine that got a second card, or more cores, has times of its own.
    for changes in ({"gpus": fast[0].hardware.gpus * 2}, {"cores": 64}):
        hardware = dataclasses.replace(fast[0].hardware, **changes)
        changed = (dataclasses.replace(record, hardware=hardware) for record in seeds(0.05, rates, 3, 5))
        shown = [line["global batch, lr"] for line in compared(*others[:3], *changed)]
        assert shown == ["128, 0.05", "128, 0.1"] * 2
