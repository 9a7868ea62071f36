"""Check that every library which MXNet's CUDA build opens, at its start or later, is found with a driver alone.

    .venv/bin/python -m tools.check_cuda_libraries [FOLDER]

No GPU is needed: an empty library replaces the driver's. LD_LIBRARY_PATH leads to broken files with the names of those
that are opened later, as another version of cuDNN may on an image for deep learning. FOLDER has the packages of
requirements/mxnet-cu112.txt (`pip install --no-deps --target FOLDER -r ...`, 4 GB), or is the site-packages of an
environment with requirements.txt; by default a temporary one. Exit code 1 if a library is not found.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
# cuDNN opens its parts at the first convolution, NVRTC its built-ins at the first kernel.
OPENED_LATER = re.compile(rb"lib(?:cu[a-z]+|nv[a-z]+|nccl)[\w-]*\.so(?:\.\d+)+")
# The driver's, and those of recurrent networks.
EXCLUDED = re.compile(r"libcuda\.|libnvidia|libcudnn_adv")


def main() -> int:
    """Start this module again, in the environment of such a machine."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else f"{scratch}/site").resolve()
        if not folder.exists():
            command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
            subprocess.run([*command, "--target", folder, "-r", HOME / "requirements" / "mxnet-cu112.txt"], check=True)
        driver = Path(scratch) / "driver"
        driver.mkdir()
        make_driver(folder, driver)
        paths = {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": f"{folder}:{HOME}"}
        code = f"from tools.check_cuda_libraries import *; sys.exit(check(Path({str(folder)!r})))"
        return subprocess.run([sys.executable, "-c", code], env={**os.environ, **paths}).returncode


def make_driver(folder: Path, driver: Path) -> None:
    """Compile libcuda.so.1 with every function of the driver that a library in `folder` is linked to; each fails."""
    functions: set[str] = set()
    for library in folder.rglob("*.so*"):
        listed = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True).stdout
        functions |= set(re.findall(r" U (cu[A-Z]\w*)$", listed, re.MULTILINE))
    source = driver / "driver.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(functions)))
    options = ["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o"]
    subprocess.run(["gcc", *options, str(driver / "libcuda.so.1"), str(source)], check=True)
    for library in (*folder.rglob("libcudnn_*"), *folder.rglob("libnvrtc-builtins*")):
        (driver / library.name).touch()


def check(folder: Path) -> int:
    """Import MXNet, compute on the CPU, and open every library that may be opened later."""
    from poc.frameworks.mxnet import prepare

    prepare()
    import mxnet as mx

    assert mx.__file__.startswith(str(folder)), mx.__file__
    assert mx.runtime.Features().is_enabled("CUDA")
    assert float(mx.nd.ones((2, 3)).sum().asscalar()) == 6
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line}
    names = {name.decode() for path in loaded for name in OPENED_LATER.findall(Path(path).read_bytes())}
    missing = []
    for name in sorted(name for name in names if not EXCLUDED.search(name)):
        try:
            ctypes.CDLL(name)
        except OSError as error:
            missing.append(f"{name}: {error}")
    print(f"mxnet {mx.__version__}: {len(names)} libraries, not found: {missing}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
