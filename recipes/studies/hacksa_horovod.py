"""The HackSA study: VGG-19, Inception-v4 and a ResNet with Horovod, one worker per device, on 1, 2 and 4 devices.

Its efficiencies contradict each other: above 0.94 by throughput, below 0.4 by wall time. VGG-19 and ResNet-50 are the
CIFAR-10 versions, Inception-v4 has images of 299 pixels. On a CPU: two workers with one core each.
Horovod is an extra (docs/what_runs_where.md); without it its rows are skipped.
Cost: three repeats, about 5 min on two CPU cores (with `--detail` 15), about a minute per row on GPUs.
    ./run_all.sh hacksa_horovod --detail
"""

from poc import Recipe, synthetic

CIFAR = ["cifar_vgg19", "cifar_resnet50_v2"]
INCEPTION = dict(model="inception_v4", data=synthetic("imagenet", size=299))

recipe = Recipe(
    model="cifar_vgg19",
    data=synthetic("cifar"),
    workers="per-device",
    kvstore="horovod",
    lr=0.01,
    evaluate=False,
    repeats=3,
    cases=[
        dict(model=CIFAR, devices=[1, 2, 4], batch_per_device=128, steps=200, window=20),
        dict(**INCEPTION, devices=[1, 4], batch_per_device=32, steps=100, window=10),
        dict(model=CIFAR, kind="cpu", devices=[1, 2], cores_per_worker=1, batch_per_device=32, steps=20, window=2),
        dict(**INCEPTION, kind="cpu", batch_per_device=4, steps=14, window=1),
    ],
    quick=dict(
        cases=[
            dict(kind="cpu", devices=[1, 2], cores_per_worker=1, batch_per_device=8),
            dict(devices=[1, 2], batch_per_device=8),
        ],
        steps=7,
        window=1,
    ),
)
