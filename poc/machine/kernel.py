"""Small files in which the Linux kernel tells of the machine: /sys, /proc."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """What the file says, without the space around it; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """The whole number in the file; None where there is none, or one below zero, which is how the kernel says so."""
    content = text(path)
    return int(content) if content.isdigit() else None
