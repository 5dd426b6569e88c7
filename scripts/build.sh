#!/usr/bin/env bash
# Sets up what a build needs, configures and builds. The programs are then in build/PRESET/bin.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-release} in
  release | debug | asan | tsan) PRESET=${1:-release} ;;
  *)
    echo "Usage: scripts/build.sh [release|debug|asan|tsan] [CMAKE OPTIONS]" >&2
    [[ $1 == -h || $1 == --help ]] && exit 0
    exit 2
    ;;
esac
shift $(($# > 0 ? 1 : 0))

"$REPO_ROOT/scripts/setup.sh" --build
cd "$REPO_ROOT"
step "Building ($PRESET)"
cmake --preset "$PRESET" "$@" >"/tmp/rekindle-configure.$$" 2>&1 || {
  cat "/tmp/rekindle-configure.$$" >&2
  rm -f "/tmp/rekindle-configure.$$"
  die "cmake --preset $PRESET failed (above)"
}
rm -f "/tmp/rekindle-configure.$$"
cmake --build --preset "$PRESET" || die "the build failed (above)"
for program in rekindle rekindled; do
  [[ -x build/$PRESET/bin/$program ]] && note "$REPO_ROOT/build/$PRESET/bin/$program"
done
exit 0
