"""The Keras study: eight CIFAR-10 models, Inception-v3 and ResNet-50 at 32, kvstores, layouts, batch sizes.

Its names: parameter server on the CPU is the kvstore `local`, on the GPU `device`; NCCL is `nccl`, independent replicas
are `none`. Images are synthetic, one fixed batch in device memory, as in tf_cnn_benchmarks. On a CPU one setting per
model.
Cost: three repeats, about 16 min on two CPU cores, about a minute per row on GPUs.
    ./run_all.sh keras_multi_gpu
"""

from poc import Recipe, synthetic

INCEPTION = dict(model="inception_v3", data=synthetic("imagenet", size=299))
RESNET = dict(model="resnet50_v1", data=synthetic("imagenet"))

recipe = Recipe(
    model="cifar_resnet20_v1",
    data=synthetic("cifar"),
    lr=0.01,
    evaluate=False,
    repeats=3,
    cases=[
        dict(
            model=[
                *("cifar_alexnet", "cifar_resnet20_v1", "cifar_resnet32_v1", "cifar_resnet44_v1", "cifar_resnet56_v1"),
                *("cifar_resnet110_v1", "cifar_densenet40_k12", "cifar_densenet100_k12"),
            ],
            devices=[1, 2],
            batch_per_device=32,
            kvstore=["local", "nccl"],
            steps=200,
            window=20,
        ),
        *(
            dict(
                **network,
                devices=[1, 2, 4, 6],
                batch_per_device=32,
                kvstore=["local", "device", "none"],
                steps=100,
                window=10,
            )
            for network in (INCEPTION, RESNET)
        ),
        dict(**RESNET, framework="pytorch", batch_per_device=32, layout=["NCHW", "NHWC"], steps=100, window=10),
        dict(model="cifar_resnet20_v1", devices=[1, 2, 4, 6], batch_per_device=[32, 512], steps=100, window=10),
        dict(model="cifar_resnet20_v1", devices=1, batch_per_device=4096, steps=100, window=10),
        # At so large a batch 12 epochs have fewer than 100 steps.
        dict(model="cifar_resnet20_v1", devices=[2, 4, 6], batch_per_device=4096, epochs=12, window=10),
        dict(
            model=["cifar_alexnet", "cifar_resnet20_v1", "cifar_resnet32_v1", "cifar_resnet44_v1"],
            kind="cpu",
            batch_per_device=128,
            steps=24,
            window=2,
        ),
        dict(model="cifar_resnet56_v1", kind="cpu", batch_per_device=128, steps=20, window=1),
        dict(model=["cifar_resnet110_v1", "cifar_densenet40_k12"], kind="cpu", batch_per_device=64, steps=16, window=1),
        dict(model="cifar_densenet100_k12", kind="cpu", batch_per_device=16, steps=16, window=1),
        dict(**INCEPTION, kind="cpu", batch_per_device=4, steps=14, window=1),
        dict(**RESNET, kind="cpu", batch_per_device=8, steps=16, window=1),
    ],
    quick=dict(cases=[dict(model="cifar_alexnet", kind=["cpu", "gpu"])], batch_per_device=32, steps=12, window=2),
)
