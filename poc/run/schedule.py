"""The schedule of a plan: the order of its runs, which repeats are done, how long runs take, which fit a bound."""

import dataclasses
import math
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping

from poc import search
from poc.config import Synthetic
from poc.config.datasets import Cifar, DataId
from poc.config.run import Run
from poc.plan import START_SECONDS, Planned, seconds_at_most, training_seconds
from poc.records.record import COMPLETED, OUT_OF_MEMORY, SETTLED, Record, last_result
from poc.records.timing import throughput
from poc.run import checkpoint
from poc.run.launcher import RunContext
from poc.run.loop import CHECKPOINT_SECONDS
from poc.search import Result, Stage

_SHORT_SECONDS = (120.0, 1200.0)
_MAX_FAILURES = 2  # of a candidate of a search


def in_order(plan: Iterable[Planned]) -> list[Planned]:
    """Sort by the recipes' priorities, then searches, runs of up to 2 minutes, of up to 20, and others, as written.

    Searches are first because what they train to the end is not repeated by a grid.
    """
    return sorted(plan, key=lambda each: (each.priority, not each.searched, bisect_left(_SHORT_SECONDS, each.seconds)))


def ids(planned: Planned) -> list[str]:
    """Return the ids of a planned run, and of all candidates for a largest batch or a rate and their trainings."""
    candidates = [run for batch in planned.searched for run in batch]
    tuned = [run.tunes for run in candidates if run.tunes]
    return [run.id for run in (planned.run, *planned.smaller, *candidates, *tuned)]


class DoneRepeats:
    """The repeats of runs that are done on the planned images, in any recipe of the sweep or before it."""

    def __init__(self, records: Iterable[Record], images: Mapping[str, DataId]) -> None:
        """Count the repeats in `records`; `images` as in `RunContext.images`."""
        self._images = images
        self._records: dict[str, list[Record]] = defaultdict(list)  # by id of the run
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        is_fallback = record.dataset == Synthetic.name and isinstance(record.run.data, Cifar)
        if not is_fallback or record.run.data.key in self._images:
            self._records[record.run.id].append(record)

    def _of(self, run: Run) -> list[Record]:
        """Return the records of a run on the planned images: on any if those are synthetic or not opened yet."""
        planned = self._images.get(run.data.key)
        any_images = planned is None or planned.name == Synthetic.name
        return [record for record in self._records[run.id] if any_images or record.data_id == planned]

    def _outcomes(self, run: Run) -> list[str]:
        """Return the outcomes of the repeats of a run; one that failed or was skipped does not count.

        Nor does a burst that was resumed too near its end to be timed, or one out of memory of a run that has fitted.
        """
        is_burst = not (run.evaluate or run.is_range_test)
        settled = [record for record in self._of(run) if record.outcome in SETTLED]
        outcomes = [each.outcome for each in settled if not (is_burst and each.resumed and not throughput(each.timed))]
        has_fitted = COMPLETED in outcomes
        return [outcome for outcome in outcomes if not (has_fitted and outcome == OUT_OF_MEMORY)]

    def result(self, run: Run) -> Result | None:
        """Return the result of a candidate of a search, in which a failure is one, too; None if there is none."""
        return last_result(self._of(run))

    def outcome(self, run: Run) -> str | None:
        """Return the outcome of the last repeat of a run; None if there is none."""
        return next(reversed(self._outcomes(run)), None)

    def enough(self, run: Run, number: int) -> bool:
        """Return whether a run has that many repeats, or an outcome that no repeat would change."""
        outcomes = self._outcomes(run)
        return len(outcomes) >= number or outcomes[-1:] not in ([], [COMPLETED])

    def over(self, planned: Planned) -> bool:
        """Return whether a planned repeat is done, with the largest batch that fits, or all of a search."""
        if planned.searched:
            return not any(map(self.pending, search.stages(planned.searched, self.result)))
        fitting = [run for run in (planned.run, *planned.smaller) if self.outcome(run) != OUT_OF_MEMORY]
        return not fitting or self.enough(fitting[0], planned.repeat)

    def pending(self, stage: Stage) -> list[Run]:
        """Return the runs of a stage of a search that are to be done.

        A candidate that failed is tried once more, by the next command: the machine may have been the reason. It is
        tried without limit if all of several failed.
        """
        pending = [run for run in stage.runs if not self.enough(run, 1)]
        all_pending = len(pending) == len(stage.runs) > 1
        failures = {run.id: sum(record.result is not None for record in self._of(run)) for run in pending}
        return [run for run in pending if all_pending or not stage.is_rung or failures[run.id] < _MAX_FAILURES]

    def share_left(self, planned: Planned) -> float:
        """Return the share of the epochs of a search that are not done, at most."""
        if self.over(planned):
            return 0.0
        searching, _, after = search.most_epochs(planned.searched)
        stages = search.stages(planned.searched, self.result)
        epochs_done = sum(stage.epochs * (len(stage.runs) - len(self.pending(stage))) for stage in stages)
        return 1 - epochs_done / (searching + after)


