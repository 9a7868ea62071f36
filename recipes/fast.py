"""Accuracy for time: how long and how much it takes to 0.90 and to 0.92 on CIFAR-10's test images.

A network and a way after Jordan 2024 ("94% on CIFAR-10 in 3.29 Seconds on a Single GPU"): a first layer that whitens,
Muon with weights of constant size, label smoothing, images mirrored every other epoch. A run ends at the first
evaluation that reaches its target. Its length is set by time: the longer one takes about as long as the study's twelve
epochs of ResNet-50 in float32, the shorter one about half of that. `fast_search` is what it was chosen by.
PyTorch is an extra on CPUs: ./make_environment.sh --torch
Cost: 17 and 10 min a run on two CPU cores with AVX-512 bf16 (Zen 5), in bfloat16, and about 14 min the one of MXNet: 95
min in all; on GPUs not measured.
    ./run_all.sh fast
"""

from poc import CIFAR10, Linear, Muon, Recipe

SHORT = dict(epochs=10, target_accuracy=0.90)

recipe = Recipe(
    model="cifar_airbench94",
    kind=["cpu", "gpu"],
    framework="pytorch",
    dtype="auto",
    data=CIFAR10(crop=32, pad=2, jitter=False, alternate=True),
    batch_per_device=1000,
    optimizer=Muon(lr=0.24, momentum=0.6, weight_decay=0, unit_weights=True),
    lr=Linear(base=0.5, per=1000, decay="linear"),
    label_smoothing=0.2,
    seeds=3,
    cases=[
        dict(epochs=18, target_accuracy=0.92),
        SHORT,
        dict(SHORT, framework="mxnet", seeds=1),
    ],
    window=10,
    quick=dict(
        framework=["pytorch", "mxnet"],
        model="cifar_airbench94_slim",
        batch_per_device=100,
        seeds=1,
        steps=8,
        window=2,
        evaluate=False,
        cases=[{}],
    ),
)
