"""Speed and accuracy of ResNet-50 in each precision against float32, three epochs of CIFAR-10.

Also the MFU of a few models in each precision, on one fixed batch, three repeats.
Cost: about 25 min on two CPU cores; not measured on GPUs yet.
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
