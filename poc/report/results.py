"""The data of the pages: the table, one row per setting, and the choices that all sections share."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from poc.host.hardware import one_host
from poc.published import MAIN_BATCH, MAIN_EPOCHS, MAIN_MODEL, Study
from poc.records.last_run import LastRun, by_reason
from poc.records.record import DIVERGED, DONE, SKIPPED
from poc.records.row import MEASURED
from poc.report import markdown, repeats
from poc.report.table import BURST, TRAINING

TARGET = 0.75  # accuracy whose time and cost are shown unless the user sets another
SYNCHRONOUS = ("", "device", "dist_sync", "dist_device_sync", "nccl", "horovod", "local")
"""Kvstores of ordinary data-parallel training, the preferred first; "none" is only an upper bound."""
_SERVERS = r", \d+ servers$"  # how many of them add up the gradients changes no sum
_DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "synthetic": "synthetic images"}
_HEADLINE_COLUMNS = ["hardware", "kind", "framework", "dtype", "layout", "training_recipe", "dataset", "input_shape"]
_HEADLINE_COLUMNS += ["options", "environment", "cpu", "cores"]


class Subject(NamedTuple):
    """A model on a data set, for which the sections of results.md are made."""

    model: str
    dataset: str  # its first word: "cifar10", "synthetic" or another

    @property
    def label(self) -> str:
        return f"{markdown.model(self.model).removesuffix(' (CIFAR)')} on {_DATASETS.get(self.dataset, self.dataset)}"

    @property
    def is_main(self) -> bool:
        """True for the main study's model on its images, or on synthetic ones, which serve for speed."""
        return self.model == MAIN_MODEL and self.dataset in ("cifar10", "synthetic")

    @property
    def figure(self) -> str:
        return self.model if self.dataset == "cifar10" else f"{self.model}_{self.dataset}"


