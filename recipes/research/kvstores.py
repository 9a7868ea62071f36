"""Throughput with every kvstore, and without synchronisation: two workers with one CPU core each, or 2 to 8 GPUs.

After the Keras study, which compared parameter servers, replicated variables and NCCL with training without
synchronisation. 128 samples per device; `--detail` adds which part of the synchronisation is not hidden by computation.
Horovod is an extra (docs/what_runs_where.md); without it its rows are skipped.
Cost: three repeats, about 45 min on two CPU cores, with `--detail` half an hour more; not measured on GPUs yet.
    ./run_all.sh kvstores --detail
"""

from poc import CIFAR10, SSP, DistSync, Horovod, Recipe

CPU = dict(kind="cpu", steps=60, window=5)
TWO_WORKERS = dict(**CPU, cores_per_worker=1, devices=2, workers=2)
GPU = dict(kind="gpu", steps=200, window=20)

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    batch_per_device=128,
    lr=0.05,
    evaluate=False,
    repeats=3,
    cases=[
        dict(**CPU, devices=1, cores_per_worker=1),
        dict(**TWO_WORKERS, kvstore="none"),
        # One process, whose two CPU devices share both cores.
        dict(**CPU, devices=2, cores_per_worker=2, kvstore=["local", "device", "none"]),
        dict(**TWO_WORKERS, kvstore=["dist_sync", "dist_device_sync", "dist_async", SSP(0), SSP(2)]),
        dict(**TWO_WORKERS, kvstore=[DistSync(servers=2), DistSync(gradient_bits=16), DistSync(two_bit=0.5)]),
        dict(**TWO_WORKERS, kvstore=["horovod", Horovod(gradient_bits=16)]),
        dict(**GPU, devices=1),
        dict(**GPU, devices=[2, 4, 8], kvstore=["local", "device", "nccl", "none"]),
        dict(**GPU, devices=[2, 4, 8], workers="per-device", kvstore=["dist_device_sync", "dist_async", "horovod"]),
    ],
    quick=dict(
        model="cifar_resnet20_v2",
        batch_per_device=32,
        steps=8,
        window=2,
        cases=[
            dict(kind="cpu", cores_per_worker=1, devices=2, workers=2, kvstore=["none", "dist_sync"]),
            dict(kind="gpu", devices=2, kvstore=["none", "device"]),
        ],
    ),
)
