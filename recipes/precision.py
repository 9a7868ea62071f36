"""Each precision that a device has against float32: speed and accuracy of ResNet-50, three epochs of CIFAR-10.

Also three repeats of a few networks on one fixed batch in each, for the share of what the device can do in it.
Cost: about 25 min on two CPU cores; on GPUs not measured yet.
    ./run_all.sh precision
"""

from poc import CIFAR10, Recipe, synthetic

CPU = dict(kind="cpu", dtype=["float32", "bfloat16"])
GPU = dict(kind="gpu", dtype=["float32", "tf32", "bfloat16", "float16"])
TIMED = dict(lr=0.01, steps=16, window=1, evaluate=False, repeats=3)
RESNET = dict(model="resnet50_v1", data=synthetic("imagenet"))

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    batch_per_device=128,
    lr=0.05,
    cases=[
        dict(**CPU, epochs=3),
        dict(**GPU, epochs=3),
        dict(
            **CPU,
            **TIMED,
            model=["cifar_resnet110_v2", "cifar_vgg16"],
            data=synthetic("cifar"),
            batch_per_device=64,
        ),
        dict(**CPU, **TIMED, **RESNET, batch_per_device=8),
        dict(**GPU, **{**TIMED, "steps": 100, "window": 10}, **RESNET, batch_per_device=32),
    ],
    quick=dict(
        cases=[dict(**CPU, model="cifar_resnet8_v2"), dict(**GPU, model="cifar_resnet8_v2")],
        data=synthetic("cifar"),
        steps=6,
        window=1,
        evaluate=False,
    ),
)
