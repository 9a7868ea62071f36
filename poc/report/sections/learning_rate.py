"""Which learning rate keeps the accuracy as the global batch grows."""

from __future__ import annotations

import math

import pandas as pd

from poc.report import chart, markdown
from poc.report.page import Block, Figure, figure, section
from poc.report.results import MAIN_MODEL, REFERENCE_BATCH, Results, Subject, same_length, trainings

_MOST_TUNED = 3


def best_by_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the setting with the best learning rate at each global batch, its index, smallest first.

    Only trainings of equal length compare: of 12 epochs, else of the most frequent number. A learning rate that was
    tried in several settings counts by the one with 128 per device, else by the one with most seeds. `change` is the
    change of the accuracy from batch 128, `tried` the number of learning rates that the best is of.
    """
    rows = same_length(trainings(rows))
    rows = rows[rows.lr.notna()].assign(at_reference=rows.batch_per_device == REFERENCE_BATCH)
    rows = rows.sort_values(["at_reference", "seeds", "started"], kind="stable")
    tried = rows.drop_duplicates(["global_batch", "lr", "schedule"], keep="last")
    best = tried.sort_values("accuracy", kind="stable").drop_duplicates("global_batch", keep="last")
    best = best.set_index("global_batch", drop=False).sort_index()
    best["tried"] = rows.groupby("global_batch").lr.nunique()
    change = best.accuracy - best.accuracy.get(REFERENCE_BATCH, math.nan)
    return best.assign(change=change.where(best.index != REFERENCE_BATCH))


def blocks(results: Results, subject: Subject) -> list[Block]:
    """Return table, recommendation, figure, and the tuned recipes of a subject."""
    rows = results.headline(subject)
    own = best_by_batch(rows)
    published = {name: best_by_batch(group) for name, group in results.published_machines(subject.model)}
    trained = same_length(trainings(rows))
    batches = sorted({*own.index, *(batch for best in published.values() for batch in best.index)})
    lines = [
        {
            "global batch": markdown.count(batch),
            "best lr": markdown.lr(row),
            "lr tried": ", ".join(f"{lr:g}" for lr in sorted({*trained[trained.global_batch == batch].lr})),
            "accuracy": markdown.known(row.accuracy, ".3f"),
            "change from batch 128": markdown.known(row.change, "+.3f"),
            "n": markdown.count(row.seeds),
            **{
                name: f"{best.accuracy[batch]:.3f} (lr {best.lr[batch]:g})" if batch in best.index else ""
                for name, best in published.items()
            },
        }
        for batch, row in zip(batches, own.reindex(batches).itertuples())
    ]
    epochs = f", {trained.epochs.iloc[0]:.0f} epochs" if len(trained) else ""
    about = (
        f"Test accuracy of {subject.label} at the best learning rate that was tried, {results.recipe(subject)}"
        f"{epochs}; published: accuracy (learning rate). n is the number of seeds. Emulated devices count: "
        "their accuracy is that of real ones."
    )
    return section(
        "Learning rate and global batch",
        about,
        markdown.table(lines),
        recommendation(own, published, subject),
        _figure(own, published, subject),
        _tuned(results, subject),
    )


def recommendation(own: pd.DataFrame, published: dict[str, pd.DataFrame], subject: Subject) -> str:
    """Recommend a learning rate per global batch from the best that were tried, by this machine or as published."""
    if (own.index > REFERENCE_BATCH).any():
        return f"**Recommendation:** {_sentence(own)}."
    for name, best in published.items():
        if (best.index > REFERENCE_BATCH).any():
            is_main = subject.model == MAIN_MODEL
            measure = "; run `./run_all.sh learning_rate` to measure it on this machine" if is_main else ""
            return f"**Recommendation, as published for {name}:** {_sentence(best)}{measure}."
    return ""


def _sentence(best: pd.DataFrame) -> str:
    return "; ".join(
        f"at global batch {batch:,.0f} use {row.lr:g} ("
        + (f"{row.change:+.3f} accuracy, " if pd.notna(row.change) else "")
        + f"best of {row.tried} tried)"
        for batch, row in best[best.index > REFERENCE_BATCH].iterrows()
    )


def _figure(own: pd.DataFrame, published: dict[str, pd.DataFrame], subject: Subject) -> list[Figure]:
    lines = [chart.Line(name, best.accuracy.to_dict()) for name, best in published.items()]
    lines = [chart.Line("this machine", own.accuracy.to_dict(), own=True), *lines]
    return figure(
        f"learning_rate_{subject.model}",
        f"Test accuracy of {subject.label} against the global batch, at the best learning rate that was tried.",
        [line for line in lines if line.points],
        *("Accuracy against global batch", "global batch", "test accuracy"),
        log2=True,
    )


def _tuned(results: Results, subject: Subject) -> str:
    """Return the table of tuned recipes: the most accurate at each global batch."""
    own = results.of(subject)
    rows = same_length(trainings(own[~own.baseline]))
    if not len(rows):
        return ""
    validated = {*results.measured[results.measured.accuracy_on == "validation split"].training_recipe}
    best = rows.sort_values("accuracy", kind="stable").drop_duplicates("global_batch", keep="last")
    lines = markdown.lines(
        best.sort_values("global_batch").head(_MOST_TUNED),
        *(("tuned recipe", "training_recipe"), "global batch", ("lr", lambda row: f"{row.lr:g}")),
        *(("accuracy", lambda row: f"{row.accuracy:.3f}"), ("n", "seeds")),
        ("tuned on", lambda row: "validation split" if row.training_recipe in validated else "test set"),
    )
    return markdown.table(lines)
