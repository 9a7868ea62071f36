"""Tuning of `tuned_recipes` on a validation split: ResNet-50, 12 epochs at global batches of 128, 1,024 and 4,096.

Each case changes one or two things of a first recipe (Muon with momentum 0.85, label smoothing, horizontal flip every
other epoch, crops of 32 after 2 pixels of padding): unit-norm convolutions, less momentum, no label smoothing, cutout.
At 4,096 also higher learning rates: twice as high is better, and 0.15 for the convolutions is too high (one seed each).
PyTorch is an extra on CPUs: ./make_environment.sh --torch
Cost: 12 to 19 min per run on two CPU cores with AVX-512 bf16 (Zen 5), about 3 h in all.
    ./run_all.sh tuned_recipes_search
"""

from poc import CIFAR10, Fixed, Muon, Recipe

IMAGES = dict(crop=32, pad=2, jitter=False, alternate=True, validate_on="held-out")
LINEAR = dict(warmup_epochs=0.5, decay="linear")
UNIT = dict(momentum=0.85, weight_decay=0, unit_weights=True)
LARGE = dict(devices=8, batch_per_device=512, lr=Fixed(base=0.5, **LINEAR))
MIDDLE = dict(devices=8, batch_per_device=128, lr=Fixed(base=0.5, **LINEAR))
SMALL = dict(devices=1, batch_per_device=128, lr=Fixed(base=0.3, **LINEAR))

recipe = Recipe(
    model="cifar_resnet50_v2",
    framework="pytorch",
    priority=4,
    kind="cpu",
    epochs=12,
    emulated=True,
    dtype="auto",
    data=CIFAR10(**IMAGES),
    label_smoothing=0.1,
    zero_init_gamma=True,
    cases=[
        dict(**LARGE, optimizer=Muon(lr=0.05, momentum=0.85)),
        dict(**LARGE, optimizer=Muon(lr=0.05, **UNIT)),
        dict(**LARGE, optimizer=Muon(lr=0.05, momentum=0.6)),
        dict(**LARGE, optimizer=Muon(lr=0.05, momentum=0.85), label_smoothing=0.0),
        dict(
            LARGE,
            optimizer=[Muon(lr=rate, momentum=0.85) for rate in (0.1, 0.15)],
            lr=Fixed(base=1.0, **LINEAR),
        ),
        dict(**MIDDLE, optimizer=Muon(lr=0.05, momentum=0.85)),
        dict(**MIDDLE, optimizer=Muon(lr=0.05, **UNIT)),
        dict(**MIDDLE, optimizer=Muon(lr=0.05, momentum=0.85), label_smoothing=0.0),
        dict(**SMALL, optimizer=Muon(lr=0.03, momentum=0.85)),
        dict(**SMALL, optimizer=Muon(lr=0.03, **UNIT)),
        dict(**SMALL, optimizer=Muon(lr=0.03, momentum=0.85), data=CIFAR10(**IMAGES, cutout=8)),
    ],
    quick=dict(
        model="cifar_resnet8_v2",
        dtype="float32",
        devices=8,
        batch_per_device=16,
        steps=8,
        window=2,
        evaluate=False,
        cases=[dict(optimizer=Muon(lr=0.05, momentum=0.85))],
    ),
)
