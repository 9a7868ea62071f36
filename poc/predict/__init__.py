"""Throughput on more devices than were measured: what published series teach, and how well it did on those left out.

Working it out takes minutes, so what came of it is kept in learnt.json; `poc predict --save` works it out anew.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from poc.config import NoSync
from poc.config.datasets import DataId
from poc.config.run import NO_MATTER_FOR_SPEED, Run
from poc.predict import trial
from poc.predict.limits import Apart
from poc.predict.quantiles import FARTHEST, Learnt, learn, splits
from poc.predict.series import Point, published
from poc.predict.trial import Score
from poc.published import Study
from poc.records.record import COMPLETED, Forecast, Record
from poc.records.row import STRONG, WEAK
from poc.records.timing import throughput
from poc.values import UserError, from_plain, to_plain, value

FILE = Path(__file__).with_name("learnt.json")
NINE_TENTHS = 1.645
"""Standard deviations on either side of the mean that hold 90% of a normal distribution."""


@value
class Kept:
    """What learnt.json holds."""

    learnt: Learnt
    by_study: tuple[Score, ...]
    """Leaving one study out, of every way to predict: all points."""
    weak_by_study: tuple[Score, ...]
    """The same, without series of a fixed total batch."""
    by_series: tuple[Score, ...]
    """Leaving one series out: all points."""
    series: int
    studies: int


@functools.lru_cache(maxsize=1)
def kept() -> Kept:
    """What was learnt from the published series that are here."""
    return from_plain(Kept, json.loads(FILE.read_text(encoding="utf-8")))


def save() -> None:
    """Works everything out again, in minutes, and writes learnt.json."""
    series = published()
    left_out = trial.by_study(series)
    weak = {name: [one for one in found if one.series.scaling != STRONG] for name, found in left_out.items()}
    scores: dict[str, Any] = {
        name: tuple(trial.score(way, found) for way, found in of.items())
        for name, of in (("by_study", left_out), ("weak_by_study", weak), ("by_series", trial.by_series(series)))
    }
    made = Kept(learnt=learn(series), series=len(series), studies=len({one.study for one in series}), **scores)
    FILE.write_text(json.dumps(to_plain(made), indent=1) + "\n", encoding="utf-8")


def forecast(run: Run, records: Sequence[Record]) -> Forecast | None:
    """Of the throughput of `run`, from that on fewer devices, a quarter at least; None where that was not measured.

    `records` are this machine's, oldest first. They count where their runs are the same but for the devices and, on one
    device, for the exchange; with the same batch a device or, where there are none, the same total batch. The last take
    on each number of devices counts: a machine that is shared is as fast as it was lately. Where one with the same
    batch a device was taken apart, its parts bound what is said. By how much takes differ on this machine, the one that
    was measured and the one to come, widens the interval of what was learnt, as independent errors of the logarithm.
    """
    if not run.synchronises or isinstance(run.kvstore, NoSync) or run.shares_threads:
        return None
    besides = ("devices", "workers", "kvstore", "cores_per_worker", *NO_MATTER_FOR_SPEED)
    alike: dict[str, dict[int, float]] = {WEAK: {}, STRONG: {}}
    apart: dict[int, Apart] = {}
    for record in records:
        past, speed = record.run, throughput(record.timed)
        if (
            record.outcome != COMPLETED
            or speed is None
            or past.emulated
            or not run.devices > past.devices >= run.devices / FARTHEST
        ):
            continue
        if _cores(past) != _cores(run) or (past.devices > 1 and past.kvstore_label != run.kvstore_label):
            continue
        for kind, grown in ((WEAK, "global_batch"), (STRONG, "batch_per_device")):
            if past.fingerprint(grown, *besides) == run.fingerprint(grown, *besides):
                alike[kind][past.devices] = speed.median
                if record.detail and kind == WEAK:
                    apart[past.devices] = Apart(run=past, machine=record.hardware, step=record.detail)
    for kind, speeds in alike.items():
        if speeds:
            points = [Point(devices=count, rate=found) for count, found in sorted(speeds.items())]
            (made,) = kept().learnt.predict(points, [Point(devices=run.devices, rate=0.0)], kind)
            made, limit = apart[max(apart)].within(made, run.workers) if apart and kind == WEAK else (made, "")
            off = NINE_TENTHS * math.sqrt(2) * between_takes(records)
            lower, upper = (math.exp(math.hypot(math.log(made.rate / end), off)) for end in (made.low, made.high))
            interval = {"low": made.rate / lower, "high": made.rate * upper}
            return Forecast(rate=made.rate, **interval, devices=points[-1].devices, limit=limit)
    return None


def between_takes(records: Sequence[Record]) -> float:
    """The standard deviation of the logarithm of samples/s between takes of one run, over all runs of a machine.

    A machine that is shared is faster at one hour than at the next, which no short run can see.
    """
    takes: dict[tuple[str, DataId], list[float]] = {}
    for record in records:
        speed = throughput(record.timed)
        if speed and record.outcome == COMPLETED and not record.run.quick:
            takes.setdefault((record.run.id, record.data_id), []).append(math.log(speed.median))
    several = [logs for logs in takes.values() if len(logs) > 1]
    freedom = sum(len(logs) - 1 for logs in several)
    return math.sqrt(sum(statistics.variance(logs) * (len(logs) - 1) for logs in several) / freedom) if freedom else 0.0


def _cores(run: Run) -> tuple[str, float | None]:
    """What a device is, as far as the run says: of a CPU's, how many cores it has of its own."""
    return run.kind, run.cores_per_worker and run.cores_per_worker * run.workers / run.devices


ASSUMED = (
    "Assumptions: the batch per device (or the global batch) and the number of hosts are as given; at most four times "
    "the devices measured; what limits the speed shows already, or appears as it did in the published series."
)


def in_words(own: Sequence[Study]) -> str:
    """How well predictions did on series that were left out: of the studies here, or of a user's `own`.

    Raises UserError where no series of these has three device counts.
    """
    if not own:
        found = kept()
        tables = (
            ("Leave one study out, all series", found.by_study),
            ("Leave one study out, without series of a fixed global batch", found.weak_by_study),
            ("Leave one series out, all series", found.by_series),
        )
        about = f"{found.series} published series of {found.studies} studies with at least three device counts."
        said = [about, *(f"{title}:\n{_table(trial.table(scores))}" for title, scores in tables)]
        return "\n\n".join([*said, ASSUMED])
    series = published(own)
    names = [study.name for study in own]
    if not any(one.study in names and splits(one) for one in series):
        raise UserError(
            f"--study: {', '.join(names)} has no series to predict; it needs samples_per_second of one model on "
            f"at least three device counts, all else equal, each at most {FARTHEST} times the previous one"
        )
    left_out = trial.by_study(series, names)
    lines = [
        {
            "series": one.series.label,
            "measured": ", ".join(f"{point.devices}" for point in one.measured),
            "devices": f"{one.point.devices}",
            "actual": f"{one.point.rate:,.4g}",
            "predicted": f"{one.made.rate:,.4g}",
            "90%": f"{one.made.low:,.4g} to {one.made.high:,.4g}",
            "error": f"{(one.made.rate / one.point.rate - 1):+.1%}",
        }
        for one in left_out[trial.MODEL]
    ]
    scores = [trial.score(name, found) for name, found in left_out.items()]
    return f"{_table(lines)}\n\nComparison with baselines:\n{_table(trial.table(scores))}\n\n{ASSUMED}"


def _table(lines: Sequence[dict[str, str]]) -> str:
    return tabulate(lines, headers="keys", disable_numparse=True)
