"""The learning rates that searches found, against those of the linear and of the square-root rule."""

import re
import statistics
from typing import Any

import pandas as pd

from poc.records.record import COMPLETED, INTERRUPTED, SETTLED
from poc.report import chart, markdown, repeats
from poc.report.markdown import Block, figure
from poc.report.results import Results, Subject
from poc.report.table import PAUSED, TRAINING
from poc.search import FOUND, LINEAR, SQUARE_ROOT
from poc.values import counted

_BATCH = ["global_batch", "devices", "batch_per_device", "workers", "kvstore"]
_CONDITIONS = ["machine", "data_checksum", "model", "framework", "dtype", "seed", *_BATCH]
_CANDIDATE = ["seed", "lr", "training_recipe", "schedule"]


def candidates(results: Results, subject: Subject | None = None) -> pd.DataFrame:
    """Return one row per candidate of each search, where it got furthest: of a subject on this machine, or of all."""
    rows = _stages(results).drop_duplicates(["search", *_BATCH, *_CANDIDATE], keep="last")
    if subject:
        rows = rows[
            (rows.machine == results.machine) & (rows.model == subject.model) & (rows.family == subject.dataset)
        ]
    return rows


def _stages(results: Results) -> pd.DataFrame:
    """Return one row per run of each search, those that got further later.

    `search` is that search alone, `candidates`, `chosen` and `test_runs` are those of it. `with` has the other fields
    in which the candidates of a model and its images differ, in one search or in several.
    """
    rows = results.runs.assign(search=results.runs.search.str.split()).explode("search", ignore_index=True)
    rows = rows[rows.search.notna() & (rows.reason != INTERRUPTED)]
    rows[["search", "candidates"]] = rows.search.str.extract(r"(\w+):(\d+)")
    pairs = zip(rows.search, rows.test_runs)
    rows["test_runs"] = [" ".join(re.findall(rf"\b{name}:(\S+)", texts)) for name, texts in pairs]
    rows = rows.assign(candidates=rows.candidates.astype(float), chosen=rows.test_runs != "")
    alike = rows.groupby(["machine", "model", "dataset"])
    is_varied = alike[["schedule", "training_recipe"]].transform("nunique") > 1
    varied = rows[["schedule", "training_recipe"]].where(is_varied, "")
    rows["with"] = [", ".join(filter(None, texts)) for texts in varied.to_numpy()]
    return rows.sort_values(["epochs", "started"], kind="stable", na_position="first")


def candidates_of_all_seeds(results: Results) -> pd.DataFrame:
    """Return one row per candidate of each search, with `accuracies`: how far it got with each seed."""
    rows = candidates(results).sort_values(["elsewhere", "model", "global_batch", "lr", "seed"], kind="stable")
    accuracies = rows.accuracy.map("{:.3f}".format).where(rows.outcome == COMPLETED, rows.outcome)
    rows["accuracies"] = accuracies + rows.epochs.map(" ({:.0f})".format).where(rows.epochs.notna(), "")
    of_all = rows.groupby(["search", *_BATCH, "lr", "with"], sort=False)
    return of_all.first().assign(accuracies=of_all.accuracies.agg(", ".join)).reset_index()


def found(results: Results, subject: Subject | None = None) -> pd.DataFrame:
    """Return one row per search and global batch, ascending, if a seed's search is over.

    They are those of a subject on this machine, or without a subject all of every machine.

    `lr` is the median over `n` seeds of the rate that was found, from `lr_low` to `lr_high`. `found`, `linear` and
    `square_root` are the median test accuracies with that rate and with those of the rules, whose rates are from
    `linear_low` and `square_root_low` to `linear_high` and `square_root_high`. `spent` are the epochs of all
    candidates, `grid` those of the full grid. `at_edge` is true if the best rate of a seed is `lowest` or `highest`,
    the first or the last that was tried, else `is_cut_short` if at least half of the seeds' best ones have a neighbour
    that could have been trained to the end and was not, with any seed.
    """
    lines = []
    rows = candidates(results, subject)
    for _, group in rows.groupby(["search", *_BATCH]):
        winners = group[group.chosen]
        if not len(winners):
            continue
        # One that was trained: of an even number the lower of the two in the middle.
        middle = winners.lr.quantile(interpolation="lower")
        line = {**winners[winners.lr == middle].iloc[-1], "n": len(winners)}
        line.update(lr_low=winners.lr.min(), lr_high=winners.lr.max())
        line["with"] = " or ".join(filter(None, winners["with"].unique()))
        line.update(lowest=group.lr.min(), highest=group.lr.max())
        line["at_edge"] = winners.lr.isin([line["lowest"], line["highest"]]).any()
        # Only a candidate that is paused could have been trained further, not one that diverged before.
        rates, ended = sorted({*group.lr}), {*group.lr[(group.length != PAUSED) | (group.outcome != COMPLETED)]}
        ends_early = [not ended.issuperset(rates[max(0, at - 1) : at + 2]) for at in map(rates.index, winners.lr)]
        line["is_cut_short"] = not line["at_edge"] and statistics.fmean(ends_early) >= 0.5
        over = group[group.seed.isin(winners.seed)]
        line.update(spent=over.epochs.sum(), grid=(winners.candidates * winners.epochs).sum())
        line["incomplete"] = (over.outcome != COMPLETED).sum()
        lines.append({**line, **_tested(results, winners)})
    return pd.DataFrame(lines)


