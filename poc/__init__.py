"""How fast data-parallel training goes on this machine, how it scales, how that compares with what was published."""

import os

# An image file may claim any size, and decoding it takes the memory. OpenCV reads this when it is first imported.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(1 << 27))

from poc.config import *  # noqa: F403
