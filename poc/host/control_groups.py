"""The limits of the control groups that this process is in, of version 1, version 2 or a mixture: the kernel applies
those of every group from its own up to the root, so the lowest counts.

A cpuset needs no reading here: the kernel takes its cores out of the process's affinity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_UNIFIED = ""
"""The controller of version 2 in /proc/self/cgroup, which is all of them."""


def core_quota(system: Path = Path("/")) -> float | None:
    """CPU seconds per second that this process may use; None without a quota."""
    groups = _groups(system)
    settings = [text(group / "cpu.max").split() for group in groups.get(_UNIFIED, [])]
    settings += [
        [text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")] for group in groups.get("cpu", [])
    ]
    quotas = [int(setting[0]) / int(setting[1]) for setting in settings if setting and setting[0].isdigit()]
    return min(quotas, default=None)


def memory_limit(system: Path = Path("/")) -> int | None:
    """Bytes that this process may use, with the others of the limited group; None without a limit."""
    groups = _groups(system)
    # Above memory.high processes are slowed down until they hardly run.
    limits = [number(group / f"memory.{name}") for group in groups.get(_UNIFIED, []) for name in ("max", "high")]
    for group in groups.get("memory", []):
        # The kernel's own minimum has also groups that a container does not show.
        inherited = re.search(r"^hierarchical_memory_limit (\d+)$", text(group / "memory.stat"), re.MULTILINE)
        limits += [number(group / "memory.limit_in_bytes"), int(inherited[1]) if inherited else None]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_kills(system: Path = Path("/")) -> int | None:
    """How many processes the kernel has killed because memory ran out, in this process's own group or, where that is
    not counted, on the machine; None where neither is."""
    groups = _groups(system)
    files = [group / "memory.events" for group in groups.get(_UNIFIED, [])[:1]]
    files += [group / "memory.oom_control" for group in groups.get("memory", [])[:1]]
    for file in (*files, system / "proc/vmstat"):
        if counted := re.search(r"^oom_kill (\d+)$", text(file), re.MULTILINE):
            return int(counted[1])
    return None


def _groups(system: Path) -> dict[str, list[Path]]:
    """The folders of this process's groups by controller: its own, then each above it as far as they are mounted."""
    own: dict[str, str] = {}
    for line in text(system / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    folders: dict[str, list[Path]] = {}
    for root, point, controllers in _mounts(system):
        for name in own.keys() & controllers:
            within = os.path.relpath(own[name], root)
            # Another part of the hierarchy is mounted than the group is in, as in some containers.
            within = "." if within.startswith("..") else within
            group = point / within
            folders.setdefault(name, []).extend([group, *group.parents][: len(group.parts) - len(point.parts) + 1])
    return folders


def _mounts(system: Path) -> Iterator[tuple[str, Path, set[str]]]:
    """For each mount of a hierarchy of groups the group at its top, its folder, and its controllers."""
    for line in text(system / "proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = (re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), name) for name in mount.split()[3:5])
            yield root, system / point.lstrip("/"), {_UNIFIED} if kind == "cgroup2" else set(options.split(","))


def text(path: Path) -> str:
    """The content of a small file of the kernel without the space around it; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """The whole number in the file; None where there is none, or one below zero, which is how the kernel says so."""
    content = text(path)
    return int(content) if content.isdigit() else None
