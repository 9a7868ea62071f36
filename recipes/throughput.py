"""Samples/s against batch size on one device: ResNet-50 and ResNet-110 on CIFAR-10, three repeats.

Source of the batch sizes: beeva-poc-mxnet, Experiment 1.
    ./run_all.sh throughput
"""

from poc import CIFAR10, Recipe

BOTH = ["cifar_resnet50_v2", "cifar_resnet110_v2"]

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    batch_per_device=[64, 128, 256, 512],
    lr=0.05,  # it does not matter for speed, and a large one might diverge
    evaluate=False,
    repeats=3,
    priority=2,
    cases=[
        dict(kind="cpu", steps=20, window=2),
        dict(kind="cpu", model="cifar_resnet110_v2", batch_per_device=128, steps=20, window=2),
        # As many steps as a fast GPU does in some seconds; a slow one stops after 15.
        dict(kind="gpu", model=BOTH, steps=1000, seconds=15, window=20),
    ],
    quick=dict(cases=[dict(kind="cpu"), dict(kind="gpu", steps=40)], batch_per_device=[64, 128], steps=8, window=2),
)
