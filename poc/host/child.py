"""Becomes a command that the kernel kills when its parent dies: python child.py PARENT COMMAND...

Done after the start and not by a preexec_fn, which may hang where the parent has threads. It imports nothing of this
package, so that the second start costs little.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1

if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the parent has died already")
    # Ray blocks it in what it starts, and a shell has what runs behind it ignore it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.execv(command[0], command)
