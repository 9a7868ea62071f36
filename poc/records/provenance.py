"""The code and library versions that made a record."""

import hashlib
import os
import pkgutil
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from poc import frameworks

_CODE = (".py", ".csv", ".html", ".json")  # no bytecode, which old commits may not ignore, and no files of editors


def versions() -> dict[str, str]:
    """Return the versions of Python, NumPy and the operating system."""
    return {"python": platform.python_version(), "numpy": np.__version__, "system": platform.platform()}


def code_hash() -> str:
    """Return a hash of the code of this package, and of the frameworks in the folders that POC_FRAMEWORKS names."""
    found = pkgutil.iter_modules(frameworks.__path__[1:])  # other files there may be results
    homes = [Path(module.module_finder.path, module.name) for module in found]  # type: ignore[union-attr]
    folders = [Path(__file__).resolve().parents[1], *homes]
    paths = [(path, path.relative_to(folder)) for folder in folders for path in sorted(folder.rglob("*"))]
    files = [path for path, name in paths if path.suffix in _CODE and not any(part[0] == "." for part in name.parts)]
    files += [home.with_suffix(".py") for home in homes]
    # An editor's lock is a link to nowhere.
    return hashlib.sha256(b"".join(path.read_bytes() for path in files if path.is_file())).hexdigest()[:8]


def commit() -> str:
    """Return the git commit of this checkout; with "-dirty" and a hash if its code has changed since, or has new files.

    Without a commit it is "unknown" and the hash.
    """
    file = Path(__file__).resolve()
    home = file.parents[2]
    # Name the repository, so that git does not find one around this folder or in the environment.
    git = ["git", "-C", str(home), f"--git-dir={home / '.git'}", f"--work-tree={home}"]
    environment = {name: setting for name, setting in os.environ.items() if not name.startswith("GIT_")}
    options: dict[str, Any] = {"capture_output": True, "text": True, "env": environment}
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD", f"HEAD:{file.relative_to(home)}"], check=True, **options)
        code = [f":/poc/*{suffix}" for suffix in _CODE]
        status = [*git, "--no-optional-locks", "status", "--porcelain", "--untracked-files", "--", *code]
        changed = subprocess.run(status, check=True, **options).stdout
    except (OSError, subprocess.CalledProcessError):
        return f"unknown-{code_hash()}"
    return head.stdout[:12] + (f"-dirty-{code_hash()}" if changed else "")
