"""For mypy alone: the module of every engine has the types of the seam."""

from poc.engines import Engine, gluon, pytorch
from tests.engines import reference

ENGINES: tuple[Engine, ...] = gluon, pytorch, reference
