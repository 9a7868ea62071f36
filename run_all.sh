#!/usr/bin/env bash
# Makes the environment where it is missing, then runs every recipe that this machine can run and writes results.md.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

usage() {
    cat <<'USAGE'
usage: ./run_all.sh [RECIPE ...] [--quick] [--hours H] [--dollars D] [--data DIR] [--results DIR]
                    [--machine NAME] [--price DOLLARS] [--study FILE] [--cluster ADDRESS]
                    [--with FOLDER]

Runs recipes, by default every one in recipes/, and writes results.md. It says first how long that takes and what it
costs, and does the most telling runs first. The same command goes on with what is left.

  RECIPE                 a name in recipes/, or a Python file
  --quick                a first look: everything takes about 5 minutes on two CPU cores
  --hours H              end by then, with what there is
  --dollars D            the same, when so much is spent
  --data DIR             where CIFAR-10 is (default: $POC_DATA, then the cache, then a download)
  --results DIR          where the journal, the figures and results.md are written
  --machine NAME         what to call this machine in the tables; p3.16xlarge and its like have a price
  --price DOLLARS        what this machine costs an hour
  --cluster ADDRESS      run on every machine of a cluster on Ray (docs/hosts.md)
  --with FOLDER          show the measurements in this folder beside yours, e.g. reference/
  --study FILE           a published study of your own, a CSV like those in poc/studies/

`.venv/bin/python -m poc --help` lists the other commands: plan, report, show, compare, ...
The first start makes .venv, with Python 3.9 to 3.12 (PYTHON=/path/to/python chooses one).
USAGE
}

extras=()
for argument in "$@"; do
    case $argument in
        --cluster | --cluster=*) extras=(--ray) ;;
        -h | --help)
            usage
            exit 0
            ;;
    esac
done

"$here/make_environment.sh" ${extras[@]+"${extras[@]}"} # bash before 4.4 takes an empty list for an unset one
# No change of folder: the paths that the user gives are relative to where the user is. But nothing is imported from
# there, or from where the user's variables say, neither here nor by the processes that this one starts.
unset "${!PYTHON@}"
exec "$here/.venv/bin/python" -I "$here/poc/machine/isolated.py" poc run "$@"
