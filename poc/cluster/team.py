"""The nodes that do a run together, as `poc.run.parent` knows hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Callable

from poc.cluster.node import ENDED
from poc.cluster.nodes import ANSWER_SECONDS, Node, NodeLostError
from poc.config.run import Run
from poc.host.processes import Lost
from poc.run.launcher import HostResult, RunContext, WorkerGroup, failure_reason
from poc.values import from_plain, to_plain

# Each look costs a host that trains a message: it answers when it has ended, or after this.
_LOOK_SECONDS = 1.0
# Ending its share a node may have to wait for workers that tell what they have; checkpoints may be large.
_END_SECONDS = 90.0


class RayLauncher:
    """Nodes of one kind, which share the workers of a run equally; the first starts what serves them all."""

    def __init__(
        self, nodes: Sequence[Node], place: RunContext, is_over: Callable[[], bool], another: Callable[[], Node | None]
    ) -> None:
        """`is_over` says whether to interrupt what goes on; `another` gives a node in place of one that was lost."""
        self.nodes = list(nodes)
        self.line = "starting"
        """How far the run is."""
        self._is_over = is_over
        self._another = another
        self._place = {
            "source": place.source and str(place.source),
            "checkpoints": place.checkpoints and str(place.checkpoints),
            "subfolder": place.subfolder,
            "images": dict(place.images),
            "patience": place.patience,
        }

    def steps(self, run: Run, conditions: dict[str, Any]) -> set[int]:
        """The steps after which every worker has a whole checkpoint; none where a node is lost."""
        each, found = run.workers // len(self.nodes), []
        with contextlib.suppress(NodeLostError):  # the attempt says which
            for number, node in enumerate(self.nodes):
                workers = list(range(number * each, (number + 1) * each))
                asked: dict[str, Any] = {"workers": workers, "conditions": conditions, "place": self._place}
                found.append(set(node.ask("steps", run=run.to_json(), **asked, seconds=_END_SECONDS)["steps"]))
            return set.intersection(*found)
        return set()

    def attempt(self, run: Run, request: dict[str, Any]) -> tuple[list[HostResult], str]:
        """Trains `run` once; what each node did, and why it failed, empty where it did not."""
        addresses = [node.address for node in self.nodes]
        each = run.workers // len(addresses)
        losses: list[Lost] = []
        try:
            alone = ["127.0.0.1"] if len(addresses) == 1 else addresses
            environments = self.nodes[0].ask("open", run=run.to_json(), addresses=alone, seconds=60.0)["environments"]
            for number, node in enumerate(self.nodes):
                first = number * each
                task = WorkerGroup(request=request, first=first, environments=tuple(environments[first : first + each]))
                node.ask("train", task=to_plain(task), place=self._place)
            losses = self._watched()
        except NodeLostError:
            pass  # who it was is known by now
        shares, lost = self._ended()
        # A node that is lost, and a process that was killed, come before those that miss it, whichever was told first.
        losses += [share.failure for share in shares if share.failure]
        losses = lost + sorted(losses, key=lambda loss: (loss == ENDED, "signal" not in loss[1]))
        if not losses:
            return shares, ""
        return shares, failure_reason(losses[0], single=run.workers == 1 and not lost)

    def renewed(self) -> bool:
        """Another node of the kind takes the place of each that was lost; False where there is none."""
        for number, node in enumerate(self.nodes):
            if node.lost:
                another = self._another()
                if another is None:
                    return False
                self.nodes[number] = another
        return True

    def forget(self, run: Run) -> None:
        """The record of `run` is safe: its checkpoints are no longer needed."""
        for node in self.nodes:
            with contextlib.suppress(NodeLostError):
                node.ask("forget", run=run.to_json(), place=self._place)

    def _watched(self) -> list[Lost]:
        """Waits until all have done their shares, or something is lost; what that is."""
        interrupted = False
        while True:
            answers = [node.tell("poll", wait=_LOOK_SECONDS) for node in self.nodes]
            told = [answer(ANSWER_SECONDS) for answer in answers]
            self.line = told[0]["line"]
            losses = [(name, why) for name, why in (one["lost"] for one in told if one["lost"])]
            if losses or all(one["over"] for one in told):
                return losses
            if self._is_over() and not interrupted:
                interrupted = True
                for node in self.nodes:
                    node.ask("interrupt")

    def _ended(self) -> tuple[list[HostResult], list[Lost]]:
        """Ends what goes on, and gathers the shares; what is lost of the nodes, too."""
        answers, shares = [], []
        for node in self.nodes:
            with contextlib.suppress(NodeLostError):
                answers.append(node.tell("end"))
        for answer in answers:
            with contextlib.suppress(NodeLostError):
                if share := answer(_END_SECONDS)["share"]:
                    shares.append(from_plain(HostResult, share))
        return shares, [(f"host {node.name}", node.lost) for node in self.nodes if node.lost]
