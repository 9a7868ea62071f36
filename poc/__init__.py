"""How fast data-parallel training goes on this machine, how it scales, how that compares with what was published."""

import os

# An image file may claim any size, and decoding it takes the memory. OpenCV reads this when it is first imported.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(1 << 27))

# What a recipe may name.
from poc.recipe import (
    CIFAR10,
    LARS,
    NCCL,
    SGD,
    Device,
    DistAsync,
    DistDeviceSync,
    DistSync,
    Fixed,
    Horovod,
    ImageNet,
    Independent,
    Linear,
    Local,
    Muon,
    Nesterov,
    Recipe,
    SquareRoot,
    Stale,
    Steps,
    Synthetic,
    synthetic,
)
