"""CPU and memory limits of this process's control groups (cgroup v1, v2 or both).

The kernel applies the limits of every group from the process's own up to the root, so the lowest counts. Cpusets need
no code here: the kernel removes their cores from the process's affinity.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_V2 = ""
"""Controller name of cgroup v2 in /proc/self/cgroup, for all its controllers."""


def core_quota(system: Path = Path("/")) -> float | None:
    """Return the CPU seconds per second that this process may use; None if unlimited."""
    groups = _groups(system)
    settings = [text(group / "cpu.max").split() for group in groups.get(_V2, [])]
    settings += [
        [text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")] for group in groups.get("cpu", [])
    ]
    quotas = [int(setting[0]) / int(setting[1]) for setting in settings if setting and setting[0].isdigit()]
    return min(quotas, default=None)


def memory_limit(system: Path = Path("/")) -> int | None:
    """Return the bytes that the processes of this group may use together; None if unlimited."""
    groups = _groups(system)
    # Above memory.high the kernel slows processes down until they hardly run.
    limits = [number(group / f"memory.{name}") for group in groups.get(_V2, []) for name in ("max", "high")]
    for group in groups.get("memory", []):
        # The hierarchical limit includes groups that a container does not show.
        inherited = re.search(r"^hierarchical_memory_limit (\d+)$", text(group / "memory.stat"), re.MULTILINE)
        limits += [number(group / "memory.limit_in_bytes"), int(inherited[1]) if inherited else None]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_kills(system: Path = Path("/")) -> int | None:
    """Return how many processes of this group, or else of the machine, the kernel has killed for memory so far.

    None if neither is counted.
    """
    groups = _groups(system)
    files = [group / "memory.events" for group in groups.get(_V2, [])[:1]]
    files += [group / "memory.oom_control" for group in groups.get("memory", [])[:1]]
    for file in (*files, system / "proc/vmstat"):
        if count := re.search(r"^oom_kill (\d+)$", text(file), re.MULTILINE):
            return int(count[1])
    return None


def _groups(system: Path) -> dict[str, list[Path]]:
    """Return the folders of this process's groups by controller, from its own up to the root of the mount."""
    paths: dict[str, str] = {}
    for line in text(system / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    folders: dict[str, list[Path]] = {}
    for line in text(system / "proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, point = (re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), name) for name in mount.split()[3:5])
        mount_point = system / point.lstrip("/")
        for name in paths.keys() & ({_V2} if kind == "cgroup2" else set(options.split(","))):
            relative = os.path.relpath(paths[name], root)
            # Some containers mount another part of the hierarchy than the one the group is in.
            group = mount_point / ("." if relative.startswith("..") else relative)
            depth = len(group.parts) - len(mount_point.parts)
            folders.setdefault(name, []).extend([group, *group.parents][: depth + 1])
    return folders


def text(path: Path) -> str:
    """Return the stripped content of a kernel file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """Return the integer in a kernel file; None if there is none or it is negative, the kernel's "not set"."""
    content = text(path)
    return int(content) if content.isdigit() else None
