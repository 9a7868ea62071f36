"""CPU and memory limits of this process's control groups (cgroup v1, v2 or both).

The kernel applies the limits of every group from the process's own up to the root, so the lowest counts. Cpusets need
no code here: the kernel removes their cores from the process's affinity.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path

# Folders in /sys/fs/cgroup by controller; the empty name is version 2, for all its controllers.
_MOUNTS = {"": ("", "unified"), "cpu": ("cpu", "cpu,cpuacct"), "memory": ("memory",)}


def core_quota(system: Path = Path("/")) -> tuple[float, Path]:
    """Return the CPU seconds per second that this process may use, or infinity, and the group with this quota."""
    settings = [(text(group / "cpu.max"), group) for group in _groups("", system)]
    for group in _groups("cpu", system):
        settings.append((" ".join(text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")), group))
    limits = ((re.match(r"(\d+) (\d+)", setting), group) for setting, group in settings)
    return min(((int(limit[1]) / int(limit[2]), group) for limit, group in limits if limit), default=(math.inf, system))


def core_seconds(group: Path) -> float | None:
    """Return the CPU seconds that a group with a quota has used; None if they are unknown."""
    if used := re.search(r"^usage_usec (\d+)$", text(group / "cpu.stat"), re.MULTILINE):
        return int(used[1]) / 1e6
    accounting = Path(f"{group}/".replace("/sys/fs/cgroup/cpu/", "/sys/fs/cgroup/cpuacct/"))  # may be apart
    nanoseconds = text(group / "cpuacct.usage") or text(accounting / "cpuacct.usage")
    return int(nanoseconds) / 1e9 if nanoseconds else None


def memory_limit(system: Path = Path("/")) -> float:
    """Return the bytes that the processes of this group may use together, or infinity."""
    # Above memory.high the kernel slows processes down until they hardly run.
    limits = [text(group / f"memory.{name}") for group in _groups("", system) for name in ("max", "high")]
    limits += [text(group / "memory.limit_in_bytes") for group in _groups("memory", system)]
    return min((int(limit) for limit in limits if limit.isdigit()), default=math.inf)


def memory_kills(system: Path = Path("/")) -> int | None:
    """Return how many processes of this group, or else of the machine, the kernel has killed for memory so far.

    None if neither is counted.
    """
    files = [group / "memory.events" for group in _groups("", system)]
    files += [group / "memory.oom_control" for group in _groups("memory", system)]
    for file in (*files, system / "proc/vmstat"):
        if count := re.search(r"^oom_kill (\d+)$", text(file), re.MULTILINE):
            return int(count[1])
    return None


def _groups(controller: str, system: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups, from its own up to the root of the mount.

    A container may mount another part of the hierarchy than the one the group is in: its root then is the group.
    """
    for line in text(system / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = Path(path.lstrip("/"))
            for mount in _MOUNTS[controller]:
                yield from (system / "sys/fs/cgroup" / mount / folder for folder in (group, *group.parents))


def text(path: Path) -> str:
    """Return the stripped content of a kernel file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()  # firmware has names in any encoding
    except OSError:
        return ""
