"""What pages show of searches for a learning rate, from the journal of a simulated machine."""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poc import Linear, SquareRoot, report
from poc.config.run import Run
from poc.published import prices
from poc.records import journal
from poc.records.last_run import LastRun
from poc.records.record import DIVERGED, FAILED, INTERRUPTED, Record
from poc.report import PAGES, chart, explorer
from poc.report.results import Results, Subject
from poc.report.sections import recipes, search
from poc.report.sections.learning_rate import best_by_batch, blocks
from tests import simulated
from tests.builders import build
from tests.pages import Lines, check, number, results_of, tables


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """The records of a search on a simulated machine."""
    return journal.read([simulated.write_journal("8 V100", "search", tmp_path_factory.mktemp("simulated"))])


@pytest.fixture(scope="module")
def results(made: list[Record]) -> Results:
    return results_of(*made)


def found(results: Results) -> list[dict[str, Any]]:
    (subject,) = results.subjects()
    return search.found(results, subject).to_dict("records")


def shown(results: Results) -> Any:
    """Return what the section on searches has of the only subject."""
    (subject,) = results.subjects()
    return search.blocks(results, subject, search.found(results, subject))


def lines_shown(results: Results) -> Lines:
    """Return the lines of the table of searches."""
    return tables(f"\n## x\n{shown(results)[1]}")["x"][0]


def diverging(records: Sequence[Record], ids: Collection[str]) -> list[Record]:
    """Return the records, of which those of these runs diverged."""
    lost: Any = {"outcome": DIVERGED, "reason": "nan", "evaluations": ()}
    return [replace(each, **lost) if each.run.id in ids else each for each in records]


def with_accuracy(record: Record, accuracy: float) -> Record:
    return replace(record, evaluations=tuple(replace(each, accuracy=accuracy) for each in record.evaluations))


