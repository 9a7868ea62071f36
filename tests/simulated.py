"""Plausible journals of simulated machines, to make pages of them before somebody pays for one.

Recipes, plan, sweep, records and journal are the real ones; only the training is simulated. THE NUMBERS ARE INVENTED:
never publish one.

Speed: a step takes 4 ms, the arithmetic of its samples at `_REACHED` of the device's peak, and the time in which an
all-reduce carries the gradients; noise has a standard deviation of 1% per run and 0.5% per window. Accuracy: falls by
0.02 with each doubling of the global batch, and where the learning rate is not 0.05 per 128 samples.
"""

import contextlib
import dataclasses
import datetime
import math
import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable
from unittest import mock

from poc import CIFAR10, Fixed, Linear, Muon, Recipe, Search, config, frameworks
from poc.config.run import Run
from poc.frameworks import builds, pytorch
from poc.host.hardware import GPU, Hardware
from poc.host.monitor import DeviceUse, Monitored
from poc.plan import plan
from poc.records import last_run
from poc.records.record import (
    COMPLETED,
    DIVERGED,
    FAILED,
    OUT_OF_MEMORY,
    Breakdown,
    Evaluation,
    Memory,
    SyncStats,
    WorkerResult,
)
from poc.records.timing import Window
from poc.run.launcher import HostResult, RunContext
from poc.run.sweep import Sweep
from tests.fake_gpus import CARDS

HOME = Path(__file__).parents[1]
GIB = 2**30
# Cards, how many, driver, cores, price in dollars per hour, GB/s of an all-reduce.
MACHINES: dict[str, tuple[str, int, str, int, float | None, float]] = {
    "1 H100": ("H100", 1, "580.95.05", 26, 6.88, 200.0),
    "4 A10G": ("A10G", 4, "535.161.08", 48, 5.672, 5.0),
    "8 A100": ("A100", 8, "550.54.15", 96, 21.957642, 120.0),
    "8 V100": ("V100", 8, "535.161.08", 64, 24.48, 60.0),
    "8 K80": ("K80", 8, "470.256.02", 32, 7.2, 2.0),
    "2 CPU cores": ("", 0, "", 2, None, 2.0),
}
_STEP_SECONDS = 0.004
_REACHED = 0.25  # of its peak, by a device in training
_START = datetime.datetime(2026, 12, 1, 8, tzinfo=datetime.timezone.utc)


