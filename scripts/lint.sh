#!/usr/bin/env bash
# Checks the format of every source file, runs shellcheck over the scripts and pylint over Python (for what can't be
# right, such as a name that is nowhere), and clang-tidy with clang's thread-safety analysis over the folders that do not
# include gRPC. How each is compiled it takes from build/lint, which it configures itself: several files as one, since
# clang-tidy spends most of its time on the headers.
#   scripts/lint.sh
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly TIDY_FOLDERS=(base criu dedup_store gpu_state)
readonly BUILD=build/lint
# Programs of tests that have files to look at beside the tests.
readonly WITH_TESTS='dedup_store_fault_test;criu_roundtrip_test'
cd "$REPO_ROOT"

sources() { git ls-files -- "$@" ':!third_party' | grep -E '\.(h|cc|c)$' || true; }

STATUS=0
step "clang-format"
FORMAT_LOG=$(mktemp -t rekindle-format.XXXXXX)
TIDY_LOG=$(mktemp -t rekindle-tidy.XXXXXX)
trap 'rm -f "$FORMAT_LOG" "$TIDY_LOG"' EXIT
# Many at a time: clang-format takes longer to start than for a file.
if ! sources . | xargs -r -n 200 clang-format --dry-run -Werror 2>"$FORMAT_LOG"; then
  # Its complaints are one for each place; all else that it says is an error.
  sed -n 's/^\(.*\):[0-9]*:[0-9]*: error: code should be clang-formatted.*/    not formatted: \1/p' "$FORMAT_LOG" | sort -u
  grep -q 'clang-formatted' "$FORMAT_LOG" || cat "$FORMAT_LOG" >&2
  warn "format with: git ls-files | grep -E '\\.(h|cc|c)\$' | xargs clang-format -i"
  STATUS=1
fi

step "CLI11 through base/command_line.h"
# By itself it reads "010" as eight.
if git grep -nE '# *include *[<"]CLI/' -- ':!base/command_line.h'; then STATUS=1; fi

step "shellcheck"
shell_scripts() { git grep -lE '^#!.*/(ba|env ba)?sh$' -- ':!*.md' ':!third_party'; }
mapfile -t SHELL_SCRIPTS < <(shell_scripts)
shellcheck -x "${SHELL_SCRIPTS[@]}" || STATUS=1

step "pylint"
# Not bench/functions: each folder there is a program of its own, with modules of the same names.
mapfile -t PYTHON < <(git ls-files -- '*.py' ':!bench/functions')
# What a class that is no test misses, those that it is mixed into have.
pylint --score=n --disable=all --mixin-class-rgx='^(?!.*Test$).*$' \
  --enable=syntax-error,no-member,undefined-variable,used-before-assignment,function-redefined,no-value-for-parameter \
  --enable=unexpected-keyword-arg,unused-import,unused-variable,unreachable \
  --init-hook='import sys; sys.path[:0] = ["tests/integration", "hook/python"]' "${PYTHON[@]}" || STATUS=1

step "clang-tidy: ${TIDY_FOLDERS[*]}"
cmake --fresh -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DREKINDLE_CORE_ONLY=ON \
  -DCMAKE_UNITY_BUILD=ON -DREKINDLE_FILE_BY_FILE="$WITH_TESTS" >/dev/null
cmake --build "$BUILD" --target proto_headers >/dev/null
# Only what the build compiles: a file without its flags would be reported for its missing includes.
compiled() { grep -xFf <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$BUILD/compile_commands.json"); }
alone() { sources "${TIDY_FOLDERS[@]}" | grep -v '_test\.cc$' | sed "s,^,$REPO_ROOT/,"; }
# Those of our own files, without tests.
together() {
  local folder
  for folder in "${TIDY_FOLDERS[@]}"; do
    find "$REPO_ROOT/$BUILD/$folder/CMakeFiles" -path '*/Unity/unity_*' ! -path '*_test.dir/*' -name '*.cxx' \
      -exec grep -L "\"$REPO_ROOT/$BUILD/" {} +
  done
}
FOLDERS=$(IFS='|' && echo "${TIDY_FOLDERS[*]}")
if ! { together; alone; } | compiled | xargs -r -P "$(nproc)" -n 1 clang-tidy -p "$BUILD" --quiet \
  --header-filter="^$REPO_ROOT/($FOLDERS)/[^/]*\.cc\$" >"$TIDY_LOG" 2>&1; then
  grep -A 3 -E '(error|warning):' "$TIDY_LOG" >&2 || cat "$TIDY_LOG" >&2
  STATUS=1
fi
((STATUS == 0)) && note "clean"
exit "$STATUS"
