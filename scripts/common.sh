# Shared by the scripts in this folder; sourced, never run. Needs bash.
# shellcheck shell=bash

REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export REPO_ROOT

if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' GREEN=$'\e[32m' YELLOW=$'\e[33m' CYAN=$'\e[36m' PLAIN=$'\e[0m'
else
  BOLD='' DIM='' RED='' GREEN='' YELLOW='' CYAN='' PLAIN=''
fi
export BOLD DIM RED GREEN YELLOW CYAN PLAIN

step() { printf '%s==>%s %s\n' "$CYAN$BOLD" "$PLAIN" "$*"; }
note() { printf '    %s\n' "$*"; }
warn() { printf '%swarning:%s %s\n' "$YELLOW" "$PLAIN" "$*" >&2; }
# die MESSAGE...: the message says what failed and the cure.
die() {
  printf '%serror:%s %s\n' "$RED" "$PLAIN" "$*" >&2
  exit 1
}

# version_at_least HAVE WANT: dotted numbers.
version_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# quietly LOG COMMAND...: output goes to LOG; its end is shown if the command fails.
quietly() {
  local log=$1
  shift
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    return 1
  fi
}

# criu_in_prefix PREFIX: sets the array CRIU to the command that runs it, with the loader of the prefix.
criu_in_prefix() {
  # shellcheck disable=SC2034  # read by whoever sourced this file
  CRIU=("$1/lib64/ld-linux-x86-64.so.2" --library-path "$1/usr/lib/x86_64-linux-gnu" "$1/usr/sbin/criu")
}

# criu_version COMMAND...: prints 4.2.1, or nothing when the command does not run.
criu_version() {
  local text
  text=$("$@" --version 2>/dev/null) || return 0
  sed -n 's/^Version: *\([0-9][0-9.]*\).*/\1/p' <<<"$text"
}
