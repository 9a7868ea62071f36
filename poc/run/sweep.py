"""The runs of some recipes on this machine, one after the other, each record in the journal as soon as it is there."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from poc import data
from poc.config.datasets import DataId
from poc.config.run import Run
from poc.plan import Planned, estimate
from poc.records import journal, last_run
from poc.records.last_run import LastRun
from poc.records.record import COMPLETED, DONE, FAILED, OUT_OF_MEMORY, SETTLED, SKIPPED, Record
from poc.run import checkpoint, schedule, workload
from poc.run.launcher import LocalLauncher, RunContext
from poc.run.parent import Launcher, execute, new_record
from poc.run.progress import duration, label, result, varied
from poc.run.workload import Line, Workload
from poc.values import UserError


class TimeIsUpError(Exception):
    """The run that was going on has been interrupted at the bound."""


class Sweep:
    """The runs of some recipes on one machine: what there is to do, and each record in the journal as it is there."""

    def __init__(
        self,
        plans: Sequence[tuple[str, Sequence[Planned]]],
        results: Path,
        place: RunContext,
        *,
        detail: int = 0,
        again: bool = False,
        verbose: bool = False,
        prefix: str = "",
    ) -> None:
        """`plans` by the names of their recipes; records go to this machine's journal in `results`.

        What is there already is done only `again`. `detail` is that of `execute`; `prefix` comes before each line said.
        """
        self.results = results
        self.path = journal.folder(results, place.infrastructure) / journal.FILE
        self.items = schedule.in_order(
            (name, f"{name} {number}/{len(planned)}", item)
            for name, planned in plans
            for number, item in enumerate(planned, start=1)
        )
        self.failed: list[str] = []
        """The ids of the runs that failed."""
        records = journal.read(journal.paths(results))
        self._known = [record for record in records if record.infrastructure == place.infrastructure]
        self._noted = {record.run.id for record in self._known}
        self._again = again
        self.place = place
        self.use(place.images)
        self._detail = detail
        self._verbose = verbose
        self._prefix = prefix
        every = [item for *_, item in self.items]
        self._choices = {run.id: item.engine_choice for item in every for run in (item.run, *sum(item.search, ()))}
        self._details = varied(item.run for item in every if not item.skip)

    def use(self, images: Mapping[str, DataId]) -> None:
        """Take `images` for what the runs are of (`RunContext.images`).

        Of the journal what is of the same images counts, and was measured in the same environment or in an unknown one.
        """
        self.place = dataclasses.replace(self.place, images=images)
        self.pace = schedule.RuntimeEstimator(self.place, self._known)
        alike = [record for record in self._known if record.environment in (None, self.place.environment)]
        self._done = schedule.DoneRepeats([] if self._again else alike, images)

    def say(self, line: str) -> None:
        """Print a line on standard error."""
        # What a killed worker has left of its progress line is removed.
        start = "\r\x1b[K" if sys.stderr.isatty() else ""
        sys.stderr.write(f"{start}{self._prefix}{line}\n")  # whole, whatever others say meanwhile

    def say_more(self, line: str) -> None:
        """Print a line that only --verbose asks for."""
        if self._verbose:
            self.say(line)

    def workload(self, price: float | None) -> Workload:
        """Sum up what there is to do; `price` is in dollars per hour."""
        return workload.summed_up(self.items, self._done, self.pace, price)

    def lines(self) -> list[Line]:
        """Return a line for each run."""
        return workload.lines(self.items, self._done, self.pace)

    def ids(self) -> tuple[str, ...]:
        """Return the ids of the runs that are not skipped; of a search for the largest batch, of all candidates."""
        planned = [item for *_, item in self.items if not item.skip]
        return tuple(
            dict.fromkeys(run.id for item in planned for run in (item.run, *(whole for _, whole in item.search)))
        )

    def is_over(self, item: schedule.Item) -> bool:
        """Whether there is nothing to do for an item, any more."""
        return item[2].skip != "" or self._done.over(item[2])

    def left(self, items: Iterable[schedule.Item]) -> list[Planned]:
        """Return what of the `items` is to be done yet, each repeat once."""
        return self._done.waiting(items)

    def do(self, item: schedule.Item, hosts: Launcher | None = None) -> bool:
        """Do one of the items, on the `hosts` (None: here); False where it does not fit before the bound.

        Raises `TimeIsUpError`, or KeyboardInterrupt once a run that its user interrupted is in the journal.
        """
        _, title, planned = item
        if planned.skip:
            self.say_more(f"{title} [{planned.run.id}] {planned.run}: skipped, {planned.skip}")
            if planned.run.id not in self._noted:
                self._noted.add(planned.run.id)
                journal.append(self.path, new_record(planned.run, self.place, outcome=SKIPPED, reason=planned.skip))
            return True
        if not self._done.over(planned) and not self.pace.fits(planned):
            return False
        if planned.search:
            self._largest(planned, title, hosts)
        else:
            self._repeat(planned.run, title, hosts, planned.repeat, self._detail)
        return True

    def _largest(self, item: Planned, title: str, hosts: Launcher | None) -> None:
        """Do the run with the largest batch that fits its short run, or where it does not after all, the next."""
        self.say_more(f"{title} {item}")
        search = item.search
        low, high = 0, len(search)  # those before `low` fit, those from `high` on do not
        while low < high:
            middle = (low + high) // 2
            if self._repeat(search[middle][0], title, hosts, probe=True) in DONE:
                low = middle + 1
            else:
                high = middle
        if not low and item.repeat == 1:
            self.say(f"{self._label(search[0][1])}: failed: not even this batch fits into the memory")
        while low and self._repeat(search[low - 1][1], title, hosts, item.repeat, self._detail) == OUT_OF_MEMORY:
            low -= 1

    def _label(self, run: Run, number: int = 1) -> str:
        return label(run, self._details) + (f", repeat {number}" if number > 1 else "")

    def _repeat(
        self, run: Run, title: str, hosts: Launcher | None, number: int = 1, detail: int = 0, *, probe: bool = False
    ) -> str:
        """Do that repeat of a run, unless it is done; return its outcome. A `probe` has no line of its own."""
        title = f"{title} [{run.id}] {run}" + (f", repeat {number}" if number > 1 else "")
        if self._done.enough(run, number):
            self.say_more(f"{title}: in the journal already (--again repeats it)")
            return self._done.outcome(run) or COMPLETED
        if run.id in self.failed:  # it may have hung, and would again
            self.say_more(f"{title}: not tried again, it has failed")
            return FAILED
        pace, hosts = self.pace.factor(run), hosts or LocalLauncher(self.place)
        self.say_more(f"{title}: about {duration(pace * estimate(run, self.place.machine))}")
        self._say_other_checkpoints(run)
        name = self._label(run, number)
        record, interrupted = execute(run, self.place, hosts, detail=detail, pace=pace, title=name)
        record = dataclasses.replace(record, engine_choice=self._choices[run.id])
        self._append(record)
        self.say_more(f"  {record.in_words()}")
        if not probe or record.outcome == FAILED:
            self.say(result(record, name))
        if record.outcome in SETTLED:
            hosts.forget(run)
        if interrupted:
            raise TimeIsUpError if time.monotonic() >= self.place.until else KeyboardInterrupt
        self.pace.learn(record)
        self._done.add(record)
        if record.outcome == FAILED:
            self.failed.append(run.id)
        return record.outcome

    def _append(self, record: Record) -> None:
        try:
            journal.append(self.path, record)
        except OSError as error:
            raise UserError(
                f"results: no room for the record of {record.run.id} in {self.path} ({error.strerror}); make some and "
                "start again: the run goes on from its last checkpoint"
            ) from error

    def _say_other_checkpoints(self, run: Run) -> None:
        """Say of each checkpoint of `run` on other images that it stays, and that the run does not go on from it."""
        own = self.place.checkpoints_of(run)
        if checkpoint.furthest(own):
            return
        for folder in sorted(own.parent.glob(f"{run.id}*")):
            step = checkpoint.furthest(folder)
            with contextlib.suppress(OSError, LookupError):  # damaged, or of an earlier version
                if 0 < step < run.steps:
                    images = DataId(*checkpoint.read(folder, 0, step).story["conditions"]["images"])
                    self.say(
                        f"  its checkpoint after step {step} is of other images, {images}: with these, "
                        f"{self.place.images_of(run)}, it starts from the beginning, and that checkpoint is kept"
                    )


def run_sweep(sweep: Sweep, asked: LastRun | None = None, price: float | None = None) -> list[str]:
    """Do all that is planned, the most telling first (`poc.run.schedule.ORDER_RULE`); return the ids of failures.

    What was `asked` for is noted in the folder of results. What does not fit before the bound of its place is left;
    `price`, in dollars per hour, is for what is said first.
    Raises UserError where the data cannot be had, or the journal not be written; KeyboardInterrupt once a run that its
    user interrupted is in it.
    """
    sweep.use(_images(sweep))
    # Claimed only now: a mistake leaves nothing behind.
    with journal.claimed(sweep.path):
        if asked:
            last_run.write(sweep.results, asked)
        sweep.say(f"{sweep.workload(price)}\n")
        left = _through(sweep)
    say_left(sweep, left)
    return sweep.failed


def say_left(sweep: Sweep, items: Iterable[schedule.Item]) -> None:
    """What of these is to be done yet did not fit before the bound; nothing where there is none."""
    if left := sweep.left(items):
        seconds = sum(map(sweep.pace.seconds, left))
        sweep.say(
            f"{len(left)} are left, about {duration(seconds)}, beyond the bound: the same command goes on with them"
        )


def _through(sweep: Sweep) -> list[schedule.Item]:
    """Takes the items one after the other, as far as they fit; returns those that did not."""
    left: list[schedule.Item] = []
    pace = sweep.pace
    for place_in_line, item in enumerate(sweep.items):
        was_over, rest = sweep.is_over(item), sweep.items[place_in_line + 1 :]
        try:
            if not sweep.do(item):
                left.append(item)
                continue
        except TimeIsUpError:
            return [*left, item, *rest]
        fitting = [] if was_over else [other for other in sweep.left(rest) if pace.fits(other)]
        if fitting:
            until = schedule.clock(min(sum(map(pace.seconds, fitting)), pace.left()))
            sweep.say_more(f"  {len(fitting)} to go, until about {until}")
    return left


def _images(sweep: Sweep) -> dict[str, DataId]:
    """Open the files that the runs need and return what is in them: a mistake is found before anything is spent.

    Where no images are at hand, and every run is in the journal on whatever images, none are downloaded.
    """
    place = sweep.place
    left = {item.run.data for item in sweep.left(sweep.items)}
    wanted = dict.fromkeys(item.run.data for *_, item in sweep.items if not item.skip)
    opened = [spec for spec in wanted if spec in left or data.is_local(spec, source=place.source, cache=place.cache)]
    return data.identify(opened, source=place.source, cache=place.cache)
