#!/usr/bin/env bash
# Linter, formatter, type checker and tests, in an environment that it makes where it is missing.
# Arguments go to pytest: tests/run.sh -k schedule
set -euo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
./make_environment.sh --dev
.venv/bin/python -m ruff check .
.venv/bin/python -m ruff format --check .
.venv/bin/python -m mypy poc
exec .venv/bin/python -m pytest -q "$@"
