"""The recipes on every kind of machine of a cluster, side by side: each machine does one run at a time.

A kind is planned on one of its own nodes; what takes several of them is planned for so many together, which results
call "2 hosts, each ...". Each has its journal in the folder of results, as if it had run there alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from poc.cluster import nodes
from poc.cluster.nodes import Node, NodeLostError
from poc.cluster.team import RayLauncher
from poc.config.datasets import DataId
from poc.config.run import Run
from poc.plan import Planned, select
from poc.published.prices import Prices
from poc.records import journal, last_run
from poc.records.last_run import LastRun
from poc.run import schedule, workload
from poc.run.launcher import RunContext, software
from poc.run.sweep import Sweep, TimeIsUpError, say_left
from poc.values import UserError, value

STATUS = "cluster.json"
"""In the folder of results, for as long as a cluster is at work: what each machine does."""
_LOOK_SECONDS = 1.0
_SCAN_SECONDS = 2.0
_LINE_SECONDS = 10.0
_REPLACE_SECONDS = 30.0
_DATA_SECONDS = 900.0
_ROOM_BYTES = 1e9


@value
class Wish:
    """What is to be done on the cluster, as the command line names it."""

    recipes: tuple[Path, ...]
    names: tuple[str, ...]
    """The recipes as the user named them."""
    settings: tuple[str, ...]
    """Fields that are set in place of the recipes' own, as `poc.config.literals` reads them."""
    quick: bool
    cpu: bool
    named: bool
    """Whether the user named recipes or runs."""
    only: list[str] | None
    results: Path
    place: RunContext
    """For all machines: data, checkpoints, patience and the bound. None of its own."""
    detail: int
    again: bool
    verbose: bool
    prices: Prices


class _Machine:
    """So many nodes of a kind together, as one machine of the tables."""

    def __init__(self, name: str, hosts: int, sweep: Sweep) -> None:
        self.name, self.hosts, self.sweep = name, hosts, sweep
        self.keys = {_key(item.run) for *_, item in sweep.items if not item.skip}
        # Repeats in rounds, so that those of different runs are near each other; then the longest first, so that all
        # end the soonest.
        waiting = [item for item in sweep.items if not sweep.is_over(item)]
        self.todo = sorted(waiting, key=lambda item: (item[2].repeat, -sweep.pace.seconds(item[2])))
        self.left: list[schedule.Item] = []
        self.at_work: dict[str, RayLauncher] = {}
        """By the run's id."""


class _Kind:
    """The nodes of one kind."""

    def __init__(self, first: Node) -> None:
        self.first = first
        self.nodes: list[Node] = []
        self.free: list[Node] = []
        self.wanted = 0
        """Nodes that runs wait for which have lost one."""
        self.machines: list[_Machine] = []


