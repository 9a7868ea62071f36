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
from poc.records.record import DONE, FAILED, OUT_OF_MEMORY, Record, Told, merged
from poc.run import Run
from poc.train import checkpoint
from poc.train.hosts import Link, LinkError
from poc.train.local import Place, Share, Task, core_seconds, core_use, train_here
from poc.values import from_plain, to_plain

_LOOK_SECONDS = 0.1
_CHECKPOINT_SECONDS = 180.0


def execute(
    run: Run, place: Place, *, detail: int = 0, others: Sequence[Link] = (), pace: float = 1.0
) -> tuple[Record, bool]:
    """Trains `run` in processes of its own, one a worker; returns its record, and whether the user interrupted it.

    Where it was cut off before it goes on from its last checkpoint; where a process is lost it does so `run.restarts`
    times. `detail` adds a pass of so many rounds that takes computation and communication apart. Several workers are
    shared with the `others`, hosts that follow this one. `pace` is what such runs took of their estimates.
    """
    record, before = blank(run, place, price_per_hour=place.price_per_hour), core_seconds()
    team = list(others) if run.workers > 1 else []
    conditions = {
        "versions": record.versions,
        "commit": record.commit,
        "cpu": place.machine.cpu,
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
            "checkpoint_every": math.ceil(_CHECKPOINT_SECONDS * run.steps / (pace * estimate(run, place.machine))),
            "detail": detail,
            "stand_in": place.stand_in,
        }
        shares, reason = _attempt(run, request, place, team)
        workers = [worker for share in shares for worker in share.told]
        if any(worker.outcome == OUT_OF_MEMORY for worker in workers):
            reason = ""  # it would run out again, and is told, whatever it did to other workers
        if not reason or shares[0].interrupted or not left:
            break
        why = reason
        print(f"  {why}; starting again ({left - 1} of {run.restarts} restarts left)", file=sys.stderr)
    # The first host's use is that of all attempts, and of what served the workers too.
    uses = [core_use(before), *(share.core_use for share in shares[1:])]
    most_disturbed = max(uses, key=lambda use: (use.others_busy + use.stolen) / max(1, use.cores))
    reason = "interrupted" if shares[0].interrupted else reason or _different_data(workers)
    record = merged(record, workers)
    record = dataclasses.replace(
        record,
        monitor=_monitored(shares),
        cpu_seconds=sum(use.own_seconds for use in uses),
        others_busy_cores=most_disturbed.others_busy,
        stolen_cores=most_disturbed.stolen,
        usable_cores=most_disturbed.cores,
        outcome=FAILED if reason else record.outcome,
        reason=reason or record.reason,
    )
    return record, shares[0].interrupted


def _different_data(workers: Sequence[Told]) -> str:
    """Why workers that did not train on the same images have failed; empty where they did."""
    names = sorted({worker.dataset for worker in workers if worker.dataset})
    return f"the hosts trained on different data: {', '.join(names)}" if len(names) > 1 else ""


def blank(run: Run, place: Place, **fields: Any) -> Record:
    """The record of a run of which nothing is known yet but `fields`."""
    return Record(
        run_id=run.id,
        run=run,
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        infrastructure=place.infrastructure,
        hardware=place.machine,
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


def _attempt(run: Run, request: dict[str, Any], place: Place, team: Sequence[Link]) -> tuple[list[Share], str]:
    """Trains `run` once, on this host and the `team`; returns what each host did, this one first, and why it failed."""
    addresses = [team[0].here, *(link.there for link in team)] if team else ["127.0.0.1"]
    each = run.workers // len(addresses)
    heard: dict[str, Share] = {}

    def elsewhere() -> processes.Lost | None:
        """Takes in the shares that have come from other hosts; returns what was lost there, or the link."""
        for link in team:
            try:
                message = None if link.name in heard else link.poll()
            except LinkError as error:
                return link.name, str(error)
            if message is not None:
                share = heard[link.name] = from_plain(Share, message["share"])
                if share.lost or share.interrupted:
                    return share.lost or (link.name, "interrupted")
        return None

    with engines.load(run.engine).cluster(run, run.cores_per_worker or place.machine.cores, addresses) as around:
        first, *tasks = [
            Task(request=request, first=first, environments=tuple(around.environments[first : first + each]))
            for first in range(0, run.workers, each)
        ]
        for link, task in zip(team, tasks):
            with contextlib.suppress(LinkError):  # `elsewhere` finds out
                link.send({"task": to_plain(task)})
        own = train_here(first, place, around.helpers, elsewhere)
        lost = own.lost
        while lost is None and not own.interrupted and len(heard) < len(team):
            lost = elsewhere()
            time.sleep(_LOOK_SECONDS)
        for link in team:
            if link.name not in heard:
                with contextlib.suppress(LinkError):
                    link.send({"stop": True})
                    heard[link.name] = from_plain(Share, link.receive()["share"])
    shares = [own, *(heard[link.name] for link in team if link.name in heard)]
    if lost is None:
        return shares, ""
    return shares, lost[1] if run.workers == 1 else ": ".join(lost)


def follow(leader: Link, place: Place) -> None:
    """Does this host's share of each run that the first host names, until it says that there are no more.

    Raises LinkError where that host is lost.
    """

    def elsewhere() -> processes.Lost | None:
        try:
            return (leader.name, "it ended the run") if leader.poll() else None
        except LinkError as error:
            return leader.name, str(error)

    while "end" not in (message := leader.receive()):
        if "steps" in message:
            asked = message["steps"]
            folder = place.checkpoints_of(Run.from_json(asked["run"]))
            leader.send({"have": checkpoint.steps(folder, asked["workers"], asked["conditions"])})
        if "task" in message:
            task = from_plain(Task, message["task"])
            share = train_here(task, place, {}, elsewhere)
            leader.send({"share": to_plain(share)})
            if all(worker.outcome in DONE for worker in share.told):
                forget(task.run, place)


def _monitored(shares: Sequence[Share]) -> Monitored | None:
    """What the hardware of all hosts did, as one summary; devices of the first host keep their names."""
    first = shares[0].monitor
    devices = [
        dataclasses.replace(device, device=f"host {host} {device.device}") if host else device
        for host, share in enumerate(shares)
        for device in (share.monitor.devices if share.monitor else ())
    ]
    return first and dataclasses.replace(first, devices=tuple(devices))
