"""Throughput and scaling of data-parallel training on this machine, compared with published results."""

import os

# An image file may claim any size, and decoding it takes the memory. OpenCV reads this when it is first imported.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(1 << 27))

from poc.config import *  # noqa: F403
