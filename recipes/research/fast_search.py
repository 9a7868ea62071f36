"""Tuning of `fast` on a validation split.

airbench94 with the 8 epochs at a global batch of 2,000 of Jordan's `airbench94_muon.py`, and with 5 epochs:
- Batches, and smaller crops, which take less time: 5 epochs at 1,000 with whole images or crops of 30 are the most
  accurate.
- A learning rate of the head and the shifts that with momentum 0.6 adds up to the published steps with momentum 0.85,
  and the published weight decay: not better with 5 epochs, worse with 8.
- A slimmer model with as many epochs as take that time: not better.
PyTorch is an extra on CPUs: ./make_environment.sh --torch
Cost: 12 runs of 4 to 13 min each on one core of Zen 5, in bfloat16
(POC_THREADS=1; two at a time on two cores, each with a --results folder of its own).
    ./run_all.sh fast_search
"""

from poc import CIFAR10, Linear, Muon, Recipe

WHOLE = dict(crop=32, pad=2, jitter=False, alternate=True, validate_on="held-out")
CROP_30 = {**WHOLE, "crop": 30, "pad": 0}
CROP_28 = {**WHOLE, "crop": 28, "pad": 0}
UNIT = dict(momentum=0.6, unit_weights=True)
LARGER_STEPS = dict(optimizer=Muon(lr=0.24, weight_decay=0.004, **UNIT), lr=Linear(base=1.33, per=1000, decay="linear"))
SLIM = dict(model="cifar_airbench94_slim", batch_per_device=500)

recipe = Recipe(
    model="cifar_airbench94",
    framework="pytorch",
    priority=4,
    kind="cpu",
    dtype="auto",
    data=CIFAR10(**WHOLE),
    batch_per_device=1000,
    epochs=5,
    optimizer=Muon(lr=0.24, weight_decay=0, **UNIT),
    lr=Linear(base=0.5, per=1000, decay="linear"),
    label_smoothing=0.2,
    window=10,
    cases=[
        dict(epochs=8, batch_per_device=2000),
        dict(batch_per_device=[1000, 2000]),
        dict(data=[CIFAR10(**{**CROP_30, "pad": pad}) for pad in (0, 1)]),
        dict(batch_per_device=[500, 1000], data=CIFAR10(**CROP_28)),
        dict(**LARGER_STEPS, epochs=8, batch_per_device=2000),
        dict(**LARGER_STEPS, data=CIFAR10(**CROP_30)),
        dict(**SLIM, epochs=[4, 6]),
        dict(**SLIM, epochs=7, data=CIFAR10(**CROP_28)),
    ],
    quick=dict(batch_per_device=100, steps=8, window=2, evaluate=False, cases=[{}]),
)
