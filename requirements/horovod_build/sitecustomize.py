"""Configure the build of Horovod, in each of whose Python processes this module is imported first.

make_environment.sh puts this folder on PYTHONPATH.
"""

import os

os.environ |= {f"HOROVOD_{part}": "1" for part in ("WITH_MXNET", "WITH_GLOO")}
os.environ |= {f"HOROVOD_WITHOUT_{part}": "1" for part in ("MPI", "TENSORFLOW", "PYTORCH")}
try:
    import numpy
except ImportError:
    pass
else:
    numpy.bool = numpy.bool_  # type: ignore[attr-defined]  # MXNet 1.9.1 uses this alias, which NumPy 1.24 removed