def against_grid(results: Results) -> pd.DataFrame:
    """Return one row per search and global batch whose full grid was trained, too, on the same validation split.

    A candidate and the same training without a search are one run. `n` seeds have both. `lr` and `best_lr` are the
    medians over them of the rate that was found and of the grid's best, `factor` the largest factor between the two,
    and `near` the number of seeds in which it is two or less, give or take the rounding of rates. `loss` and
    `most_loss` are the median and the maximum of what the grid's best is more accurate, `other_loss` and
    `most_other_loss` the same for the candidate that is best on average with the other seeds: nan if there are none.
    `spent` and `grid` are the epochs.
    """
    rows = candidates(results)
    tests = {entry.split(":")[-1] for text in results.runs.test_runs for entry in text.split()}
    runs = results.runs[results.runs.outcome.isin(SETTLED) & ~results.runs.run_id.isin(tests)]
    full_length = runs[(runs.length == TRAINING) & (runs.accuracy_on != "test set")]
    lines = []
    for _, group in rows.groupby(["machine", "search", *_BATCH], sort=False):
        seeds, accuracies = [], {}
        for winner in group[group.chosen].to_dict("records"):
            of_seed = group[group.seed == winner["seed"]]
            grid = full_length[(full_length[_CONDITIONS] == pd.Series(winner)[_CONDITIONS]).all(axis=1)]
            grid = grid[(grid.epochs == winner["epochs"]) | (grid.outcome != COMPLETED)]
            grid = grid.merge(of_seed[_CANDIDATE]).drop_duplicates(_CANDIDATE, keep="last")
            if len(grid) == winner["candidates"]:
                grid = grid.set_index(_CANDIDATE[1:], drop=False)
                accuracies[winner["seed"]] = of_grid = grid.accuracy.where(grid.outcome == COMPLETED, 0.0)
                best = grid.loc[of_grid.idxmax()]
                factor = max(winner["lr"] / best.lr, best.lr / winner["lr"])
                epochs = of_seed.epochs.sum(), len(grid) * winner["epochs"]
                seeds.append((winner["lr"], best.lr, factor, best.accuracy - winner["accuracy"], *epochs))
        if seeds:
            outcomes = pd.DataFrame(seeds, columns=["lr", "best_lr", "factor", "loss", "spent", "grid"])
            line = {**group.iloc[-1].to_dict(), **outcomes.median().to_dict(), "n": len(outcomes)}
            line.update(outcomes[["lr", "best_lr"]].quantile(interpolation="lower").to_dict())  # rates that were tried
            line.update(
                factor=outcomes.factor.max(), near=(outcomes.factor < 2.05).sum(), most_loss=outcomes.loss.max()
            )
            losses = _losses_of_other_seeds(pd.DataFrame(accuracies))
            line.update(other_loss=losses.median(), most_other_loss=losses.max())
            lines.append({**line, "spent": outcomes.spent.sum(), "grid": outcomes.grid.sum()})
    return pd.DataFrame(lines)