@dataclasses.dataclass(frozen=True)
class Results:
    """All that a page is made from."""

    table: pd.DataFrame
    studies: Sequence[Study] = ()
    machine: str = ""  # the machine that the page is about; empty if nothing was measured
    target: float = TARGET
    last_run: LastRun | None = None

    @functools.cached_property
    def settings(self) -> pd.DataFrame:
        """One row per setting (`repeats.summarize`), with the median time and cost to the target.

        They are medians over `timed_seeds`, and missing if a seed did not reach it, or diverged before. A published row
        has those of its whole training, an upper bound.
        """
        seconds = self.times_to(self.target).groupby("setting").seconds_to_target
        settings = repeats.summarize(self.table)
        settings["seconds_to_target"] = settings.setting.map(seconds.agg(lambda values: values.median(skipna=False)))
        settings["timed_seeds"] = settings.setting.map(seconds.count())
        return settings.assign(dollars_to_target=settings.seconds_to_target / 3600 * settings.dollars_per_hour)

    def times_to(self, target: float) -> pd.DataFrame:
        """Return each seed's latest clean repeat of a setting, with its `seconds_to_target`.

        A seed without a clean one counts if there are no others, or if it did not reach the target.
        """
        table = self.table.assign(seconds_to_target=repeats.seconds_to(target, self.table))
        ended = table[(table.origin != MEASURED) | table.outcome.isin(DONE)]
        ended = ended.sort_values(["noisy", "started"], ascending=[False, True], kind="stable")
        ended = ended.drop_duplicates(["setting", "seed"], keep="last")
        all_noisy = ended.groupby("setting").noisy.transform("all")
        return ended[~ended.noisy | all_noisy | ended.seconds_to_target.isna()]

    @functools.cached_property
    def measured(self) -> pd.DataFrame:
        """Measured settings, with the texts of `_presented`."""
        return self._presented(self.settings)

    @functools.cached_property
    def runs(self) -> pd.DataFrame:
        """Measured rows of the table, with the texts of `_presented`; each is one run, and its cells have no n."""
        return self._presented(self.table.assign(seeds=0))

    @property
    def timed(self) -> pd.DataFrame:
        """Measured settings with samples/s on real devices, without quick runs; noisy ones last, most repeats first."""
        rows = self.measured
        rows = rows[rows.samples_per_second.notna() & ~rows.emulated & ~rows.quick]
        return rows.sort_values(["elsewhere", "noisy", "n"], ascending=[True, True, False], kind="stable")

    def _presented(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the measured rows, those of this machine first, with texts for cells.

        `machine_cell` is empty if only one machine was measured; `recipe_cell` is "baseline" or the tuned recipe;
        `family` is the first word of the data set.
        """
        rows = rows[rows.origin == MEASURED]
        machines = self.table[self.table.origin == MEASURED].machine.nunique()
        rows = rows.assign(
            elsewhere=rows.machine != self.machine,
            machine_cell=rows.machine.map(self.bold) if machines > 1 else "",
            recipe_cell=rows.training_recipe.mask(rows.baseline, "baseline"),
            family=rows.dataset.str.split(" ").str[0],
        )
        return rows.sort_values("elsewhere", kind="stable")

    def bold(self, machine: str) -> str:
        """Return the name of a measured machine, in bold if the page is about it."""
        return f"**{machine}**" if machine == self.machine else machine

    def published(self, subject: Subject) -> pd.DataFrame:
        """Rows of the main study of this model, if they are of the same images or the subject's are synthetic."""
        name = self.studies[0].name if self.studies else ""
        rows = self.settings[(self.settings.origin != MEASURED) & (self.settings.study == name)]
        same_images = (rows.dataset == subject.dataset) | (subject.dataset == "synthetic")
        return rows[(rows.model == subject.model) & same_images]

    def here(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Keep the measured rows of this machine, alone or as one of several hosts."""
        names = rows.machine.map(one_host)
        return rows[(rows.origin == MEASURED) & ((names == self.machine) | (rows.machine == self.machine))]

    @property
    def is_of_cpu(self) -> bool:
        """True if something ran on this machine, and nothing on a GPU."""
        rows = self.runs[(self.runs.machine == self.machine) & (self.runs.outcome != SKIPPED)]
        return len(rows) > 0 and bool((rows.kind == "cpu").all())

    @property
    def skipped(self) -> dict[str, int]:
        """Number of skipped runs by reason: those of the last `run` command if known, else all on this machine."""
        rows = self.table[(self.table.outcome == SKIPPED) & (self.table.machine == self.machine)]
        return self.last_run.skipped if self.last_run else by_reason(rows.reason)

    def subjects(self) -> list[Subject]:
        """Models and data sets of this machine: the main study's model first, then the latest.

        Models with only fixed batches are left out, and those with only quick or tuning runs if there are others. If
        nothing was completed, they are those of the runs that were tried.
        """
        completed, started = (each[(each.machine == self.machine) & ~each.fixed] for each in (self.measured, self.runs))
        rows = completed if len(completed) else started[started.outcome != SKIPPED]
        for left_out in (rows.quick, rows.accuracy_on == "validation split"):
            rows = repeats.some_or_all(rows, ~left_out[rows.index])
        ages = (-rows.started.rank()).groupby([rows.model, rows.family]).min()

        def rank(key: tuple[str, str]) -> tuple[Any, ...]:
            return not Subject(*key).is_main, key[1] == "synthetic", ages[key], key

        return [Subject(*key) for key in sorted(ages.index, key=rank)]

    def of(self, subject: Subject, machine: str | None = None) -> pd.DataFrame:
        """Settings of a subject on a machine (default: this one) without tuning runs, fixed batches and stragglers."""
        rows = self.measured[self.measured.machine == (self.machine if machine is None else machine)]
        rows = rows[(rows.model == subject.model) & (rows.family == subject.dataset) & ~rows.fixed]
        return rows[(rows.accuracy_on != "validation split") & (rows.straggler == 0)]

    @functools.cached_property
    def headline(self) -> Callable[..., pd.DataFrame]:
        """Cache `_headline`, which every section needs."""
        return functools.cache(self._headline)

    def _headline(self, subject: Subject, machine: str | None = None) -> pd.DataFrame:
        """Settings of the subject that are compared with published rows.

        They share GPUs, CPU and cores, device kind, framework and its options, precision, layout, recipe and images:
        those on GPUs before those on CPUs, then the group that reached most devices, has most settings, is float32, is
        MXNet, and is the latest. Of another machine those are preferred that are like this one's. Only synchronous
        training counts, and only the baseline recipe, except for another model that was not trained with it.
        """
        rows, this = self.of(subject, machine), pd.DataFrame()
        if machine not in (None, self.machine):
            this = self.headline(subject)
        cpu_contexts = (rows.kind == "cpu") & (rows.workers < rows.devices) & ~rows.emulated  # they share their threads
        rows = rows[is_synchronous(rows) & ~cpu_contexts]
        if subject.is_main or rows.baseline.any():
            rows = rows[rows.baseline]

        def rank(group: pd.DataFrame) -> tuple[Any, ...]:
            first, real_devices = group.iloc[0], group.devices.mask(group.emulated, 0).max()
            is_alike = len(this) > 0 and _comparable(first) == _comparable(this.iloc[0])
            counts = is_alike, first.kind == "gpu", real_devices, (~group.quick).sum()
            return *counts, first["dtype"] == "float32", first.framework.startswith("MXNet"), group.started.max()

        groups = rows.groupby(_HEADLINE_COLUMNS, sort=False)
        return max((group for _, group in groups), key=rank, default=rows)

    def diverged(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the whole trainings that diverged, of the model, machine and conditions of headline settings.

        Those of seeds that later came to their end are left out.
        """
        runs = self.runs[self.runs.outcome.isin(DONE)].sort_values("started", kind="stable")
        runs = runs.drop_duplicates(["setting", "seed"], keep="last")
        runs = runs[(runs.outcome == DIVERGED) & (runs.length == TRAINING) & ~runs.quick]
        runs = runs[runs.target_accuracy.isna() & (runs.accuracy_on != "validation split")]
        runs = runs[is_synchronous(runs) & (runs.straggler == 0) & ~runs.fixed]
        return runs.merge(rows[["machine", "model", *_HEADLINE_COLUMNS]].drop_duplicates())

    def recipe(self, subject: Subject) -> str:
        """Describe the training recipe of the headline settings."""
        rows = self.headline(subject)
        tuned = rows.training_recipe[~rows.baseline]
        return f"training recipe: {tuned.iloc[0]}" if len(tuned) else "baseline recipe"

    def reference_batch(self, subject: Subject) -> int:
        """Return the batch per device of the scorecard: the main study's, or the smallest if that was not measured."""
        batches = self.headline(subject).batch_per_device.dropna()
        return MAIN_BATCH if subject.is_main or batches.empty or (batches == MAIN_BATCH).any() else int(batches.min())

    def published_machines(self, subject: Subject) -> list[tuple[str, pd.DataFrame]]:
        """GPU machines of the main study with rows of the subject, in its order, by a short name with the year."""
        rows = self.published(subject)
        rows = rows[rows.devices > 0]
        year = self.studies[0].year if self.studies else ""
        groups = [group for _, group in rows.groupby("hardware", sort=False)]
        return [(f"{markdown.short_machine(group.iloc[0])} ({year})", group) for group in groups]

    def machines(self, subject: Subject) -> list[tuple[str, pd.DataFrame]]:
        """Headline settings of each measured machine, then the published machines, by name."""
        names = self.measured.machine.unique()
        measured = [(self.bold(name), self.headline(subject, name)) for name in names]
        return measured + self.published_machines(subject)


def _comparable(row: pd.Series[Any]) -> tuple[str, ...]:
    """Return framework without version, precision, training recipe and images of a setting."""
    # An attribute `dtype` would be the series' own.
    return row["framework"].split()[0], *(row[name] for name in ("dtype", "training_recipe", "dataset"))


def trainings(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep whole trainings with an accuracy on real images."""
    is_training = (rows.length == TRAINING) & ~rows.quick
    return rows[is_training & rows.accuracy.notna() & (rows.dataset != "synthetic")]


def one_per_rate(rows: pd.DataFrame, reference: int) -> pd.DataFrame:
    """Keep one of the settings that share global batch, learning rate and schedule; the best of them come last.

    It is the one that a search chose, else the one with the `reference` batch per device, else that with most seeds,
    else the latest. The best one has the median of the rates that searches of several seeds chose at a global batch, or
    was chosen by a search: not the best one on the test set. Else no seed diverged, else it is the most accurate.
    """
    rows = rows.assign(at_reference=rows.batch_per_device == reference)
    rows = rows.sort_values(["chosen", "at_reference", "seeds", "started"], kind="stable")
    rows = rows.drop_duplicates(["global_batch", "lr", "schedule"], keep="last")
    each = rows.loc[rows.index.repeat(rows.choices)].groupby("global_batch").lr
    is_middle = rows.lr == rows.global_batch.map(each.quantile(interpolation="lower"))
    rows = rows.assign(is_middle=is_middle, all_ended=rows.diverged == 0)
    return rows.sort_values(["is_middle", "chosen", "all_ended", "accuracy"], kind="stable")


def same_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep trainings (`trainings`) of 12 epochs, the main study's, or else of the most frequent number of epochs."""
    rows = trainings(rows)
    return rows[rows.epochs.isin([MAIN_EPOCHS] if (rows.epochs == MAIN_EPOCHS).any() else rows.epochs.mode()[:1])]


def is_synchronous(rows: pd.DataFrame) -> pd.Series[bool]:
    """Mark the rows whose kvstore is one of SYNCHRONOUS."""
    return rows.kvstore.str.replace(_SERVERS, "", regex=True).isin(SYNCHRONOUS)


def preferred(rows: pd.DataFrame, length: str = BURST) -> Any | None:
    """Return one setting for its speed, or None: not quick, of the given length class, clean, with most repeats."""
    timed = repeats.with_speed(rows)
    if not len(timed):
        return None
    kvstores = [SYNCHRONOUS.index(name) if name in SYNCHRONOUS else len(SYNCHRONOUS) for name in timed.kvstore]
    age = -timed.started.rank()  # the latest of equals
    quality = timed.quick, timed.length != length, timed.noisy, timed.fewer_threads > 0
    ranks = zip(*quality, kvstores, -timed.n, timed.lr.fillna(math.inf), age)
    return timed.iloc[min(enumerate(ranks), key=lambda entry: entry[1])[0]]
