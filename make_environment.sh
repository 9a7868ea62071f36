#!/usr/bin/env bash
# Makes .venv beside this script, for run_all.sh and tests/run.sh: a Python 3.9 to 3.12 with the pinned requirements, and
# in it, or in an environment beside it, the engines for this machine's cards and driver: `python -m poc environment`
# chooses and says why. With --torch PyTorch too, with --dev what the tests need, with --horovod Horovod, with --ray Ray.
# Does nothing where that is already so. Removes no folder that it has not made.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
venv=$here/.venv
mark=made-by-make_environment.sh

stop() {
    printf '%s\n' "$1" >&2
    exit 2
}

# Nothing of the user's folder is imported or obeyed: no module, no setup.cfg (pip reads it with Python 3.9), no
# .python-version (pyenv does); nor are variables that change what Python imports, or where pip installs and what.
leave_users_folder() {
    local name
    case ${PYTHON:-} in
        /*) ;;
        */*) PYTHON=$PWD/$PYTHON ;;
    esac
    python=${PYTHON:-}
    cd "$here"
    unset "${!PYTHON@}"
    for name in "${!PIP_@}"; do
        case $name in
            PIP_INDEX_URL | PIP_EXTRA_INDEX_URL | PIP_NO_INDEX | PIP_FIND_LINKS | PIP_CONFIG_FILE | PIP_PROXY) ;;
            PIP_CERT | PIP_CLIENT_CERT | PIP_TRUSTED_HOST | PIP_TIMEOUT | PIP_DEFAULT_TIMEOUT | PIP_RETRIES) ;;
            PIP_CACHE_DIR | PIP_NO_CACHE_DIR | PIP_KEYRING_PROVIDER | PIP_USE_FEATURE | PIP_USE_DEPRECATED) ;;
            *) unset "$name" ;;
        esac
    done
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
    if [ -n "$python" ]; then
        version=$(supported_version "$python") || stop "PYTHON=$python is $("$python" --version 2>/dev/null ||
            echo 'not a Python that starts'), but Python 3.9 to 3.12 is needed: set PYTHON to one, or unset it."
        return
    fi
    # The Python that .venv was made with comes first, so that PYTHON= is needed only the first time.
    [ ! -f "$venv/installed" ] || read -r made_with <"$venv/installed" || true
    for candidate in ${made_with:+"$made_with"} python3.11 python3.10 python3.12 python3.9 python3; do
        if version=$(supported_version "$candidate"); then
            python=$candidate
            return
        fi
    done
    stop "No Python 3.9 to 3.12 found: install one (sudo apt-get install python3.11 python3.11-venv;\
 if the distribution has none: pyenv install 3.11), or set PYTHON=/path/to/python3.11."
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
    sys.exit("MXNet needs system libraries that are missing: sudo apt-get install " + " ".join(packages))
PYTHON
}

hash_of() {
    sha256sum <"$here/$1"
}

# -I: with the user's site-packages, pip would take what lies there for installed. The empty options: a user's pip.conf
# may give another place.
pip_install() {
    "$1/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --no-user --target= "${@:2}"
}

# Whether this script has made the folder. Before there was a mark it wrote what it made it with, and of what.
is_ours() {
    local stamp='^(Python 3\.[0-9.]+ )?[0-9a-f]{64} +-$'
    [ ! -L "$1" ] && { [ -f "$1/$mark" ] || grep -qsE "$stamp" "$1"/installed*; }
}

# make_venv ENVIRONMENT: with what all engines need; removes one that this script made otherwise.
make_venv() {
    local wanted
    wanted="$version $(hash_of requirements/common.txt)"
    if [ -f "$1/installed" ] && [ "$(supported_version "$1/bin/python")" = "$version" ] &&
        [ "$(tail -n 1 "$1/installed")" = "$wanted" ]; then
        return
    fi
    check_python_is_complete
    if [ -e "$1" ] || [ -L "$1" ]; then
        is_ours "$1" || stop "$1 was not made by make_environment.sh, so it is not replaced: move it away."
    fi
    echo "Setting up $1 with $version (only once, takes some minutes)." >&2
    rm -rf "$1"
    mkdir "$1"
    echo "Made by make_environment.sh, which removes this folder when it no longer fits." >"$1/$mark"
    "$python" -I -m venv "$1"
    add "$1" requirements/common.txt
    printf '%s\n%s\n' "$("$python" -I -c 'import sys; print(sys.executable)')" "$wanted" >"$1/installed"
}

