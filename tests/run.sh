#!/usr/bin/env bash
# Linter, formatter, type checker, the contract of the layers, and tests, in an environment that it makes where it is missing.
# With --quick only the tests that need no training and no processes of their own: about two minutes on two cores.
# Other arguments go to pytest: tests/run.sh -k schedule
set -euo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
extras=(ray torch horovod)
if [ "${1:-}" = --quick ]; then
    shift
    set -- -m "not slow and not faults" "$@"
    extras=()
fi
./make_environment.sh --dev
missing=()
for extra in "${extras[@]}"; do
    ./make_environment.sh "--$extra" || missing+=("$extra")
done
[ ${#missing[@]} = 0 ] || echo "Cannot be had here (see above), so their tests are skipped: ${missing[*]}" >&2
unset "${!PYTHON@}"
.venv/bin/python -m ruff check .
.venv/bin/python -m ruff format --check .
.venv/bin/python -m mypy poc tools tests/frameworks/seam.py
.venv/bin/lint-imports
# Two tests at a time; whoever has none left takes some of the other's.
exec .venv/bin/python -m pytest -q -n 2 --dist worksteal "$@"
