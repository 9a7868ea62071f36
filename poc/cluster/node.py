"""What a node does at the driver's word: it says what it has, plans recipes, and trains its share of a run.

Ray starts the supervisor from the node's own checkout and with its own environment. Nothing here imports Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from poc import config, data, frameworks
from poc.config import literals
from poc.config.datasets import DataId
from poc.config.run import Run
from poc.host import hardware, processes
from poc.plan import plan
from poc.run import checkpoint
from poc.run.launcher import (
    HostResult,
    LocalLauncher,
    RunContext,
    WorkerGroup,
    cache,
    core_seconds,
    core_use,
    software,
    threads,
    train_here,
)
from poc.run.progress import in_words
from poc.values import UserError, from_plain, to_plain

ENDED: processes.Lost = "the driver", "it ended the run"
"""What a node gives for the end of its share where something was lost on another."""

_SILENCE_SECONDS = 30.0
_LINE_BYTES = 4096


class Supervisor:
    """One node's; where it has not heard of its driver for half a minute in the middle of a run it ends itself, and the
    kernel all that it started."""

    def __init__(self) -> None:
        self._machine = hardware.detect()
        self._heard = time.monotonic()
        self._helpers: dict[str, Any] = {}
        self._around = contextlib.ExitStack()
        self._training: threading.Thread | None = None
        self._share: HostResult | None = None
        self._error = self._line = ""
        self._told: tuple[Run, Path] | None = None
        """The run that goes on, and where its first worker here tells of it."""
        self._told_to_end = self._told_to_interrupt = False
        self._before = core_seconds()
        threading.Thread(target=self._watch_driver, name="watch driver", daemon=True).start()

    def ask(self, message: str) -> str:
        """Does what the message names, and answers: both objects of JSON. A user's mistake is answered so, too."""
        asked = json.loads(message)
        self._heard = time.monotonic()
        try:
            answer = getattr(self, f"_{asked.pop('what')}")(**asked)
        except UserError as error:
            answer = {"mistake": str(error)}
        except Exception as error:  # the driver's to tell; what Ray would make of it is pickled
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._heard = time.monotonic()
        return json.dumps(answer)

    def _describe(self) -> dict[str, Any]:
        folder = cache()
        folder.mkdir(parents=True, exist_ok=True)
        return {
            "machine": to_plain(self._machine),
            "software": {name: software(name) for name in frameworks.FRAMEWORKS},
            "free_bytes": shutil.disk_usage(folder).free,
            "auth_mode": os.environ.get("RAY_AUTH_MODE", "disabled"),
        }

    def _plan(
        self, recipes: Sequence[Sequence[str]], settings: Sequence[str], hosts: int, **how: bool
    ) -> dict[str, Any]:
        """Plan each recipe, a name and the file's text, for so many machines like this one."""
        machine, plans = dataclasses.replace(self._machine, hosts=hosts), []
        fields = literals.fields(settings)
        with processes.scratch() as folder:
            for name, text in recipes:
                file = folder / f"{name}.py"
                file.write_text(text)
                plans.append([name, to_plain(plan(name, config.load(file, fields=fields), machine, **how))])
        return {"plans": plans}

    def _data(self, runs: Sequence[dict[str, Any]], source: str | None) -> dict[str, Any]:
        """The identity of the images of `runs` here, by the name of their data set."""
        place = self._place(source, None, "")
        specs = [Run.from_json(run).data for run in runs]
        return {"images": data.identify(specs, source=place.source, cache=place.cache)}

    def _place(
        self,
        source: str | None,
        checkpoints: str | None,
        subfolder: str,
        images: Mapping[str, Sequence[str]] | None = None,
        **fields: Any,
    ) -> RunContext:
        source = source or os.environ.get("POC_DATA")
        return RunContext(
            machine=self._machine,
            infrastructure="",
            source=Path(source) if source else None,
            cache=cache(),
            checkpoints=Path(checkpoints) if checkpoints else None,
            subfolder=subfolder,
            images={name: DataId(*identity) for name, identity in (images or {}).items()},
            **fields,
        )

    def _steps(
        self, run: dict[str, Any], workers: Sequence[int], conditions: dict[str, Any], place: dict[str, Any]
    ) -> dict[str, Any]:
        self._before = core_seconds()
        folder = self._place(**place).checkpoints_of(Run.from_json(run))
        return {"steps": checkpoint.steps(folder, workers, conditions)}

    def _open(self, run: dict[str, Any], addresses: Sequence[str]) -> dict[str, Any]:
        """On the first host: starts what serves all workers; the environment of each."""
        self._around = contextlib.ExitStack()
        asked = Run.from_json(run)
        cluster = frameworks.load(asked.framework).cluster(
            asked, threads(asked, self._machine.cores, len(addresses)), addresses
        )
        opened = self._around.enter_context(cluster)
        self._helpers = dict(opened.helpers)
        return {"environments": list(opened.environments)}

    def _train(self, task: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
        self._told_to_end = self._told_to_interrupt = False
        self._share, self._error, self._line, self._told = None, "", "starting", None
        arguments = (from_plain(WorkerGroup, task), self._place(**place), self._helpers)
        # The kernel ends what a thread started when that thread ends: here when its work is done.
        self._training = threading.Thread(target=self._do, args=arguments, name="train")
        self._training.start()
        return {}

    def _do(self, task: WorkerGroup, place: RunContext, helpers: dict[str, Any]) -> None:
        def elsewhere(events: Path) -> processes.Lost | None:
            self._told = task.run, events
            if self._told_to_interrupt:
                raise KeyboardInterrupt
            return ENDED if self._told_to_end else None

        try:
            self._share = train_here(task, place, helpers, elsewhere)
        except Exception as error:  # as above
            self._error = f"{type(error).__name__}: {error}"

    def _forget(self, run: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
        LocalLauncher(self._place(**place)).forget(Run.from_json(run))
        return {}

    def _poll(self, wait: float = 0.0) -> dict[str, Any]:
        """How far it is, and whether it has ended, which it may have so many seconds for."""
        if self._training:
            self._training.join(wait)
        if told := self._told:
            with contextlib.suppress(OSError, IndexError, ValueError):  # nothing told, or half a line
                run, events = told
                self._line = in_words(run, _last_line(events)) or self._line
        over = self._training is None or not self._training.is_alive()
        share = self._share  # after it: the thread may end between the two
        failed = over and self._training is not None and share is None
        lost = ("its supervisor", self._error) if failed else share and share.failure
        return {"over": over, "lost": lost, "line": self._line}

    def _interrupt(self) -> dict[str, Any]:
        self._told_to_interrupt = True
        return {}

    def _end(self) -> dict[str, Any]:
        """Ends what goes on of the run; this host's share of it, None where there is none."""
        self._told_to_end = True
        while self._training and self._training.is_alive():
            self._training.join(1.0)
            self._heard = time.monotonic()  # the driver waits for this
        self._around.close()
        share, self._share, self._training, self._helpers = self._share, None, None, {}
        plain = share and {**to_plain(share), "core_use": to_plain(core_use(self._before))}
        return {"share": plain}

    def _watch_driver(self) -> None:
        while True:
            time.sleep(1.0)
            idle = self._training is None and not self._helpers
            if not idle and time.monotonic() - self._heard > _SILENCE_SECONDS:
                os._exit(1)


def _last_line(file: Path) -> str:
    """Of a file that grows."""
    with file.open("rb") as opened:
        opened.seek(-min(_LINE_BYTES, file.stat().st_size), os.SEEK_END)
        return opened.read().decode().splitlines()[-1]
