"""The runs of some recipes on this machine, one after the other; each record is in the journal when its run ends."""

import collections
import contextlib
import dataclasses
import itertools
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from poc import data, search
from poc.config.datasets import DataId
from poc.config.run import Run
from poc.host.environment import POC
from poc.host.hardware import Hardware
from poc.plan import Planned, estimate, search_seconds
from poc.records import journal
from poc.records.record import COMPLETED, DONE, FAILED, OUT_OF_MEMORY, SETTLED, SKIPPED
from poc.run import schedule, step_profile, workload
from poc.run.launcher import Launcher, LocalLauncher, RunContext
from poc.run.parent import execute, new_record
from poc.run.progress import duration, label, result, varied
from poc.run.workload import Line
from poc.values import UserError, counted


@dataclasses.dataclass(eq=False)
class Sweep:
    """The runs of some recipes on one machine: what is to do, and how."""

    plan: Sequence[Planned]  # is put in order
    results: Path  # folder, in which the machine has a folder with its journal
    context: RunContext
    detail: int = 0  # that of `execute`
    since: str = ""  # time in UTC; what was recorded before is repeated (--again)
    verbose: bool = False
    prefix: str = ""  # comes before each message

    def __post_init__(self) -> None:
        self.path = journal.folder(self.results, self.context.infrastructure) / journal.FILE
        self.plan = schedule.in_order(self.plan)
        # Outcomes by id and data set of the runs that failed: out of memory where others used some of it, else failed.
        self.failed: dict[tuple[str, str], str] = {}
        to_run = [planned for planned in self.plan if not planned.skip]
        searched = [candidates for planned in to_run for candidates in planned.searched]
        runs = [*itertools.chain([planned.run for planned in to_run], *searched)]
        self._details = varied(runs)
        software = {name: self.context.software_of(name) for name in {run.framework for run in runs}}
        self.context = dataclasses.replace(self.context, software={**self.context.software, **software})
        self.use(self.context.images)

    def use(self, images: Mapping[str, DataId]) -> None:
        """Read the journal, and set the data sets of the runs (`RunContext.images`), which decide what in it is done.

        A record counts if it is of the same images and hardware, and of the same environment or an unknown one.
        """
        records = journal.read(journal.paths(self.results))
        records = [record for record in records if record.infrastructure == self.context.infrastructure]
        settled = collections.Counter((each.run.id, each.data_id) for each in records if each.outcome in SETTLED)
        identity = journal.identity(self.path)
        self.context = dataclasses.replace(self.context, images=images, journal=identity, settled=settled)
        self._recorded = {record.run.id for record in records}
        self.estimator = schedule.RuntimeEstimator(self.context, records, step_profile.steps_of(self.detail))
        environments = (None, self.context.environment)
        same = [record for record in records if record.environment in environments and record.started >= self.since]
        this_hardware = _hardware(self.context.machine)
        self._done = schedule.DoneRepeats((each for each in same if _hardware(each.hardware) == this_hardware), images)

    def say(self, line: str, *, detail: bool = False) -> None:
        """Print a line on standard error; a `detail` only if the sweep is verbose."""
        if self.verbose or not detail:
            # Remove the progress line that a killed worker may have left. One write: other threads may print, too.
            start = "\r\x1b[K" if sys.stderr.isatty() else ""
            sys.stderr.write(f"{start}{self.prefix}{line}\n")

    def lines(self) -> list[Line]:
        """Return a line for each run of the plan."""
        return [
            Line(
                recipe=planned.run.recipe,
                id=planned.run.id,
                run=str(planned),
                images=planned.run.data.key,
                repeat=planned.repeat,
                global_batch=planned.run.global_batch,
                seconds=self.seconds(planned),
                epochs=sum(search.most_epochs(planned.searched)[::2]) if planned.searched else 0,
                done=not planned.skip and self._done.over(planned),
                skipped=planned.skip,
                framework=f"{planned.run.framework}: {planned.framework_choice}" if planned.framework_choice else "",
            )
            for planned in self.plan
        ]

    def ids(self) -> tuple[str, ...]:
        """Return the ids of the runs that are not skipped, including all candidates for a largest batch or a rate."""
        return tuple(dict.fromkeys(id for planned in self.plan if not planned.skip for id in schedule.ids(planned)))

    def seconds(self, planned: Planned) -> float:
        """Return the expected seconds of a planned run, or of what is left of a search at most."""
        if planned.searched:
            pace = self.estimator.factor(planned.run)
            return search_seconds(planned.searched, self.context.machine, pace) * self._done.share_left(planned)
        return self.estimator.seconds(planned)

    def pending(self, plan: Iterable[Planned]) -> list[Planned]:
        """Return what of the `plan` is neither skipped nor done yet, each repeat once."""
        to_do: dict[tuple[object, ...], Planned] = {}
        for planned in plan:
            run = planned.run
            if not planned.skip and not self._done.over(planned):
                to_do[(run.id, run.data.key, planned.repeat, planned.smaller, planned.searched)] = planned
        return list(to_do.values())

    def do(self, planned: Planned, launcher: Launcher | None = None) -> bool:
        """Do a planned run with `launcher`, by default on this host; return False if it does not fit before the bound.

        Raises KeyboardInterrupt once a run that its user or the bound interrupted is in the journal.
        """
        if planned.skip:
            self.say(f"{planned.run.recipe} [{planned.run.id}] {planned.run}: skipped, {planned.skip}", detail=True)
            if planned.run.id not in self._recorded:
                self._recorded.add(planned.run.id)
                journal.append(self.path, new_record(planned.run, self.context, outcome=SKIPPED, reason=planned.skip))
            return True
        if planned.searched:
            return self._search(planned, launcher)
        if not self._done.over(planned) and not self.estimator.fits(planned):
            return False
        for run in (planned.run, *planned.smaller):
            if self._repeat(planned, run, launcher) != OUT_OF_MEMORY:
                break
        return True

    def _search(self, planned: Planned, launcher: Launcher | None) -> bool:
        """Do what is left of a search; return False if its next run does not fit before the bound."""
        has_trained = False
        for stage in search.stages(planned.searched, self._done.result):
            pending = self._done.pending(stage)
            # Those of the last rung that were trained to their end without the search do not continue, either.
            ended = [run for run in stage.runs if stage.is_rung and not run.pause_after and run not in pending]
            for run in (*stage.dropped, *ended) if pending or has_trained else ():
                (launcher or LocalLauncher(self.context)).forget(run)
            has_trained |= bool(pending)
            for run in pending:
                outcomes = [self._done.outcome(each) for each in stage.runs]
                if outcomes.count(OUT_OF_MEMORY) > 1 and not {*DONE} & {*outcomes}:
                    reason = "not tried, since two others at this batch were"
                    record = new_record(run, self.context, outcome=OUT_OF_MEMORY, reason=reason)
                    journal.append(self.path, record)
                    self._done.add(record)
                    continue
                if not self.estimator.fits(Planned(run=run, seconds=estimate(run, self.context.machine))):
                    return False
                self._repeat(planned, run, launcher)
            if stage.is_rung and not self._done.pending(stage):  # a failure among others is a result
                results = {(run.id, run.data.key) for run in stage.runs}
                self.failed = {key: failure for key, failure in self.failed.items() if key not in results}
            # If the first whole trainings failed, the next command tries them again: nothing is chosen without them.
            is_part = 1 < len(stage.runs) < len(planned.searched[0])
            if stage.is_rung and is_part and len(self._done.pending(stage)) == len(stage.runs):
                return True
        return True

    def _repeat(self, planned: Planned, run: Run, launcher: Launcher | None) -> str:
        """Do a repeat of `run` unless it is done, and return its outcome.

        That is out of memory, too, if it failed because others used memory: a smaller batch may fit.
        """
        key = run.id, run.data.key
        suffix = f", repeat {planned.repeat}" if planned.repeat > 1 else ""
        title = f"{run.recipe} [{run.id}] {run}{suffix}"
        if self._done.enough(run, planned.repeat):
            self.say(f"{title}: already in the journal (--again repeats it)", detail=True)
            return self._done.outcome(run) or COMPLETED
        if key in self.failed:  # it may have hung, and would again
            self.say(f"{title}: not tried again: it failed before in this command", detail=True)
            return self.failed[key]
        launcher = launcher or LocalLauncher(self.context)
        pace, name = self.estimator.factor(run), label(run, self._details) + suffix
        # In a file there is no bar: if all of a container is killed for memory, this is what shows by which run.
        start = title if self.verbose else f"{name} [{run.id}]"
        self.say(f"{start}: about {duration(estimate(run, self.context.machine, pace))}", detail=sys.stderr.isatty())
        if self.since and run.pause_after and run.id in self._recorded:  # --again begins with the first step
            launcher.forget(run)
        fields = {"title": name, "framework_choice": planned.framework_choice}
        record, interrupted = execute(run, self.context, launcher, detail=self.detail, pace=pace, **fields)
        try:
            journal.append(self.path, record)
        except OSError as error:
            raise UserError(
                f"results: cannot write the record of {run.id} to {self.path} ({error.strerror}); free disk space and "
                "start the same command again: the run continues from its last checkpoint"
            ) from error
        self.context.settled[run.id, record.data_id] += record.outcome in SETTLED
        # First, since a message can fail: a repeat must not continue from the checkpoint of the one before.
        if record.outcome in SETTLED and not (run.pause_after and record.outcome == COMPLETED):
            launcher.forget(run)
        self.say(result(record, name))
        self.estimator.learn(record)
        self._done.add(record)
        if interrupted:
            raise KeyboardInterrupt
        fitted_before = record.outcome == OUT_OF_MEMORY and self._done.outcome(run) == COMPLETED
        if record.outcome == FAILED or fitted_before:
            self.failed[key] = OUT_OF_MEMORY if record.reason.startswith(OUT_OF_MEMORY) else FAILED
        return self.failed.get(key, record.outcome)

    def say_left(self, plan: Iterable[Planned]) -> None:
        """Print how much of the `plan` is not done yet, if anything."""
        if pending := self.pending(plan):
            seconds = sum(map(self.seconds, pending))
            self.say(f"Not done: {counted(len(pending), 'run')}, about {duration(seconds)}; the same command continues")


