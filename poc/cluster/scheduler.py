"""The runs of a cluster: which nodes do them, and when. Each node does one run at a time."""

import contextlib
import dataclasses
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray

from poc.cluster.launcher import Node, NodeLostError, RayLauncher
from poc.cluster.node import Plans, Supervisor
from poc.config.datasets import DataId
from poc.config.recipe import Recipe
from poc.host.environment import POC
from poc.host.hardware import Hardware
from poc.plan import Planned, select
from poc.published.prices import Prices
from poc.records import journal
from poc.run import schedule
from poc.run.launcher import RunContext
from poc.run.schedule import Item
from poc.run.sweep import Sweep
from poc.run.workload import summary
from poc.values import UserError, from_plain

_SAME_EVERYWHERE = ("RAY_AUTH_MODE", "commit", "python", "numpy")
_JOIN_SECONDS, _LOOK_SECONDS, _REPLACE_SECONDS = 60.0, 2.0, 30.0
_MAX_THREADS = 1000


def _key(planned: Planned) -> str:
    """Return the run's fingerprint without `cores_per_worker`, which depends on the number of hosts."""
    return planned.run.fingerprint("cores_per_worker")


@dataclasses.dataclass(eq=False)
class HostSweep(Sweep):
    """The sweep on `hosts` nodes of a type together, which results show as one machine."""

    node_type: str = ""
    hosts: int = 1
    todo: list[Item] = dataclasses.field(default_factory=list)
    postponed: list[Item] = dataclasses.field(default_factory=list)  # do not fit before the bound
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
    prices: Prices
    note: Callable[[Sequence[Sweep]], object]  # is called with all sweeps whenever there is a new one, and at the end

    def __post_init__(self) -> None:
        self._nodes: list[Node] = []  # all that were ever seen; a node that comes back is a new one
        self._images: dict[str, DataId] = {}
        self._models: dict[str, str] = {}  # hashes of the sources of own models
        self._sweeps: list[HostSweep] = []
        self._replacing: Counter[str] = Counter()  # runs that wait for a node in place of a lost one, by type
        self._change = threading.Condition()
        self._over = threading.Event()
        self._runs: list[Future[None]] = []
        self._claims = contextlib.ExitStack()

    def run(self) -> list[str]:
        """Do all runs; return the ids of those that failed.

        Raises UserError if no node can be used, else as `poc.run.sweep.run_sweep`.
        """
        with self._claims, ThreadPoolExecutor(_MAX_THREADS) as pool:
            try:
                admitted = [self._admit(node) for node in self._new_nodes(_JOIN_SECONDS)]
                if not admitted:
                    raise UserError("--cluster: no free node with a CPU answers; see `ray status`")
                select([item for *_, plans in admitted for _, planned in plans for item in planned], self.only)
                for node, hosts, plans in admitted:
                    self._add_sweep(node, hosts, plans)
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
                failed += [item.planned.run.id for item in sweep.todo]
        self.note(self._sweeps)
        return failed

    def _new_nodes(self, seconds: float) -> list[Node]:
        """Return the nodes that have joined; one that another command has reserved joins when that releases it."""
        entries = {entry["NodeID"]: entry for entry in ray.nodes() if entry["Alive"]}
        for node in self._nodes:
            if node.id not in entries and not node.lost:
                node.give_up("Ray no longer lists it")
        for id in entries.keys() - {node.id for node in self._nodes}:
            if entries[id]["Resources"].get("CPU"):  # else it only drives
                self._nodes.append(Node(entries[id]))
        joining = {node.description: node for node in self._nodes if not (node.type or node.lost)}
        described = ray.wait([*joining], num_returns=len(joining), timeout=seconds)[0] if joining else []
        return sorted((joining[reference] for reference in described), key=lambda node: node.name)

    def _look_for_nodes(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            for node in self._new_nodes(0.0):
                try:
                    self._add_sweep(*self._admit(node))
                except UserError as error:
                    node.give_up(str(error))
                    print(f"not used: {error}", file=sys.stderr)

    def _admit(self, node: Node) -> tuple[Node, int, Plans]:
        """Compare a node with the driver and other nodes; return the plans for all nodes of its type together."""
        node.description = node.get(node.description)
        versions, driver_versions = node.description["versions"], Supervisor().describe()["versions"]
        node.require_same(versions, "the driver", {name: driver_versions[name] for name in _SAME_EVERYWHERE})
        node_type = node.label or versions["hardware"]
        if earlier := next((earlier for earlier in self._nodes if earlier.type == node_type), None):
            node.require_same(versions, f"{earlier.name} of the same type", earlier.description["versions"])
        hosts, only = 1 + len(self._alive(node_type)), self.only or [""]
        planning = node.actor.plan.remote(self.recipes, self.context, hosts, only, **self.plan_options)
        plans, images = node.get(planning)
        node.require_same({**self._images, **images}, "the other nodes", self._images)
        self._images.update(images)
        runs = [(recipe, item.run) for recipe, planned in plans for item in planned]
        models = {f"model {run.model} of {recipe}": run.model_hash for recipe, run in runs}
        node.require_same({**self._models, **models}, "the other nodes", self._models)
        self._models.update(models)
        with self._change:
            node.type = node_type
            self._change.notify_all()
        return node, hosts, plans

    def _add_sweep(self, node: Node, hosts: int, plans: Plans) -> None:
        """Add what so many nodes of a type can do, and fewer cannot."""
        smaller = [sweep for sweep in self._sweeps if sweep.node_type == node.type]
        planned_before = [item.planned for sweep in smaller for item in sweep.items]
        keys = {_key(planned) for planned in planned_before if not planned.skip}
        for _, planned in plans:
            planned[:] = [item for item in planned if _key(item) not in keys]
            if hosts > 1:  # a run with one worker is never theirs, even if a node with less memory skipped it
                runs = [(item, itertools.chain([item.run], *item.searched)) for item in planned if not item.skip]
                planned[:] = [item for item, of_item in runs if all(run.workers > 1 for run in of_item)]
        if hosts in [sweep.hosts for sweep in smaller] or not any(planned for _, planned in plans):
            return
        keys = {_key(item) for _, planned in plans for item in planned}
        for sweep in smaller:  # what is done now was skipped there only
            sweep.items = [item for item in sweep.items if _key(item.planned) not in keys]
        name = node.type if hosts == 1 else f"{hosts} hosts, each {node.type}"
        machine = from_plain(Hardware, node.description["machine"])
        context = dataclasses.replace(
            self.context,
            machine=dataclasses.replace(machine, hosts=hosts),
            infrastructure=name,
            software=node.description["software"],
            images=dict(self._images),
        )
        options: dict[str, Any] = {"prefix": f"{name}: ", "node_type": node.type, "hosts": hosts, **self.sweep_options}
        sweep = HostSweep(plans, self.results, context, **options)
        self._claims.enter_context(journal.claimed(sweep.path))
        sweep.use(context.images)
        price = self.prices.of(node.type, machine.describe())
        total, option = hosts * price.dollars_per_hour if price else None, f'{POC} report --price "{node.type}=DOLLARS"'
        sweep.say(f"\n{summary(sweep.lines(), total, option)}\n")
        for item in sweep.items:
            if item.planned.skip:
                sweep.do(item)
        # Rounds of repeats, so that those of different runs are close in time; the longest run of a round first.
        sweep.todo = sweep.pending(sweep.items)
        sweep.todo.sort(key=lambda item: (item.planned.repeat, -sweep.seconds(item.planned)))
        with self._change:
            self._sweeps.append(sweep)
        self.note(self._sweeps)

    def _schedule(self, pool: ThreadPoolExecutor) -> None:
        """Start runs until there are none left, or too few nodes for them."""
        active = time.monotonic()
        while not self._over.is_set():
            with self._change:
                if startable := self._next():
                    self._runs.append(pool.submit(self._run, *startable))
                    continue
                if any(sweep.running for sweep in self._sweeps):
                    active = time.monotonic()
                # A lost node may come back, or another one join.
                elif not any(sweep.todo for sweep in self._sweeps) or time.monotonic() - active > _REPLACE_SECONDS:
                    return
                self._change.wait(_LOOK_SECONDS)

    def _next(self) -> tuple[HostSweep, Item, list[Node]] | None:
        """Return the next item that can start, with its nodes; items for several nodes first, or they would starve."""
        waiting = +self._replacing
        for sweep in sorted(self._sweeps, key=lambda sweep: -sweep.hosts):
            items = [item for item in sweep.todo if sweep.running.isdisjoint(schedule.ids(item.planned))]
            if items and not waiting[sweep.node_type] and sweep.hosts <= len(self._alive(sweep.node_type)):
                if nodes := self._reserve(sweep.node_type, sweep.hosts):
                    sweep.todo.remove(items[0])
                    sweep.running.update(schedule.ids(items[0].planned))
                    return sweep, items[0], nodes
                waiting[sweep.node_type] += 1
        return None

    def _alive(self, node_type: str) -> list[Node]:
        nodes = [node for node in self._nodes if node.type == node_type and not node.lost]
        return sorted(nodes, key=lambda node: node.name)

    def _reserve(self, node_type: str, count: int) -> list[Node]:
        """Reserve free nodes of a type; none if there are fewer than `count`."""
        nodes = [node for node in self._alive(node_type) if node.is_free][:count]
        if len(nodes) < count:
            return []
        for node in nodes:
            node.is_free = False
        return nodes

    def _replacement(self, node_type: str) -> Node | None:
        """Wait for a free node of a type, half a minute at most."""
        with self._change:
            self._replacing[node_type] += 1
            nodes = self._change.wait_for(lambda: self._reserve(node_type, 1), timeout=_REPLACE_SECONDS)
            self._replacing[node_type] -= 1
        return nodes[0] if nodes else None

    def _run(self, sweep: HostSweep, item: Item, nodes: list[Node]) -> None:
        launcher = RayLauncher(nodes, sweep.context, self._over, lambda: self._replacement(sweep.node_type))
        try:
            if not sweep.do(item, launcher):
                sweep.postponed.append(item)
        except BaseException as error:
            sweep.todo.append(item)
            if not isinstance(error, NodeLostError):
                self._over.set()
            if not isinstance(error, (NodeLostError, KeyboardInterrupt)):
                raise
        finally:
            with self._change:
                sweep.running.difference_update(schedule.ids(item.planned))
                for node in launcher.nodes:
                    node.is_free = True
                self._change.notify_all()
