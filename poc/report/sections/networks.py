"""Networks, batches and engines on one device: how fast, and how near to what the device can do."""

from __future__ import annotations

from collections.abc import Sequence

from poc.records.record import COMPLETED, OUT_OF_MEMORY, Record
from poc.report import compare
from poc.report.measurements import NO_MATTER_FOR_SPEED, Measurement, same_machine
from poc.report.page import Results, Section
from poc.report.rows import FLOPS_RULE, USUAL_ENGINE
from poc.report.sections.exchanges import verdict_in_words
from poc.report.tables import devices_of, markdown, network_label, ranged, rate_of, rounded, table
from poc.studies.row import Row


def section(results: Results) -> Section:
    """Every network on one fixed batch."""
    shown = results.speeds(lambda row: row.measured and row.fixed and row.devices == 1 and row.cores_per_worker is None)
    if not shown:
        return Section("", ())
    about = (
        "One device, one fixed batch in its memory, so without an input pipeline. GFLOP/s: the arithmetic of training, "
        f"{FLOPS_RULE}. Of peak: that over a product of large square matrices in the same precision, the best "
        "of all takes on that machine."
    )
    return Section(
        "Networks",
        (
            about,
            table(
                shown,
                "network machine batch precision rate gflops peak",
                machine=("machine", lambda taken: results.name(taken.row)),
                gflops=("GFLOP/s", lambda taken: rounded((taken.row.flops or 0) / 1e9)),
                peak=("of peak", lambda taken: "" if not taken.row.peak_share else f"{taken.row.peak_share:.0%}"),
            ),
        ),
    )


def batches(results: Results) -> Section:
    """Samples/s against the batch on one device, of networks that ran at three batches or more."""

    def fits(row: Row) -> bool:
        return bool(row.measured and row.devices == 1 and not row.fixed and row.run.engine == USUAL_ENGINE)

    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for taken in results.speeds(fits):
        besides = ("batch_per_device", "total_batch", *NO_MATTER_FOR_SPEED)
        groups.setdefault((*same_machine(taken.row), taken.row.run.key(*besides)), []).append(taken)
    lines = [
        {
            "network": network_label(taken.row.network),
            "machine": results.name(taken.row),
            "device": devices_of(taken.row),
            "precision": taken.row.dtype,
            "batch": f"{taken.row.batch_per_device}",
            "samples/s (range, takes)": rate_of(taken),
        }
        for group in groups.values()
        if len(group) > 2
        for taken in group
    ]
    return Section(
        "Batch sizes", ("On one device, through the whole input pipeline.", markdown(lines)) if lines else ()
    )


def engines(results: Results) -> Section:
    """The same run with one engine and with another."""
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for taken in results.speeds(lambda row: row.measured and row.devices == 1):
        row = taken.row
        key = (row.infrastructure, row.hardware, row.dataset, row.run.key("engine", "layout", *NO_MATTER_FOR_SPEED))
        groups.setdefault(key, []).append(taken)
    lines = [line for group in groups.values() for line in _side_by_side(results, group)]
    if not lines:
        return Section("", ())
    about = (
        "The same run with both engines: medians over takes, and the first engine's samples/s over the other's. "
        f"{compare.VERDICT_RULE[0].upper()}{compare.VERDICT_RULE[1:]}."
    )
    return Section("Engines", (about, markdown(lines)))


def _side_by_side(results: Results, group: Sequence[Measurement]) -> list[dict[str, str]]:
    first = next((taken for taken in group if taken.row.run.engine == USUAL_ENGINE), None)
    if first is None or first.rate is None:
        return []
    lines = []
    for other in group:
        if other.row.run.engine == USUAL_ENGINE or other.rate is None:
            continue
        found = compare.verdict(first.rate.values, other.rate.values)
        row = first.row
        lines.append(
            {
                "network": network_label(row.network),
                "machine": results.name(row),
                "batch": f"{row.batch_per_device}",
                "precision": row.dtype,
                row.framework.split()[0]: ranged(first.rate),
                other.row.framework.split()[0]: ranged(other.rate),
                "ratio": f"{found.ratio:.2f}",
                "different?": verdict_in_words(found),
            }
        )
    return lines


def largest(results: Results) -> Section:
    """Of each network and device that ran out of memory at some batch, the largest that fitted."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in results.records:
        run = record.run
        if run.devices == 1 and record.outcome in (COMPLETED, OUT_OF_MEMORY):
            groups.setdefault((record.infrastructure, network_label(run.model), run.dtype, run.kind), []).append(record)
    lines = []
    for (machine, network, dtype, _), members in groups.items():
        fits = [record.run.batch_per_device for record in members if record.outcome == COMPLETED]
        beyond = [record.run.batch_per_device for record in members if record.outcome == OUT_OF_MEMORY]
        if beyond:
            most = f"{max(fits):,}" if fits else "none"
            line = {"machine": machine, "network": network, "precision": dtype, "largest batch": most}
            lines.append({**line, "did not fit": f"{min(beyond):,}"})
    return Section("Largest batches", (markdown(lines),) if lines else ())
