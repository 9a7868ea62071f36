"""Weak scaling: samples/s of ResNet-50 on 1, 2, 4 and 8 devices at a fixed batch per device, three repeats.

On a CPU every device is a worker process with one core, and gradients go through a parameter server (`dist_sync`).
    ./run_all.sh scaling
"""

from poc import CIFAR10, Recipe

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    devices=[1, 2, 4, 8],
    lr=0.05,  # it does not matter for speed, and a large one might diverge
    evaluate=False,
    repeats=3,
    priority=3,
    cases=[
        dict(
            kind="cpu",
            workers="per-device",
            cores_per_worker=1,
            kvstore="dist_sync",
            batch_per_device=128,
            steps=20,
            window=2,
        ),
        dict(kind="gpu", kvstore="device", batch_per_device=[128, 256, 512], steps=1000, seconds=15, window=20),
    ],
    quick=dict(
        devices=[1, 2, 4, 8],
        batch_per_device=128,
        steps=8,
        window=2,
    ),
)
