#!/usr/bin/env bash
# Measures how fast copies start, side by side with stock CRIU and a cold start; writes docs/start-benchmarks.md.
#   bench/run-start-figures.sh [--only latency cold density throughput fill] [--jobs a b c d e] [--rounds N] [--heap-rounds N]
#                              [--quick] [--json OUT]
# Needs root, 24 GiB of RAM, 15 GiB of disk, and a machine that does nothing else meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1-} == -h || ${1-} == --help ]] && PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/start_figures.py --help

scripts/setup.sh --build --test --criu --bench
scripts/setup.sh --criu-version experimental
scripts/build.sh release
PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/start_figures.py --write docs/start-benchmarks.md "$@"
