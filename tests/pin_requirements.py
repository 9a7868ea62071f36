"""Writes beside every pin of requirements*.txt that has none the SHA-256 of each file that pip may install for it.

To be run after a version was changed and its hashes were taken out: `.venv/bin/python tests/pin_requirements.py`. pip
is asked for the wheel of every supported Python and processor, without installing any, and for the source where a file
is compiled here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).parent.parent
PYTHONS = ("3.9", "3.10", "3.11", "3.12")
PROCESSORS = ("x86_64", "aarch64")
# From the newest C library that the oldest supported distribution has, downwards.
PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(28, 16, -1)), "manylinux2014", "manylinux1")
FROM_SOURCE = ("requirements-horovod.txt",)
PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)(?P<marker>\s*;[^\\]*)?")


def hashes(pin: str, *, source: bool) -> list[str]:
    """SHA-256 of what pip would install for "name==version" on all supported machines, sorted."""
    ways = [["--no-build-isolation", "--no-binary", ":all:"]] if source else []
    for python in PYTHONS:
        for processor in PROCESSORS:
            platforms = [f"--platform={name}_{processor}" for name in PLATFORMS]
            ways.append([*platforms, f"--python-version={python}", "--only-binary", ":all:", "--target", "unused"])
    found = set()
    for way in ways:
        options = "--quiet --dry-run --no-deps --use-feature=fast-deps --ignore-installed --report -"
        command = [sys.executable, "-I", "-m", "pip", "install", *options.split(), *way, pin]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            (one,) = json.loads(done.stdout)["install"]
            found.add(one["download_info"]["archive_info"]["hashes"]["sha256"])
    return sorted(found)


def pinned(path: Path) -> str:
    """The content of a requirements file with the missing hashes; raises SystemExit where pip finds none for a pin."""
    lines: list[str] = []
    for line in path.read_text().splitlines():
        match = PIN.match(line)
        if match is None or line.endswith("\\"):
            lines.append(line)
            continue
        pin = f"{match['name']}=={match['version']}"
        found = hashes(pin, source=path.name in FROM_SOURCE)
        if not found:
            raise SystemExit(f"{path.name}: pip finds no file for {pin}")
        print(f"{pin}: {len(found)} files", file=sys.stderr)
        lines.append(" \\\n".join([line.rstrip(), *(f"    --hash=sha256:{one}" for one in found)]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for requirements in sorted(HOME.glob("requirements*.txt")):
        requirements.write_text(pinned(requirements))
