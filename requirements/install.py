"""Make .venv and the frameworks' own environments, with the packages of requirements/, for make_environment.sh.

python -I install.py PYTHON OPTION...: PYTHON is the interpreter that the user named, or that was found. Options are
those of `poc environment`. This imports Python's own modules only.
"""

import ast
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parents[1]
LISTS = HERE / "requirements"
COMMON = HERE / ".venv"
MARK = "made-by-make_environment.sh"  # a folder in each environment, with copies of the lists that are installed
MXNET_BUILDS = ("mxnet", "mxnet-cu102", "mxnet-cu112")  # all of them install into the same folder
# Variables that change what pip installs or where. Constraints would clash with the pinned versions.
VARIABLES = ("CONSTRAINT", "TARGET", "PREFIX", "ROOT", "USER", "REQUIREMENT", "EDITABLE", "DRY_RUN", "PYTHON", "REPORT")
SETTINGS = ("cert", "extra-index-url", "find-links", "index-url", "trusted-host")  # of pip, that uv has, too


def say(text: str) -> None:
    """Print a line for the user."""
    print(text, file=sys.stderr, flush=True)


def stop(text: str) -> NoReturn:
    """End with one line."""
    say(text)
    sys.exit(2)


def write_if_changed(path: Path, text: str) -> None:
    """Write a file, unless it has this text already."""
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


