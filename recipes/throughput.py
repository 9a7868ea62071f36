"""Throughput of ResNet-50 and ResNet-110 against the batch size, on one device; no accuracy.

Source: beeva-poc-mxnet, Experiment 1, batches 64 to 512.
Cost: 3 to 40 s a run on one K80; about 25 min for three takes of the eight runs on two CPU cores.
    ./run_all.sh throughput
"""

from poc import CIFAR10, Linear, Recipe

recipe = Recipe(
    model=["cifar_resnet50_v2", "cifar_resnet110_v2"],
    rank=2,
    data=CIFAR10(crop=28, jitter=True),
    kind=["cpu", "gpu"],
    batch_per_device=[64, 128, 256, 512],
    lr=Linear(base=0.05, per=128),
    steps=40,
    window=5,
    evaluate=False,
    takes=3,
    quick=dict(model="cifar_resnet50_v2", batch_per_device=[64, 128], lr=0.05, steps=8, window=2),
)
