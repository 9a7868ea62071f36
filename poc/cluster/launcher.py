"""The nodes of a cluster as its driver sees them, and a run on several of them."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from poc.cluster.node import STOPPED, Supervisor
from poc.config.run import Run
from poc.run.launcher import HostResult, RunContext
from poc.values import UserError

_LOOK_SECONDS = 1.0


class NodeLostError(UserError):
    """A node cannot be used any more."""


class Node:
    """A node, reserved as a whole for its `actor`, a `Supervisor`."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        """Create the actor for an entry of `ray.nodes()`; Ray starts it once no other command has reserved the node."""
        self.id: str = entry["NodeID"]
        self.address: str = entry["NodeManagerAddress"]
        self.name = f"{entry['NodeManagerHostname']} ({self.address})"
        self.label: str = entry["Labels"].get("infrastructure", "")
        self.type = ""  # the label, or without one the hardware, once the node may be used
        self.is_free = True
        self.lost = ""  # why the node cannot be used any more
        self.actor = ray.remote(
            num_cpus=entry["Resources"]["CPU"],
            num_gpus=entry["Resources"].get("GPU", 0),
            scheduling_strategy=NodeAffinitySchedulingStrategy(self.id, soft=False),
            max_concurrency=2,
        )(Supervisor).remote()
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
    over: threading.Event  # interrupts the run, as does the end of the context's time
    replacement: Callable[[], Node | None]  # waits for a free node of the type

    def _parts(self, run: Run) -> Iterator[tuple[Node, range]]:
        per_host = run.workers // len(self.nodes)
        for host, node in enumerate(self.nodes):
            yield node, range(host * per_host, (host + 1) * per_host)

    def steps(self, run: Run, conditions: dict[str, Any]) -> set[int]:
        """Raise NodeLostError if a node was lost: a run must not fail because of that before it has begun."""
        begun = [node.actor.begin.remote(run, conditions, part, self.context) for node, part in self._parts(run)]
        return set.intersection(*map(Node.get, self.nodes, begun))

    def attempt(self, run: Run, request: dict[str, Any]) -> tuple[list[HostResult], str]:
        first, *others = self.nodes
        addresses = [node.address for node in self.nodes] if others else ["127.0.0.1"]
        trainings: dict[Any, Node] = {}
        with contextlib.suppress(NodeLostError):
            environments = first.get(first.actor.open.remote(run, addresses))
            for node, part in self._parts(run):
                variables = environments[part.start : part.stop]
                trainings[node.actor.train.remote(request, part.start, variables)] = node
        results = self._wait(trainings)
        for node in self.nodes:
            with contextlib.suppress(NodeLostError):
                core_use = node.get(node.actor.close.remote())
                if node in results:
                    results[node] = dataclasses.replace(results[node], core_use=core_use)
        lost_nodes = [(f"host {node.name}", node.lost) for node in self.nodes if node.lost]
        failures = [result.failure for result in results.values() if result.failure]
        # A lost node or a killed process is the cause, even if a process that missed it failed and reported that first.
        failures.sort(key=lambda failure: (failure == STOPPED, "signal" not in failure[1]))
        process, reason = [*lost_nodes, *failures, ("", "")][0]
        reason = f"{process}: {reason}" if process and (run.workers > 1 or lost_nodes) else reason
        return [results[node] for node in self.nodes if node in results], reason

    def _wait(self, trainings: dict[Any, Node]) -> dict[Node, HostResult]:
        """Return the results in the order in which they came; a failure or the end of the time stops all trainings."""
        results: dict[Node, HostResult] = {}
        while trainings:
            for reference in ray.wait([*trainings], timeout=_LOOK_SECONDS)[0]:
                node = trainings.pop(reference)
                with contextlib.suppress(NodeLostError):
                    results[node] = node.get(reference)
            over = self.over.is_set() or time.monotonic() >= self.context.until
            failed = any(node.lost for node in self.nodes) or any(result.failure for result in results.values())
            if failed or over:
                for node in trainings.values():
                    node.actor.stop.remote(interrupt=not failed)
        return results

    def renewed(self) -> bool:
        for host, node in enumerate(self.nodes):
            if node.lost:
                self.nodes[host] = self.replacement() or node
        return not any(node.lost for node in self.nodes)

    def forget(self, run: Run) -> None:
        for node in self.nodes:
            with contextlib.suppress(NodeLostError):
                node.get(node.actor.drop.remote(run, self.context))
