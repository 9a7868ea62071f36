"""bfloat16 against float32 on a CPU that has it: speed and accuracy of ResNet-50, three epochs of CIFAR-10.

Also three takes of a few networks on one fixed batch in both, for the share of what the CPU can do in each.
Cost: about 25 min on two CPU cores.
    ./run_all.sh precision
"""

from poc import CIFAR10, Recipe, synthetic

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    kind="cpu",
    batch_per_device=128,
    dtype=["float32", "bfloat16"],
    lr=0.05,
    cases=[
        dict(epochs=3),
        dict(
            model=["cifar_resnet110_v2", "cifar_vgg16"],
            data=synthetic("cifar"),
            batch_per_device=64,
            lr=0.01,
            steps=16,
            window=1,
            evaluate=False,
            takes=3,
        ),
        dict(
            model="resnet50_v1",
            data=synthetic("imagenet"),
            batch_per_device=8,
            lr=0.01,
            steps=16,
            window=1,
            evaluate=False,
            takes=3,
        ),
    ],
    quick=dict(cases=[dict(model="cifar_resnet8_v2", data=synthetic("cifar"))], steps=6, window=1, evaluate=False),
)
