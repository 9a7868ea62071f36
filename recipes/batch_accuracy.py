"""What a larger total batch costs in accuracy, twelve epochs of CIFAR-10: two small networks, one with each engine.

The rate grows with the batch. `poc advise batch_accuracy` says beforehand, for the first network that runs here, up to
which batch that goes well. The rows of ResNet-8 need PyTorch (./make_environment.sh --torch).
Cost: about 3 min a run of LeNet on two CPU cores, 10 to 13 of ResNet-8; on GPUs not measured yet.
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
