"""The nodes of a cluster as its driver sees them, and a run on several of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from poc.cluster.node import STOPPED, Supervisor
from poc.config.run import Run
from poc.host.hardware import Hardware
from poc.run.launcher import HostResult, RunContext, WorkerGroup, blamed
from poc.values import UserError

_LABEL = "infrastructure"
_LOOK_SECONDS = 1.0


class NodeLostError(UserError):
    """A node cannot be used any more."""


class Node:
    """A node, reserved as a whole for its `actor`, a `Supervisor`."""

    machine: Hardware
    software: dict[str, Any]
    versions: dict[str, str]

    def __init__(self, entry: Mapping[str, Any]) -> None:
        """Create the actor for an entry of `ray.nodes()`; Ray starts it once no other command has reserved the node."""
        self.id: str = entry["NodeID"]
        self.address: str = entry["NodeManagerAddress"]
        self.name = f"{entry['NodeManagerHostname']} ({self.address})"
        self.label: str = entry["Labels"].get(_LABEL, "")
        self.type = ""
        """The label, or without one the hardware, once the node may be used."""
        self.is_free = True
        self.lost = ""
        """Why the node cannot be used any more."""
        self.actor = ray.remote(
            num_cpus=entry["Resources"]["CPU"],
            num_gpus=entry["Resources"].get("GPU", 0),
            scheduling_strategy=NodeAffinitySchedulingStrategy(self.id, soft=False),
            max_concurrency=2,
        )(Supervisor).remote()
        self.description = self.actor.describe.remote()

    def get(self, reference: Any) -> Any:
        """Wait for a result of the actor; raises UserError if the actor did, and NodeLostError if it is dead."""
        try:
            return ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(f"{self.name}: {error.cause}") from None
            self.give_up(f"{type(error.cause).__name__}: {error.cause}")
        except RayError as error:
            self.give_up(f"lost ({' '.join(str(error).split())[:200]})")
        raise NodeLostError(f"{self.name}: {self.lost}")

    def give_up(self, reason: str) -> None:
        """End the actor and all that it started: other commands may use the node, and it may come back."""
        self.lost = self.lost or reason
        ray.kill(self.actor)

    def require_same(self, values: Mapping[str, Any], name: str, expected: Mapping[str, Any]) -> None:
        """Raise UserError if one of the node's `values` is not as `expected`, which is what `name` has."""
        for key, value in expected.items():
            if values.get(key) != value:
                raise UserError(f"{self.name}: {key} is {values.get(key)}, on {name} {value}")


@dataclasses.dataclass
class RayLauncher:
    """Trains on nodes of one type, which share a run's workers equally; the first one starts what serves them all."""

    nodes: list[Node]
    context: RunContext
    is_over: Callable[[], bool]
    """Whether to interrupt the run."""
    replacement: Callable[[], Node | None]
    """Waits for a free node of the type."""

    def _workers(self, run: Run) -> Iterator[tuple[Node, range]]:
        per_host = run.workers // len(self.nodes)
        for host, node in enumerate(self.nodes):
            yield node, range(host * per_host, (host + 1) * per_host)

    def steps(self, run: Run, conditions: dict[str, Any]) -> set[int]:
        """Return the steps after which every worker has a whole checkpoint; none if a node is lost."""
        steps = []
        for node, workers in self._workers(run):
            try:
                steps.append(node.get(node.actor.steps.remote(run, workers, conditions, self.context)))
            except NodeLostError:  # the attempt reports it
                return set()
        return set.intersection(*steps)

    def attempt(self, run: Run, request: dict[str, Any]) -> tuple[list[HostResult], str]:
        """Train `run` once; return the result of each host, and why the run failed, if it did."""
        addresses = [node.address for node in self.nodes] if len(self.nodes) > 1 else ["127.0.0.1"]
        trainings: dict[Any, Node] = {}
        with contextlib.suppress(NodeLostError):
            environments = self.nodes[0].get(self.nodes[0].actor.open.remote(run, addresses))
            for node, workers in self._workers(run):
                own = tuple(environments[worker] for worker in workers)
                group = WorkerGroup(request=request, first=workers.start, environments=own)
                trainings[node.actor.train.remote(group, self.context)] = node
        results = self._wait(trainings)
        host_results = []
        for node in self.nodes:
            with contextlib.suppress(NodeLostError):
                core_use = node.get(node.actor.close.remote())
                if node in results:
                    host_results.append(dataclasses.replace(results[node], core_use=core_use))
        lost_nodes = [(f"host {node.name}", node.lost) for node in self.nodes if node.lost]
        failures = [result.lost for result in results.values() if result.lost]
        # A lost node or a killed process is the cause, even if a process that missed it failed and reported that first.
        failures.sort(key=lambda failure: (failure == STOPPED, "signal" not in failure[1]))
        if failures := lost_nodes + failures:
            return host_results, blamed(failures[0], run.workers == 1 and not lost_nodes)
        return host_results, ""

    def _wait(self, trainings: dict[Any, Node]) -> dict[Node, HostResult]:
        """Return the results in the order in which they came; a failure or the end of the time stops all trainings."""
        results: dict[Node, HostResult] = {}
        stopped = interrupted = False
        while trainings:
            for reference in ray.wait([*trainings], timeout=_LOOK_SECONDS)[0]:
                node = trainings.pop(reference)
                with contextlib.suppress(NodeLostError):
                    results[node] = node.get(reference)
            failed = any(node.lost for node in self.nodes) or any(result.lost for result in results.values())
            if (failed and not stopped) or (not failed and not interrupted and self.is_over()):
                stopped, interrupted = failed, True
                for node in trainings.values():
                    node.actor.stop.remote(interrupt=not failed)
        return results

    def renewed(self) -> bool:
        """Replace each lost node by a free one of the type; False if there is none."""
        for host, node in enumerate(self.nodes):
            if node.lost:
                self.nodes[host] = self.replacement() or node
        return not any(node.lost for node in self.nodes)

    def forget(self, run: Run) -> None:
        """Remove the checkpoints of `run`, whose record is in the journal."""
        for node in self.nodes:
            with contextlib.suppress(NodeLostError):
                node.get(node.actor.forget.remote(run, self.context))
