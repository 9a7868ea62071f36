"""The pages as a reader finds them, made from records whose figures are known beforehand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from poc import predict, report, studies
from poc.predict.series import Point
from poc.records import journal
from poc.records.record import Record
from poc.report import chart, rows
from poc.report.measurements import CLOSED, OPEN, division
from poc.report.sections.rates import way
from poc.report.tables import RATE, markdown, rounded
from tests.builders import TEST_CPU, record_of
from tests.launch import HOME
from tests.test_report import BLANK, ELSEWHERE, ONE, P100, RECORDS, STUDIES, VIRTUAL, skipped, workers

TITLE = "The same recipe on each machine"
NAMES = ("machine", "network", "price of", "measured, one")
"""Columns with names in them, which may be long."""
TWELVE = {"epochs": 12, "steps": 120}
FOUR_FIFTHS = {"devices": 8, "emulated": True, "global_batch": 1024, "learning_rate": 0.4}
OTHER: dict[str, Any] = {"run": {"framework": "pytorch"}, "versions": {"torch": "2.13.0"}}
MUON: dict[str, Any] = dict(optimizer="muon", muon_rate=0.2, decay="linear", label_smoothing=0.1)
MUON.update(data={"name": "cifar10", "crop": 28, "pad": 0, "mirror": True, "jitter": False})


def twelve(accuracies: Sequence[float], run: dict[str, Any] | None = None, **changes: Any) -> Record:
    """Twelve epochs of 4 s, with these accuracies at their ends."""
    known = [*accuracies[:-1], *[accuracies[-1]] * (13 - len(accuracies))]
    return record_of(run={**TWELVE, **(run or {})}, epoch_seconds=[4.0] * 12, accuracies=known, **changes)


def take(number: int, seconds: float, **changes: Any) -> Record:
    """One of several takes of a run of 6 epochs, each of 1,280 samples in so many seconds, ten minutes apart."""
    started = f"2026-11-21T1{number // 6}:{number % 6}0:00+00:00"
    return record_of(**{"epoch_seconds": [seconds] * 6, "started": started, "accuracies": (), **changes})


def written(folder: Path, records: Sequence[Record]) -> dict[str, str]:
    """The text of each page by its name."""
    report.write(records, STUDIES, page=folder / "results.md", folder=folder / "results")
    return {path.name: path.read_text() for path in [folder / "results.md", *(folder / "results").glob("*.md")]}


def cells(page: str, title: str) -> list[dict[str, str]]:
    """The lines of the table of a section, under their headings."""
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    heading, _, *others = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(heading, line)) for line in others]


def own(page: str, title: str) -> list[dict[str, str]]:
    """Those lines that are of the machine at hand."""
    return [line for line in cells(page, title) if "**" in line["machine"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, str]:
    """Of takes at 128, a curve, two workers by two exchanges, another engine, another machine, emulated devices."""
    reached = twelve([0.5, 0.7, 0.76], run_id="twelve", started="2026-11-24T10:00:00+00:00")
    best = twelve([0.8, 0.9], {**FOUR_FIFTHS, **MUON}, run_id="muon")
    worse = twelve([0.4] * 8 + [0.65, 0.5, 0.7, 0.6], FOUR_FIFTHS, run_id="closed")
    takes = [take(n, s * t, **run) for t, run in ((1, {}), (2, OTHER)) for n, s in ((1, 3.9), (2, 4.0), (3, 4.1))]
    ring = workers(2, [4.5] * 6, run={"kvstore": "horovod"}, run_id="ring")
    return written(folder, [*RECORDS, reached, best, worse, *takes, ring])


def test_the_reference_setting_on_each_machine(pages: dict[str, str], tmp_path: Path) -> None:
    lines = cells(pages["results.md"], TITLE)
    first = next(line for line in own(pages["results.md"], TITLE) if line["engine"] == "MXNet 1.9.1")
    # 1,280 samples in 3.9 to 4.1 s, beside the P100's printed 2,900 samples/s; two more records are takes of it too.
    # A tenth of their time went by in waiting for batches.
    assert first[RATE] == "320 (312-328, n=5)†"
    assert (first["x one P100"], first["accuracy"]) == ("0.11", "0.760")
    printed = {(line["machine"].split("]")[0], line["devices"]): line for line in lines}
    assert printed["[8x Tesla K80 (AWS p2.8x)", "1 GPU"][RATE] == "1,100"
    assert printed["[DGX-1, 8x P100", "8 GPUs"]["accuracy"] == "0.773"
    assert printed["[CPU of AWS p2.8x", "CPU"]["total batch"] == "512"
    # A whole CPU, one that a run had a core of, and a worker bound to one.
    less = record_of(hardware={**TEST_CPU, "cores": 1}, run_id="less")
    lines = own(written(tmp_path, [record_of(), less, ONE])["runs.md"], "Every setting measured")
    assert [line["devices"] for line in lines].count("CPU, 1 core") == 2
    assert "CPU, 2 cores" in [line["devices"] for line in lines]
    # An emulated device's speed is nobody's.
    assert not any("emulated" in line["devices"] for line in lines)


def test_the_rates_of_each_division_and_what_a_larger_batch_loses(pages: dict[str, str]) -> None:
    lines = cells(pages["results.md"], "Which learning rate")
    best = {
        (line["total batch"], kind): (line[f"{kind}: rate"], line[f"{kind}: accuracy (lost)"])
        for line in lines
        for kind in ("published", "closed", "open")
    }
    assert best["128", "closed"] == ("0.05", "0.760")
    assert best["1,024", "closed"] == ("0.4", "0.600 (-0.160)")
    last = [line["closed: last 4 (lost)"] for line in lines if line["closed: rate"]]
    assert last == ["0.760", "0.613 (-0.147)"]
    assert "the last four epochs of one run differ by up to 0.200" in pages["results.md"]
    assert best["1,024", "open"] == ("Muon 0.2, 0.4", "0.900")
    # The best of what was printed at each batch.
    printed = [line["published: accuracy (lost)"][:5] for line in lines]
    assert printed == ["0.817", "0.783", "0.810", "0.786", "0.733", "0.611"]
    assert best["4,096", "published"] == ("0.4", "0.611 (-0.206)")


def test_what_a_search_looked_at_stands_apart(pages: dict[str, str], tmp_path: Path) -> None:
    run = {**MUON, "unit_weights": True, "data": {**MUON["data"], "validate_on": "held-out"}}
    run["model"] = "cifar_airbench94"
    page = written(tmp_path, [*RECORDS, twelve([0.9], run, run_id="sought")])["learning_rate.md"]
    (line,) = cells(page, "The search")
    assert (line["network"], line["epochs"], line["accuracy"]) == ("airbench94 (CIFAR)", "12", "0.900")
    assert "Muon 0.2, convolutions of constant size" in page
    assert "\n## The search\n" not in pages["learning_rate.md"]


def test_the_page_says_at_which_batch_the_best_way_was_sought_on_held_out_images(tmp_path: Path) -> None:
    def about(*runs: dict[str, Any]) -> str:
        records = [twelve([0.9], run, run_id=f"run{number}") for number, run in enumerate(runs)]
        page = written(tmp_path, [*RECORDS, *records])["results.md"]
        return re.findall(r"Ways were sought on the test set[^.]*", page)[0]

    found = {**FOUR_FIFTHS, **MUON}
    looked_at = {**found, "data": {**MUON["data"], "validate_on": "held-out"}}
    assert about(found) == "Ways were sought on the test set"
    expected = "Ways were sought on the test set; the last choice at 1,024 (of {} ways) was made on held-out images"
    assert about(found, looked_at) == expected.format(1)
    assert about(found, looked_at, {**looked_at, "learning_rate": 0.2}) == expected.format(2)
    # Another way, rate, batch or number of epochs does not count.
    others = ({"muon_rate": 0.1}, {"learning_rate": 0.2}, {"devices": 4, "global_batch": 512}, {"epochs": 11})
    assert about(found, *({**looked_at, **other} for other in others)) == about(found)


def test_accuracy_for_time_draws_this_machine_and_the_published_ones_before_other_machines(tmp_path: Path) -> None:
    others = [twelve([0.8], infrastructure=f"machine {n}", run_id=f"other{n}") for n in range(chart.MOST_LINES)]
    own = twelve([0.8], started="2026-11-24T10:00:00+00:00", infrastructure="mine", run_id="own")
    slim = twelve([0.9], {"model": "cifar_airbench94_slim"}, infrastructure="mine", run_id="slim")
    minutes = cells(written(tmp_path, [*others, own, slim])["results.md"], "Time and money")
    assert "closed, airbench94, second block of 128 (CIFAR)" in {line["division"] for line in minutes}
    figure = (tmp_path / "results" / "figures" / "accuracy_time.svg").read_text()
    legend = [
        name for name in ("mine, CPU", "Tesla K80, 1 GPU", "DGX-1, 8x P100", "machine 0", "machine 6") if name in figure
    ]
    assert legend == ["mine, CPU", "Tesla K80, 1 GPU", "DGX-1, 8x P100", "machine 0"]
    # Two of this machine, three published and seven others.
    assert "Lines left out, which are in the table: 5." in (tmp_path / "results.md").read_text()


def test_a_target_of_one_s_own_says_who_reached_it_in_what_time_with_evaluation_and_without(tmp_path: Path) -> None:
    run = {**MUON, "model": "cifar_airbench94", "target_accuracy": 0.9}
    joules = {"samples": 9, "of_windows": False, "devices": [{"device": "cpu", "utilisation": 0.9, "joules": 3000.0}]}
    seeds = [
        twelve([0.8, last], {**run, "seed": seed}, run_id=f"seed{seed}", monitor=joules, price_per_hour=36.0)
        for seed, last in enumerate((0.91, 0.92, 0.89))
    ]
    (line,) = cells(written(tmp_path, [*RECORDS, *seeds, twelve([0.7])])["results.md"], "To a target")
    # Twelve epochs of 4 s; with 3 s before, an evaluation of a second after each, and half a second at the end.
    expected = {"epochs": "12", "target, reached": "0.9, 2 of 3", "accuracy": "0.910", "devices": "CPU, 2 cores"}
    # The study's way took as long.
    minutes = "minutes: training, in all (of the study's)"
    expected.update({minutes: "0.8, 1.06† (100%)", "energy, money": "3 kJ $0.635"})
    assert {name: line[name] for name in expected} == expected


def trained(batch: int, *, scale: float, slower: float = 1.0, **changes: Any) -> Record:
    """Twelve epochs whose accuracy grows evenly, by the formula of the noise scale, which its norms have too."""
    run = {**TWELVE, "devices": 2, "emulated": True, "batch_per_device": batch // 2, "global_batch": batch}
    run.update(learning_rate=0.05 * slower * (1 + scale / 128) / (1 + scale / batch), gradient_noise=10)
    each = 0.07 / slower / (1 + batch / scale) * (1 + 128 / scale)
    norms = {"small": 1 + scale / (batch // 2), "large": 1 + scale / batch}
    looks = [{"step": step, **norms} for step in range(0, 120, 10)]
    curve = [0.1 + each * epoch for epoch in range(1, 13)]
    return record_of(
        run=run, epoch_seconds=[4.0] * 12, accuracies=curve, norms=looks, run_id=f"{batch}-{slower}", **changes
    )


def test_curves_that_follow_the_noise_scale_are_as_foretold(tmp_path: Path) -> None:
    made = [trained(batch, scale=1000.0) for batch in (128, 512, 2048)]
    page = written(tmp_path, [*made, trained(2048, scale=1000.0, slower=2.0)])["learning_rate.md"]
    lines = cells(page, "Epochs that the noise scale foretells")
    assert [line["total batch"] for line in lines] == ["128", "512", "2,048"]
    # 0.1 + 12 x 0.07 x 1.128 / 3.048 = 0.41 at the largest batch.
    assert [line["accuracy"] for line in lines] == ["0.40"] * 3
    assert [line["foretold"] for line in lines] == [line["of the first"] for line in lines] == ["1.00", "1.34", "2.70"]
    assert [line["measured / foretold"] for line in lines] == ["", "1.00", "1.00"]
    # At 512 the only rate was given, not sought.
    (sought,) = (line for line in cells(page, "Rates that the noise scale foretells") if line["rates of"] == "SGD")
    assert (sought["tried"], sought["best / foretold"]) == ("0.296063 to 0.592126 (2)", "1.00")
    fits = [line for line in cells(page, "The noise scale beside published ones") if line["who"] == "here"]
    assert [line["noise scale (90%)"] for line in fits] == ["1,000 (1,000 to 1,000)"] * 2
    assert all(abs(int(line["batch that fits"].replace(",", "")) - 1000) < 10 for line in fits)


def test_what_the_noise_scale_foretells_is_held_against_the_median_of_seeds_and_not_their_best(tmp_path: Path) -> None:
    made = [trained(batch, scale=1000.0) for batch in (128, 512, 2048)]
    others = [seeded(made[0], 1, by=2.0), seeded(made[0], 2, by=1.0), seeded(made[2], 1, by=0.9)]
    lines = cells(written(tmp_path, [*made, *others])["learning_rate.md"], "Epochs that the noise scale foretells")
    # Of two seeds at the largest batch the worse one reaches 0.1 + 0.9 x 0.31 = 0.38.
    assert [line["accuracy"] for line in lines] == ["0.35"] * 3
    # 0.25 / 0.07 epochs, the median of three.
    assert [line["epochs"] for line in lines] == ["3.6 (n=3)", "4.8", "10.2 (n=2)"]


def seeded(record: Record, seed: int, *, by: float) -> Record:
    """The run with another seed, which learns `by` times as fast."""
    run = replace(record.run, seed=seed)
    curve = tuple(replace(seen, accuracy=0.1 + by * (seen.accuracy - 0.1)) for seen in record.evaluations)
    return replace(record, run=run, run_id=f"{record.run_id}-{seed}", evaluations=curve)


def test_without_a_look_at_the_noise_nothing_is_foretold(tmp_path: Path) -> None:
    blind = [replace(trained(batch, scale=1000.0), norms=()) for batch in (128, 512, 2048)]
    page = written(tmp_path, blind)["learning_rate.md"]
    assert "noise scale foretells" not in page
    (fits,) = {line["noise scale (90%)"] for line in cells(page, "The noise scale beside published ones")[:2]}
    assert fits == "not measured"
    # Where one batch learned nothing there is no accuracy to compare at.
    lost = replace(blind[2], evaluations=tuple(replace(seen, accuracy=0.1) for seen in blind[2].evaluations))
    assert "noise scale foretells" not in written(tmp_path, [*blind[:2], lost])["learning_rate.md"]
    # Made-up images that stood in for CIFAR-10 teach nothing of it.
    made_up = [replace(record, dataset="synthetic") for record in blind]
    assert "noise scale foretells" not in written(tmp_path, made_up)["learning_rate.md"]
    # Two batches show no bend.
    assert "noise scale foretells" not in written(tmp_path, blind[:2])["learning_rate.md"]


def test_scaling_is_told_with_its_efficiency(pages: dict[str, str]) -> None:
    lines = cells(pages["results.md"], "How it scales")
    # Of two exchanges the one that recipes name first: 1,280 samples in 4 s against 8 s.
    here, foretold = own(pages["results.md"], "How it scales")
    assert (here["exchange"], here["x2"], here["efficiency, most devices"]) == ("dist_sync", "2", "1.00")
    # Beyond what was measured it is predicted, and called so; of a published series nothing is.
    assert (foretold["machine"], foretold["x2"], foretold["takes"]) == ("**test machine**, *predicted*", "", "")
    (made,) = predict.kept().learnt.predict(
        [Point(devices=1, rate=1.0), Point(devices=2, rate=2.0)], [Point(devices=8, rate=0.0)]
    )
    assert foretold["x8"] == f"{rounded(made.rate)} ({rounded(made.low)}-{rounded(made.high)})"
    assert made.low < made.rate < 8
    assert sum("predicted" in line["machine"] for line in lines) == 1
    k80 = next(line for line in lines if "K80" in line["machine"] and line["batch a device"] == "128")
    assert (k80["x8"], k80["efficiency, most devices"]) == ("6.18", "0.77")
    # What contradicts itself is no baseline: 13.9 s an epoch, printed as 2,600 samples/s.
    assert not any("P100" in line["machine"] and line["batch a device"] == "256" for line in lines)


def on_gpus(count: int, seconds: float, **changes: Any) -> Record:
    """Six epochs of 1,280 samples in so many seconds each, on some of eight GPUs."""
    run: dict[str, Any] = dict(kind="gpu", devices=count, global_batch=128 * count, learning_rate=0.05 * count)
    run.update(steps_per_epoch=10 // count, steps=60 // count, **changes.pop("run", {}))
    changes = {"run_id": f"gpus{count}", "hardware": {**TEST_CPU, "gpus": [P100] * 8}, **changes}
    return record_of(run=run, epoch_seconds=[seconds] * 6, accuracies=(), **changes)


def test_a_series_on_gpus_is_told_whose_workers_have_no_cores_of_their_own(tmp_path: Path) -> None:
    page = written(tmp_path, [on_gpus(1, 4.0), on_gpus(2, 2.0)])["results.md"]
    assert "2 GPUs here 2.00 (batch 128, n=1)" in page.split("\n## ")[1]


def test_series_that_read_alike_are_told_apart_by_what_they_differ_in(tmp_path: Path) -> None:
    cpus = [replace(one, hardware=on_gpus(1, 4.0).hardware, run_id=one.run_id + "cpu") for one in (ONE, RECORDS[2])]
    gpus = [on_gpus(1, 4.0), on_gpus(2, 2.0)]
    nesterov = {"optimizer": "nesterov"}
    others = [on_gpus(1, 4.0, run=nesterov, run_id="one"), on_gpus(2, 2.5, run=nesterov, run_id="two")]
    pages = written(tmp_path, [*cpus, *gpus, *others])
    for lines in (cells(pages["results.md"], "How it scales"), cells(pages["scaling.md"], "Every measured series")):
        names = [line["machine"] for line in lines if "test machine" in line["machine"] and line.get("x2", "2")]
        assert len(set(names)) == len(names) == 3
        assert sum("CPU" in name for name in names) == 1
        assert sum("Nesterov" in name for name in names) == 1


def test_gpus_are_one_setting_however_many_processes_drive_them(tmp_path: Path) -> None:
    processes = {"workers": 2, "kvstore": "dist_device_sync"}
    several = on_gpus(2, 2.5, run=processes, run_id="processes")
    noise = on_gpus(2, 2.2, run={"gradient_noise": 10}, run_id="noise")
    alone = on_gpus(2, 1.9, run={"kvstore": "none"}, run_id="alone")
    pages = written(tmp_path, [on_gpus(1, 4.0), on_gpus(2, 2.0), several, noise, alone])
    rates = {line["devices"]: line[RATE] for line in own(pages["results.md"], TITLE)}
    assert len(own(pages["results.md"], TITLE)) == 2
    assert rates["2 GPUs"] == "640†"
    of_none = {line["exchange"]: line["of none"] for line in cells(pages["scaling.md"], "Ways to exchange gradients")}
    assert of_none == {"none": "", "device": "0.95", "dist_device_sync": "0.76"}


def test_no_table_grows_wider_by_what_is_predicted(tmp_path: Path) -> None:
    lines = cells(written(tmp_path, [on_gpus(n, 4.0 / n) for n in (1, 2, 5)])["results.md"], "How it scales")
    assert len(lines[0]) <= 9
    assert {"x2", "x4", "x5", "x8"} <= set(lines[0])


def test_a_run_too_short_to_time_says_so_and_is_no_figure(tmp_path: Path) -> None:
    data = {"name": "cifar10", "crop": 28, "pad": 4, "mirror": True, "jitter": True, "shrink": 14, "shrink_epochs": 6}
    short = record_of(run={"data": data}, run_id="short")
    pages = written(tmp_path, [short])
    for page, title in (("results.md", "Latest on this machine"), ("runs.md", "Every setting measured")):
        (line,) = cells(pages[page], title)
        assert (line[RATE], line["accuracy"]) == ("too short to time", "0.750")
    assert not own(pages["results.md"], TITLE)
    (row,) = rows.collect([short], [])
    assert row.samples_per_second is None
    assert "too short to time" in row.note
    assert "too short to time" not in rows.from_record(replace(short, outcome="failed")).note


def test_what_diverged_is_nowhere_a_result_but_did_fit_the_memory(tmp_path: Path) -> None:
    lost = trained(2048, scale=1000.0, outcome="diverged", reason="the loss of an evaluation was 4e+13")
    good = trained(128, scale=1000.0)
    pages = written(tmp_path, [good, replace(lost, run=replace(lost.run, devices=1, emulated=False))])
    assert {line["total batch"] for line in cells(pages["learning_rate.md"], "Gradient noise")} == {"128"}
    assert {line["total batch"] for line in cells(pages["learning_rate.md"], "Every training")} == {"128"}
    assert "2,048" not in [
        line["total batch"] for line in cells(pages["results.md"], "Which learning rate") if line["closed: rate"]
    ]
    assert "the loss of an evaluation was 4e+13" in pages["method.md"]
    full = record_of(run={"batch_per_device": 256}, run_id="full", outcome="out of memory", reason="no room", **BLANK)
    (line,) = cells(
        written(tmp_path, [record_of(outcome="diverged", reason="nan"), full])["networks.md"], "Largest batches"
    )
    assert (line["largest batch"], line["did not fit"]) == ("128", "256")


def test_where_nothing_completed_the_page_says_what_became_of_the_runs(tmp_path: Path) -> None:
    failed = [record_of(outcome="failed", reason=reason, run_id=reason, **BLANK) for reason in ("one", "two")]
    findings = written(tmp_path, failed)["results.md"].split("\n## ")[1]
    assert "Nothing has been measured yet" in findings
    assert "2 runs failed" in findings
    # Another machine's figures are no published ones.
    later = [replace(record, started="2026-11-30T10:00:00+00:00", infrastructure="broken") for record in failed]
    findings = written(tmp_path, [record_of(), *later])["results.md"].split("\n## ")[1]
    assert "**broken** has no results yet" in findings
    assert "2 runs failed" in findings


def test_accuracies_are_held_against_those_at_128_and_the_first_one_is_of_the_fastest_device(tmp_path: Path) -> None:
    half = {"batch_per_device": 64, "global_batch": 64, "learning_rate": 0.025}
    small = twelve([0.6], half, run_id="small")
    reference = twelve([0.7], run_id="reference")
    gpu = twelve([0.8], {"kind": "gpu"}, run_id="gpu", hardware={**TEST_CPU, "gpus": [P100]})
    gpu = replace(gpu, windows=tuple(replace(window, seconds=1.0) for window in gpu.windows))
    page = written(tmp_path, [small, reference])["results.md"]
    (line, base, *_) = cells(page, "Which learning rate")
    assert (line["closed: accuracy (lost)"], base["closed: accuracy (lost)"]) == ("0.600 (-0.100)", "0.700")
    assert "emulated" not in page.split("\n## Which learning rate\n")[1].split("\n|")[0]
    for records in ([reference, gpu], [gpu, reference]):
        findings = written(tmp_path, records)["results.md"].split("\n## ")[1]
        assert "reach 0.800 on test machine" in findings


def test_a_machine_with_pytorch_alone_stands_beside_others(tmp_path: Path) -> None:
    alone = replace(record_of(**OTHER), infrastructure="H100", started="2026-11-20T10:00:00+00:00")
    both = replace(alone, infrastructure="both")
    last = record_of(started="2026-11-28T10:00:00+00:00")
    page = written(tmp_path, [alone, both, replace(record_of(), infrastructure="both"), last])["results.md"]
    shown = [(line["machine"], line["engine"]) for line in cells(page, TITLE) if not line["machine"].startswith("[")]
    mxnet, pytorch = "MXNet 1.9.1", "PyTorch 2.13.0"
    assert sorted(shown) == [("**test machine**", mxnet), ("H100", pytorch), ("both", mxnet)]


def test_takes_of_another_hour_are_no_baseline(tmp_path: Path) -> None:
    def told(*records: Record) -> list[str]:
        lines = cells(written(tmp_path, [record_of(), *records])["scaling.md"], "Every measured series")
        return [line["times as fast (takes)"] for line in lines]

    # 8 s on one device and 4 s on two, in turn; hours later 16 s and 4 s.
    one, two = workers(1, [8.0] * 6), workers(2, [4.0] * 6)
    late = [replace(taken, started="2026-11-21T20:00:00+00:00") for taken in (workers(1, [16.0] * 6), two)]
    assert told(one, two, late[0]) == told(one, two) == ["2.00 (1)"]
    assert told(one, two, *late) == ["2.67 (2)"]
    table = pd.read_csv(tmp_path / "results" / "rows.csv", low_memory=False).query("origin == 'measured'")
    assert sorted(table[table.devices == 2].speedup_throughput) == [2.0, 4.0]
    page = written(tmp_path, [record_of(), one, late[1]])["scaling.md"]
    assert "\n## Every measured series\n" not in page


@pytest.mark.parametrize(("last", "minutes"), [(0.76, ["0.27 (n=2)†"]), (0.74, [])])
def test_a_time_to_an_accuracy_is_of_seeds_that_all_reach_it(last: float, minutes: list[str], tmp_path: Path) -> None:
    seeds = [
        twelve(accuracies, run={"seed": seed}, run_id=f"seed{seed}", started=f"2026-11-2{seed}T10:00:00+00:00")
        for seed, accuracies in enumerate([[0.5, 0.7, 0.76], [0.5, 0.6, 0.6, 0.7, last]])
    ]
    assert [line["minutes"] for line in own(written(tmp_path, seeds)["results.md"], "Time and money")] == minutes


def test_what_an_accuracy_costs(pages: dict[str, str]) -> None:
    lines = cells(pages["results.md"], "Time and money")
    first = own(pages["results.md"], "Time and money")[0]
    # Three epochs of 4 s; a study's is a bound: 12 epochs of 4.5 s.
    assert (first["division"], first["minutes"]) == ("closed", "0.2†")
    assert any("P100" in line["machine"] and line["minutes"] == "≤ 0.9" for line in lines)


def test_findings_name_their_n(pages: dict[str, str], tmp_path: Path) -> None:
    findings = pages["results.md"].split("\n## ")[1]
    for words in (
        "test machine trains 320 samples/s at batch 128 with MXNet 1.9.1 in float32",
        "(median of 5 takes of 50 to 110 timed steps, 312-328; over all of 12 epochs",
        "reach 0.760 on test machine (n=1); published: one P100 0.817, one K80 0.810",
        "published 0.786 at rate 0.4, the study's way here 0.600 at rate 0.4",
        "the best way found here 0.900 with Muon 0.2, 0.4",
        "2 workers of 1 core each here 2.00 (batch 64, n=1), 8 K80 6.18 (published)",
        "0.75 takes least time on",
    ):
        assert words in findings, words
    # Where one machine alone has a price there is no cheapest one.
    assert "least money" not in findings
    priced = twelve([0.8], price_per_hour=1.2)
    findings = written(tmp_path, [priced])["results.md"].split("\n## ")[1]
    assert "; of 3 settings with a price least money on test machine (CPU, 2 cores, n=1): $0.0013." in findings


def test_verdicts_need_takes(pages: dict[str, str], tmp_path: Path) -> None:
    (engines,) = cells(pages["networks.md"], "Engines")
    assert (engines["ratio"], engines["different?"].split(" ")[0]) == ("2.00", "yes")
    # Takes of one engine in another hour, when the machine was slower, are not what the other's are compared with.
    takes = [take(n, 4.0 * t + 0.1 * n, **run) for t, run in ((1, {}), (2, OTHER)) for n in range(3)]
    late = [take(number, 40.0) for number in (12, 13, 14)]
    found = written(tmp_path, [*takes, *late])
    (engines,) = cells(found["networks.md"], "Engines")
    assert (engines["ratio"], engines["different?"].split(" ")[0]) == ("1.98", "yes")
    assert (engines["MXNet"], engines["PyTorch"]) == ("312 (305-320, n=3)†", "158 (156-160, n=3)†")
    (engines,) = cells(written(tmp_path, [*takes[3:], *late])["networks.md"], "Engines")
    assert (engines["MXNet"], engines["different?"]) == ("32 (32-32, n=3)†", "not in turn")
    exchanges = cells(pages["scaling.md"], "Ways to exchange gradients")
    assert ["different?" in line or line["exchange"] for line in exchanges] == ["dist_sync", "horovod"]
    independent = workers(2, [4.0] * 6, run={"kvstore": "none"}, run_id="alone")
    found = cells(written(tmp_path, [*RECORDS, independent])["scaling.md"], "Ways to exchange gradients")
    (line,) = [line for line in found if line["of none"]]
    assert (line["exchange"], line["of none"], line["different?"]) == ("dist_sync", "1.00", "too few")


def test_a_step_taken_apart_and_staleness(tmp_path: Path) -> None:
    first = {"staleness": {"0": 60}, "stale_wait_seconds": 0.0}
    second = {"staleness": {"1": 20, "2": 40}, "stale_wait_seconds": 6.0}
    told = [{"worker": index, "windows": [], "exchanged": exchanged} for index, exchanged in enumerate([first, second])]
    stale = workers(2, [4.0] * 6, run={"kvstore": "ssp", "staleness": 2, "slowed": 0.3}, workers=told)
    page = written(tmp_path, [*RECORDS, stale])["scaling.md"]
    (line,) = cells(page, "Bounded staleness")
    # (20 x 1 + 40 x 2) / 120 steps.
    assert (line["bound"], line["one slowed by"], line["steps ahead, mean"], line["most"]) == ("2", "30%", "0.83", "2")
    (step,) = cells(page, "A step taken apart")
    # A whole step of 400 ms, 300 ms of computation, 150 ms of exchange: nothing is left to wait.
    figures = ("whole step (ms)", "computation (ms)", "exchange (ms)", "waiting (ms)")
    assert [step[name] for name in figures] == ["400", "300", "150", "0"]


def test_a_network_s_share_of_the_peak_and_the_largest_batch(tmp_path: Path) -> None:
    fixed = {"name": "synthetic", "size": 224, "crop": 224, "classes": 1000, "fixed": True}
    model = {"model": "vgg16", "data": fixed, "batch_per_device": 4, "global_batch": 4}
    made = record_of(run=model, dataset="synthetic", evaluations=[], peak_flops=2e12)
    full = {"outcome": "out of memory", "reason": "no room", **BLANK}
    larger = record_of(run={**model, "batch_per_device": 8, "global_batch": 8}, run_id="eight", **full)
    # Slower, disturbed, and another engine's, which found room.
    later = replace(made, started="2026-11-29T10:00:00+00:00", others_busy_cores=2.0, windows=larger.windows)
    other = replace(made, run=replace(larger.run, framework="pytorch"), versions={"torch": "2.13.0"}, run_id="torch")
    page = written(tmp_path, [made, larger, later, other])["networks.md"]
    line = cells(page, "Networks")[0]
    # 40 samples in 4 s; 6 x 15.47 GFLOP a sample of 2 TFLOP/s.
    assert [line[name] for name in ("network", "GFLOP/s", "of peak")] == ["VGG-16", "928", "46%"]
    (line,) = cells(page, "Largest batches")
    assert [line[name] for name in ("engine", "largest batch", "did not fit")] == ["MXNet 1.9.1", "4", "8"]


def test_a_table_has_the_columns_of_all_its_lines() -> None:
    lines = [{"a": "1", "b": ""}, {"a": "2", "c": "x"}]
    assert markdown(lines).splitlines() == ["| a | c |", "|---:|:---|", "| 1 | |", "| 2 | x |"]


def test_what_flatters_an_accuracy_is_another_way() -> None:
    run = record_of().run
    assert division(run) == CLOSED
    viewed = replace(run, averaged_views=6)
    assert (division(viewed), "6 views" in way(viewed)) == (OPEN, True)
    steps = [
        replace(run, decay="steps", decay_at=(at,), decay_factor=factor) for at, factor in ((0.5, 0.1), (0.9, 0.5))
    ]
    assert len({way(run), *map(way, steps)}) == 3


def test_what_did_not_run_is_told_once(pages: dict[str, str]) -> None:
    assert "- test machine, 10 runs skipped: needs 8 GPUs, this machine has none" in pages["method.md"]


def test_each_study_stands_beside_what_was_measured(pages: dict[str, str]) -> None:
    lines = cells(pages["studies.md"], "beeva-poc-mxnet")
    line = next(
        line for line in lines if "K80" in line["machine"] and (line["batch"], line["efficiency"]) == ("128", "0.77")
    )
    assert (line["samples/s, one"], line["network"], line["measured, one"]) == (
        "1,100",
        "ResNet-50 (CIFAR)",
        "320 (312-328, n=5)†, test machine",
    )
    theano = cells(pages["studies.md"], "Theano-MPI speed-up vs n-workers")
    assert [line["efficiency"] for line in theano if line["network"] == "AlexNet"] == ["0.41"]
    assert "13.9 s an epoch is 3,597 samples/s, printed 2,600." in pages["studies.md"]
    # Neither that figure nor that of eight devices with the utilisation of one.
    assert "2,600" not in [line["samples/s, one"] for line in lines]
    assert "1,300" not in [line["samples/s, all"] for line in lines]
    for study in studies.load():
        assert study.title in pages["studies.md"]
        assert study.address in pages["studies.md"]


def test_no_table_is_too_wide_no_page_too_long_and_every_link_leads_somewhere(
    pages: dict[str, str], folder: Path
) -> None:
    own = {path.name: path for path in folder.rglob("*.md")}
    assert len(pages["results.md"].splitlines()) <= 150
    assert len(pages["results.md"].encode()) <= 40_000
    for name, page in pages.items():
        for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
            lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()]
            assert {len(line) for line in lines} == {len(lines[0])}, block
            assert len(lines[0]) <= 9, lines[0]
            told = [(title, cell) for line in lines[2:] for title, cell in zip(lines[0], line) if title not in NAMES]
            assert all(len(cell) <= 30 for _, cell in told), (name, told)
        links = re.findall(r"\]\(([^)]+)\)", page)
        assert all((own[name].parent / link).is_file() for link in links if not link.startswith("http")), name
        for study in set(re.findall(r"\]\[(\w+)\]", page)):
            (address,) = re.findall(rf"^\[{study}\]: (.+)", page, re.MULTILINE)
            assert address.startswith("http") or (own[name].parent / address).is_file()
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    def contents(folder: Path, records: Sequence[Record]) -> dict[Path, bytes]:
        written(folder, records)
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert contents(tmp_path / "a", RECORDS) == contents(tmp_path / "b", RECORDS[::-1])


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "Nothing has been measured yet"),
        ([record_of(run={"quick": True, "steps": 12})], "has quick runs alone"),
        ([skipped(8, 0)], "Nothing has been measured yet"),
    ],
)
def test_without_full_runs_the_page_says_so_and_shows_what_is_published(
    records: list[Record], words: str, tmp_path: Path
) -> None:
    page = written(tmp_path, records)["results.md"]
    assert words in page
    assert "[8x Tesla K80 (AWS p2.8x)][beeva_poc_mxnet]" in page
    assert "320" not in page.split("## The same recipe")[1].split("## Latest")[0]
    assert ("320" in page.split("## The same recipe")[1]) == ("quick" in words)


def test_a_disturbed_take_counts_only_where_there_is_no_other(tmp_path: Path) -> None:
    busy = take(1, 8.0, others_busy_cores=1.0)
    for takes, rate in (([busy, take(2, 4.0)], "320†"), ([busy], "160*†")):
        (line,) = own(written(tmp_path, takes)["results.md"], TITLE)
        assert line[RATE] == rate


@pytest.mark.parametrize(
    ("shares", "rate"), [((0.09, 0.02), "320 (320-320, n=2)†"), ((0.07, 0.02), "320 (320-320, n=2)")]
)
def test_a_dagger_says_that_takes_waited_for_batches(shares: tuple[float, float], rate: str, tmp_path: Path) -> None:
    takes = [take(number, 4.0) for number in (1, 2)]
    waiting = [
        replace(one, windows=tuple(replace(window, waited=share * window.seconds) for window in one.windows))
        for one, share in zip(takes, shares)
    ]
    (line,) = own(written(tmp_path, waiting)["results.md"], TITLE)
    assert line[RATE] == rate
    assert [rows.from_record(one).note for one in waiting] == [
        f"{shares[0]:.0%} of the timed windows went by in waiting for batches",
        "",
    ]


def test_what_a_disturbed_run_learned_counts(tmp_path: Path) -> None:
    busy = twelve([0.5], {"seed": 1}, run_id="busy", others_busy_cores=1.0)
    page = written(tmp_path, [twelve([0.7], run_id="calm"), busy])["results.md"]
    assert cells(page, "Which learning rate")[0]["closed: accuracy (lost)"] == "0.600 (n=2)"


def test_a_rate_counts_where_most_seeds_were_and_not_where_it_did_best(tmp_path: Path) -> None:
    lucky = twelve([0.9], run_id="lucky", infrastructure="another machine")
    several = [twelve([last], {"seed": seed}, run_id=f"seed{seed}") for seed, last in enumerate((0.5, 0.7))]
    for records in ([lucky, *several], [*several, lucky]):
        (line,) = cells(written(tmp_path, records)["results.md"], "Which learning rate")[:1]
        assert line["closed: accuracy (lost)"] == "0.600 (n=2)"


def test_runs_that_read_alike_say_in_what_they_differ(tmp_path: Path) -> None:
    others = [{"epochs": 1, "steps": 10}, {**MUON, "momentum": 0.6}, {**MUON, "momentum": 0.85}]
    several = [record_of(run=run, run_id=f"run{number}") for number, run in enumerate(others)]
    several[0] = replace(several[0], windows=several[0].windows[:1], evaluations=several[0].evaluations[:1])
    lines = cells(written(tmp_path, [record_of(), *several])["runs.md"], "Every setting measured")
    assert sorted((line["rate"], line["epochs"], line["accuracy"]) for line in lines) == [
        ("0.05", "1", "0.500"),
        ("0.05", "6", "0.750"),
        ("Muon 0.2, 0.05, momentum 0.6", "6", "0.750"),
        ("Muon 0.2, 0.05, momentum 0.85", "6", "0.750"),
    ]


def test_a_machine_that_is_not_at_hand_is_not_bold(tmp_path: Path) -> None:
    later = replace(ELSEWHERE, started="2026-11-30T10:00:00+00:00")
    data = {**MUON["data"], "validate_on": "held-out"}
    search = twelve([0.9], {**MUON, "data": data}, run_id="sought", started="2026-12-01T10:00:00+00:00")
    lines = cells(written(tmp_path, [record_of(), VIRTUAL, later, search])["results.md"], TITLE)
    assert [line["machine"] for line in lines][:2] == ["**another machine**", "test machine"]


@pytest.mark.parametrize("count", [1, 7])
def test_figures_are_small_labelled_and_the_same_twice(count: int) -> None:
    several = [
        chart.Line(label=f"machine {n}", points=tuple(chart.Point(x=2**x, y=x + n + 1) for x in range(4)), here=n == 0)
        for n in range(count)
    ]
    texts = {chart.svg(chart.lines(several, title="t", xlabel="x", ylabel="y", log="x", ticks="x")) for _ in range(2)}
    assert len(texts) == 1
    (text,) = texts
    ElementTree.fromstring(text)  # noqa: S314  # our own
    assert len(text) < 60_000
    assert text.count(">machine ") == (count if count > 1 else 0)


def test_committed_results_are_what_the_journals_say(tmp_path: Path) -> None:
    records = journal.read(journal.paths(HOME / "reference"))
    report.write(records, STUDIES, page=tmp_path / "results.md", folder=tmp_path / "reference")
    made = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    for path in made:
        assert (tmp_path / path).read_bytes() == (HOME / path).read_bytes(), path


def test_the_readme_shows_what_the_results_say() -> None:
    shown = [line for line in (HOME / "README.md").read_text().splitlines() if line.startswith("| ")]
    assert len(shown) > 3
    assert set(shown) <= set((HOME / "results.md").read_text().splitlines())
