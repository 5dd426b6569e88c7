#!/usr/bin/env bash
# Measures the store side by side with restic, borg, casync and tar | zstd; writes docs/store-benchmarks.md.
#   bench/run-store-figures.sh [--rounds N] [--only a a2 a3 b c d gc] [--once TOOL...] [--corpus DIR] [--work DIR]
# Needs root, about 8 GiB of RAM, 30 GiB of disk, and a machine that does nothing else meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1-} == -h || ${1-} == --help ]] && PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/store_figures.py --help

scripts/setup.sh --build --test --criu --bench
scripts/build.sh release
export REKINDLE_BIN_DIR=$PWD/build/release/bin REKINDLE_WORKLOAD_PROGRAMS=$PWD/build/release/bin
PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/store_figures.py --write docs/store-benchmarks.md "$@"
