"""Accuracy against the global batch: LeNet (MXNet) and ResNet-8 (PyTorch), 12 epochs of CIFAR-10.

The learning rate grows linearly with the batch. ResNet-8 needs PyTorch: ./make_environment.sh --torch
Cost: on two CPU cores about 3 min per run of LeNet, 10 to 13 min per run of ResNet-8; not measured on GPUs yet.
    ./run_all.sh batch_accuracy
"""

from poc import CIFAR10, Linear, Recipe

recipe = Recipe(
    model="cifar_resnet8_v2",
    kind=["cpu", "gpu"],
    data=CIFAR10(crop=32, pad=4, jitter=False),
    batch_per_device=[128, 256, 512, 1024],
    lr=Linear(base=0.05, per=128),
    epochs=12,
    cases=[
        dict(framework="pytorch", data=CIFAR10(crop=28, pad=0, jitter=False)),
        dict(model="cifar_lenet", framework="mxnet", lr=Linear(base=0.02, per=128)),
    ],
    quick=dict(model="cifar_lenet", cases=[{}], batch_per_device=64, steps=12, window=4, evaluate=False),
)
