"""Which way to train keeps the accuracy as the total batch grows: ResNet-50, 12 epochs of CIFAR-10, batch 128 to 4096.

The study's own way (beeva-poc-mxnet: SGD at a constant rate, all of the augmentation) at each total batch, with the rates
that it printed, beside the best one found, on virtual devices where there are no real ones. Several of the study's rows
are those of other recipes, and run once.
Cost: about 6 h on two CPU cores, 4.5 of them for the study's way.
    ./run_all.sh batch_and_rate
"""

from poc import CIFAR10, Fixed, Linear, Muon, Recipe

GENTLE = CIFAR10(crop=28, pad=0, jitter=False)

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=GENTLE,
    epochs=12,
    virtual=True,
    dtype="bfloat16",
    gradient_noise=10,
    optimizer=Muon(rate=0.2),
    momentum=0.85,
    label_smoothing=0.1,
    lr=Fixed(base=0.4, warmup_epochs=0.5, decay="linear"),
    only=[
        dict(devices=8, batch_per_device=512),
        dict(devices=8, batch_per_device=128),
        dict(devices=0, batch_per_device=128),
    ],
    quick=dict(
        model="cifar_resnet20_v2",
        epochs=1,
    ),
)
