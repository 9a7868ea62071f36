"""Every network of the suite on this machine's CPU, all cores, one fixed batch: how fast, and how near to the limit.

The networks of the five studies and their relatives. Batches are what a CPU with 8 GiB can hold; larger networks get
smaller ones. The rows that other recipes have too share their takes.
Cost: three takes, about 45 min on two CPU cores.
    ./run_all.sh networks
"""

from poc import Recipe, synthetic

recipe = Recipe(
    model="cifar_resnet20_v2",
    kind="cpu",
    lr=0.01,
    evaluate=False,
    takes=3,
    cases=[
        dict(
            model=[
                "cifar_mlp",
                "cifar_lenet",
                "cifar_alexnet",
                "cifar_inception",
                "cifar_resnet20_v1",
                "cifar_resnet32_v1",
            ],
            data=synthetic("cifar"),
            batch_per_device=128,
            steps=24,
            window=2,
        ),
        dict(
            model=["cifar_resnet20_v2", "cifar_resnet32_v2", "cifar_resnet44_v1", "cifar_resnet44_v2"],
            data=synthetic("cifar"),
            batch_per_device=128,
            steps=24,
            window=2,
        ),
        dict(
            model=["cifar_resnet50_v1", "cifar_resnet50_v2", "cifar_resnet56_v1", "cifar_resnet56_v2"],
            data=synthetic("cifar"),
            batch_per_device=128,
            steps=20,
            window=1,
        ),
        dict(
            model=["cifar_resnet110_v1", "cifar_resnet110_v2", "cifar_resnet164_v1", "cifar_resnet164_v2"],
            data=synthetic("cifar"),
            batch_per_device=64,
            steps=16,
            window=1,
        ),
        dict(
            model=["cifar_vgg16", "cifar_vgg19", "cifar_densenet40_k12"],
            data=synthetic("cifar"),
            batch_per_device=64,
            steps=16,
            window=1,
        ),
        dict(model="cifar_densenet100_k12", data=synthetic("cifar"), batch_per_device=16, steps=16, window=1),
        dict(model="alexnet", data=synthetic("imagenet"), batch_per_device=32, steps=16, window=1),
        dict(
            model=["googlenet", "resnet50_v1", "resnet50_v2", "densenet121"],
            data=synthetic("imagenet"),
            batch_per_device=8,
            steps=16,
            window=1,
        ),
        dict(
            model=["resnet101_v1", "resnet101_v2", "resnet152_v1", "resnet152_v2", "vgg16", "vgg19"],
            data=synthetic("imagenet"),
            batch_per_device=4,
            steps=14,
            window=1,
        ),
        dict(
            model=["inception_v3", "inception_v4"],
            data=synthetic("imagenet", size=299),
            batch_per_device=4,
            steps=14,
            window=1,
        ),
    ],
    quick=dict(cases=[dict(model="cifar_lenet", data=synthetic("cifar"))], batch_per_device=64, steps=12, window=2),
)
