"""Which learning rate keeps the accuracy at a larger global batch: ResNet-50 on CIFAR-10 at 256 to 4,096.

At 256, 512 and 2,048 the learning rate of the linear rule; at 1,024 and 4,096 others, too. Where the machine has fewer
GPUs than a row asks for, one GPU emulates them: the accuracy is that of real devices, the speed is not. On a CPU:
`--set kind=cpu` (11 runs of 17 minutes on two cores with AVX-512, of 50 to 70 on others).
    ./run_all.sh learning_rate
"""

from poc import CIFAR10, Linear, Recipe

LINEAR = Linear(base=0.05, per=128)

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    epochs=12,
    kind="gpu",
    batch_per_device=128,
    emulated=True,
    priority=4,
    cases=[
        dict(devices=[2, 4, 8], lr=LINEAR),
        dict(devices=8, batch_per_device=256, lr=LINEAR),
        dict(devices=8, lr=[0.1, 0.2, 0.8]),
        dict(devices=8, batch_per_device=512, lr=[0.2, 0.4, 0.8, 1.6]),
    ],
    quick=dict(cases=[dict(devices=8, lr=0.4)], steps=8, window=2, evaluate=False),
)
