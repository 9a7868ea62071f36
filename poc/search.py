"""Successive halving (Jamieson and Talwalkar 2016; Li et al. 2017): which run of a search comes next.

A search trains all candidates for a while, and again and again only the better ones of them go on, from their
checkpoints. Every candidate has the schedule of the whole training from its first step, a rung only pauses it: the last
one was trained exactly as without a search, whatever its schedule. All here are functions of the results so far.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from poc.config import Fixed, Linear, SquareRoot
from poc.config.run import Run

FOUND, LINEAR, SQUARE_ROOT = "found", "linear", "square-root"  # trainings on the test set, by their learning rate
# Fields in which the candidates of a search may differ, and its batches; the steps of an epoch follow from the batch.
_VARIED = (
    *("devices", "emulated", "batch_per_device", "accumulate", "global_batch", "workers", "cores_per_worker"),
    *("steps", "steps_per_epoch", "window", "learning_rate", "warmup_from", "warmup_steps", "pause_after"),
    *("kvstore", "gradient_noise", "seed", "optimizer"),
)


class Result(NamedTuple):
    """Result of a candidate at the end of a rung."""

    completed: bool  # False: it diverged, failed or did not fit in memory
    accuracy: float = 0.0
    loss: float = math.inf


class Stage(NamedTuple):
    """Runs that are done before the search decides anything."""

    runs: tuple[Run, ...]
    dropped: tuple[Run, ...]  # candidates that the search has just given up, whose checkpoints are of no use any more
    epochs: int  # epochs that each of the runs trains, from its checkpoint on
    is_rung: bool  # False: trainings on the test set


ResultOf = Callable[[Run], "Result | None"]  # return the result of a run; None if it has none yet


def candidates(run: Run) -> list[Run]:
    """Return the candidates of the search at the global batch of `run`, which is one of them, in ascending order."""
    assert run.search
    assert run.tunes

    def with_rate(trained: Run, rate: Fixed, replaced: Mapping[str, float]) -> Run:
        schedule = vars(rate.schedule(trained.global_batch, trained.steps_per_epoch, trained.steps))
        optimizer = dataclasses.replace(trained.optimizer, **replaced)  # type: ignore[arg-type]
        return dataclasses.replace(trained, **schedule, optimizer=optimizer, lr_rule=str(rate))

    return [
        dataclasses.replace(with_rate(_whole(run), *candidate), tunes=with_rate(run.tunes, *candidate))
        for candidate in run.search.candidates
    ]


def rungs(epochs: int, candidates: int) -> list[tuple[int, int]]:
    """Return the last epoch of each rung, and how many candidates train to it at most.

    Rungs end after one, two and three eighths of all epochs and at their end; with fewer than five candidates the first
    rungs are left out. Two candidates train to the end, and the rungs before give up equal numbers of the others:
    giving up half of them after an eighth loses the best one at large batches, where small rates are ahead at first.
    """
    eighths = [max(number, epochs * number // 8) for number in (1, 2, 3)]
    ends = [*(end for end in eighths if end < epochs), epochs][-max(1, candidates - 1) :]
    given_up = max(0, candidates - 2)
    return [(end, candidates - math.ceil(given_up * rung / max(1, len(ends) - 1))) for rung, end in enumerate(ends)]


def rung_epochs(epochs: int, candidates: int) -> int:
    """Return the epochs that a search at one global batch trains at most."""
    ends, counts = zip(*rungs(epochs, candidates))
    return sum(count * (end - before) for count, end, before in zip(counts, ends, (0, *ends)))


def most_epochs(batches: Sequence[Sequence[Run]]) -> tuple[int, int, int]:
    """Return the epochs that a search trains at most, those of the full grid, and those of its other trainings."""
    searched = sum(rung_epochs(candidates[0].epochs, len(candidates)) for candidates in batches)
    grid = sum(candidates[0].epochs * len(candidates) for candidates in batches)
    first, *larger = [candidates[0] for candidates in batches]
    after = first.epochs + sum(run.epochs * (3 if run.search and run.search.rules else 1) for run in larger)
    return searched, grid, after


def stages(batches: Sequence[Sequence[Run]], result_of: ResultOf) -> Iterator[Stage]:
    """Yield what a search does, in order, up to the first stage that has a run without a result.

    `batches` has the candidates of each global batch, ascending. After the search at a batch come its trainings. The
    results of a stage's runs are asked for when the next one is.
    """
    smallest: Run | None = None
    for candidates in batches:
        winner: Run | None = None
        for stage in halving(candidates, result_of):
            yield stage
            if (ranked := _ranked(stage.runs, result_of)) is None:
                return
            winner = _whole(ranked[0]) if ranked else None
        if candidates is batches[0]:
            smallest = winner
        if winner:  # else no candidate completed
            runs = tuple(dict.fromkeys(trainings(winner, smallest).values()))
            yield Stage(runs, (), epochs=winner.epochs, is_rung=False)


def halving(candidates: Sequence[Run], result_of: ResultOf) -> Iterator[Stage]:
    """Yield the rungs of a search at one global batch, up to the first that has a run without a result."""
    standing, dropped, before = [*candidates], tuple[Run, ...](), 0
    ends, counts = zip(*rungs(candidates[0].epochs, len(candidates)))
    for end, count in zip(ends, (*counts[1:], 1)):
        runs = tuple(dataclasses.replace(run, pause_after=end if end < run.epochs else None) for run in standing)
        yield Stage(runs, dropped, epochs=end - before, is_rung=True)
        ranked = _ranked(runs, result_of)
        if not ranked:
            return
        best, before = [_whole(run) for run in ranked[:count]], end
        dropped = tuple(run for run in standing if run not in best)
        # In the order of their rates.
        standing = [run for run in standing if run in best]


def chosen(candidates: Sequence[Run], result_of: ResultOf) -> Run | None:
    """Return the candidate that a search at one global batch chooses; None if it is not over, or none completed."""
    *_, last = halving(candidates, result_of)
    ranked = _ranked(last.runs, result_of)
    return ranked[0] if ranked and not ranked[0].pause_after else None


def trainings(winner: Run, smallest: Run | None) -> dict[str, Run]:
    """Return the trainings on the test set after a search at one global batch.

    One has the rate that was found. The others have the rates of the rules, starting from the one that was found at the
    smallest batch, where there are no others. If a rule gives the rate that was found, both are the same training.
    """
    assert winner.tunes
    assert winner.search
    runs = {FOUND: winner.tunes}
    if winner.search.rules and smallest and smallest.global_batch < winner.global_batch:
        for name, rule in ((LINEAR, Linear), (SQUARE_ROOT, SquareRoot)):
            scaled = rule(base=smallest.learning_rate, per=smallest.global_batch)
            rate = scaled.at(winner.global_batch)
            by_rule = dataclasses.replace(winner.tunes, learning_rate=rate, lr_rule=str(scaled))
            runs[name] = winner.tunes if rate == winner.learning_rate else by_rule
    return runs


def identity(candidate: Run) -> str:
    """Return a text that all candidates of a search share, at all its batches and with all seeds, without its rates."""
    optimizer, search = candidate.optimizer, candidate.search
    assert search
    replaced = {name: 0.0 for name in ("momentum", "weight_decay") if getattr(search, name)}
    optimizer = dataclasses.replace(optimizer, **replaced)  # type: ignore[arg-type]
    return f"{candidate.fingerprint(*_VARIED)} {optimizer}"


def _whole(run: Run) -> Run:
    """Return the run without its pause."""
    return dataclasses.replace(run, pause_after=None)


def _ranked(runs: Sequence[Run], result_of: ResultOf) -> list[Run] | None:
    """Return the runs that completed, by accuracy, then loss, then the lower rate; None if one has no result yet."""
    results = [(run, result_of(run)) for run in runs]
    if not all(result for _, result in results):
        return None
    completed = [(-result.accuracy, result.loss, run) for run, result in results if result and result.completed]
    completed.sort(key=lambda ranked: (*ranked[:2], ranked[2].learning_rate))
    return [run for *_, run in completed]
