"""Throughput of ResNet-50 and ResNet-110 against the batch size, on one device; no accuracy.

Source: beeva-poc-mxnet, Experiment 1, batches 64 to 512.
Cost of three repeats of the eight runs: about 30 min on one K80, by its published samples/s; about 25 min on two CPU
cores.
    ./run_all.sh throughput
"""

from poc import CIFAR10, Linear, Recipe

recipe = Recipe(
    model=["cifar_resnet50_v2", "cifar_resnet110_v2"],
    priority=2,
    data=CIFAR10(crop=28, jitter=True),
    # A second or more on a fast card, too.
    cases=[dict(kind="cpu", steps=40, window=5), dict(kind="gpu", steps=200, window=20)],
    batch_per_device=[64, 128, 256, 512],
    lr=Linear(base=0.05, per=128),
    evaluate=False,
    repeats=3,
    quick=dict(model="cifar_resnet50_v2", batch_per_device=[64, 128], lr=0.05, steps=8, window=2),
)
