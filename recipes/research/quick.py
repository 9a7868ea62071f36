"""A first look: ResNet-20 on CIFAR-10 for two epochs, accuracy and throughput.

Cost: about 3 min on two CPU cores.
    ./run_all.sh quick
"""

from poc import CIFAR10, Recipe

recipe = Recipe(
    model="cifar_resnet20_v2",
    data=CIFAR10(crop=28, jitter=True),
    kind=["cpu", "gpu"],
    batch_per_device=128,
    lr=0.05,
    epochs=2,
    quick=dict(steps=100, window=10),
)
