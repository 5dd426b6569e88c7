#!/usr/bin/env bash
# Sets up the machine, builds and runs the tests.
#   scripts/test.sh           all labels but gpu and torture
#   scripts/test.sh unit      one label: unit, functions, integration, slow, gpu, torture
#   scripts/test.sh -R REGEX  ctest's own options are handed on
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in
  -h | --help)
    sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
  '') SELECTION=(-LE '^(gpu|torture)$') ;;
  -*) SELECTION=("$@") ;;
  *) SELECTION=(-L "^$1\$" "${@:2}") ;;
esac

"$REPO_ROOT/scripts/setup.sh" --build --test --criu
"$REPO_ROOT/scripts/build.sh" release
step "Testing"
# Several at a time: each integration test has a machine of its own (tests/integration/own_machine.sh), and waits more
# than it works.
cd "$REPO_ROOT"
ctest --test-dir build/release -j "$(($(nproc) * 2))" --output-on-failure --no-tests=error "${SELECTION[@]}"
