"""Several hosts as one: which of them this is, and the links over which the first one leads the others.

The same command runs on every host, one process each. The first host plans, keeps the journal and starts what serves
all workers; the others start their share of each run's workers when it tells them to, and tell it what became of them.
Messages are lines of JSON. Gradients do not pass here: they go between the workers, or them and MXNet's servers.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from poc.values import UserError, value

PORT = 9199
"""Where the first host listens, unless POC_ADDRESS says otherwise."""
_SILENCE_SECONDS = 10.0
_JOIN_SECONDS = 120.0
_ALIVE_SECONDS = 1.0

# Variables of each launcher: how many processes, which of them this is, how many on this host, where the first one is.
_LAUNCHERS = (
    ("POC_HOSTS", "POC_HOST", ""),
    ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
    # horovodrun's rendezvous server is where it was started, on the first host.
    ("HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
    ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"),
)

Message = dict[str, Any]


class LinkError(Exception):
    """The other end of a link has gone, or has been silent for too long; says why."""


@value
class Hosts:
    """The place of this host among those that run together."""

    number: int
    """0 is the first, which leads."""
    count: int
    address: str
    """Name or IP address of the first host, with its port: "node1:9199"."""


def find(environment: Mapping[str, str]) -> Hosts | None:
    """This host's place, from what a cluster's launcher left in `environment`; None where there is only one host.

    By hand: POC_HOSTS (how many), POC_HOST (0 is the first), POC_ADDRESS (the first one's). Else Slurm's `srun`, Open
    MPI's and MPICH's `mpirun`, `horovodrun`, `torchrun`; POC_ADDRESS names the first host where the launcher does not.
    Raises UserError where that is contradictory or not enough.
    """
    for size, rank, local, *first in _LAUNCHERS:
        # An interactive shell inside a Slurm job has the job's size, but no rank of its own.
        if size not in environment or rank not in environment:
            continue
        for name in (size, rank):
            if not environment[name].isdigit():
                raise UserError(f"{name}: {environment[name]!r} is not allowed; give a whole number")
        count, number = int(environment[size]), int(environment[rank])
        if count == 1:
            return None
        if number >= count:
            raise UserError(f"{rank}: {number} is not allowed; with {size}={count} give 0 to {count - 1}")
        if environment.get(local, "1") != "1":
            raise UserError(f"{local}: {environment[local]} processes were started on a host; start one on each")
        told = next(filter(None, map(environment.get, first)), "")
        # Slurm's may be a list such as "node[07-09,12],other1".
        address = environment.get("POC_ADDRESS") or re.sub(r"\[(\d+)[^\]]*\]", r"\1", told).partition(",")[0]
        if not address:
            raise UserError("POC_ADDRESS: it is missing; give the first host's name or IP address, e.g. node1:9199")
        return Hosts(number=number, count=count, address=address if ":" in address else f"{address}:{PORT}")
    return None


class Link:
    """A connection to another host; either end notices within some seconds when the other has gone."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.name = name
        self.here: str = connection.getsockname()[0]
        """This host's IP address, as the other one reaches it."""
        self.there: str = connection.getpeername()[0]
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_SILENCE_SECONDS)
        self._connection = connection
        self._arrived: queue.SimpleQueue[Message | LinkError] = queue.SimpleQueue()
        self._speaking = threading.Lock()
        for work in (self._listen, self._stay_alive):
            threading.Thread(target=work, name="link", daemon=True).start()

    def send(self, message: Message) -> None:
        """Sends `message`; raises LinkError."""
        try:
            with self._speaking:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise LinkError(f"its link is broken ({error})") from None

    def poll(self) -> Message | None:
        """The next message; None where none has arrived. Raises LinkError."""
        return None if self._arrived.empty() else self.receive()

    def receive(self) -> Message:
        """Waits for the next message, however long it takes while the other end lives; raises LinkError."""
        message = self._arrived.get()
        if isinstance(message, LinkError):
            self._arrived.put(message)  # it stays lost
            raise message
        return message

    def close(self) -> None:
        """Ends the connection; the other end finds it gone."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # or it stays open for as long as the thread reads
        self._connection.close()

    def _listen(self) -> None:
        why = "it has gone"
        try:
            for line in self._connection.makefile("rb"):
                message = json.loads(line)
                if message:
                    self._arrived.put(message)
        except socket.timeout:
            why = f"nothing was heard of it for {_SILENCE_SECONDS:.0f} s"
        except (OSError, ValueError) as error:
            why = f"its link is broken ({error})"
        self._arrived.put(LinkError(why))

    def _stay_alive(self) -> None:
        with contextlib.suppress(LinkError):  # whoever reads will find out
            while True:
                self.send({})
                time.sleep(_ALIVE_SECONDS)


@contextlib.contextmanager
def gathered(hosts: Hosts) -> Iterator[list[Link]]:
    """On the first host: waits for the others, and gives a link to each, in their order. Raises UserError."""
    _, port = _split(hosts.address)
    others = range(1, hosts.count)
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server(("", port), backlog=hosts.count))
        except OSError as error:
            raise UserError(f"POC_ADDRESS: cannot listen on port {port} ({error}); give another one") from None
        links: dict[int, Link] = {}
        end = time.monotonic() + _JOIN_SECONDS
        while missing := [number for number in others if number not in links]:
            listener.settimeout(max(0.1, end - time.monotonic()))
            try:
                link = Link(listener.accept()[0], "a host")
                stack.callback(link.close)
                hello = link.receive()
            except (OSError, LinkError):
                if time.monotonic() > end:
                    raise UserError(f"hosts {missing} did not call within {_JOIN_SECONDS:.0f} s: look there") from None
                continue
            if hello.get("hosts") == hosts.count and hello.get("host") in others:
                link.name = f"host {hello['host']}"
                links[hello["host"]] = link
            else:
                link.close()
        yield [links[number] for number in others]


@contextlib.contextmanager
def joined(hosts: Hosts) -> Iterator[Link]:
    """On any other host: calls the first one until it answers, and gives the link to it. Raises UserError."""
    address, end = _split(hosts.address), time.monotonic() + _JOIN_SECONDS
    connection = None
    while connection is None:
        try:
            connection = socket.create_connection(address, timeout=5.0)
        except OSError as error:
            if time.monotonic() > end:
                raise UserError(f"POC_ADDRESS: nobody answers at {hosts.address} ({error})") from None
            time.sleep(0.5)
    with contextlib.closing(Link(connection, "host 0")) as link:
        link.send({"host": hosts.number, "hosts": hosts.count})
        yield link


def _split(address: str) -> tuple[str, int]:
    name, _, port = address.rpartition(":")
    if not port.isdigit():
        raise UserError(f"POC_ADDRESS: {address!r} is not allowed; give a name or IP address and a port: node1:9199")
    return name, int(port)
