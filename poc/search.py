"""Decide which run of a search for a learning rate comes next.

A search trains all candidates for an eighth of their epochs, at least one. A few are then trained to their end, from
their checkpoints: the one that promises most, its neighbours in the grid of candidates, and neighbours of the best one
so far. What decides are whole trainings: after a part of one small rates are ahead (short-horizon bias, Wu et al.
2018), the more so the larger the batch, so that successive halving would give up the best rate. Every candidate has the
schedule of the whole training from its first step, a rung only pauses it: what goes on is trained exactly as without a
search, whatever its schedule. All here are functions of the results so far.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from poc.config import Fixed, Linear, SquareRoot
from poc.config.run import Run

_SHARE_OF_GRID = 0.4  # of the full grid's epochs
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
    dropped: tuple[Run, ...]  # candidates that the search has given up, whose checkpoints are of no use any more
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
        dataclasses.replace(with_rate(run, *candidate), tunes=with_rate(run.tunes, *candidate), pause_after=None)
        for candidate in run.search.candidates
    ]


def rungs(epochs: int, candidates: int) -> tuple[int, int]:
    """Return the epochs of the first rung, and how many candidates go on to the end at most.

    All train for an eighth, and as many to the end as make 40% of the full grid's epochs, at least three. None goes on
    if the first rung is the whole training.
    """
    first = max(1, epochs // 8)
    if first < epochs:
        to_end = max(3, round(candidates * (_SHARE_OF_GRID * epochs - first) / (epochs - first)))
        if to_end < candidates:
            return first, to_end
    return epochs, 0


def rung_epochs(epochs: int, candidates: int) -> int:
    """Return the epochs that a search at one global batch trains at most."""
    first, to_end = rungs(epochs, candidates)
    return candidates * first + to_end * (epochs - first)


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
        trained: list[Run] = []
        for stage in climb(candidates, result_of):
            yield stage
            if not all(map(result_of, stage.runs)):
                return
            trained += [run for run in stage.runs if not run.pause_after]
        winner = chosen(candidates, result_of)
        if candidates is batches[0]:
            smallest = winner
        base = smallest if winner and winner.search and winner.search.rules else None
        runs = tuple(dict.fromkeys(trainings(winner, base).values())) if winner else ()  # no candidate completed
        if trained:
            given_up = tuple(run for run in candidates if run not in trained)
            yield Stage(runs, given_up, epochs=candidates[0].epochs, is_rung=False)


def climb(candidates: Sequence[Run], result_of: ResultOf) -> Iterator[Stage]:
    """Yield the stages of a search at one global batch, up to the first that has a run without a result.

    The first one that is trained to its end has the best mean accuracy of itself and its neighbours after the first
    rung. Next come the untrained neighbours of the best one so far, that with the higher rate first.
    """
    epochs = candidates[0].epochs
    first, to_end = rungs(epochs, len(candidates))
    pause = first if to_end else None
    runs = tuple(dataclasses.replace(run, pause_after=pause) for run in candidates)
    yield Stage(runs, (), epochs=first, is_rung=True)
    results = [result for run in runs if (result := result_of(run))]
    completed = [index for index, result in enumerate(results) if result.completed]
    if not to_end or len(results) < len(runs) or not completed:
        return
    near = {index: [each for each in _neighbours(candidates, index) if each in completed] for index in completed}
    means = {index: statistics.fmean(results[each].accuracy for each in (index, *near[index])) for index in completed}
    start = max(completed, key=means.__getitem__)
    trained, coming = list[int](), [start, *near[start][:1]]
    while coming:
        runs = tuple(candidates[index] for index in coming)
        yield Stage(runs, (), epochs=epochs - first, is_rung=True)
        if not all(map(result_of, runs)):
            return
        trained += coming
        ranked = _ranked([candidates[index] for index in trained], result_of)
        best = candidates.index(ranked[0]) if ranked else min(trained)
        coming = [index for index in near[best] if index not in trained][:1] if len(trained) < to_end else []


def _neighbours(candidates: Sequence[Run], index: int) -> list[int]:
    """Return the candidates that are one step away in one dimension of the grid, the higher and lower rate first."""
    search = candidates[0].search
    assert search
    place, indices = np.unravel_index(index, search.shape), list[int]()
    for axis, step in itertools.product(range(len(place)), (1, -1)):
        moved = [*place[:axis], place[axis] + step, *place[axis + 1 :]]
        if 0 <= moved[axis] < search.shape[axis]:
            indices.append(int(np.ravel_multi_index(moved, search.shape)))
    return indices


def chosen(candidates: Sequence[Run], result_of: ResultOf) -> Run | None:
    """Return the candidate that a search at one global batch chooses; None if it is not over, or none completed."""
    runs = [run for stage in climb(candidates, result_of) for run in stage.runs]
    if not all(map(result_of, runs)):
        return None
    return next(iter(_ranked([run for run in runs if not run.pause_after], result_of)), None)


def trainings(winner: Run, smallest: Run | None) -> dict[str, Run]:
    """Return the trainings on the test set after a search at one global batch.

    One has the rate that was found. The others have the rates of the rules, starting from the one that was found at the
    smallest batch: at that batch, or without it, there are none. If a rule gives the rate that was found, both are the
    same training.
    """
    assert winner.tunes
    runs = {FOUND: winner.tunes}
    if smallest and smallest.global_batch < winner.global_batch:
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


def _ranked(runs: Sequence[Run], result_of: ResultOf) -> list[Run]:
    """Return the runs that completed, by accuracy, then loss, then the lower rate."""
    results = [(run, result_of(run)) for run in runs]
    completed = [(-result.accuracy, result.loss, run) for run, result in results if result and result.completed]
    completed.sort(key=lambda ranked: (*ranked[:2], ranked[2].learning_rate))
    return [run for *_, run in completed]
