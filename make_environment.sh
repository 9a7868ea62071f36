#!/usr/bin/env bash
# Make .venv with the pinned packages of requirements/, the frameworks for this machine's GPUs and driver, and the command
# poc. Does nothing if all of that is installed. Options add packages: --torch, --horovod, --ray, and --dev for the tests.
# --framework NAME installs one framework only; --installed downloads nothing and uses the packages of the Python that
# PYTHON names.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ " $* " != *" --help "* && " $* " != *" -h "* ]] || { sed -n '2,5s/^# //p' "$here/make_environment.sh" && exit; }

is_supported() { [[ $("$1" --version 2>/dev/null) == "Python 3.1"[0-2].* ]]; }
has_modules() { "$1" -I -c 'import bz2, ctypes, ensurepip, lzma, ssl' 2>/dev/null; }

python=${PYTHON:-} && [[ $python != [!/]*/* ]] || python=$PWD/$python
unset "${!PYTHON@}"
first=$(cat "$here/.venv/made-by-make_environment.sh/python" 2>/dev/null || readlink -f "$here/.venv/bin/python") || true
for is_preferred in has_modules true; do
    for candidate in "$first" python3.11 python3.10 python3.12 python3; do
        [ -n "$python" ] || ! is_supported "$candidate" || { [ "$candidate" != "$first" ] && ! $is_preferred "$candidate"; } ||
            python=$candidate
    done
done
version=$("${python:=python3}" --version 2>/dev/null) || version="not a Python that starts"
if ! is_supported "$python"; then
    install="apt-get install python3.11-venv, dnf install python3.11, uv python install 3.12"
    echo "$python is $version, not 3.10-3.12: install one ($install) or set PYTHON" >&2
    exit 2
fi
exec "$python" -I "$here/requirements/install.py" "$python" "$@"
