#!/usr/bin/env bash
# Sets up what a build needs, configures and builds. The programs are then in build/PRESET/bin.
#   scripts/build.sh [release|debug|asan|tsan] [--programs|--unit-tests] [CMAKE OPTIONS]
# --programs: only what users run, no tests and benchmarks.
# With a sanitizer several files are compiled as one, in a fifth of the time; -DCMAKE_UNITY_BUILD=OFF leaves that out.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

PRESET=release TARGETS=() OPTIONS=()
for argument in "$@"; do
  case $argument in
    release | debug | asan | tsan) PRESET=$argument ;;
    --programs) TARGETS=(--target programs) ;;
    --unit-tests) TARGETS=(--target unit_tests) ;;
    -D*) OPTIONS+=("$argument") ;;
    -h | --help)
      sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      sed -n '3s/^# */Usage: /p' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
done

[[ $PRESET == *san ]] && OPTIONS=(-DCMAKE_UNITY_BUILD=ON "${OPTIONS[@]}")
"$REPO_ROOT/scripts/setup.sh" --build
cd "$REPO_ROOT"
step "Building ($PRESET)"
configure() {
  cmake --preset "$PRESET" "${OPTIONS[@]}" "$@" >"/tmp/rekindle-configure.$$" 2>&1 || {
    cat "/tmp/rekindle-configure.$$" >&2
    rm -f "/tmp/rekindle-configure.$$"
    die "cmake --preset $PRESET failed (above)"
  }
  rm -f "/tmp/rekindle-configure.$$"
}
build() { cmake --build --preset "$PRESET" "${TARGETS[@]}"; }
configure
if ! build; then
  grep -q '^CMAKE_UNITY_BUILD:.*=ON$' "build/$PRESET/CMakeCache.txt" || die "the build failed (above)"
  warn "Once more, file by file. If it works so, a name is there twice: cmake/Unity.cmake says what to do."
  configure -DCMAKE_UNITY_BUILD=OFF
  build || die "the build failed (above)"
fi
for program in rekindle rekindled; do
  [[ -x build/$PRESET/bin/$program ]] && note "$REPO_ROOT/build/$PRESET/bin/$program"
done
exit 0
