#!/usr/bin/env bash
# Make the environment if it is missing, then run the core recipes, or the named ones, and write results.md.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

usage() {
    cat <<'USAGE'
usage: ./run_all.sh [RECIPE ...] [OPTION ...]

Runs recipes and writes results.md. First it prints what will run, how long that takes and what it costs. Runs that answer
the main questions start first. If the command is stopped, the same command continues.

Which runs
  RECIPE            a name in recipes/, recipes/studies/ or recipes/research/, or a Python file (default: those in recipes/)
  --all             those in recipes/studies/ and recipes/research/, too
  --set FIELD=VALUE[,VALUE]   set a field of the recipes: --set batch_per_device=256,512 --set lr=0.1
  --quick           a first page: each run cut short, and marked as quick; 1 to 3 minutes
  --cpu             on a machine with GPUs, also do the CPU runs
  --only ID         only runs whose id starts with ID (poc plan --verbose lists the ids)
  --again           repeat runs that are already in the journal

This machine
  --machine NAME    its name in the results; prices of instance types such as p3.16xlarge are known
  --price DOLLARS   its price per hour
  --data DIR        where CIFAR-10 is (default: $POC_DATA, then the cache, then a download)
  --cluster ADDRESS run on every machine of a Ray cluster (docs/hosts.md)
  --framework NAME  install and use only mxnet or pytorch
  --installed       download no packages: use those of the Python that PYTHON names

How long
  --hours H         stop after H hours
  --dollars D       stop when D dollars are spent at the machine's price
  --patience SECONDS   end a run that completes no step for this long (default: 300)
  --checkpoints DIR keep checkpoints in DIR (default: the cache); that of a run's last step stays until its next repeat

Results
  --results DIR     where the journal, the figures and results.md go (default: results/, with results.md beside it)
  --target ACCURACY the accuracy of "time to accuracy" and "cost to accuracy" (default: 0.75)
  --with FOLDER     also show the results in FOLDER, e.g. reference/
  --study FILE      a published study of your own, a CSV like those in poc/published/
  --detail          after each run, measure the step-time breakdown: computation, synchronisation
  --trace N         trace N steps after each run, for https://ui.perfetto.dev
  --verbose         also print each run's id, settings and expected time

`.venv/bin/poc --help` lists the other commands: doctor, plan, report, publish, ...
The first start makes .venv, with Python 3.10 to 3.12 (PYTHON=/path/to/python chooses one).
USAGE
}

# Commands with their options. Until bash 4.3 an array without any would count as unset.
environment=("$here/make_environment.sh")
run=("$here/.venv/bin/python" -I "$here/poc/host/isolated.py" poc run)
while (($#)); do
    case $1 in
        --framework)
            environment+=("$1" "${2-}") run+=(--set "framework=${2-}")
            shift $(($# > 1))
            ;;
        --framework=*) environment+=("$1") run+=(--set "${1#--}") ;;
        --installed) environment+=("$1") ;;
        --cluster | --cluster=*) environment+=(--ray) run+=("$1") ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) run+=("$1") ;;
    esac
    shift
done

"${environment[@]}"
# The user's paths are relative to the user's folder, so stay there. But import nothing from there, or from where the
# user's variables point, neither here nor in the processes started from here.
unset "${!PYTHON@}"
exec "${run[@]}"
