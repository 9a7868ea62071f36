"""What the user writes: one experiment as data."""

from poc.recipe.datasets import CIFAR10, DATA, Data, ImageNet, Synthetic, synthetic
from poc.recipe.exchanges import (
    EXCHANGES,
    NCCL,
    Device,
    DistAsync,
    DistDeviceSync,
    DistSync,
    Exchange,
    Horovod,
    Independent,
    Local,
    Stale,
)
from poc.recipe.optimizers import LARS, OPTIMIZERS, SGD, Muon, Nesterov, Optimizer
from poc.recipe.rates import Fixed, Linear, Rate, SquareRoot, Steps
from poc.recipe.recipe import AUTO, EPOCHS, NODE, PER_DEVICE, Recipe, Setting, Training
from poc.recipe.recipe import load as load

__all__ = [
    "AUTO",
    "CIFAR10",
    "DATA",
    "EPOCHS",
    "EXCHANGES",
    "LARS",
    "NCCL",
    "NODE",
    "OPTIMIZERS",
    "PER_DEVICE",
    "SGD",
    "Data",
    "Device",
    "DistAsync",
    "DistDeviceSync",
    "DistSync",
    "Exchange",
    "Fixed",
    "Horovod",
    "ImageNet",
    "Independent",
    "Linear",
    "Local",
    "Muon",
    "Nesterov",
    "Optimizer",
    "Rate",
    "Recipe",
    "Setting",
    "SquareRoot",
    "Stale",
    "Steps",
    "Synthetic",
    "Training",
    "synthetic",
]
