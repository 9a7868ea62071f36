"""Add the missing hashes to requirements/*.txt, and join two of these lists into requirements.txt.

Start it after a version was changed and its hashes were taken out: `.venv/bin/python tests/pin_requirements.py`. A pin
without hashes gets the SHA-256 of each file that pip may install for it: pip is asked for the wheel of every supported
Python and processor, without installing any, and for the source where a file is compiled here.
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
STACK_LISTS = ("common.txt", "mxnet-cu112.txt")
STACK_HEADER = """\
# MXNet for GPUs, with CUDA 11's libraries and all that they and this project need, for Python 3.10 to 3.12 on x86-64:
#     pip install -r requirements.txt
# tests/pin_requirements.py writes this file from requirements/{}.
"""
PYTHONS = ("3.10", "3.11", "3.12")
PROCESSORS = ("x86_64", "aarch64")
# From the newest C library that the oldest supported distribution has, downwards.
PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(28, 16, -1)), "manylinux2014", "manylinux1")
FROM_SOURCE = ("horovod.txt",)
PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)(?P<marker>\s*;[^\\]*)?")


def hashes(pin: str, *, source: bool) -> list[str]:
    """Return the SHA-256 of what pip would install for "name==version" on all supported machines, sorted."""
    targets = [["--no-build-isolation", "--no-binary", ":all:"]] if source else []
    for python in PYTHONS:
        for processor in PROCESSORS:
            platforms = [f"--platform={name}_{processor}" for name in PLATFORMS]
            targets.append([*platforms, f"--python-version={python}", "--only-binary", ":all:", "--target", "unused"])
    digests = set()
    for target in targets:
        options = "--quiet --dry-run --no-deps --use-feature=fast-deps --ignore-installed --report -"
        command = [sys.executable, "-I", "-m", "pip", "install", *options.split(), *target, pin]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            (package,) = json.loads(done.stdout)["install"]
            digests.add(package["download_info"]["archive_info"]["hashes"]["sha256"])
    return sorted(digests)


def pinned(path: Path) -> str:
    """Return the list at `path` with the missing hashes; raise SystemExit where pip has no file for a pin."""
    lines: list[str] = []
    for line in path.read_text().splitlines():
        match = PIN.match(line)
        if match is None or line.endswith("\\"):
            lines.append(line)
            continue
        pin = f"{match['name']}=={match['version']}"
        digests = hashes(pin, source=path.name in FROM_SOURCE)
        if not digests:
            raise SystemExit(f"{path.name}: pip finds no file for {pin}")
        print(f"{pin}: {len(digests)} files", file=sys.stderr)
        lines.append(" \\\n".join([line.rstrip(), *(f"    --hash=sha256:{digest}" for digest in digests)]))
    return "\n".join(lines) + "\n"


def stack() -> str:
    """Return what requirements.txt has to hold."""
    header = STACK_HEADER.format(" and requirements/".join(STACK_LISTS))
    return "\n".join([header, *((LISTS / name).read_text() for name in STACK_LISTS)])


if __name__ == "__main__":
    for requirements in sorted(LISTS.glob("*.txt")):
        requirements.write_text(pinned(requirements))
    STACK.write_text(stack())
