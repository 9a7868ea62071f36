"""Run a module of this checkout as `python -m` does, but import nothing else from its folder, the current one included:
python isolated.py MODULE ARGUMENT...

A csv.py in that folder would replace Python's own. `python -I -m` does not find this package, and Python 3.10 has no
other way to leave the current folder out.
"""

import os
import sys

if __name__ == "__main__":
    own = os.path.dirname(os.path.abspath(__file__))  # comes first, but with -I
    home = os.path.dirname(os.path.dirname(own))
    # Nor from another checkout, which the environment may have been made for.
    others = [folder for folder in sys.path if os.path.exists(os.path.join(folder, "poc", "__init__.py"))]
    # Last, behind Python's own modules and what is installed.
    sys.path[:] = [folder for folder in sys.path if folder not in (own, *others)] + [home]
    del sys.argv[0]

    import runpy

    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
