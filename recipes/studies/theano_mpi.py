"""The Theano-MPI study: its models and batches, GoogLeNet, AlexNet, VGG-16 and ResNet-50 on 1 to 8 devices.

It measured seconds per 5,120 images of ImageNet, with communication and waiting separately; `--detail` measures these
here. Images are synthetic, one fixed batch in device memory: the study left out loading, too. On a CPU the same models
at smaller batches.
Cost: three repeats, about 5 min on two CPU cores (with `--detail` 13), about a minute per row on GPUs.
    ./run_all.sh theano_mpi --detail
"""

from poc import Recipe, synthetic

recipe = Recipe(
    model="googlenet",
    data=synthetic("imagenet"),
    lr=0.01,
    evaluate=False,
    repeats=3,
    cases=[
        dict(model="googlenet", devices=[1, 2, 4, 8], batch_per_device=32, steps=200, window=20),
        dict(model="alexnet", devices=[1, 2, 4, 8], batch_per_device=128, steps=200, window=20),
        dict(model="vgg16", devices=[1, 2, 4, 8], batch_per_device=[16, 32], steps=200, window=20),
        dict(model="resnet50_v1", devices=[1, 2, 4, 8], batch_per_device=64, steps=200, window=20),
        dict(model=["googlenet", "resnet50_v1"], kind="cpu", batch_per_device=8, steps=16, window=1),
        dict(model="alexnet", kind="cpu", batch_per_device=32, steps=16, window=1),
        dict(model="vgg16", kind="cpu", batch_per_device=4, steps=14, window=1),
    ],
    quick=dict(cases=[dict(model="googlenet", kind=["cpu", "gpu"], batch_per_device=4)], steps=7, window=1),
)
