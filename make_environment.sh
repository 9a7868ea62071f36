#!/usr/bin/env bash
# Makes .venv beside this script, for run_all.sh and tests/run.sh: a Python 3.9 to 3.12 with the pinned requirements
# for this machine (with --dev those of the tests too, with --horovod Horovod, with --torch PyTorch). Does nothing where
# that is already so.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
venv=$here/.venv
# Each stamp is written after its packages, so an installation that was cut off has none and is made again.
stamp=$venv/installed

stop() {
    printf '%s\n' "$1" >&2
    exit 2
}

# Prints the version; fails where the command is absent, out of range, or a version manager's shim that leads nowhere.
supported_version() {
    local version
    version=$("$1" --version 2>/dev/null) || return 1
    case $version in
        "Python 3.9."* | "Python 3.10."* | "Python 3.11."* | "Python 3.12."*) printf '%s' "$version" ;;
        *) return 1 ;;
    esac
}

find_python() {
    local candidate made_with=
    if [ -n "${PYTHON:-}" ]; then
        version=$(supported_version "$PYTHON") || stop "PYTHON=$PYTHON is $("$PYTHON" --version 2>/dev/null ||
            echo 'not a Python that starts'), but a Python 3.9 to 3.12 is needed: name one, or leave PYTHON unset to search for it."
        python=$PYTHON
        return
    fi
    # The Python that .venv was made with comes first, so that PYTHON= is needed only the first time.
    [ ! -f "$stamp" ] || read -r made_with <"$stamp" || true
    for candidate in ${made_with:+"$made_with"} python3.11 python3.10 python3.12 python3.9 python3; do
        if version=$(supported_version "$candidate"); then
            python=$candidate
            return
        fi
    done
    stop "No Python 3.9 to 3.12 found: install one (sudo apt-get install python3.11 python3.11-venv;\
 where the distribution has none: pyenv install 3.11), or name it: PYTHON=/path/to/python3.11."
}

check_python_is_complete() {
    "$python" -I -c 'import ensurepip, venv' 2>/dev/null ||
        stop "$version ($python) cannot make a virtual environment: sudo apt-get install python3-venv\
 (or python3.N-venv for another Python 3.N than the system's)."
}

check_system_libraries() {
    "$python" -I - <<'PYTHON' || exit 2
import ctypes
import sys

packages = []
for library, package in [("libquadmath.so.0", "libquadmath0"), ("libgomp.so.1", "libgomp1")]:
    try:
        ctypes.CDLL(library)
    except OSError:
        packages.append(package)
if packages:
    sys.exit("MXNet needs system libraries that are missing here: sudo apt-get install " + " ".join(packages))
PYTHON
}

has_nvidia_driver() {
    [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1
}

hash_of() {
    cat "$@" | sha256sum
}

# Of the extra packages in requirements-$1.txt: whether .venv lacks them, or has others than are pinned now.
lacks() {
    [ "$(cat "$stamp-$1" 2>/dev/null)" != "$(hash_of "$here/requirements-$1.txt")" ]
}

has_now() {
    hash_of "$here/requirements-$1.txt" >"$stamp-$1"
}

# -I: with the user's PYTHONPATH, pip would take what lies there for installed.
install() {
    "$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes -r "$1" || {
        echo "Installing $1 failed (see above); start again to try once more." >&2
        exit 1
    }
}

# The build for CUDA does not start without CUDA's libraries, not even where there is no GPU. It names their exact
# versions itself; pip takes them as they come.
install_cuda_of_torch() {
    local pin
    "$venv/bin/python" -I -c 'import torch' 2>/dev/null && return
    pin=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$here/requirements-torch.txt")
    echo "Adding CUDA's libraries for it: 3 GB." >&2
    "$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check --only-binary :all: "$pin" &&
        "$venv/bin/python" -I -c 'import torch' || {
        echo "PyTorch does not start here (see above); the rest works without it." >&2
        exit 1
    }
}

# Horovod's build asks MXNet where its headers are, and MXNet cannot be imported with today's NumPy as it comes (see
# poc/engines/gluon/compatibility.py): a sitecustomize.py, which every Python process of the build runs first, mends that.
install_horovod() {
    local tool shim status=0
    for tool in g++ cmake make; do
        command -v "$tool" >/dev/null || stop "Horovod is compiled here, which needs $tool: sudo apt-get install g++ cmake make"
    done
    shim=$(mktemp -d)
    cat >"$shim/sitecustomize.py" <<'PYTHON'
try:
    import numpy
except ImportError:
    pass
else:
    numpy.bool = numpy.bool_
PYTHON
    # PYTHONPATH is for the build's processes; -I keeps it from pip itself.
    PYTHONPATH=$shim HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
        HOROVOD_WITHOUT_PYTORCH=1 "$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-deps \
        --require-hashes --no-build-isolation -r "$1" || status=$?
    rm -rf "$shim"
    if [ "$status" != 0 ]; then
        echo "Building Horovod failed (see above); the rest works without it." >&2
        exit 1
    fi
}

main() {
    local python version requirements wanted installed dev='' horovod='' with_torch='' option
    for option in "$@"; do
        case $option in
            --dev) dev=yes ;;
            --horovod) horovod=yes ;;
            --torch) with_torch=yes ;;
            *) stop "make_environment.sh: unknown option $option; there are --dev, --horovod and --torch" ;;
        esac
    done

    # Two starts at once: the second waits here, then finds the work done. The lock ends with this process. A network
    # file system may have no locks: then there is none.
    exec 9<"$here"
    flock 9 2>/dev/null || true

    find_python
    check_system_libraries

    requirements=$here/requirements.txt
    if has_nvidia_driver; then
        requirements=$here/requirements-gpu.txt
    fi

    wanted="$version $(hash_of "$here/requirements-common.txt" "$requirements")"
    installed=
    if [ -f "$stamp" ] && [ "$(supported_version "$venv/bin/python")" = "$version" ]; then
        installed=$(tail -n 1 "$stamp")
    fi
    if [ "$installed" != "$wanted" ]; then
        check_python_is_complete
        echo "Setting up $venv with $version and ${requirements##*/}: once, some minutes." >&2
        rm -rf "$venv"
        "$python" -I -m venv "$venv"
        install "$requirements"
        printf '%s\n%s\n' "$("$python" -I -c 'import sys; print(sys.executable)')" "$wanted" >"$stamp"
    fi

    if [ -n "$dev" ] && lacks dev; then
        echo "Adding requirements-dev.txt to $venv." >&2
        install "$here/requirements-dev.txt"
        has_now dev
    fi

    if [ -n "$with_torch" ] && lacks torch; then
        case $version in
            "Python 3.9."*) stop "PyTorch needs Python 3.10 to 3.12, .venv has $version: rm -r .venv, then PYTHON=python3.11 $0 --torch" ;;
        esac
        echo "Adding requirements-torch.txt to $venv: some minutes." >&2
        install "$here/requirements-torch.txt"
        install_cuda_of_torch
        has_now torch
    fi

    if [ -n "$horovod" ] && lacks horovod; then
        echo "Building Horovod for $venv: some minutes, less where pip has built it before." >&2
        install_horovod "$here/requirements-horovod.txt"
        has_now horovod
    fi
}

main "$@"
