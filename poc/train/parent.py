"""One run from start to record: its workers on this host and others, started again where one is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from poc import engines
from poc.machine import hardware, processes
from poc.machine.monitor import Monitored
from poc.plan import estimate
from poc.records.record import DONE, FAILED, Record
from poc.run import Run
from poc.train import checkpoint
from poc.train.hosts import Link, LinkError
from poc.train.local import Place, Share, Task, core_seconds, core_use, train_here
from poc.train.told import Told, merged
from poc.values import from_plain, to_plain

_LOOK_SECONDS = 0.1
_CHECKPOINT_SECONDS = 180.0


def execute(
    run: Run,
    place: Place,
    machine: hardware.Hardware,
    infrastructure: str,
    *,
    detail: int = 0,
    others: Sequence[Link] = (),
) -> tuple[Record, bool]:
    """Trains `run` in processes of its own, one a worker; returns its record, and whether the user interrupted it.

    Where it was cut off before it goes on from its last checkpoint; where a process is lost it does so `run.restarts`
    times. `detail` adds a pass of so many rounds that takes computation and communication apart. Several workers are
    shared with the `others`, hosts that follow this one.
    """
    record, before = blank(run, machine, infrastructure), core_seconds()
    team = list(others) if run.workers > 1 else []
    conditions = {
        "versions": record.versions,
        "commit": record.commit,
        "cpu": machine.cpu,
        "stand_in": place.stand_in,
        "workers_here": run.workers // (1 + len(team)),
    }
    why = "the run was cut off"
    for left in range(run.restarts, -1, -1):
        try:
            first_step = _resumed_from(run, place, team, conditions)
        except LinkError as error:  # a host is gone: the attempt says which
            first_step, why = 0, str(error)
        request = {
            "run": run.to_json(),
            "first_step": first_step,
            "why": why,
            "conditions": conditions,
            "checkpoint_every": math.ceil(_CHECKPOINT_SECONDS * run.steps / estimate(run, machine)),
            "detail": detail,
            "stand_in": place.stand_in,
        }
        shares, reason = _attempt(run, request, place, machine, team)
        interrupted = shares[0].interrupted
        if not reason or interrupted or not left:
            break
        why = reason
        print(f"  {why}; starting again ({left - 1} of {run.restarts} restarts left)", file=sys.stderr)
    # The first host's use is that of all attempts, and of what served the workers too.
    cpu_seconds, others_busy = zip(core_use(before), *(share.core_use for share in shares[1:]))
    told = [worker for share in shares for worker in share.told]
    record, reason = merged(record, told), "interrupted" if interrupted else reason or _mixed_data(told)
    return dataclasses.replace(
        record,
        monitor=_monitored(shares),
        cpu_seconds=sum(cpu_seconds),
        others_busy_cores=max(others_busy),
        outcome=FAILED if reason else record.outcome,
        reason=reason or record.reason,
    ), interrupted


def _mixed_data(told: Sequence[Told]) -> str:
    """Why workers that trained on different data make no run; empty where they did not."""
    names = sorted({worker.dataset for worker in told if worker.dataset is not None})
    return f"the hosts trained on different data: {', '.join(names)}" if len(names) > 1 else ""


def blank(run: Run, machine: hardware.Hardware, infrastructure: str, **fields: Any) -> Record:
    """The record of a run of which nothing is known yet but `fields`."""
    return Record(
        run_id=run.id,
        run=run,
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        infrastructure=infrastructure,
        hardware=machine,
        versions={**hardware.versions(), **engines.versions(run.engine)},
        commit=hardware.commit(),
        dataset=run.data.name,
        **fields,
    )


def forget(run: Run, place: Place) -> None:
    """Removes this host's checkpoints of a run whose record is safe, but for the last one where they have a folder."""
    checkpoint.remove(place.checkpoints_of(run), but=run.steps if place.checkpoints else None)


