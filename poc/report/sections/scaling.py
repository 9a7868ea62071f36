"""How training scales with devices: speed-ups of the main network, published and measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from poc.recipe import Independent
from poc.report import chart, compare
from poc.report.measurements import Measurement
from poc.report.page import MAIN_BATCH, MAIN_NETWORK, Picture, Results, Section
from poc.report.sections.machines import usual_exchange
from poc.report.tables import markdown, network_label, rounded, short_machine
from poc.run import NO_MATTER_FOR_SPEED
from poc.studies.row import Row
from poc.values import value


@value
class Scaled:
    """One setting on more and more devices."""

    series: compare.Series
    takes: int
    """Of the row with most devices."""

    @property
    def speedups(self) -> dict[int, float]:
        """By throughput, of each number of devices."""
        found = {row.devices: compare.by_throughput(self.series.alone, row) for row in self.series.rows}
        return {devices: speedup for devices, speedup in found.items() if speedup is not None}

    @property
    def efficiency(self) -> float:
        """At the most devices."""
        most, speedup = max(self.speedups.items())
        return speedup / most

    @property
    def last(self) -> Row:
        """The row with most devices."""
        return self.series.rows[-1]


def section(results: Results) -> Section:
    """Speed-ups of the main network with a fixed batch per device, as a table and as a figure."""
    shown = weak(results)
    counts = sorted({devices for scaled in shown for devices in scaled.speedups})
    table = [
        {
            "machine": results.name(scaled.last),
            "batch a device": f"{scaled.series.batch}",
            "exchange": scaled.last.exchange,
            **{f"x{count}": rounded(scaled.speedups.get(count)) for count in counts},
            "efficiency at most": f"{scaled.efficiency:.2f}",
            "takes": str(scaled.takes),
        }
        for scaled in shown
    ]
    about = (
        "ResNet-50 (CIFAR) with a fixed batch per device: samples/s of n devices over those of one (xn), and that over "
        "n (efficiency). Medians over takes; a single take bears no verdict."
    )
    return Section("How it scales", (about, markdown(table), *_picture(shown)))


def weak(results: Results) -> list[Scaled]:
    """Weak scaling of the main network: this machine's, then others', each by its usual exchange."""

    def fits(row: Row) -> bool:
        return row.network == MAIN_NETWORK and not isinstance(row.run.exchange, Independent)

    def printable(row: Row) -> bool:
        return row.network == MAIN_NETWORK and not row.doubtful("samples_per_second", "devices")

    shown = [*usual_exchange(results.speeds(fits)), *results.published(printable)]
    return [scaled for scaled in scalings(shown) if scaled.series.kind == compare.WEAK]


def scalings(measurements: Sequence[Measurement]) -> list[Scaled]:
    """Every series over devices among them, by the medians of their takes."""
    # A run that was cut short is as fast as a whole one: what tells them apart must not part a series.
    besides = ("devices", "virtual", "batch_per_device", "total_batch", "exchange", "workers", *NO_MATTER_FOR_SPEED)
    takes = {}
    for taken in measurements:
        row = taken.row
        if row.measured:
            row = dataclasses.replace(row, setting=row.run.key(*besides), learning_rate=None)
        takes[row] = len(taken.rows)
    return [
        Scaled(series=series, takes=takes[series.rows[-1]])
        for series in compare.series(takes)
        if any(compare.by_throughput(series.alone, row) for row in series.rows)
    ]


def fastest_first(shown: Sequence[Scaled]) -> list[Scaled]:
    """Those at the reference batch first, then by how many devices they reach."""
    return sorted(shown, key=lambda scaled: (scaled.series.batch != MAIN_BATCH, -scaled.last.devices))


def _picture(shown: Sequence[Scaled]) -> list[Picture]:
    chosen = [scaled for scaled in fastest_first(shown) if scaled.series.batch == MAIN_BATCH or scaled.last.measured]
    if not chosen:
        return []
    most = max(scaled.last.devices for scaled in chosen)
    ideal = chart.Line(label="ideal", points=tuple(chart.Point(x=n, y=n) for n in (1, most)), ideal=True)
    lines = [
        chart.Line(
            label=f"{short_machine(scaled.last)}, {scaled.series.batch} a device",
            points=(chart.Point(x=1, y=1), *(chart.Point(x=n, y=speed) for n, speed in scaled.speedups.items())),
            here=scaled.last.measured,
        )
        for scaled in chosen[: chart.MOST_LINES - 1]
    ]
    figure = chart.lines(
        [ideal, *lines],
        title="How training scales with devices",
        xlabel="devices",
        ylabel="times as fast as one",
        ticks="x",
    )
    caption = (
        "Speed-up by throughput, ResNet-50 (CIFAR), fixed batch per device: solid lines are measured, dashed ones "
        "published, dotted is ideal."
    )
    return [Picture("scaling", caption, figure)]


def both_speedups(results: Results) -> Section:
    """Every measured series with both of its speed-ups, by throughput and by wall time."""
    lines = [
        {
            "machine": results.name(scaled.last),
            "network": network_label(scaled.last.network),
            "scaling": f"{scaled.series.kind}, {scaled.series.batch}",
            "exchange": scaled.last.exchange,
            "devices": f"{scaled.last.devices}",
            "by throughput": f"{scaled.speedups[scaled.last.devices]:.2f}",
            "efficiency": f"{scaled.efficiency:.2f}",
            "by wall time": rounded(compare.by_wall(scaled.series.alone, scaled.last)),
            "takes": str(scaled.takes),
        }
        for scaled in scalings(results.speeds(lambda row: True))
    ]
    about = (
        f"{compare.SERIES_RULE}. By throughput sees the usual window alone; by "
        "wall time all of a run, from its start to its end, and only where both trained as many samples (within "
        f"{compare.SAME_WORK:.0%})."
    )
    return Section("Every measured series", (about, markdown(lines)))
