"""The same recipe on each machine: what K80, P100 and CPUs were published at, and what this machine gives."""

from __future__ import annotations

from collections.abc import Sequence

from poc.recipe import CIFAR10, NoSync
from poc.recipe.kvstores import KVSTORES
from poc.report import chart
from poc.report.measurements import CLOSED, Known, Measurement, by_exchange, division
from poc.report.page import MAIN_BATCH, MAIN_EPOCHS, MAIN_NETWORK, Picture, Results, Section
from poc.report.tables import RATE, accuracy_of, cells, devices_of, machine_of, markdown, rounded, short_machine
from poc.studies.row import Row

_RATE_PER_SAMPLE = 0.05 / 128


def section(results: Results) -> Section:
    """The card's table, and the speed of each machine's device as a figure."""
    shown = reference(results)
    fastest = fastest_device(results)
    compared = f"x one {machine_of(fastest).split()[-1]}" if fastest else "x one GPU"
    about = (
        "Closed division: ResNet-50 (CIFAR), SGD, CIFAR-10 in crops of 28 with colours moved; accuracies are those of "
        f"{MAIN_EPOCHS} epochs at a rate of 0.05 for every 128 samples of total batch, speeds also of shorter runs and "
        "other rates. Linked rows are published; CPUs of studies ran batches of 256 and 512."
    )
    table = [
        {
            "machine": results.name(taken.row),
            **cells(taken, "devices", "engine", "precision", "total batch", RATE),
            compared: rounded(taken.rate.median / fastest.samples_per_second, 2) if fastest else "",
            "accuracy": accuracy_of(accuracy(taken)),
            "$ a run": _dollars(taken),
        }
        for taken in shown
    ]
    return Section("The same recipe on each machine", (about, markdown(table), *_picture(results, shown)))


def reference(results: Results) -> list[Measurement]:
    """The reference setting, batch 128 a device: measured ones, this machine's first, then the main study's by speed.

    Of machines that are not at hand only what they have in common with the study.
    """

    def measured(row: Row) -> bool:
        like = row.model == MAIN_NETWORK and row.batch_per_device == MAIN_BATCH and not row.fixed
        usual = results.is_here(row) or (results.is_usual(row) and row.dtype == "float32")
        closed = division(row.run) == CLOSED and not isinstance(row.run.kvstore, NoSync)
        return bool(like and usual and closed)

    def printed(row: Row) -> bool:
        like = row.devices in (1, 8) and row.batch_per_device == MAIN_BATCH and linear(row)
        usable = row.samples_per_second and not row.doubtful("samples_per_second")
        return bool(row.model == MAIN_NETWORK and (like or row.devices == 0) and usable)

    theirs = sorted(results.published(printed), key=lambda taken: -taken.rate.median)
    return [*usual_exchange(results.speeds(measured)), *theirs]


def usual_exchange(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Of measured ones that differ only in how gradients travel, and in whether their noise was looked at, the first in
    the order of recipes' exchanges."""

    def place(taken: Measurement) -> tuple[bool, int, str]:
        run = taken.row.run
        return run.gradient_noise is not None, list(KVSTORES).index(run.kvstore.name), taken.row.kvstore

    first = [min(group, key=place) for group in by_exchange(measurements, "gradient_noise")]
    return [taken for taken in measurements if taken in first]


def fastest_device(results: Results) -> Row | None:
    """The main study's fastest single device at the reference setting."""

    def alone(row: Row) -> bool:
        like = (row.devices, row.batch_per_device, row.model) == (1, MAIN_BATCH, MAIN_NETWORK)
        return like and row.samples_per_second is not None

    return max((taken.row for taken in results.published(alone)), key=lambda row: row.samples_per_second, default=None)


def accuracy(taken: Measurement) -> Known:
    """What runs of the reference length and rate reached, among the takes of a speed."""
    rows = (row for row in taken.rows if row.epochs == MAIN_EPOCHS and row.dataset != "synthetic" and linear(row))
    return Measurement(tuple(row for row in rows if row.accuracy is not None)).accuracies()


def linear(row: Row) -> bool:
    """Whether its rate is the study's 0.05 for every 128 samples of total batch."""
    known = None not in (row.lr, row.global_batch)
    return known and abs(row.lr / row.global_batch - _RATE_PER_SAMPLE) < 1e-9


def _dollars(taken: Measurement) -> str:
    """Of the epochs of the study at this speed, by the price of an hour of the devices in use."""
    price = taken.row.dollars_per_hour
    return "" if price is None else rounded(MAIN_EPOCHS * CIFAR10().train / taken.rate.median / 3600 * price, 2)


def _picture(results: Results, shown: Sequence[Measurement]) -> list[Picture]:
    alone = [taken for taken in shown if (taken.row.devices or 0) <= 1]
    if len(alone) < 2:
        return []
    lines = []
    for taken in sorted(alone, key=lambda taken: -taken.rate.median):
        row, rate = taken.row, taken.rate
        words = [short_machine(row)]
        if row.measured:
            words += [devices_of(row).replace("CPU, ", ""), row.framework.split()[0], row.dtype]
        point = chart.Point(x=rate.median, y=0.0, low=rate.low, high=rate.high)
        lines.append(chart.Line(label=", ".join(dict.fromkeys(words)), points=(point,), here=results.is_here(row)))
    figure = chart.dots(lines, title="One device: training throughput", xlabel="samples/s (logarithmic)")
    caption = (
        "Samples/s of one device, ResNet-50 (CIFAR) at the study's setting (its CPUs at batches of 256 and 512); bars "
        "are the range of takes, bold is the machine at hand."
    )
    return [Picture("machines", caption, figure)]