def _resumed_from(run: Run, place: Place, team: Sequence[Link], conditions: dict[str, Any]) -> int:
    """The last step after which every worker, on every host, has a checkpoint; 0 for none. Raises LinkError."""
    each = run.workers // (1 + len(team))
    common = set(checkpoint.steps(place.checkpoints_of(run), range(each), conditions))
    for number, link in enumerate(team, start=1):
        asked = {"run": run.to_json(), "workers": list(range(number * each, (number + 1) * each))}
        link.send({"steps": {**asked, "conditions": conditions}})
        common &= set(link.receive()["have"])
    return max((step for step in common if step < run.steps), default=0)


def _attempt(
    run: Run, request: dict[str, Any], place: Place, machine: hardware.Hardware, team: Sequence[Link]
) -> tuple[list[Share], str]:
    """Trains `run` once, on this host and the `team`; returns what each host did, this one first, and why it failed."""
    addresses = [team[0].here, *(link.there for link in team)] if team else ["127.0.0.1"]
    each = run.workers // len(addresses)
    heard: dict[str, Share] = {}

    def elsewhere() -> processes.Lost | None:
        waited_for = [link for link in team if link.name not in heard]
        return next(filter(None, (_hear(link, heard) for link in waited_for)), None)

    with engines.load(run.engine).cluster(run, run.cores_per_worker or machine.cores, addresses) as around:
        tasks = [
            Task(request=request, first=first, environments=tuple(around.environments[first : first + each]))
            for first in range(0, run.workers, each)
        ]
        for link, task in zip(team, tasks[1:]):
            with contextlib.suppress(LinkError):  # `elsewhere` finds out
                link.send({"task": to_plain(task)})
        own = train_here(tasks[0], place, machine, around.helpers, elsewhere)
        lost = own.lost
        while lost is None and not own.interrupted and len(heard) < len(team):
            lost = elsewhere()
            time.sleep(_LOOK_SECONDS)
        for link in team:
            if link.name not in heard:
                with contextlib.suppress(LinkError):
                    link.send({"stop": True})
                    heard[link.name] = from_plain(Share, link.receive()["share"])
    shares = [own, *(heard.get(link.name) for link in team)]
    there = [share for share in shares if share]
    if lost is None:
        return there, ""
    who, why = lost
    for task, share in zip(tasks, shares):
        for number, worker in enumerate(share.told if share else (), start=task.first):
            if who == f"worker {number}" and worker.wall is not None:
                why = worker.reason  # in its own words, where it had the time for some
    return there, why if run.workers == 1 else f"{who}: {why}"


def follow(leader: Link, place: Place, machine: hardware.Hardware) -> None:
    """Does this host's share of each run that the first host names, until it says that there are no more.

    Raises LinkError where that host is lost.
    """

    def elsewhere() -> processes.Lost | None:
        try:
            return (leader.name, "it ended the run") if leader.poll() else None
        except LinkError as error:
            return leader.name, str(error)

    while True:
        message = leader.receive()
        if "end" in message:
            return
        if "steps" in message:
            asked = message["steps"]
            folder = place.checkpoints_of(Run.from_json(asked["run"]))
            leader.send({"have": checkpoint.steps(folder, asked["workers"], asked["conditions"])})
        if "task" in message:
            task = from_plain(Task, message["task"])
            share = train_here(task, place, machine, {}, elsewhere)
            leader.send({"share": to_plain(share)})
            if all(told.outcome in DONE for told in share.told):
                forget(task.run, place)


def _hear(link: Link, heard: dict[str, Share]) -> processes.Lost | None:
    """Adds the share of a run that has come over `link` to `heard`; returns what was lost there, or the link."""
    try:
        message = link.poll()
    except LinkError as error:
        return link.name, str(error)
    if message is None:
        return None
    share = heard[link.name] = from_plain(Share, message["share"])
    return (link.name, "interrupted") if share.interrupted and share.lost is None else share.lost


def _monitored(shares: Sequence[Share]) -> Monitored | None:
    """What the hardware of all hosts did, as one summary; devices of the first host keep their names."""
    first = shares[0].monitor
    devices = [
        dataclasses.replace(device, device=f"host {host} {device.device}") if host else device
        for host, share in enumerate(shares)
        for device in (share.monitor.devices if share.monitor else ())
    ]
    return first and dataclasses.replace(first, devices=tuple(devices))
