"""The first lines of a page (machine, software, data, dates, number of runs), and the notes at its end."""

from __future__ import annotations

import pandas as pd

from poc.records.record import COMPLETED, FAILED, INTERRUPTED, SETTLED, SKIPPED
from poc.records.row import MEASURED
from poc.report import markdown
from poc.report.results import Results, Subject
from poc.report.table import PAUSED

_NOTHING_MEASURED = "Nothing has been measured yet: `./run_all.sh --quick` takes one or two minutes."
_LISTED_NAMES = 3


def lines(results: Results) -> str:
    table = results.table
    rows = table[(table.origin == MEASURED) & (table.machine == results.machine)]
    if not len(rows):
        return _NOTHING_MEASURED
    last = rows.sort_values("started").iloc[-1]
    gpus = _listed(rows.hardware[~rows.hardware.str.startswith("CPU")])
    driver = last.driver and f"driver {_listed(rows.driver)}"
    processors = _listed(markdown.processors(rows), " or ")
    hardware = ", ".join(filter(None, [gpus, processors, driver]))
    name = f"{results.machine}: " if results.machine != last.hardware else ""
    ran = results.here(table)
    ran = ran[ran.outcome != SKIPPED]
    outcomes = ran.outcome.where(ran.outcome.isin(SETTLED), FAILED)
    outcomes = outcomes.where(ran.reason != INTERRUPTED, INTERRUPTED)
    counts = {outcome: (outcomes == outcome).sum() for outcome in (*SETTLED, FAILED, INTERRUPTED)}
    counts[SKIPPED] = sum(results.skipped.values())
    always = (COMPLETED, FAILED, SKIPPED)
    listed = [f"{count} {outcome}" for outcome, count in counts.items() if count or outcome in always]
    if paused := ((ran.length == PAUSED) & (ran.outcome == COMPLETED)).sum():
        listed[0] += f" ({paused} of them stages of searches)"
    if results.last_run and results.last_run.runs_left:
        listed.append(f"{results.last_run.runs_left} of the last command not done")
    days = sorted(ran.started.str[:10])
    dates = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    software = (
        f"**Measured with:** {_listed(ran.framework)}; {_listed(ran.dtype)}; data: {_listed(ran.dataset)}; "
        f"{dates}; commit {_listed(ran.commit.str[:7])}"
    )
    facts = [f"**Machine:** {name}{hardware}", software if len(ran) else _NOTHING_MEASURED]
    return "\n".join(f"- {fact}" for fact in [*facts, f"**Runs:** {', '.join(listed)}"])


def _listed(values: pd.Series[str], separator: str = ", ") -> str:
    names = [name for name in dict.fromkeys(values) if name]
    more = len(names) - _LISTED_NAMES
    return separator.join(names[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def notes(results: Results, subject: Subject) -> str:
    """Return what a reader has to know to trust the numbers of the page whose scorecard is that of `subject`."""
    rows = results.here(results.measured)
    applies = {
        "Samples/s: median over n repeats, each in fresh processes, with their range. A burst is a run that is cut "
        "short, after some seconds or a minute, to measure samples/s; it is never pooled with whole trainings.": True,
        "Published rows: the main study on MXNet 0.11 in 2017, one run each, as printed.": (
            len(results.published(subject)) > 0
        ),
        "Accuracy was measured on JPEG copies of CIFAR-10, on which the main study's own script also stays below what "
        "it printed; see the page on how it was measured.": (
            results.headline(subject).dataset.str.contains("jpeg").any()
        ),
        "Emulated devices: one device computed the micro-batches of all of them. The accuracy is that of real devices; "
        "their speed is in no table.": rows.emulated.any(),
        "Some GPUs lowered their clocks because of heat or power, and were slower: `poc show ID` names them.": (
            results.here(results.runs).note.str.contains("clocks reduced").any()
        ),
        '"noisy": in every repeat others took more than 5% of the cores, or had over 2 GiB on a GPU.': rows.noisy.any(),
        '"quick": a run of a few steps for a first look; run the recipe without `--quick` for a result.': (
            rows.quick.any()
        ),
    }
    return "\n".join(f"- {note}" for note, is_shown in applies.items() if is_shown)
