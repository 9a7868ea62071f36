"""What Ray runs on each node, from the node's own checkout and environment. Nothing here imports Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poc import config, data, frameworks
from poc.config import literals
from poc.config.datasets import DataId
from poc.config.run import Run
from poc.host import hardware, processes
from poc.plan import Planned, plan
from poc.run import checkpoint, launcher
from poc.run.launcher import HostResult, LocalLauncher, RunContext, WorkerGroup
from poc.values import UserError, to_plain

Plans = list[tuple[str, list[Planned]]]
"""The planned runs of each recipe."""
STOPPED: processes.Lost = "the driver", "it ended the run"
"""The failure that a host reports if its training was stopped because another host failed."""
_MIN_DISK_BYTES = 1e9


class Supervisor:
    """The actor on a node. While `train` blocks, Ray calls `stop` on a second thread."""

    def __init__(self) -> None:
        self._machine = hardware.detect()
        self._services = contextlib.ExitStack()
        self._helpers: dict[str, Any] = {}
        self._stop_reason: processes.Lost | type[KeyboardInterrupt] | None = None
        self._cores_before = launcher.core_seconds()

    def describe(self) -> dict[str, Any]:
        """Return what the node has, in plain values, because its version of this project may not be the driver's."""
        software = {name: launcher.software(name) for name in frameworks.FRAMEWORKS}
        versions = {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE"), "hardware": self._machine.describe()}
        for provenance in software.values():
            versions.update(provenance["versions"], commit=provenance["commit"])
        del versions["system"]  # kernels may differ
        return {"machine": to_plain(self._machine), "software": software, "versions": versions}

    def plan(
        self, recipes: list[tuple[str, str]], hosts: int, only: tuple[str, ...], settings: list[str], **options: bool
    ) -> Plans:
        """Plan recipes (name, source text) for `hosts` machines like this one; return the runs whose ids `only` has.

        Several hosts leave out what they cannot do: one host skips it.
        """
        machine, fields, plans = dataclasses.replace(self._machine, hosts=hosts), literals.fields(settings), []
        with processes.scratch() as folder:
            for name, text in recipes:
                file = folder / f"{name}.py"
                file.write_text(text)
                planned = plan(name, config.load(file, fields=fields), machine, **options)
                planned = [item for item in planned if item.run.id.startswith(only) and not (item.skip and hosts > 1)]
                plans.append((name, planned))
        return plans

    def identify(self, specs: Sequence[Any], context: RunContext) -> dict[str, DataId]:
        """Open data sets; return the identity of each. Raises UserError if one is missing, or the disk is full."""
        local = self._local(context)
        local.cache.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(local.cache).free
        if free_bytes < _MIN_DISK_BYTES:
            raise UserError(f"{free_bytes / 1e9:.1f} GB of disk free, 1 GB needed; free some")
        return data.identify(specs, source=local.source, cache=local.cache)

    def _local(self, context: RunContext) -> RunContext:
        """Return the driver's context with this node's machine and folders."""
        source = context.source or os.environ.get("POC_DATA")
        folders: dict[str, Any] = {"source": Path(source) if source else None, "cache": launcher.cache()}
        return dataclasses.replace(context, machine=self._machine, **folders)

    def steps(self, run: Run, workers: range, conditions: dict[str, Any], context: RunContext) -> set[int]:
        """Begin an attempt; return the steps after which each of these workers has a checkpoint."""
        self._cores_before, self._stop_reason = launcher.core_seconds(), None
        return set(checkpoint.steps(self._local(context).checkpoints_of(run), workers, conditions))

    def open(self, run: Run, addresses: Sequence[str]) -> list[dict[str, str]]:
        """Start the processes that serve the workers of all hosts; return the environment of each worker."""
        cores = launcher.threads(run, self._machine.cores, len(addresses))
        opened = self._services.enter_context(frameworks.load(run.framework).cluster(run, cores, addresses))
        self._helpers = dict(opened.helpers)
        return list(opened.environments)

    def train(self, group: WorkerGroup, context: RunContext) -> HostResult:
        """Train this node's workers to their end, or until `stop`."""

        def check_stop(_: Path) -> processes.Lost | None:
            if self._stop_reason is KeyboardInterrupt:
                raise KeyboardInterrupt
            return self._stop_reason

        return launcher.train_here(group, self._local(context), self._helpers, check_stop)

    def stop(self, interrupt: bool) -> None:
        """Make `train` return soon: its workers report their results first if they are interrupted, else are killed."""
        self._stop_reason = KeyboardInterrupt if interrupt else STOPPED

    def close(self) -> launcher.CoreUse:
        """Finish an attempt; return what the cores did since `steps`."""
        self._services.close()
        self._helpers = {}
        return launcher.core_use(self._cores_before)

    def forget(self, run: Run, context: RunContext) -> None:
        """Remove the checkpoints of `run`, as `LocalLauncher.forget`."""
        LocalLauncher(self._local(context)).forget(run)
