"""Add the missing hashes to requirements/*.txt, and join two of these lists into requirements.txt.

After changing a version, delete its hashes and start `.venv/bin/python -m tests.pin_requirements`. pip then resolves
the wheel for every supported Python, without installing it, and the source for the package that is compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
LISTS = HOME / "requirements"
STACK = HOME / "requirements.txt"
STACK_HEADER = """\
# MXNet for GPUs, with CUDA 11's libraries and all that they and this project need, for Python 3.10 to 3.12 on x86-64:
#     pip install -r requirements.txt
# tests/pin_requirements.py writes this file from requirements/common.txt and requirements/mxnet-cu112.txt.
"""
# From the newest C library that the oldest supported distribution has, downwards.
PLATFORMS = [*(f"manylinux_2_{minor}" for minor in range(28, 16, -1)), "manylinux2014", "manylinux1"]
WHEELS = [
    ["--only-binary=:all:", "--target=unused", f"--python-version={python}"]
    + [f"--platform={name}_{processor}" for name in PLATFORMS]
    for python in ("3.10", "3.11", "3.12")
    for processor in ("x86_64", "aarch64")
]
SOURCE = [["--no-build-isolation", "--no-binary=:all:"]]
PIN = re.compile(r"^([\w.-]+={2,3}[^\s;\\]+)(\s*;[^\\]*)?$")


def hashes(pin: str, *, source: bool) -> list[str]:
    """Return the SHA-256 of the files that pip would install for "name==version" on all supported machines, sorted."""
    digests = set()
    for target in WHEELS + SOURCE * source:
        options = "--quiet --dry-run --no-deps --use-feature=fast-deps --ignore-installed --report -"
        command = [sys.executable, "-I", "-m", "pip", "install", *options.split(), *target, pin]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            (package,) = json.loads(done.stdout)["install"]
            digests.add(package["download_info"]["archive_info"]["hashes"]["sha256"])
    if not digests:
        raise SystemExit(f"pip finds no file for {pin}")
    return sorted(digests)


def pinned(path: Path) -> str:
    """Return the list at `path` with the missing hashes."""
    lines: list[str] = []
    for line in path.read_text().splitlines():
        lines.append(line)
        if match := PIN.match(line):
            digests = hashes(match[1], source=path.name == "horovod.txt")
            lines[-1] = " \\\n".join([line.rstrip(), *(f"    --hash=sha256:{digest}" for digest in digests)])
    return "\n".join(lines) + "\n"


def stack() -> str:
    """Return the contents of requirements.txt."""
    return "\n".join([STACK_HEADER, *((LISTS / name).read_text() for name in ("common.txt", "mxnet-cu112.txt"))])


if __name__ == "__main__":
    for requirements in sorted(LISTS.glob("*.txt")):
        requirements.write_text(pinned(requirements))
    STACK.write_text(stack())