def output_of(*command: str | Path) -> str:
    """Return what a command prints; nothing if it does not start or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.strip()


def succeeds(*command: str | Path, quiet: bool = False, **variables: str) -> bool:
    """Return whether a command succeeds; with `quiet` its messages are not shown."""
    errors = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, env={**os.environ, **variables}, stderr=errors, close_fds=False).returncode == 0


def maker(python: str) -> str:
    """Return the Python that made the environment of this checkout that `python` is in, else `python` itself."""
    path = Path(shutil.which(python) or python)
    environment = path.parent.parent
    if environment.parent != HERE or not (environment / MARK).is_dir():
        return python
    recorded = COMMON / MARK / "python"
    named = recorded.read_text().strip() if recorded.exists() else ""
    return named if os.path.exists(named) and named != str(path) else os.path.realpath(path)


def only_one_at_a_time() -> None:
    """Wait for another start to end. A network file system may have no locks."""
    try:
        lock = os.open(HERE / "make_environment.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # the checkout cannot be written; on NFS the lock of a folder does not hold on other hosts
        lock = os.open(HERE, os.O_RDONLY)
    os.set_inheritable(lock, True)  # an installation that outlives this process keeps it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Waiting for another start.")
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        pass


class Installer:
    """Makes environments with one interpreter; if it is offline it downloads nothing."""

    def __init__(self, python: str, offline: bool) -> None:
        self.python, self.offline = python, offline
        self._version = output_of(python, "--version")
        self._lacking = ""

    def make(self, environment: Path) -> None:
        """Make an environment with the packages that every framework needs. An outdated one is replaced."""
        mark = environment / MARK
        is_borrowed = (mark / "borrowed").exists()
        if output_of(environment / "bin/python", "--version") == self._version:
            if is_installed(environment, "common.txt") or (self.offline and is_borrowed and self._borrow(environment)):
                return
            lacks_network = is_borrowed and not self.offline and not install(environment, "common.txt", quiet=True)
            if lacks_network and self._borrow(environment):  # borrowed packages stay, if none is missing
                return self._go_offline()
        if not succeeds(self.python, "-I", "-c", "import bz2, ctypes, ensurepip, lzma, ssl", quiet=True):
            package = self._version.rpartition(".")[0].replace("Python ", "python")
            lacking = f"{self.python} lacks venv, bz2, ctypes, lzma or ssl"
            stop(f"{lacking}: install {package}-venv (apt-get), or set PYTHON to one that has them all")
        if environment.is_symlink() or (environment.exists() and not mark.exists()):
            stop(f"{environment} was not made by make_environment.sh, so it is not replaced: move it away.")
        if environment.exists() and not os.access(environment, os.W_OK):
            owner = output_of("stat", "-c", "%U", environment)
            stop(f"{environment} belongs to {owner}: start as this user, or use a checkout of your own.")
        say(f"Setting up {environment} with {self._version} (only once, takes some minutes).")
        remove(environment)
        mark.mkdir(parents=True)
        if not succeeds(self.python, "-I", "-m", "venv", environment):
            stop(f"Setting up {environment} failed (see above).")
        if self.offline:
            if not self._borrow(environment):
                stop(f"--installed: {self.python} lacks {self._lacking}: install them, or leave out --installed.")
            return
        if not uv():
            install(environment, "uv.txt", quiet=True)
        self.add(environment, "common.txt")

    def link(self, environment: Path) -> None:
        """Let an environment import the packages of the interpreter, after its own."""
        script = 'import sys; print(*(path for path in sys.path if path.endswith("-packages")), sep="\\n")'
        write_if_changed(
            site_packages(environment) / "installed.pth", output_of(self.python, "-I", "-c", script) + "\n"
        )

    def _borrow(self, environment: Path) -> bool:
        """Use the packages of the interpreter in place of those of common.txt, unless it lacks some."""
        self.link(environment)
        command: list[str | Path] = [environment / "bin/python", "-I", LISTS / "lacking.py"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        self._lacking = ", ".join(done.stdout.splitlines())
        if done.returncode or self._lacking:
            return False
        write_if_changed(environment / MARK / "borrowed", "")
        return True

    def _go_offline(self) -> None:
        self.offline = True
        say(f"Using the packages of {self.python}.")

    def add(self, environment: Path, name: str) -> None:
        """Install a list. It is copied last, so that an interrupted installation is repeated."""
        if is_installed(environment, name):
            return
        say(f"Installing requirements/{name} in {environment}.")
        # One that was cut off (a full disk, a kill) may have left half a package, which counts as installed.
        begun = environment / MARK / f".{name}"
        reinstall = begun.exists()
        begun.touch()
        if name.startswith("mxnet"):
            for copy in (environment / MARK).glob("mxnet*"):
                copy.unlink()
            uninstall = (environment / "bin/python", "-I", "-m", "pip", "uninstall", "--quiet", "--yes")
            succeeds(*uninstall, *MXNET_BUILDS, quiet=True)
        if name != "torch-cpu.txt":
            done = install(environment, name, reinstall)
        else:
            done = install(environment, name, reinstall, quiet=True)
            done = done or install(environment, name, reinstall=True, quiet=True, UV_TORCH_BACKEND="cpu")
            if not done:
                say("No CPU build of PyTorch found: installing the CUDA build, 5 GB.")
                done = install(environment, "torch-cu13.txt", reinstall=True)
        if not done:
            if name == "common.txt" and self._borrow(environment):
                return self._go_offline()
            lacking = f", which lacks {self._lacking}" if self._lacking else ""
            offline = f"Without a network: --installed, with the packages of {self.python}{lacking}."
            less = "" if name == "common.txt" else " --framework NAME installs one framework only."
            retry = f"run this again to retry, or first delete {environment}.{less} {offline}"
            stop(f"Installing requirements/{name} failed (see above); {retry}")
        shutil.copy(LISTS / name, environment / MARK)
        begun.unlink()


def is_installed(environment: Path, name: str) -> bool:
    """Return whether an environment has a list as it is now."""
    copy = environment / MARK / name
    return copy.is_file() and copy.read_bytes() == (LISTS / name).read_bytes()


def remove(environment: Path) -> None:
    """Remove an environment, its mark last: what is left of an interruption is replaced."""
    for name in ("common.txt", "borrowed"):  # it is not complete from now on
        (environment / MARK / name).unlink(missing_ok=True)
    succeeds("rm", "-rf", *(part for part in environment.glob("*") if part.name != MARK), environment)


def site_packages(environment: Path) -> Path:
    """Return the folder of an environment's packages."""
    return next(environment.glob("lib/python3*/site-packages"))


def uv() -> str | None:
    """Return the path of uv, if there is one."""
    return shutil.which("uv", path=f"{COMMON}/bin:{os.environ['PATH']}")


