"""The best learning rate per global batch, and what a larger batch costs in accuracy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from poc.published import MAIN_EPOCHS
from poc.records.row import MEASURED
from poc.report import chart, markdown
from poc.report.markdown import Block, figure, section
from poc.report.results import Results, Subject, one_per_rate, same_length, trainings
from poc.report.sections import scaling, search
from poc.values import counted


def best_by_batch(rows: pd.DataFrame, diverged: pd.DataFrame, reference: int) -> pd.DataFrame:
    """Return the setting with the best learning rate at each global batch, its index, smallest first.

    It is the one that a search chose on the validation split, if there was one (the median over seeds, as in the table
    of searches), else the most accurate. Only trainings of equal length compare: of 12 epochs, else of the most
    frequent number; those that ended at a target accuracy do not. A rate with which no seed diverged comes before
    others. A learning rate that was tried in several settings counts by one of them (`one_per_rate`). `change` is the
    change of the accuracy from the `reference` batch, `tried` how many rates and schedules were compared, from `lowest`
    to `highest`, with those of `diverged` trainings (`Results.diverged`); `highest` is infinite if one diverged with
    some seed.
    """
    rows = same_length(rows[rows.target_accuracy.isna()])
    rows = rows[rows.lr.notna()]
    best = one_per_rate(rows, reference).drop_duplicates("global_batch", keep="last")
    best = best.set_index("global_batch", drop=False).sort_index()
    tried_rows = pd.concat(
        [rows.assign(highest=rows.lr.mask(rows.diverged > 0, math.inf)), diverged.assign(highest=math.inf)]
    )
    distinct = tried_rows.drop_duplicates(["global_batch", "lr", "schedule"]).groupby("global_batch").size()
    best["tried"] = best.candidates.where(best.chosen).fillna(distinct).astype(int)
    # A join adds no row, also if there are none: all may have diverged.
    best = best.join(tried_rows.groupby("global_batch").agg(lowest=("lr", "min"), highest=("highest", "max")))
    change = best.accuracy - best.accuracy.get(reference, math.nan)
    return best.assign(change=change.where(best.index != reference))


def blocks(results: Results, subject: Subject) -> list[Block]:
    """Return table, recommendation, figure, and the tuned recipes of a subject."""
    rows = scaling.over_hosts(results, subject, results.headline(subject))
    reference = results.reference_batch(subject)
    diverged, machines = results.diverged(rows), results.published_machines(subject)
    measured = best_by_batch(rows, diverged, reference)
    published = {name: best_by_batch(group, results.diverged(group), reference) for name, group in machines}
    trained = same_length(rows[rows.target_accuracy.isna()])
    of_published = [batch for best in published.values() for batch in best.index]
    batches = sorted({*measured.index, *diverged.global_batch, *of_published})
    lines = [
        {
            "global batch": markdown.count(batch),
            "best lr": markdown.lr(row),
            "lr tried": _tried(row, *(each[each.global_batch == batch].lr for each in (trained, diverged))),
            "accuracy": markdown.formatted(row.accuracy, ".3f"),
            f"change from batch {reference}": markdown.formatted(row.change, "+.3f"),
            "n": markdown.count(row.seeds),
            **{
                name: f"{best.accuracy[batch]:.3f} (lr {best.lr[batch]:g})" if batch in best.index else ""
                for name, best in published.items()
            },
        }
        for batch, row in zip(batches, markdown.records(measured.reindex(batches)))
    ]
    epochs = f", {counted(trained.epochs.iloc[0], 'epoch')}" if len(trained) else ""
    about = (
        f"Test accuracy of {subject.label} at the best learning rate that was tried, {results.recipe(subject)}"
        f"{epochs}{f'; published: accuracy (learning rate) after {MAIN_EPOCHS} epochs' if published else ''}. "
        "n is the number of seeds."
        + (" Emulated devices count: their accuracy is that of real ones." if measured.emulated.any() else "")
        + (" Where a search chose a learning rate, the row shows that one." if measured.chosen.any() else "")
    )
    curves = [chart.Line("this machine", measured.accuracy.to_dict(), measured=True)]
    curves += [chart.Line(name, best.accuracy.to_dict()) for name, best in published.items()]
    drawn = figure(
        f"learning_rate_{subject.figure}",
        f"Test accuracy of {subject.label} against the global batch, at the learning rate of the table.",
        [line for line in curves if line.points],
        *("Accuracy against global batch", "global batch", "test accuracy"),
        log2=True,
        least_span=0.1,
    )
    searched = search.found(results, subject)
    same = searched
    if len(searched):
        alike = [searched[name].isin(trained[name]) for name in ("kind", "dtype", "framework", "epochs")]
        # All batches of a search, whatever else than the learning rate it found at some: `with` names it.
        matching = searched.search[searched.test_recipe.isin(rows.training_recipe)]
        same = searched[np.logical_and.reduce([searched.search.isin(matching), *alike])]
    advice = _recommendation(measured, same, published, reference, subject, results.is_of_cpu)
    return section(
        "Learning rate and global batch",
        *(about, markdown.table(lines), advice, drawn),
        *(*search.blocks(results, subject, searched), _tuned(results, subject)),
    )


def _tried(best: Any, rates: pd.Series[float], diverged: pd.Series[float]) -> str:
    """Return the learning rates of the trainings at a global batch, or how many a search compared."""
    if best.chosen is True:
        return f"{best.tried:.0f} by a search"
    return ", ".join(f"{lr:.3g}" + (" (diverged)" if lr in {*diverged} else "") for lr in sorted({*rates, *diverged}))


def _recommendation(
    measured: pd.DataFrame,
    searched: pd.DataFrame,
    published: dict[str, pd.DataFrame],
    reference: int,
    subject: Subject,
    on_cpu: bool,
) -> str:
    """Recommend a learning rate per global batch: one that a search found, else the best tried or published."""
    texts = _best_rates(measured[measured.tried > 1], reference)  # of one alone nothing follows
    # Of several searches at a batch the one with most seeds, then the best one on the validation split.
    for row in markdown.records(searched.sort_values(["n", "accuracy"]) if len(searched) else searched):
        schedule = getattr(row, "with") or row.schedule
        remarks = [f"accuracy {row.found:.3f}" if pd.notna(row.found) else row.found_end or "not tested yet"]
        remarks[0] += search.only(row.found_n, row.n)
        remarks += [*_of_rule(row, "linear"), *_of_rule(row, "square_root")]
        remarks += ["medians over seeds, each with its own rate"] if row.lr_low < row.lr_high else []
        text = f"{row.lr:.3g} with {schedule}" if schedule else f"{row.lr:.3g}"
        texts[row.global_batch] = f"{text} (found by a search: {'; '.join(remarks)})"
    if texts:
        return f"**Recommendation:** {_sentence(texts)}."
    for name, best in published.items():
        if texts := _best_rates(best[best.tried > 1], reference):
            option = " --set kind=cpu" if on_cpu else ""
            command = f"; run `./run_all.sh learning_rate{option}` to compare learning rates on this machine"
            text = _sentence(texts) + (command if subject.is_main else "")
            return f"**Recommendation, as published for {name}:** {text}."
    return ""


def _of_rule(row: Any, rule: str) -> list[str]:
    """Return a remark on the accuracy with the rate of a rule, which a search did not choose; none if it is unknown.

    The rule is better only if every seed has both accuracies.
    """
    accuracy, change, low, high = (getattr(row, rule + suffix) for suffix in ("", "_change", "_low", "_high"))
    text = f"{rule.replace('_', '-')} rule: {accuracy:.3f}" + (f" at {low:.3g}" if low == high else "")
    text += search.only(getattr(row, f"{rule}_n"), row.n)
    is_better = change > 0 and getattr(row, f"{rule}_pairs") == row.n
    return [text + (", better" if is_better else "")] if pd.notna(accuracy) else []


def _best_rates(best: pd.DataFrame, reference: int) -> dict[float, str]:
    """Return the best rate that was tried at each global batch above the reference one."""
    texts = {}
    for batch, row in best[best.index > reference].iterrows():
        remarks = [f"{row.change:+.3f} accuracy"] if pd.notna(row.change) else []
        remarks.append(f"best of {row.tried} tried")
        if row.origin == MEASURED:
            remarks.append(f"n={row.seeds:.0f}")
            remarks += ["the lowest: try a lower one"] if row.lr == row.lowest else []
            remarks += ["the highest: try a higher one"] if row.lr == row.highest else []
        texts[batch] = f"{markdown.lr_in_words(row)} ({', '.join(remarks)})"
    return texts


def _sentence(texts: dict[float, str]) -> str:
    return "; ".join(f"at global batch {batch:,.0f} use {text}" for batch, text in sorted(texts.items()))


def _tuned(results: Results, subject: Subject) -> str:
    """Return the tuned recipe at each global batch that a search chose, else the most accurate one."""
    rows = results.of(subject)
    rows = trainings(rows[~rows.baseline])
    tuning = results.measured[results.measured.accuracy_on == "validation split"]
    validated = {*tuning[(tuning.model == subject.model) & (tuning.family == subject.dataset)].training_recipe}
    tried = (
        rows.drop_duplicates(["global_batch", "epochs", "lr", "schedule", "training_recipe"])
        .groupby("global_batch")
        .size()
    )
    best = rows.sort_values(["chosen", "accuracy"], kind="stable").drop_duplicates("global_batch", keep="last")

    def tuned_on(row: Any) -> str:
        if row.training_recipe in validated:
            return "validation split"
        return "test set" if tried[row.global_batch] > 1 else ""

    differing = markdown.differences([*markdown.records(pd.concat([best, results.headline(subject).head(1)]))])
    lines = markdown.lines(
        best.sort_values("global_batch"),
        *(("tuned recipe", lambda row: row.training_recipe + differing(row)), "global batch", "lr"),
        *("epochs", ("accuracy", lambda row: f"{row.accuracy:.3f}"), ("n", "seeds")),
        ("best of", lambda row: markdown.count(row.candidates if row.chosen else tried[row.global_batch])),
        ("tuned on", tuned_on),
    )
    about = "Tuned recipes: the most accurate at each global batch, or the one that a search chose.\n\n"
    return about + markdown.table(lines) if lines else ""
