"""The page of details on the learning rate: every training, tuning runs, published accuracies, gradient noise."""

from __future__ import annotations

from poc.published import MAIN_RECIPE
from poc.records.record import COMPLETED
from poc.report import chart, markdown, repeats
from poc.report.page import Block, Figure, figure, listing, section
from poc.report.results import Results, Subject, trainings
from poc.report.sections.learning_rate import best_by_batch


def trained(results: Results) -> list[Block]:
    """Return the accuracy of every training on the test set with the curves of the first model, and tuning runs."""
    about = (
        "Whole trainings, quick runs aside. Accuracy on the test set after the last epoch, median over n seeds. The "
        f"baseline recipe is {MAIN_RECIPE}."
    )
    tuning = "Accuracy on 5,000 training images that were held out, after training on the other 45,000."
    return [
        *section("Every training", about, *_tables(results, "test set"), _curves(results)),
        *section("Tuning runs", tuning, *_tables(results, "validation split")),
    ]


def _tables(results: Results, split: str) -> list[str]:
    """Return heading, table and the tuned recipes in full for each model and data set."""
    rows = trainings(results.measured)
    rows = rows[rows.accuracy_on == split].sort_values(["global_batch", "accuracy"], ascending=[True, False])
    usual, blocks = {"", "float32", "device"}, []
    devices = ("devices", lambda row: ", ".join([markdown.devices(row), *sorted({row.dtype, row.kvstore} - usual)]))
    last4 = ("mean of last 4 epochs", lambda row: markdown.formatted(row.accuracy_last4, ".3f"))
    columns = ("machine", "global batch", "training recipe", "lr", "epochs", devices, "accuracy", last4)
    for (model, family), group in rows.groupby(["model", "family"], sort=False):
        tuned = group[~group.baseline].sort_values("training_recipe").drop_duplicates("training_recipe")
        recipes = "\n".join(f"- {row.recipe_cell}: {row.training_recipe}" for row in markdown.records(tuned))
        table = markdown.table(markdown.lines(group, *columns))
        blocks += [f"### {Subject(model, family).label}", table, recipes]
    return blocks


def _curves(results: Results) -> list[Figure]:
    """Return the accuracy over epochs of the first model at each global batch, of the baseline recipe if possible."""
    subject = next(iter(results.subjects()), None)
    if subject is None:
        return []
    best = best_by_batch(results.headline(subject))
    best = best if len(best) else best_by_batch(results.of(subject))
    lines = [
        chart.Line(f"global batch {row.global_batch:,.0f}", repeats.curve(row.accuracy_by_epoch), measured=True)
        for row in markdown.records(best)
    ]
    caption = (
        f"Test accuracy of {subject.label} after each epoch at the best learning rate that was tried, one seed each."
    )
    return figure("accuracy_over_epochs", caption, lines, "Accuracy over epochs", "epoch", "test accuracy")


def published(results: Results) -> list[Block]:
    """Return the accuracies that the main study printed, by global batch and learning rate."""
    rows = results.published
    rows = rows[rows.accuracy.notna() & rows.lr.notna()].sort_values(["model", "global_batch", "lr"], kind="stable")
    columns = ("model", "global batch", "devices", "batch per device", "lr", "epochs", "accuracy")
    about = "[The main study][main_study], one run each."
    return listing("Published accuracies", about, rows, ("machine", markdown.machine), *columns)


def noise(results: Results) -> list[Block]:
    """Return the gradient noise scale of every run that measured it."""
    rows = results.runs[results.runs.noise_scale.notna() & (results.runs.outcome == COMPLETED) & ~results.runs.quick]
    return listing(
        "Gradient noise scale",
        "Gradient noise scale (McCandlish et al. 2018) of the second half of a training, in samples. Well below it, "
        "twice the batch needs nearly half the steps; above it, more devices save less and less.",
        rows.sort_values(["model", "global_batch"], kind="stable"),
        *("machine", "model", "global batch", "training recipe", "lr"),
        *(("noise scale", "noise_scale"), ("90% from", "noise_low"), ("to", "noise_high")),
    )


SECTIONS = (trained, published, noise)
