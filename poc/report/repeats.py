"""Repeats of one setting (docs/design.md): their summary, which may be compared, and speed-ups over one device."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel

from poc.records.record import COMPLETED, DIVERGED, DONE
from poc.records.row import MEASURED, STRONG, WEAK

MIN_REPEATS = 3  # repeats that each side needs for a significance test
CONFIDENCE = 0.95
INTERLEAVED = np.timedelta64(1, "h")  # at most, between the starts of two repeats: a shared machine has slower hours
SAME_WORK = 0.05  # wall times are compared only if the numbers of trained samples differ by at most this share
_SPEEDUPS = ["speedup_throughput", "speedup_wall", "speedup_without_sync"]
BATCH_OF = {WEAK: "batch_per_device", STRONG: "global_batch"}  # the batch that a scaling series keeps
# Columns that the rows of a series share; published rows have no workload, and share those of `_PUBLISHED`.
SERIES = ("workload", "framework", "layout", "length")
_PUBLISHED = ("study", "machine", "hardware", "model", "dataset", "input_shape", "dtype")
_MEDIANS = ["samples_per_second", "seconds_per_epoch", "wall_seconds", "dollars_per_run"]
_MEDIANS += ["mfu", "flops", "joules_per_sample", "data_wait"]


def some_or_all(rows: pd.DataFrame, mask: pd.Series[bool]) -> pd.DataFrame:
    """Return the rows for which the mask is true, or all if it is true for none."""
    return rows[mask] if mask.any() else rows


def clean(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop noisy repeats, unless all are."""
    return some_or_all(rows, ~rows.noisy)


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting: the columns of its latest repeat, with summaries of all its completed repeats.

    Times and speeds become medians over clean repeats, with `rate_low`, `rate_high` and `n` of the samples/s.
    `accuracy` and `accuracy_last4` become medians over seeds (the latest repeat of each), `seeds` is their number,
    `choices` the number of those whose search chose it, `diverged` that of seeds whose latest repeat diverged. `noisy`
    is true if no repeat was clean.
    """
    completed = table[(table.origin != MEASURED) | (table.outcome == COMPLETED)].sort_values("started", kind="stable")
    rows = completed.drop_duplicates("setting", keep="last").set_index("setting", drop=False)
    of_setting = completed.groupby("setting")
    clean_repeats = completed[~completed.noisy | of_setting.noisy.transform("all")].groupby("setting")
    by_seed = completed.drop_duplicates(["setting", "seed"], keep="last").groupby("setting")
    rows[_MEDIANS] = clean_repeats[_MEDIANS].median()
    rows[["accuracy", "accuracy_last4"]] = by_seed[["accuracy", "accuracy_last4"]].median()
    rates = clean_repeats.samples_per_second
    rows = rows.assign(rate_low=rates.min(), rate_high=rates.max(), n=rates.count(), seeds=by_seed.accuracy.count())
    rows["noisy"], rows["chosen"] = of_setting.noisy.all(), of_setting.chosen.any()
    rows["candidates"], rows["choices"] = of_setting.candidates.max(), by_seed.chosen.sum()
    ended = table[table.outcome.isin(DONE)].sort_values("started", kind="stable")
    latest = ended.drop_duplicates(["setting", "seed"], keep="last")
    diverged = latest[latest.outcome == DIVERGED].groupby("setting").size()
    rows["diverged"] = diverged.reindex(rows.index).fillna(0)
    # In the order of the table, whatever the order of the starts.
    return rows.loc[table.setting[table.setting.isin(rows.index)].drop_duplicates()].reset_index(drop=True)


def interleaved(rows: pd.DataFrame, partners: pd.DataFrame) -> pd.DataFrame:
    """Return the clean repeats that started within an hour of a clean one of `partners`; published rows all count."""
    rows, partners = clean(rows), clean(partners)
    if (partners.origin != MEASURED).any() or (rows.origin != MEASURED).any():
        return rows
    starts, partner_starts = (side.started.str[:19].to_numpy("datetime64[s]") for side in (rows, partners))
    return rows[(np.abs(starts[:, None] - partner_starts[None, :]) <= INTERLEAVED).any(axis=1)]


def pair(rows: pd.DataFrame, partners: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the repeats of both sides with samples/s that are interleaved with the other side."""
    rows, partners = rows[rows.samples_per_second.notna()], partners[partners.samples_per_second.notna()]
    return interleaved(rows, partners), interleaved(partners, rows)


