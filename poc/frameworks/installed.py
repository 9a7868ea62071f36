"""A framework that the user's Python has already: which release it is, and whether it fits this project and machine.

The folder of a framework may have a file probe.py. It is run by the user's Python, so that it needs nothing but
Python's own modules. It prints a JSON object: `reason`, why this release cannot be used, or the `package` and its
`version`, and `code`, the compute capabilities that it contains machine code for if it can use the cards here.
"""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path

from poc.frameworks.builds import Build
from poc.host.hardware import Hardware
from poc.values import value

LINK = "installed.pth"
"""File in an environment of make_environment.sh that lists the folders of packages of the user's Python."""
_FOLDER = Path(__file__).resolve().parent
_NAMED_PYTHON = _FOLDER.parents[1] / ".venv/made-by-make_environment.sh/python"
_SECONDS = 120
"""Time limit: an import from a cold network disk takes a minute."""


@value
class Found:
    """A build in the user's Python, or the reason why it is not used; neither if the framework is not there."""

    build: Build | None = None
    reason: str = ""


def named_python() -> str:
    """Return the Python that make_environment.sh was started with; empty if unknown."""
    return _NAMED_PYTHON.read_text().strip() if _NAMED_PYTHON.exists() else ""


@functools.cache  # planning asks for every run and card
def find(name: str, python: str, machine: Hardware, version: str = "") -> Found:
    """Ask the interpreter `python` which release of framework `name` it has, and whether it runs on `machine`.

    Importing a framework takes seconds, so that the answer is cached in this process, for each `version`.
    """
    probe = _FOLDER / name / "probe.py"
    if not python or not probe.exists():
        return Found()
    command = [python, "-I", str(probe), *(["--gpu"] if machine.gpus else [])]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return Found(reason=f"{python} did not import {name} in {_SECONDS} s")
    except OSError as error:
        return Found(reason=f"{python}: {error.strerror}")
    try:
        answer = json.loads(process.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return Found(reason=": ".join([f"{python} cannot import {name}", *process.stderr.splitlines()[-1:]]))
    if "reason" in answer:
        return Found(reason=answer["reason"] and f"{answer['reason']} ({python})")
    code = tuple((int(major), int(minor)) for major, minor in answer["code"])
    build = Build(
        package=answer["package"],
        version=answer["version"],
        requirements=(),
        gigabytes=0.0,
        separate=True,
        code=code,
        python=python,
    )
    refused = [build.refuses(gpu, machine.driver) for gpu in machine.gpus]
    if refused and None not in refused:
        return Found(reason=f"{refused[0]} ({python})")
    return Found(build=build)