class RuntimeEstimator:
    """Estimate how long runs take on this machine: the plan's estimates, corrected by what earlier runs took."""

    def __init__(self, context: RunContext, records: Iterable[Record], profiled_steps: int = 0) -> None:
        """Learn from `records`; `profiled_steps` follow each whole run (--detail), and those of its trace."""
        self._context = context
        self._steps_after = profiled_steps + context.trace_steps
        self.begins_longer = False  # whether also runs fit that only a later command can end
        self._seconds: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])  # measured, estimated
        for record in records:
            self.learn(record)

    def learn(self, record: Record) -> None:
        """Add the speed of a completed run, unless it was resumed or its model is no longer known."""
        run, speed = record.run, throughput(record.last_windows)
        is_known = run.network.multiply_adds(run.data.crop) > 0
        if speed and is_known and record.outcome == COMPLETED and record.wall and not record.resumed:
            # The CPU's speed is measured by each command, and is lower while others use it.
            hardware = dataclasses.replace(record.hardware, cpu_flops=self._context.machine.cpu_flops)
            for group in _groups(run):
                self._seconds[group][0] += run.last_step * run.global_batch / speed.median
                self._seconds[group][1] += training_seconds(dataclasses.replace(run, evaluate=False), hardware)

    def factor(self, run: Run) -> float:
        """Return measured over estimated seconds of training of the most similar runs; 1 if there are none."""
        measured, estimated = next((self._seconds[group] for group in _groups(run) if group in self._seconds), (1, 1))
        return measured / estimated

    def seconds(self, planned: Planned) -> float:
        """Return the expected seconds of a planned run, from its last checkpoint on."""
        run, start = planned.run, START_SECONDS[planned.run.kind]
        training = self.factor(run) * (planned.seconds - start)
        if run.seconds is not None:
            training = seconds_at_most(run, self.factor(run) * training_seconds(run, self._context.machine))
        unevaluated = dataclasses.replace(run, evaluate=False)
        step = self.factor(run) * training_seconds(unevaluated, self._context.machine) / run.last_step
        steps_after = 0 if run.pause_after else self._steps_after
        return start + training * (1 - self._begun(run)) + steps_after * step

    def fits(self, planned: Planned) -> bool:
        """Return whether a run can be started: it ends before the bound, or continues from a checkpoint until then.

        A longer one needs the time for its first checkpoint. What a search has paused counts as not begun.
        """
        time_left = self._context.until - time.monotonic()
        continues = not planned.run.search and self._begun(planned.run)
        first_checkpoint = CHECKPOINT_SECONDS + START_SECONDS[planned.run.kind]
        needed = first_checkpoint if self.begins_longer else 0 if continues else math.inf
        return time_left > min(needed, self.seconds(planned))

    def _begun(self, run: Run) -> float:
        """Return the share of a run's steps or seconds that is done.

        A checkpoint of its last step is of an earlier repeat.
        """
        folder = self._context.checkpoints_of(run)
        if not any(step < run.last_step for step in checkpoint.stored_steps(folder, 0)):  # else they need not be read
            return 0.0
        pairs = checkpoint.steps(folder, [0], self._context.conditions_of(run))
        last_step = max((step for step, _ in pairs if step < run.last_step), default=0)
        shares = [last_step / run.last_step]
        if run.seconds and last_step:
            trained = checkpoint.read(folder, 0, last_step).story["counted"]["trained"]
            shares.append(min(1.0, trained / run.seconds))
        return max(shares)


def _groups(run: Run) -> tuple[tuple[str, ...], ...]:
    """Return the groups of similar runs that a run belongs to, the most specific first."""
    return (run.kind, run.model, run.dtype), (run.kind,)


def bound(began: float, hours: float | None, dollars: float | None, price: float | None) -> float:
    """Return when on the monotonic clock so many hours or dollars are spent; infinity without either."""
    limits = [hours, dollars / price if dollars is not None and price else None]
    return min((began + 3600 * limit for limit in limits if limit is not None), default=math.inf)
