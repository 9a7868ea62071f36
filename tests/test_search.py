"""Searches for a learning rate: what is tried and chosen, that nothing is trained twice, and what the page shows."""

import dataclasses
import math
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import CIFAR10, SGD, AdamW, Fixed, Recipe, Search, Synthetic, data, search
from poc.config.run import Run
from poc.data import sources
from poc.plan import START_SECONDS, estimate, plan, training_seconds
from poc.records import journal, last_run
from poc.records.record import COMPLETED, DIVERGED, FAILED, INTERRUPTED, LOST, OUT_OF_MEMORY, WorkerResult
from poc.run import workload
from poc.run.launcher import HostResult
from poc.run.parent import execute
from poc.run.sweep import Sweep
from poc.search import Result
from poc.values import UserError, from_plain, to_plain
from tests.builders import MACHINE, SMALL, build, course, end_of, place_in, recipe_file, run_of
from tests.launch import finish, records, run_here, start
from tests.test_faults import killed, written

slow = pytest.mark.slow
CIFAR = CIFAR10(crop=32)
KILLS = int(os.environ.get("POC_KILLS", 2))


def searched(**fields: Any) -> list[Any]:
    """Return what a recipe with a search plans on a machine with two cores."""
    fields = {**SMALL, "lr": Search(low=0.01, high=4.0), "epochs": 12, "data": CIFAR, **fields}
    return plan("test", Recipe(**fields), MACHINE)


# What is planned


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        (dict(low=0.01, high=4.0), [0.01, 0.0195, 0.0379, 0.0737, 0.143, 0.279, 0.543, 1.06, 2.06, 4.0]),
        (dict(low=0.1, high=0.8), [0.1, 0.2, 0.4, 0.8]),
        (dict(low=0.1, high=0.11), [0.1, 0.11]),
        (dict(low=0.1, high=1.6, points=3), [0.1, 0.4, 1.6]),
    ],
)
def test_rates_have_equal_ratios_of_about_two(options: Any, rates: list[float]) -> None:
    assert Search(**options).rates == rates


@pytest.mark.parametrize(
    ("epochs", "candidates", "rungs", "sum_of_epochs"),
    [
        (8, 10, (1, 3), 31),
        (12, 10, (1, 3), 43),
        (200, 9, (25, 3), 225 + 3 * 175),
        (8, 40, (1, 13), 131),
        (12, 4, (1, 3), 37),
        (12, 3, (12, 0), 36),
        (1, 10, (1, 0), 10),
    ],
)
def test_all_train_for_an_eighth_and_at_least_three_to_the_end(
    epochs: int, candidates: int, rungs: tuple[int, int], sum_of_epochs: int
) -> None:
    assert search.rungs(epochs, candidates) == rungs
    assert search.rung_epochs(epochs, candidates) == sum_of_epochs


