"""What pages show of searches for a learning rate, from the journal of a simulated machine."""

import dataclasses
import math
from collections.abc import Sequence
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
from tests.pages import check, number, tables


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """The records of a search on a simulated machine."""
    return journal.read([simulated.write_journal("8 V100", "search", tmp_path_factory.mktemp("simulated"))])


def test_a_simulated_machine_s_page_shows_rates_rules_and_epochs(
    made: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explorer, "page", lambda table, cache: "")
    curves = []
    draw = chart.lines

    def drawn(lines: Sequence[chart.Line], title: str, *words: str, **options: Any) -> Any:
        curves.append((title, lines))
        return draw(lines, title, *words, **options)

    monkeypatch.setattr(chart, "lines", drawn)
    report.write(made, [], page=tmp_path / "results.md", folder=tmp_path, prices=prices.load({}))
    page = (tmp_path / "results.md").read_text()
    for name in tmp_path.glob("*.md"):
        check(name)
    (table,) = [lines for lines in tables(page)["Learning rate and global batch"] if "best lr found" in lines[0]]
    assert [line["global batch"] for line in table] == ["128", "1,024"]
    reached = tables((tmp_path / "learning_rate.md").read_text())["Candidates of searches"][0]
    for line in table:
        batch = number(line["global batch"])
        own = [record for record in made if record.run.global_batch == batch]
        candidates = [record for record in own if record.run.search]
        last = [record for record in candidates if not record.run.pause_after]
        best = [max((r for r in last if r.run.seed == s), key=lambda r: r.evaluations[-1].accuracy) for s in (0, 1)]
        rates = [record.run.learning_rate for record in best]
        assert number(line["best lr found"]) == min(rates)
        tested = {(r.run.seed, r.run.learning_rate): r.evaluations[-1].accuracy for r in own if not r.run.search}
        assert number(line["accuracy"]) == pytest.approx(sum(tested[s, rates[s]] for s in (0, 1)) / 2, abs=6e-4)
        assert line["epochs spent (full grid)"] == "86 (240)"
        cells = [candidate for candidate in reached if candidate["global batch"] == line["global batch"]]
        furthest = {number(cell["lr"]): cell["accuracy (epochs) of each seed"].split(", ") for cell in cells}
        assert sum(number(text.split()[1]) for texts in furthest.values() for text in texts) == 86
        for seed, record in enumerate(best):
            assert furthest[record.run.learning_rate][seed] == f"{record.evaluations[-1].accuracy:.3f} (12)"
        assert line["n"] == "2"
        for name, rule in {"linear rule": Linear, "square-root rule": SquareRoot}.items():
            if batch == 128:
                smallest = rates
                assert line[name] == ""
            else:
                expected = [tested[s, rule(base=smallest[s], per=128).at(batch)] for s in (0, 1)]
                assert number(line[name]) == pytest.approx(sum(expected) / 2, abs=6e-4)
    assert f"at global batch 1,024 use {number(table[1]['best lr found']):g}" in page
    # No other table takes the rate that is best on the test set.
    (best,) = [lines for lines in tables(page)["Learning rate and global batch"] if "best lr" in lines[0]]
    assert number(best[1]["best lr"]) == min(rates)
    assert f"{number(best[1]['best lr']):g} at 1,024, chosen from 10 tried" in page
    # All 10 rates after one epoch, and three to four that two seeds trained to the end; no paused run is in a table.
    (lines,) = [lines for title, lines in curves if title == "Accuracy against learning rate"]
    assert [len(line.points) for line in lines if not line.measured] == [10, 10]
    assert [len(line.points) for line in lines if line.measured] == [4, 4]
    assert "paused" not in page


def test_candidates_of_different_searches_or_half_a_search_choose_nothing(made: list[Record]) -> None:
    table = build(*made)
    assert (table.search != "").sum() == sum(record.run.search is not None for record in made)
    assert table.search[table.search != ""].nunique() == 1
    assert (table.chosen & (table.search != "")).sum() == 4
    # The trainings on the test set with these rates.
    assert (table.chosen & (table.accuracy_on == "test set") & (table.candidates == 10)).sum() == 4
    assert set(table.length) == {"paused", "training"}
    assert table.samples_per_second[table.length == "paused"].isna().all()
    half = build(*(record for record in made if record.run.pause_after or not record.run.search))
    assert not half.chosen.any()
    missing = made[0].run.learning_rate
    assert not build(*(record for record in made if record.run.learning_rate != missing)).chosen.any()


