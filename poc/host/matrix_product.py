"""Print the seconds of a product of two float32 matrices of 1,024 x 1,024 on all cores, the best of three.

`hardware.detect` runs it in a process of its own, for which it chooses the matrix library's kernels.
"""

import timeit

import numpy as np

if __name__ == "__main__":
    matrix = np.ones((1024, 1024), dtype=np.float32)
    # The first product also starts the library's threads.
    print(min(timeit.repeat(lambda: matrix @ matrix, number=1, repeat=3)))
