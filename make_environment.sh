#!/usr/bin/env bash
# Make .venv with the pinned packages of requirements/ and the framework for this machine's GPUs and driver. Options add
# packages: --torch, --horovod, --ray, and --dev for the tests. Does nothing if all of that is installed.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
mark=made-by-make_environment.sh # a folder in each environment, with copies of the lists that are installed
stop() { printf '%s\n' "$1" >&2 && exit 2; }
is_supported() { [[ $("$1" --version 2>/dev/null) == "Python 3.1"[0-2].* ]]; }
is_installed() { [[ $(cat "$1/$mark/$2" 2>/dev/null) == "$(<"$here/requirements/$2")" ]]; }

# make_venv ENVIRONMENT: with the packages that every framework needs. An outdated environment is replaced.
make_venv() {
    if is_installed "$1" common.txt && [ "$("$1/bin/python" --version 2>&1)" = "$version" ]; then return; fi
    "$python" -I -c 'import ensurepip' 2>/dev/null || stop "$version lacks venv: sudo apt-get install python3-venv"
    if [ -L "$1" ] || { [ -e "$1" ] && [ ! -e "$1/$mark" ]; }; then
        stop "$1 was not made by make_environment.sh, so it is not replaced: move it away."
    fi
    echo "Setting up $1 with $version (only once, takes some minutes)." >&2
    rm -rf "$1" && mkdir -p "$1/$mark"
    "$python" -I -m venv "$1"
    PATH=$here/.venv/bin:$PATH uv --version >/dev/null 2>&1 || install "$1" uv.txt 2>/dev/null || true
    add "$1" common.txt
}

# add ENVIRONMENT LIST: the list is copied last, so that an interrupted installation is repeated.
add() {
    if is_installed "$1" "$2"; then return; fi
    echo "Installing requirements/$2 in $1." >&2
    if [[ $2 == mxnet* ]] && rm -f "$1/$mark"/mxnet*; then # all builds of MXNet install into the same folder
        "$1/bin/python" -I -m pip uninstall --quiet --yes mxnet mxnet-cu102 mxnet-cu112 2>/dev/null || true
    fi
    if [ "$2" != torch-cpu.txt ]; then
        install "$1" "$2"
    elif ! { install "$1" "$2" || UV_TORCH_BACKEND=cpu install "$1" "$2"; } 2>/dev/null; then
        echo "No CPU build of PyTorch found: installing the CUDA build, 5 GB." >&2
        install "$1" torch-cu13.txt
    fi || stop "Installing requirements/$2 failed (see above); run this again to retry."
    local site=("$1"/lib/python3*/site-packages)
    [ "$2" != ray.txt ] || echo "$here" >"${site[0]}/poc.pth" # for processes of Ray
    cp "$here/requirements/$2" "$1/$mark/"
}

# install ENVIRONMENT LIST: with uv, which does not read pip's settings, or with pip if there is no uv or it fails.
install() {
    local -x PYTHONPATH=$here/requirements/horovod_build UV_INDEX_STRATEGY=unsafe-best-match
    local uv index options=(--quiet --no-deps --require-hashes --no-build-isolation -r "$here/requirements/$2")
    mapfile -t index < <("$1/bin/python" -I -m pip config list | sed 's/^[^=]*\.//; /^find-links/s/ /,/g' |
        sort -s -u -t= -k1,1 | # a setting in a variable comes before the same in a file
        sed -nE "s/^(.*index-url|find-links|trusted-host|cert)='(.*)'$/--\1=\2/p; s/^no-index=.*/--no-index/p")
    ! uv=$(PATH=$here/.venv/bin:$PATH type -P uv) ||
        ! "$uv" pip install --python "$1/bin/python" "${index[@]}" "${options[@]}" 2>/dev/null || return 0
    "$1/bin/python" -I -m pip install --no-user --target= --disable-pip-version-check "${options[@]}"
}

exec 9<"$here" && { flock 9 2>/dev/null || true; } # a second start waits; a network file system may have no locks
python=${PYTHON:-} && [[ $python != [!/]*/* ]] || python=$PWD/$python
# Obey nothing in the user's folder, nor variables that change what is installed or where.
cd / && unset "${!PYTHON@}" PIP_{TARGET,PREFIX,ROOT,USER,REQUIREMENT,CONSTRAINT,EDITABLE,DRY_RUN,PYTHON,REPORT}
for candidate in "$(readlink -f "$here/.venv/bin/python")" python3.11 python3.10 python3.12 python3; do
    [ -n "$python" ] || ! is_supported "$candidate" || python=$candidate
done
version=$("${python:=python3}" --version 2>/dev/null) || version="not a Python that starts"
is_supported "$python" || stop "$python is $version, not 3.10-3.12: sudo apt-get install python3.11-venv or set PYTHON"
make_venv "$here/.venv"
chosen=$("$here/.venv/bin/python" -I "$here/poc/host/isolated.py" poc environment "$@") || exit
while read -r folder list <&3; do
    [[ $folder =~ ^\.venv(-[a-z0-9_]+)?$ && -f $here/$list ]] || stop "poc environment: not a list: $folder $list"
    make_venv "$here/$folder"
    add "$here/$folder" "${list##*/}"
done 3<<<"$chosen"
