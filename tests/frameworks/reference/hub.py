"""The process that sums the arrays of a run's workers, and a worker's connection to it.

Its standard input is a socket that listens. Messages are the bytes of float32 arrays; nothing is pickled.
"""

import os
import signal
import socket
import sys
from multiprocessing.connection import Connection

import numpy as np


class Hub:
    """A worker's connection to the hub, by the variables that `cluster` gave it; a worker alone has none."""

    def __init__(self, workers: int) -> None:
        self.worker, self._connection = 0, None
        if workers > 1:
            self.worker = int(os.environ["POC_WORKER"])
            address = os.environ["POC_HUB"], int(os.environ["POC_HUB_PORT"])
            self._connection = Connection(socket.create_connection(address).detach())
            self._connection.send_bytes(str(self.worker).encode())

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of all workers' arrays once all are here; raise EOFError if the hub has gone."""
        if self._connection is None:
            return array
        self._connection.send_bytes(array.tobytes())
        return np.frombuffer(self._connection.recv_bytes(), np.float32)


def _serve(workers: int) -> None:
    listener = socket.socket(fileno=sys.stdin.fileno())
    connections = [Connection(listener.accept()[0].detach()) for _ in range(workers)]
    connections.sort(key=lambda connection: int(connection.recv_bytes()))
    while True:
        total = np.add.reduce([np.frombuffer(connection.recv_bytes(), np.float32) for connection in connections])
        for connection in connections:
            connection.send_bytes(total.tobytes())


if __name__ == "__main__":
    try:
        _serve(int(os.environ["POC_WORKERS"]))
    except (EOFError, OSError):
        # A worker has gone, at its end or before it. The others wait: if they failed for it, they might be blamed.
        signal.pause()
