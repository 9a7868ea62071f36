"""How training scales with devices: speed-ups of the main network, published and measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from poc import predict
from poc.predict.quantiles import FARTHEST, Prediction
from poc.predict.series import Point
from poc.recipe import NoSync
from poc.report import chart, compare
from poc.report.measurements import Measurement, figures_of, grouped
from poc.report.page import MAIN_BATCH, MAIN_NETWORK, Picture, Results, Section
from poc.report.sections.machines import usual_exchange
from poc.report.sections.rates import unlike
from poc.report.tables import interval, markdown, network_label, rounded, short_machine
from poc.run import NO_MATTER_FOR_SPEED
from poc.studies.row import Row
from poc.values import value

_MOST_COUNTS = 4
"""Columns of device counts, unless more were measured: a table has nine at most."""


@value
class Scaled:
    """One setting on more and more devices."""

    series: compare.Series
    pairs: tuple[tuple[Measurement, Measurement], ...]
    """One device and several, fewest first: what takes in turn gave."""

    @property
    def takes(self) -> int:
        """Of the row with most devices, or of one device where those are fewer."""
        return min(taken.rate.n for taken in self.pairs[-1])

    @property
    def speedups(self) -> dict[int, float]:
        """By throughput, of each number of devices."""
        return {several.row.devices: several.rate.median / one.rate.median for one, several in self.pairs}

    @property
    def efficiency(self) -> float:
        """At the most devices."""
        most, speedup = max(self.speedups.items())
        return speedup / most

    @property
    def last(self) -> Row:
        """The row with most devices."""
        return self.pairs[-1][1].row

    def foretold(self) -> list[Prediction]:
        """Speed-ups of a measured series on twice as many devices and more, as far as is predicted."""
        if self.last.run.shares_threads:
            return []
        asked = [Point(devices=self.last.devices * times, rate=0.0) for times in (2, FARTHEST)]
        points = [Point(devices=devices, rate=speedup) for devices, speedup in {1: 1.0, **self.speedups}.items()]
        return predict.kept().learnt.predict(points, asked, self.series.kind)


def section(results: Results) -> Section:
    """Speed-ups of the main network with a fixed batch per device, as a table and as a figure."""
    shown = weak(results)
    foretold = {scaled: scaled.foretold() for scaled in shown if results.is_here(scaled.last)}
    measured = {devices for scaled in shown for devices in scaled.speedups}
    counts = sorted(measured | {made.devices for several in foretold.values() for made in several})
    # A prediction far beyond what was measured must neither widen the table nor shrink the rest of the figure.
    while len(counts) > _MOST_COUNTS and counts[-1] not in measured:
        counts.pop()
    foretold = {scaled: [made for made in several if made.devices in counts] for scaled, several in foretold.items()}
    names = _names(results, shown)

    def line(scaled: Scaled, machine: str, speedups: Mapping[int, str], efficiency: str, takes: str) -> dict[str, str]:
        return {
            "machine": machine,
            "batch a device": f"{scaled.series.batch}",
            "exchange": scaled.last.kvstore,
            **{f"x{count}": speedups.get(count, "") for count in counts},
            "efficiency, most devices": efficiency,
            "takes": takes,
        }

    table = []
    for scaled in shown:
        machine = names[scaled]
        speedups = {count: rounded(speedup) for count, speedup in scaled.speedups.items()}
        table.append(line(scaled, machine, speedups, f"{scaled.efficiency:.2f}", str(scaled.takes)))
        if several := foretold.get(scaled):
            said = {one.devices: interval(one.rate, one.low, one.high) for one in several}
            table.append(line(scaled, f"{machine}, *predicted*", said, "", ""))
    about = (
        "ResNet-50 (CIFAR) with a fixed batch per device: samples/s of n devices over those of one (xn), and that over "
        "n (efficiency). Medians over takes that began within an hour of one of the other side, n of the side with "
        "fewer; a single take bears no verdict. *Predicted*, with its 90% interval: what the published "
        "series make of this machine's own, were there more of its devices."
    )
    return Section("How it scales", (about, markdown(table), *_picture(shown, foretold, _apart(shown))))


def _names(results: Results, shown: Sequence[Scaled]) -> dict[Scaled, str]:
    """The machine of each series, with what tells it from others of that machine that read alike."""
    return {
        scaled: ", ".join(filter(None, [results.name(scaled.last), words])) for scaled, words in _apart(shown).items()
    }


def _apart(shown: Sequence[Scaled]) -> dict[Scaled, str]:
    """The kind of devices where a machine has series of both kinds, and how those train that read alike otherwise."""
    kinds = {(scaled.last.machine, scaled.last.kind) for scaled in shown if scaled.last.measured}
    both = [machine for machine, kind in kinds if kind == "cpu" and (machine, "gpu") in kinds]
    words: dict[Scaled, list[str]] = {scaled: [] for scaled in shown}
    for scaled in shown:
        if scaled.last.measured and scaled.last.machine in both:
            words[scaled].append(scaled.last.kind.upper())

    def reads(scaled: Scaled) -> tuple[object, ...]:
        row, series = scaled.last, scaled.series
        return row.machine, row.kind, row.model, row.kvstore, series.kind, series.batch

    for group in grouped((scaled for scaled in shown if scaled.last.measured), reads).values():
        for scaled, unlike_others in zip(group, unlike(scaled.last for scaled in group)):
            words[scaled].append(unlike_others)
    return {scaled: ", ".join(filter(None, several)) for scaled, several in words.items()}


def weak(results: Results) -> list[Scaled]:
    """Weak scaling of the main network: this machine's, then others', each by its usual exchange."""

    def fits(row: Row) -> bool:
        return row.model == MAIN_NETWORK and not isinstance(row.run.kvstore, NoSync)

    published = results.published(lambda row: row.model == MAIN_NETWORK)
    shown = [*usual_exchange(results.speeds(fits)), *published]
    return [scaled for scaled in scalings(shown) if scaled.series.kind == compare.WEAK]


def scalings(measurements: Sequence[Measurement]) -> list[Scaled]:
    """Every series over devices among them that has takes in turn on one device and on several, by their medians."""
    # A run that was cut short is as fast as a whole one: what tells them apart must not part a series.
    besides = ("devices", "emulated", "batch_per_device", "global_batch", "kvstore", "workers", *NO_MATTER_FOR_SPEED)
    takes: dict[Row, Measurement] = {}
    for taken in measurements:
        row = taken.row
        if row.measured:
            row = dataclasses.replace(row, setting=row.run.key(*besides), lr=None)
        takes[row] = taken
    found = []
    for series in compare.series(takes):
        one = Measurement(tuple(row for alone in series.alone for row in takes[alone].rows))
        pairs = tuple(pair for row in series.rows if (pair := compare.in_turn(one, takes[row])))
        found += [Scaled(series=series, pairs=pairs)] if pairs else []
    return found


def fastest_first(shown: Sequence[Scaled]) -> list[Scaled]:
    """Those at the reference batch first, then by how many devices they reach."""
    return sorted(shown, key=lambda scaled: (scaled.series.batch != MAIN_BATCH, -scaled.last.devices))


def _picture(
    shown: Sequence[Scaled], foretold: Mapping[Scaled, Sequence[Prediction]], apart: Mapping[Scaled, str]
) -> list[Picture]:
    chosen = [scaled for scaled in fastest_first(shown) if scaled.series.batch == MAIN_BATCH or scaled.last.measured]
    if not chosen:
        return []
    lines = []
    for scaled in chosen:
        name = ", ".join(filter(None, [short_machine(scaled.last), apart[scaled], f"{scaled.series.batch}"]))
        here = scaled.last.measured
        points = (chart.Point(x=1, y=1), *(chart.Point(x=n, y=speed) for n, speed in scaled.speedups.items()))
        lines.append(chart.Line(label=f"{name} a device", points=points, here=here))
        if several := foretold.get(scaled):
            made = (chart.Point(x=one.devices, y=one.rate, low=one.low, high=one.high) for one in several)
            lines.append(chart.Line(label=f"{name}, predicted", points=(points[-1], *made), here=here, predicted=True))
    most = max(point.x for line in lines for point in line.points)
    ideal = chart.Line(label="ideal", points=tuple(chart.Point(x=n, y=n) for n in (1, most)), ideal=True)
    figure = chart.lines(
        [ideal, *lines][: chart.MOST_LINES],
        title="How training scales with devices",
        xlabel="devices",
        ylabel="times as fast as one",
        ticks="x",
    )
    caption = (
        "Speed-up by throughput, ResNet-50 (CIFAR), fixed batch per device: solid lines are measured, dashed ones "
        f"published (batch {MAIN_BATCH}), dotted is ideal, dash-dotted is predicted, with its 90% interval."
        f"{chart.left_out(len(lines) + 1)}"
    )
    return [Picture("scaling", caption, figure)]


def every(results: Results) -> Section:
    """Every measured series: its speed-ups by throughput and by wall time, and what one device would have foretold."""
    lines = []
    shown = scalings(results.speeds(lambda row: True))
    names = _names(results, shown)
    for scaled in shown:
        for one, several in scaled.pairs:
            devices = several.row.devices
            asked, came = Point(devices=devices, rate=0.0), several.rate.median
            known = [Point(devices=1, rate=one.rate.median)]
            made = predict.kept().learnt.predict(known, [asked], scaled.series.kind) if devices <= FARTHEST else []
            walls = [compare.by_wall([alone], row) for alone in one.quiet for row in several.quiet]
            lines.append(
                {
                    "machine": names[scaled],
                    "network": network_label(several.row.model),
                    "scaling": f"{scaled.series.kind}, {scaled.series.batch:,}, {several.row.kvstore}",
                    "devices": f"{devices}",
                    "times as fast (takes)": f"{scaled.speedups[devices]:.2f} ({min(one.rate.n, several.rate.n)})",
                    "by wall time": rounded(figures.median) if (figures := figures_of(walls)) else "",
                    "samples/s, one and all": f"{rounded(one.rate.median)}, {rounded(came)}",
                    "predicted (90%)": "".join(interval(said.rate, said.low, said.high) for said in made),
                    "inside": "".join("yes" if said.low <= came <= said.high else "no" for said in made),
                }
            )
    inside = [line["inside"] for line in lines if line["inside"]]
    about = (
        f"{compare.SERIES_RULE}, nor without takes of both that began within an hour of each other, of which "
        "the medians are compared. Times as fast is by samples/s, in the usual window alone; by wall time sees all of "
        "a run, from its start to its end, and only where both trained as many samples (within "
        f"{compare.SAME_WORK:.0%}). *Predicted* is from one device alone, by what the published series teach, which "
        f"know nothing of this machine or its exchanges: {inside.count('yes')} of {len(inside)} lie inside, of which "
        "many share their takes on one device."
    )
    return Section("Every measured series", (about, markdown(lines)))
