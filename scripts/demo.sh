#!/usr/bin/env bash
# Shows the main job on a real PyTorch training: checkpoint it while it runs, kill -9, bring it back, and see that it goes
# on with the same numbers. Sets up and builds what it needs first. Leaves nothing behind but the build folder.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[[ $EUID -eq 0 ]] || die "CRIU freezes and restores processes as root: run this demo as root."
"$REPO_ROOT/scripts/setup.sh" --build --demo --criu
"$REPO_ROOT/scripts/build.sh" release --programs
BIN=$REPO_ROOT/build/release/bin

# A store, job list and logs of its own: whatever else Rekindle does on this machine is not touched.
WORK=$(mktemp -d -t rekindle-demo.XXXXXX)
export REKINDLE_STORE=$WORK/store REKINDLE_RUNTIME_DIR=$WORK/run REKINDLE_LOG_DIR=$WORK/log
unset REKINDLE_HOST
JOB=
is_our_job() { [[ -n $JOB ]] && tr '\0' ' ' 2>/dev/null <"/proc/$JOB/cmdline" | grep -q 'examples/train\.py'; }
cleanup() {
  if is_our_job; then kill -9 "$JOB" 2>/dev/null || true; fi
  rm -rf "$WORK"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

title() { printf '\n%s%s%s\n' "$BOLD$CYAN" "$*" "$PLAIN"; }
typed() { printf '  %s$ %s%s\n' "$BOLD" "$*" "$PLAIN"; }
indent() { sed 's/^/  /'; }
# shown COMMAND...: what a person would type, and what it prints; OUTPUT keeps the latter.
shown() {
  typed "$*"
  OUTPUT=$("$@" 2>&1) || die "it failed: $OUTPUT"
  indent <<<"$OUTPUT"
}
# said FIELD: its value in the output of the last command shown.
said() { sed -n "s/^ *$1  *\([0-9][^ ]* [^ ,]*\).*/\1/p" <<<"$OUTPUT"; }
rekindle() { "$BIN/rekindle" "$@"; }
# The PID of the job that the JSON on stdin tells of.
job_pid() { /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["job"]["pid"])'; }
size_of() { du -s --block-size=1 "$1" | cut -f1; }
mebibytes() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
last_step() { sed -n 's/^step *\([0-9]*\) .*/\1/p' "$1" 2>/dev/null | tail -n 1; }

# wait_for_step LOG STEP
wait_for_step() {
  local waited
  for ((waited = 0; waited < 1200; waited++)); do
    (($(last_step "$1" || true) + 0 >= $2)) && return 0
    is_our_job || die "the training ended too early; the end of its log: $(tail -n 3 "$1")"
    sleep 0.1
  done
  die "the training did not reach step $2 in two minutes; the end of its log: $(tail -n 3 "$1")"
}

title "1. A PyTorch job trains. Each line of its log ends with a digest of all its state."
typed "rekindle run --detach --name train -- python3 examples/train.py"
JOB=$(cd "$REPO_ROOT" && rekindle run --json --detach --name train --log "$WORK/first.log" -- \
  /usr/bin/python3 examples/train.py </dev/null | job_pid)
wait_for_step "$WORK/first.log" 10
printf '  PID %s, %s threads, %s resident\n' "$JOB" "$(grep -c . < <(ls "/proc/$JOB/task"))" \
  "$(mebibytes $(($(awk '/^VmRSS/ { print $2 }' "/proc/$JOB/status") * 1024)))"
tail -n 2 "$WORK/first.log" | indent

title "2. Take an image of it. It runs on."
shown rekindle ckpt train -t demo:1
FROZEN=$(said frozen) MEMORY=$(said memory)
IMAGE_STEP=$(last_step "$WORK/first.log")
wait_for_step "$WORK/first.log" $((IMAGE_STEP + 6))

title "3. Disaster."
typed "kill -9 $JOB"
kill -9 "$JOB"
# Until its parent has noticed, a dead process keeps its PID.
for ((i = 0; i < 200; i++)); do
  [[ -e /proc/$JOB ]] || break
  sleep 0.05
done
DIED_AT=$(last_step "$WORK/first.log")
ps -p "$JOB" >/dev/null || printf '  Process %s is gone. Its last words: step %s\n' "$JOB" "$DIED_AT"

title "4. Bring it back."
shown rekindle restore demo:1 --detach --log "$WORK/second.log"
BACK=$(said '.*restored in')
wait_for_step "$WORK/second.log" "$DIED_AT"
FIRST_STEP=$(sed -n 's/^step *\([0-9]*\) .*/\1/p;1q' "$WORK/second.log")
printf '\n  %-6s%-40s%s\n' step "before kill -9" "after the restore"
SAME=0
while read -r _ number _ loss _ digest; do
  ((number <= DIED_AT)) || break
  before=$(awk -v step="$number" '$1 == "step" && $2 == step { print $4, $6 }' "$WORK/first.log")
  read -r loss_before digest_before <<<"$before"
  mark="${GREEN}same${PLAIN}"
  if [[ $before == "$loss $digest" ]]; then ((++SAME)); else mark="${RED}DIFFERENT${PLAIN}"; fi
  printf '  %-6s%-40s%-40s%s\n' "$number" "loss $loss_before  state ${digest_before:0:16}" \
    "loss $loss  state ${digest:0:16}" "$mark"
  [[ $mark != *DIFFERENT* ]] || die "the restored job does not do what it did before"
done <"$WORK/second.log"
((SAME > 0)) || die "the logs of the two lives have no step in common"

title "5. A second image, some steps later: only what changed is stored."
wait_for_step "$WORK/second.log" $((DIED_AT + 2))
BEFORE=$(size_of "$REKINDLE_STORE")
shown rekindle ckpt train -t demo:2
AFTER=$(size_of "$REKINDLE_STORE")
shown rekindle ls

title "6. What stock CRIU makes of the same job."
CRIU=(criu)
if ! version_at_least "$(criu_version criu)" 4.2; then criu_in_prefix "${REKINDLE_CRIU_PREFIX:-/opt/rekindle/criu}"; fi
mkdir "$WORK/plain"
typed "criu dump --leave-running -t $JOB -D plain"
"${CRIU[@]}" dump --leave-running -t "$JOB" -D "$WORK/plain" -o dump.log >/dev/null 2>&1 ||
  die "stock criu dump failed: $(grep Error "$WORK/plain/dump.log" | head -n 2)"
PLAIN_SIZE=$(size_of "$WORK/plain")

# of_plain BYTES: the size, and its share of a plain image.
of_plain() { awk -v a="$1" -v b="$PLAIN_SIZE" 'BEGIN { printf "%.1f MiB, %.0f %% of it", a / 1048576, 100 * a / b }'; }
row() { printf '  %-24s%s\n' "$1" "$2"; }
row "each plain image" "$(mebibytes "$PLAIN_SIZE")"
row "the store, one image" "$(of_plain "$BEFORE")"
row "the second image added" "$(of_plain $((AFTER - BEFORE)))"

title "In short"
row "stood still" "$FROZEN, with $MEMORY of memory"
row "died" "after step $DIED_AT"
row "back" "in $BACK, same PID $JOB, going on with step $FIRST_STEP"
row "numbers" "$SAME of $SAME steps that it did twice are the same, bit for bit"
printf '\n%sDone.%s Job and store of the demo are removed; the program is %s.\n' "$BOLD$GREEN" "$PLAIN" "$BIN/rekindle"