def test_a_rule_whose_rate_diverges_for_a_seed_says_so(made: list[Record]) -> None:
    table = build(*made)
    (winner,) = table[
        table.chosen & (table.seed == 0) & (table.global_batch == 1024) & (table.search != "")
    ].itertuples()
    lost = dict(entry.split(":")[1:] for entry in winner.test_runs.split())["linear"]
    diverged = {"outcome": DIVERGED, "reason": "nan", "evaluations": ()}
    every = {row.test_runs for row in table.itertuples() if row.test_runs and row.global_batch == 1024}
    linear = {entry.split(":")[2] for texts in every for entry in texts.split() if ":linear:" in entry}
    for ids, cell in (({lost}, "(1 of 2 seeds)"), (linear, "diverged (lr ")):
        records = [dataclasses.replace(each, **diverged) if each.run.id in ids else each for each in made]
        results = Results(table=build(*records), machine=made[0].infrastructure)
        (subject,) = results.subjects()
        _, shown, *_ = search.blocks(results, subject, search.found(results, subject))
        cells = tables(f"\n## x\n{shown}")["x"][0][1]
        assert [cell in cells[name] for name in ("linear rule", "square-root rule")] == [True, False]


def found(records: list[Record]) -> list[dict[str, Any]]:
    results = Results(table=build(*records), machine=records[0].infrastructure)
    (subject,) = results.subjects()
    return search.found(results, subject).to_dict("records")


def test_advice_names_the_rule_whose_rate_is_better_than_what_a_search_found(made: list[Record]) -> None:
    table = build(*made)
    chosen = table[table.chosen & (table.global_batch == 1024)]
    ids = {entry.split(":")[2] for texts in chosen.test_runs for entry in texts.split() if ":square-root:" in entry}

    def advice(accuracy: float) -> str:
        better = [
            dataclasses.replace(
                each, evaluations=tuple(dataclasses.replace(one, accuracy=accuracy) for one in each.evaluations)
            )
            if each.run.id in ids
            else each
            for each in made
        ]
        results = Results(table=build(*better), machine=made[0].infrastructure)
        (text,) = [block for block in blocks(results, results.subjects()[0]) if "**Recommendation" in str(block)]
        return str(text)

    assert ("square-root rule: 0.990, better" in advice(0.99), "0.010, better" in advice(0.01)) == (True, False)


def test_a_search_counts_what_was_trained_without_it_or_for_another_one(made: list[Record]) -> None:
    before = found(made)
    # A grid had trained what the search would have trained to its end.
    alone = {"search": None, "tunes": None}
    ends = [dataclasses.replace(each.run, **alone) if not each.run.pause_after else each.run for each in made]
    records = [dataclasses.replace(each, run=run) for each, run in zip(made, ends)]
    assert [line["search"] for line in found(records)] == [line["search"] for line in before]
    for name in ("lr", "n", "spent", "grid", "found", "linear"):
        assert [line[name] for line in found(records)] == pytest.approx([line[name] for line in before], nan_ok=True)
    # A changed search had nothing left to train but one candidate.
    first = made[0].run
    assert first.search
    changed = dataclasses.replace(first, search=dataclasses.replace(first.search, rules=False))
    both = found([dataclasses.replace(made[0], run=changed), *made[1:]])
    assert len({line["search"] for line in both}) == 2
    (other,) = [line for line in both if line["search"] != before[0]["search"]]
    seed, batch = first.seed, first.global_batch
    ends = [each for each in made if (each.run.seed, each.run.global_batch) == (seed, batch) and each.run.search]
    best = max((each for each in ends if not each.run.pause_after), key=lambda each: each.evaluations[-1].accuracy)
    assert (other["n"], other["lr"], other["spent"]) == (1, best.run.learning_rate, 43)


