"""Tuning of `tuned_recipes` on a cheap model: ResNet-20, three epochs at global batches of 1,024 and 128.

Three epochs at 1,024 are 144 steps, as many as 12 epochs at 4,096: what learns fast in few steps here is worth trying
there.
Cost: about 95 min on two CPU cores.
    ./run_all.sh rate_search
"""

from poc import CIFAR10, SGD, Fixed, Muon, Nesterov, Recipe, Steps

STUDY = dict(data=CIFAR10(crop=28, jitter=True), label_smoothing=0.0, lr=0.4)
LINEAR = dict(warmup_epochs=0.5, decay="linear")
SMALL = dict(kind="cpu", devices=1, batch_per_device=128)
SMALL_MUON = dict(**SMALL, lr=Fixed(base=0.3, **LINEAR))

recipe = Recipe(
    model="cifar_resnet20_v2",
    priority=4,
    epochs=3,
    devices=2,
    batch_per_device=512,
    kind=["cpu", "gpu"],
    emulated=True,
    dtype="auto",
    data=CIFAR10(crop=28, pad=0, jitter=False),
    label_smoothing=0.1,
    lr=Fixed(base=0.4, **LINEAR),
    cases=[
        dict(**STUDY),
        dict(lr=0.4),
        dict(lr=[Fixed(base=0.4, **LINEAR), Fixed(base=2.0, **LINEAR)], optimizer="nesterov"),
        dict(
            lr=Fixed(base=2.0, **LINEAR),
            optimizer=SGD(momentum_correction=True, decay_gammas=False),
            zero_init_gamma=True,
        ),
        dict(lr=Fixed(base=2.0, warmup_epochs=0.5, decay=Steps(at=[0.6, 0.85])), optimizer="nesterov"),
        dict(lr=Fixed(base=2.0, warmup_epochs=0.9, decay="linear"), optimizer="nesterov"),
        dict(lr=Fixed(base=8.0, **LINEAR), optimizer="lars"),
        dict(optimizer=[Muon(lr=0.2, momentum=momentum) for momentum in (0.6, 0.85, 0.95)]),
        dict(optimizer=[Muon(lr=rate, momentum=0.85) for rate in (0.05, 0.1)]),
        dict(optimizer=Muon(lr=0.2, momentum=0.85), lr=[Fixed(base=base, **LINEAR) for base in (2.0, 8.0)]),
        dict(**SMALL, **STUDY | dict(lr=0.05)),
        dict(**SMALL, lr=Fixed(base=0.1, **LINEAR), optimizer="nesterov"),
        dict(**SMALL, lr=Fixed(base=0.1, warmup_epochs=0.9, decay="linear"), optimizer="nesterov"),
        dict(**SMALL, lr=Fixed(base=0.1, **LINEAR), optimizer=Nesterov(weight_decay=0.0005)),
        dict(**SMALL_MUON, optimizer=Muon(lr=0.03, momentum=0.85), dtype=["auto", "float32"]),
        dict(**SMALL_MUON, optimizer=Muon(lr=0.03, momentum=0.85, weight_decay=0.0005)),
    ],
    quick=dict(
        batch_per_device=32, steps=6, window=3, evaluate=False, dtype="float32", cases=[dict(optimizer=Muon(lr=0.2))]
    ),
)
