"""The learning rate of each global batch, found by search: ResNet-50 on CIFAR-10 at 128 to 4,096.

At each global batch a search finds the best of 10 rates from 0.01 to 4 on a validation split, with 43 epochs in place
of the full grid's 120. Then the best one, and the rates of the linear and the square-root rule, are trained on
all images and tested.
Where the machine has fewer GPUs than a batch asks for, one GPU emulates them. On a CPU: `--set kind=cpu`.
    ./run_all.sh learning_rate_search
"""

from poc import CIFAR10, Recipe, Search

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    epochs=12,
    kind="gpu",
    emulated=True,
    priority=4,
    lr=Search(low=0.01, high=4.0),
    cases=[
        dict(devices=[1, 2, 4, 8], batch_per_device=128),
        dict(devices=8, batch_per_device=512),
    ],
    quick=dict(cases=[dict(devices=8, batch_per_device=128)], steps=8, window=2, evaluate=False),
)
