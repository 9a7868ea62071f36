#!/usr/bin/env bash
# The tests that make faults on purpose, and a table of them: what was tried, how often, and what was lost.
set -euo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
./make_environment.sh --dev --ray
unset "${!PYTHON@}"
exec .venv/bin/python -m pytest -q -m faults "$@"
