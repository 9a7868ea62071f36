"""One training, fully resolved: the plan makes it, the frameworks train it, and records store it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json

from poc.config import SGD, Synthetic, Training, networks
from poc.config.datasets import HELD_OUT, Arrays, Cifar, Own
from poc.config.fields import changed, configuration, field, labels
from poc.config.rates import Schedule, Search
from poc.values import Count, CountOrZero, Flag

WARMUP_STEPS = 5  # no window that begins in the first steps is timed
# Fields that do not change what a run computes. A learning rate counts as a number, whatever rule it was computed by.
_NOT_COMPUTED = ("recipe", "restarts", "lr_rule", "cost", "model_folder", "search", "tunes")


@configuration
class Run(Schedule, Training):
    """One training, fully resolved: nothing after the plan computes a hyper-parameter."""

    recipe: str
    global_batch: Count
    lr_rule: str = field(label=lambda rule: "" if rule == "fixed" else f"lr scaling {rule}")
    epochs: Count
    steps_per_epoch: Count
    seed: CountOrZero = field(label=lambda seed: f"seed {seed}" if seed else "")
    quick: Flag = field(label=lambda quick: "quick" if quick else "")
    model_hash: str = ""
    """Hash of the source of a model that is not registered; empty for those of zoos."""
    model_folder: str = ""
    """Folder of that source: known on this machine only."""
    cost: networks.Cost | None = None
    """Counted cost of a model that is not registered, with the classes and the image size of `data`."""
    pause_after: Count | None = field(default=None, label="paused after epoch {}")
    """It stops after this epoch and keeps its checkpoint, from which the same run without a pause, or with a later one,
    continues. All else, the schedule included, is that of the whole length."""
    search: Search | None = None
    """The search for a learning rate that it is a candidate of."""
    tunes: Run | None = None
    """The training on the test set that this candidate stands for."""

    @property
    def has_own_model(self) -> bool:
        """True if the model is the user's own or a zoo's, and not a registered one."""
        return ":" in self.model

    @property
    def network(self) -> networks.Network:
        """The model, with its cost; an unregistered one needs no file for that."""
        name, data, cost = self.model, self.data, self.cost or networks.UNKNOWN
        unregistered = networks.Network(name=name, label=name, classes=data.classes, input_size=data.crop, cost=cost)
        return networks.NETWORKS.get(name, unregistered)

    @property
    def normalisation(self) -> tuple[networks.Channels, float | networks.Channels]:
        """What is subtracted per channel from pixels in 0..255, and the scale of the result.

        1/58 is about ImageNet's standard deviation.
        """
        mean, std = self.mean, self.std
        if self.has_own_model:
            mean, std = mean or (0.485, 0.456, 0.406), std or (0.229, 0.224, 0.225)  # ImageNet's
        own_scale = 1.0 if self.network.normalises_input else 1 / 58.0
        scale = own_scale if std is None else (1 / (255 * std[0]), 1 / (255 * std[1]), 1 / (255 * std[2]))
        return (255 * mean[0], 255 * mean[1], 255 * mean[2]) if mean else networks.MEAN, scale

    @property
    def last_epoch(self) -> int:
        """The epoch with which it ends or is paused."""
        return self.pause_after or self.epochs

    @property
    def last_step(self) -> int:
        """The number of optimizer steps until it ends or is paused."""
        return min(self.steps, self.last_epoch * self.steps_per_epoch)

    @property
    def synchronises(self) -> bool:
        """True if it has several real devices."""
        return self.devices > 1 and not self.emulated

    @property
    def uses_validation_split(self) -> bool:
        """True if its accuracy is of images held out from training, not of the test set."""
        return bool(self.data.validate_on == HELD_OUT)

    @property
    def whole_epochs(self) -> bool:
        """True if it trains all epochs of its schedule, and is not cut short by steps, seconds, a target or a pause."""
        cut_short = any(limit is not None for limit in (self.seconds, self.target_accuracy, self.pause_after))
        return self.steps == self.epochs * self.steps_per_epoch and not cut_short

    @property
    def is_range_test(self) -> bool:
        """True if its learning rate grows, to find the best one: neither its speed nor its accuracy is a result."""
        return self.grows_from > 0

    @property
    def is_baseline(self) -> bool:
        """True if optimizer and augmentation are the main study's, or the defaults of a data set of the user's own.

        The schedule of the learning rate may differ, and the size of images in arrays.
        """
        plain = not labels(self, "training_recipe")
        data = dataclasses.replace(self.data, crop=0) if isinstance(self.data, Arrays) else self.data
        plain_data = isinstance(data, Synthetic) or not labels(dataclasses.replace(data, validate_on="test"))
        return plain and plain_data and self.optimizer == SGD()

    def __str__(self) -> str:
        """Describe the run in a line: its model, devices and length, and all options that are not at their default."""
        devices = f"{self.devices} {self.kind}" + (" (emulated)" if self.emulated else "")
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        length = epochs if self.steps == self.epochs * self.steps_per_epoch else f"{self.steps} steps"
        kvstore = [self.kvstore_label] if self.synchronises else []
        options = [text for name, text in labels(self).items() if name not in ("emulated", "kvstore", "straggler")]
        return ", ".join([self.model, f"{self.batch_per_device} x {devices}", length, *kvstore, *options])

    @property
    def kvstore_label(self) -> str:
        """Describe its gradient synchronisation with all options that are not at their default."""
        return ", ".join([str(self.kvstore), *self._labels("straggler")])

    @property
    def options(self) -> str:
        """Describe what the framework does with the model, if that is not its default."""
        return ", ".join(self._labels("compile", "graphs"))

    @property
    def measurement(self) -> str:
        """Describe its steps if they are no whole epochs, and what is not at its default of how it is measured."""
        steps = [f"{self.steps} steps"] if self.steps != self.epochs * self.steps_per_epoch else []
        return ", ".join([*steps, *self._labels("seconds", "window", "gradient_noise")])

    @property
    def training_recipe(self) -> str:
        """Describe how it trains, without model, batch, devices, learning rate and schedule."""
        parts = [str(self.optimizer), *labels(self, "training_recipe").values()]
        data = self.data
        if isinstance(data, Own):
            parts.append(str(dataclasses.replace(data, validate_on="test")))
        if isinstance(data, Cifar):
            parts.append(f"crop {data.crop} of {32 + 2 * data.pad}")
            flip = "flip every other epoch" if data.alternate else "horizontal flip"
            options = {flip: data.mirror, "colour jitter": data.jitter, f"cutout {data.cutout}": data.cutout}
            parts += [text for text, is_on in options.items() if is_on]
        return ", ".join(parts)

    @property
    def schedule_label(self) -> str:
        """Describe the schedule of the learning rate; empty if it is constant."""
        parts = []
        if self.warmup_steps:
            # As few decimals as give this number of steps: equal labels stand for equal schedules.
            rounded = (round(self.warmup_steps / self.steps_per_epoch, decimals) for decimals in range(17))
            epochs = next(each for each in rounded if round(each * self.steps_per_epoch) == self.warmup_steps)
            parts.append(f"warm-up {epochs:.12g} epoch" + ("" if epochs == 1 else "s"))
            parts[-1] += f" from {self.warmup_from:g}" if self.warmup_from else ""
        return ", ".join([*parts, *self._labels("decay", "decay_at", "decay_factor", "grows_from")])

    def _labels(self, *names: str) -> list[str]:
        texts = labels(self)
        return [texts[name] for name in names if name in texts]

    @functools.cached_property
    def id(self) -> str:
        """Stable name of the run: a hash of what it computes, without the recipe's name."""
        return hashlib.sha256(self.fingerprint().encode()).hexdigest()[:10]

    def fingerprint(self, *ignoring: str) -> str:
        """Return the run as JSON without the fields in `ignoring`.

        Two runs with equal fingerprints compute the same but for these fields. Values at their default are left out, so
        that a field which is added later changes no id.
        """
        fields = {name: value for name, value in changed(self).items() if name not in (*ignoring, *_NOT_COMPUTED)}
        return json.dumps(fields, sort_keys=True)
