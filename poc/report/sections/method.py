"""How it was measured: the rules, the machines, where the time went, and what did not run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from poc.records import timing
from poc.records.record import COMPLETED, SKIPPED, Record
from poc.report import compare
from poc.report.measurements import grouped
from poc.report.page import Results, Section
from poc.report.rows import BUSY
from poc.report.sections.rates import tell_apart
from poc.report.tables import cells, devices_and_exchange, markdown, network_and_data, network_label, rounded
from poc.studies.row import Row


def rules(results: Results) -> Section:
    """What every figure means."""
    lines = [
        "A window is a stretch of steps between two points where all work of the devices is drained; only there is the "
        "clock read. Nothing is waited for in between.",
        "A take is one run in processes of its own. Its samples/s are the median over its windows after warm-up, "
        f"waiting for data included. Warm-up: {timing.WARMUP_RULE}.",
        "Tables show the median over takes, with their range and number n. A recipe's takes are rounds over all of its "
        "runs, every other one backwards; repeats from before there were takes may lie hours apart.",
        f"{compare.VERDICT_RULE}. Windows of one run bear no verdict: they are "
        "correlated, and know nothing of what differs from run to run.",
        f"A take is disturbed where other processes and the hypervisor together took more than {BUSY:.0%} of the cores "
        "that the run could use. Disturbed takes count only where there are no others; a star says so.",
        "With several workers a window has the samples of all and the seconds of the slowest.",
        "Accuracy is over the whole test set, each image once, whatever the number of devices.",
        "Virtual devices are played in turn by a real one: gradients are summed before the update and batch statistics "
        "stay apart, so the accuracy is that of real devices; the throughput is not, and is in no table. In rows.csv "
        "and explorer.html it is that of the one real device, and the note says so.",
        "`cifar10` are the original images, `cifar10 (jpeg)` copies compressed with loss, on which the study's own "
        "script too stays some hundredths below what it printed (docs/design.md). `synthetic` is made-up data: good "
        "for speed.",
        "Dollars are the price of an hour for the share of a machine's devices that were in use.",
    ]
    return Section("Rules", ("\n".join(f"- {line}" for line in lines),))


def machines(results: Results) -> Section:
    """Each machine with its versions and the days of its runs."""

    def machine(record: Record) -> tuple[Any, ...]:
        hardware = record.hardware
        cards = tuple(Counter(gpu.name for gpu in hardware.gpus).items())
        return record.infrastructure, hardware.cpu, hardware.cores, hardware.driver, cards

    tried = [record for record in results.records if record.outcome != SKIPPED]
    lines = []
    for (infrastructure, cpu, cores, driver, cards), members in grouped(tried, machine).items():
        days = sorted({record.started[:10] for record in members})
        lines.append(
            {
                "machine": results.bold(infrastructure),
                "CPU": cpu,
                "cores": str(cores),
                "GPUs": ", ".join(f"{count}x {name}" for name, count in cards),
                "driver": driver,
                "commits": str(len({record.commit for record in members})),
                "runs": str(len(members)),
                "first": days[0],
                "last": days[-1],
            }
        )
    versions = {pair for record in results.records for pair in record.versions.items() if pair[0] != "system"}
    used = f"Versions: {', '.join(sorted(map(' '.join, versions)))}. Every record names its own, with its commit."
    return Section("Machines", (markdown(lines), used))


def time(results: Results) -> Section:
    """Shares of the wall time, medians over trainings of whole epochs of a machine and network."""

    def share(rows: Sequence[Row], *parts: str) -> str:
        seconds = [sum(getattr(row, f"{part}_seconds") for part in parts) for row in rows]
        return f"{statistics.median(part / row.wall_seconds for part, row in zip(seconds, rows)):.0%}"

    done = [row for row in results.full if row.outcome == COMPLETED and row.wall_seconds]
    whole = [row for row in done if row.run.whole_epochs and row.rest_seconds is not None]
    groups = grouped(whole, lambda row: (row.machine, row.model, row.workers))
    lines = [
        {
            "machine": results.bold(machine),
            "network": network_label(network),
            "workers": str(workers),
            "runs": str(len(runs)),
            "start": share(runs, "initialise"),
            "training": share(runs, "train"),
            "data": share(runs, "data"),
            "evaluation": share(runs, "evaluate"),
            "rest": share(runs, "warmup", "checkpoint", "rest"),
        }
        for (machine, network, workers), runs in groups.items()
        if len(runs) > 1
    ]
    about = (
        "Of the wall time, from the start of a run's process to its end; medians over trainings of whole epochs, "
        "two of them at least. Start: imports, data, "
        "network. Data: training stood still for the next batch. Rest: warm-up, checkpoints, and what no part claims."
    )
    return Section("Where the time went", (about, markdown(lines)))


def not_run(results: Results) -> Section:
    """Runs that were skipped, failed or diverged, those of one reason in one line."""
    groups = Counter(
        (record.infrastructure, record.outcome, record.reason)
        for record in results.records
        if record.outcome != COMPLETED
    )
    listed = [
        f"- {machine}, {runs} run{'s' * (runs > 1)} {outcome}: {reason}"
        for (machine, outcome, reason), runs in sorted(groups.items())
    ]
    return Section("Not run, failed or diverged", ("\n".join(listed),))


def memory(results: Results) -> Section:
    """The most memory and power that a network took on GPUs."""
    shown = results.speeds(lambda row: row.kind == "gpu")
    lines, measured = [], []
    for taken in shown:
        row = taken.row
        line = {"machine": results.name(row), "network": network_and_data(row), "devices": devices_and_exchange(row)}
        lines.append({**line, **cells(taken, "batch a device", "engine", "precision")})
        measured.append(
            {
                "device memory (GiB)": rounded(row.device_peak_bytes and row.device_peak_bytes / 2**30),
                "in use": f"{row.utilisation:.0%}" if row.utilisation is not None else "",
                "J a sample": rounded(row.joules_per_sample),
            }
        )
    tell_apart(lines, (taken.row for taken in shown), "network")
    lines = [{**line, **figures} for line, figures in zip(lines, measured)]
    return Section("What the GPUs did", (markdown(lines),))