def settings_of_pip(python: Path) -> list[str]:
    """Return pip's settings as options of uv, which does not read them; one in a variable comes before a file's."""
    found: dict[str, str] = {}
    for line in output_of(python, "-I", "-m", "pip", "config", "list").splitlines():
        name, _, text = line.partition("=")
        found.setdefault(name.rpartition(".")[2], ast.literal_eval(text))
    options = [f"--{name}={word}" for name in SETTINGS for word in found.get(name, "").split()]
    return [*options, *["--no-index"] * ("no-index" in found)]


def install(environment: Path, name: str, reinstall: bool = False, quiet: bool = False, **variables: str) -> bool:
    """Install a list with uv, or with pip if there is no uv or it fails; return whether that succeeds."""
    python = environment / "bin/python"
    variables |= {"PYTHONPATH": str(LISTS / "horovod_build"), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    home = os.environ.get("HOME", "/")
    if not os.path.exists(home) or os.stat(home).st_dev != os.stat(HERE).st_dev:  # caches may fill a small disk there
        own = {"UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", f"{COMMON}/{MARK}/uv"), "TMPDIR": f"{COMMON}/{MARK}"}
        variables |= {**own, "PIP_NO_CACHE_DIR": "1"}
    options = ["--quiet", "--no-deps", "--require-hashes", "--no-build-isolation", "-r", str(LISTS / name)]
    if program := uv():
        command = [program, "pip", "install", "--python", str(python), *settings_of_pip(python)]
        if succeeds(*command, *["--force-reinstall"] * reinstall, *options, quiet=True, **variables):
            return True
        reinstall = True
    command = [str(python), "-I", "-m", "pip", "install", "--no-user", "--target=", "--disable-pip-version-check"]
    return succeeds(*command, *["--force-reinstall"] * reinstall, *options, quiet=quiet, **variables)


def main(python: str, options: list[str]) -> None:
    """Make .venv with the command `poc`, and install what `poc environment` names."""
    os.chdir("/")  # obey nothing in the user's folder
    for name in VARIABLES:
        os.environ.pop(f"PIP_{name}", None)
    os.environ["PIP_CONSTRAINT"] = os.devnull  # in place of one in pip's files
    only_one_at_a_time()
    python = maker(python)
    installer = Installer(python, "--installed" in options)
    installer.make(COMMON)
    # For processes of Ray. Python does not start if this has letters that the locale lacks.
    line = f"import os, sys; sys.path.append(os.fsdecode({os.fsencode(HERE)!r}))\n"
    write_if_changed(site_packages(COMMON) / "poc.pth", line)
    start = [f"{COMMON}/bin/python", "-I", f"{HERE}/poc/host/isolated.py", "poc"]
    write_if_changed(COMMON / "bin/poc", f'#!/usr/bin/env bash\nunset "${{!PYTHON@}}"\nexec {shlex.join(start)} "$@"\n')
    if not os.access(COMMON / "bin/poc", os.X_OK):  # it may belong to another user
        (COMMON / "bin/poc").chmod(0o755)
    write_if_changed(COMMON / MARK / "python", f"{shutil.which(python)}\n")  # its packages may be used
    if installer.offline and "--installed" not in options:
        options = [*options, "--installed"]
    planned = subprocess.run([*start, "environment", *options], stdout=subprocess.PIPE, text=True)
    if planned.returncode:
        sys.exit(planned.returncode if planned.returncode > 0 else 130)
    lines = planned.stdout.rstrip("\n").split("\n")
    if lines == [""] and installer.offline:
        return
    for line in lines:
        folder, _, name = line.partition(" ")
        if not re.fullmatch(r"\.venv(-[a-z0-9_]+)?", folder) or not (name == "installed" or (HERE / name).is_file()):
            stop(f"poc environment: not a list: {line}")
        environment = HERE / folder
        for copy in sorted((environment / MARK).glob("*")):  # of another build, which would clash with this one
            is_build = copy.name == "installed" or copy.name.startswith("torch")
            wanted = {f"{folder} {copy.name}", f"{folder} requirements/{copy.name}"}
            if environment != COMMON and is_build and not wanted & set(lines):
                remove(environment)
        installer.make(environment)
        if name == "installed":
            installer.link(environment)
            (environment / MARK / name).touch()
        else:
            installer.add(environment, Path(name).name)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # a full disk, or one that cannot be written
        stop(f"make_environment.sh: {error}")
