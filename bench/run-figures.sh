#!/usr/bin/env bash
# Measures the promised figures side by side with stock CRIU and writes them into docs/benchmarks.md.
#   bench/run-figures.sh [--rounds N] [--only freeze freeze16 restore percent torch command]
# Needs root, about 6 GiB of RAM, 20 GiB of disk, and a machine that does nothing else meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1-} == -h || ${1-} == --help ]] && PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/figures.py --help

scripts/setup.sh --build --test --criu
# The newest CRIU there is, with all its modes, is what the figures are held against.
scripts/setup.sh --criu-version experimental
scripts/build.sh release
export REKINDLE_BIN_DIR=$PWD/build/release/bin REKINDLE_WORKLOAD_PROGRAMS=$PWD/build/release/bin
PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/figures.py --write docs/benchmarks.md "$@"
