"""The runs of a cluster: which nodes do them, and when. Each node does one run at a time."""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray

from poc.cluster.launcher import Node, NodeLostError, RayLauncher, Supervisor
from poc.config.datasets import DataId
from poc.config.recipe import Recipe
from poc.host.environment import POC
from poc.host.hardware import Hardware
from poc.plan import Planned, select
from poc.published import prices
from poc.records import journal
from poc.run import schedule
from poc.run.launcher import RunContext
from poc.run.sweep import Sweep
from poc.run.workload import summary
from poc.values import UserError, from_plain

_SAME_EVERYWHERE = ("RAY_AUTH_MODE", "commit", "python", "numpy")
_JOIN_SECONDS, _LOOK_SECONDS, _REPLACE_SECONDS = 120.0, 2.0, 60.0  # the last: until another node replaces a lost one


def _key(planned: Planned) -> str:  # without `cores_per_worker`, which depends on the number of hosts
    return planned.run.fingerprint("cores_per_worker")


@dataclasses.dataclass(eq=False)
class HostSweep(Sweep):
    """The sweep on `hosts` nodes of a type together, which results show as one machine."""

    node_type: str = ""
    hosts: int = 1
    todo: list[Planned] = dataclasses.field(default_factory=list)
    postponed: list[Planned] = dataclasses.field(default_factory=list)  # do not fit before the bound
    running: set[str] = dataclasses.field(default_factory=set)  # ids: two trainings of one would share checkpoints


