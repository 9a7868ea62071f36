"""Ways to train, and what each keeps of the accuracy as the batch grows: the runs that tell, grouped and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poc.records import noise
from poc.records.row import Row
from poc.report.rows import Record, main_study, ordered
from poc.values import value

SHOWN = ("completed", "diverged")
_OPTIMIZERS = {"sgd": "SGD", "nesterov": "SGD with Nesterov momentum", "lars": "LARS"}
# What the main study's script did, in fields that a later version of the journal may have added.
_SOURCE = {
    "optimizer": "sgd",
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "warmup_steps": 0,
    "decay": "constant",
    "label_smoothing": 0.0,
    "momentum_correction": False,
    "decay_gammas": True,
    "zero_gamma": False,
}
_SOURCE_DATA = {"crop": 28, "pad": 4, "mirror": True, "jitter": True}
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
        return int(self.record["run"]["total_batch"])


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
        return sorted({one.total_batch for one in self.trainings})

    def best(self, total_batch: int, *, source: bool) -> Training | None:
        """The most accurate run at a batch, of those as the main study had it or of the others."""
        return next(
            (
                one
                for one in self.trainings
                if one.total_batch == total_batch and one.source == source and one.accuracy is not None
            ),
            None,
        )

    def suffers_from(self, *, source: bool) -> tuple[int, float] | None:
        """The first total batch whose best run loses more than `SUFFERS` to the best of a smaller one, and how much."""
        highest = 0.0
        for batch in self.batches():
            one = self.best(batch, source=source)
            accuracy = one.accuracy if one is not None else None
            if accuracy is not None:
                if highest - accuracy > SUFFERS:
                    return batch, highest - accuracy
                highest = max(highest, accuracy)
        return None


def way(run: Mapping[str, Any]) -> str:
    """How `run`, in the form of `Run.to_json`, trains: all but its network, its batch and its devices, in words."""
    optimizer = run.get("optimizer", "sgd")
    data = run["data"]
    rule = f"rate {run['learning_rate']:g}" if run["lr_rule"] == "fixed" else run["lr_rule"]
    warmup = run.get("warmup_steps") or 0
    words = [
        f"Muon {run['muon_rate']:g}" if optimizer == "muon" else _OPTIMIZERS[optimizer],
        rule,
        f"momentum {run['momentum']:g}" if run["momentum"] != _SOURCE["momentum"] else "",
        "momentum correction" if run.get("momentum_correction") else "",
        f"weight decay {run['weight_decay']:g}" if run["weight_decay"] != _SOURCE["weight_decay"] else "",
        "" if run.get("decay_gammas", True) else "gammas not decayed",
        f"warm-up over {warmup / run['steps']:.0%} of the steps" if warmup else "",
        _decay(run),
        f"label smoothing {run['label_smoothing']:g}" if run.get("label_smoothing") else "",
        "zero gammas" if run.get("zero_gamma") else "",
        f"crop {data['crop']} of {32 + 2 * data['pad']}" if data["name"] == "cifar10" else "",
        "mirror" if data["mirror"] else "",
        "colour jitter" if data["jitter"] else "",
    ]
    return ", ".join(filter(None, words))


def _decay(run: Mapping[str, Any]) -> str:
    named = run.get("decay", "constant")
    if named == "steps":
        places = " and ".join(f"{place:.0%}" for place in run["decay_at"])
        return f"times {run['decay_factor']:g} at {places} of the steps"
    return {"constant": "constant rate", "linear": "linear to zero", "cosine": "cosine to zero"}.get(named, named)


def as_the_study(run: Mapping[str, Any]) -> bool:
    """Whether `run`, in the form of `Run.to_json`, trains as the main study's script did, but perhaps for the rate."""
    return all(run.get(name, default) == default for name, default in _SOURCE.items()) and all(
        run["data"].get(name) == default for name, default in _SOURCE_DATA.items()
    )


def comparisons(records: Sequence[Record]) -> list[Comparison]:
    """Every comparison on CIFAR-10, the networks and epochs with most runs first; quick runs are none of them."""
    groups: dict[tuple[Any, ...], list[Training]] = {}
    for record in ordered(records):
        run = record["run"]
        whole = run["steps"] == run["epochs"] * run["steps_per_epoch"] and run.get("seconds") is None
        if record["outcome"] not in SHOWN or run["quick"] or not whole or not run["evaluate"]:
            continue
        exchanging = run["exchange"] != "device" and run["devices"] > 1
        if run["data"]["name"] != "cifar10" or not record["dataset"].startswith("cifar10") or exchanging:
            continue
        diverged = record["outcome"] == "diverged"
        accuracies = [one["accuracy"] for one in record["evaluations"]]
        key = (run["model"], run["epochs"], record["dataset"], record["infrastructure"], run["engine"])
        groups.setdefault(key, []).append(
            Training(
                record=record,
                way=way(run),
                source=as_the_study(run),
                accuracy=accuracies[-1] if accuracies and not diverged else None,
            )
        )
    found = [
        Comparison(
            network=model,
            epochs=epochs,
            dataset=dataset,
            trainings=tuple(sorted(members, key=lambda one: (one.total_batch, -(one.accuracy or 0.0)))),
        )
        for (model, epochs, dataset, *_), members in groups.items()
        if len({one.way for one in members}) > 1
    ]
    return sorted(found, key=lambda one: (-one.epochs, one.network))


def printed(rows: Sequence[Row], network: str, epochs: int) -> list[Row]:
    """The rows of the main study for a network and a number of epochs."""
    main = main_study(rows)
    return [row for row in rows if (row.study, row.network, row.epochs) == (main, network, epochs) and main]


def epochs_to(training: Training, accuracy: float) -> int | None:
    """The first epoch after which a run had that validation accuracy; None where it never had."""
    evaluations = training.record["evaluations"]
    return next((one["epoch"] for one in evaluations if one["accuracy"] >= accuracy), None)


def noise_scales(training: Training) -> list[tuple[float, float]]:
    """Gradient noise scale, in samples, over the training: (epochs trained, scale) for each twelfth of it.

    A twelfth in which no signal was found has none.
    """
    record = training.record
    found = []
    for stretch in range(_STRETCHES):
        one = noise.of_record(record, stretch / _STRETCHES, (stretch + 1) / _STRETCHES)
        if one is not None and one.scale is not None:
            found.append(((stretch + 0.5) / _STRETCHES * record["run"]["epochs"], one.scale))
    return found
