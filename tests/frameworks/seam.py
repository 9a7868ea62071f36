"""For mypy alone: the module of every framework has the types of the seam."""

from poc.frameworks import Framework, mxnet, pytorch
from tests.frameworks import reference

FRAMEWORKS: tuple[Framework, ...] = mxnet, pytorch, reference
