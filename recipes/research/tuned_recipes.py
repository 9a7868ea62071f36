"""Training recipes that keep the accuracy as the global batch grows: ResNet-50, 12 epochs of CIFAR-10, three seeds.

The best found at each global batch in `tuned_recipes_search`, at 128 and 1,024 by little more than the noise of one
seed; `cifar10_resnet50` and `learning_rate` have the baseline recipe at these batches. On emulated devices if there are
too few real ones.
PyTorch is an extra on CPUs: ./make_environment.sh --torch
Cost: 9 runs of 25 to 36 min each on one core of Zen 5, in bfloat16
(POC_THREADS=1; two at a time on two cores, each with a --results folder of its own).
    ./run_all.sh tuned_recipes
"""

from poc import CIFAR10, Fixed, Muon, Recipe

LINEAR = dict(warmup_epochs=0.5, decay="linear")
UNIT = dict(momentum=0.85, weight_decay=0, unit_weights=True)

recipe = Recipe(
    model="cifar_resnet50_v2",
    priority=4,
    epochs=12,
    kind=["cpu", "gpu"],
    emulated=True,
    dtype="auto",
    gradient_noise=10,
    data=CIFAR10(crop=32, pad=2, jitter=False, alternate=True),
    label_smoothing=0.1,
    zero_init_gamma=True,
    seeds=3,
    cases=[
        dict(framework="pytorch", optimizer=Muon(lr=0.03, **UNIT), lr=Fixed(base=0.3, **LINEAR)),
        dict(devices=8, optimizer=Muon(lr=0.05, **UNIT), lr=Fixed(base=0.5, **LINEAR)),
        dict(
            devices=8,
            batch_per_device=512,
            framework="pytorch",
            optimizer=Muon(lr=0.1, momentum=0.85),
            lr=Fixed(base=1.0, **LINEAR),
        ),
    ],
    quick=dict(
        model="cifar_resnet8_v2",
        dtype="float32",
        devices=8,
        batch_per_device=128,
        steps=15,
        window=3,
        gradient_noise=None,
        seeds=1,
        cases=[dict(optimizer=Muon(lr=0.05), lr=Fixed(base=0.5, decay="linear"))],
    ),
)