def run_sweep(
    sweep: Sweep, price: float | None = None, note: Callable[[Sequence[Sweep]], object] = lambda sweeps: None
) -> list[str]:
    """Do the plan in order, as far as its runs fit before the bound; return the ids of the runs that failed.

    `price` is in dollars per hour; `note` is called at the start and at the end. Raises UserError if the data cannot be
    read, the journal not be written, or the code has changed; KeyboardInterrupt once a run that its user interrupted is
    in it.
    """
    images = _images(sweep)
    # Claimed only now: a mistake leaves nothing behind. Read again: another command may have ended since.
    with journal.claimed(sweep.path):
        sweep.use(images)
        note([sweep])  # this command may be killed
        sweep.say(f"{workload.summary(sweep.lines(), price)}\n")
        settings = {"--trace": sweep.context.trace_steps, "--detail": sweep.detail}
        options = [name for name, setting in settings.items() if setting]
        if options and not sweep.since and (done_runs := workload.totals(sweep.lines())["done"]):
            runs = counted(done_runs, "run")
            sweep.say(f"{' '.join(options)}: not for {runs} already in the journal; add --again\n")
        try:
            unstarted = _do_all(sweep)
        finally:
            with contextlib.suppress(OSError):  # a full disk has been reported
                note([sweep])
    sweep.say_left(unstarted)
    return [id for id, _ in sweep.failed]


