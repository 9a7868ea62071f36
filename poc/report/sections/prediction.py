"""Throughput on more devices, predicted: how well that does on what it did not see, and on what was measured here."""

from __future__ import annotations

from poc import predict
from poc.predict import trial
from poc.recipe import Synthetic
from poc.records.record import COMPLETED, Record
from poc.report import chart
from poc.report.measurements import Measurement, figures_of
from poc.report.page import Picture, Results, Section
from poc.report.tables import interval, markdown, network_label, rate_of, rounded
from poc.run import NO_MATTER_FOR_SPEED

_ADVISED_BESIDES = (
    *("devices", "workers", "emulated", "kvstore", "batch_per_device", "global_batch"),
    *("gradient_noise", *NO_MATTER_FOR_SPEED),
)
"""In which what was advised may differ from the short run that looked at the noise."""


def tested(results: Results) -> Section:
    """The errors of predictions of published series that were left out, beside those of simpler rules."""
    found = predict.kept()
    about = (
        f"`poc predict` predicts samples/s of more devices from those of fewer. It was tried on the {found.series} "
        f"published series of {found.studies} studies that have three device counts or more, from every one of the "
        "fewest counts up to four times as many devices, fitted without the tested study; which features there are "
        "was chosen with all in view, which flatters it a little. Errors are medians; the interval's score (Winkler "
        "1972, of logarithms) is its width and twenty times what it misses by, so less is better, and rivals have the "
        "intervals of their own errors elsewhere. Series of a fixed total batch, of which one study alone has any, are "
        "not in the table: `python -m poc predict` has them too."
    )
    return Section("Predicted scaling, tried on series left out", (about, markdown(trial.table(found.weak_by_study))))


def beforehand(results: Results) -> Section:
    """What was predicted of runs before they began, beside what came out."""
    lines = [
        {
            "machine": results.name(row),
            "network": network_label(row.model),
            "batch a device": f"{row.batch_per_device:,}",
            "exchange": row.kvstore,
            "devices": f"{said.devices} -> {row.devices}",
            "predicted (90%)": interval(said.rate, said.low, said.high),
            "measured": rounded(row.samples_per_second) + Measurement((row,)).signs,
            "inside": "yes" if said.low <= row.samples_per_second <= said.high else "no",
        }
        for row, record in zip(results.rows, results.records)
        if (said := record.predicted) and row.samples_per_second and record.outcome == COMPLETED
    ]
    inside = sum(line["inside"] == "yes" for line in lines)
    about = (
        "Before a run on several devices begins, its samples/s are *predicted* from this machine's runs on fewer, and "
        f"its record keeps both. One line a take; {inside} of {len(lines)} lie inside. What a run is predicted from "
        "may be hours old: where the machine has slowed since, that is missed, too."
    )
    return Section("Predicted before it was measured", (about, markdown(lines)))


def advised(results: Results) -> Section:
    """What `poc advise` said of each number of devices, beside what was measured there later or before."""
    lines, pictures = [], []
    for record in results.records:
        if not record.advice:
            continue
        own = record.run.key(*_ADVISED_BESIDES)
        there = [
            (row, taken)
            for row, taken in zip(results.rows, results.records)
            if row.samples_per_second
            and taken.outcome == COMPLETED
            and taken.run.whole_epochs
            and not (taken.run.emulated or taken.run.quick)
            and taken.infrastructure == record.advice.machine
            and taken.data_id == record.data_id
            and taken.run.key(*_ADVISED_BESIDES) == own
        ]
        for option in record.advice.options:
            asked = option.devices, option.batch
            came = {row: taken for row, taken in there if (row.devices, row.global_batch) == asked}
            taken = Measurement(tuple(came))
            hours = figures_of(option.epochs[0] * _epoch_seconds(came[row]) / 3600 for row in taken.quiet)
            lines.append(
                {
                    "advised": record.started[:16].replace("T", " "),
                    "machine": results.bold(record.advice.machine),
                    "network": network_label(record.run.model)
                    + ", synthetic data" * (record.dataset == Synthetic.name),
                    "devices": f"{option.devices} x {option.batch // option.devices:,}",
                    "rate": f"{option.learning_rate:.3g}",
                    "samples/s said (90%)": interval(*option.rate),
                    "limited by": option.limit,
                    "samples/s came": rate_of(taken) if came else "",
                    "hours said (90%)": interval(*option.hours),
                    "hours came": rounded(hours.median) if hours else "",
                }
            )
        if all(option.dollars for option in record.advice.options):
            pictures = [_time_against_dollars(record)]
    about = (
        "What `poc advise` said, and the medians of the trainings of whole epochs in that setting on that machine, "
        "before or after: hours of training alone, for as many epochs as were advised."
    )
    return Section("Advised, and what came", (about, markdown(lines), *pictures))


def _epoch_seconds(record: Record) -> float:
    """Of training alone."""
    return sum(window.seconds for window in record.windows) / record.run.epochs


def _time_against_dollars(record: Record) -> Picture:
    """Of the options of a record's advice, whose prices are known."""
    assert record.advice
    points = tuple(
        chart.Point(x=option.dollars[0], y=option.hours[0], low=option.hours[1], high=option.hours[2])
        for option in record.advice.options
        if option.dollars
    )
    counts = ", ".join(str(option.devices) for option in record.advice.options)
    figure = chart.lines(
        [chart.Line(label=record.advice.machine, points=points)],
        title=f"{network_label(record.run.model)} on {record.advice.machine}: {counts} devices",
        xlabel="dollars",
        ylabel="hours",
        log="xy",
    )
    caption = (
        f"Advised: hours (90%) against dollars of training {network_label(record.run.model)} on {counts} devices of "
        f"{record.advice.machine} (from above) to the accuracy of the recipe's own batch."
    )
    return Picture("advice", caption, figure)