def hardware(name: str) -> Hardware:
    """Return the hardware of a simulated machine."""
    card, count, driver, cores, *_ = MACHINES[name]
    gpus: tuple[GPU, ...] = ()
    if card:
        title, capability, gibibytes, clock, _, units = CARDS[card]
        flops = 2e6 * clock * units
        each = {"name": title, "capability": capability, "memory_bytes": gibibytes * GIB, "flops": flops}
        gpus = tuple(GPU(index=index, numa_node=2 * index // count, **each) for index in range(count))
    return Hardware(
        cpu="Simulated CPU",
        cores=cores,
        memory_bytes=max(24, 4 * cores) * GIB,
        cpu_flops=6e10 * cores,
        gpus=gpus,
        driver=driver,
        numa_nodes=(cores // 2, cores // 2) if gpus else (cores,),
    )


@contextlib.contextmanager
def installed(machine: Hardware) -> Iterator[dict[str, dict[str, str]]]:
    """Pretend that the builds for `machine` are installed; yield their versions by framework."""
    with mock.patch.object(builds, "shared_library", Path):
        wanted = frameworks.wanted(machine, [name for name in frameworks.FRAMEWORKS if frameworks.load(name).BUILDS])
        versions = {name: {build.package: build.version} for name, build in wanted.items()}
        versions["pytorch"]["torchvision"] = "0.25.0"

        def of(name: str) -> dict[str, str]:
            return versions.get(name, {})

        everywhere = mock.patch.multiple(frameworks, versions=of, installed_versions=of)
        with everywhere, mock.patch.object(pytorch, "versions", of):
            yield versions


# Outcome of a run, the reason, and the fraction of its steps that it does.
Fate = Callable[[Run], tuple[str, str, float]]


def completes(run: Run) -> tuple[str, str, float]:
    """Let every run complete."""
    return COMPLETED, "", 1.0


def goes_wrong(run: Run) -> tuple[str, str, float]:
    """Let some runs diverge, fail, or run out of memory."""
    if run.global_batch >= 2048:
        return DIVERGED, "the training loss was nan after step 40", 0.3
    if run.learning_rate > 0.2 and run.devices == 1:
        return DIVERGED, "the loss of the evaluation after epoch 12 was 4e+13", 1.0
    if run.batch_per_device == 512 and run.model == "cifar_resnet110_v2":
        return OUT_OF_MEMORY, "MXNetError: cudaMalloc retry failed: out of memory", 0.0
    if run.batch_per_device == 256 and run.devices in (1, 4):
        return FAILED, "worker 0: killed by signal 9 (out of memory?)", 0.0
    if run.batch_per_device == 64 and run.devices == 2:
        return FAILED, "interrupted", 0.5
    if run.batch_per_device == 64 and run.model == "cifar_resnet110_v2":
        return COMPLETED, "", 1e-9  # a single window: all of it is warm-up
    return COMPLETED, "", 1.0


def never_works(run: Run) -> tuple[str, str, float]:
    """Let every run end before its first window."""
    return FAILED, "ImportError: libquadmath.so.0: cannot open shared object file: No such file or directory", 0.0


class Trainer:
    """Simulate runs on a machine and its clock (`poc.run.parent.Launcher`)."""

    def __init__(self, name: str, fate: Fate) -> None:
        self.machine = hardware(name)
        self.now = _START
        self._link = MACHINES[name][-1] * 1e9
        self._fate = fate
        self._takes: dict[str, int] = {}
        self._random = random.Random()

    def time_of_day(self) -> str:
        """Return the simulated time, as `poc.records.last_run.now` does the real one."""
        return self.now.isoformat(timespec="seconds")

    def steps(self, run: Run, conditions: dict[str, Any]) -> set[tuple[int, str]]:
        """Return that there is no checkpoint."""
        return set()

    def renewed(self) -> bool:
        """Return that there is no other machine."""
        return False

    def forget(self, run: Run) -> None:
        """Remove nothing."""

    def attempt(self, run: Run, request: dict[str, Any]) -> tuple[list[HostResult], str]:
        """Return the results of the workers, and why the run failed."""
        take = self._takes[run.id] = self._takes.get(run.id, 0) + 1
        self._random.seed(f"{run.id} {take} {self._link}")
        outcome, reason, share = self._fate(run)
        memory = self.machine.gpus[0].memory_bytes if run.kind == "gpu" else self.machine.memory_bytes
        if self._memory(run) > memory:
            outcome, reason, share = OUT_OF_MEMORY, "MXNetError: cudaMalloc retry failed: out of memory", 0.0
        told = self._told(run, outcome, reason, share, request["detail"])
        self.now += datetime.timedelta(seconds=round(max(worker.wall or 0.0 for worker in told) + 2))
        use = dict(usable_cores=self.machine.cores, others_busy_cores=0.01, stolen_cores=0.0)
        monitored = self._monitored(run, told[0]) if told[0].windows else None
        return [HostResult(workers=tuple(told), failure=None, interrupted=False, monitor=monitored, core_use=use)], (
            reason if outcome == FAILED else ""
        )

    def _memory(self, run: Run) -> float:
        return run.network.memory_bytes(run.data.crop, run.batch_per_device)

    def _peak(self, run: Run) -> float:
        """Return the FLOP/s of one device, the same in every precision."""
        if run.kind == "gpu":
            return self.machine.gpus[0].flops
        cores = run.cores_per_worker or self.machine.cores
        return self.machine.cpu_flops * cores / self.machine.cores / (run.devices // run.workers)

    def _parts_of_step(self, run: Run) -> tuple[float, float]:
        """Return the seconds of computation and of gradient synchronisation per step."""
        samples = run.batch_per_device * (run.devices if run.emulated else 1)
        flops = 6 * run.network.multiply_adds(run.data.crop) * samples
        compute = _STEP_SECONDS + flops / self._peak(run) / _REACHED
        if not run.synchronises or run.kvstore.name == "none":
            return compute, 0.0
        return compute, 8 * run.network.cost.parameters / self._link

    def _noise(self, deviation: float) -> float:
        return 1 + max(-3 * deviation, min(3 * deviation, self._random.gauss(0, deviation)))

    def _told(self, run: Run, outcome: str, reason: str, share: float, detail: int) -> list[WorkerResult]:
        compute, synchronise = self._parts_of_step(run)
        step = (compute + synchronise) * self._noise(0.01)
        done = max(1, round(run.last_step * share)) if share else 0
        at, parts = 6.0, {"initialise": 6.0, "evaluate": 0.0, "checkpoint": 0.0}
        windows: list[Window] = []
        evaluations: list[Evaluation] = []
        for epoch in range(1, run.last_epoch + 1):
            left = min(run.steps_per_epoch * epoch, done) - run.steps_per_epoch * (epoch - 1)
            while left > 0 and not (run.seconds and at - 6.0 > run.seconds):
                steps = min(run.window, left)
                # The first window is slow, as every first one is.
                seconds = steps * step * self._noise(0.005) * (1 if windows else 3)
                loss = 2.3 * math.exp(-epoch / run.epochs) if outcome != DIVERGED or left > run.window else None
                work = {"steps": steps, "samples": steps * run.global_batch // run.workers}
                windows.append(Window(epoch=epoch, start=at, **work, seconds=seconds, waited=0.01 * seconds, loss=loss))
                at, left = at + seconds, left - steps
            if run.evaluate and windows and windows[-1].epoch == epoch:
                seconds = 10_000 * compute / run.batch_per_device / 3 / (1 if run.emulated else run.devices)
                accuracy = self._accuracy(run, epoch) if outcome != DIVERGED else 0.1
                loss = 2.3 * (1 - accuracy) if outcome != DIVERGED else None
                samples = 10_000 // run.workers
                accuracy = round(accuracy * samples) / samples
                evaluations.append(
                    Evaluation(epoch=epoch, at=at, seconds=seconds, accuracy=accuracy, samples=samples, loss=loss)
                )
                parts["evaluate"] += seconds
                at += seconds
        stats = SyncStats(staleness={"1": done}, stale_wait_seconds=1) if run.kvstore.name == "ssp" else None
        ended = outcome in (COMPLETED, DIVERGED) or (outcome == FAILED and windows)
        used = int(self._memory(run))
        peak = 0.8 * self._peak(run) * (1 if run.emulated else run.devices // run.workers)
        return [
            WorkerResult(
                outcome=outcome,
                reason=reason,
                dataset=run.data.name,
                parameters=run.network.cost.parameters,
                windows=tuple(windows),
                evaluations=tuple(evaluations),
                parts=parts,
                wall=at + 1.5 if ended else None,
                memory=Memory(host_peak_bytes=2 * GIB, device_peak_bytes=used if run.kind == "gpu" else None),
                peak_flops=peak if outcome == COMPLETED else None,
                sync_stats=stats,
                detail=self._breakdown(run, compute, synchronise) if detail and outcome == COMPLETED else None,
            )
            for _ in range(run.workers)
        ]

    def _accuracy(self, run: Run, epoch: int) -> float:
        """Return the accuracy after an epoch, which approaches the last one exponentially."""
        if not isinstance(run.data, CIFAR10):
            return 1 / run.data.classes
        doublings = math.log2(run.global_batch / 128)
        last = 0.80 - 0.02 * abs(doublings)
        if isinstance(run.optimizer, Muon) or run.decay != "constant":
            last += 0.1
        else:
            last -= 0.03 * abs(math.log2(run.learning_rate / 0.05) - doublings)
        last = max(0.15, last) * min(1.0, 0.7 + run.epochs / 40)
        grown = last - (last - 0.1) * math.exp(-4 * epoch / run.epochs)
        return min(0.99, max(0.1, grown * self._noise(0.01)))

    def _breakdown(self, run: Run, compute: float, synchronise: float) -> Breakdown:
        several = run.synchronises and run.kvstore.name != "none"
        moved = 4 * run.network.cost.parameters
        waiting = 0.01 * compute if run.workers > 1 else None
        whole = compute + synchronise + (waiting or 0.0)
        bus = moved * 2 * (run.devices - 1) / run.devices / synchronise if several else None
        return Breakdown(
            whole_step_seconds=whole,
            independent_step_seconds=compute,
            exchange_seconds=synchronise,
            bus_bytes_per_second=bus,
            synchronisation_seconds=waiting,
        )

    def _monitored(self, run: Run, told: WorkerResult) -> Monitored:
        seconds = sum(window.seconds for window in told.windows)
        if run.kind == "cpu":
            return Monitored(samples=int(seconds), devices=(DeviceUse(device="cpu", utilisation=0.9),))
        card = next(held for held in CARDS.values() if held[0] == self.machine.gpus[0].name)
        each = DeviceUse(
            device="",
            seconds=seconds,
            utilisation=0.85,
            sm_clock_mhz=card[3],
            power_watts=0.7 * card[4],
            temperature_celsius=60.0,
            memory_peak_bytes=self._memory(run),
            joules=0.7 * card[4] * seconds,
            throttled={"power": 0.2} if card[1] < (5, 0) else {},
        )
        count = 1 if run.emulated else run.devices
        named = (dataclasses.replace(each, device=f"gpu {number}") for number in range(count))
        return Monitored(samples=int(seconds), devices=tuple(named))


OTHER = {
    "model": ["cifar_resnet20_v2", "cifar_vgg16"],
    "data": CIFAR10(crop=32, pad=4, jitter=False),
    "kind": ["cpu", "gpu"],
    "devices": [1, 2],
    "epochs": 2,
    "dtype": "auto",
    "cases": [
        {"optimizer": "nesterov", "lr": Linear(base=0.1, per=128, warmup_epochs=1, decay="cosine")},
        {"optimizer": "lars", "lr": Linear(base=1.0, per=128, warmup_epochs=1)},
        {"optimizer": Muon(lr=0.05), "lr": Fixed(base=0.3, decay="linear"), "seeds": 2},
    ],
}
"""Models, optimizers and lengths that the main study does not have."""


SEARCH = {
    "model": "cifar_resnet50_v2",
    "data": CIFAR10(crop=28, jitter=True),
    "epochs": 12,
    "devices": [1, 8],
    "lr": Search(low=0.01, high=4.0),
    "seeds": 2,
}
"""A search for the learning rate at two global batches."""


def readme_example() -> Recipe:
    """Return the recipe in README.md."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.py"
        path.write_text((HOME / "README.md").read_text().split("```python\n")[1].split("```")[0])
        return config.load(path)


def _core() -> dict[str, Recipe]:
    return {path.stem: config.load(path) for path in sorted((HOME / "recipes").glob("*.py"))}


@dataclasses.dataclass(frozen=True)
class Content:
    """Content of a journal: recipes, and the fate of their runs."""

    recipes: Callable[[], Mapping[str, Recipe]]
    fate: Fate = completes
    quick: bool = False
    detail: int = 0
    named: bool = True


CONTENTS: dict[str, Content] = {
    "core": Content(_core, named=False),
    "quick": Content(_core, quick=True, named=False),
    "readme": Content(lambda: {"mine": readme_example()}),
    "other": Content(lambda: {"other": Recipe(**OTHER)}),
    "detail": Content(lambda: {"kvstores": config.load(HOME / "recipes/research/kvstores.py")}, detail=7),
    "search": Content(lambda: {"search": Recipe(**SEARCH)}),
    "failures": Content(_core, fate=goes_wrong, named=False),
    "nothing": Content(_core, fate=never_works, named=False),
}


def write_journal(name: str, content: str, results: Path) -> Path:
    """Write the journal of a machine on which the content was run; return its path."""
    chosen, trainer = CONTENTS[content], Trainer(name, CONTENTS[content].fate)
    with installed(trainer.machine) as versions:
        planned = [
            item
            for title, made in chosen.recipes().items()
            for item in plan(title, made, trainer.machine, quick=chosen.quick, named=chosen.named)
        ]
        common = {"python": "3.11.7", "numpy": "1.26.4", "system": "Linux"}
        software = {"environment": {}, "commit": "simulated"}
        place = RunContext(
            machine=trainer.machine,
            infrastructure=f"simulated {name}",
            source=None,
            cache=results / "cache",
            price_per_hour=MACHINES[name][4],
            software={each: {**software, "versions": {**common, **held}} for each, held in versions.items()},
        )
        sweep = Sweep(planned, results, place, detail=chosen.detail)
        with mock.patch.object(last_run, "now", trainer.time_of_day):
            for item in sweep.plan:
                sweep.do(item, trainer)
    return sweep.path
