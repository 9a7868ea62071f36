"""Carry out the Dockerfile in a folder that holds a Linux system, where there is no container framework. Needs root.

    debootstrap --variant=minbase bookworm ROOT && mount --bind /proc ROOT/proc
    python3 tests/replay_dockerfile.py ROOT [NAME=VALUE ...]

NAME=VALUE is a build argument. COPY takes what git has committed.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent


def main(root: Path, *arguments: str) -> None:
    """Carry out the instructions in their order; raise CalledProcessError where a command fails."""
    chosen = dict(argument.split("=", 1) for argument in arguments)
    variables, folder = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, Path("/")
    text = re.sub(r"^#.*\n", "", (HOME / "Dockerfile").read_text(), flags=re.MULTILINE)
    for line in filter(None, text.replace("\\\n", "").splitlines()):
        print(line, flush=True)
        instruction, rest = line.split(maxsplit=1)
        if instruction in ("ARG", "ENV"):
            pairs = dict(word.split("=", 1) for word in shlex.split(rest))
            variables |= {name: chosen.get(name, pairs[name]) for name in pairs} if instruction == "ARG" else pairs
        elif instruction == "WORKDIR":
            folder = Path(rest)
            (root / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
        elif instruction == "COPY":
            archive = subprocess.check_output(["git", "-C", HOME, "archive", "HEAD", rest.split()[0]])
            subprocess.run(["tar", "-x", "-C", root / folder.relative_to("/")], input=archive, check=True)
        elif instruction == "RUN":
            subprocess.run(["chroot", root, "sh", "-c", f"cd {folder} && {rest}"], env=variables, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