def test_a_seed_s_search_over_all_global_batches_is_one_item_and_its_trainings_are_ordinary_runs() -> None:
    fields = {"batch_per_device": [512, 128], "seeds": 2, "emulated": True}
    fields["cases"] = [{"devices": 1}, {"devices": 2, "batch_per_device": 256}]
    items = searched(**fields)
    assert [item.run.seed for item in items] == [0, 1]
    item = items[0]
    found = [(candidates[0].global_batch, candidates[0].devices, len(candidates)) for candidates in item.searched]
    assert found == [(128, 1, 10), (512, 1, 10), (512, 2, 10)]
    assert search.most_epochs(item.searched) == (3 * 43, 3 * 120, 12 + 2 * 36)
    (ordinary,) = searched(batch_per_device=128, lr=0.0379)
    candidate = item.searched[0][2]
    assert candidate.tunes.id == ordinary.run.id
    assert candidate.tunes.search is None
    # It trains on 45,000 images, with the schedule of its whole length.
    assert (candidate.uses_validation_split, candidate.tunes.uses_validation_split) == (True, False)
    assert (candidate.steps_per_epoch, candidate.steps) == (45_000 // 128, 12 * (45_000 // 128))
    assert from_plain(Run, to_plain(candidate)) == candidate
    # Its id is that of the same run without a search; a paused one has another, and the same checkpoints.
    assert candidate.id == dataclasses.replace(candidate, search=None, tunes=None).id
    paused, place = dataclasses.replace(candidate, pause_after=3), place_in(Path("cache"))
    assert paused.id != candidate.id
    assert place.checkpoints_of(paused) == place.checkpoints_of(candidate)
    assert not paused.whole_epochs
    assert training_seconds(paused, MACHINE) == pytest.approx(training_seconds(candidate, MACHINE) / 4)
    per_epoch = [training_seconds(batch[0], MACHINE) / 12 for batch in item.searched]
    after = [estimate(batch[0].tunes, MACHINE) for batch in item.searched]
    assert item.seconds == pytest.approx(
        3 * 13 * START_SECONDS["cpu"] + 43 * sum(per_epoch) + after[0] + 3 * sum(after[1:])
    )


def test_schedule_and_optimizer_can_be_searched_too() -> None:
    schedule: dict[str, Any] = dict(warmup_epochs=[0, 1], warmup_from=0.05, decay="linear")
    lr = Search(low=0.1, high=0.4, momentum=[0.8, 0.9], weight_decay=1e-3, **schedule)
    ((candidates,),) = (item.searched for item in searched(lr=lr))
    assert len(candidates) == len({run.id for run in candidates}) == 3 * 2 * 2
    assert {(run.warmup_steps, run.warmup_from) for run in candidates} == {(0, 0.0), (1406, 0.05)}
    assert {run.tunes.warmup_steps for run in candidates} == {0, 1562}
    assert {run.optimizer for run in candidates} == {SGD(momentum=m, weight_decay=1e-3) for m in (0.8, 0.9)}
    assert {run.decay for run in candidates} == {"linear"}
    assert len({search.identity(run) for run in candidates}) == 1
    # A step in each dimension of 0.2, no warm-up, 0.9: the others' are 0.4 and 0.1, a warm-up, and 0.8.
    near = [candidates[index] for index in search._neighbours(candidates, 5)]
    found = [(run.learning_rate, run.warmup_steps > 0, run.optimizer.momentum) for run in near]
    assert found == [(0.4, False, 0.9), (0.1, False, 0.9), (0.2, True, 0.9), (0.2, False, 0.8)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (lambda: dict(lr=Search(low=1.0, high=0.1)), r"Search\.low: 1\.0 .*less than high=0\.1"),
        (lambda: dict(lr=Search(low=0.1, high=1.0, points=1)), r"Search\.points: 1"),
        (lambda: dict(lr=Search(low=1.0, high=1.001, points=9)), r"Search\.points"),
        (lambda: dict(lr=Search(low=0.1, high=1.0, momentum=1.0)), r"Search\.momentum"),
        (lambda: dict(lr=Search(low=0.1, high=1.0, warmup_from=0.05)), "needs warmup_epochs"),
        (lambda: dict(lr=Search(low=0.1, high=1.0, momentum=0.5), optimizer=AdamW()), "'adamw' has no momentum"),
        (lambda: dict(lr=Search(low=0.1, high=1.0, warmup_epochs=12)), "warmup_epochs"),
        (lambda: dict(epochs=None, steps=100), "use epochs= in place of steps=100"),
        (lambda: dict(seconds=9.0), "remove seconds=9.0"),
        (lambda: dict(target_accuracy=0.7), "remove target_accuracy=0.7"),
        (lambda: dict(evaluate=False), "remove evaluate=False"),
        (lambda: dict(repeats=2), "use seeds= in place of repeats=2"),
        (lambda: dict(batch_per_device="largest"), "number as batch_per_device"),
        (lambda: dict(data=CIFAR10(crop=32, validate_on="held-out")), "remove validate_on="),
        (lambda: dict(lr=Search(low=0.1, high=1.0, momentum=[0.9, 0.9])), r"Search\.momentum.*once"),
        (lambda: dict(batch_per_device=48_000), "larger than the 45000 training images"),
    ],
)
def test_a_mistake_in_a_search_is_refused(fields: Any, message: str) -> None:
    def planned() -> None:
        recipe = Recipe(**{**SMALL, "lr": Search(low=0.01, high=4.0), "epochs": 12, "data": CIFAR, **fields()})
        recipe.check_effects()
        plan("test", recipe, MACHINE)

    with pytest.raises(UserError, match=message):
        planned()


