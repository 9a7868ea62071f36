"""Time and cost to an accuracy, from the evaluations of whole trainings on real devices."""

import math
from typing import Any

import pandas as pd

from poc.records.row import MEASURED
from poc.report import markdown, repeats
from poc.report.markdown import Block, section
from poc.report.results import Results, Subject, is_synchronous, trainings


def best(rows: pd.DataFrame, column: str) -> Any | None:
    """Return the setting with the least time or cost to the target, without prices the fastest; None if none did."""
    rows = _candidates(rows)
    reached = rows[rows.seconds_to_target.notna() & ~rows.contradicts.str.contains("seconds_per_epoch")]
    return reached.sort_values([column, "seconds_to_target"]).iloc[0] if len(reached) else None


def _candidates(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep whole trainings on real devices that synchronise after each step."""
    return trainings(rows[~rows.emulated & is_synchronous(rows)])


def blocks(results: Results, subject: Subject) -> list[Block]:
    """Return each machine's fastest setting per number of devices and its cheapest, for baseline and tuned recipes."""
    measured = [(results.bold(name), results.of(subject, name)) for name in results.measured.machine.unique()]
    published = results.published_machines(subject)
    rows = []
    for name, group in [*measured, *published]:
        for recipe, same in (("baseline", group[group.baseline]), ("tuned", group[~group.baseline])):
            by_devices = same.groupby([same.kind == "cpu", same.devices.where(same.origin == MEASURED, 0)])
            parts = [part for _, part in by_devices]
            found = [*(best(part, "seconds_to_target") for part in parts), best(same, "dollars_to_target")]
            distinct = {row.setting: row for row in found if row is not None}
            rows += [{**row, "machine": name, "recipe": recipe} for row in distinct.values()]
    bound = ' "≤": the study printed only the end of 12 epochs.' if published else ""
    about = (
        f"To a test accuracy of {results.target:g}, at the end of an epoch: training time without evaluations, median "
        "over seeds, of the fastest setting on each number of devices (published: of the fastest one). Instance $/h: "
        f"price of the whole instance, on-demand unless given.{bound} Settings with a seed that did not reach the "
        "accuracy are left out."
    )
    candidates = _candidates(results.of(subject))
    remarks = [
        f"On this machine {results.target:g} was {text} on {markdown.devices(part.iloc[0])}."
        for _, part in candidates.groupby([candidates.kind == "cpu", "devices"])
        if part.seconds_to_target.isna().all() and (text := missed(results, part))
    ]
    shown = markdown.records(pd.DataFrame(rows))
    differing = markdown.differences([*shown, *markdown.records(results.headline(subject).head(1))])
    lines = markdown.lines(
        shown,
        ("machine", lambda row: row.machine + differing(row)),
        *("devices", ("global batch, lr", _batch_and_lr), ("training recipe", "recipe"), ("time", _time)),
        ("instance $/h", lambda row: markdown.dollars(row.dollars_per_hour) or "unknown"),
        ("$", lambda row: _bound(row) + markdown.dollars(row.dollars_to_target) if row.dollars_to_target > 0 else ""),
        ("n", "timed_seeds"),
    )
    return section("Time and cost", about, markdown.table(lines), " ".join(remarks))


def missed(results: Results, settings: pd.DataFrame) -> str:
    """Say that no training of the settings reached the target, and how close the best came, or that not all seeds did.

    It is empty if nothing was trained on real devices.
    """
    seeds = results.times_to(results.target)
    settings = _candidates(settings[~(settings.target_accuracy < results.target)])  # others ended before it on purpose
    seeds = seeds[seeds.setting.isin(settings.setting)]
    if seeds.seconds_to_target.notna().any():
        return "not reached by every seed"
    best = max((max(repeats.curve(text).values(), default=0.0) for text in seeds.accuracy_by_epoch), default=0.0)
    # Rounded down, else it might look as if it were reached.
    shown = f"{best:.3f}" if float(f"{best:.3f}") < results.target else f"{math.floor(1e4 * best + 1e-6) / 1e4:.4f}"
    return f"not reached (best accuracy {shown})" if len(seeds) else ""


def _batch_and_lr(row: Any) -> str:
    return ", ".join(filter(None, [markdown.count(row.global_batch), markdown.lr(row)]))


def _time(row: Any) -> str:
    return _bound(row) + markdown.duration(row.seconds_to_target) + (" (noisy)" if row.noisy else "")


def _bound(row: Any) -> str:
    return "" if row.origin == MEASURED else "≤ "


def time_to_accuracy(results: Results) -> list[Block]:
    """Return the times of training recipes to one accuracy, each with its ratio to the fastest's.

    The accuracies are the page's, the targets of runs, and the highest hundredth that all seeds of two recipes reached.
    Compared are settings of enough seeds on one machine, in one state, that differ in model, batch, rate or recipe.
    """
    ended = results.times_to(math.inf)  # all seeds: none reaches it
    best = [max(repeats.curve(text).values(), default=0.0) for text in ended.accuracy_by_epoch]
    of_setting = ended.assign(best=best).groupby("setting").best
    reached = of_setting.min()[of_setting.size() >= repeats.MIN_REPEATS]
    settings = _candidates(results.measured[results.measured.accuracy_on == "test set"])
    settings = settings[settings.setting.isin(reached.index)]
    same = ["machine", "framework", "dtype", "layout", "dataset", "data_checksum", "kind", "devices", "kvstore"]
    same += ["workers", "cores_per_worker", "hardware", "cpu", "cores", "environment"]
    rows: list[dict[str, Any]] = []
    for _, group in settings.groupby(same, sort=False, dropna=False):
        if len(group) > 1:
            highest_common = math.floor(100 * reached[group.setting].nlargest(2).min() + 1e-6) / 100
            for level in sorted({results.target, *group.target_accuracy.dropna(), highest_common}):
                rows += _compared(level, group, dict([*results.times_to(level).groupby("setting")]))
    about = (
        "Training time without evaluations until the end of the first epoch whose test accuracy is at least that of "
        "the first column, median over seeds. Last column: ratio to the time of the fastest recipe, from pairs of runs "
        f"with the same seed that started within an hour, with the {repeats.CONFIDENCE:.0%} interval of a paired "
        "t-test of logarithms. It holds for whole epochs: between two evaluations no accuracy is known."
    )
    return markdown.listing(
        "Recipes to the same accuracy",
        about,
        pd.DataFrame(rows),
        *(("accuracy", lambda row: f"{row.target:g}"), "machine", "model, framework"),
        ("global batch, lr", _batch_and_lr),
        *("training recipe", "devices, kvstore", ("time (min–max, n)", "times"), ("ratio to the fastest", "ratio")),
    )


def _compared(target: float, settings: pd.DataFrame, seeds: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Return the settings that every seed reached the target with, the fastest that any is compared with first."""
    reached = {key: seeds[key] for key in settings.setting if seeds[key].seconds_to_target.notna().all()}
    order = sorted(reached, key=lambda key: reached[key].seconds_to_target.median())
    for number, fastest in enumerate(order):
        rows = []
        for key in order[number:]:
            seconds, ratio = reached[key].seconds_to_target, repeats.time_ratio(reached[key], reached[fastest])
            low, median, high = map(markdown.duration, (seconds.min(), seconds.median(), seconds.max()))
            row = {**settings[settings.setting == key].iloc[0], "target": target}
            row["times"] = f"{median} ({low}–{high}, n={len(seconds)}{', noisy' if row['noisy'] else ''})"
            row["ratio"] = "1" if key == fastest else "{:.2f} ({:.2f}–{:.2f})".format(*ratio) if ratio else ""
            rows += [row] if row["ratio"] else []
        if len(rows) > 1:
            return rows
    return []
