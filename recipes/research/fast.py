"""Minutes to an accuracy of CIFAR-10: a shorter training against one of the published length.

Both train the model of Jordan 2024 ("94% on CIFAR-10 in 3.29 Seconds on a Single GPU"): whitening first layer, Muon
with unit-norm convolutions, label smoothing, horizontal flip every other epoch. The longer one has the 8 epochs and the
global batch of 2,000 of its `airbench94_muon.py`, which appeared after the paper. It differs from that (commit 096d14d
of github.com/KellerJordan/cifar10-airbench):
- Muon does 5 Newton-Schulz iterations, the original 3.
- The head and the shifts have Muon's momentum of 0.6 and no weight decay, in the original 0.85 and 2e-6 x batch.
- Images are padded with grey, in the original by reflection.
- Accuracies are without test-time augmentation, in the original with flips and shifts.
`Airbench` in poc/frameworks/mxnet/networks.py lists what else differs.

The shorter one has 5 epochs at 1,000, with crops of 30 x 30 pixels, which take less time than whole images and are as
accurate within the noise of one seed (`fast_search`). The page time_to_accuracy.md compares their times to the
accuracies that both reach.
PyTorch is an extra on CPUs: ./make_environment.sh --torch
Cost: on two CPU cores with AVX-512 bf16 (Zen 5), in bfloat16, 35 min with PyTorch and 52 min with MXNet. Nothing is
measured on GPUs.
    ./run_all.sh fast
"""

from poc import CIFAR10, Linear, Muon, Recipe

IMAGES = dict(jitter=False, alternate=True)
LONGER = dict(epochs=8, batch_per_device=2000, data=CIFAR10(crop=32, pad=2, **IMAGES))
SHORTER = dict(epochs=5, batch_per_device=1000, data=CIFAR10(crop=30, pad=0, **IMAGES))

recipe = Recipe(
    model="cifar_airbench94",
    kind=["cpu", "gpu"],
    framework="pytorch",
    dtype="auto",
    optimizer=Muon(lr=0.24, momentum=0.6, weight_decay=0, unit_weights=True),
    lr=Linear(base=0.5, per=1000, decay="linear"),
    label_smoothing=0.2,
    seeds=3,
    cases=[LONGER, SHORTER, dict(LONGER, framework="mxnet"), dict(SHORTER, framework="mxnet")],
    window=10,
    quick=dict(
        framework=["pytorch", "mxnet"],
        model="cifar_airbench94_slim",
        data=LONGER["data"],
        batch_per_device=100,
        seeds=1,
        steps=8,
        window=2,
        evaluate=False,
        cases=[{}],
    ),
)
