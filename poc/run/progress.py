"""Text for the person who watches runs: the progress bar on a terminal, and a line for each result."""

from collections.abc import Collection, Iterable
from typing import Any

from tqdm import tqdm

from poc.config.fields import labels
from poc.config.run import WARMUP_STEPS, Run
from poc.records.record import COMPLETED, Record
from poc.records.timing import throughput
from poc.values import counted

_FORMAT = "{desc}, {remaining} left {percentage:3.0f}%|{bar}|"
# Not of interest in a line, or part of each label.
_OMITTED = (
    *("learning_rate", "grows_from", "lr_rule", "emulated", "accumulate", "window", "evaluate", "seconds"),
    *("target_accuracy", "pause_after"),
)


def label(run: Run, details: Collection[str] = ()) -> str:
    """Name a run in its user's terms: "resnet50 batch 128 x 4 GPUs lr 0.2".

    `details` are further fields to name if they are not at their default.
    """
    devices = counted(run.devices, "emulated device" if run.emulated else run.kind.upper())
    model = run.model.removeprefix("cifar_").removesuffix("_v2") if run.model.startswith("cifar_") else run.model
    batch = f"{run.batch_per_device} x {devices}" + (f" accumulate {run.accumulate}" if run.accumulate > 1 else "")
    rate = f"{run.grows_from:g} to {run.learning_rate:g}" if run.is_range_test else f"{run.learning_rate:g}"
    parts = [f"{model} batch {batch} lr {rate}"]
    parts += [word for name, word in labels(run).items() if name in details]
    if run.pause_after:
        parts.append(f"to epoch {run.pause_after} of {run.epochs}")
    return ", ".join(parts)


def varied(runs: Iterable[Run]) -> set[str]:
    """Return the fields in which these runs differ, for `label`, without those that it always names."""
    described = [labels(run) for run in runs]
    names = {name for fields in described for name in fields} - {*_OMITTED}
    return {name for name in names if len({fields.get(name) for fields in described}) > 1}


def result(record: Record, title: str) -> str:
    """Return one line with the result of the run that `title` names, or why there is none."""
    if record.outcome != COMPLETED:
        return f"{title}: {record.outcome}" + (f": {record.reason}" if record.reason else "")
    speed = throughput(record.timed)
    speed_text = "too few steps to time" if speed is None else f"{_rounded(speed.median)} samples/s"
    figures = [] if record.run.pause_after else [speed_text]
    if record.evaluations:
        chance = " (no better than chance)" if record.at_chance else ""
        where = " on the validation split" if record.run.uses_validation_split else ""
        figures.append(f"accuracy {record.evaluations[-1].accuracy:.3f}{where}{chance}")
    has_epochs = record.run.whole_epochs or record.run.pause_after
    length = counted(record.run.last_epoch, "epoch") if has_epochs else counted(record.steps, "step")
    wall = "" if record.wall is None else f", {duration(record.wall)}"
    return f"{title}: {', '.join(figures)} ({length}{wall})"


def duration(seconds: float) -> str:
    """Return so many seconds for a person to read: "45 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _rounded(rate: float) -> str:
    """Return samples/s with as many digits as a reader compares."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


class Progress:
    """Show the progress of one run as a bar; tqdm hides it if there is no terminal."""

    def __init__(self, run: Run, title: str, *, first_step: int = 0, shown: bool = True) -> None:
        self._run = run
        self._title = title
        timed = run.seconds is not None
        self._uncounted_steps = WARMUP_STEPS if timed else 0  # windows that begin in them are no part of the seconds
        self._unit = "seconds" if timed else "steps"
        self._bar = tqdm(
            total=run.seconds if timed else run.last_step,
            initial=0 if timed else first_step,
            desc=title,
            bar_format=_FORMAT,
            leave=False,
            dynamic_ncols=True,
            disable=None if shown else True,
        )

    def show(self, window: dict[str, Any]) -> None:
        """Show the position after a worker's window, and its speed: every worker has as many samples."""
        position = f"epoch {window['epoch']}/{self._run.last_epoch}"
        speed = _rounded(window["samples"] * self._run.workers / window["seconds"])
        self._bar.set_description_str(f"{self._title}: {position}, {speed} samples/s", refresh=False)
        amount = 0 if self._uncounted_steps > 0 else window[self._unit]
        self._bar.update(min(amount, self._bar.total - self._bar.n))
        self._uncounted_steps -= window["steps"]

    def close(self) -> None:
        self._bar.close()
