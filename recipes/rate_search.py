"""The search behind `batch_and_rate`, on something cheap: ResNet-20, three epochs at a total batch of 1,024.

144 steps, as 12 epochs at 4,096 take: what learns much in few steps here is worth a trial there.
Cost: about 45 min on two CPU cores.
    ./run_all.sh rate_search
"""

from poc import CIFAR10, Fixed, Muon, Recipe, Steps

STUDY = dict(data=CIFAR10(crop=28, jitter=True), label_smoothing=0.0, lr=0.4)
LINEAR = dict(warmup_epochs=0.5, decay="linear")

recipe = Recipe(
    model="cifar_resnet20_v2",
    epochs=3,
    devices=2,
    batch_per_device=512,
    virtual=True,
    dtype="auto",
    data=CIFAR10(crop=28, pad=0, jitter=False),
    label_smoothing=0.1,
    lr=Fixed(base=0.4, **LINEAR),
    only=[
        dict(**STUDY),
        dict(lr=0.4),
        dict(lr=[Fixed(base=0.4, **LINEAR), Fixed(base=2.0, **LINEAR)], optimizer="nesterov"),
        dict(lr=Fixed(base=2.0, **LINEAR), momentum_correction=True, zero_gamma=True, decay_gammas=False),
        dict(lr=Fixed(base=2.0, warmup_epochs=0.5, decay=Steps(at=[0.6, 0.85])), optimizer="nesterov"),
        dict(lr=Fixed(base=2.0, warmup_epochs=0.9, decay="one-cycle"), optimizer="nesterov"),
        dict(lr=Fixed(base=8.0, **LINEAR), optimizer="lars"),
        dict(optimizer=Muon(rate=0.2), momentum=[0.6, 0.85, 0.95]),
        dict(optimizer=[Muon(rate=0.05), Muon(rate=0.1)], momentum=0.85),
        dict(optimizer=Muon(rate=0.2), momentum=0.85, lr=[Fixed(base=2.0, **LINEAR), Fixed(base=8.0, **LINEAR)]),
    ],
    quick=dict(
        batch_per_device=32, steps=6, window=3, evaluate=False, dtype="float32", only=[dict(optimizer=Muon(rate=0.2))]
    ),
)
