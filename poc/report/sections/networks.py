"""Networks, batches and engines on one device: how fast, and how near to what the device can do."""

from __future__ import annotations

from collections.abc import Sequence

from poc.records.record import DONE, OUT_OF_MEMORY, Record
from poc.report import compare
from poc.report.measurements import Measurement, alike, grouped
from poc.report.page import Results, Section
from poc.report.rows import FLOPS_RULE, USUAL_ENGINE, framework
from poc.report.sections.rates import unlike
from poc.report.tables import RATE, cells, devices_of, markdown, network_label, rate_of, rounded


def section(results: Results) -> Section:
    """Every network on one fixed batch."""
    shown = results.speeds(lambda row: row.fixed and row.devices == 1 and row.cores_per_worker is None)
    about = (
        "One device, one fixed batch in its memory, so without an input pipeline. GFLOP/s: the arithmetic of training, "
        f"{FLOPS_RULE}. Of peak: that over a product of large square matrices in the same precision, the best "
        "of all takes on that machine."
    )
    lines = [
        {
            **cells(taken, "network"),
            "machine": results.name(taken.row),
            **cells(taken, "batch a device", "engine", "precision", RATE),
            "GFLOP/s": rounded(flops.median / 1e9) if (flops := taken.figures("flops")) else "",
            "of peak": f"{share.median:.0%}" if (share := taken.figures("peak_share")) else "",
        }
        for taken in shown
    ]
    return Section("Networks", (about, markdown(lines)))


def batches(results: Results) -> Section:
    """Samples/s against the batch on one device, of networks that ran at three batches or more."""
    shown = results.speeds(lambda row: row.devices == 1 and not row.fixed and results.is_usual(row))
    lines = [
        {
            **cells(taken, "network"),
            "machine": results.name(taken.row),
            "device": devices_of(taken.row),
            **cells(taken, "precision", "batch a device", RATE),
        }
        for group in alike(shown, "batch_per_device", "global_batch")
        if len(group) > 2
        for taken in group
    ]
    return Section("Batch sizes", ("On one device, through the whole input pipeline.", markdown(lines)))


def engines(results: Results) -> Section:
    """The same run with one engine and with another."""
    groups = alike(results.speeds(lambda row: row.devices == 1), "framework", "layout")
    lines = [line for group in groups for line in _side_by_side(results, group)]
    about = (
        "The same run with both engines: medians over the takes that are compared, or over all where none were in "
        "turn, and the first engine's speed over the other's. "
        f"{compare.VERDICT_RULE}."
    )
    return Section("Engines", (about, markdown(lines)))


def _side_by_side(results: Results, group: Sequence[Measurement]) -> list[dict[str, str]]:
    first = next((taken for taken in group if taken.row.run.framework == USUAL_ENGINE), None)
    if first is None:
        return []
    others = [taken for taken in group if taken.row.run.framework != USUAL_ENGINE]
    lines = []
    for other, words in zip(others, unlike(taken.row for taken in others)):
        pair = compare.in_turn(first, other)
        found = compare.compared(pair)
        lines.append(
            {
                **cells(first, "network"),
                "machine": results.name(first.row),
                **cells(first, "batch a device"),
                "precision": ", ".join(filter(None, [first.row.dtype, words])),
                **{taken.row.framework.split()[0]: rate_of(taken) for taken in pair or (first, other)},
                "ratio": f"{found.ratio:.2f}" if found else "",
                "different?": str(found or "not in turn"),
            }
        )
    return lines


def largest(results: Results) -> Section:
    """Of each network and device that ran out of memory at some batch, the largest that fitted."""
    alone = [record for record in results.records if record.run.devices == 1]

    def tried(record: Record) -> tuple[str, ...]:
        run = record.run
        fields = (record.infrastructure, run.model, run.dtype, framework(record))
        return (*fields, run.kind, record.hardware.describe(), run.layout, str(run.data.input_shape))

    lines = []
    for (machine, network, dtype, engine, *_), members in grouped(alone, tried).items():
        fits = [record.run.batch_per_device for record in members if record.outcome in DONE]
        beyond = [record.run.batch_per_device for record in members if record.outcome == OUT_OF_MEMORY]
        if beyond:
            most = f"{max(fits):,}" if fits else "none"
            line = {"machine": results.bold(machine), "network": network_label(network)}
            line.update({"engine": engine, "precision": dtype})
            lines.append({**line, "largest batch": most, "did not fit": f"{min(beyond):,}"})
    return Section("Largest batches", (markdown(lines),))
