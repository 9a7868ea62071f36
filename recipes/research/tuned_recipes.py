"""Which training recipe keeps the accuracy as the global batch grows: ResNet-50, 12 epochs of CIFAR-10, 128 to 4,096.

The baseline recipe of the study beeva-poc-mxnet (SGD, constant learning rate, all augmentation) at each global batch,
at learning rates that it printed, and the best tuned recipe; on emulated devices if there are too few real ones.
`rate_search` and `tuned_recipes_search` did the tuning.
PyTorch is an extra on CPUs: ./make_environment.sh --torch
Cost: about 16 h on two CPU cores with AVX-512 bf16, twice that without, and 100 min for the baseline rows that other
recipes have, too.
    ./run_all.sh tuned_recipes
"""

from poc import CIFAR10, SGD, Fixed, Linear, Muon, Recipe

STUDY = dict(
    data=CIFAR10(crop=28, jitter=True),
    optimizer=SGD(),
    label_smoothing=0.0,
    zero_init_gamma=False,
)

# The uncropped image, shifted by up to two pixels: shows more than a crop of 28, for 1.3 times the arithmetic.
WHOLE = CIFAR10(crop=32, pad=2, jitter=False)
# For a global batch of 128.
SMALL = dict(data=WHOLE, optimizer=Muon(lr=0.03, momentum=0.85), lr=Fixed(base=0.3, warmup_epochs=0.5, decay="linear"))
# Best in `tuned_recipes_search` at 128 and at 1,024, by little more than the noise of one seed: unit-norm convolutions
# without weight decay, and the horizontal flip every other epoch.
MIRRORED = CIFAR10(crop=32, pad=2, jitter=False, alternate=True)
UNIT = dict(momentum=0.85, weight_decay=0, unit_weights=True)
SMALL_UNIT = dict(SMALL, data=MIRRORED, optimizer=Muon(lr=0.03, **UNIT), framework="pytorch", seeds=3)
LARGE_UNIT = dict(data=MIRRORED, optimizer=Muon(lr=0.05, **UNIT), seeds=3)
# Best in `tuned_recipes_search` at 4,096, with one seed each.
LARGEST = dict(
    devices=8,
    batch_per_device=512,
    data=MIRRORED,
    framework="pytorch",
    optimizer=Muon(lr=0.1, momentum=0.85),
    lr=Fixed(base=1.0, warmup_epochs=0.5, decay="linear"),
    seeds=3,
)
# The first attempt: learning rates that are right for ResNet-20 are too high for fifty layers.
FAST = dict(
    optimizer=Muon(lr=0.2, momentum=0.85), lr=Fixed(base=0.4, warmup_epochs=0.5, decay="linear"), zero_init_gamma=False
)

recipe = Recipe(
    model="cifar_resnet50_v2",
    priority=4,
    epochs=12,
    kind=["cpu", "gpu"],
    emulated=True,
    dtype="auto",
    gradient_noise=10,
    data=CIFAR10(crop=28, pad=0, jitter=False),
    optimizer=Muon(lr=0.05, momentum=0.85),
    label_smoothing=0.1,
    zero_init_gamma=True,
    lr=Fixed(base=0.5, warmup_epochs=0.5, decay="linear"),
    cases=[
        LARGEST,
        dict(devices=8, batch_per_device=512),
        dict(devices=8, batch_per_device=512, **FAST),
        dict(devices=8, batch_per_device=128, data=[CIFAR10(crop=28, pad=0, jitter=False), WHOLE]),
        dict(devices=8, batch_per_device=128, **LARGE_UNIT),
        dict(kind="cpu", batch_per_device=128, **SMALL_UNIT),
        dict(kind="cpu", batch_per_device=128, **SMALL),
        dict(kind="cpu", batch_per_device=128, data=CIFAR10(crop=32, pad=4, jitter=False)),
        dict(devices=8, batch_per_device=512, **STUDY, lr=0.4, seeds=3),
        dict(devices=8, batch_per_device=512, **STUDY, lr=3.2),
        dict(devices=8, batch_per_device=128, **STUDY, lr=0.4, seeds=3),
        dict(devices=8, batch_per_device=256),
        dict(devices=4, batch_per_device=128, data=WHOLE),
        dict(devices=2, batch_per_device=128),
        dict(devices=8, batch_per_device=256, **STUDY, lr=0.4),
        dict(devices=2, batch_per_device=128, **STUDY, lr=0.1),
        # The same runs as in emulated_devices and cifar10_resnet50.
        dict(
            devices=4,
            batch_per_device=128,
            **STUDY,
            lr=Linear(base=0.05, per=128),
            dtype="float32",
            gradient_noise=None,
        ),
        dict(kind="cpu", batch_per_device=128, **STUDY, lr=0.05, dtype="float32", seeds=3),
    ],
    quick=dict(
        model="cifar_resnet8_v2",
        dtype="float32",
        devices=8,
        batch_per_device=128,
        steps=15,
        window=3,
        gradient_noise=None,
        cases=[dict(**STUDY, lr=0.4), dict(lr=Fixed(base=0.5, decay="linear"))],
    ),
)
