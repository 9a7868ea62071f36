"""The set-up scripts as a user starts them, on copies, with injected faults; and the lists of packages.

Shell scripts replace Python and uv, which would install packages for minutes. They record every call.
"""

import fcntl
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.launch import HOME, nameless_user, python

LISTS = HOME / "requirements"
SCRIPTS = ("run_all.sh", "make_environment.sh")
TOOLS = "bash cat dirname env ln mkdir readlink rm sed setpriv sh stat tee"
EXTRAS = "uv torch-cpu mxnet-cu102 mxnet mxnet-cu112 torch-cu13 torch-cu12 horovod ray timm dev"
MARK = "made-by-make_environment.sh"
LOCK = "make_environment.lock"  # a regular file, whose lock holds on all hosts that share it
PYTHON = """echo "$PWD${{PIP_TARGET:-}}${{PIP_CONSTRAINT#/dev/null}}|$PYTHONPATH|$*" >>"$CALLS"
case "$*" in
    *install.py*) exec {real} "$@" ;;
    --version) echo "Python {version}" ;;
    *"-m venv "*) mkdir -p "$4/bin" "$4/lib/python3/site-packages" && ln -s "$0" "$4/bin/python" ;;
    *"pip config list"*) echo "${{SETTINGS:-}}" ;;
    *"poc environment"*)
        [ -z "${{REFUSAL:-}}" ] || exit 2
        printf '%s\\n' "${{PLAN-.venv requirements/mxnet.txt}}"
        for option in "$@"; do
            case $option in
                --torch) echo ".venv requirements/torch-cpu.txt" ;;
                --installed | --framework*) ;;
                --*) echo ".venv requirements/${{option#--}}.txt" ;;
            esac
        done ;;
    *"pip install"*)
        case "${{FAULT:-no fault}}|$*" in
            *torch-cpu*torch-cpu* | *${{FAULT:-no fault}}*${{FAULT:-no fault}}*) exit 1 ;;
        esac ;;
    *lacking.py*) echo "${{LACKING-numpy>=1.26}}" ;;
    *sys.path*) echo "/their/site-packages" ;;
    *"-c import "*${{ABSENT:-no module}}*) exit 1 ;;
esac
"""
UV = """echo "$PWD${PIP_TARGET:-}|$PYTHONPATH|${UV_TORCH_BACKEND:-}|uv $*" >>"$CALLS"
case "${UV_TORCH_BACKEND:-user}|$*" in *${FAULT:-no fault}*) exit 1 ;; esac
"""


