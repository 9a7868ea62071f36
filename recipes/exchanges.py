"""Every way to exchange gradients between two workers, each with one CPU core, beside none at all.

After the Keras study, which compared parameter servers, replicated variables and NCCL with independent training.
Throughput only: 128 samples a worker, and with `--detail` what of the exchange is exposed.
Horovod is an extra (./make_environment.sh --horovod); without it its rows are skipped.
Cost: three takes, about 45 min on two CPU cores, and with `--detail` half an hour more.
    ./run_all.sh exchanges --detail
"""

from poc import CIFAR10, DistSync, Horovod, Recipe, Stale

recipe = Recipe(
    model="cifar_resnet50_v2",
    data=CIFAR10(crop=28, jitter=True),
    kind="cpu",
    cores_per_worker=1,
    batch_per_device=128,
    lr=0.05,
    steps=60,
    window=5,
    evaluate=False,
    takes=3,
    cases=[
        dict(devices=1),
        dict(devices=2, workers=2, exchange="independent"),
        # Inside one process, whose two CPU devices share both cores.
        dict(devices=2, cores_per_worker=2, exchange=["local", "device", "independent"]),
        dict(devices=2, workers=2, exchange=["dist_sync", "dist_device_sync", "dist_async", Stale(0), Stale(2)]),
        dict(devices=2, workers=2, exchange=[DistSync(servers=2), DistSync(gradient_bits=16), DistSync(two_bit=0.5)]),
        dict(devices=2, workers=2, exchange=["horovod", Horovod(gradient_bits=16)]),
    ],
    quick=dict(
        model="cifar_resnet20_v2",
        batch_per_device=32,
        steps=8,
        window=2,
        cases=[dict(devices=2, workers=2, exchange=["independent", "dist_sync"])],
    ),
)
