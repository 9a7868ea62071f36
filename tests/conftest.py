from __future__ import annotations

import os

# Read once, when a test imports mxnet in this process.
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