def _losses_of_other_seeds(accuracies: pd.DataFrame) -> pd.Series:
    """Return what each seed's best candidate is more accurate than the one that is best with all other seeds.

    `accuracies` has a row per candidate and a column per seed.
    """
    of_others = {seed: accuracies.drop(columns=seed).mean(axis=1) for seed in accuracies if len(accuracies.columns) > 1}
    losses = [accuracies[seed].max() - accuracies[seed][means.idxmax()] for seed, means in of_others.items()]
    return pd.Series(losses, dtype=float)


def _tested(results: Results, winners: pd.DataFrame) -> dict[str, Any]:
    """Return the median accuracies, and ranges of the rates, of the trainings on the test set after a search.

    `found_n`, `linear_n` and `square_root_n` are the numbers of seeds that completed, `linear_pairs` and
    `square_root_pairs` those of which the training with the rate that was found did, too; `found_end`, `linear_end` and
    `square_root_end` the outcomes if none did.
    """
    runs = results.runs[results.runs.machine.isin(winners.machine) & results.runs.outcome.isin(SETTLED)]
    runs = runs[runs.data_checksum.isin(winners.data_checksum)]
    runs = runs.sort_values("started", kind="stable").drop_duplicates("run_id", keep="last").set_index("run_id")
    ids = pd.DataFrame([dict(entry.split(":") for entry in text.split()) for text in winners.test_runs])
    # By seed: a failed one has no row.
    trained = {name: runs.reindex(ids.get(name, [])).reset_index() for name in (FOUND, LINEAR, SQUARE_ROOT)}
    tested: dict[str, Any] = {"test_recipe": next(iter(trained[FOUND].training_recipe.dropna()), "")}
    accuracies = {name: each.accuracy.where(each.outcome == COMPLETED) for name, each in trained.items()}
    for name, accuracy in accuracies.items():
        key, n, ends = name.replace("-", "_"), accuracy.notna().sum(), trained[name].outcome.dropna().unique()
        rates, change = trained[name].lr, accuracy - accuracies[FOUND]
        tested.update({key: accuracy.dropna().median(), f"{key}_change": change.dropna().median()})
        tested.update({f"{key}_pairs": change.notna().sum()})
        tested.update({f"{key}_low": rates.min(), f"{key}_high": rates.max()})
        tested.update({f"{key}_n": n, f"{key}_end": "" if n else " or ".join(ends)})
    return tested


def blocks(results: Results, subject: Subject, rates: pd.DataFrame) -> list[Block]:
    """Return table, figures and remarks of the `found` rates of a subject."""
    rows = candidates(results, subject)
    not_found = [
        f"At global batch {batch:,.0f} no candidate completed: search lower rates, or use a smaller batch."
        for batch, each in rows.groupby("global_batch")
        # Of those that were trained to the end, if any was. What failed is tried again.
        if repeats.some_or_all(each, each.length != PAUSED).outcome.isin({*SETTLED} - {COMPLETED}).all()
    ]
    if not len(rates):
        return [" ".join(not_found)] if not_found else []
    several_searches = rates.search.nunique() > 1
    if several_searches:
        listed = markdown.records(rates)
        differing = markdown.differences(listed)
        intervals = [f"{row.recipe}, {row.lowest:.3g} to {row.highest:.3g}" for row in listed]
        names = [f"{text}, {row.epochs:.0f} epochs{differing(row)}" for text, row in zip(intervals, listed)]
        rates = rates.assign(**{"with": names + rates["with"].map(lambda text: f", {text}" if text else "")})
    several = rates.duplicated(["search", "global_batch"], keep=False).any()
    columns: list[markdown.Column] = [
        ("global batch", lambda row: f"{row.global_batch:,.0f}" + (f" ({markdown.devices(row)})" if several else "")),
        ("with", "with"),
        *RESULTS,
        ("epochs spent (full grid)", lambda row: f"{row.spent:,.0f} ({row.grid:,.0f})"),
        "n",
    ]
    lengths = " or ".join(f"{epochs:.0f}" for epochs in sorted({*rates.epochs}))
    about = (
        "Searched on a validation split, once for each of n seeds: all candidates for an eighth of the epochs, at "
        "least one, then the most promising one and its neighbours to the end. After that one training each with the "
        "best rate, and with those to which the linear and the square-root rule scale the best rate at the smallest "
        f"batch: accuracy on the test set after {lengths} epochs (change from the best rate; learning rate, or the "
        "seeds' range). Accuracies and changes are separate medians over seeds. Epochs spent: of all candidates."
    )
    drawn = []
    for number, (search, each) in enumerate(rates.groupby("search", sort=False)):
        name = each["with"].iloc[0] if several_searches else ""
        drawn += _figure(results, subject, search, f"_{number + 1}" if number else "", name)
    remarks = " ".join([*not_found, *_remarks(results, subject, rates)])
    return [about, markdown.table(markdown.lines(rates, *columns)), remarks, *drawn]