def test_a_search_is_compared_with_the_full_grid_of_the_seeds_that_have_one(made: list[Record]) -> None:
    candidates = [record for record in made if record.run.search]
    whole = {record.run.id: record for record in candidates if not record.run.pause_after}
    grid: dict[str, Record] = {}
    for record in candidates:
        run = dataclasses.replace(record.run, pause_after=None, search=None, tunes=None)
        if run.id not in whole:
            example = next(other for other in whole.values() if other.run.global_batch == run.global_batch)
            evaluation = dataclasses.replace(example.evaluations[-1], accuracy=0.1)
            grid[run.id] = dataclasses.replace(example, run=run, run_id=run.id, evaluations=(evaluation,))

    def lines() -> list[Any]:
        results = Results(table=build(*made, *grid.values()), machine=made[0].infrastructure)
        return search.against_grid(results).sort_values("global_batch").to_dict("records")

    def accuracy(seed: int, rate: float) -> float:
        trained = ((record.run, record.evaluations) for record in (*whole.values(), *grid.values()))
        setting = seed, 128, rate
        return next(
            end[-1].accuracy for run, end in trained if setting == (run.seed, run.global_batch, run.learning_rate)
        )

    winners = [row for row in build(*made).to_dict("records") if row["chosen"] and row["global_batch"] == 128]
    first = next(row for row in winners if row["seed"] == 0)
    # A candidate that the search gave up is better by 0.02 than its choice, and the rate four times smaller.
    better = min(
        (record for record in grid.values() if (record.run.seed, record.run.global_batch) == (0, 128)),
        key=lambda record: abs(record.run.learning_rate - first["lr"] / 4),
    )
    evaluation = dataclasses.replace(better.evaluations[-1], accuracy=first["accuracy"] + 0.02)
    grid[better.run_id] = dataclasses.replace(better, evaluations=(evaluation,))
    small, large = lines()
    assert (small["n"], small["near"], large["n"], large["near"]) == (2, 1, 2, 2)
    assert small["factor"] == pytest.approx(first["lr"] / better.run.learning_rate)
    assert (small["loss"], small["most_loss"]) == pytest.approx((0.01, 0.02))
    assert (large["factor"], large["most_loss"]) == (1, 0)
    assert (small["spent"], small["grid"]) == (86, 240)
    # Each seed loses with the best rate of the other one.
    other = next(row for row in winners if row["seed"] != 0)
    lost = (
        first["accuracy"] + 0.02 - accuracy(0, other["lr"]),
        other["accuracy"] - accuracy(1, better.run.learning_rate),
    )
    assert (small["other_loss"], small["most_other_loss"]) == pytest.approx((sum(lost) / 2, max(lost)))
    # Without one of its candidates a seed's grid is not whole; a diverged one is a result.
    grid[better.run_id] = dataclasses.replace(grid[better.run_id], outcome=DIVERGED)
    assert lines()[0]["most_loss"] == 0
    del grid[better.run_id]
    small, large = lines()
    assert (small["n"], large["n"], math.isnan(small["other_loss"])) == (1, 2, True)


def test_the_rate_of_a_search_stays_the_best_beside_a_grid_on_other_devices(made: list[Record]) -> None:
    def on_one_device(run: Run) -> Run:
        return dataclasses.replace(run, devices=1, batch_per_device=1024, tunes=run.tunes and on_one_device(run.tunes))

    large = [record for record in made if record.run.global_batch == 1024]
    searched = [dataclasses.replace(record, run=on_one_device(record.run)) for record in large]
    searched = [dataclasses.replace(record, run_id=record.run.id) for record in searched]
    # The same trainings on 8 devices: another rate is more accurate on the test set.
    grid = [record for record in large if not record.run.search]
    chosen = {row["lr"] for row in build(*searched).to_dict("records") if row["chosen"]}
    assert max(grid, key=lambda record: record.evaluations[-1].accuracy).run.learning_rate not in chosen
    others = [record for record in made if record not in large]
    results = Results(table=build(*others, *searched, *grid), machine=made[0].infrastructure)
    rows = results.headline(Subject("cifar_resnet50_v2", "cifar10"))
    best = best_by_batch(rows, results.diverged(rows), 128)
    assert (best.lr[1024], best.devices[1024], best.chosen[1024]) == (min(chosen), 1, True)