def test_quick_trains_with_one_rate_in_place_of_a_search() -> None:
    recipe = Recipe(**{**SMALL, "lr": Search(low=0.01, high=4.0, decay="cosine"), "epochs": 12})
    (item,) = plan("test", recipe.with_fields({"lr": Search(low=0.1, high=0.4, decay="cosine")}), MACHINE, quick=True)
    assert (item.searched, item.run.learning_rate, item.run.decay, item.run.steps) == ((), 0.2, "cosine", 12)


# What is chosen

FIELDS: dict[str, Any] = {"lr": Search(low=0.1, high=0.8), "epochs": 4, "batch_per_device": [128, 512]}


def done(searched: Any, results: dict[tuple[int, float, int | None], Result]) -> list[tuple[int, float, int | None]]:
    """Return batch, rate and pause of all that a search does, given results by these; a training has pause -1."""
    ran = []

    def key(run: Run) -> tuple[int, float, int | None]:
        return run.global_batch, run.learning_rate, run.pause_after if run.search else -1

    for stage in search.stages(searched, lambda run: results.get(key(run))):
        ran += [key(run) for run in stage.runs]
    return ran


def good(accuracy: float, loss: float = 1.0) -> Result:
    return Result(completed=True, accuracy=accuracy, loss=loss)


BAD = Result(completed=False)
FIRST = {(128, 0.1, 1): good(0.3), (128, 0.2, 1): good(0.6), (128, 0.4, 1): good(0.5), (128, 0.8, 1): good(0.2)}
WHOLE = {(128, 0.1, None): good(0.8), (128, 0.2, None): good(0.7), (128, 0.4, None): good(0.6)}
WHOLE[128, 0.8, None] = good(0.9)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # The most promising one, the next higher rate, and the other neighbour of the better one; then a test.
        ({}, [(0.2, None), (0.4, None), (0.1, None), (0.1, -1)]),
        ({(128, 0.4, None): good(0.75)}, [(0.2, None), (0.4, None), (0.8, None), (0.8, -1)]),
        # A higher accuracy by luck after the first epoch does not count as much as good neighbours.
        (
            {(128, 0.1, 1): good(0.6), (128, 0.2, 1): good(0.2), (128, 0.4, 1): good(0.55), (128, 0.8, 1): good(0.5)},
            [(0.8, None), (0.4, None), (0.8, -1)],
        ),
        # Of equal accuracies the one with the lower loss, then the lower rate.
        ({(128, 0.4, None): good(0.7, 0.9)}, [(0.2, None), (0.4, None), (0.8, None), (0.8, -1)]),
        ({(128, 0.4, None): good(0.7)}, [(0.2, None), (0.4, None), (0.1, None), (0.1, -1)]),
        # One that did not complete never goes on, and is no result.
        ({(128, 0.4, 1): BAD}, [(0.1, None), (0.2, None), (0.1, -1)]),
        ({(128, 0.2, None): BAD, (128, 0.4, None): BAD}, [(0.2, None), (0.4, None), (0.1, None), (0.1, -1)]),
        ({(128, rate, None): BAD for rate in (0.1, 0.2, 0.4)}, [(0.2, None), (0.4, None), (0.1, None)]),
        ({key: BAD for key in FIRST}, []),
    ],
)
def test_from_the_best_candidate_so_far_a_search_goes_to_its_neighbours(
    changes: Any, expected: list[tuple[float, int | None]]
) -> None:
    (item,) = searched(**FIELDS)
    ran = done(item.searched[:1], {**FIRST, **WHOLE, **changes})
    assert ran == [*FIRST, *((128, rate, pause) for rate, pause in expected)]


def test_a_search_takes_no_more_epochs_than_planned_though_whole_trainings_diverge() -> None:
    (item,) = searched(lr=Search(low=0.01, high=4.0))
    after_first = {(run.global_batch, run.learning_rate, 1): good(run.learning_rate) for run in item.searched[0]}
    whole = {(run.global_batch, run.learning_rate, None): BAD for run in item.searched[0]}
    ran = done(item.searched, {**after_first, **whole})
    spent = sum(1 if pause else 11 for _, _, pause in ran)
    assert spent == search.most_epochs(item.searched)[0]


