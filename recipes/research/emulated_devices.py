"""ResNet-50 on four devices at a global batch of 512, linear scaling rule; fewer GPUs emulate the four.

Emulated devices: one device computes the micro-batches of all and accumulates their gradients. The accuracy is that of
four real devices, the throughput is not.
Source: beeva-poc-mxnet, row "128x4=512 (lr=0.2)": accuracy 0.810 on four K80, 0.734 on four P100.
Cost: about 55 min on two CPU cores.
    ./run_all.sh emulated_devices
"""

from poc import CIFAR10, Linear, Recipe

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    epochs=12,
    devices=4,
    batch_per_device=128,
    lr=Linear(base=0.05, per=128),
    kind=["cpu", "gpu"],
    emulated=True,
    quick=dict(model="cifar_resnet20_v2", batch_per_device=32, steps=8, window=2, evaluate=False),
)
