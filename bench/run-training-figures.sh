#!/usr/bin/env bash
# Measures what it costs to keep a training safe, side by side with stock CRIU and torch.save; writes
# docs/training-benchmarks.md.
#   bench/run-training-figures.sh [--only overhead freeze restart stored lost] [--rounds N] [--every SECONDS] [--quick]
#                                 [--json OUT]
# Needs root, 16 GiB of RAM, 60 GiB of disk, and a machine that does nothing else meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1-} == -h || ${1-} == --help ]] && PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/training_figures.py --help

scripts/setup.sh --build --test --criu --bench
scripts/setup.sh --criu-version experimental
scripts/build.sh release
PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/training_figures.py --write docs/training-benchmarks.md "$@"
