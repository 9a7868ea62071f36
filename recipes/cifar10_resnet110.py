"""ResNet-110 on CIFAR-10: the study's two rows, and the first of them on the CPU.

Source: beeva-poc-mxnet, Experiment 1.
Cost: 97 s an epoch on a K80, 4.4 s on 8 P100; about 75 min a run on two CPU cores.
    ./run_all.sh cifar10_resnet110
"""

from poc import CIFAR10, Recipe

recipe = Recipe(
    model="cifar_resnet110_v2",
    data=CIFAR10(crop=28, jitter=True),
    epochs=12,
    cases=[
        dict(kind=["cpu", "gpu"], batch_per_device=128, lr=0.05),
        dict(devices=8, batch_per_device=512, lr=0.4),
    ],
    quick=dict(batch_per_device=32, steps=8, window=2, evaluate=False),
)
