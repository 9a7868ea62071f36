"""What each option of PyTorch is worth on a GPU: ResNet-50 (CIFAR) on one fixed batch; `tests/gpu.py` runs it."""

from poc import Recipe, synthetic

recipe = Recipe(
    model="cifar_resnet50_v2",
    framework="pytorch",
    data=synthetic("cifar", size=28),
    batch_per_device=[128, 512],
    lr=0.01,
    # Not a number of seconds, which a compiler would use up before the second window.
    steps=400,
    evaluate=False,
    repeats=3,
    cases=[
        dict(dtype=["float32", "bfloat16"], layout=["NHWC", "NCHW"]),
        dict(dtype=["float32", "bfloat16"], graphs=False),
        dict(dtype=["float32", "bfloat16"], compile=True),
        dict(dtype="tf32"),
    ],
)
