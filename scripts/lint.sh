#!/usr/bin/env bash
# Checks the format of every source file, and runs clang-tidy with clang's thread-safety analysis over the folders that
# do not include gRPC. How each is compiled it takes from build/lint, which it configures itself.
#   scripts/lint.sh
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly TIDY_FOLDERS=(base criu dedup_store gpu_state)
readonly BUILD=build/lint
cd "$REPO_ROOT"

sources() { git ls-files -- "$@" ':!third_party' | grep -E '\.(h|cc|c)$' || true; }

STATUS=0
step "clang-format"
while read -r file; do
  if ! clang-format "$file" | cmp -s - "$file"; then
    note "not formatted: $file"
    STATUS=1
  fi
done < <(sources .)
((STATUS == 0)) || warn "format with: git ls-files | grep -E '\\.(h|cc|c)\$' | xargs clang-format -i"

step "clang-tidy: ${TIDY_FOLDERS[*]}"
cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DREKINDLE_CORE_ONLY=ON >/dev/null
cmake --build "$BUILD" --target proto_headers >/dev/null
TIDY_LOG=$(mktemp -t rekindle-tidy.XXXXXX)
trap 'rm -f "$TIDY_LOG"' EXIT
# Only what the build compiles: a file without its flags would be reported for its missing includes.
if ! sources "${TIDY_FOLDERS[@]}" | grep -v '_test\.cc$' | while read -r file; do
  if grep -qF "\"$REPO_ROOT/$file\"" "$BUILD/compile_commands.json"; then echo "$file"; fi
done | xargs -r -P "$(nproc)" -n 1 clang-tidy -p "$BUILD" --quiet >"$TIDY_LOG" 2>&1; then
  grep -A 3 -E '(error|warning):' "$TIDY_LOG" >&2 || cat "$TIDY_LOG" >&2
  STATUS=1
fi
((STATUS == 0)) && note "clean"
exit "$STATUS"