@dataclasses.dataclass
class Cluster:
    """The nodes, and what is to be done on them."""

    recipes: Sequence[tuple[str, Recipe]]  # with their names
    results: Path
    context: RunContext  # common to all nodes, without a machine
    only: list[str] | None
    plan_options: Mapping[str, bool]
    sweep_options: Mapping[str, Any]
    note: Callable[[Sequence[Sweep]], object]  # is called with all sweeps whenever there is a new one, and at the end

    def __post_init__(self) -> None:
        self._nodes: list[Node] = []  # all that were ever seen; a node that comes back is a new one
        self._busy: set[Node] = set()
        self._rounds: dict[tuple[str, int], Node] = {}  # the node of each round of repeats on a type of nodes
        self._files: dict[str, Any] = {}  # identities of images, and hashes of the sources of own models
        self._sweeps: list[HostSweep] = []
        self._replacing: list[str] = []  # the type of the node for each run that waits for one in place of a lost one
        self._change = threading.Condition()
        self._over = threading.Event()
        self._runs: list[Future[None]] = []
        self._claims = contextlib.ExitStack()

    def run(self) -> list[str]:
        """Do all runs; return the ids of those that failed.

        Raises UserError if no node can be used, else as `poc.run.sweep.run_sweep`.
        """
        with self._claims, ThreadPoolExecutor(max_workers=1000) as pool:
            try:
                admitted = [self._admit(node) for node in self._new_nodes(_JOIN_SECONDS)]
                if not admitted:
                    raise UserError("--cluster: no free node with a CPU answers; see `ray status`")
                select([item for *_, planned, _ in admitted for item in planned], self.only)
                for admission in admitted:
                    self._add_sweep(*admission)
                threading.Thread(target=self._look_for_nodes, name="look for nodes", daemon=True).start()
                self._schedule(pool)
            finally:
                self._over.set()
        for future in self._runs:
            future.result()
        failed = []
        for sweep in self._sweeps:
            sweep.say_left(sweep.postponed + sweep.todo)
            failed += [id for id, _ in sweep.failed]
            if time.monotonic() < self.context.until:  # too few nodes are left
                failed += [planned.run.id for planned in sweep.todo]
        for node in self._nodes:
            if not (node.type or node.lost):
                print(f"not used: {node.name} did not answer; has another command reserved it?", file=sys.stderr)
        self.note(self._sweeps)
        return failed

    def _new_nodes(self, seconds: float) -> list[Node]:
        """Return the nodes with a CPU that have joined; one that another command has reserved joins when it is free."""
        entries = {each["NodeID"]: each for each in ray.nodes() if each["Alive"] and each["Resources"].get("CPU")}
        for node in self._nodes:
            if entries.pop(node.id, None) is None and not node.lost:
                node.give_up("Ray no longer lists it")
        # Where Ray was started twice, a machine has two nodes, each with all of its CPUs and GPUs.
        in_use = {node.address for node in self._nodes if not node.lost}
        started = {address: each for each in entries.values() if (address := each["NodeManagerAddress"]) not in in_use}
        self._nodes = sorted([*self._nodes, *map(Node, started.values())], key=lambda node: node.name)
        joining = {node.description: node for node in self._nodes if not (node.type or node.lost)}
        described = ray.wait([*joining], num_returns=len(joining), timeout=seconds)[0]
        return [node for reference, node in joining.items() if reference in described]

    def _look_for_nodes(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            for node in self._new_nodes(0.0):
                try:
                    self._add_sweep(*self._admit(node))
                except UserError as error:
                    node.give_up(str(error))
                    print(f"not used: {error}", file=sys.stderr)

    def _admit(self, node: Node) -> tuple[Node, int, list[Planned], dict[str, DataId]]:
        """Compare a node with the driver and other nodes; return the plan for all nodes of its type, and the images."""
        node.description = node.get(node.description)
        versions, driver_versions = node.description["versions"], Supervisor().describe()["versions"]
        node.require_same(versions, "the driver", {name: driver_versions[name] for name in _SAME_EVERYWHERE})
        node_type = node.label or versions["hardware"]
        if earlier := next((earlier for earlier in self._nodes if earlier.type == node_type), None):
            node.require_same(versions, f"{earlier.name} of the same type", earlier.description["versions"])
        hosts = 1 + len(self._alive(node_type))
        node.get(node.actor.use.remote(self.context))
        planned, images = node.get(node.actor.plan.remote(self.recipes, hosts, self.only or [""], **self.plan_options))
        models = {f"model {item.run.model} of {item.run.recipe}": item.run.model_hash for item in planned}
        node.require_same({**self._files, **images, **models}, "the other nodes", self._files)
        self._files.update({**images, **models})
        with self._change:
            node.type = node_type
            self._change.notify_all()
        return node, hosts, planned, images

    def _add_sweep(self, node: Node, hosts: int, planned: list[Planned], images: Mapping[str, DataId]) -> None:
        """Add what so many nodes of a type can do, and fewer cannot."""
        smaller = [sweep for sweep in self._sweeps if sweep.node_type == node.type]
        keys = {_key(item) for sweep in smaller for item in sweep.plan if not item.skip}
        planned = [item for item in planned if _key(item) not in keys]
        if hosts > 1:  # a run with one worker is never theirs, even if a node with less memory skipped it
            joined = (item for item in planned if not item.skip and item.run.workers > 1)
            planned = [item for item in joined if all(run.workers > 1 for runs in item.searched for run in runs)]
        if not planned or hosts in [sweep.hosts for sweep in smaller]:
            return
        keys = {*map(_key, planned)}
        for sweep in smaller:  # what is done now was skipped there only
            sweep.plan = [item for item in sweep.plan if _key(item) not in keys]
        name = node.type if hosts == 1 else f"{hosts} hosts, each {node.type}"
        hardware, software = node.description["machine"], node.description["software"]
        machine = from_plain(Hardware, {**hardware, "hosts": hosts})
        context = dataclasses.replace(self.context, machine=machine, infrastructure=name, software=software)
        options: dict[str, Any] = {"prefix": f"{name}: ", "node_type": node.type, "hosts": hosts, **self.sweep_options}
        sweep = HostSweep(planned, self.results, context, **options)
        self._claims.enter_context(journal.claimed(sweep.path))
        sweep.use(images)
        price = prices.load({}).of(node.type, node.description["versions"]["hardware"])
        total, option = hosts * price.dollars_per_hour if price else None, f'{POC} report --price "{node.type}=DOLLARS"'
        sweep.say(f"\n{summary(sweep.lines(), total, option)}\n")
        if not all(each.checksum for each in images.values()):  # the nodes' own warnings are in Ray's logs
            sweep.say("WARNING: training on SYNTHETIC images; give --data, or set POC_DATA where Ray is started\n")
        for item in [item for item in sweep.plan if item.skip]:
            sweep.do(item)
        # Rounds of repeats, so that those of different runs are close in time; the longest run of a round first.
        sweep.todo = sorted(sweep.pending(sweep.plan), key=lambda item: (item.repeat, -sweep.seconds(item)))
        self._sweeps.append(sweep)
        self.note(self._sweeps)

    def _schedule(self, pool: ThreadPoolExecutor) -> None:
        """Start runs until there are none left, too few nodes for them, or no time."""
        active = time.monotonic()
        with self._change:
            while time.monotonic() < self.context.until:
                if any(run.done() and run.exception() for run in self._runs):
                    return
                self._start_runs(pool)
                if any(sweep.running for sweep in self._sweeps):
                    active = time.monotonic()
                elif not any(sweep.todo for sweep in self._sweeps) or time.monotonic() - active > _REPLACE_SECONDS:
                    return
                self._change.wait(_LOOK_SECONDS)

    def _start_runs(self, pool: ThreadPoolExecutor) -> None:
        """Start the runs for which nodes are free; those on several nodes first, or they would starve."""
        waiting = {*self._replacing}
        possible = [sweep for sweep in self._sweeps if sweep.hosts <= len(self._alive(sweep.node_type))]
        for sweep in sorted(possible, key=lambda sweep: -sweep.hosts):
            repeated = {item.run.id for item in sweep.plan if item.repeat > 1 and sweep.hosts == 1}
            for planned in [*sweep.todo]:
                round_number, ids = planned.repeat if planned.run.id in repeated else 0, schedule.ids(planned)
                waiter = f"{sweep.node_type} {planned.run.id}" if round_number else sweep.node_type
                if waiting.isdisjoint((sweep.node_type, waiter)) and sweep.running.isdisjoint(ids):
                    if nodes := self._reserve(sweep.node_type, sweep.hosts, round_number):
                        sweep.running.update(ids)
                        self._runs.append(pool.submit(self._run, sweep, planned, nodes))
                    else:  # as later repeats do, while runs without any go to other nodes
                        waiting.add(waiter)

    def _alive(self, node_type: str) -> list[Node]:
        return [node for node in self._nodes if node.type == node_type and not node.lost]

    def _reserve(self, node_type: str, count: int, round_number: int = 0) -> list[Node]:
        """Reserve free nodes of a type, that of a round of repeats; none if there are fewer than `count`."""
        alive = self._alive(node_type)
        if round_number and alive:  # nodes may differ in speed
            self._rounds = {key: node for key, node in self._rounds.items() if not node.lost}
            alive = [self._rounds.setdefault((node_type, round_number), min(alive, key=[*self._rounds.values()].count))]
        free = [node for node in alive if node not in self._busy]
        nodes = free[:count] if len(free) >= count else []
        self._busy.update(nodes)
        return nodes

    def _replacement(self, node_type: str) -> Node | None:
        """Wait for a free node of a type, a minute at most."""
        with self._change:
            self._replacing.append(node_type)
            nodes = self._change.wait_for(lambda: self._reserve(node_type, 1), timeout=_REPLACE_SECONDS)
            self._replacing.remove(node_type)
        return nodes[0] if nodes else None

    def _run(self, sweep: HostSweep, planned: Planned, nodes: list[Node]) -> None:
        launcher = RayLauncher(nodes, sweep.context, self._over, lambda: self._replacement(sweep.node_type))
        try:
            with contextlib.suppress(NodeLostError, KeyboardInterrupt):  # it stays to be done
                if not sweep.do(planned, launcher):
                    sweep.postponed.append(planned)
                sweep.todo.remove(planned)
        finally:
            with self._change:
                sweep.running.difference_update(schedule.ids(planned))
                self._busy.difference_update(launcher.nodes)
                self._change.notify_all()
