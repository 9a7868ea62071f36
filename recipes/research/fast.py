"""Time and cost to accuracy 0.90 and 0.92 on CIFAR-10's test images.

Model and training recipe after Jordan 2024 ("94% on CIFAR-10 in 3.29 Seconds on a Single GPU"): whitening first
layer, Muon with unit-norm convolutions, label smoothing, horizontal flip every other epoch. A run with a target ends at
the first evaluation that reaches it. The longer run takes about as long as the study's 12 epochs of ResNet-50 in
float32, the shorter one about half of that. `fast_search` did the tuning. The runs at batch 2,000 have the length and
the batch of the paper's own recipe for 94%, as a comparison.
PyTorch is an extra on CPUs: ./make_environment.sh --torch
Cost: on two CPU cores with AVX-512 bf16 (Zen 5), in bfloat16, 17 and 10 min per run, and about 14 min for the run with
MXNet: 95 min in all. The runs at batch 2,000 are not measured yet, and nothing is on GPUs.
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
        dict(epochs=8, batch_per_device=2000),
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