class Checkout:
    """A copy of the set-up scripts in a folder of its own, and a folder to start them from."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "check out"  # a user's folder may have a space
        self.elsewhere = folder / "elsewhere"
        self.calls_file = folder / "calls"
        self.venv = self.root / ".venv"
        self.elsewhere.mkdir()
        shutil.copytree(LISTS, self.root / "requirements")
        for name in SCRIPTS:
            shutil.copy(HOME / name, self.root / name)
        self.prefix: list[str] = []  # of each command
        self.tools = folder / "tools"
        self.tools.mkdir()
        for tool in TOOLS.split():
            (self.tools / tool).symlink_to(str(shutil.which(tool)))
        script(self.tools / "uv", UV)

    def python(self, version: str, name: str = "python") -> Path:
        return script(self.root.parent / version / name, PYTHON.format(version=version, real=sys.executable))

    def start(
        self, name: str, *arguments: str, status: int = 0, **variables: str | Path
    ) -> subprocess.CompletedProcess[str]:
        """Start a script from another folder; `calls` then has only its calls."""
        self.calls_file.write_text("")
        environment = {"PATH": str(self.tools), "CALLS": str(self.calls_file), "HOME": str(self.elsewhere)}
        environment |= {variable: str(text) for variable, text in variables.items()}
        command = [*self.prefix, str(self.root / name), *arguments]
        done = subprocess.run(command, cwd=self.elsewhere, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done

    def calls(self, text: str) -> list[str]:
        return [line for line in self.calls_file.read_text().splitlines() if text in line]

    def installed(self) -> list[str]:
        """Return the lists that were installed, in order."""
        return [Path(line).name for line in self.calls("uv pip install")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def tree(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def only_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("python", "variables", "reason"),
    [
        ("3.13.0", {}, "is Python 3.13.0"),
        ("3.1.0", {}, "is Python 3.1.0"),
        ("2.7.18", {"PYTHON": "../2.7.18/python"}, "is Python 2.7.18"),
        ("3.11.7", {"PYTHON": "/no/such/python"}, "/no/such/python"),
        ("3.11.7", {"ABSENT": "ensurepip"}, "python3.11-venv"),
        ("3.11.7", {"ABSENT": "lzma"}, "lzma"),
    ],
)
def test_an_unsupported_python_is_one_line(
    checkout: Checkout, python: str, variables: dict[str, str], reason: str
) -> None:
    done = checkout.start("run_all.sh", **{"PYTHON": checkout.python(python), **variables}, status=2)
    assert reason in only_line(done.stderr)
    assert not checkout.venv.exists()


def test_arguments_and_folder_are_passed_unchanged_and_help_needs_no_environment(checkout: Checkout) -> None:
    assert "--quick" in checkout.start("run_all.sh", "quick", "--help", PYTHON="/no/such/python").stdout
    assert "--torch" in checkout.start("make_environment.sh", "--help", PYTHON="/no/such/python").stdout
    harmful = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_CONSTRAINT"), "/other")
    checkout.start("run_all.sh", "quick", "--data", "my data", PYTHON=checkout.python("3.11.7"), **harmful)
    start = f"-I {checkout.root}/poc/host/isolated.py poc run"
    assert checkout.calls("poc run") == [f"{checkout.elsewhere}/other/other||{start} quick --data my data"]
    # An installation reads nothing from the user's folder, or as the user's variables say.
    installs = checkout.calls("pip install")
    assert [line.split("|")[:2] for line in installs] == [["/", f"{checkout.root}/requirements/horovod_build"]] * 2
    # The command poc of the environment is started in the same way.
    checkout.start(".venv/bin/poc", "show", "my run", PYTHONPATH="/other")
    assert checkout.calls("poc show") == [f"{checkout.elsewhere}||{start.replace('poc run', 'poc show')} my run"]
    # In a copy of the checkout it is the copy's.
    written = [checkout.venv / "bin/poc", checkout.venv / "lib/python3/site-packages/poc.pth"]
    texts = [path.read_text() for path in written]
    for path in written:
        path.write_text("of the first checkout\n")
    checkout.start("run_all.sh", "quick")
    assert [path.read_text() for path in written] == texts


BASE = ["common.txt", "mxnet.txt"]


@pytest.mark.parametrize(
    ("change", "installed"),
    [("none", []), ("common.txt", BASE), ("mxnet.txt", BASE[1:]), ("python", BASE), ("interpreter", BASE)],
)
def test_a_second_start_installs_only_what_is_outdated(checkout: Checkout, change: str, installed: list[str]) -> None:
    checkout.start("run_all.sh", PYTHON=checkout.python("3.11.7"))
    assert checkout.installed() == BASE
    if change in BASE:
        (checkout.root / "requirements" / change).write_text("one-more==1.0\n")
    elif change == "interpreter":
        (checkout.venv / "bin/python").unlink()
    python = {"python": checkout.python("3.12.1"), "none": "", "mxnet.txt": ""}.get(change, checkout.python("3.11.7"))
    checkout.start("run_all.sh", PYTHON=python)
    assert checkout.installed() == installed
    assert len(checkout.calls("-m venv")) == (installed == BASE)
    assert len(checkout.calls("poc run")) == 1


@pytest.mark.parametrize("fault", BASE)
def test_a_failed_installation_is_repeated(checkout: Checkout, fault: str) -> None:
    python = checkout.python("3.11.7")
    failed = checkout.start("run_all.sh", PYTHON=python, FAULT=fault, status=2)
    *_, last = failed.stderr.splitlines()
    assert ("--installed" in last, "--framework" in last) == (True, fault != "common.txt")
    assert checkout.calls("poc run") == []
    checkout.start("run_all.sh", PYTHON=python)
    assert fault in checkout.installed()
    # What was cut off may have left half a package, but for a new environment.
    assert [Path(line).name for line in checkout.calls("--force-reinstall")] == [fault][fault == "common.txt" :]
    (checkout.root / "requirements" / "mxnet.txt").write_text("one-more==1.0\n")
    checkout.start("run_all.sh")
    assert (checkout.installed(), checkout.calls("--force-reinstall")) == (["mxnet.txt"], [])


def test_the_python_of_an_activated_environment_stands_for_the_one_that_made_it(checkout: Checkout) -> None:
    checkout.start("make_environment.sh", PYTHON=checkout.python("3.11.7"))
    path = f"{checkout.venv}/bin:{checkout.tools}"
    assert checkout.start("make_environment.sh", PYTHON="python", PATH=path).stderr == ""
    (checkout.root / "requirements" / "common.txt").write_text("one-more==1.0\n")
    checkout.start("make_environment.sh", PYTHON=checkout.venv / "bin/python")
    assert checkout.installed() == BASE


def test_a_folder_may_have_letters_that_the_locale_lacks(checkout: Checkout) -> None:
    checkout.root = checkout.root.rename(checkout.root.parent / "é")
    checkout.start("make_environment.sh", PYTHON=checkout.python("3.11.7"))
    packages = checkout.root / ".venv/lib/python3/site-packages"
    code = f"import site, sys; site.addsitedir({str(packages)!r}); print(ascii(sys.path[-1]))"
    assert python(code, LC_ALL="C").stdout.strip() == ascii(str(checkout.root))


def test_an_environment_of_which_a_part_was_removed_is_replaced(checkout: Checkout) -> None:
    python, rm = checkout.python("3.11.7"), (checkout.tools / "rm").readlink()
    checkout.start("make_environment.sh", PYTHON=python)
    (checkout.tools / "rm").unlink()
    script(checkout.tools / "rm", "exit 130")
    checkout.start("make_environment.sh", PYTHON=checkout.python("3.12.1"), status=2)
    (checkout.tools / "rm").unlink()
    (checkout.tools / "rm").symlink_to(rm)
    checkout.start("make_environment.sh", PYTHON=python)
    assert checkout.installed() == BASE


def test_a_python_that_is_broken_or_without_venv_is_left_for_another_one(checkout: Checkout) -> None:
    script(checkout.tools / "python3.11", "exit 127")
    lacking, works = checkout.python("3.10.2", "python3.10"), checkout.python("3.12.1", "python3.12")
    lacking.write_text(lacking.read_text().replace("${ABSENT:-no module}", "ensurepip"))
    path = f"{checkout.tools}:{lacking.parent}:{works.parent}"
    assert "Python 3.12.1" in checkout.start("run_all.sh", PATH=path).stderr.splitlines()[0]
    works.unlink()
    shutil.rmtree(checkout.venv)
    assert "python3.10-venv" in only_line(checkout.start("run_all.sh", PATH=path, status=2).stderr)


@pytest.mark.parametrize("form", ["folder", "link", "file"])
def test_a_folder_that_the_script_has_not_made_is_left_unchanged(checkout: Checkout, form: str, tmp_path: Path) -> None:
    target = tmp_path / "another"
    (target / MARK).mkdir(parents=True)
    if form == "link":
        checkout.venv.symlink_to(target)
    else:
        script(checkout.venv if form == "file" else checkout.venv / "mine", "mine")
    before = tree(checkout.root)
    done = checkout.start("make_environment.sh", PYTHON=checkout.python("3.11.7"), status=2)
    assert str(checkout.venv) in only_line(done.stderr)
    assert (tree(checkout.root), (target / MARK).exists()) == (before, True)


def test_a_file_that_cannot_be_written_is_one_line(checkout: Checkout) -> None:
    checkout.start("make_environment.sh", PYTHON=checkout.python("3.11.7"))
    (checkout.venv / "bin/poc").unlink()
    (checkout.venv / "bin/poc").mkdir()
    assert f"{checkout.venv}/bin/poc" in only_line(checkout.start("make_environment.sh", status=2).stderr)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_environment_of_another_user_is_used_but_not_replaced(checkout: Checkout) -> None:
    checkout.start("run_all.sh", PYTHON=checkout.python("3.11.7"))
    checkout.calls_file.chmod(0o666)
    checkout.prefix = nameless_user(checkout.root.parent)
    assert checkout.start("run_all.sh").stderr == ""
    assert len(checkout.calls("poc run")) == 1
    done = checkout.start("run_all.sh", PYTHON=checkout.python("3.12.1"), status=2)
    assert f"{checkout.venv} belongs to root: " in only_line(done.stderr)


def test_a_second_start_waits_for_the_first(checkout: Checkout) -> None:
    lock = os.open(checkout.root / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    environment = {"PATH": str(checkout.tools), "CALLS": str(checkout.calls_file), "HOME": str(checkout.elsewhere)}
    environment["PYTHON"] = str(checkout.python("3.11.7"))
    command = [str(checkout.root / "make_environment.sh")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as second:
        assert second.stderr is not None
        assert str(checkout.venv) not in second.stderr.readline()  # it does not set it up yet
        assert not checkout.venv.exists()
        os.close(lock)
        second.communicate()
    assert second.returncode == 0
    assert checkout.venv.exists()


@pytest.mark.parametrize("plan", ["results requirements/mxnet.txt", ".venv-x/../results requirements/mxnet.txt", ""])
def test_other_output_is_no_folder_to_replace(checkout: Checkout, plan: str) -> None:
    checkout.start("make_environment.sh", PYTHON=checkout.python("3.11.7"))
    before = tree(checkout.root)
    assert plan in only_line(checkout.start("run_all.sh", PLAN=plan, status=2).stderr)
    checkout.start("run_all.sh", REFUSAL="yes", status=2)
    assert (tree(checkout.root), checkout.calls("poc run")) == (before, [])


def test_another_build_of_mxnet_replaces_the_first(checkout: Checkout) -> None:
    plan = ".venv requirements/mxnet-cu112.txt\n.venv-pytorch requirements/torch-cu12.txt"
    checkout.start("run_all.sh", PYTHON=checkout.python("3.11.7"))
    checkout.start("run_all.sh", PLAN=plan)
    assert len(checkout.calls("pip uninstall --quiet --yes mxnet ")) == 1
    assert checkout.installed() == ["mxnet-cu112.txt", "common.txt", "torch-cu12.txt"]
    assert checkout.start("run_all.sh", PLAN=plan).stderr == ""
    checkout.start("run_all.sh")
    assert checkout.installed() == ["mxnet.txt"]


def test_an_environment_has_the_packages_of_one_build_or_of_the_named_python(checkout: Checkout) -> None:
    linked = checkout.root / ".venv-pytorch/lib/python3/site-packages/installed.pth"
    mxnet, cu12, cu13 = (f"requirements/{name}.txt" for name in ("mxnet", "torch-cu12", "torch-cu13"))
    plans = {name: f".venv {mxnet}\n.venv-pytorch {name}" for name in ("installed", cu12, cu13)}
    checkout.start("run_all.sh", PYTHON=checkout.python("3.11.7"), PLAN=plans["installed"])
    for name in (cu12, cu13, cu12, "installed"):
        checkout.start("run_all.sh", PLAN=plans[name])  # the Python that was named at the first start
        assert (linked.exists() and linked.read_text()) == ("/their/site-packages\n" if name == "installed" else False)
        assert checkout.installed() == ["common.txt", *([] if name == "installed" else [Path(name).name])]
        assert checkout.start("run_all.sh", PLAN=plans[name]).stderr == ""
        assert checkout.installed() == []


def test_installed_downloads_nothing_and_names_what_is_lacking(checkout: Checkout) -> None:
    python = checkout.python("3.11.7")
    refused = checkout.start("run_all.sh", "--installed", PYTHON=python, LACKING="pandas>=2.1\nscipy>=1.11", status=2)
    assert "pandas>=2.1, scipy>=1.11" in refused.stderr.splitlines()[-1]
    checkout.start("run_all.sh", "quick", "--installed", PYTHON=python, PLAN="", LACKING="")
    assert (checkout.calls("pip install"), checkout.calls("poc environment --installed") != []) == ([], True)
    assert checkout.calls("poc run")[0].endswith("poc run quick")
    checkout.start("run_all.sh", "--installed", PLAN="", LACKING="")
    assert checkout.calls("-m venv") == []
    # Without it the pinned packages are installed, or if there is no network the others stay.
    done = checkout.start("run_all.sh", FAULT="common", LACKING="", PLAN=".venv-pytorch installed")
    assert done.stderr.count("Using the packages of") == 1
    assert len(checkout.calls("poc environment --installed")) == 1  # nothing else that would have to be downloaded
    assert len(checkout.calls("-m venv")) == 1  # the borrowed packages stay; the new one downloads nothing, either
    assert checkout.start("run_all.sh", FAULT="common", LACKING="scipy>=1.11", status=2).stderr.count("scipy") == 1
    checkout.start("run_all.sh")
    assert checkout.installed() == BASE


def test_installed_uses_the_packages_of_the_python_that_is_named_now(checkout: Checkout) -> None:
    first, second = checkout.python("3.11.7"), checkout.python("3.11.7", "second")
    second.write_text(second.read_text().replace("/their/", "/second/"))
    for named in (first, second):
        checkout.start("run_all.sh", "--installed", PYTHON=named, PLAN="", LACKING="")
    linked = checkout.venv / "lib/python3/site-packages/installed.pth"
    assert linked.read_text() == "/second/site-packages\n"
    assert checkout.calls("-m venv") == []
    lacking = checkout.start("run_all.sh", "--installed", PYTHON=first, PLAN="", LACKING="scipy>=1.11", status=2)
    assert "scipy>=1.11" in lacking.stderr.splitlines()[-1]


@pytest.mark.parametrize("words", [["--framework", "pytorch"], ["--framework=pytorch"]])
def test_one_framework_is_installed_and_used(checkout: Checkout, words: list[str]) -> None:
    checkout.start("run_all.sh", "quick", *words, "--hours", "2", PYTHON=checkout.python("3.11.7"))
    assert checkout.calls("poc environment")[0].endswith(" ".join(["poc environment", *words]))
    assert checkout.calls("poc run")[0].endswith("poc run quick --set framework=pytorch --hours 2")


@pytest.mark.parametrize(
    ("fault", "attempts"),
    [
        ("no fault", [("", "torch-cpu.txt")]),
        ("user*torch-cpu", [("", "torch-cpu.txt"), ("cpu", "torch-cpu.txt")]),
        ("torch-cpu", [("", "torch-cpu.txt"), ("cpu", "torch-cpu.txt"), ("", "torch-cu13.txt")]),
    ],
)
def test_pytorch_for_cpus_comes_from_the_index_of_the_user_or_pytorch_or_is_for_cuda(
    checkout: Checkout, fault: str, attempts: list[tuple[str, str]]
) -> None:
    done = checkout.start("make_environment.sh", "--torch", PYTHON=checkout.python("3.11.7"), FAULT=fault)
    calls = [line.split("|")[2:] for line in checkout.calls("requirements/torch") if "|uv " in line]
    assert [(backend, Path(command).name) for backend, command in calls] == attempts
    assert ("5 GB" in done.stderr) == (len(attempts) == 3)
    assert checkout.start("make_environment.sh", "--torch", FAULT=fault).stderr == ""


def test_settings_of_pip_are_passed_to_uv_and_without_uv_pip_installs(checkout: Checkout) -> None:
    settings = ":env:.find-links='/a /b'\nglobal.find-links='/c'\nglobal.index-url='http://i/?x=1'\nglobal.no-index='1'"
    python = checkout.python("3.11.7")
    options = " --find-links=/a --find-links=/b --index-url=http://i/?x=1 --no-index --quiet "
    checkout.start("make_environment.sh", PYTHON=python, SETTINGS=f"{settings}\nglobal.constraint='/d'")
    assert all(options in line for line in checkout.calls("uv pip install"))
    shutil.rmtree(checkout.venv)
    (checkout.tools / "uv").unlink()
    checkout.start("make_environment.sh", PYTHON=python)
    lists = [Path(line).name for line in checkout.calls("-m pip install")]
    assert lists == ["uv.txt", "common.txt", "mxnet.txt"]


def pins(*names: str) -> dict[str, tuple[str, str]]:
    """Return version and marker by package, of the common list and others; fail if a line has no hash."""
    line_format = re.compile(
        r'([A-Za-z0-9_.-]+)={2,3}([0-9][0-9a-z.+]*)(?:; (python_version < "3\.\d+"))?(?: --hash=sha256:[0-9a-f]{64})+'
    )
    texts = [(LISTS / f"{name}.txt").read_text() for name in {"common", *names}]
    lines = [line for text in texts for line in re.sub(r" \\\n +", " ", text).splitlines()]
    matches = {line: line_format.fullmatch(line) for line in lines if line and not line.startswith("#")}
    assert all(matches.values()), matches
    versions = {canonicalize_name(match[1]): (match[2], match[3] or "") for match in matches.values() if match}
    assert len(versions) == len(matches) > 0, "a package is named twice"
    return versions


@pytest.mark.parametrize("extra", ["", *EXTRAS.split()])
def test_every_requirement_is_pinned_once_and_within_the_ranges_of_pyproject(extra: str) -> None:
    project = pytest.importorskip("tomllib").loads((HOME / "pyproject.toml").read_text())["project"]
    names = {"torch-cu13": ["torch", extra], "torch-cu12": [extra], "": []}.get(extra, [extra])
    requirements = project["optional-dependencies"].get(re.sub("-cu1[23]", "", extra), project["dependencies"])
    versions = pins(*names)
    for requirement in map(Requirement, requirements):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)][0]), requirement


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.10", "3.12"])
def test_every_pinned_version_is_for_every_python(python: str, tmp_path: Path) -> None:
    """All but those of tests alone, and of PyTorch's own index."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("uv is not installed")
    options = ["--no-deps", "--require-hashes", "--python-version", python, "--target", str(tmp_path)]
    refused = {}
    for path in sorted(LISTS.glob("*.txt")):
        if path.stem not in ("torch-cpu", "trackers"):
            command = [uv, "pip", "install", "--dry-run", *options, "-r", str(path)]
            done = subprocess.run(command, capture_output=True, text=True)
            if "Failed to fetch" in done.stderr:
                pytest.skip("no package index")
            refused |= {path.stem: done.stderr} if done.returncode else {}
    assert refused == {}


def test_the_lists_contain_all_that_their_packages_need_in_these_versions() -> None:
    """With --no-deps nothing else is installed."""
    versions = pins("mxnet", "dev")
    for package, (version, marker) in versions.items():
        if package.startswith("mxnet") or (marker and not Marker(marker).evaluate()):
            continue
        assert importlib.metadata.version(package) == version
        for requirement in map(Requirement, importlib.metadata.requires(package) or ()):
            if package != "selenium" and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)][0]), requirement
