"""The CPU rows of the main study (beeva-poc-mxnet, Experiments 1, 3 and 4): ResNet-50 at 256 and 512.

Cost: 18 to 75 min per run on two CPU cores.
    ./run_all.sh beeva_cpu
"""

from poc import CIFAR10, Recipe

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    epochs=12,
    kind="cpu",
    cases=[
        dict(batch_per_device=256, lr=0.05),
        dict(batch_per_device=512, lr=0.4),
    ],
    quick=dict(cases=[dict(batch_per_device=256, lr=0.05)], steps=8, window=2, evaluate=False),
)