def _do_all(sweep: Sweep) -> list[Planned]:
    """Do the plan in order; return what did not fit before the bound."""
    unstarted = _do(sweep, sweep.plan)
    while unstarted:  # one that is longer than the bound allows, and if it ends before, others by its pace
        sweep.estimator.begins_longer = True
        remaining = _do(sweep, unstarted[:1])
        sweep.estimator.begins_longer = False
        unstarted = [*remaining, *unstarted[1:]] if remaining else _do(sweep, unstarted[1:])
        if remaining:
            break
    return unstarted


def _do(sweep: Sweep, plan: Sequence[Planned]) -> list[Planned]:
    """Do a `plan` in order; return what does not fit before the bound, or what it has interrupted."""
    unstarted: list[Planned] = []
    for number, planned in enumerate(plan):
        try:
            if not sweep.do(planned):
                unstarted.append(planned)
        except KeyboardInterrupt:
            if time.monotonic() < sweep.context.until:
                report = f"{POC} report --results {shlex.quote(str(sweep.results))}"
                sweep.say(f"Interrupted: the same command continues; {report} makes the page of the runs so far")
                raise
            return [*unstarted, *plan[number:]]
    return unstarted


def _images(sweep: Sweep) -> dict[str, DataId]:
    """Open the files that the runs need and return what is in them: a mistake is found before anything is spent.

    Images that are not on this machine are downloaded only for runs that are not in the journal, on whatever images.
    """
    source, cache = sweep.context.source, sweep.context.cache
    pending = {planned.run.data for planned in sweep.pending(sweep.plan)}
    specs = dict.fromkeys(planned.run.data for planned in sweep.plan if not planned.skip)
    opened = [spec for spec in specs if spec in pending or data.find(spec, source=source, cache=cache)]
    return data.identify(opened, source=source, cache=cache)


def _hardware(machine: Hardware) -> tuple[str, str, int]:
    return machine.describe(), machine.cpu, machine.cores
