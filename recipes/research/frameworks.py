"""MXNet and PyTorch on one device: throughput against batch size, in every precision that the device supports.

Each combination runs with one framework right after the other, three times, the second time in reverse order: a ratio
compares neighbouring runs, and neither framework always comes first.
PyTorch is an extra on CPUs: ./make_environment.sh --torch
Cost: about 35 min on two CPU cores; not measured on GPUs yet.
    ./run_all.sh frameworks
"""

from poc import CIFAR10, Recipe

recipe = Recipe(
    model=["cifar_resnet50_v2", "cifar_resnet110_v2"],
    data=CIFAR10(crop=28, jitter=True),
    batch_per_device=[64, 128, 256, 512],
    cases=[
        dict(kind="cpu", dtype=["float32", "bfloat16"], steps=14, window=2),
        dict(kind="gpu", dtype=["float32", "tf32", "bfloat16", "float16"], steps=200, window=20),
    ],
    lr=0.05,
    evaluate=False,
    repeats=3,
    framework=["mxnet", "pytorch"],
    quick=dict(model="cifar_resnet20_v2", batch_per_device=32, dtype="float32", steps=8, window=2),
)
