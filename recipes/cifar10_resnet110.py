"""ResNet-110 on CIFAR-10: accuracy and throughput on one and on eight GPUs.

The two rows of the main study (beeva-poc-mxnet, Experiment 1). `throughput` measures its speed on a CPU.
    ./run_all.sh cifar10_resnet110
"""

from poc import CIFAR10, Recipe

recipe = Recipe(
    model="cifar_resnet110_v2",
    data=CIFAR10(crop=28, jitter=True),
    epochs=12,
    kind="gpu",
    cases=[
        dict(devices=1, batch_per_device=128, lr=0.05),
        dict(devices=8, batch_per_device=512, lr=0.4),
    ],
    quick=dict(steps=8, window=2, evaluate=False, cases=[dict(devices=[1, 8], batch_per_device=128, lr=0.05)]),
)