def test_larger_batches_are_also_trained_with_the_rates_of_the_rules() -> None:
    (item,) = (planned.searched for planned in searched(**FIELDS))

    def all_results(best: dict[int, float]) -> Any:
        rates = Search(low=0.1, high=0.8).rates
        keys = [(batch, rate, pause) for batch in best for rate in rates for pause in (1, None)]
        found = {key: good(1 - abs(math.log(key[1] / best[key[0]])) / 10) for key in keys}
        return done(item, {**found, **{(batch, rate, -1): good(0.5) for batch in best for rate in (*rates, 0.05)}})

    def tested(best: dict[int, float]) -> list[tuple[int, float]]:
        return [(batch, rate) for batch, rate, pause in all_results(best) if pause == -1]

    assert tested({128: 0.1, 512: 0.1}) == [(128, 0.1), (512, 0.1), (512, 0.4), (512, 0.2)]
    # Where a rule gives the rate that was found it is not trained again.
    assert tested({128: 0.1, 512: 0.4}) == [(128, 0.1), (512, 0.4), (512, 0.2)]
    (item,) = (planned.searched for planned in searched(**{**FIELDS, "lr": Search(low=0.1, high=0.8, rules=False)}))
    assert tested({128: 0.1, 512: 0.1}) == [(128, 0.1), (512, 0.1)]


# How it is done


class Training:
    """Do runs in this process: the accuracy is best at 0.05 per 128 samples, on what `data.load` validates on."""

    def __init__(self, fate: Any = lambda run: (COMPLETED, ""), reads: Counter[str] | None = None) -> None:
        self.runs: list[Run] = []
        self.test_batches: list[int] = []
        """Batches of the test set that were read up to the end of each run."""
        self.forgotten: set[str] = set()
        self.fate = fate
        self.occupied = ""
        self._reads = Counter() if reads is None else reads

    def steps(self, run: Run, conditions: Any) -> set[tuple[int, str]]:
        return set()

    def renewed(self) -> bool:
        return True

    def forget(self, run: Run) -> None:
        self.forgotten.add(dataclasses.replace(run, pause_after=None).id)

    def attempt(self, run: Run, request: Any) -> tuple[list[HostResult], str]:
        self.runs.append(run)
        outcome, reason = self.fate(run)
        dataset = data.load(run.data, source=None, cache=Path("none"))
        samples = sum(len(batch) for batch in data.validation_batches(dataset, run.data, batch=250))
        self.test_batches.append(self._reads["test"])
        accuracy = 0.8 - abs(math.log2(run.learning_rate / 0.05 / (run.global_batch / 128))) / 10
        evaluation = dict(epoch=run.last_epoch, at=0.0, seconds=1.0, accuracy=accuracy, samples=samples, loss=1.0)
        window = dict(epoch=1, start=0.0, steps=run.last_step, samples=1, seconds=1.0, waited=0.0, loss=1.0)
        fields = dict(outcome=outcome, reason=reason, dataset=dataset.name, data_checksum=dataset.checksum, wall=1.0)
        result = from_plain(WorkerResult, {**fields, "evaluations": [evaluation], "windows": [window]})
        use = dict(usable_cores=2, others_busy_cores=0.0, stolen_cores=0.0)
        fields = dict(failure=None, interrupted=False, monitor=None, core_use=use, occupied=self.occupied)
        return [HostResult(workers=(result,), **fields)], reason if outcome == FAILED else ""


