#!/usr/bin/env bash
# Make .venv with the pinned packages of requirements/, the frameworks for this machine's GPUs and driver, and the command
# poc. Does nothing if all of that is installed. Options add packages: --torch, --horovod, --ray, and --dev for the tests.
# --framework NAME installs one framework only; --installed downloads nothing and uses the packages of the Python that
# PYTHON names.
set -euo pipefail
trap 'exit 130' INT # pip ends with 1
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
mark=made-by-make_environment.sh # a folder in each environment, with copies of the lists that are installed
stop() { printf '%s\n' "$1" >&2 && exit 2; }
is_supported() { [[ $("$1" --version 2>/dev/null) == "Python 3.1"[0-2].* ]]; }
has_venv() { "$1" -I -c 'import ensurepip' 2>/dev/null; }
is_installed() { [[ $(cat "$1/$mark/$2" 2>/dev/null) == "$(<"$here/requirements/$2")" ]]; }
keep() { [ "$(cat "$2" 2>/dev/null)" = "$1" ] || printf '%s\n' "$1" >"$2"; } # keep TEXT FILE
go_offline() { offline=true && echo "Using the packages of $python." >&2; }

# make_venv ENVIRONMENT: with the packages that every framework needs. An outdated environment is replaced.
make_venv() {
    if [ "$("$1/bin/python" --version 2>&1)" = "$version" ]; then
        if is_installed "$1" common.txt || { $offline && [ -e "$1/$mark/borrowed" ]; }; then return; fi
        # Without a network borrowed packages stay, if none is missing.
        if [ -e "$1/$mark/borrowed" ] && ! install "$1" common.txt 2>/dev/null && borrow "$1"; then
            go_offline
            return
        fi
    fi
    local minor=${version#Python }
    has_venv "$python" || stop "$version lacks venv: install it (apt-get install python${minor%.*}-venv), or set PYTHON"
    if [ -L "$1" ] || { [ -e "$1" ] && [ ! -e "$1/$mark" ]; }; then
        stop "$1 was not made by make_environment.sh, so it is not replaced: move it away."
    fi
    echo "Setting up $1 with $version (only once, takes some minutes)." >&2
    rm -rf "$1"/[!m]* "$1" && mkdir -p "$1/$mark"
    "$python" -I -m venv "$1"
    if $offline; then
        borrow "$1" || stop "--installed: $python lacks ${lacking//$'\n'/, }: install them, or leave out --installed."
        return
    fi
    PATH=$here/.venv/bin:$PATH uv --version >/dev/null 2>&1 || install "$1" uv.txt 2>/dev/null || true
    add "$1" common.txt
}

# link ENVIRONMENT: let it import the packages of $python, after its own.
link() {
    local site=("$1"/lib/python3*/site-packages)
    "$python" -I -c 'import sys; print(*(path for path in sys.path if path.endswith("-packages")), sep="\n")' \
        >"${site[0]}/installed.pth"
}

# borrow ENVIRONMENT: use the packages of $python in place of those of common.txt, unless it lacks some.
borrow() {
    link "$1"
    lacking=$("$1/bin/python" -I "$here/requirements/lacking.py") && [ -z "$lacking" ] && : >"$1/$mark/borrowed"
}

# add ENVIRONMENT LIST: the list is copied last, so that an interrupted installation is repeated.
add() {
    if is_installed "$1" "$2"; then return; fi
    echo "Installing requirements/$2 in $1." >&2
    # An installation that was cut off (a full disk, a kill) may have left half a package, which counts as installed.
    local again= begun=$1/$mark/.$2
    [ ! -e "$begun" ] || again=--force-reinstall
    : >"$begun"
    if [[ $2 == mxnet* ]] && rm -f "$1/$mark"/mxnet*; then # all builds of MXNet install into the same folder
        "$1/bin/python" -I -m pip uninstall --quiet --yes mxnet mxnet-cu102 mxnet-cu112 2>/dev/null || true
    fi
    if [ "$2" != torch-cpu.txt ]; then
        install "$1" "$2"
    elif ! { install "$1" "$2" || UV_TORCH_BACKEND=cpu install "$1" "$2"; } 2>/dev/null; then
        echo "No CPU build of PyTorch found: installing the CUDA build, 5 GB." >&2
        install "$1" torch-cu13.txt
    fi || {
        if [ "$2" != common.txt ] || ! borrow "$1"; then
            stop "Installing requirements/$2 failed (see above); run this again to retry, or first delete $1.${lacking:+ Without a network $python \
has to have ${lacking//$'\n'/, }, too.}"
        fi
        go_offline && return
    }
    cp "$here/requirements/$2" "$1/$mark/" && rm -f "$begun"
}

# install ENVIRONMENT LIST: with uv, which does not read pip's settings, or with pip if there is no uv or it fails.
install() {
    local -x PYTHONPATH=$here/requirements/horovod_build UV_INDEX_STRATEGY=unsafe-best-match
    if [ "$(stat -c %d "$here")" != "$(stat -c %d "${HOME:-/}" 2>/dev/null)" ]; then # where caches may fill a small disk
        local -x UV_CACHE_DIR=${UV_CACHE_DIR:-$here/.venv/$mark/uv} TMPDIR=$here/.venv/$mark PIP_NO_CACHE_DIR=1
    fi
    local uv settings=(pip install --python "$1/bin/python") # an empty array counts as unset until bash 4.3
    local options=(--quiet --no-deps --require-hashes --no-build-isolation -r "$here/requirements/$2")
    mapfile -t -O 4 settings < <("$1/bin/python" -I -m pip config list | sed 's/^[^=]*\.//; /^find-links/s/ /,/g' |
        sort -s -u -t= -k1,1 | # a setting in a variable comes before the same in a file
        sed -nE "s/^(.*index-url|find-links|trusted-host|cert)='(.*)'$/--\1=\2/p; s/^no-index=.*/--no-index/p")
    if uv=$(PATH=$here/.venv/bin:$PATH type -P uv); then
        ! "$uv" "${settings[@]}" $again "${options[@]}" 2>/dev/null || return 0
        again=--force-reinstall
    fi
    "$1/bin/python" -I -m pip install --no-user --target= --disable-pip-version-check $again "${options[@]}"
}

[[ " $* " != *" --help "* && " $* " != *" -h "* ]] || { sed -n '2,5s/^# //p' "$here/make_environment.sh" && exit; }
# A second start waits; a network file system may have no locks.
exec 9<"$here" && { flock -n 9 2>/dev/null || [ $? != 1 ] || { echo "Waiting for another start." >&2 && flock 9; }; }
python=${PYTHON:-} && [[ $python != [!/]*/* ]] || python=$PWD/$python
# Obey nothing in the user's folder, nor variables that change what is installed or where.
cd / && unset "${!PYTHON@}" PIP_{TARGET,PREFIX,ROOT,USER,REQUIREMENT,EDITABLE,DRY_RUN,PYTHON,REPORT}
export PIP_CONSTRAINT=/dev/null # constraints of an image or of pip's files would clash with the pinned versions
offline=false lacking= again=
[[ " $* " != *" --installed "* ]] || offline=true
first=$(cat "$here/.venv/$mark/python" 2>/dev/null || readlink -f "$here/.venv/bin/python") || true
for is_preferred in has_venv true; do
    for candidate in "$first" python3.11 python3.10 python3.12 python3; do
        [ -n "$python" ] || ! is_supported "$candidate" || { [ "$candidate" != "$first" ] && ! $is_preferred "$candidate"; } ||
            python=$candidate
    done
done
version=$("${python:=python3}" --version 2>/dev/null) || version="not a Python that starts"
is_supported "$python" ||
    stop "$python is $version, not 3.10-3.12: install one (apt-get install python3.11-venv, dnf install python3.11, uv python install 3.12) or set PYTHON"
make_venv "$here/.venv"
site=("$here"/.venv/lib/python3*/site-packages)
keep "$here" "${site[0]}/poc.pth" # for processes of Ray
printf -v poc '#!/usr/bin/env bash\nunset "${!PYTHON@}"\nexec %q -I %q poc "$@"' \
    "$here/.venv/bin/python" "$here/poc/host/isolated.py"
keep "$poc" "$here/.venv/bin/poc"
[ -x "$here/.venv/bin/poc" ] || chmod +x "$here/.venv/bin/poc"
keep "$(type -P "$python")" "$here/.venv/$mark/python" # whose packages may be used
chosen=$("$here/.venv/bin/python" -I "$here/poc/host/isolated.py" poc environment "$@") || exit
[ -n "$chosen" ] || ! $offline || exit 0
while read -r folder list <&3; do
    [[ $folder =~ ^\.venv(-[a-z0-9_]+)?$ && ($list == installed || -f $here/$list) ]] ||
        stop "poc environment: not a list: $folder $list"
    environment=$here/$folder
    for copy in "$environment/$mark"/{torch*,installed}; do # of another build, which would clash with this one
        [[ $folder == .venv || ! -e $copy || $chosen == *"$folder "?(requirements/)"${copy##*/}"* ]] ||
            rm -rf "$environment"/[!m]* "$environment" # the mark last: what is left of an interruption is replaced
    done
    make_venv "$environment"
    [ "$list" != installed ] || { link "$environment" && : >"$environment/$mark/installed" && continue; }
    add "$environment" "${list##*/}"
done 3<<<"$chosen"
