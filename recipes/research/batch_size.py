"""Throughput against batch size, doubled until it no longer fits in memory: ResNet-20 on one device.

On a CPU, batches that do not fit in memory by an estimate are skipped. On a GPU every batch is tried, and those between
two powers of two down to the largest that fits. Synthetic images in CIFAR-10's shape pass through the whole input
pipeline.
Cost: three repeats, about 15 min on two CPU cores.
    ./run_all.sh batch_size
"""

from poc import Recipe, synthetic

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]

recipe = Recipe(
    model="cifar_resnet20_v2",
    data=synthetic("cifar", fixed=False),
    cases=[
        dict(kind="cpu", batch_per_device=BATCHES),
        dict(kind="gpu", batch_per_device=[*BATCHES, "largest"]),
    ],
    lr=0.01,
    seconds=15,
    window=3,
    evaluate=False,
    repeats=3,
    quick=dict(batch_per_device=[16, 16384], seconds=2, cases=[dict(kind="cpu"), dict(kind="gpu")]),
)