class Cluster:
    """The nodes by kinds, and what each does."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self._texts = [[path.stem, path.read_text()] for path in wish.recipes]
        self._started = last_run.now()
        self._kinds: dict[str, _Kind] = {}
        self._images: dict[str, tuple[DataId, str]] = {}
        """The identity of each data set, and on which node it was found."""
        self._planned: list[Planned] = []
        self._refused: set[str] = set()
        self._said: set[tuple[str, str]] = set()
        self._change = threading.Condition()
        self._over = threading.Event()
        self._mistake: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._claims = contextlib.ExitStack()

    def run(self) -> list[str]:
        """Does all there is; returns the ids of the runs that failed. Raises as `poc.run.sweep.run_sweep`."""
        status = self._wish.results / STATUS
        with self._claims, journal.claimed(status):
            try:
                _tell(status, [])
                self._admit(nodes.alive(), first=True)
                self._note_request()
                threading.Thread(target=self._look_for_nodes, name="look for nodes", daemon=True).start()
                self._schedule(status)
            finally:
                self._over.set()
                for thread in self._threads:
                    thread.join()
                status.unlink(missing_ok=True)
        if self._mistake:
            raise self._mistake
        self._note_request()
        failed = []
        for machine in self._machines():
            if machine.todo and not self._time_is_up():
                machine.sweep.say(f"{len(machine.todo)} runs are left, but too few nodes for them")
                failed += [item.run.id for *_, item in machine.todo]
                machine.todo = []
            say_left(machine.sweep, machine.left + machine.todo)
            failed += machine.sweep.failed
        return failed

    def _note_request(self) -> None:
        """Write what was asked for: the runs of all machines; one is skipped where no machine runs it."""
        machines = self._machines()
        every = [item for machine in machines for item in machine.sweep.items]
        last_run.write(
            self._wish.results,
            LastRun(
                recipes=self._wish.names,
                runs=tuple(dict.fromkeys(run for machine in machines for run in machine.sweep.ids())),
                skipped=workload.skipped(every),
                quick=self._wish.quick,
                machine=machines[0].name if machines else "",
                started=self._started,
            ),
        )

    def _schedule(self, status: Path) -> None:
        looked = told = 0.0
        before, active = "", time.monotonic()
        while not self._over.is_set():
            with self._change:
                for kind in self._kinds.values():
                    self._start(kind)
                machines = self._machines()
            if any(machine.at_work for machine in machines):
                active = time.monotonic()
            # A node that was lost may come back, or another in its place.
            elif not any(machine.todo for machine in machines) or time.monotonic() - active > _REPLACE_SECONDS:
                return
            if time.monotonic() - looked > 1.0:
                looked, lines = time.monotonic(), self._lines(machines)
                _tell(status, lines)
                if time.monotonic() - told > _LINE_SECONDS and before != (before := "\n".join(lines)):
                    told = time.monotonic()
                    print(before, file=sys.stderr)
            with self._change:
                self._change.wait(_LOOK_SECONDS)

    def _start(self, kind: _Kind) -> None:
        """Starts what can be on the free nodes of a kind: what takes several of them first, or it would never."""
        kind.nodes = [node for node in kind.nodes if not node.lost]
        kind.free = [node for node in kind.free if not node.lost]
        for machine in sorted(kind.machines, key=lambda machine: -machine.hosts):
            for item in list(machine.todo):
                if machine.hosts > len(kind.nodes) or item[2].run.id in machine.at_work:
                    continue
                if machine.hosts > len(kind.free) - kind.wanted:
                    return
                machine.todo.remove(item)
                kind.free.sort(key=lambda node: node.name)
                taken, kind.free = kind.free[: machine.hosts], kind.free[machine.hosts :]
                self._begin(kind, machine, item, taken)

    def _begin(self, kind: _Kind, machine: _Machine, item: schedule.Item, taken: list[Node]) -> None:
        team = RayLauncher(taken, machine.sweep.context, self._is_over, lambda: self._another(kind))
        machine.at_work[item[2].run.id] = team
        thread = threading.Thread(target=self._do, args=(kind, machine, item, team), name=item[1])
        self._threads.append(thread)
        thread.start()

    def _do(self, kind: _Kind, machine: _Machine, item: schedule.Item, team: RayLauncher) -> None:
        try:
            for node in team.nodes:
                node.ask("poll")
            if not machine.sweep.do(item, team):
                machine.left.append(item)
        except NodeLostError:  # before it began
            machine.todo.append(item)
        except (TimeIsUpError, KeyboardInterrupt):
            machine.todo.append(item)
            self._over.set()
        except BaseException as error:  # for the main thread
            self._mistake = error
            self._over.set()
        finally:
            with self._change:
                del machine.at_work[item[2].run.id]
                kind.free += [node for node in team.nodes if not node.lost]
                self._change.notify_all()

    def _machines(self) -> list[_Machine]:
        return [machine for kind in self._kinds.values() for machine in kind.machines]

    def _is_over(self) -> bool:
        return self._over.is_set() or self._time_is_up()

    def _time_is_up(self) -> bool:
        return time.monotonic() >= self._wish.place.until

    def _another(self, kind: _Kind) -> Node | None:
        """A node in place of one that was lost; None where none is free in half a minute."""
        end = time.monotonic() + _REPLACE_SECONDS
        while True:
            with self._change:
                kind.wanted += 1
                self._change.wait_for(lambda: kind.free or self._is_over(), timeout=end - time.monotonic())
                kind.wanted -= 1
                if not kind.free or self._is_over():
                    return None
                node = kind.free.pop(0)
            with contextlib.suppress(NodeLostError):
                node.ask("poll")
                return node

    def _look_for_nodes(self) -> None:
        """Admits those that come later, or that are back."""
        while not self._over.wait(_SCAN_SECONDS):
            found = nodes.alive()
            with self._change:
                for kind in self._kinds.values():
                    for node in kind.nodes:
                        if node.id not in {known["NodeID"] for known in found}:
                            node.lost = node.lost or "Ray no longer lists it"
                in_use = {node.id for kind in self._kinds.values() for node in kind.nodes if not node.lost}
                ours = self._refused | in_use
            self._admit([known for known in found if known["NodeID"] not in ours], first=False)

    def _admit(self, found: Sequence[dict[str, Any]], *, first: bool) -> None:
        """Takes in nodes once each is found to be as it has to be; raises UserError for the `first` ones' mistakes."""
        for node in [Node(known) for known in found]:
            try:
                node.described()
                self._check(node)
                kind = self._kinds.get(node.kind) or _Kind(node)
                added = self._added(node, kind)
                with self._change:
                    kind.nodes.append(node)
                    kind.free.append(node)
                    kind.machines += added
                    self._kinds[node.kind] = kind
                    self._change.notify_all()
            except NodeLostError as error:
                # It is tried again and again, and may come back.
                if (node.id, str(error)) not in self._said:
                    self._said.add((node.id, str(error)))
                    print(f"{node.name} is not used: {error}", file=sys.stderr)
            except UserError as error:
                if first:
                    raise
                self._refused.add(node.id)
                node.release()
                print(f"not used: {error}", file=sys.stderr)
        if first and not self._kinds:
            raise UserError("--cluster: no free node with a CPU answers; see `ray status`")
        if first:
            select(self._planned, self._wish.only)

    def _check(self, node: Node) -> None:
        """Raises UserError where a node is unlike the driver, or others of its kind."""
        reference = self._kinds[node.kind].first if node.kind in self._kinds else None
        own = software(next(iter(node.software)))
        theirs = next(iter(node.software.values()))
        for what, here, there in (
            ("RAY_AUTH_MODE", os.environ["RAY_AUTH_MODE"], node.auth_mode),
            ("the commit", own["commit"], theirs["commit"]),
            ("Python", own["versions"]["python"], theirs["versions"]["python"]),
            ("NumPy", own["versions"]["numpy"], theirs["versions"]["numpy"]),
        ):
            if here != there:
                raise UserError(f"{node.name}: {what} is {there or 'unknown'}, on the driver {here or 'unknown'}")
        if node.free_bytes < _ROOM_BYTES:
            raise UserError(f"{node.name}: {node.free_bytes / 1e9:.1f} GB of disk free, 1 GB needed; free some")
        if reference is None:
            return
        if reference.machine.describe() != node.machine.describe():
            raise UserError(
                f"{node.name}: it is {node.machine.describe()}, but {reference.name} with the same label is "
                f"{reference.machine.describe()}; use another label {nodes.LABEL}="
            )
        for framework in node.software:
            has, wants = node.software[framework]["versions"], reference.software[framework]["versions"]
            for package in sorted({*has, *wants} - {"system"}):  # a kernel may differ
                there, wanted = has.get(package), wants.get(package)
                if there != wanted:
                    raise UserError(f"{node.name}: {package} is {there}, on {reference.name} {wanted}")

    def _added(self, node: Node, kind: _Kind) -> list[_Machine]:
        """What can be done with one node more of a kind, after a look at its data. Raises UserError."""
        wish, hosts = self._wish, len(kind.nodes) + 1
        how = {"settings": wish.settings, "quick": wish.quick, "cpu": wish.cpu, "named": wish.named}
        answer = node.ask("plan", recipes=self._texts, hosts=hosts, **how, seconds=60.0)
        plans = [(name, [_planned_from(plain) for plain in planned]) for name, planned in answer["plans"]]
        only = tuple(wish.only or [""])
        asked_for = [item for _, planned in plans for item in planned if item.run.id.startswith(only)]
        runs = {str(item.run.data): item.run for item in asked_for if not item.skip}
        source = wish.place.source and str(wish.place.source)
        asked = {"runs": [run.to_json() for run in runs.values()], "source": source}
        told = node.ask("data", **asked, seconds=_DATA_SECONDS)
        images = {data: DataId(*identity) for data, identity in told["images"].items()}
        for data, identity in images.items():
            known, name = self._images.setdefault(data, (identity, node.name))
            if known != identity:
                raise UserError(f"{node.name}: it has the images {identity}, {name} has {known}; use the same")
        if any(machine.hosts == hosts for machine in kind.machines):
            return []
        # What one host, or fewer, can do is theirs: with as many cores, or with fewer for each worker.
        done = {key for machine in kind.machines for key in machine.keys}
        chosen = []
        for name, planned in plans:
            if hosts > 1:
                planned = [item for item in planned if not item.skip and _key(item.run) not in done]
            self._planned += planned
            if planned := [item for item in planned if item.run.id.startswith(only)]:
                chosen.append((name, planned))
        return [self._machine(node, hosts, chosen, images)] if chosen else []

    def _machine(
        self, node: Node, hosts: int, plans: list[tuple[str, list[Planned]]], images: Mapping[str, DataId]
    ) -> _Machine:
        wish, name = self._wish, node.kind if hosts == 1 else f"{hosts} hosts, each {node.kind}"
        place = dataclasses.replace(
            wish.place,
            machine=dataclasses.replace(node.machine, hosts=hosts),
            infrastructure=name,
            software=node.software,
            subfolder=journal.folder(wish.results, name).name,
            images=images,
        )
        how: Any = {"detail": wish.detail, "again": wish.again, "verbose": wish.verbose, "prefix": f"{name}: "}
        sweep = Sweep(plans, wish.results, place, **how)
        self._claims.enter_context(journal.claimed(sweep.path))
        price = wish.prices.of(node.kind, node.machine.describe())
        sweep.say(f"\n{sweep.workload(hosts * price.dollars_per_hour if price else None)}\n")
        for item in sweep.items:
            if item[2].skip:
                sweep.do(item)
        return _Machine(name, hosts, sweep)

    def _lines(self, machines: Sequence[_Machine]) -> list[str]:
        """What each machine does, a line each."""
        lines = []
        for machine in machines:
            to_go = f"{len(machine.todo)} left" if machine.todo else "the last one"
            for run, team in list(machine.at_work.items()):
                where = ", ".join(node.name for node in team.nodes)
                lines.append(f"{machine.name} on {where}: [{run}] {team.line}; {to_go}")
        return lines


def _tell(status: Path, lines: Sequence[str]) -> None:
    unfinished = status.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"driver": os.getpid(), "lines": lines}))
    unfinished.replace(status)


def status(results: Path) -> str:
    """What the machines do of a cluster that is at work with this folder of results, a line each."""
    path = results / STATUS
    try:
        told = json.loads(path.read_text())
    except FileNotFoundError:
        return f"no cluster is running for {results}"
    if not psutil.pid_exists(told["driver"]):
        return f"the driver of the cluster, process {told['driver']}, was killed; run the same command to continue"
    return "\n".join(told["lines"]) or "no run has started yet"


def _key(run: Run) -> str:
    return run.fingerprint("cores_per_worker")


def _planned_from(plain: dict[str, Any]) -> Planned:
    search = tuple((Run.from_json(short), Run.from_json(whole)) for short, whole in plain["search"])
    return Planned(**{**plain, "run": Run.from_json(plain["run"]), "search": search})
