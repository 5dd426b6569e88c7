#!/usr/bin/env bash
# Runs the tour of README.md: every ```sh block, in order, in one shell, with the programs and the hook of a build and a
# store of its own. Fails where a command fails, or where the tour leaves a process or file behind. Blocks fenced
# ```sh norun are left out: they set up a machine, or need a second one.
#   scripts/check-readme.sh BIN_FOLDER [README]
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

BIN=$(cd "${1:?folder of rekindle and rekindled}" && pwd)
README=$(realpath "${2:-$REPO_ROOT/README.md}")
[[ $EUID -eq 0 ]] || die "CRIU freezes and restores processes as root: run this as root."

HOOK=$(dirname "$BIN")/hook/librekindle_hook.so
[[ -r $HOOK ]] || die "$HOOK is missing: build it first (scripts/build.sh)."

# Short: sockets lie in it, and their paths have little room. Open to others, since the tour plays another user.
SCRATCH=$(mktemp -d /var/tmp/readme-tour.XXXXXX)
chmod 755 "$SCRATCH"
mkdir "$SCRATCH/bin" "$SCRATCH/tour"

# tour_processes: PIDs of what runs in the scratch folder, whoever started it.
tour_processes() {
  local entry
  for entry in /proc/[0-9]*; do
    [[ $(readlink "$entry/cwd" 2>/dev/null) == "$SCRATCH"/* ]] && echo "${entry#/proc/}"
  done
  return 0
}
shared_memory() { find /dev/shm -maxdepth 1 -name 'rekindle-*' | sort; }

cleanup() {
  local pid
  for pid in $(tour_processes); do kill -9 "$pid" 2>/dev/null || true; done
  rm -rf "$SCRATCH"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Links, not a folder in PATH: the other test programs of the build are no part of the tour.
for program in rekindle rekindled; do
  [[ -x $BIN/$program ]] || die "$BIN/$program is missing: build it first (scripts/build.sh)."
  ln -s "$BIN/$program" "$SCRATCH/bin/$program"
done
# A private CRIU in its usual place README finds by itself.
if [[ -n ${REKINDLE_CRIU_PREFIX:-} ]] && ! version_at_least "$(criu_version criu)" 4.2; then
  criu_in_prefix "$REKINDLE_CRIU_PREFIX"
  printf '#!/bin/sh\nexec %s "$@"\n' "${CRIU[*]}" >"$SCRATCH/bin/criu"
  chmod 755 "$SCRATCH/bin/criu"
fi

{
  echo 'set -eu'
  awk -v name="$(basename "$README")" '
    /^```/ {
      if (inside) { inside = 0; next }
      if ($0 == "```sh") { inside = 1; printf "echo \"== %s:%d\"\n", name, NR + 1; ++run; next }
      if ($0 ~ /^```sh /) ++skipped
      next
    }
    inside { print }
    END {
      if (run < 8) { print name " has only " run + 0 " blocks to run" >"/dev/stderr"; exit 1 }
      if (skipped > 6) { print name " has " skipped " blocks that are not run: too many" >"/dev/stderr"; exit 1 }
    }' "$README"
  echo 'echo "== the end"'
} >"$SCRATCH/tour.sh"

# Runs a command, and reaps at once what falls to it meanwhile, as an init does: not every container's init is quick, and
# CRIU can't give a job its PID back while a zombie has it.
readonly REAPER='
import ctypes, os, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
command = subprocess.Popen(sys.argv[1:])
while True:
    pid, status = os.wait()
    if pid == command.pid:
        sys.exit(os.waitstatus_to_exitcode(status))
'

BEFORE=$(shared_memory)
STATUS=0
(cd "$SCRATCH/tour" && env -i HOME="$SCRATCH/tour" TERM=dumb LANG=C.UTF-8 \
  PATH="$SCRATCH/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
  PYTHONPATH="$REPO_ROOT/hook/python" REKINDLE_HOOK_LIBRARY="$HOOK" PYTHONDONTWRITEBYTECODE=1 \
  REKINDLE_STORE="$SCRATCH/store" REKINDLE_RUNTIME_DIR="$SCRATCH/run" REKINDLE_LOG_DIR="$SCRATCH/log" \
  ${REKINDLE_CRIU:+REKINDLE_CRIU="$REKINDLE_CRIU"} \
  /usr/bin/python3 -c "$REAPER" bash "$SCRATCH/tour.sh" </dev/null) >"$SCRATCH/output" 2>&1 || STATUS=$?
cat "$SCRATCH/output"
if ((STATUS != 0)) || ! grep -qx '== the end' "$SCRATCH/output"; then
  die "the tour of $README failed (status $STATUS) in the block at $(grep '^== ' "$SCRATCH/output" | tail -n 1 | cut -c4-)"
fi

# What was killed at the end of the tour may still be on its way out, the pager stays for a while after its last clone, and
# other restores on the machine come and go.
for ((i = 0; i < 300; i++)); do
  LEFT=$(tour_processes)
  FILES=$(comm -13 <(echo "$BEFORE") <(shared_memory))
  [[ -n $LEFT$FILES ]] || break
  sleep 0.1
done
[[ -z $LEFT ]] || die "the tour left processes behind: $(ps -o pid=,args= -p "$(tr '\n' ',' <<<"$LEFT" | sed 's/,$//')")"
[[ -z $FILES ]] || die "the tour left files behind: $FILES"
note "the tour of $README works"
