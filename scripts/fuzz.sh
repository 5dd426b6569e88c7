#!/usr/bin/env bash
# Feeds mutated bytes to everything that reads the store's files or CRIU's: libFuzzer with ASan and UBSan.
#   scripts/fuzz.sh [SECONDS_PER_TARGET] [TARGET...]     (60 seconds, all targets)
# Inputs that were of interest gather in build/fuzz/corpus and are used again. Prints a count for each target.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

SECONDS_EACH=${1:-60}
shift || true
TARGETS=("$@")
((${#TARGETS[@]})) || TARGETS=(manifest_fuzz pack_fuzz index_fuzz catalog_record_fuzz image_stream_fuzz criu_images_fuzz)

CC=clang CXX=clang++ cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DREKINDLE_CORE_ONLY=ON \
  -DREKINDLE_FUZZ=ON -DBUILD_TESTING=OFF -DCMAKE_UNITY_BUILD=ON >/dev/null
cmake --build build/fuzz --target "${TARGETS[@]}" >build/fuzz/build.log 2>&1 || {
  tail -n 40 build/fuzz/build.log
  exit 1
}

# fuzz TARGET
fuzz() {
  local target=$1 corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log
  mkdir -p "$corpus"
  if ! build/fuzz/bin/"$target" -max_total_time="$SECONDS_EACH" -timeout=10 -rss_limit_mb=3000 -max_len=65536 \
    -print_final_stats=1 -artifact_prefix=build/fuzz/"$target"- "$corpus" >"$log" 2>&1; then
    tail -n 30 "$log"
    echo "$target: FAILED; the input is build/fuzz/$target-*"
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
