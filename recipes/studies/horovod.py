"""Horovod, MXNet's parameter server and no synchronisation (upper bound), on 1 to 8 devices with one worker each.

After the HackSA study, which trained with Horovod. On a CPU: two workers with one core each. Horovod
is an extra (docs/what_runs_where.md); without it its rows are skipped.
Cost: three repeats, about 10 min on two CPU cores (with `--detail` 20), less than a minute per row on GPUs.
    ./run_all.sh horovod --detail
"""

from poc import CIFAR10, Linear, Recipe

recipe = Recipe(
    model="cifar_resnet20_v2",
    data=CIFAR10(crop=28, jitter=True),
    batch_per_device=128,
    lr=Linear(base=0.05, per=128),
    steps=100,
    window=10,
    evaluate=False,
    repeats=3,
    cases=[
        dict(kind="cpu", cores_per_worker=1, devices=1),
        dict(kind="cpu", cores_per_worker=1, devices=2, workers=2, kvstore=["horovod", "dist_sync", "none"]),
        dict(devices=1),
        dict(devices=[2, 4, 8], workers="per-device", kvstore=["horovod", "dist_device_sync", "none"]),
    ],
    quick=dict(
        cases=[
            dict(kind="cpu", cores_per_worker=1, devices=2, workers=2, kvstore=["none", "horovod"]),
            dict(devices=2, workers="per-device", kvstore=["none", "horovod"]),
        ],
        batch_per_device=32,
        lr=0.05,  # as in kvstores: a run of both recipes is done once
        steps=8,
        window=2,
    ),
)
