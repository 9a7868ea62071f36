"""ResNet-50 on CIFAR-10: accuracy and throughput against batch size, learning rate and devices.

Source: beeva-poc-mxnet, Experiment 1: every setting of its table, and the reference row on the CPU too.
Cost: 8 to 45 s an epoch on 8 to 1 K80; 18 to 71 min a run on two CPU cores.
    ./run_all.sh cifar10_resnet50
"""

from poc import CIFAR10, Recipe

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    epochs=12,
    cases=[
        # The study's CPU rows, and its reference setting for comparison with the GPUs.
        dict(kind="cpu", batch_per_device=128, lr=0.05, priority=1),
        dict(kind="cpu", batch_per_device=256, lr=0.05),
        dict(kind="cpu", batch_per_device=512, lr=[0.05, 0.4]),
        # The learning rate as it came, whatever the total batch.
        dict(devices=[1, 2, 4, 8], batch_per_device=64, lr=0.05),
        dict(devices=4, batch_per_device=64, lr=0.2),
        dict(devices=8, batch_per_device=64, lr=0.4),
        # 0.05 for every 128 samples of total batch.
        dict(devices=1, batch_per_device=128, lr=0.05, priority=1),
        dict(devices=2, batch_per_device=128, lr=0.1, priority=1),
        dict(devices=4, batch_per_device=128, lr=0.2, priority=1),
        dict(devices=8, batch_per_device=128, lr=0.4, priority=1),
        # 0.05 for every 256.
        dict(devices=1, batch_per_device=256, lr=0.05),
        dict(devices=2, batch_per_device=256, lr=0.1),
        dict(devices=4, batch_per_device=256, lr=0.2),
        dict(devices=8, batch_per_device=256, lr=0.4),
        # How far it goes.
        dict(devices=1, batch_per_device=512, lr=[0.05, 0.4]),
        dict(devices=8, batch_per_device=512, lr=[0.4, 0.8, 3.2]),
    ],
    quick=dict(
        cases=[
            dict(kind=["cpu", "gpu"], batch_per_device=128, lr=0.05),
            dict(devices=8, batch_per_device=128, lr=0.4),
        ],
        priority=1,
        steps=8,
        window=2,
        evaluate=False,
    ),
)
