"""What the user writes: one experiment as data."""

from poc.recipe.datasets import CIFAR10, DATA, Data, ImageNet, Synthetic, synthetic
from poc.recipe.exchanges import NCCL, Device, DistAsync, DistDeviceSync, DistSync, Horovod, Independent, Local, Stale
from poc.recipe.optimizers import LARS, OPTIMIZERS, SGD, Muon, Nesterov, Optimizer
from poc.recipe.rates import Fixed, Linear, Rate, SquareRoot, Steps
from poc.recipe.recipe import AUTO, EPOCHS, LARGEST, NODE, Recipe, Setting, Training, load

# What a recipe may name, and `poc` offers. No module of this folder: `poc.recipe` would be poc.recipe.recipe then.
__all__ = [
    *("CIFAR10", "LARS", "NCCL", "SGD", "Device", "DistAsync", "DistDeviceSync", "DistSync", "Fixed", "Horovod"),
    *("ImageNet", "Independent", "Linear", "Local", "Muon", "Nesterov", "Recipe", "SquareRoot", "Stale", "Steps"),
    *("Synthetic", "synthetic"),
]