def with_speed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose samples/s are known, and not contradicted by other figures of their source."""
    doubtful = rows.contradicts.str.contains(r"\b(?:samples_per_second|devices)\b")
    return rows[rows.samples_per_second.notna() & ~doubtful]


def series(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Return every scaling series as (weak or strong, rows on one device, rows on several).

    Rows of a series ran on real devices, are not quick, and differ only in the number of devices and in what does not
    matter for speed. Weak scaling keeps the batch per device, strong scaling the global batch. The rows on one device
    serve every kvstore and every learning rate.
    """
    rows = with_speed(table)
    rows = rows[(rows.devices > 0) & ~rows.emulated & ~rows.quick & rows.outcome.isin([COMPLETED, ""])]
    every_series = []
    for kind, batch in BATCH_OF.items():
        scaled = rows[rows[batch].notna() & ((rows.origin == MEASURED) | (rows.scaling == kind))]
        published = [scaled[name].where(scaled.origin != MEASURED, "") for name in _PUBLISHED]
        for _, group in scaled.groupby([*SERIES, *published, batch], sort=False):
            single, multiple = group[group.devices == 1], group[group.devices > 1]
            for _, same in multiple.groupby(["kvstore", "kind", "straggler"], sort=False, dropna=False):
                if len(single):
                    every_series.append((kind, single, same.sort_values("devices", kind="stable")))
    return every_series


def add_speedups(table: pd.DataFrame) -> None:
    """Fill in speed-ups, efficiencies and the kind of scaling where a source prints none; weak scaling comes first."""
    for kind, single, multiple in reversed(series(table)):
        for index in multiple.index:
            row = multiple.loc[[index]]
            if not len(same_hour := interleaved(single, row)):
                continue
            table.loc[[*single.index, index], "scaling"] = kind
            if table.at[index, "origin"] == MEASURED:
                table.loc[index, _SPEEDUPS] = math.nan  # of the other kind of scaling
            for name, value in _speedups(same_hour, row).items():
                if np.isnan(table.at[index, name]):  # A printed one stays.
                    table.at[index, name] = value
    for name in ("throughput", "wall"):
        missing = table[f"efficiency_{name}"].isna() & (table.devices > 0)
        table.loc[missing, f"efficiency_{name}"] = (table[f"speedup_{name}"] / table.devices)[missing]


def _speedups(single: pd.DataFrame, row: pd.DataFrame) -> dict[str, float]:
    """Return the speed-ups of a row over rows on one device."""
    values = {"speedup_throughput": row.samples_per_second.iloc[0] * (1 / single.samples_per_second).mean()}
    samples = row.samples_trained.iloc[0]
    if ((single.samples_trained - samples).abs() <= SAME_WORK * samples).all():
        seconds_per_sample = (single.wall_seconds / single.samples_trained).mean()
        values["speedup_wall"] = seconds_per_sample * samples / row.wall_seconds.iloc[0]
    seconds = [side.train_seconds_per_5120 + side.communication_seconds_per_5120.fillna(0.0) for side in (single, row)]
    values["speedup_without_sync"] = seconds[0].mean() / seconds[1].iloc[0]
    return values


def curve(text: str) -> dict[float, float]:
    """Return the values by epoch in `accuracy_by_epoch` or `seconds_by_epoch`."""
    return {float(epoch): float(value) for epoch, value in (pair.split(":") for pair in text.split())}


def seconds_to(target: float, table: pd.DataFrame) -> pd.Series[float]:
    """Return each row's seconds of training to the end of the first epoch with the accuracy; NaN without one.

    A published row has those of its whole training, an upper bound, if the accuracy at its end is high enough.
    """
    seconds = (table.epochs * table.seconds_per_epoch).where(table.accuracy >= target)
    measured = table[table.origin == MEASURED]
    for index, accuracies, ends in zip(measured.index, measured.accuracy_by_epoch, measured.seconds_by_epoch):
        epoch = next((epoch for epoch, accuracy in curve(accuracies).items() if accuracy >= target), math.nan)
        seconds[index] = curve(ends).get(epoch, math.nan)
    return seconds


def time_ratio(first: pd.DataFrame, second: pd.DataFrame) -> tuple[float, float, float] | None:
    """Return the ratio of the `seconds_to_target` of two settings, and the ends of its 95% interval.

    Runs with the same seed that started within an hour are a pair; a paired t-test of the logarithms gives the
    interval. None with fewer than MIN_REPEATS pairs.
    """
    pairs = first.merge(second, on="seed", suffixes=("", "_second"))
    starts = [pairs[name].str[:19].astype("datetime64[s]") for name in ("started", "started_second")]
    pairs = pairs[(starts[0] - starts[1]).abs() <= INTERLEAVED]
    if len(pairs) < MIN_REPEATS:
        return None
    logarithms = [np.log(pairs[name]) for name in ("seconds_to_target", "seconds_to_target_second")]
    mean = (logarithms[0] - logarithms[1]).mean()
    low, high = np.nan_to_num(ttest_rel(*logarithms).confidence_interval(CONFIDENCE), nan=mean)  # all ratios are equal
    return math.exp(mean), math.exp(low), math.exp(high)
