"""Which runs are compared, what stands for each batch, what tables make of them: against figures made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from poc import studies
from poc.records.record import Record
from poc.report import points, rows, summary, ways
from poc.report.chart import Point, Series
from poc.report.tables import batches
from poc.studies.row import Row
from tests.builders import record_of
from tests.test_report import cells

PRINTED = [row for study in studies.load() for row in study.rows]
MUON = {
    "optimizer": "muon",
    "muon_rate": 0.2,
    "decay": "linear",
    "label_smoothing": 0.1,
    "data": {"name": "cifar10", "crop": 28, "pad": 0, "mirror": True, "jitter": False},
}
# Of a true gradient of squared norm 2 and a variance of 600: a noise scale of 300 samples.
NORMS = [{"step": step, "small": 2 + 600 / 128, "large": 2 + 600 / 1024} for step in range(0, 60, 5)]


def trained(total: int, accuracies: list[float], *, run: dict[str, Any] | None = None, **changes: Any) -> Record:
    """Six epochs on CIFAR-10 with these validation accuracies; with 128 samples a device."""
    devices = total // 128
    fields = {"devices": devices, "virtual": devices > 1, "total_batch": total, **(run or {})}
    name = f"{total}{fields.get('optimizer', 'sgd')}{fields.get('learning_rate', '')}"[:10]
    norms = NORMS if devices == 8 else []
    return record_of(run=fields, accuracies=accuracies, **{"run_id": name, "norms": norms, **changes})


def twelve(made: Record) -> Record:
    """The same over as many epochs as what is published."""
    return replace(made, run=replace(made.run, epochs=12, steps=120))


def lines(series: Sequence[Series]) -> dict[str, list[tuple[float, float]]]:
    """The points of a figure by the label of their line."""
    drawn = {line.label: [(point.x, point.y) for point in line.points] for line in series}
    assert len(drawn) == len(series)
    return drawn


STUDY = [
    trained(128, [0.5, 0.6, 0.7, 0.72, 0.74, 0.76]),
    trained(128, [0.6, 0.7, 0.8, 0.85, 0.87, 0.89], run=MUON),
    trained(1024, [0.3, 0.4, 0.5, 0.55, 0.6, 0.62], run={"learning_rate": 0.4}),
    trained(1024, [0.5, 0.6, 0.7, 0.8, 0.84, 0.86], run={"learning_rate": 0.4, **MUON}),
    trained(1024, [0.5, 0.6, 0.7, 0.75, 0.78, 0.79], run={"learning_rate": 0.8, "optimizer": "nesterov"}),
]
MIDDLE = trained(256, [0.7] * 5 + [0.88], run=MUON)

TWELVE = [twelve(made) for made in STUDY]


def test_runs_by_more_than_one_way_are_compared_and_others_are_not() -> None:
    (one,) = ways.comparisons(STUDY)
    assert (one.network, one.epochs, one.batches()) == ("cifar_resnet50_v2", 6, [128, 1024])
    best_first = [(128, 0.89), (128, 0.76), (1024, 0.86), (1024, 0.79), (1024, 0.62)]
    assert [(training.total_batch, training.accuracy) for training in one.trainings] == best_first
    for run in ({"quick": True}, {"steps": 7}, {"model": "cifar_resnet20_v2"}):
        assert ways.comparisons([STUDY[0], trained(128, [0.9] * 6, run={**MUON, **run})]) == []
    for change in ({"outcome": "failed"}, {"dataset": "synthetic"}, {"infrastructure": "another machine"}):
        assert ways.comparisons([STUDY[0], trained(128, [0.9] * 6, run=MUON, **change)]) == []
    assert ways.comparisons([STUDY[0], trained(128, [0.1] * 6)]) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "SGD, rate 0.05, constant rate, crop 28 of 40, mirror, colour jitter"),
        (MUON, "Muon 0.2, rate 0.05, linear to zero, label smoothing 0.1, crop 28 of 32, mirror"),
        ({"lr_rule": "linear: 0.05 per 128"}, "SGD, linear: 0.05 per 128, constant rate"),
        ({"momentum": 0.6, "optimizer": "nesterov"}, "SGD with Nesterov momentum, rate 0.05, momentum 0.6"),
        ({"decay": "steps", "decay_at": [0.6, 0.85]}, "SGD, rate 0.05, times 0.1 at 60% and 85% of the steps"),
        ({"warmup_steps": 12, "decay": "cosine"}, "SGD, rate 0.05, warm-up over 20% of the steps, cosine to zero"),
        ({"zero_gamma": True, "optimizer": "lars"}, "LARS, rate 0.05, constant rate, zero gammas"),
        ({"decay_gammas": False, "weight_decay": 0.001}, "SGD, rate 0.05, weight decay 0.001, gammas not decayed"),
    ],
)
def test_a_way_says_all_that_tells_it_from_others(change: dict[str, Any], words: str) -> None:
    run = trained(128, [], run=change).run
    assert ways.way(run).startswith(words)
    # Neither the batch nor the devices make another way.
    assert ways.way(trained(1024, [], run=change).run) == ways.way(run)
    assert ways.as_the_study(run) == (change == {} or "lr_rule" in change)


def test_a_run_that_diverged_has_no_accuracy_and_is_never_the_best() -> None:
    lost = trained(1024, [0.9] * 6, run={"learning_rate": 3.2}, outcome="diverged")
    (one,) = ways.comparisons([*STUDY, lost])
    best = one.best(1024, source=True)
    assert best is not None
    assert (best.accuracy, one.trainings[-1].accuracy) == (0.62, None)
    assert "diverged" in batches.tried(one)


def costs(runs: Sequence[Record], printed: Sequence[Row]) -> dict[tuple[str, str], dict[str, str]]:
    (one,) = ways.comparisons(runs)
    return {(line["total batch"], line["way"]): line for line in cells(batches.cost_of_accuracy(one, printed))}


def test_what_is_kept_at_each_batch_stands_beside_what_was_printed() -> None:
    (one,) = ways.comparisons(TWELVE)
    small, large = cells(batches.kept(one, PRINTED))
    assert small["the study's way, here"] == "0.7600 (lr=0.05)"
    assert large["the study's way, here"] == "0.6200 (lr=0.4)"
    assert (large["best way found"], large["gain"]) == ("0.8600 (lr=0.4)", "+0.2400")
    assert large["the best way"].startswith("Muon 0.2")
    assert "8x Tesla K80 (AWS p2.8x): 0.786 (lr=0.4)" in large["published, one line a setting"]
    best, source = (costs(TWELVE, PRINTED)["1024", way] for way in ("the best found", "the study's"))
    assert [best[f"epochs to {accuracy}"] for accuracy in (0.75, 0.8, 0.85)] == ["4", "4", "6"]
    # The fastest K80 setting at 1,024 took 7.1 s an epoch on eight, the fastest P100 one 3.4 s on four.
    assert best["8x Tesla K80 (AWS p2.8x): s to 0.85"] == "43 on 8"
    assert best["DGX-1, 8x P100: s to 0.85"] == "20 on 4"
    assert (source["epochs to 0.75"], source["DGX-1, 8x P100: s to 0.75"]) == ("never", "")


def test_a_printed_row_is_left_out_only_where_the_figure_that_contradicts_itself_is_used() -> None:
    """DGX-1, 256x1: 13.9 s an epoch are not 2,600 samples/s, of which its accuracy of 0.782 knows nothing."""
    runs = [*TWELVE, twelve(MIDDLE)]
    (one,) = ways.comparisons(runs)
    listed = next(line for line in cells(batches.kept(one, PRINTED)) if line["total batch"] == "256")
    assert "DGX-1, 8x P100: 0.782 (lr=0.05)" in listed["published, one line a setting"]
    assert (256, 0.782) in lines(points.accuracy_batch(PRINTED, runs)[1])["published, DGX-1, 8x P100"]
    worth = lines(points.accuracy_worth(PRINTED, runs)[1])["DGX-1, 8x P100, as published"]
    assert (6100, 0.767) in worth
    assert 2600 not in dict(worth)
    alone = [row for row in PRINTED if row.printed != "128x2=256 (lr=0.1) | 6100 (2-80%)"]
    assert costs(runs, alone)["256", "the best found"]["DGX-1, 8x P100: s to 0.85"] == ""


def test_accuracy_suffers_from_the_first_batch_that_loses_two_hundredths() -> None:
    (one,) = ways.comparisons([*STUDY, MIDDLE])
    assert one.suffers_from(source=True) == (1024, pytest.approx(0.14))
    assert one.suffers_from(source=False) == (1024, pytest.approx(0.03))
    said = batches.suffering(one)
    assert "by the study's way from a total batch of 1,024 on (0.1400 there)" in said
    assert "by the best way found from a total batch of 1,024 on (0.0300 there)" in said
    (kept,) = ways.comparisons([STUDY[0], STUDY[1], trained(256, [0.7] * 5 + [0.875], run=MUON)])
    assert (kept.suffers_from(source=False), batches.suffering(kept)) == (None, "")


def test_the_summary_says_what_each_batch_keeps() -> None:
    said = summary.kept_in_words(TWELVE)
    assert "0.8900 (0.7600) at 128" in said
    assert "0.8600 (0.6200) at 1,024" in said
    assert f"\n- {said}" in "\n" + summary.summary(rows.collect(TWELVE, studies.load()), TWELVE)
    assert summary.kept_in_words(STUDY[:2]) == ""  # one batch says nothing of others


def test_the_noise_scale_is_told_over_the_training() -> None:
    (one,) = ways.comparisons(STUDY)
    listed = cells(batches.noise_scales(one))
    assert [row["total batch"] for row in listed] == ["1024"] * 3
    assert [listed[0][name] for name in ("quarter 1", "quarter 4", "whole run", "looks")] == ["300", "300", "300", "12"]
    _, series = points.noise_scale(STUDY)
    assert len(series) == 3
    assert all(point.y == pytest.approx(300) for line in series for point in line.points)
    assert series[0].points[0].x == pytest.approx(0.25)


def test_the_figures_show_the_best_at_each_batch() -> None:
    assert lines(points.accuracy_batch(PRINTED, STUDY)[1]) == {
        "the study's way, here": [(128, 0.76), (1024, 0.62)],
        "the best way found": [(128, 0.89), (1024, 0.86)],
    }
    assert (4096, 0.611) in lines(points.accuracy_batch(PRINTED, TWELVE)[1])["published, 8x Tesla K80 (AWS p2.8x)"]
    worth = {line.label: line.points for line in points.accuracy_worth(PRINTED, TWELVE)[1]}
    best = (Point(x=1800, y=0.89, text="64x2"), Point(x=6800, y=0.86, text="128x8"))
    assert worth["8x Tesla K80 (AWS p2.8x), by the best way found"] == best
    assert Point(x=6800, y=0.786, text="128x8") in worth["8x Tesla K80 (AWS p2.8x), as published"]
    # Without a way of ours there is nothing to be worth it.
    assert points.accuracy_worth(PRINTED, [STUDY[0], STUDY[2]])[1] == []
