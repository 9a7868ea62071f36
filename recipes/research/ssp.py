"""Stale-synchronous parallel (SSP): throughput, staleness and accuracy, with and without a straggler.

After the PMLS-Caffe study, which trained with SSP and showed accuracy against steps and time. Two workers with one CPU
core each. Staleness bound 0 is synchronous, None is unbounded.
Cost: about 20 min on two CPU cores.
    ./run_all.sh ssp
"""

from poc import CIFAR10, SSP, Recipe

recipe = Recipe(
    model="cifar_resnet8_v2",
    data=CIFAR10(crop=28, jitter=True),
    kind="cpu",
    devices=2,
    workers=2,
    cores_per_worker=1,
    batch_per_device=64,
    lr=0.05,
    epochs=4,
    kvstore=[SSP(0), SSP(1), SSP(2), SSP(4), SSP(None)],
    straggler=[0.0, 0.3],
    quick=dict(kvstore=[SSP(0), SSP(2)], straggler=0.3, steps=12, window=4, evaluate=False),
)
