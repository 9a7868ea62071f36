"""Ray within this process, for nodes that differ, or are lost in a certain call, as hosts of `tests.hosts` cannot."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any
from unittest import mock

import ray.exceptions

from poc.host import hardware
from poc.host.hardware import Hardware
from poc.values import UserError


class Actor:
    """An actor on a machine. The first call of `loses_node_in` never returns, and Ray no longer lists the node then."""

    def __init__(self, of_class: type, machine: Hardware, loses_node_in: str) -> None:
        with mock.patch.object(hardware, "detect", return_value=machine):
            self._instance = of_class()
        self._pool, self._loses_node_in = ThreadPoolExecutor(2), loses_node_in
        self.is_listed, self.lost = True, Future[Any]()

    def __getattr__(self, name: str) -> Any:
        return mock.Mock(remote=lambda *words, **options: self._call(name, *words, **options))

    def _call(self, name: str, *words: Any, **options: Any) -> Future[Any]:
        if name == self._loses_node_in:
            self.is_listed = False
        if not self.is_listed:
            return self.lost
        return self._pool.submit(getattr(self._instance, name), *words, **options)


class FakeRay:
    """Nodes of one type with these machines; the first is lost in its first call of `loses_node_in`."""

    def __init__(self, *machines: Hardware, loses_node_in: str = "") -> None:
        self._machines, self._loses_node_in = machines, loses_node_in
        self._actors: dict[int, Actor] = {}

    def nodes(self) -> list[dict[str, Any]]:
        common = {"Alive": True, "Labels": {"infrastructure": "pair"}, "Resources": {"CPU": 1}}
        numbers = range(len(self._machines))
        listed = [number for number in numbers if number not in self._actors or self._actors[number].is_listed]
        names = [{"NodeID": f"{number:056x}", "NodeManagerHostname": f"node{number}"} for number in listed]
        return [{**common, **name, "NodeManagerAddress": f"127.0.1.{number}"} for number, name in zip(listed, names)]

    def remote(self, *, scheduling_strategy: Any, **_: Any) -> Any:
        number = int(scheduling_strategy.node_id, 16)

        def start(of_class: type) -> Actor:
            lost_in = "" if number else self._loses_node_in
            self._actors[number] = Actor(of_class, self._machines[number], lost_in)
            return self._actors[number]

        return lambda of_class: mock.Mock(remote=lambda: start(of_class))

    def get(self, reference: Future[Any]) -> Any:
        try:
            return reference.result()
        except UserError as error:
            raise type("RayTaskError", (UserError,), {"cause": error})() from None

    def wait(
        self, references: Sequence[Any], *, timeout: float, num_returns: int = 1, **_: Any
    ) -> tuple[list[Any], list[Any]]:
        done, others = wait(references, timeout, "FIRST_COMPLETED" if num_returns == 1 else "ALL_COMPLETED")
        return [*done], [*others]

    def kill(self, actor: Actor) -> None:
        actor.is_listed = False
        if not actor.lost.done():
            actor.lost.set_exception(ray.exceptions.RayError("the actor died"))
