"""ResNet-50 on CIFAR-10: accuracy and throughput on 1 to 8 GPUs, learning rate scaled linearly with the global batch.

Change `devices`, `batch_per_device` or `lr` and run it again: the learning rate follows the global batch by the rule.
The cases below the first two are the other rows of the main study (beeva-poc-mxnet, Experiment 1).
    ./run_all.sh cifar10_resnet50
"""

from poc import CIFAR10, Linear, Recipe

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    epochs=12,
    batch_per_device=128,
    # 0.05 per 128 samples of global batch (Goyal et al. 2017): 0.05 on one device, 0.4 on eight.
    lr=Linear(base=0.05, per=128),
    priority=1,
    cases=[
        dict(kind="cpu", devices=1),
        dict(kind="gpu", devices=[1, 2, 4, 8]),
        # The study's rows with 64 per GPU: the same learning rate on all, and the rule.
        dict(devices=[1, 2, 4, 8], batch_per_device=64, lr=0.05, priority=5),
        dict(devices=4, batch_per_device=64, lr=0.2, priority=5),
        dict(devices=8, batch_per_device=64, lr=0.4, priority=5),
        # With 256 per GPU: 0.05 per 256 samples.
        dict(devices=[1, 2, 4, 8], batch_per_device=256, lr=Linear(base=0.05, per=256), priority=5),
        # With 512 per GPU.
        dict(devices=1, batch_per_device=512, lr=[0.05, 0.4], priority=5),
        dict(devices=8, batch_per_device=512, lr=[0.4, 0.8, 3.2], priority=5),
    ],
    quick=dict(
        cases=[dict(kind="cpu", devices=1), dict(kind="gpu", devices=[1, 8])],
        steps=8,
        window=2,
        evaluate=False,
    ),
)
