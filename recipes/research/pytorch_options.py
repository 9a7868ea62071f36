"""What each option of PyTorch is worth: ResNet-50 (CIFAR) on one fixed batch, three repeats.

Layouts, precisions and compilation; on a GPU also without CUDA graphs. Not measured yet.
    ./run_all.sh pytorch_options
"""

from poc import Recipe, synthetic

PRECISIONS = ["float32", "bfloat16"]
CPU = dict(kind="cpu", steps=24, window=2, dtype=PRECISIONS)

recipe = Recipe(
    model="cifar_resnet50_v2",
    framework="pytorch",
    data=synthetic("cifar", size=28),
    batch_per_device=[128, 512],
    lr=0.01,
    steps=400,  # the same for all options
    evaluate=False,
    repeats=3,
    cases=[
        dict(dtype=PRECISIONS, layout=["NHWC", "NCHW"]),
        dict(dtype=PRECISIONS, graphs=False),
        dict(dtype=PRECISIONS, compile=True),
        dict(dtype="tf32"),
        dict(CPU, layout=["NHWC", "NCHW"]),
        dict(CPU, compile=True),
    ],
)
