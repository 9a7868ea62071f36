"""The actor that Ray starts on each node, from the node's own checkout. Nothing here imports Ray."""

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from poc import data, frameworks
from poc.config.datasets import DataId
from poc.config.recipe import Recipe
from poc.config.run import Run
from poc.host import environment, hardware
from poc.host.processes import Lost
from poc.plan import Planned, check_gpus, plan
from poc.run import launcher
from poc.run.launcher import LocalLauncher, RunContext
from poc.values import to_plain

Plans = list[tuple[str, list[Planned]]]  # the planned runs of each recipe
STOPPED: Lost = "the driver", "it ended the run"  # the failure of a host that was stopped because another one failed


class Supervisor(LocalLauncher):
    """The actor on a node. While `train` blocks, Ray calls `stop` on a second thread."""

    def __init__(self) -> None:
        machine, folder = hardware.detect(), environment.cache()
        super().__init__(RunContext(machine=machine, infrastructure="", source=None, cache=folder))
        self._stop: Lost | KeyboardInterrupt | None = None

    def describe(self) -> dict[str, Any]:
        """Return plain values, because this node's version of the project may differ from the driver's."""
        machine = self._context.machine
        software = {name: launcher.software(name) for name in frameworks.FRAMEWORKS}
        versions: dict[str, Any] = {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE"), "hardware": machine.describe()}
        versions.update((name, getattr(machine, name)) for name in ("cpu", "cores", "driver"))
        for provenance in software.values():
            versions.update(provenance["versions"], commit=provenance["commit"], environment=provenance["environment"])
        del versions["system"]  # kernels may differ
        return {"machine": to_plain(machine), "software": software, "versions": versions}

    def plan(
        self, recipes: Iterable[tuple[str, Recipe]], context: RunContext, hosts: int, only: list[str], **options: bool
    ) -> tuple[Plans, dict[str, DataId]]:
        """Plan recipes for `hosts` machines like this one; return the runs of the ids `only`, and their images.

        Raises UserError if a data set cannot be opened, or this node's GPUs cannot be used.
        """
        self._use(context)
        if not options.get("cpu"):
            check_gpus([recipe for _, recipe in recipes], self._context.machine, "--cpu, or a recipe with kind='cpu'")
        machine, ids = dataclasses.replace(self._context.machine, hosts=hosts), tuple(only)
        every_plan = [(name, plan(name, recipe, machine, **options)) for name, recipe in recipes]
        plans = [(name, [item for item in planned if item.run.id.startswith(ids)]) for name, planned in every_plan]
        specs = dict.fromkeys(item.run.data for _, planned in plans for item in planned if not item.skip)
        return plans, data.identify(specs, source=self._context.source, cache=self._context.cache)

    def begin(self, run: Run, conditions: dict[str, Any], workers: range, context: RunContext) -> set[int]:
        """Begin an attempt; return `steps`."""
        self._use(context)
        self._before, self._stop = launcher.core_seconds(), None
        return self.steps(run, conditions, workers)

    def drop(self, run: Run, context: RunContext) -> None:
        """Delete the checkpoints of a run."""
        self._use(context)
        self.forget(run)

    def _use(self, context: RunContext) -> None:
        source = context.source or os.environ.get("POC_DATA")
        local: dict[str, Any] = {"machine": self._context.machine, "cache": self._context.cache}
        self._context = dataclasses.replace(context, source=Path(source) if source else None, **local)

    def stop(self, interrupt: bool) -> None:
        """Make `train` return soon: its workers report their results first if they are interrupted, else are killed."""
        self._stop = KeyboardInterrupt() if interrupt else STOPPED

    def _failure_elsewhere(self) -> Lost | None:
        if isinstance(self._stop, KeyboardInterrupt):
            raise self._stop
        return self._stop
