"""Run a module as `python -m` does, but import nothing else from its folder or the current one, where a csv.py would
replace Python's own: python isolated.py [--parent PID] MODULE ARGUMENT...

With --parent, the kernel kills the process when its parent dies. (A preexec_fn for that may hang if the parent has
threads. `python -I -m` does not find this package, and Python 3.10 has no -P.)
"""

import os
import sys

_SET_PARENT_DEATH_SIGNAL = 1

if __name__ == "__main__":
    package = os.path.dirname(os.path.abspath(__file__))  # comes first in sys.path, except with -I
    home = os.path.dirname(os.path.dirname(package))
    # The environment may have been made for another checkout.
    checkouts = [folder for folder in sys.path if os.path.exists(os.path.join(folder, "poc", "__init__.py"))]
    # Python's own modules and installed packages come before the checkout.
    sys.path[:] = [folder for folder in sys.path if folder not in (package, *checkouts)] + [home]

    import runpy
    import signal

    if sys.argv[1] == "--parent":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != int(sys.argv[2]):
            sys.exit("the parent has died already")
        # Ray blocks SIGINT in its processes, and a shell makes its background processes ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        del sys.argv[1:3]
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # it was still importing what would have handled it: end as Python does, but silently
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
