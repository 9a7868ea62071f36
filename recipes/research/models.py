"""Throughput and MFU of the models of the five studies and related ones on one device, on one fixed batch.

On a CPU the batch is what 8 GiB of memory can hold, so larger models
have smaller ones. Runs that other recipes have, too, are measured once.
Cost: three repeats, about 45 min on two CPU cores; not measured on GPUs yet.
    ./run_all.sh models
"""

from poc import Recipe, synthetic

CIFAR = synthetic("cifar")
IMAGENET = synthetic("imagenet")
SMALL = ["cifar_mlp", "cifar_lenet", "cifar_alexnet", "cifar_inception", "cifar_resnet20_v1", "cifar_resnet32_v1"]
RESNET_32_44 = ["cifar_resnet20_v2", "cifar_resnet32_v2", "cifar_resnet44_v1", "cifar_resnet44_v2"]
RESNET_50_56 = ["cifar_resnet50_v1", "cifar_resnet50_v2", "cifar_resnet56_v1", "cifar_resnet56_v2"]
RESNET_110_164 = ["cifar_resnet110_v1", "cifar_resnet110_v2", "cifar_resnet164_v1", "cifar_resnet164_v2"]
WIDE = ["cifar_vgg16", "cifar_vgg19", "cifar_densenet40_k12"]
MEDIUM = ["googlenet", "resnet50_v1", "resnet50_v2", "densenet121"]
LARGE = ["resnet101_v1", "resnet101_v2", "resnet152_v1", "resnet152_v2", "vgg16", "vgg19"]
INCEPTION = dict(model=["inception_v3", "inception_v4"], data=synthetic("imagenet", size=299))
GPU = dict(kind="gpu", steps=60, window=5)

recipe = Recipe(
    model="cifar_resnet20_v2",
    kind="cpu",
    lr=0.01,
    evaluate=False,
    repeats=3,
    cases=[
        dict(model=[*SMALL, *RESNET_32_44], data=CIFAR, batch_per_device=128, steps=24, window=2),
        dict(model=RESNET_50_56, data=CIFAR, batch_per_device=128, steps=20, window=1),
        dict(model=[*RESNET_110_164, *WIDE], data=CIFAR, batch_per_device=64, steps=16, window=1),
        dict(model="cifar_densenet100_k12", data=CIFAR, batch_per_device=16, steps=16, window=1),
        dict(model="alexnet", data=IMAGENET, batch_per_device=32, steps=16, window=1),
        dict(model=MEDIUM, data=IMAGENET, batch_per_device=8, steps=16, window=1),
        dict(model=LARGE, data=IMAGENET, batch_per_device=4, steps=14, window=1),
        dict(**INCEPTION, batch_per_device=4, steps=14, window=1),
        dict(
            **GPU,
            model=[*SMALL, *RESNET_32_44, *RESNET_50_56, *RESNET_110_164, *WIDE, "cifar_densenet100_k12"],
            data=CIFAR,
            batch_per_device=128,
        ),
        dict(**GPU, model=["alexnet", *MEDIUM, *LARGE], data=IMAGENET, batch_per_device=32),
        dict(**GPU, **INCEPTION, batch_per_device=32),
    ],
    quick=dict(
        cases=[dict(model="cifar_lenet", kind=["cpu", "gpu"], data=CIFAR)], batch_per_device=64, steps=12, window=2
    ),
)
