"""What the user writes: one experiment as data."""

from poc.recipe.rates import Fixed, Linear, SquareRoot, Steps
from poc.recipe.recipe import (
    AUTO,
    CIFAR10,
    DATA,
    EXCHANGES,
    NODE,
    Data,
    ImageNet,
    Muon,
    Recipe,
    Stale,
    Synthetic,
    TwoBit,
    load,
    synthetic,
)

__all__ = [
    "AUTO",
    "CIFAR10",
    "DATA",
    "EXCHANGES",
    "NODE",
    "Data",
    "Fixed",
    "ImageNet",
    "Linear",
    "Muon",
    "Recipe",
    "SquareRoot",
    "Stale",
    "Steps",
    "Synthetic",
    "TwoBit",
    "load",
    "synthetic",
]
