"""How fast data-parallel training goes on this machine, how it scales, how that compares with what was published."""

from poc.recipe import CIFAR10, ImageNet, Recipe, Stale, Synthetic, TwoBit, synthetic
from poc.schedule import Linear

__all__ = ["CIFAR10", "ImageNet", "Linear", "Recipe", "Stale", "Synthetic", "TwoBit", "synthetic"]
