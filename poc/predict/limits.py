"""What bounds the throughput on more devices, by this machine's own times of a step (`poc run --detail`)."""

from __future__ import annotations

import dataclasses

from poc.config.run import Run
from poc.data.images import MOST_THREADS
from poc.host.hardware import Hardware
from poc.predict.quantiles import Prediction
from poc.records.record import Breakdown
from poc.values import value

DEVICES = "devices"


@value
class Apart:
    """A step on some devices of a machine, taken apart."""

    run: Run
    machine: Hardware
    step: Breakdown

    def ceilings(self, devices: int, workers: int) -> dict[str, float]:
        """Samples/s that each part allows on so many devices and workers of one host, if it were all there is.

        The batch a device is the same. Parts overlap at best, so that the least of these bounds the whole: the argument
        of the roofline (Williams, Waterman and Patterson 2009, "Roofline"). Devices take as long as they did; an
        all-reduce moves 2 (n - 1) / n times the gradients over a link that stays as fast (Patarasuk and Yuan 2009);
        what a device computes is issued by a thread of its own, as far as there are cores (not told on CPUs,
        where it may compute, too); and the threads of all workers, as far as there are cores for them, make batches.
        """
        run, step, cores = self.run, self.step, self.machine.cores
        batch = run.batch_per_device * devices
        seconds = {DEVICES: step.independent_step_seconds - step.data_seconds}
        if run.devices > 1:
            seconds["link"] = step.exchange_seconds * (1 - 1 / devices) / (1 - 1 / run.devices)
        if run.kind == "gpu" and step.issue_seconds:
            seconds["host"] = step.issue_seconds * max(devices, cores) / max(run.devices, cores)
        if step.pipeline_seconds:
            threads = 1 if run.kind == "cpu" else MOST_THREADS
            busy = [min(cores, threads * several) for several in (run.workers, workers)]
            seconds["input pipeline"] = step.pipeline_seconds * devices / run.devices * busy[0] / busy[1]
        return {part: batch / taken for part, taken in seconds.items() if taken > 0}

    def within(self, made: Prediction, workers: int) -> tuple[Prediction, str]:
        """`made`, by so many workers, as far as the machine allows it, and the part that allows least."""
        ceilings = self.ceilings(made.devices, workers)
        limit = min(ceilings, key=lambda part: ceilings[part], default="")
        share = min(1.0, ceilings[limit] / made.rate) if limit not in ("", DEVICES) else 1.0
        scaled = {name: share * getattr(made, name) for name in ("rate", "low", "high")}
        return dataclasses.replace(made, **scaled), limit
