#!/usr/bin/env bash
# Measures images on their way elsewhere, side by side with CRIU's folders through tar and zstd; writes the table of
# docs/image-stream.md.
#   bench/run-transfer-figures.sh [--rounds N] [--mib N]
# Needs root, 8 GiB of RAM, 15 GiB of disk, and a machine that does nothing else meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1-} == -h || ${1-} == --help ]] && PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/transfer_figures.py --help

scripts/setup.sh --build --test --criu
scripts/build.sh release
export REKINDLE_BIN_DIR=$PWD/build/release/bin REKINDLE_WORKLOAD_PROGRAMS=$PWD/build/release/bin
PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 bench/transfer_figures.py --write docs/image-stream.md "$@"
