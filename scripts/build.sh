#!/usr/bin/env bash
# Sets up what a build needs, configures and builds. The programs are then in build/PRESET/bin.
#   scripts/build.sh [release|debug|asan|tsan] [--programs|--unit-tests] [CMAKE OPTIONS]
# --programs: only what users run, no tests and benchmarks.
# A new build folder, and each with a sanitizer, compiles several files as one, which is faster;
# -DCMAKE_UNITY_BUILD=OFF leaves that out.
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
      sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      sed -n '3s/^# */Usage: /p' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
done

"$REPO_ROOT/scripts/setup.sh" --build
cd "$REPO_ROOT"
[[ $PRESET == *san || ! -e build/$PRESET/CMakeCache.txt ]] && OPTIONS=(-DCMAKE_UNITY_BUILD=ON "${OPTIONS[@]}")
# Checked code is made in two thirds of the time by clang, which also sees more.
if [[ $PRESET == *san ]] && command -v clang++ >/dev/null; then export CC=${CC:-clang} CXX=${CXX:-clang++}; fi
# A compiler takes up to 3 GiB.
JOBS=$(awk -v most="$(nproc)" '/^MemTotal:/ { jobs = int($2 / 3145728) } END { print jobs < 1 ? 1 : jobs < most ? jobs : most }' /proc/meminfo)
step "Building ($PRESET)"
configure() {
  cmake --preset "$PRESET" "${OPTIONS[@]}" "$@" >"/tmp/rekindle-configure.$$" 2>&1 || {
    cat "/tmp/rekindle-configure.$$" >&2
    rm -f "/tmp/rekindle-configure.$$"
    die "cmake --preset $PRESET failed (above)"
  }
  rm -f "/tmp/rekindle-configure.$$"
}
# build NINJA_OPTION...
build() { cmake --build --preset "$PRESET" -j "$JOBS" "${TARGETS[@]}" -- "$@"; }
unity() { grep -q '^CMAKE_UNITY_BUILD:.*=ON$' "build/$PRESET/CMakeCache.txt"; }
# Those that don't compile with several files as one, and may do so without: a name is there twice.
clashing() { grep -o '^FAILED: .*/CMakeFiles/[^/]*\.dir/Unity/' "$1" | sed 's,.*/CMakeFiles/\([^/]*\)\.dir/Unity/,\1,' | sort -u; }
configure
if ! unity; then
  build || die "the build failed (above)"
else
  LOG=$(mktemp -t rekindle-build.XXXXXX)
  trap 'rm -f "$LOG"' EXIT
  # To the end, so that all of these are known.
  if ! build -k 0 | tee "$LOG"; then
    mapfile -t CLASHING < <(clashing "$LOG")
    ((${#CLASHING[@]})) || die "the build failed (above)"
    warn "Once more, file by file: ${CLASHING[*]}. If it works so, a name is there twice: cmake/Unity.cmake says what to do."
    configure "-DREKINDLE_FILE_BY_FILE=$(IFS=';' && echo "${CLASHING[*]}")"
    build || die "the build failed (above)"
  fi
fi
for program in rekindle rekindled; do
  [[ -x build/$PRESET/bin/$program ]] && note "$REPO_ROOT/build/$PRESET/bin/$program"
done
exit 0
