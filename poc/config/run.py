"""One training, fully resolved: what the plan makes, the frameworks train, and records keep."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from poc.config import CIFAR10, DATA, OPTIMIZERS, SGD, Device, ImageNet, Synthetic, Training
from poc.config.datasets import HELD_OUT
from poc.config.kvstores import KVSTORES
from poc.config.rates import Schedule
from poc.values import UserError, field, from_plain, value, words

# In every id, whatever they hold, by their names in records. Any other field counts only where it is not at its
# default, so that a field which is added later renames no run.
_FIRST = (
    *("model", "data", "engine", "kind", "devices", "virtual", "batch_per_device", "total_batch", "window", "evaluate"),
    *("exchange", "momentum", "weight_decay"),
)
# What records call values that were renamed after they had been recorded, by field: ids are made of the old names.
_RECORDED_AS = {"framework": {"mxnet": "gluon"}, "kvstore": {"none": "independent", "ssp": "stale"}}
NO_MATTER_FOR_SPEED = (
    *("seed", "learning_rate", "lr_rule", "warmup_from", "warmup_steps", "decay", "decay_at", "decay_factor"),
    *("epochs", "steps", "steps_per_epoch", "seconds", "window", "evaluate", "quick"),
    "target_accuracy",
)
"""In which runs of one setting may differ, as far as their samples a second go: how long they train, at which rate."""
_NOT_COMPUTED = ("recipe", "restarts")
_VARIANTS: dict[str, Mapping[str, type[Any]]] = {"optimizer": OPTIMIZERS, "kvstore": KVSTORES}


@value
class Run(Schedule, Training):
    """One training, fully resolved: nothing after the plan works out a hyper-parameter."""

    recipe: str
    global_batch: int = field(json="total_batch")
    lr_rule: str = field(label=lambda rule: "" if rule == "fixed" else f"lr scaling {rule}")
    epochs: int
    steps_per_epoch: int
    seed: int = field(label=lambda seed: f"seed {seed}" if seed else "")
    quick: bool = field(label=lambda quick: "quick" if quick else "")

    @property
    def shares_threads(self) -> bool:
        """Whether its devices are CPU contexts of one process and share its threads: no published series has that."""
        return self.kind == "cpu" and self.workers < self.devices

    @property
    def synchronises(self) -> bool:
        """Whether there are gradients that travel, or could: those of several real devices."""
        return self.devices > 1 and not self.emulated

    @property
    def uses_validation_split(self) -> bool:
        """Whether its accuracy is of images held out from training, and not of the test set."""
        return getattr(self.data, "validate_on", "") == HELD_OUT

    @property
    def kvstore_label(self) -> str:
        """How its gradients travel, with all options that are not at their default."""
        return ", ".join([str(self.kvstore), *(label for name, label in words(self).items() if name == "straggler")])

    def __str__(self) -> str:
        """What tells it from others, in a line: all that is not at its default."""
        with_others = ("emulated", "kvstore", "straggler")  # said with the devices, or with the kvstore
        said = [word for name, word in words(self).items() if name not in with_others]
        devices = f"{self.devices} {self.kind}" + (" (emulated)" if self.emulated else "")
        whole = self.steps == self.epochs * self.steps_per_epoch
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        length = epochs if whole else f"{self.steps} steps"
        start = [self.model, f"{self.batch_per_device} x {devices}", length]
        return ", ".join([*start, *([self.kvstore_label] if self.synchronises else []), *said])

    @property
    def is_baseline(self) -> bool:
        """Whether optimizer and augmentation are the main study's; the schedule of the learning rate may differ."""
        plain = not self.label_smoothing and not self.zero_init_gamma
        plain_data = isinstance(self.data, Synthetic) or self.data in (CIFAR10(), ImageNet())
        return bool(plain and plain_data and self.optimizer == SGD())

    @property
    def training_recipe(self) -> str:
        """How it trains in words, but for its model, batch, devices, learning rate and schedule."""
        labels, data = words(self), self.data
        others = (labels.get(name, "") for name in ("label_smoothing", "zero_init_gamma"))
        parts = [str(self.optimizer), *others]
        if isinstance(data, CIFAR10):
            flip = "flip every other epoch" if data.alternate else "horizontal flip" if data.mirror else ""
            parts += [f"crop {data.crop} of {32 + 2 * data.pad}", flip, "colour jitter" if data.jitter else ""]
            parts.append(f"cutout {data.cutout}" if data.cutout else "")
        return ", ".join(filter(None, parts))

    @property
    def schedule_label(self) -> str:
        """Schedule of the learning rate in words; empty if it is constant."""
        labels = words(self)
        epochs = f"{self.warmup_steps / self.steps_per_epoch:.2g}"
        warmup = f"warm-up {epochs} epoch{'' if epochs == '1' else 's'}" if self.warmup_steps else ""
        decay = (labels.get(name, "") for name in ("decay", "decay_at", "decay_factor"))
        return ", ".join(filter(None, [warmup, *decay]))

    @property
    def whole_epochs(self) -> bool:
        """Whether it trains to the end of an epoch, and is not cut short by steps, seconds or a target."""
        cut_short = self.seconds is not None or self.target_accuracy is not None
        return self.steps == self.epochs * self.steps_per_epoch and not cut_short

    @property
    def id(self) -> str:
        """Stable name of this run: a hash of what it computes, so not of the recipe's name."""
        return hashlib.sha256(self.key().encode()).hexdigest()[:10]

    def key(self, *besides: str) -> str:
        """What is the same for runs that compute the same but for these fields.

        The one definition of "the same run but for ...". An option of an optimizer or kvstore goes with it. By which
        rule a learning rate was worked out does not matter: it counts as given in plain numbers.
        """
        plain_names = {own: plain_name for plain_name, own in _options(Run).items()}
        left_out = {plain_names.get(name, name) for name in (*besides, *_NOT_COMPUTED)}
        for name in besides:
            left_out |= _options(*_VARIANTS.get(name, {}).values()).keys()
        return json.dumps(
            {
                name: "fixed" if name == "lr_rule" else held
                for name, held, default in self._entries()
                if name not in left_out and (name in _FIRST or held != default)
            },
            sort_keys=True,
        )

    def _entries(self) -> Iterator[tuple[str, Any, Any]]:
        """Its plain form, as name, what is held and default: options of optimizer and kvstore beside their names."""
        for declared in dataclasses.fields(self):
            held = getattr(self, declared.name)
            if declared.name in _VARIANTS:
                yield _json_name(declared), _recorded(declared.name, held.name), declared.default.name
                for option in dataclasses.fields(held):
                    unset = None if option.default is dataclasses.MISSING else option.default
                    yield _json_name(option), getattr(held, option.name), unset
            elif declared.name == "data":
                # The same rule as for fields of a run, for those that came later.
                fields = {
                    option.name: getattr(held, option.name)
                    for option in dataclasses.fields(held)
                    if not option.metadata.get("later") or getattr(held, option.name) != option.default
                }
                yield "data", {"name": held.name, **fields}, None
            else:
                yield _json_name(declared), _recorded(declared.name, held), declared.default

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same run."""
        return {name: held for name, held, _ in self._entries()}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Run:
        """The run that `to_json` wrote, in this version or an earlier one; raises UserError for anything else."""
        names = _options(Run)
        left = {names.get(name, name): given for name, given in fields.items()}
        for name, recorded in _RECORDED_AS.items():
            renamed = {old: new for new, old in recorded.items()}
            if name in left:
                left[name] = renamed.get(left[name], left[name])
        left.pop("averaged_views", None)  # of earlier versions
        held: dict[str, Any] = {}
        for name, kinds in _VARIANTS.items():
            kind_name = left.pop(name, next(iter(kinds)))
            kind = kinds.get(kind_name)
            if kind is None:
                raise UserError(f"{name}: {kind_name!r} is unknown")
            given = {option: left[entry] for entry, option in _options(kind).items() if entry in left}
            held[name] = from_plain(kind, given)
            # Earlier versions wrote the options of all kinds, those of others at their default.
            others = _options(*kinds.values())
            left = {entry: left[entry] for entry in left if entry not in others}
        if left.get("devices") == 1:  # earlier plans named what it would have exchanged
            held["kvstore"] = Device()
        if left.get("decay") == "one-cycle":  # as earlier versions called what was linear to the last digit
            left["decay"] = "linear"
        data = dict(left.pop("data"))
        held["data"] = from_plain(DATA[data.pop("name")], data)
        held.update(left)
        return from_plain(Run, held)


def _recorded(name: str, held: Any) -> Any:
    """What records have for the field `name` that holds `held`."""
    return _RECORDED_AS[name].get(held, held) if name in _RECORDED_AS else held


def _json_name(declared: dataclasses.Field[Any]) -> str:
    return str(declared.metadata.get("json", declared.name))


def _options(*kinds: type[Any]) -> dict[str, str]:
    """The fields of such values: the name of each in a run's plain form, and its own."""
    return {_json_name(declared): declared.name for kind in kinds for declared in dataclasses.fields(kind)}
