"""Tuning of `fast` on a validation split.

Slim model:
- 4 epochs: Muon with and without unit-norm convolutions, its learning rates, half the batch.
- 10 epochs with and without cutout: no difference was seen.
Full model:
- 18 epochs memorise the training images, 14 epochs with cutout do not; the accuracy is about the same.
- A model as wide as airbench95 for fewer epochs: not measured yet.
- The paper's recipe (Jordan 2024: 8 epochs at batch 2,000), and 5 epochs: batches, and smaller crops, which take less
  time. 5 epochs at 1,000 with whole images or crops of 30 are the most accurate of these.
- The slim model with as many epochs as take that time.
- A learning rate of the head and the shifts that with momentum 0.6 adds up to the paper's steps with momentum 0.85, and
  its weight decay: not better with 5 epochs, worse with 8.
PyTorch is an extra on CPUs: ./make_environment.sh --torch
Cost: on one CPU core without AVX-512, two runs at a time, 20 min for 4 epochs of the slim model and 2 h for 14 of the
full one; on two cores of Zen 5, in bfloat16, 8 min for 8 epochs of the full one, on one of them 6 to 8 min
for 5 epochs.
    ./run_all.sh fast_search
"""

from poc import CIFAR10, Linear, Muon, Recipe

SHAPE = dict(crop=32, pad=2, jitter=False, alternate=True, validate_on="held-out")
SMALLER = {**SHAPE, "crop": 28, "pad": 0}
UNIT = dict(momentum=0.6, weight_decay=0, unit_weights=True)
BEST = Muon(lr=0.24, **UNIT)
WHOLE = dict(model="cifar_airbench94", framework="pytorch", dtype="auto", optimizer=BEST)
LARGER_STEPS = dict(
    optimizer=Muon(lr=0.24, **{**UNIT, "weight_decay": 0.004}), lr=Linear(base=1.33, per=1000, decay="linear")
)
SLIM = dict(framework="pytorch", dtype="auto", optimizer=BEST, batch_per_device=500)

recipe = Recipe(
    model="cifar_airbench94_slim",
    priority=4,
    data=CIFAR10(**SHAPE),
    batch_per_device=1000,
    kind="cpu",
    epochs=4,
    optimizer=Muon(lr=0.1, momentum=0.85, weight_decay=0),
    lr=Linear(base=0.5, per=1000, decay="linear"),
    label_smoothing=0.2,
    window=10,
    cases=[
        dict(),
        dict(optimizer=[Muon(lr=rate, **UNIT) for rate in (0.24, 0.12)]),
        dict(optimizer=Muon(lr=0.24, momentum=0.85, weight_decay=0)),
        dict(batch_per_device=500),
        dict(batch_per_device=500, optimizer=Muon(lr=0.12, **UNIT)),
        dict(framework="pytorch", epochs=10, data=[CIFAR10(**SHAPE, cutout=side) for side in (8, 0)], optimizer=BEST),
        dict(**WHOLE, epochs=8),
        dict(**WHOLE, epochs=14, data=CIFAR10(**SHAPE, cutout=8)),
        dict(WHOLE, model="cifar_airbench95", epochs=6),
        dict(**WHOLE, epochs=8, batch_per_device=2000),
        dict(**WHOLE, epochs=5, batch_per_device=[500, 1000, 2000]),
        dict(**WHOLE, epochs=5, data=[CIFAR10(**{**SMALLER, "crop": 30, "pad": pad}) for pad in (0, 1)]),
        dict(**WHOLE, epochs=5, batch_per_device=[500, 1000], data=CIFAR10(**SMALLER)),
        dict({**WHOLE, **LARGER_STEPS}, epochs=8, batch_per_device=2000),
        dict({**WHOLE, **LARGER_STEPS}, epochs=5, data=CIFAR10(**{**SMALLER, "crop": 30})),
        dict(SLIM, epochs=[4, 6]),
        dict(SLIM, epochs=7, data=CIFAR10(**SMALLER)),
        dict(**WHOLE, epochs=18, data=[CIFAR10(**SHAPE, cutout=side) for side in (0, 8, 12)]),
    ],
    quick=dict(batch_per_device=100, steps=8, window=2, evaluate=False, cases=[{}]),
)