# add ENVIRONMENT LIST. A stamp is written after the packages, so an installation that was cut off is made again. Its name
# is from before the lists had a folder, so that an environment of then is recognised.
add() {
    local stamp=$1/installed-${2/\//-}
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(hash_of "$2")" ]; then
        return
    fi
    echo "Installing $2 in $1." >&2
    case $2 in
        *horovod*) install_horovod "$2" ;;
        # What pip keeps of downloads of gigabytes would fill the disk once more.
        *cu1*) pip_install "$1" --only-binary :all: --no-cache-dir -r "$here/$2" ;;
        *) pip_install "$1" --only-binary :all: -r "$here/$2" ;;
    esac || {
        echo "Installing $2 failed (see above); run this again to retry." >&2
        exit 1
    }
    hash_of "$2" >"$stamp"
}

# add_engines ENGINE...: those that this machine's cards and driver want, and the named ones.
add_engines() {
    local chosen line folder file stamp name
    chosen=$("$venv/bin/python" -I "$here/poc/host/isolated.py" poc environment "$@") || exit
    # They become folders that are made anew.
    while read -r line; do
        [[ $line =~ ^\.venv(-[A-Za-z0-9_]+)?\ (requirements/[A-Za-z0-9._-]+\.txt)$ && -f $here/${BASH_REMATCH[2]} ]] ||
            stop "poc environment: '$line' is not an environment and a requirements file."
    done <<<"$chosen"
    for stamp in "$venv"/installed-requirements-mxnet*; do
        # Two builds of MXNet are the same folder of packages.
        name=${stamp##*/installed-requirements-}
        if [ -f "$stamp" ] && [[ $chosen != *" requirements/$name"* ]]; then
            rm "$venv/installed"
            make_venv "$venv"
            break
        fi
    done
    while read -r folder file; do
        make_venv "$here/$folder"
        add "$here/$folder" "$file"
    done <<<"$chosen"
}

# Horovod's build asks MXNet where its headers are, and MXNet cannot be imported with today's NumPy as it comes (see
# poc/frameworks/mxnet/compatibility.py): a sitecustomize.py, which every Python process of the build runs first, fixes that.
install_horovod() {
    local tool shim status=0
    for tool in g++ cmake make; do
        command -v "$tool" >/dev/null || stop "compiling Horovod needs $tool: sudo apt-get install g++ cmake make"
    done
    shim=$(mktemp -d) || return
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
        HOROVOD_WITHOUT_PYTORCH=1 pip_install "$venv" --no-build-isolation -r "$here/$1" || status=$?
    rm -rf "$shim"
    return "$status"
}

main() {
    local python version option extras=() engines=()
    for option in "$@"; do
        case $option in
            --dev | --horovod | --ray) extras+=("requirements/${option#--}.txt") ;;
            --torch) engines+=(pytorch) ;;
            *) stop "make_environment.sh: unknown option $option; valid: --dev, --horovod, --ray and --torch" ;;
        esac
    done

    # Two starts at once: the second waits here, then finds the work done. The lock ends with this process. A network
    # file system may have no locks: then there is none.
    exec 9<"$here"
    flock 9 2>/dev/null || true

    leave_users_folder
    find_python
    check_system_libraries
    make_venv "$venv"
    add_engines ${engines[@]+"${engines[@]}"} # bash before 4.4 takes an empty list for an unset one
    for option in ${extras[@]+"${extras[@]}"}; do
        if [[ $option == *horovod* && ! -f $venv/installed-requirements-mxnet.txt ]]; then
            stop "--horovod builds Horovod without NCCL, for CPUs only: leave it out on a machine with GPUs."
        fi
        add "$venv" "$option"
        # What Ray starts on a node finds the checkout that the node's environment belongs to.
        [[ $option != *ray* ]] || "$venv/bin/python" -I -c 'import sys, sysconfig
open(sysconfig.get_path("purelib") + "/poc.pth", "w").write(sys.argv[1] + "\n")' "$here"
    done
}

main "$@"