def test_a_batch_without_a_completed_candidate_and_an_interrupted_rung_are_no_results(made: list[Record]) -> None:
    diverged = {"outcome": DIVERGED, "reason": "nan", "evaluations": ()}
    candidates = [each.run for each in made if each.run.search and each.run.global_batch == 1024]
    for is_lost in ({run.id for run in candidates}, {run.id for run in candidates if not run.pause_after}):
        records = [dataclasses.replace(each, **diverged) if each.run.id in is_lost else each for each in made]
        results = Results(table=build(*records), machine=made[0].infrastructure)
        (subject,) = results.subjects()
        rates = search.found(results, subject)
        assert [*rates.global_batch] == [128]
        assert "1,024" in str(search.blocks(results, subject, rates))
    (*_, paused) = [each for each in made if each.run.pause_after]
    later = dataclasses.replace(paused, started="2030-01-01T00:00:00+00:00", outcome=FAILED, reason=INTERRUPTED)
    results = Results(table=build(*made, later), machine=made[0].infrastructure)
    assert {*search.candidates(results).outcome} == {"completed"}


def with_fields(record: Record, started: str, **fields: Any) -> Record:
    tunes = record.run.tunes and dataclasses.replace(record.run.tunes, **fields)
    return dataclasses.replace(record, started=started, run=dataclasses.replace(record.run, **fields, tunes=tunes))


def test_a_search_that_is_repeated_with_another_field_is_shown_as_it_is_now(made: list[Record]) -> None:
    again = [with_fields(each, f"2030{each.started[4:]}", window=7) for each in made]
    table = build(*made, *again)
    assert table[table.run_id.isin({each.run.id for each in again})].chosen.any()


def test_a_search_that_ended_while_the_accuracy_rose_says_so(made: list[Record], tmp_path: Path) -> None:
    assert [line["is_cut_short"] for line in found(made)] == [False, False]
    whole = [each for each in made if each.run.search and not each.run.pause_after]
    last = max(whole, key=lambda each: each.run.learning_rate)  # the third of one of two seeds
    best = dataclasses.replace(last, evaluations=(dataclasses.replace(last.evaluations[-1], accuracy=0.9),))
    lines = found([best if each is last else each for each in made])
    assert [line["is_cut_short"] for line in lines] == [False, True]
    # Both seeds found the lowest rate that one of them trained to the end; the other one trained a lower one, too.
    records = journal.read([simulated.write_journal("8 A100", "search", tmp_path)])
    lines = found(records)
    ends = [each for each in records if each.run.search and not each.run.pause_after and each.run.global_batch == 128]
    lowest = [min(each.run.learning_rate for each in ends if each.run.seed == seed) for seed in (0, 1)]
    assert min(lowest) < lines[0]["lr"] == max(lowest)
    assert not lines[0]["is_cut_short"]


def test_rules_that_are_trained_later_are_shown(made: list[Record]) -> None:
    def without_rules(record: Record) -> Record:
        run = record.run
        searching = run.search and dataclasses.replace(run.search, rules=False)
        return dataclasses.replace(record, run=dataclasses.replace(run, search=searching))

    for records in (made, [*map(without_rules, made)]):
        assert [line["linear_n"] for line in found(records)] == [0, 2]


def test_the_recipes_of_a_command_include_the_trainings_with_the_rules_rates(made: list[Record]) -> None:
    name, runs = made[0].infrastructure, tuple(each.run.id for each in made if each.run.search)
    request = LastRun(recipes=("search",), runs=runs, skipped={}, machine=name)
    results = Results(table=build(*made), machine=name, last_run=request)
    tested = {each.run.learning_rate for each in made if not each.run.search}
    assert {*recipes.settings(results).lr} == tested


def test_searches_on_another_machine_are_on_the_page_of_details(made: list[Record]) -> None:
    trained = next(each for each in made if not each.run.search)
    here = dataclasses.replace(trained, infrastructure="here")
    results = Results(table=build(*made, here), machine="here")
    (subject,) = results.subjects()
    assert len(search.found(results, subject)) == 0
    (lines,) = tables(PAGES["learning_rate"][1](results))["Learning rates found by searches"]
    rates = [line["lr"] for line in found(made)]
    assert [(line["machine"], number(line["best lr found"])) for line in lines] == [
        (made[0].infrastructure, rate) for rate in rates
    ]
