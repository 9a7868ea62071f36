#!/usr/bin/env bash
# Run linter, formatter, type checker, import rules and tests, in .venv, which is made if it is missing.
# --quick leaves out the tests that train or start processes: about two minutes on two cores.
# Other arguments are pytest's: tests/run.sh -k schedule
set -euo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
extras=(ray torch horovod) lists=(timm trackers)
if [ "${1:-}" = --quick ]; then
    shift
    set -- -m "not slow and not faults" "$@"
    extras=() lists=()
fi
./make_environment.sh --dev
missing=()
for extra in "${extras[@]}"; do
    ./make_environment.sh "--$extra" || missing+=("$extra")
done
for list in "${lists[@]}"; do
    .venv/bin/python -m pip install --quiet --no-deps --require-hashes -r "requirements/$list.txt" || missing+=("$list")
done
[ ${#missing[@]} = 0 ] || echo "Not installed (see above), so their tests are skipped: ${missing[*]}" >&2
unset "${!PYTHON@}"
.venv/bin/python -m ruff check .
.venv/bin/python -m ruff format --check .
.venv/bin/python -m mypy poc tools requirements/install.py tests/frameworks/seam.py
.venv/bin/lint-imports
exec .venv/bin/python -m pytest -q -n 3 --dist worksteal "$@"
