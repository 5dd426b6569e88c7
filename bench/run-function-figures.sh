#!/usr/bin/env bash
# Measures functions, side by side with cold starts and PreBaking on stock CRIU; writes docs/function-benchmarks.md.
#   bench/run-function-figures.sh [--only loading space http soak simulator] [--functions NAME...] [--rounds N]
#                                 [--variants N] [--soak-calls N] [--json OUT]
# Needs root, 16 GiB of RAM, 15 GiB of disk, and a machine that does nothing else meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1-} == -h || ${1-} == --help ]] && PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/function_figures.py --help

scripts/setup.sh --build --test --criu --bench
scripts/setup.sh --criu-version experimental
scripts/build.sh release
PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/function_figures.py --write docs/function-benchmarks.md "$@"
