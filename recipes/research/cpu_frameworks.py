"""MXNet and PyTorch on a CPU: ResNet-50 at 128 on one core, on all cores, and with two workers of one core each.

On all cores also in bfloat16, where the CPU has it. Five repeats of more than a minute each; the two frameworks run one
right after the other, every second time in reverse order. With two workers MXNet sums gradients on a parameter server,
PyTorch over Gloo.
PyTorch is an extra on CPUs: ./make_environment.sh --torch
Cost: about 50 min on two CPU cores with AVX-512 bf16, 40 min on others.
    ./run_all.sh cpu_frameworks
"""

from poc import CIFAR10, Recipe

BOTH = ["mxnet", "pytorch"]
TWO = dict(devices=2, cores_per_worker=1)

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    kind="cpu",
    lr=0.05,
    steps=10_000,
    seconds=65,
    window=4,
    evaluate=False,
    repeats=5,
    cases=[
        dict(framework=BOTH, cores_per_worker=1),
        dict(framework=BOTH, dtype=["float32", "bfloat16"]),
        dict(TWO, framework="mxnet", workers=2, kvstore="dist_sync"),
        dict(TWO, framework="pytorch"),  # a process per device in any case
    ],
    quick=dict(model="cifar_resnet20_v2", batch_per_device=32, steps=8, window=2, seconds=None),
)
