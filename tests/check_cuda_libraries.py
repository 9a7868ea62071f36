"""Whether every library that MXNet's CUDA build opens, at its start or later, is found where there is but a driver.

    .venv/bin/python -m tests.check_cuda_libraries [FOLDER]

No GPU is needed: an empty library stands for the driver's. Beside it, where LD_LIBRARY_PATH leads, lie broken files
with the names of what is opened later, as another version of cuDNN may on an image for deep learning. FOLDER holds what
requirements/mxnet-cu112.txt installs (`pip install --no-deps --target FOLDER -r ...`, 4 GB), or is the site-packages of
an environment that requirements.txt is installed in; without it a temporary one does. Exit code 1 where a library is
not found.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
REQUIREMENTS = HOME / "requirements" / "mxnet-cu112.txt"
# What a library may open while it works: cuDNN's parts at the first convolution, NVRTC's built-ins at the first kernel.
OPENED_LATER = re.compile(rb"lib(?:cu[a-z]+|nv[a-z]+|nccl)[\w-]*\.so(?:\.\d+)*")
# Of the driver; of recurrent networks.
NOT_OURS = re.compile(r"libcuda\.|libnvidia|libcudnn_adv")
KERNEL = b'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'


def main() -> int:
    """Prints what was opened and what was not found; returns the exit code."""
    if os.environ.get("POC_CHECK_INSIDE"):
        return inside(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else f"{scratch}/site").resolve()
        if not folder.exists():
            command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
            subprocess.run([*command, "--target", str(folder), "-r", str(REQUIREMENTS)], check=True)
        driver = Path(scratch) / "driver"
        driver.mkdir()
        make_driver(folder, driver)
        given = {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": f"{folder}{os.pathsep}{HOME}", "POC_CHECK_INSIDE": "yes"}
        command = [sys.executable, "-m", "tests.check_cuda_libraries", str(folder)]
        return subprocess.run(command, env={**os.environ, **given}).returncode


def make_driver(folder: Path, driver: Path) -> None:
    """Compiles libcuda.so.1 with every function of the driver that a library in `folder` is linked to; each fails."""
    called: set[str] = set()
    for library in folder.rglob("*.so*"):
        listed = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True).stdout
        called |= set(re.findall(r" U (cu[A-Z]\w*)$", listed, re.MULTILINE))
    source = driver / "driver.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(called)))
    options = ["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o"]
    subprocess.run(["gcc", *options, str(driver / "libcuda.so.1"), str(source)], check=True)
    for library in (*folder.rglob("libcudnn_*"), *folder.rglob("libnvrtc-builtins*")):
        (driver / library.name).touch()


def inside(folder: Path) -> int:
    """The check itself, where the driver is a stand-in."""
    from poc.frameworks.mxnet import compatibility

    compatibility.prepare()
    import mxnet as mx

    assert mx.__file__.startswith(str(folder)), mx.__file__
    assert mx.runtime.Features().is_enabled("CUDA")
    assert float(mx.nd.ones((2, 3)).sum().asscalar()) == 6
    print(f"mxnet {mx.__version__} for CUDA starts, and computes on the CPU")
    missing = []
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line}
    names = {name.decode() for path in loaded for name in OPENED_LATER.findall(Path(path).read_bytes())}
    for name in sorted(name for name in names if not NOT_OURS.search(name) and re.search(r"\.so\.\d", name)):
        try:
            ctypes.CDLL(name)
            print(f"found    {name}")
        except OSError as error:
            missing.append(name)
            print(f"MISSING  {name}: {error}")
    print(f"NVRTC    compiles without a GPU to PTX {ptx_version()}")
    return 1 if missing else 0


def ptx_version() -> str:
    """Of what NVRTC makes of a kernel: a driver older than that cannot read it."""
    nvrtc = ctypes.CDLL("libnvrtc.so.11.2")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), KERNEL, None, 0, None, None) == 0
    assert nvrtc.nvrtcCompileProgram(program, 0, None) == 0
    assert nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetPTX(program, text) == 0
    return re.search(rb"\.version (\S+)", text.value)[1].decode()  # type: ignore[index]


if __name__ == "__main__":
    sys.exit(main())
