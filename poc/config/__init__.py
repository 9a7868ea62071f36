"""Configuration: recipes that the user writes, and the runs that the plan makes of them."""

from poc.config.datasets import CIFAR10, CIFAR100, DATA, Arrays, Data, Folder, Records, Synthetic, synthetic
from poc.config.kvstores import NCCL, SSP, Device, DistAsync, DistDeviceSync, DistSync, Horovod, Local, NoSync
from poc.config.optimizers import LARS, OPTIMIZERS, SGD, AdamW, Muon, Nesterov, Optimizer, TorchOptimizer
from poc.config.rates import Exponential, Fixed, Linear, Search, SquareRoot, Steps
from poc.config.recipe import AUTO, EPOCHS, LARGEST, NODE, Recipe, Setting, Training
from poc.config.recipe_file import load

# What a recipe may name, and `poc` offers. No module of this folder: `poc.config` would be poc.config.recipe then.
__all__ = [
    *("CIFAR10", "LARS", "NCCL", "SGD", "Device", "DistAsync", "DistDeviceSync", "DistSync", "Fixed", "Horovod"),
    *("Exponential", "Linear", "Local", "Muon", "Nesterov", "NoSync", "Recipe", "SquareRoot", "SSP", "Steps"),
    *("Synthetic", "synthetic", "AdamW", "TorchOptimizer", "CIFAR100", "Folder", "Records", "Arrays", "Search"),
]
