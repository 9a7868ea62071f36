"""Ways to train, and what each keeps of the accuracy as the batch grows: the runs that tell, grouped and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poc.recipe import CIFAR10, SGD, Muon
from poc.records.record import DIVERGED, DONE, Record
from poc.report.rows import main_study
from poc.run import Run
from poc.studies.row import Row
from poc.values import value, words

_STRETCHES = 12
SUFFERS = 0.02
"""Accuracy lost to the best of the smaller batches that counts as suffering."""


@value
class Training:
    """One run of a comparison."""

    record: Record
    way: str
    """All that tells it from the others, but for the batch."""
    source: bool
    """It is as the main study had it, but perhaps for the rate."""
    accuracy: float | None
    """After the last epoch; None where it diverged before the first one's end."""

    @property
    def total_batch(self) -> int:
        """Samples of a step, over all devices."""
        return self.record.run.total_batch


@value
class Comparison:
    """Runs of one network on one machine, over as many epochs of the same data, by more than one way."""

    network: str
    epochs: int
    dataset: str
    trainings: tuple[Training, ...]
    """By total batch, at each the most accurate first."""

    def batches(self) -> list[int]:
        """The total batches, ascending."""
        return sorted({training.total_batch for training in self.trainings})

    def best(self, total_batch: int, *, source: bool) -> Training | None:
        """The most accurate run at a batch, of those as the main study had it or of the others."""
        return next(
            (
                training
                for training in self.trainings
                if training.total_batch == total_batch and training.source == source and training.accuracy is not None
            ),
            None,
        )

    def suffers_from(self, *, source: bool) -> tuple[int, float] | None:
        """The first total batch whose best run loses more than `SUFFERS` to the best of a smaller one, and how much."""
        highest = 0.0
        for batch in self.batches():
            training = self.best(batch, source=source)
            accuracy = training.accuracy if training is not None else None
            if accuracy is not None:
                if highest - accuracy > SUFFERS:
                    return batch, highest - accuracy
                highest = max(highest, accuracy)
        return None


def way(run: Run) -> str:
    """How `run` trains: all but its network, its batch and its devices, in words."""
    optimizer, said = run.optimizer, {**words(run), **words(run.optimizer)}
    parts = [
        f"{optimizer.label} {optimizer.rate:g}" if isinstance(optimizer, Muon) else optimizer.label,
        f"rate {run.learning_rate:g}" if run.lr_rule == "fixed" else run.lr_rule,
        *(said.get(name, "") for name in ("momentum", "momentum_correction", "weight_decay", "decay_gammas")),
        f"warm-up over {run.warmup_steps / run.steps:.0%} of the steps" if run.warmup_steps else "",
        _decay(run),
        *(said.get(name, "") for name in ("label_smoothing", "zero_gamma")),
    ]
    if isinstance(run.data, CIFAR10):
        parts.append(f"crop {run.data.crop} of {32 + 2 * run.data.pad}")
        parts += ["mirror"] * run.data.mirror + ["colour jitter"] * run.data.jitter
    return ", ".join(filter(None, parts))


def _decay(run: Run) -> str:
    if run.decay == "steps":
        places = " and ".join(f"{place:.0%}" for place in run.decay_at)
        return f"times {run.decay_factor:g} at {places} of the steps"
    return {"constant": "constant rate", "linear": "linear to zero", "cosine": "cosine to zero"}.get(
        run.decay, run.decay
    )


def as_the_study(run: Run) -> bool:
    """Whether `run` trains as the main study's script did, but perhaps for the rate."""
    scheduled = run.warmup_steps or run.decay != "constant" or run.label_smoothing or run.zero_gamma
    return run.optimizer == SGD() and run.data == CIFAR10() and not scheduled


def comparisons(records: Sequence[Record]) -> list[Comparison]:
    """Every comparison on CIFAR-10, the networks and epochs with most runs first; quick runs are none of them."""
    groups: dict[tuple[Any, ...], list[Training]] = {}
    for record in records:
        run = record.run
        if record.outcome not in DONE or run.quick or not run.whole_epochs or not run.evaluate:
            continue
        exchanging = run.exchange.name != "device" and run.devices > 1
        if not isinstance(run.data, CIFAR10) or not record.dataset.startswith("cifar10") or exchanging:
            continue
        accuracies = [evaluation.accuracy for evaluation in record.evaluations]
        training = Training(
            record=record,
            way=way(run),
            source=as_the_study(run),
            accuracy=accuracies[-1] if accuracies and record.outcome != DIVERGED else None,
        )
        key = (run.model, run.epochs, record.dataset, record.infrastructure, run.engine)
        groups.setdefault(key, []).append(training)
    compared = [
        Comparison(
            network=model,
            epochs=epochs,
            dataset=dataset,
            trainings=tuple(sorted(members, key=lambda member: (member.total_batch, -(member.accuracy or 0.0)))),
        )
        for (model, epochs, dataset, *_), members in groups.items()
        if len({member.way for member in members}) > 1
    ]
    return sorted(compared, key=lambda member: (-member.epochs, member.network))


def printed(rows: Sequence[Row], network: str, epochs: int) -> list[Row]:
    """The rows of the main study for a network and a number of epochs."""
    main = main_study(rows)
    return [row for row in rows if (row.study, row.network, row.epochs) == (main, network, epochs) and main]


def epochs_to(training: Training, accuracy: float) -> int | None:
    """The first epoch after which a run had that validation accuracy; None where it never had."""
    evaluations = training.record.evaluations
    return next((evaluation.epoch for evaluation in evaluations if evaluation.accuracy >= accuracy), None)


def noise_scales(training: Training) -> list[tuple[float, float]]:
    """Gradient noise scale, in samples, over the training: (epochs trained, scale) for each twelfth of it.

    A twelfth in which no signal was found has none.
    """
    scales = []
    for stretch in range(_STRETCHES):
        noise = training.record.noise(stretch / _STRETCHES, (stretch + 1) / _STRETCHES)
        if noise is not None and noise.scale is not None:
            scales.append(((stretch + 0.5) / _STRETCHES * training.record.run.epochs, noise.scale))
    return scales
