"""The PMLS-Caffe study: AlexNet and GoogLeNet on nodes with one GPU each, stale-synchronous parallel (SSP).

Each worker stands for one of its nodes; docs/hosts.md describes runs on several hosts. Images are synthetic, one fixed
batch in device memory. On a CPU: two workers with one core each.
Cost: three repeats, about 8 min on two CPU cores, about a minute per row on GPUs.
    ./run_all.sh pmls_caffe
"""

from poc import SSP, Recipe, synthetic

recipe = Recipe(
    model="alexnet",
    data=synthetic("imagenet"),
    workers="per-device",
    kvstore=[SSP(0), SSP(1)],
    lr=0.01,
    evaluate=False,
    repeats=3,
    cases=[
        dict(model="alexnet", devices=[1, 2, 4, 8], batch_per_device=256, steps=60, window=6),
        dict(model="googlenet", devices=[1, 8], batch_per_device=32, steps=100, window=10),
        # At 0.01 AlexNet, which has no batch norm, diverges with 8 images per worker.
        dict(
            model=["alexnet", "googlenet"],
            kind="cpu",
            devices=[1, 2],
            cores_per_worker=1,
            batch_per_device=8,
            lr=0.001,
            steps=14,
            window=1,
        ),
    ],
    quick=dict(cases=[dict(model="googlenet", kind=["cpu", "gpu"])], batch_per_device=4, steps=7, window=1),
)
