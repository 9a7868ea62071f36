"""The runs of a cluster: which nodes do them, and when. Each node does one run at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any

import ray

from poc.cluster.launcher import Node, NodeLostError, RayLauncher
from poc.cluster.node import Plans, Supervisor
from poc.config.datasets import DataId
from poc.host.hardware import Hardware
from poc.plan import Planned, select
from poc.records import journal
from poc.run.launcher import RunContext
from poc.run.schedule import Item
from poc.run.sweep import Sweep, TimeIsUpError, say_left
from poc.values import UserError

_SAME_EVERYWHERE = ("RAY_AUTH_MODE", "commit", "python", "numpy")
_JOIN_SECONDS, _LOOK_SECONDS, _REPLACE_SECONDS = 60.0, 2.0, 30.0
_MAX_THREADS = 1000


@dataclasses.dataclass
class HostSweep:
    """The sweep on `hosts` nodes of a type together, which results show as one machine."""

    node_type: str
    hosts: int
    sweep: Sweep
    todo: list[Item]
    postponed: list[Item] = field(default_factory=list)  # do not fit before the bound
    running: set[str] = field(default_factory=set)  # run ids: two repeats of a run would share their checkpoints


@dataclasses.dataclass
class Cluster:
    """The nodes, and what is to be done on them."""

    recipes: Sequence[Path]
    results: Path
    context: RunContext  # common to all nodes, without a machine
    only: Sequence[str] | None
    fields: dict[str, Any]  # set in place of the recipes' own
    plan_options: Mapping[str, bool]
    sweep_options: Mapping[str, Any]
    price: Callable[[str, Hardware], float | None]  # dollars per hour of a node, by its type and hardware
    note: Callable[[list[Sweep]], object]  # is called with all sweeps whenever there is a new one

    def __post_init__(self) -> None:
        self._nodes: list[Node] = []  # all that were ever seen; a node that comes back is a new one
        self._images: dict[str, DataId] = {}
        self._sweeps: list[HostSweep] = []
        self._replacing: Counter[str] = Counter()  # runs that wait for a node in place of a lost one, by type
        self._change = threading.Condition()
        self._over = threading.Event()
        self._runs: list[Future[None]] = []
        self._claims = contextlib.ExitStack()

    def run(self) -> list[str]:
        """Do all runs; return the ids of those that failed. Raises as `poc.run.sweep.run_sweep`."""
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
        for queue in self._sweeps:
            if queue.todo and time.monotonic() < self.context.until:
                queue.sweep.say(f"{len(queue.todo)} runs are left, but too few nodes for them")
                failed += [item.planned.run.id for item in queue.todo]
            else:
                say_left(queue.sweep, queue.postponed + queue.todo)
            failed += queue.sweep.failed
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
        ready = ray.wait([*joining], num_returns=len(joining), timeout=seconds)[0] if joining else []
        return sorted((joining[reference] for reference in ready), key=lambda node: node.name)

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
        description = node.get(node.description)
        node.software, node.versions = description["software"], description["versions"]
        driver_versions = Supervisor().describe()["versions"]
        node.require_same(node.versions, "the driver", {name: driver_versions[name] for name in _SAME_EVERYWHERE})
        node.machine = Hardware.from_json(description["machine"])
        node_type = node.label or node.machine.describe()
        same_type = [other for other in self._nodes if other.type == node_type]
        for other in same_type[:1]:
            node.require_same(node.versions, f"{other.name} of the same type", other.versions)
        hosts = 1 + sum(not other.lost for other in same_type)
        recipes = {path.stem: path.read_text() for path in self.recipes}
        only = tuple(self.only or [""])
        plans: Plans = node.get(node.actor.plan.remote(recipes, self.fields, hosts, only, **self.plan_options))
        images = node.get(node.actor.identify.remote(plans, self.context))
        node.require_same({**self._images, **images}, "the other nodes", self._images)
        self._images.update(images)
        with self._change:
            node.type = node_type
            self._change.notify_all()
        return node, hosts, plans

    def _add_sweep(self, node: Node, hosts: int, plans: Plans) -> None:
        """Add what so many nodes of a type can do, and fewer cannot."""
        smaller = [queue for queue in self._sweeps if queue.node_type == node.type]
        items = [item for queue in smaller for item in queue.sweep.items]
        done = {_key(item.planned) for item in items if not item.planned.skip}
        plans = [(name, [item for item in planned if _key(item) not in done]) for name, planned in plans]
        if any(queue.hosts == hosts for queue in smaller) or not any(planned for _, planned in plans):
            return
        name = node.type if hosts == 1 else f"{hosts} hosts, each {node.type}"
        context = dataclasses.replace(
            self.context,
            machine=dataclasses.replace(node.machine, hosts=hosts),
            infrastructure=name,
            software=node.software,
            subfolder=journal.folder(self.results, name).name,
            images=dict(self._images),
        )
        sweep = Sweep(plans, self.results, context, prefix=f"{name}: ", **self.sweep_options)
        self._claims.enter_context(journal.claimed(sweep.path))
        price = self.price(node.type, node.machine)
        sweep.say(f"\n{sweep.workload(price and hosts * price)}\n")
        for item in sweep.items:
            if item.planned.skip:
                sweep.do(item)
        # Rounds of repeats, so that those of different runs are close in time; the longest run of a round first.
        todo = [item for item in sweep.items if not sweep.is_over(item)]
        todo.sort(key=lambda item: (item.planned.repeat, -sweep.pace.seconds(item.planned)))
        with self._change:
            self._sweeps.append(HostSweep(node.type, hosts, sweep, todo))
        self.note([queue.sweep for queue in self._sweeps])

    def _schedule(self, pool: ThreadPoolExecutor) -> None:
        """Start runs until there are none left, or too few nodes for them."""
        active = time.monotonic()
        while not self._over.is_set():
            with self._change:
                self._start_runs(pool)
                if any(queue.running for queue in self._sweeps):
                    active = time.monotonic()
                # A lost node may come back, or another one join.
                elif not any(q.todo for q in self._sweeps) or time.monotonic() - active > _REPLACE_SECONDS:
                    return
                self._change.wait(_LOOK_SECONDS)

    def _start_runs(self, pool: ThreadPoolExecutor) -> None:
        """Start runs on free nodes; those that need several nodes first, which would never be free at the same time."""
        waiting = +self._replacing
        for queue in sorted(self._sweeps, key=lambda queue: -queue.hosts):
            for item in list(queue.todo):
                if waiting[queue.node_type] or item.planned.run.id in queue.running:
                    continue
                nodes = self._reserve(queue.node_type, queue.hosts)
                if not nodes:
                    alive = [node for node in self._nodes if node.type == queue.node_type and not node.lost]
                    waiting[queue.node_type] += queue.hosts <= len(alive)
                    break
                queue.todo.remove(item)
                queue.running.add(item.planned.run.id)
                self._runs.append(pool.submit(self._run, queue, item, nodes))

    def _reserve(self, node_type: str, count: int) -> list[Node]:
        """Reserve free nodes of a type; none if there are fewer than `count`."""
        free = [node for node in self._nodes if node.type == node_type and node.is_free and not node.lost]
        nodes = sorted(free, key=lambda node: node.name)[:count] if len(free) >= count else []
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

    def _run(self, queue: HostSweep, item: Item, nodes: list[Node]) -> None:
        launcher = RayLauncher(nodes, queue.sweep.context, self._over, lambda: self._replacement(queue.node_type))
        try:
            for node in nodes:
                node.get(node.actor.close.remote())  # a run must not fail because of a node that was lost before
            if not queue.sweep.do(item, launcher):
                queue.postponed.append(item)
        except NodeLostError:
            queue.todo.append(item)
        except (TimeIsUpError, KeyboardInterrupt):
            queue.todo.append(item)
            self._over.set()
        except BaseException:
            self._over.set()
            raise
        finally:
            with self._change:
                queue.running.remove(item.planned.run.id)
                for node in launcher.nodes:
                    node.is_free = True
                self._change.notify_all()


def _key(item: Planned) -> str:
    return item.run.key("cores_per_worker")
