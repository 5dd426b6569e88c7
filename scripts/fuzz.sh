#!/usr/bin/env bash
# Feeds mutated bytes to everything that reads the store's files or CRIU's: libFuzzer with ASan and UBSan.
#   scripts/fuzz.sh [--in BUILD_FOLDER] [SECONDS_PER_TARGET] [TARGET...]     (60 seconds, all targets)
# --in build/asan: with what `scripts/build.sh asan -DREKINDLE_FUZZ=ON` has compiled, which is slower code than build/fuzz
# has, but there already. Inputs that were of interest gather in BUILD_FOLDER/corpus and are used again. Prints a count for
# each target.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

BUILD=build/fuzz
if [[ ${1:-} == --in ]]; then
  BUILD=${2:?--in wants a build folder}
  shift 2
fi
SECONDS_EACH=${1:-60}
shift || true
TARGETS=("$@")
((${#TARGETS[@]})) || TARGETS=(manifest_fuzz pack_fuzz index_fuzz catalog_record_fuzz image_stream_fuzz criu_images_fuzz)

OPTIONS=(-DREKINDLE_FUZZ=ON)
if [[ $BUILD == build/fuzz ]]; then
  OPTIONS+=(-G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DREKINDLE_SANITIZER=address -DREKINDLE_CORE_ONLY=ON
    -DBUILD_TESTING=OFF -DCMAKE_UNITY_BUILD=ON)
  export CC=clang CXX=clang++
fi
cmake -S . -B "$BUILD" "${OPTIONS[@]}" >/dev/null
cmake --build "$BUILD" --target "${TARGETS[@]}" >"$BUILD/fuzz-build.log" 2>&1 || {
  tail -n 40 "$BUILD/fuzz-build.log"
  exit 1
}

# fuzz TARGET
fuzz() {
  local target=$1 corpus=$BUILD/corpus/$1 log=$BUILD/$1.log
  mkdir -p "$corpus"
  if ! "$BUILD/bin/$target" -max_total_time="$SECONDS_EACH" -timeout=10 -rss_limit_mb=3000 -max_len=65536 \
    -print_final_stats=1 -artifact_prefix="$BUILD/$target-" "$corpus" >"$log" 2>&1; then
    tail -n 30 "$log"
    echo "$target: FAILED; the input is $BUILD/$target-*"
    return 1
  fi
  note "$target: $(sed -n 's/stat::number_of_executed_units: *//p' "$log") inputs in $SECONDS_EACH s, none did harm"
}

# One for each processor at a time.
STATUS=0 RUNNING=0
for target in "${TARGETS[@]}"; do
  if ((RUNNING == $(nproc))); then
    wait -n || STATUS=1
    RUNNING=$((RUNNING - 1))
  fi
  fuzz "$target" &
  RUNNING=$((RUNNING + 1))
done
while ((RUNNING > 0)); do
  wait -n || STATUS=1
  RUNNING=$((RUNNING - 1))
done
exit "$STATUS"
