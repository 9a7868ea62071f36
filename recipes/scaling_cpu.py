"""One and two workers, each with one CPU core: both speed-ups of ResNet-50, at the same batch a worker.

Modelled on the Horovod study, whose two speed-ups contradicted each other. Weak scaling: every worker keeps 64 samples.
Cost: three repeats, about 25 min on two CPU cores.
    ./run_all.sh scaling_cpu
"""

from poc import CIFAR10, Linear, Recipe

recipe = Recipe(
    model="cifar_resnet50_v2",
    priority=3,
    data=CIFAR10(crop=28, jitter=True),
    kind="cpu",
    devices=[1, 2],
    workers="per-device",
    cores_per_worker=1,
    batch_per_device=64,
    lr=Linear(base=0.05, per=128),
    epochs=1,
    repeats=3,
    kvstore="dist_sync",
    quick=dict(model="cifar_resnet20_v2", steps=8, window=2, evaluate=False),
)
