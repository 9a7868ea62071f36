"""The set-up scripts as a user starts them, on copies, with faults made on purpose.

A shell script stands in for the interpreter where a real one would install packages for minutes. It does
what the scripts ask of a Python (print its version, make an environment) and notes every call.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.pin_requirements import HOME as ROOT
from tests.pin_requirements import LISTS as FOLDER
from tests.pin_requirements import STACK, stack

EXTRAS = ("ray", "horovod")
LISTS = sorted(FOLDER.glob("*.txt"))
COPIED = ["run_all.sh", "make_environment.sh", "tests/run.sh", *(f"requirements/{path.name}" for path in LISTS)]

MARK = "made-by-make_environment.sh"
STAND_IN = """echo "$PWD|$PYTHONPATH|$*" >>"$CALLS"
case "$*" in
    --version) echo "Python {version}" ;;
    *"-m venv "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && cp "$0" "$4/bin/lint-imports" ;;
    *"-m pip install "*) exit "${{EXIT_OF_PIP:-0}}" ;;
    *"poc environment"*) printf '%s\\n' "${{PLAN-.venv requirements/mxnet.txt}}" ;;
    *sys.executable*) echo "$0" ;;
    *) ;;
esac
"""


class Checkout:
    """A copy of the set-up scripts in a folder of its own, and a folder to start them from."""

    def __init__(self, folder: Path) -> None:
        # The space is on purpose: a user's folder may have one.
        self.root = folder / "check out"
        self.elsewhere = folder / "elsewhere"
        self.calls_file = folder / "calls"
        self.venv = self.root / ".venv"
        self.elsewhere.mkdir()
        for name in COPIED:
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)

    def stand_in(self, version: str, name: str = "python") -> Path:
        return script(self.root.parent / version / name, STAND_IN.format(version=version))

    def start(
        self, name: str, *arguments: str, status: int = 0, **environment: str | Path
    ) -> subprocess.CompletedProcess[str]:
        """Starts a script from another folder, with only those calls in the notes that it made."""
        self.calls_file.write_text("")
        inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "PYTHONPATH", "PYTHONSAFEPATH")}
        given = {name: str(value) for name, value in environment.items()}
        command, variables = [str(self.root / name), *arguments], {**inherited, "CALLS": str(self.calls_file), **given}
        done = subprocess.run(command, cwd=self.elsewhere, env=variables, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done

    def refuse(self, name: str, *arguments: str, **environment: str | Path) -> str:
        """The line with which a script ends before it made anything."""
        done = self.start(name, *arguments, status=2, **environment)
        assert not self.venv.exists()
        return only_line(done.stderr)

    def calls(self, containing: str) -> list[str]:
        return [line for line in self.calls_file.read_text().splitlines() if containing in line]

    def call(self, containing: str) -> str:
        return only_line("\n".join(self.calls(containing)))

    def installed(self) -> list[str]:
        """The requirements that were installed, in order."""
        return [Path(line.split()[-1]).name for line in self.calls("-m pip install")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file in it, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def only_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def tools_only(folder: Path, *others: str) -> Path:
    """A folder for PATH that holds what the scripts call, and no Python."""
    folder.mkdir()
    for tool in ("bash", "cat", "dirname", "flock", "grep", "mkdir", "readlink", "rm", "sha256sum", "tail", *others):
        path = shutil.which(tool)
        assert path, f"{tool} is not on this machine"
        (folder / tool).symlink_to(path)
    return folder


@pytest.mark.parametrize("name", ["run_all.sh", "tests/run.sh"])
@pytest.mark.parametrize("version", ["3.13.0", "3.8.18", "3.1.0", "2.7.18"])
def test_a_python_out_of_range_is_one_line(checkout: Checkout, name: str, version: str) -> None:
    line = checkout.refuse(name, PYTHON=checkout.stand_in(version))
    assert re.search(f"Python {version}.* 3.9 to 3.12", line)


def test_a_python_that_does_not_start_none_that_is_old_enough_and_an_unknown_option_are_one_line(
    checkout: Checkout, tmp_path: Path
) -> None:
    assert "PYTHON=/no/such/python" in checkout.refuse("run_all.sh", PYTHON="/no/such/python")
    assert "--horrorvod" in checkout.refuse("make_environment.sh", "--horrorvod")
    newer = checkout.stand_in("3.14.0", "python3").parent
    line = checkout.refuse("run_all.sh", PATH=f"{newer}:{tools_only(tmp_path / 'tools')}")
    assert "apt-get install python3.11 python3.11-venv" in line


def test_a_shim_that_fails_is_passed_over(checkout: Checkout, tmp_path: Path) -> None:
    path = tools_only(tmp_path / "tools", "cp")
    script(path / "python3.11", "echo 'shim: python3.11: command not found' >&2; exit 127")
    working = checkout.stand_in("3.12.1", "python3").parent
    done = checkout.start("run_all.sh", PATH=f"{path}:{working}")
    assert "Python 3.12.1" in done.stderr.splitlines()[0]


def test_missing_system_libraries_or_venv_are_one_line_with_their_packages(checkout: Checkout, tmp_path: Path) -> None:
    for library in ("libquadmath.so.0", "libgomp.so.1"):
        (tmp_path / library).write_bytes(b"")
    line = checkout.refuse("run_all.sh", PYTHON=sys.executable, LD_LIBRARY_PATH=tmp_path)
    assert line.endswith("sudo apt-get install libquadmath0 libgomp1")
    # As Debian has it without python3-venv: a Python whose ensurepip cannot be imported.
    text = f'case "$*" in *ensurepip*) exit 1 ;; esac\nexec "{sys.executable}" "$@"'
    line = checkout.refuse("run_all.sh", PYTHON=script(tmp_path / "python", text))
    assert "sudo apt-get install python3-venv" in line


def test_help_needs_no_environment(checkout: Checkout) -> None:
    said = checkout.start("run_all.sh", "quick", "--help", PYTHON="/no/such/python").stdout
    assert all(option in said for option in ["RECIPE", "--quick", "--data", "--results", "--machine"])
    assert not checkout.venv.exists()


def test_run_all_hands_on_arguments_and_folder_unchanged(checkout: Checkout) -> None:
    checkout.start("run_all.sh", "quick", "--data", "my data", PYTHON=checkout.stand_in("3.11.7"), PYTHONPATH="/other")
    start = f"-I {checkout.root}/poc/host/isolated.py poc run"
    assert checkout.calls("poc run") == [f"{checkout.elsewhere}||{start} quick --data my data"]


def test_second_start_installs_nothing_and_keeps_the_python(checkout: Checkout) -> None:
    checkout.start("run_all.sh", PYTHON=checkout.stand_in("3.10.99"))
    assert checkout.installed() == ["common.txt", "mxnet.txt"]
    for environment in [{}, {"PYTHON": checkout.stand_in("3.10.99")}]:
        assert checkout.start("run_all.sh", **environment).stderr == ""
        assert checkout.calls("-m pip install") == []
        assert len(checkout.calls("poc run")) == 1


def test_a_failed_installation_is_made_again_from_nothing(checkout: Checkout) -> None:
    python = checkout.stand_in("3.11.7")
    checkout.start("run_all.sh", PYTHON=python, EXIT_OF_PIP="1", status=1)
    assert checkout.calls("poc ") == []
    (checkout.venv / "left-over").touch()
    checkout.start("run_all.sh", PYTHON=python)
    assert checkout.installed() == ["common.txt", "mxnet.txt"]
    assert not (checkout.venv / "left-over").exists()


@pytest.mark.parametrize("fault", ["requirements", "python", "interpreter"])
def test_an_environment_that_no_longer_fits_is_made_again(checkout: Checkout, fault: str) -> None:
    checkout.start("run_all.sh", PYTHON=checkout.stand_in("3.11.7"))
    (checkout.venv / MARK).unlink()  # earlier versions made none
    if fault == "requirements":
        with (checkout.root / "requirements/common.txt").open("a") as file:
            file.write("one-more==1.0\n")
    elif fault == "interpreter":
        (checkout.venv / "bin" / "python").unlink()
    checkout.start("run_all.sh", PYTHON=checkout.stand_in("3.12.1" if fault == "python" else "3.11.7"))
    assert len(checkout.calls("-m venv")) == 1
    assert len(checkout.installed()) == 2
    assert (checkout.venv / MARK).exists()


@pytest.mark.parametrize("form", ["folder", "link to an environment", "link to nowhere", "file"])
def test_what_the_script_has_not_made_it_leaves_as_it_is(checkout: Checkout, form: str, tmp_path: Path) -> None:
    python, target = checkout.stand_in("3.11.7"), tmp_path / "another"
    if form.startswith("link"):
        checkout.venv.symlink_to(target)
    if form == "file":
        checkout.venv.write_text("mine")
    elif form != "link to nowhere":
        (checkout.venv if form == "folder" else target).mkdir()
        (checkout.venv / "mine").write_text("mine")
        (checkout.venv / "installed-by-hand").write_text("Python 3.9\n")
    if form == "link to an environment":
        (target / MARK).touch()
    before = tree(checkout.root), tree(tmp_path / "another")
    line = only_line(checkout.start("make_environment.sh", PYTHON=python, status=2).stderr)
    assert str(checkout.venv) in line
    assert (tree(checkout.root), tree(tmp_path / "another")) == before
    assert checkout.calls("-m ") == []


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ("results of my runs loaded\n.venv requirements/mxnet.txt", "results of my runs loaded"),
        ("results requirements/mxnet.txt", "results requirements/mxnet.txt"),
        (".venv-x/../results requirements/mxnet.txt", ".venv-x/../results"),
        (".venv-pytorch requirements/unheard-of.txt", "requirements/unheard-of.txt"),
        (".venv ../requirements/mxnet.txt", "../requirements/mxnet.txt"),
        (".venv requirements/mxnet.txt and more", "and more"),
        ("", "''"),
    ],
)
def test_a_printed_word_is_no_folder_to_be_made_anew(checkout: Checkout, plan: str, named: str) -> None:
    journal = checkout.root / "results" / "here" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text("{}\n")
    checkout.start("make_environment.sh", PYTHON=checkout.stand_in("3.11.7"))
    before = tree(checkout.root)
    assert named in only_line(checkout.start("run_all.sh", PLAN=plan, status=2).stderr)
    assert tree(checkout.root) == before
    assert checkout.calls("poc run") == []


def test_engines_go_where_the_plan_says_and_another_mxnet_takes_the_place_of_the_first(checkout: Checkout) -> None:
    cards = ".venv requirements/mxnet-cu112.txt\n.venv-pytorch requirements/torch-cu12.txt"
    checkout.start("run_all.sh", PYTHON=checkout.stand_in("3.11.7"))
    checkout.start("run_all.sh", PLAN=cards)
    made = [line.split()[-1] for line in checkout.calls("-m venv ")]
    assert [Path(folder).name for folder in made] == [".venv", ".venv-pytorch"]
    assert checkout.installed() == ["common.txt", "mxnet-cu112.txt", "common.txt", "torch-cu12.txt"]
    # Of gigabytes nothing is kept twice.
    assert all("--no-cache-dir" in line for line in checkout.calls("-cu1"))
    assert checkout.start("run_all.sh", PLAN=cards).stderr == ""
    refused = checkout.start("make_environment.sh", "--horovod", PLAN=cards, status=2)
    assert "--horovod" in only_line(refused.stderr)


def test_the_choice_of_engines_can_refuse(checkout: Checkout) -> None:
    python = checkout.stand_in("3.11.7")
    python.write_text(python.read_text().replace('*"poc environment"*)', '*"poc environment"*) exit 2;'))
    checkout.start("run_all.sh", PYTHON=python, status=2)
    assert checkout.calls("poc run") == []


def test_the_tests_add_their_packages_to_the_same_environment(checkout: Checkout, tmp_path: Path) -> None:
    python = checkout.stand_in("3.11.7")
    checkout.start("run_all.sh", PYTHON=python)
    compiler = [script(tmp_path / "compiler" / tool, "exit 1").parent for tool in ("g++", "cmake", "make")].pop()
    path = f"{os.environ['PATH']}:{compiler}"
    checkout.start("tests/run.sh", "-k", "a b", PYTHON=python, PATH=path)
    assert checkout.calls("-m venv") == []
    added = checkout.calls("-m pip install")
    assert [line.rpartition("/")[2] for line in added] == [f"{name}.txt" for name in ("dev", *EXTRAS)]
    assert checkout.calls("poc environment pytorch")
    assert all("--require-hashes" in line for line in added)
    for check in [
        "ruff check .",
        "ruff format --check .",
        "mypy poc tools tests/frameworks/seam.py",
        "pytest -q -n 2 --dist worksteal -k a b",
    ]:
        assert checkout.call(f"-m {check}").startswith(f"{checkout.root}|")
    checkout.start("tests/run.sh", PYTHON=python, PATH=path)
    assert checkout.calls("-m pip install") == []


def test_tests_that_need_what_cannot_be_had_are_named_and_the_others_run(checkout: Checkout, tmp_path: Path) -> None:
    python = checkout.stand_in("3.11.7")
    python.write_text(python.read_text().replace('*"-m pip', '*"-m pip"*requirements/ray.txt) exit 1 ;;\n    *"-m pip'))
    path = tools_only(tmp_path / "tools", "cp", "sh", "env")  # and no compiler for Horovod
    done = checkout.start("tests/run.sh", PYTHON=python, PATH=path)
    assert done.stderr.splitlines()[-1].endswith(": ray horovod")
    assert checkout.calls("-m pytest")
    done = checkout.start("tests/run.sh", "--quick", PYTHON=python, PATH=path)
    assert done.stderr == ""  # nothing of these is needed, or tried
    assert checkout.calls("-m pytest")


def test_horovod_is_built_once_against_mxnet(checkout: Checkout) -> None:
    python = checkout.stand_in("3.11.7")
    for _ in range(2):
        checkout.start("make_environment.sh", "--horovod", PYTHON=python)
    assert checkout.calls("-m pip install") == []
    shutil.rmtree(checkout.venv)
    checkout.start("make_environment.sh", "--horovod", PYTHON=python)
    *others, built = checkout.calls("-m pip install")
    # A file with another hash is refused.
    assert all("--require-hashes" in line for line in [*others, built])
    assert "--no-build-isolation" in built
    assert built.endswith("requirements/horovod.txt")
    shim = Path(built.split("|")[1])
    assert shim.name
    assert not shim.exists()


def test_pytorch_is_asked_for_by_name(checkout: Checkout) -> None:
    checkout.start("make_environment.sh", "--torch", PYTHON=checkout.stand_in("3.11.7"))
    assert checkout.call("poc ").endswith("poc environment pytorch")


def test_a_build_without_a_compiler_is_one_line(checkout: Checkout, tmp_path: Path) -> None:
    python = checkout.stand_in("3.11.7")
    checkout.start("make_environment.sh", PYTHON=python)
    tools = tools_only(tmp_path / "tools", "ldconfig", "sh", "env")
    done = checkout.start("make_environment.sh", "--horovod", PYTHON=python, PATH=tools, status=2)
    assert "sudo apt-get install g++ cmake make" in only_line(done.stderr.split("\n", 1)[1].strip())


def pins(*paths: Path) -> dict[str, tuple[str, str]]:
    """Version and environment marker by name of package, of every line in the lists; fails where a line has no hash."""
    line_format = re.compile(
        r'([A-Za-z0-9_.-]+)==([0-9][0-9a-z.]*)(?:; (python_version (?:<|>=) "3\.\d+"))?(?: --hash=sha256:[0-9a-f]{64})+'
    )
    lines = [line for path in paths for line in re.sub(r" \\\n +", " ", path.read_text()).splitlines()]
    matches = {line: line_format.fullmatch(line) for line in lines if line and not line.startswith("#")}
    assert all(matches.values()), matches
    versions = {canonicalize_name(match[1]): (match[2], match[3] or "") for match in matches.values() if match}
    assert len(versions) == len(matches) > 0, "a package is named twice"
    return versions


@pytest.mark.parametrize("path", [STACK, *LISTS], ids=lambda path: path.name)
def test_every_requirement_is_pinned_and_named_once(path: Path) -> None:
    pins(path)


def test_the_stack_is_its_lists() -> None:
    assert STACK.read_text() == stack(), "start tests/pin_requirements.py"
    assert pins(STACK) == pins(FOLDER / "common.txt", FOLDER / "mxnet-cu112.txt")


@pytest.mark.parametrize("name", ["common.txt", "dev.txt"])
def test_what_is_installed_here_is_what_is_pinned(name: str) -> None:
    for package, (version, marker) in pins(FOLDER / name).items():
        if not marker or Marker(marker).evaluate():
            assert importlib.metadata.version(package) == version


def test_pip_finds_in_the_lists_all_that_their_packages_ask_for() -> None:
    """With hashes, pip refuses to add a package that has no pin."""
    versions = pins(FOLDER / "common.txt", FOLDER / "mxnet.txt")
    for package in versions:
        try:
            required = importlib.metadata.requires(package) or ()
        except (
            importlib.metadata.PackageNotFoundError
        ):  # of another Python, or MXNet where a build for GPUs is installed
            continue
        for requirement in map(Requirement, required):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                version, _ = versions[canonicalize_name(requirement.name)]
                assert requirement.specifier.contains(version), f"{package}: {requirement}"


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ("", ["common"]),
        ("mxnet", ["common", "mxnet"]),
        ("mxnet-cu112", ["common", "mxnet-cu112"]),
        ("torch", ["torch"]),
        ("torch", ["torch-cu12"]),
        ("horovod", ["horovod"]),
        ("ray", ["ray"]),
        ("dev", ["dev"]),
    ],
)
def test_the_pinned_versions_are_within_the_ranges_of_pyproject(extra: str, names: list[str]) -> None:
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    versions = pins(*(FOLDER / f"{name}.txt" for name in names))
    for requirement in map(Requirement, wanted):
        version, _ = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement


@pytest.mark.slow
def test_the_package_has_every_file_of_its_folder_and_the_command(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "poc", tmp_path / "poc", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    pip = [
        sys.executable,
        "-I",
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        tmp_path,
    ]
    subprocess.run(pip, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (commands,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert {f"poc/{name}" for name in tree(tmp_path / "poc")} == {name for name in names if name.startswith("poc/")}
    assert "poc = poc.__main__:main" in commands
