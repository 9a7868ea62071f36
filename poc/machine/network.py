"""This host's addresses, and ports that are free."""

from __future__ import annotations

import socket

import psutil


def interface(address: str) -> str:
    """The network interface of this host that has the IP `address`, such as "eth0"; raises OSError for none."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return str(name)
    raise OSError(f"no network interface of this host has the address {address}")


def free_port(host: str) -> int:
    """A TCP port that nothing listens on at the address `host` of this host."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