def _rate(row: Any) -> str:
    spread = f" ({row.lr_low:g}–{row.lr_high:g})" if row.lr_low < row.lr_high else ""
    return f"{row.lr:.3g}{spread}"


def _rule(row: Any, name: str) -> str:
    ends = ("", "_change", "_low", "_high", "_n", "_end")
    accuracy, change, low, high, seeds, end = (getattr(row, name + suffix) for suffix in ends)
    rates = f"lr {low:.3g}" + (f"–{high:.3g}" if low < high else "")
    if pd.isna(accuracy):
        return f"{end} ({rates})" if end else ""
    changed = f"{change:+.3f}, " if pd.notna(change) else ""
    return f"{accuracy:.3f} ({changed}{rates})" + only(seeds, row.n)


def only(seeds: int, n: int) -> str:
    """Return a remark with the number of seeds that completed, if not all n did."""
    return f" ({seeds:.0f} of {n:.0f} seeds)" if 0 < seeds < n else ""


RESULTS: tuple[markdown.Column, ...] = (
    ("best lr found", _rate),
    ("accuracy", lambda row: (markdown.formatted(row.found, ".3f") or row.found_end) + only(row.found_n, row.n)),
    ("linear rule", lambda row: _rule(row, "linear")),
    ("square-root rule", lambda row: _rule(row, "square_root")),
)
"""Columns with the learning rates and accuracies of what `found` returns."""


def _remarks(results: Results, subject: Subject, rates: pd.DataFrame) -> list[str]:
    latest = rates.sort_values("started", kind="stable").drop_duplicates("global_batch", keep="last")
    remarks = [
        f"At global batch {batch:,.0f} the best rate is at the edge of the searched interval: widen it."
        for batch in latest.global_batch[latest.at_edge]
    ]
    remarks += [
        f"At global batch {batch:,.0f} the search ended where the accuracy still rose: search again around {rate:.3g}."
        for batch, rate in latest.loc[latest.is_cut_short, ["global_batch", "lr"]].to_numpy()
    ]
    if failed := rates.incomplete.sum():
        remarks.append(f"{counted(failed, 'candidate')} diverged, failed or did not fit in memory.")
    runs = results.runs[(results.runs.model == subject.model) & (results.runs.family == subject.dataset)]
    runs = runs[(runs.length == TRAINING) & (runs.outcome == COMPLETED) & (runs.machine == results.machine)]
    noise = runs.noise_scale[~runs.quick].dropna()
    if len(noise):
        remarks.append(
            "The gradient noise scale, an estimate of the critical batch, is "
            f"{markdown.number(noise.median())} samples (median of {len(noise)} runs): far above it a larger batch "
            "saves few steps at any rate."
        )
    return remarks


def _figure(results: Results, subject: Subject, search: Any, suffix: str, name: str) -> list[Any]:
    rows = _stages(results)
    rows = rows[(rows.search == search) & (rows.outcome == COMPLETED)]
    last = rows.epochs.max()
    best = rows.groupby(["epochs", "global_batch", "lr", "seed"]).accuracy.max()
    best = best.groupby(["epochs", "global_batch", "lr"]).mean()
    lines = [
        chart.Line(
            f"global batch {batch:,.0f}, {counted(epochs, 'epoch')}",
            points.droplevel([0, 1]).to_dict(),
            measured=epochs == last,
        )
        for (epochs, batch), points in best.groupby(["epochs", "global_batch"])
    ]
    return figure(
        f"learning_rate_search_{subject.figure}{suffix}",
        f"Validation accuracy of {subject.label} against the learning rate, by global batch: of all candidates after "
        f"the first epochs (grey), and of those that were trained to the end; mean over seeds{name and f' ({name})'}.",
        sorted(lines, key=lambda line: not line.measured),
        *("Accuracy against learning rate", "learning rate", "validation accuracy"),
        log2=True,
        least_span=0.1,
    )