def test_a_simulated_machine_s_page_shows_rates_rules_and_epochs(
    made: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves: dict[str, Sequence[chart.Line]] = {}
    monkeypatch.setattr(explorer, "page", lambda table, cache: "")
    monkeypatch.setattr(chart, "lines", lambda lines, title, *_, **__: curves.update({title: lines}))
    monkeypatch.setattr(chart, "svg", str)
    report.write(made, [], page=tmp_path / "results.md", folder=tmp_path, prices=prices.load({}))
    page = (tmp_path / "results.md").read_text()
    for name in tmp_path.glob("*.md"):
        check(name)
    best, searched = tables(page)["Learning rate and global batch"]
    reached = tables((tmp_path / "learning_rate.md").read_text())["Candidates of searches"][0]
    smallest: list[float] = []
    for batch, line in zip((128, 1024), searched):
        own = [record for record in made if record.run.global_batch == batch]
        last = [record for record in own if record.run.search and not record.run.pause_after]
        chosen = [max((r for r in last if r.run.seed == s), key=lambda r: r.evaluations[-1].accuracy) for s in (0, 1)]
        rates = [record.run.learning_rate for record in chosen]
        tested = {(r.run.seed, r.run.learning_rate): r.evaluations[-1].accuracy for r in own if not r.run.search}
        smallest = smallest or rates
        assert (line["global batch"], line["epochs spent (full grid)"], line["n"]) == (f"{batch:,}", "86 (240)", "2")
        assert number(line["best lr found"]) == min(rates)
        expected = {"accuracy": rates}
        if batch > 128:
            names = {"linear rule": Linear, "square-root rule": SquareRoot}
            expected |= {name: [rule(base=lr, per=128).at(batch) for lr in smallest] for name, rule in names.items()}
        for name, tried in expected.items():
            mean = sum(tested[seed, rate] for seed, rate in enumerate(tried)) / 2
            assert number(line[name]) == pytest.approx(mean, abs=6e-4)
        cells = [candidate for candidate in reached if candidate["global batch"] == line["global batch"]]
        furthest = {number(cell["lr"]): cell["accuracy (epochs) of each seed"].split(", ") for cell in cells}
        assert sum(number(text.split()[1]) for texts in furthest.values() for text in texts) == 86
        for seed, record in enumerate(chosen):
            assert furthest[record.run.learning_rate][seed] == f"{record.evaluations[-1].accuracy:.3f} (12)"
    assert f"at global batch 1,024 use {min(rates):g}" in page
    # No other table takes the rate that is best on the test set.
    assert number(best[1]["best lr"]) == min(rates)
    assert f"{min(rates):g} at 1,024, chosen from 10 tried" in page
    # All 10 rates after one epoch, and three to four that two seeds trained to the end; no paused run is in a table.
    lines = curves["Accuracy against learning rate"]
    assert [len(line.points) for line in lines if not line.measured] == [10, 10]
    assert [len(line.points) for line in lines if line.measured] == [4, 4]
    assert "paused" not in page


def test_candidates_of_different_searches_or_half_a_search_choose_nothing(made: list[Record], results: Results) -> None:
    table = results.table
    assert (table.search != "").sum() == sum(record.run.search is not None for record in made)
    assert table.search[table.search != ""].nunique() == 1
    assert (table.chosen & (table.search != "")).sum() == 4
    # The trainings on the test set with these rates.
    assert (table.chosen & (table.accuracy_on == "test set") & (table.candidates == 10)).sum() == 4
    assert set(table.length) == {"paused", "training"}
    assert table.samples_per_second[table.length == "paused"].isna().all()
    half = [record for record in made if record.run.pause_after or not record.run.search]
    missing = [record for record in made if record.run.learning_rate != made[0].run.learning_rate]
    assert not any(build(*records).chosen.any() for records in (half, missing))


def test_a_search_over_two_fields_shows_what_each_seed_chose(results: Results) -> None:
    table = results.table.copy()
    table.loc[(table.search != "") & (table.seed == 1), "training_recipe"] = "momentum 0.8"
    for line in found(replace(results, table=table)):
        assert [text.split(", ")[-1] for text in line["with"].split(" or ")][1] == "momentum 0.8"


def test_rows_of_two_searches_name_the_schedules_in_which_they_differ(made: list[Record]) -> None:
    def decaying(run: Run) -> Run:
        rates = run.search and replace(run.search, decay="linear")
        return replace(run, decay="linear", search=rates, tunes=run.tunes and decaying(run.tunes))

    results = results_of(*made, *(replace(each, run=decaying(each.run)) for each in made))
    names = {line["with"] for line in lines_shown(results)}
    assert sorted("decay linear" in name for name in names) == [False, True]


def ids_by_rule(results: Results) -> dict[str, list[str]]:
    """Return the runs on the test set at the larger global batch by the rule of their rates."""
    rows = results.table[results.table.chosen & (results.table.global_batch == 1024)]
    ids: dict[str, list[str]] = {}
    for entry in itertools.chain(*rows.test_runs.str.split()):
        _, rule, run_id = entry.split(":")
        ids.setdefault(rule, []).append(run_id)
    return ids


def test_a_rule_whose_rate_diverges_for_a_seed_says_so(made: list[Record], results: Results) -> None:
    linear = ids_by_rule(results)["linear"]
    for ids, cell in ((linear[:1], "(1 of 2 seeds)"), (linear, "diverged (lr ")):
        cells = lines_shown(results_of(*diverging(made, ids)))[1]
        assert [cell in cells[name] for name in ("linear rule", "square-root rule")] == [True, False]


def recommendation(results: Results) -> str:
    (text,) = [str(each) for each in blocks(results, results.subjects()[0]) if "**Recommendation" in str(each)]
    return text


def test_a_rule_is_better_only_if_every_seed_has_both_accuracies(made: list[Record], results: Results) -> None:
    ids = ids_by_rule(results)
    worse, better = (
        [with_accuracy(each, accuracy) if each.run.id in ids["square-root"] else each for each in made]
        for accuracy in (0.01, 0.99)
    )
    assert "square-root rule: 0.010, better" not in recommendation(results_of(*worse))
    assert "square-root rule: 0.990, better" in recommendation(results_of(*better))
    text = recommendation(results_of(*diverging(better, ids["found"][:1])))
    words = ("(1 of 2 seeds); linear", "square-root rule: 0.990", "better")
    assert [each in text for each in words] == [True, True, False]
    text = recommendation(results_of(*diverging(better, ids["square-root"][:1])))
    assert "square-root rule: 0.990 (1 of 2 seeds);" in text + ";"


def test_a_search_counts_what_was_trained_without_it_or_for_another_one(made: list[Record], results: Results) -> None:
    before = found(results)
    # A grid had trained what the search would have trained to its end.
    ends = [replace(each.run, search=None, tunes=None) if not each.run.pause_after else each.run for each in made]
    after = found(results_of(*(replace(each, run=run) for each, run in zip(made, ends))))
    assert [line["search"] for line in after] == [line["search"] for line in before]
    for name in ("lr", "n", "spent", "grid", "found", "linear"):
        assert [line[name] for line in after] == pytest.approx([line[name] for line in before], nan_ok=True)
    # A changed search had nothing left to train but one candidate.
    first = made[0].run
    assert first.search
    changed = replace(first, search=replace(first.search, rules=False))
    both = found(results_of(replace(made[0], run=changed), *made[1:]))
    assert len({line["search"] for line in both}) == 2
    (other,) = [line for line in both if line["search"] != before[0]["search"]]
    ends = [each for each in made if (each.run.seed, each.run.global_batch) == (first.seed, first.global_batch)]
    whole = [each for each in ends if each.run.search and not each.run.pause_after]
    best = max(whole, key=lambda each: each.evaluations[-1].accuracy)
    assert (other["n"], other["lr"], other["spent"]) == (1, best.run.learning_rate, 43)


def test_a_search_is_compared_with_the_full_grid_of_the_seeds_that_have_one(
    made: list[Record], results: Results
) -> None:
    candidates = [record for record in made if record.run.search]
    whole = {record.run.id: record for record in candidates if not record.run.pause_after}
    grid: dict[str, Record] = {}
    for record in candidates:
        run = replace(record.run, pause_after=None, search=None, tunes=None)
        if run.id not in whole:
            example = next(other for other in whole.values() if other.run.global_batch == run.global_batch)
            grid[run.id] = replace(with_accuracy(example, 0.1), run=run, run_id=run.id)

    def lines() -> list[Any]:
        compared = search.against_grid(results_of(*made, *grid.values()))
        return compared.sort_values("global_batch").to_dict("records")

    def accuracy(seed: int, rate: float) -> float:
        records = (*whole.values(), *grid.values())
        setting = seed, 128, rate
        of_run = {(each.run.seed, each.run.global_batch, each.run.learning_rate): each for each in records}
        return of_run[setting].evaluations[-1].accuracy

    rows = results.table[results.table.chosen & (results.table.global_batch == 128) & (results.table.search != "")]
    first, other = rows.sort_values("seed").to_dict("records")
    # A candidate that the search gave up is better by 0.02 than its choice, and the rate four times smaller.
    better = min(
        (record for record in grid.values() if (record.run.seed, record.run.global_batch) == (0, 128)),
        key=lambda record: abs(record.run.learning_rate - first["lr"] / 4),
    )
    grid[better.run_id] = with_accuracy(better, first["accuracy"] + 0.02)
    small, large = lines()
    assert (small["n"], small["near"], large["n"], large["near"]) == (2, 1, 2, 2)
    assert small["factor"] == pytest.approx(first["lr"] / better.run.learning_rate)
    assert (small["loss"], small["most_loss"]) == pytest.approx((0.01, 0.02))
    assert (large["factor"], large["most_loss"]) == (1, 0)
    assert (small["spent"], small["grid"]) == (86, 240)
    # Each seed loses with the best rate of the other one.
    lost = (
        first["accuracy"] + 0.02 - accuracy(0, other["lr"]),
        other["accuracy"] - accuracy(1, better.run.learning_rate),
    )
    assert (small["other_loss"], small["most_other_loss"]) == pytest.approx((sum(lost) / 2, max(lost)))
    # Without one of its candidates a seed's grid is not whole; a diverged one is a result.
    grid[better.run_id] = replace(better, outcome=DIVERGED)
    assert lines()[0]["most_loss"] == 0
    del grid[better.run_id]
    small, large = lines()
    assert (small["n"], large["n"], math.isnan(small["other_loss"])) == (1, 2, True)


def test_the_rate_of_a_search_stays_the_best_beside_a_grid_on_other_devices(made: list[Record]) -> None:
    def on_one_device(run: Run) -> Run:
        return replace(run, devices=1, batch_per_device=1024, tunes=run.tunes and on_one_device(run.tunes))

    large = [record for record in made if record.run.global_batch == 1024]
    searched = [replace(record, run=on_one_device(record.run)) for record in large]
    searched = [replace(record, run_id=record.run.id) for record in searched]
    # The same trainings on 8 devices: another rate is more accurate on the test set.
    grid = [record for record in large if not record.run.search]
    table = build(*searched)
    chosen = {*table.lr[table.chosen]}
    assert max(grid, key=lambda record: record.evaluations[-1].accuracy).run.learning_rate not in chosen
    results = results_of(*(record for record in made if record not in large), *searched, *grid)
    rows = results.headline(Subject("cifar_resnet50_v2", "cifar10"))
    best = best_by_batch(rows, results.diverged(rows), 128)
    assert (best.lr[1024], best.devices[1024], best.chosen[1024]) == (min(chosen), 1, True)


def test_a_batch_without_a_completed_candidate_and_an_interrupted_rung_are_no_results(made: list[Record]) -> None:
    candidates = [each.run for each in made if each.run.search and each.run.global_batch == 1024]
    for lost in (candidates, [run for run in candidates if not run.pause_after]):
        results = results_of(*diverging(made, {run.id for run in lost}))
        assert [line["global_batch"] for line in found(results)] == [128]
        assert "At global batch 1,024" in str(shown(results))
        # Lower rates would not help those that failed for another reason, and are tried again.
        results = results_of(*(replace(each, outcome=FAILED) if each.run in candidates else each for each in made))
        assert "At global batch 1,024" not in str(shown(results))
    (*_, paused) = [each for each in made if each.run.pause_after]
    later = replace(paused, started="2030-01-01T00:00:00+00:00", outcome=FAILED, reason=INTERRUPTED)
    assert {*search.candidates(results_of(*made, later)).outcome} == {"completed"}


def test_a_search_that_is_repeated_with_another_field_is_shown_as_it_is_now(made: list[Record]) -> None:
    def again(record: Record) -> Record:
        run = replace(record.run, window=7, tunes=record.run.tunes and replace(record.run.tunes, window=7))
        return replace(record, started=f"2030{record.started[4:]}", run=run)

    later = [*map(again, made)]
    table = build(*made, *later)
    assert table[table.run_id.isin({each.run.id for each in later})].chosen.any()


def test_a_search_that_ended_while_the_accuracy_rose_says_so(
    made: list[Record], results: Results, tmp_path: Path
) -> None:
    assert [line["is_cut_short"] for line in found(results)] == [False, False]
    whole = [each for each in made if each.run.search and not each.run.pause_after]
    last = max(whole, key=lambda each: each.run.learning_rate)  # the third of one of two seeds
    better = [with_accuracy(each, 0.9) if each is last else each for each in made]
    assert [line["is_cut_short"] for line in found(results_of(*better))] == [False, True]
    # If the next higher rate has diverged, the search is at its end.
    higher = [each.run for each in made if each.run.learning_rate > last.run.learning_rate and each.run.pause_after]
    next_higher = min(run.learning_rate for run in higher)
    diverged = diverging(better, {run.id for run in higher if run.learning_rate == next_higher})
    assert [line["is_cut_short"] for line in found(results_of(*diverged))] == [False, False]
    # Both seeds found the lowest rate that one of them trained to the end; the other one trained a lower one, too.
    records = journal.read([simulated.write_journal("8 A100", "search", tmp_path)])
    lines = found(results_of(*records))
    ends = [each for each in records if each.run.search and not each.run.pause_after and each.run.global_batch == 128]
    lowest = [min(each.run.learning_rate for each in ends if each.run.seed == seed) for seed in (0, 1)]
    assert min(lowest) < lines[0]["lr"] == max(lowest)
    assert not lines[0]["is_cut_short"]


def test_the_noise_scale_of_a_training_that_diverged_is_no_estimate(results: Results) -> None:
    table = results.table.copy()
    first, second, *_ = table.index[(table.length == "training") & (table.outcome == "completed")]
    table.loc[[first, second], "noise_scale"] = [100.0, 1e9]
    table.loc[second, "outcome"] = DIVERGED
    assert "100 samples (median of 1 runs)" in str(shown(replace(results, table=table)))


def test_rules_that_are_trained_later_are_shown(made: list[Record], results: Results) -> None:
    def without_rules(record: Record) -> Record:
        searching = record.run.search and replace(record.run.search, rules=False)
        return replace(record, run=replace(record.run, search=searching))

    for each in (results, results_of(*map(without_rules, made))):
        assert [line["linear_n"] for line in found(each)] == [0, 2]


def test_the_recipes_of_a_command_include_the_trainings_with_the_rules_rates(
    made: list[Record], results: Results
) -> None:
    runs = tuple(each.run.id for each in made if each.run.search)
    request = LastRun(recipes=("search",), runs=runs, skipped={}, machine=results.machine)
    tested = {each.run.learning_rate for each in made if not each.run.search}
    assert {*recipes.settings(replace(results, last_run=request)).lr} == tested


def test_searches_on_another_machine_are_on_the_page_of_details(made: list[Record], results: Results) -> None:
    trained = next(each for each in made if not each.run.search)
    elsewhere = results_of(replace(trained, infrastructure="here"), *made)
    assert found(elsewhere) == []
    (lines,) = tables(PAGES["learning_rate"][1](elsewhere))["Learning rates found by searches"]
    assert [(line["machine"], number(line["best lr found"])) for line in lines] == [
        (made[0].infrastructure, line["lr"]) for line in found(results)
    ]