@pytest.fixture(autouse=True)
def test_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Replace CIFAR-10 by a few images, and count the batches that are read of its test set."""
    reads: Counter[str] = Counter()

    class TestSet(data.Images):
        def center_crop(self, *arguments: Any) -> Any:
            reads["test"] += 1
            return super().center_crop(*arguments)

    labels = np.arange(100, dtype=np.int32) % 10
    pixels = np.zeros((100, 32, 32, 3), np.uint8)
    dataset = data.Dataset("cifar10", data.Images(pixels, labels), TestSet(pixels, labels), checksum="1234")
    monkeypatch.setattr(sources, "_load_cifar", lambda *_: dataset)
    return reads


def sweep_in(folder: Path, **fields: Any) -> Sweep:
    return Sweep(searched(**{**FIELDS, **fields}), folder / "results", place_in(folder))


def done_in(folder: Path, fate: Any = lambda run: (COMPLETED, ""), **fields: Any) -> tuple[Sweep, Training]:
    """Do what a search at one global batch has left; return its sweep and what was trained."""
    sweep, training = sweep_in(folder, **{"batch_per_device": 128, **fields}), Training(fate)
    assert sweep.do(sweep.plan[0], training)
    return sweep, training


def test_the_test_set_is_read_for_the_chosen_rates_only(tmp_path: Path, test_reads: Counter[str]) -> None:
    sweep, training = sweep_in(tmp_path, lr=Search(low=0.0125, high=0.8)), Training(reads=test_reads)
    assert sweep.do(sweep.plan[0], training)
    tested = [run for run in training.runs if not run.search]
    assert [(run.global_batch, run.learning_rate) for run in tested] == [(128, 0.05), (512, 0.2), (512, 0.1)]
    assert test_reads["test"] == len(tested)
    for run, before, after in zip(training.runs, [0, *training.test_batches], training.test_batches):
        assert (after > before) == (run.search is None)
    # All candidates but the chosen ones were given up, and their checkpoints removed.
    candidates = {dataclasses.replace(run, pause_after=None).id for run in training.runs if run.search}
    assert candidates <= training.forgotten
    # The same command does nothing more.
    again = sweep_in(tmp_path, lr=Search(low=0.0125, high=0.8))
    assert again.pending(again.plan) == []
    assert workload.totals(again.lines()) == {"runs": 1, "done": 1, "seconds": 0.0}
    assert again.do(again.plan[0], None)


def test_on_a_slower_machine_than_planned_a_search_takes_longer_and_its_starts_do_not(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    sweep.estimator.factor = lambda run: 3.0  # type: ignore[method-assign]
    starts = START_SECONDS["cpu"] * (2 * (4 + 3) + 1 + 3)
    assert sweep.seconds(sweep.plan[0]) == pytest.approx(starts + 3 * (sweep.plan[0].seconds - starts))


def test_a_search_that_is_cut_off_after_any_run_continues_with_the_next_one(tmp_path: Path) -> None:
    whole = Training()
    sweep = sweep_in(tmp_path / "whole")
    sweep.do(sweep.plan[0], whole)
    left = []
    training = Training()
    for _ in whole.runs:
        cut = sweep_in(tmp_path / "cut")
        left.append(cut.lines()[0].seconds)
        count = len(training.runs)

        def stop_after_one(run: Run, count: int = count) -> tuple[str, str]:
            if len(training.runs) > count + 1:
                raise KeyboardInterrupt
            return COMPLETED, ""

        training.fate = stop_after_one
        try:
            cut.do(cut.plan[0], training)
        except KeyboardInterrupt:
            training.runs.pop()
    assert [run.id for run in training.runs] == [run.id for run in whole.runs]
    assert left == sorted(left, reverse=True)
    assert len({*left}) == len(left)


def test_a_search_of_other_rates_replaces_what_an_earlier_one_chose(tmp_path: Path) -> None:
    for high, chosen in ((0.025, 0.025), (0.8, 0.05)):
        sweep, _ = done_in(tmp_path, lr=Search(low=0.0125, high=high))
        table = build(*journal.read([sweep.path]))
        assert [*table.lr[table.chosen & (table.accuracy_on == "test set")]] == [chosen]


def test_a_failed_candidate_is_tried_once_more_and_without_limit_if_all_fail(tmp_path: Path) -> None:
    failing = {0.1}

    def fate(run: Run) -> tuple[str, str]:
        return (FAILED, "why") if run.search and run.learning_rate in failing else (COMPLETED, "")

    left = []
    for _ in range(3):
        sweep, training = done_in(tmp_path, fate)
        tried = sum(run.search is not None and run.learning_rate in failing for run in training.runs)
        left.append((tried, len(sweep.failed), len(sweep.pending(sweep.plan))))
        time.sleep(1)  # records of a run that start in the same second are the same one
    assert left == [(1, 1, 1), (1, 0, 0), (0, 0, 0)]
    assert [record.run.learning_rate for record in journal.read([sweep.path]) if not record.run.search] == [0.2]
    # If all fail there is nothing to choose from: the next command tries again.
    failing |= {0.2, 0.4, 0.8}
    for outcomes in (4, 4):
        sweep, training = done_in(tmp_path / "all", fate)
        assert (len(training.runs), len(sweep.failed), len(sweep.pending(sweep.plan))) == (outcomes, 4, 1)
    failing.clear()
    sweep, _ = done_in(tmp_path / "all", fate)
    assert sweep.pending(sweep.plan) == []


def test_nothing_is_chosen_while_failed_whole_trainings_are_to_be_tried_again(tmp_path: Path) -> None:
    for is_tested, failing in ((False, {0.05, 0.1}), (True, set[float]())):  # the two that promise most

        def fate(run: Run, failing: Any = failing) -> tuple[str, str]:
            return (FAILED, "why") if not run.pause_after and run.learning_rate in failing else (COMPLETED, "")

        sweep, training = done_in(tmp_path, fate, lr=Search(low=0.0125, high=0.8))
        assert any(not run.search for run in training.runs) == is_tested
        assert len(sweep.pending(sweep.plan)) == (not is_tested)


def test_where_two_candidates_of_a_batch_do_not_fit_the_others_are_not_tried(tmp_path: Path) -> None:
    def fate(run: Run) -> tuple[str, str]:
        too_large = run.global_batch == 512 or run.learning_rate in (0.2, 0.4)  # beside others that fit
        return (OUT_OF_MEMORY, "") if too_large else (COMPLETED, "")

    sweep, training = sweep_in(tmp_path), Training(fate)
    assert sweep.do(sweep.plan[0], training)
    assert Counter(run.global_batch for run in training.runs if run.pause_after) == {128: 4, 512: 2}
    assert [*build(*journal.read([sweep.path])).outcome].count(OUT_OF_MEMORY) == 6
    again = sweep_in(tmp_path)
    assert again.pending(again.plan) == []


def test_checkpoints_go_also_if_every_whole_training_diverges(tmp_path: Path) -> None:
    sweep, training = done_in(tmp_path, lambda run: (COMPLETED if run.pause_after else DIVERGED, "nan"))
    assert sweep.pending(sweep.plan) == []
    assert len(training.forgotten) == 4


def test_a_bound_ends_a_search_between_its_runs_and_a_repeated_rung_begins_with_the_first_step(tmp_path: Path) -> None:
    for is_repeated in (False, True):
        sweep, training, fits = sweep_in(tmp_path, batch_per_device=128), Training(), iter([True] * 4 + [False])
        sweep.since = last_run.now() if is_repeated else ""
        sweep.use(sweep.context.images)
        sweep.estimator.fits = lambda planned, fits=fits: next(fits)  # type: ignore[method-assign,misc]
        assert not sweep.do(sweep.plan[0], training)
        assert (len(training.runs), len(training.forgotten)) == (4, 4 * is_repeated)
        time.sleep(1)


def test_a_failure_after_a_completed_repeat_changes_no_choice(tmp_path: Path) -> None:
    sweep, _ = done_in(tmp_path)
    completed = journal.read([sweep.path])
    for record in completed:
        journal.append(sweep.path, dataclasses.replace(record, outcome=FAILED, reason="why", evaluations=()))
    sweep = sweep_in(tmp_path, batch_per_device=128)
    assert sweep.pending(sweep.plan) == []
    before, after = (build(*each) for each in (completed, journal.read([sweep.path])))
    assert {*after.run_id[after.chosen]} == {*before.run_id[before.chosen]} != set()


def test_no_repeat_continues_from_a_checkpoint_of_a_search_that_is_over(tmp_path: Path) -> None:
    grid = {"lr": [0.1, 0.2, 0.4, 0.8], "data": dataclasses.replace(CIFAR, validate_on="held-out")}
    planned = searched(**{**FIELDS, **grid, "batch_per_device": 128})
    sweep = Sweep(planned, tmp_path / "results", place_in(tmp_path))
    for item in sweep.plan:
        sweep.do(item, Training())
    _, training = done_in(tmp_path)
    candidates = {dataclasses.replace(run, pause_after=None).id for run in training.runs if run.search}
    assert len(candidates) == 4
    assert candidates <= training.forgotten


def test_the_checkpoint_of_a_recorded_run_goes_before_a_message_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str, detail: bool = False) -> None:
        if ": about " not in text:  # it has started
            raise BrokenPipeError

    sweep, training = sweep_in(tmp_path, lr=0.1, batch_per_device=128), Training()
    monkeypatch.setattr(sweep, "say", broken)
    with pytest.raises(BrokenPipeError):
        sweep.do(sweep.plan[0], training)
    assert training.forgotten == {training.runs[0].id}


def test_in_a_file_it_is_said_which_run_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fate(run: Run) -> tuple[str, str]:
        assert f"[{run.id}]" in capsys.readouterr().err
        return COMPLETED, ""

    sweep = sweep_in(tmp_path, lr=0.1, batch_per_device=128)
    assert sweep.do(sweep.plan[0], Training(fate))


@pytest.mark.parametrize("reason", [INTERRUPTED, f"host node1 (1.2.3.4){LOST}gone)"])
def test_a_candidate_that_was_cut_off_has_no_result(reason: str, tmp_path: Path) -> None:
    _, training = done_in(tmp_path, lambda run: (FAILED, reason) if run.learning_rate == 0.2 else (COMPLETED, ""))
    assert {run.pause_after for run in training.runs} == {1}  # no rung was decided
    sweep, training = done_in(tmp_path)
    assert (training.runs[0].learning_rate, training.runs[0].pause_after) == (0.2, 1)
    assert sweep.pending(sweep.plan) == []


# Real trainings


@slow
def test_a_training_that_a_search_pauses_ends_bit_for_bit_as_an_uninterrupted_one(tmp_path: Path) -> None:
    lr = Fixed(base=0.02, warmup_epochs=0.7, decay="cosine")  # it depends on the length
    run = run_of(lr=lr, epochs=3)
    straight, _ = execute(run, place_in(tmp_path / "straight"))
    ends = []
    pauses = (1, 2, 2, None)  # one record gets lost
    for pause in pauses:
        paused = dataclasses.replace(run, pause_after=pause)
        record, _ = execute(paused, place_in(tmp_path / "paused"))
        assert (record.outcome, record.reason) == (COMPLETED, "")
        assert (record.timed == []) == bool(pause)
        ends.append([(each.epoch, each.accuracy) for each in record.evaluations])
    assert list(map(len, ends)) == [pause or 3 for pause in pauses]
    assert [note.step // run.steps_per_epoch for note in record.resumed] == [1, 2]
    assert course(record) == course(straight)
    np.testing.assert_equal(*(end_of(tmp_path / name, run) for name in ("paused", "straight")))


@slow
def test_a_search_killed_at_random_moments_chooses_the_same_and_trains_no_rung_twice(tmp_path: Path) -> None:
    fields = {"lr": Search(low=0.001, high=0.064, points=4), "epochs": 6, "data": Synthetic(train=640, validation=160)}
    recipe = recipe_file(tmp_path / "mine.py", **fields)
    run_here(recipe, tmp_path / "whole")
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"moments from seed {seed}")
    moments = random.Random(seed)
    folder, kills = tmp_path / "killed", 0
    folder.mkdir()
    for _ in range(KILLS):
        # Few: after a whole search nothing is left to be killed.
        kills += killed(start(recipe, folder), written(folder, changes=moments.randint(0, 12)))
    finish(recipe, folder)
    assert kills
    whole, resumed = records(tmp_path / "whole"), records(folder)
    assert [record.run.id for record in resumed] == [record.run.id for record in whole]
    for one, other in zip(whole, resumed):
        assert course(one) == course(other)
    (item,) = plan("mine", Recipe(**{**SMALL, **fields}), MACHINE)
    trained = Counter[str]()
    for record in whole:
        run = dataclasses.replace(record.run, pause_after=None)
        trained[run.id] = max(trained[run.id], len(record.evaluations))
    # Synthetic images have no validation split: the last candidate is the training on the test set.
    assert sum(trained.values()) <= search.most_epochs(item.searched)[0] == 4 * 1 + 3 * 5
    assert not list(folder.glob("checkpoints/*/*.unfinished"))
