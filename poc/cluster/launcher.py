"""The nodes of a cluster: the actor that Ray starts on each, its handle in the driver, and a run on several of them."""

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from poc import data, frameworks
from poc.config.datasets import DataId
from poc.config.recipe import Recipe
from poc.config.run import Run
from poc.host import environment, hardware
from poc.host.processes import Lost, ended_early
from poc.plan import Planned, check_gpus, plan
from poc.run.launcher import HostResult, LocalLauncher, RunContext, core_seconds, software
from poc.values import UserError, to_plain


class Supervisor(LocalLauncher):
    """The actor on a node, from its own checkout. While `train` blocks, Ray calls `stop` on a second thread."""

    def __init__(self) -> None:
        self._local: dict[str, Any] = {"machine": hardware.detect(), "cache": environment.cache()}
        super().__init__(RunContext(infrastructure="", source=None, **self._local))
        self._stop: Lost | KeyboardInterrupt | None = None

    def describe(self) -> dict[str, Any]:
        """Return plain values, because this node's version of the project may differ from the driver's."""
        machine = self._context.machine
        software_of = {name: software(name) for name in frameworks.FRAMEWORKS}
        versions: dict[str, Any] = {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE"), "hardware": machine.describe()}
        versions.update((name, getattr(machine, name)) for name in ("cpu", "cores", "driver"))
        for provenance in software_of.values():
            versions.update(provenance["versions"], commit=provenance["commit"], environment=provenance["environment"])
        del versions["system"]  # kernels may differ
        return {"machine": to_plain(machine), "software": software_of, "versions": versions}

    def use(self, context: RunContext) -> None:
        """Do what comes next in this context, with the machine and the folders of this node."""
        source = context.source or os.environ.get("POC_DATA")
        self._context = dataclasses.replace(context, source=Path(source) if source else None, **self._local)
        self._before, self._stop = core_seconds(), None

    def plan(
        self, recipes: Iterable[tuple[str, Recipe]], hosts: int, only: list[str], **options: bool
    ) -> tuple[list[Planned], dict[str, DataId]]:
        """Plan recipes for `hosts` machines like this one; return the runs of the ids `only`, and their images.

        Raises UserError if a data set cannot be opened, or this node's GPUs cannot be used.
        """
        self._context.check_writable()
        if not options.get("cpu"):
            check_gpus([recipe for _, recipe in recipes], self._context.machine, "--cpu, or a recipe with kind='cpu'")
        machine, ids = dataclasses.replace(self._context.machine, hosts=hosts), tuple(only)
        every_plan = [item for name, recipe in recipes for item in plan(name, recipe, machine, **options)]
        planned = [item for item in every_plan if item.run.id.startswith(ids)]
        specs = dict.fromkeys(item.run.data for item in planned if not item.skip)
        return planned, data.identify(specs, source=self._context.source, cache=self._context.cache)

    def stop(self, interrupt: bool) -> None:
        """Make `train` return soon: its workers report their results first if they are interrupted, else are killed."""
        self._stop = KeyboardInterrupt() if interrupt else ("the driver", "it ended the run")

    def _failure_elsewhere(self) -> Lost | None:
        if isinstance(self._stop, KeyboardInterrupt):
            raise self._stop
        return self._stop


class NodeLostError(UserError):
    """A node cannot be used any more."""


class Node:
    """A node, reserved as a whole for its `actor`, a `Supervisor`; Ray starts it once no other command has the node."""

    def __init__(self, entry: Mapping[str, Any]) -> None:  # one of `ray.nodes()`
        self.id: str = entry["NodeID"]
        self.address: str = entry["NodeManagerAddress"]
        self.name = f"{entry['NodeManagerHostname']} ({self.address})"
        self.label: str = entry["Labels"].get("infrastructure", "")
        self.type = ""  # the label, or without one the hardware, once the node may be used
        self.lost = ""  # why the node cannot be used any more
        resources = {"num_cpus": entry["Resources"]["CPU"], "num_gpus": entry["Resources"].get("GPU", 0)}
        strategy = NodeAffinitySchedulingStrategy(self.id, soft=False)
        self.actor = ray.remote(scheduling_strategy=strategy, max_concurrency=2, **resources)(Supervisor).remote()
        self.description = self.actor.describe.remote()  # replaced by the result once the node has joined

    def get(self, reference: Any) -> Any:
        """Wait for a result of the actor; raises UserError if the actor did, and NodeLostError if it is dead."""
        try:
            return ray.get(reference)
        except (UserError, PermissionError) as error:  # Ray gives it another text
            raise UserError(f"{self.name}: {error.cause}") from None  # type: ignore[union-attr]
        except RayError as error:
            self.give_up(" ".join(str(error).split())[-200:])
            raise NodeLostError(f"{self.name}: {self.lost}") from None

    def give_up(self, reason: str) -> None:
        """End the actor and all that it started: other commands may use the node, and it may come back."""
        self.lost = self.lost or f"lost ({reason})"  # `poc.records.record.LOST`
        ray.kill(self.actor)

    def require_same(self, values: Mapping[str, Any], name: str, expected: Mapping[str, Any]) -> None:
        """Raise UserError if one of the node's `values` is not as `expected`, which is what `name` has."""
        for key, value in expected.items():
            if values.get(key) != value:
                raise UserError(f"{self.name}: {key} is {values.get(key)}, on {name} {value}")


@dataclasses.dataclass
class RayLauncher:
    """Do runs on nodes of one type, which share the workers equally; the first one starts what serves them all."""

    nodes: list[Node]
    context: RunContext
    over: threading.Event  # interrupts the run
    replacement: Callable[[], Node | None]  # waits for a free node of the type

    def _parts(self, run: Run) -> Iterator[tuple[Node, range]]:
        per_host = run.workers // len(self.nodes)
        return zip(self.nodes, (range(first, first + per_host) for first in range(0, run.workers, per_host)))

    def steps(self, run: Run, conditions: dict[str, Any]) -> set[tuple[int, str]]:
        """Raise NodeLostError if a node was lost: a run must not fail because of that before it has begun."""
        for node in self.nodes:
            node.get(node.actor.use.remote(self.context))
        steps = [node.actor.steps.remote(run, conditions, part) for node, part in self._parts(run)]
        return set.intersection(*map(Node.get, self.nodes, steps))

    def attempt(self, run: Run, request: dict[str, Any]) -> tuple[list[HostResult], str]:
        first, *others = self.nodes
        addresses = [node.address for node in self.nodes] if others else ["127.0.0.1"]
        trainings: dict[Any, Node] = {}
        results: dict[Node, HostResult] = {}  # in the order in which they come
        with contextlib.suppress(NodeLostError):
            environments = first.get(first.actor.open.remote(run, addresses))
            for node, part in self._parts(run):
                trainings[node.actor.train.remote(request, part.start, environments[part.start : part.stop])] = node
        while trainings:
            for reference in ray.wait([*trainings], timeout=1.0)[0]:
                node = trainings.pop(reference)
                with contextlib.suppress(NodeLostError):
                    results[node] = node.get(reference)
            failed = any(node.lost for node in self.nodes) or any(result.failure for result in results.values())
            if failed or self.over.is_set():  # the others would wait for it, or go on
                for node in trainings.values():
                    node.actor.stop.remote(interrupt=not failed)
        with contextlib.suppress(NodeLostError):
            core_use = first.get(first.actor.close.remote())
            if first in results:
                results[first] = dataclasses.replace(results[first], core_use=core_use)
        lost_nodes = [(f"host {node.name}", node.lost) for node in self.nodes if node.lost]
        failures = [result.failure for result in results.values() if result.failure]
        # A lost node or a killed process is the cause, even if a process that missed it failed and reported that first.
        # By an abort libraries report a lost peer, too.
        failures.sort(key=lambda failure: "signal" not in failure[1] or failure[1] == ended_early(-signal.SIGABRT))
        process, reason = [*lost_nodes, *failures, ("", "")][0]
        reason = f"{process}: {reason}" if process and (run.workers > 1 or lost_nodes) else reason
        return [results[node] for node in self.nodes if node in results], reason

    def renewed(self) -> bool:
        self.nodes = [(self.replacement() or node) if node.lost else node for node in self.nodes]
        return not any(node.lost for node in self.nodes)

    def forget(self, run: Run) -> None:
        for node in self.nodes:
            with contextlib.suppress(NodeLostError):
                node.get(node.actor.use.remote(self.context))
                node.get(node.actor.forget.remote(run))
