"""For mypy alone: the module of every engine has the types of the seam."""

from poc.engines import Engine, mxnet, pytorch
from tests.engines import reference

ENGINES: tuple[Engine, ...] = mxnet, pytorch, reference
