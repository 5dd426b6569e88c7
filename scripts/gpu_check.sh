#!/usr/bin/env bash
# Checks Rekindle on a machine with an NVIDIA GPU: that jobs of all kinds keep their device memory through captures,
# restores, park and resume, and how fast that is. Writes a Markdown report as it goes, so that what was done before a
# cut-off is in it. Installs nothing and needs no network. Run as root; Python with torch is used where it is there.
#   gpu_check.sh [FOLDER] [OPTION...]
# FOLDER: an unpacked bundle made with --gpu-tests (packaging/make-bundle.sh), or the bin folder of a build; left out, the
# bundle that this script lies in.
#   --report FILE      (gpu-check.md)
#   --logs FILE.tar.gz keeps the jobs' output and the logs of Rekindle and CRIU, of failures
#   --work FOLDER      all else that it writes lies below (/var/tmp); room for the image of 8 GB three times is best
#   --minutes N        starts nothing any more that would end later, and gives up what does, a minute after that (8)
#   --quick            correctness and the smallest figure only
#   --brief            without what takes longest: the look at the driver, and training with torch
#   --figures SIZES    no correctness, and the figures for these sizes in GB ("1 8 40"); with servers, but where one of
#                      them is above 8, which leaves no time for these
#   --no-servers       nor any servers
#   --servers SIZES    no correctness and none of these figures: the warm starts of servers of these sizes in GiB alone
#   --python PROGRAM   that has torch (python3)
#   --sim              on the simulated driver, without torch and figures: control flow only
#   --rehearse         with --sim, to check this script: the figures too, for sizes without meaning
#   --torch-on-cpu     with --sim, to check this script: the torch jobs too
# Exit status: 0 when every correctness check passed; of figures only that they can be taken counts. 1 otherwise, 2 for bad
# usage.
set -uo pipefail

SELF=$(realpath "${BASH_SOURCE[0]}")
HERE=$(dirname "$SELF")
FOLDER='' REPORT=gpu-check.md KEPT='' BASE=/var/tmp MINUTES=8 QUICK='' BRIEF='' FIGURES='' SERVERS=1 SERVER_SIZES='' PYTHON=python3 SIM='' REHEARSE='' ON_CPU=''
help() { sed -n '5,24s/^# \{0,1\}//p' "$SELF"; }
usage() {
  help >&2
  exit 2
}
ARGUMENTS=("$@")
while (($#)); do
  case $1 in
    --report | --logs | --work | --python | --minutes | --figures | --servers)
      (($# > 1)) || usage
      case $1 in
        --report) REPORT=$2 ;;
        --logs) KEPT=$2 ;;
        --work) BASE=$2 ;;
        --python) PYTHON=$2 ;;
        --minutes) MINUTES=$2 ;;
        --figures) FIGURES=$2 ;;
        --servers) SERVER_SIZES=$2 ;;
      esac
      shift
      ;;
    --quick) QUICK=1 ;;
    --brief) BRIEF=1 ;;
    --no-servers) SERVERS='' ;;
    --sim) SIM=1 ;;
    --rehearse) REHEARSE=1 ;;
    --torch-on-cpu) ON_CPU=1 ;;
    -h | --help)
      help
      exit 0
      ;;
    -*) usage ;;
    *)
      [[ -z $FOLDER ]] || usage
      FOLDER=$1
      ;;
  esac
  shift
done
[[ -z $REHEARSE$ON_CPU || -n $SIM ]] || usage
[[ $MINUTES =~ ^[0-9]+$ && $FIGURES$SERVER_SIZES =~ ^[0-9\ ]*$ && -z ${FIGURES:+$SERVER_SIZES} ]] || usage
die() {
  echo "gpu_check: $*" >&2
  exit 1
}
((EUID == 0)) || die "CRIU freezes and restores processes as root: run this as root."
# Before a minute of a lent machine's time is spent without them: what each run calls, and what some do.
MISSING=()
for tool in awk cat cp cut date dd df dirname find grep head mkdir mktemp mv nproc readlink realpath rm sed setsid sleep sort stat sync \
  tail timeout tr uname wc ${KEPT:+tar gzip}; do
  type -P "$tool" >/dev/null || MISSING+=("$tool")
done
((${#MISSING[@]} == 0)) || die "this machine lacks ${MISSING[*]}: install it, or name the folder that has it in PATH."

# Runs a command, and reaps at once what falls to it meanwhile, as an init does: not every container's init is quick, and
# CRIU can't give a job its PID back while a zombie has it.
readonly REAPER='
import ctypes, os, signal, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
command = subprocess.Popen(sys.argv[1:])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: command.send_signal(number))
while True:
    pid, status = os.wait()
    if pid == command.pid:
        sys.exit(os.waitstatus_to_exitcode(status))
'
if [[ -z ${GPU_CHECK_REAPED:-} ]] && "$PYTHON" -c 'import ctypes' 2>/dev/null; then
  GPU_CHECK_REAPED=1 exec "$PYTHON" -c "$REAPER" bash "$SELF" ${ARGUMENTS[@]+"${ARGUMENTS[@]}"}
fi

# ---- what it runs ----
[[ -n $FOLDER || ! -x $HERE/bin/rekindle ]] || FOLDER=$HERE
[[ -n $FOLDER ]] || usage
FOLDER=$(realpath "$FOLDER") || exit 2
if [[ -x $FOLDER/bin/rekindle ]]; then
  BIN=$FOLDER/bin TESTS=$FOLDER/gpu-tests PYTHON_JOBS=$FOLDER/gpu-tests CRIU_PREFIX=$FOLDER/criu
else
  BIN=$FOLDER TESTS=$FOLDER PYTHON_JOBS=$HERE/../tests/gpu_jobs CRIU_PREFIX=${REKINDLE_CRIU_PREFIX:-/opt/rekindle/criu}
fi
for program in "$BIN/rekindle" "$BIN/rekindled" "$TESTS"/gpu_{vector_job,tree_job,bare_calls,driver_probe}; do
  [[ -x $program ]] || die "$program is missing: make the bundle with --gpu-tests, or build everything."
done
STOCK_CRIU=("$CRIU_PREFIX/lib64/ld-linux-x86-64.so.2" --library-path "$CRIU_PREFIX/usr/lib/x86_64-linux-gnu"
  "$CRIU_PREFIX/usr/sbin/criu")

# ---- where ----
mkdir -p "$BASE" "$(dirname "$REPORT")" || exit 1
REPORT=$(realpath "$REPORT")
[[ -z $KEPT ]] || KEPT=$(realpath "$KEPT") || exit 1
WORK=$(mktemp -d "$(realpath "$BASE")/gpu-check.XXXXXX") || exit 1  # short: sockets lie in it
LOGS=$WORK/logs
mkdir "$LOGS"
cd "$WORK" || exit 1
export REKINDLE_STORE=$WORK/store REKINDLE_RUNTIME_DIR=$WORK/run REKINDLE_LOG_DIR=$WORK/log
unset REKINDLE_HOST
CONNECTION=(--no-daemon)
BEGAN=$SECONDS
FAILED=0 PASSED=0 LEFT_OUT=0
DEVICE=cuda
HOLD=$WORK/hold IN_MEMORY=''

# Whatever it has started has the work folder as its own.
ours() {
  local entry
  for entry in /proc/[0-9]*; do
    [[ ${entry#/proc/} == "$$" || ${entry#/proc/} == "$BASHPID" ]] && continue
    [[ $(readlink "$entry/cwd" 2>/dev/null) == "$WORK"* ]] && echo "${entry#/proc/}"
  done
  return 0
}
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  local pid i
  trap '' INT TERM HUP
  # First: whoever has told us to end may not wait for the jobs.
  [[ -z $KEPT ]] || keep_logs
  remove_export
  end_all_jobs  # before all else: the others would put their memory back before they end
  for ((i = 0; i < 100; i++)); do
    [[ -n $(ours) ]] || break
    for pid in $(ours); do
      if ((i < 50)); then kill "$pid" 2>/dev/null; else kill -9 "$pid" 2>/dev/null; fi
    done
    sleep 0.1
  done
  cd / && rm -rf --one-file-system "$WORK"
}
# No images: they are large.
# shellcheck disable=SC2317  # called by the trap
keep_logs() {
  (cd "$WORK" && find . -path ./store -prune -o -type f -size -4M -print0 | tar --null -T - -czf "$KEPT")
}
trap cleanup EXIT
trap 'say "cut off after $((SECONDS - BEGAN)) s"; report "" "Cut off here."; report_doctor; exit 130' INT TERM HUP

say() { printf '%s\n' "$*"; }
report() { printf '%s\n' "$@" >>"$REPORT"; }
now() { echo "${EPOCHREALTIME/[.,]/}"; }  # microseconds
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.3f", (b - a) / 1e6 }'; }
time_left() { echo $((MINUTES * 60 - (SECONDS - BEGAN))); }
report_doctor() { [[ -z ${DOCTOR:-} ]] || report "" "## Doctor" "" '```' "$DOCTOR" '```'; }
calculate() { awk "BEGIN { printf \"%.3f\", $1 }"; }
is_true() { [[ $(calculate "$1") == 1.000 ]]; }
smaller() { calculate "$1 < $2 ? $1 : $2"; }
mebibytes() { echo $(($1 << 20)); }

# ---- the commands ----
# Both leave OUT, what it printed, and on failure DETAIL, the reason.
# bounded SECONDS COMMAND...
bounded() {
  local limit=$1 status left=$(($(time_left) + 60))
  shift
  # Whatever hangs, the report is to be there in time.
  if ((limit > left)); then limit=$((left > 5 ? left : 5)); fi
  # Not in the foreground: a signal to us would have to wait for its end.
  timeout -k 10 "$limit" "$@" >"$WORK/out" 2>&1 </dev/null &
  wait $!
  status=$?
  OUT=$(<"$WORK/out")
  ((status == 0)) && return 0
  DETAIL="'${1##*/} ${*:2:6}': $([[ $status == 124 || $status == 137 ]] && echo "not done after $limit s; ")${OUT:0:600}"
  return 1
}
rk() {
  local limit=$1 message='"message":"(([^"\\]|\\.)*)"'
  shift
  bounded "$limit" "$BIN/rekindle" "${CONNECTION[@]}" --json "$@" && return 0
  [[ $OUT =~ $message ]] && DETAIL="rekindle ${*:1:4}: ${BASH_REMATCH[1]:0:600}"
  return 1
}
# The first field of this name in OUT.
field() {
  local pattern="\"$1\":\"?([^,\"}]*)"
  [[ $OUT =~ $pattern ]] && echo "${BASH_REMATCH[1]}"
}
# What OUT tells of the parts of a restore or a capture.
phases() {
  local list=${OUT#*\"phases\":[}
  sed 's/{"name":"\([^"]*\)","seconds":\([0-9.e-]*\)}/\1 \2/g; s/,/, /g; s/\(\.[0-9]\{3\}\)[0-9]*/\1/g' <<<"${list%%]*}"
}
free_device_bytes() {
  local total=0 rest
  rk 60 gpu ps || return 1
  rest=$OUT
  while [[ $rest =~ \"free_bytes\":\"?([0-9]+) ]]; do
    total=$((total + BASH_REMATCH[1]))
    rest=${rest#*\"free_bytes\"}
  done
  FREE=$total
}

# wait_until SECONDS COMMAND...
wait_until() {
  local end=$(($(now) + $1 * 1000000))
  shift
  until "$@"; do
    (($(now) < end)) || return 1
    sleep 0.005
  done
}

# ---- jobs ----
# spawn NAME COMMAND...: in a session of its own, without our descriptors; JOB is its PID.
spawn() {
  local name=$1
  shift
  (
    for descriptor in /proc/"$BASHPID"/fd/*; do
      descriptor=${descriptor##*/}
      if ((descriptor > 2 && descriptor < 255)); then eval "exec $descriptor>&-"; fi
    done
    exec setsid "$@" </dev/null >"$LOGS/$name" 2>&1
  ) &
  JOB=$!
  disown "$JOB"
  JOB_LOG=$LOGS/$name
}
alive() { [[ -e /proc/$1/stat ]] && ! grep -q '^State:[[:space:]]*[ZX]' "/proc/$1/status" 2>/dev/null; }
reaped() { [[ ! -e /proc/$1 ]]; }
# Ending a restored job while it is on the GPU has taken machines down with it (driver 595, open kernel module).
CAREFUL=''
if [[ -z $SIM && $(head -n 1 /proc/driver/nvidia/version 2>/dev/null) =~ Open\ Kernel\ Module.*\ ([0-9]+)\.[0-9] ]]; then
  ((BASH_REMATCH[1] < 590)) || CAREFUL=1
fi
off_the_gpu() { [[ -z $CAREFUL ]] || timeout -k 5 30 "$TESTS/gpu_bare_calls" out "$1" >/dev/null 2>&1 || true; }
# end_job PID: with its whole session.
end_job() {
  off_the_gpu "$1"
  kill -9 -- "-$1" 2>/dev/null || kill -9 "$1" 2>/dev/null
  wait_until 20 reaped "$1"
}
job_ended() {
  DETAIL="$1 has ended: $(tail -n 3 "$JOB_LOG" 2>/dev/null | tr '\n' ' ')"
  return 1
}
step_of() {
  local line=''
  if [[ -r $1 ]]; then read -r line <"$1"; fi
  line=${line%% *}
  echo "${line:-0}"
}
# The number of whole steps of a curve file.
curve_length() { if [[ -r $1 ]]; then grep -c . "$1"; else echo 0; fi; }
# further MORE COUNTER FILE SECONDS: until the job has made so many more steps.
further() {
  local wanted=$(($("$2" "$3") + $1)) end=$((SECONDS + $4))
  while (($("$2" "$3") < wanted)); do
    alive "$JOB" || { job_ended "the job" || return; }
    ((SECONDS < end)) || { DETAIL="the job made no $1 steps in $4 s" && return 1; }
    sleep 0.005
  done
}
steps() { further "${1:-3}" step_of "$STATE" 60; }
start_vector() {
  local name=$1
  shift
  STATE=$WORK/$name.state
  VECTOR_OPTIONS=("$@")
  spawn "$name" "$TESTS/gpu_vector_job" --state-file "$STATE" --step-ms 10 "$@"
  steps 2
}
# Ends the job, and compares its last digest with that of a run that nobody interrupts.
digest_is_right() {
  local step digest expected
  end_job "$JOB"
  read -r step digest _ <"$STATE"
  bounded 120 "$TESTS/gpu_vector_job" --state-file "$WORK/reference" "${VECTOR_OPTIONS[@]}" --step-ms 0 \
    --steps "$step" || return 1
  read -r _ expected _ <"$WORK/reference"
  [[ $digest == "$expected" ]] && return 0
  DETAIL="step $step has digest $digest, and $expected in a run without interruption"
  return 1
}
device_state_is() {
  local rest pattern='"state":"([a-z]*)","parked":([a-z]*)'
  rk 60 gpu ps || return 1
  rest=${OUT#*"\"pid\":$JOB,\"name\":"}
  [[ $rest != "$OUT" && $rest =~ $pattern && ${BASH_REMATCH[1]} == "$1" ]] && return 0
  DETAIL="gpu ps does not say that process $JOB is $1: ${OUT:0:400}"
  return 1
}
# The minor faults so far of each thread of the job.
faults_of_threads() {
  local task stat
  for task in "/proc/$JOB/task"/*; do
    { read -r stat <"$task/stat"; } 2>/dev/null || continue
    # Behind the name, in which there may be anything.
    awk -v id="${task##*/}" '{ print id, $8 }' <<<"${stat##*) }"
  done
}
# note_memory FAULTS: what the kernel made for the memory that has come off the GPU since. Leaves MADE: the thread that
# had the most faults is the driver's own, where these are its work and not the keeper's.
note_memory() {
  local huge
  huge=$(awk '/^AnonHugePages:/ { print int($2 / 1024) }' "/proc/$JOB/smaps_rollup" 2>/dev/null)
  MADE="${huge:-unknown} MiB of huge pages, $(
    awk 'NR == FNR { before[$1] = $2; next } $2 - before[$1] >= most { most = $2 - before[$1]; id = $1 }
      END { print most + 0 " faults of thread " id }' <(echo "$1") <(faults_of_threads))"
}
# Of a job with at least SMALL bytes of its own.
park_and_resume() {
  local before faults
  free_device_bytes || return 1
  before=$FREE faults=$(faults_of_threads)
  rk 60 gpu park "$JOB" || return 1
  PARKED="$(field bytes) bytes in $(field seconds) s"
  note_memory "$faults"
  PARKED+="; $MADE"
  device_state_is checkpointed && free_device_bytes || return 1
  if ((FREE < before + SMALL * 3 / 4)); then
    DETAIL="parked, but of device memory $FREE bytes are free, and $before were with the job"
    return 1
  fi
  rk 60 gpu resume "$JOB" && device_state_is running
}
back_from_image() {
  wait_until 20 reaped "$JOB" || { DETAIL="the job is there still after --stop" && return 1; }
  rk 120 restore "$1" --detach
}

daemon_answers() { alive "$JOB" && [[ -S $WORK/socket ]] && rk 120 gpu ps; }
# From here on a daemon does the work: its helper initialises the driver once, not at each command.
start_daemon() {
  [[ ${CONNECTION[0]} == --no-daemon ]] || return 0
  DETAIL=''
  spawn daemon "$BIN/rekindled" --socket "$WORK/socket"
  CONNECTION=(--host "unix://$WORK/socket")
  # One answer that fails is no reason to do without all figures.
  wait_until 30 daemon_answers && return 0
  CONNECTION=(--no-daemon)
  DETAIL="${DETAIL:-the daemon does not start: $(tail -n 2 "$LOGS/daemon" | tr '\n' ' ')}"
  end_job "$JOB"
  rm -f "$WORK/socket"
  return 1
}

# ---- correctness ----
# check NAME FUNCTION [ARGUMENT...]: DETAIL is what there is to say of it.
check() {
  local name=$1 began
  shift
  if (($(time_left) < 20)); then
    left_out "$name" "no time left"
    return
  fi
  DETAIL=''
  JOB=''
  began=$(now)
  LIMIT=''
  if "$@"; then
    PASSED=$((PASSED + 1))
    say "ok      $name ($(since "$began") s)${DETAIL:+: $DETAIL}"
    report "| $name | ok | $(cell "$DETAIL") |"
  elif [[ -n $LIMIT ]]; then
    left_out "$name" "$(cell "$LIMIT")"
  else
    FAILED=$((FAILED + 1))
    say "FAILED  $name ($(since "$began") s): $DETAIL"
    report "| $name | **failed** | $(cell "$DETAIL") |"
  fi
  end_all_jobs
}
cell() { tr '|\n' '/ ' <<<"${1:0:500}" | sed 's/ *$//'; }
left_out() {
  LEFT_OUT=$((LEFT_OUT + 1))
  say "--      $1: left out, $2"
  report "| $1 | left out | $2 |"
}
end_all_jobs() {
  local pid
  for pid in $(ours); do
    case $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") in
      *gpu_vector_job* | *gpu_tree_job* | *torch_*.py* | *gpu_driver_probe*)
        off_the_gpu "$pid"
        kill -9 "$pid" 2>/dev/null && wait_until 20 reaped "$pid"
        ;;
    esac
  done
}

# What is seen of the driver, as far as it comes: nothing of it is right or wrong.
probe_driver() {
  report "" "## What this driver does" "" "A job of 256 MiB, and others of 16 MiB; each call is made by a process that only makes calls." \
    "" "| | |" "| --- | --- |"
  local ended=1 bytes=2000000000
  [[ -z $SIM ]] || bytes=16000000
  bounded 120 "$TESTS/gpu_driver_probe" "$WORK" "$bytes" || ended=''
  grep '^| ' "$WORK/out" >>"$REPORT"
  [[ -n $ended ]] || report "| it did not go on | $(cell "$(grep -v '^| ' "$WORK/out" | tail -n 2)") |"
  say "probed  $(grep -c '^| ' "$WORK/out") things that the driver does"
  end_all_jobs
}
# What the driver asks the kernel for.
trace_driver() {
  local bytes=1000000000 ended=1
  [[ -z $SIM ]] || bytes=8000000
  report "" "## Where the driver's time goes" "" "Three moves of $bytes bytes by bare calls, the third one traced." "" "| | |" "| --- | --- |"
  bounded 60 "$TESTS/gpu_driver_probe" --trace "$WORK" "$bytes" || ended=''
  grep '^| ' "$WORK/out" >>"$REPORT"
  [[ -n $ended ]] || report "| it did not go on | $(cell "$(grep -v '^| ' "$WORK/out" | tail -n 2)") |"
  say "traced  $(grep -c '^| ' "$WORK/out") things that the driver does"
  end_all_jobs
}
doctor_is_content() {
  local status=0
  bounded 60 "$BIN/rekindle" "${CONNECTION[@]}" doctor || status=1
  DOCTOR=$OUT
  return $status
}
# capture NAME [OPTIONS OF THE JOB...]: live, again with --stop, back, on.
vector_capture() {
  local name=$1 first second
  shift
  start_vector "$name" "$@" || return 1
  rk 120 ckpt "$JOB" -t "$name:1" || return 1
  first=$(field stored_bytes)
  steps || return 1
  rk 120 ckpt "$JOB" -t "$name:2" --stop || return 1
  second=$(field stored_bytes)
  back_from_image "$name:2" && steps && device_state_is running || return 1
  # The older image as well.
  end_job "$JOB"
  rk 120 restore "$name:1" --detach && steps && digest_is_right || return 1
  DETAIL="images of $first and $second bytes"
}
vector_park() {
  local name=$1
  shift
  start_vector "$name" "$@" && park_and_resume && steps && digest_is_right || return 1
  DETAIL="parked $PARKED"
}
# without WHAT NAME FUNCTION ARGUMENT...: should what a variable switches off be at fault, all else can be checked without it.
# WHAT: the variable, and what that is. Still fails: it is left on.
without() {
  local variable=${1%% *} what=${1#* } before=$PASSED
  shift
  export "$variable=0"
  check "$@"
  if ((PASSED > before)); then
    report "| $what | switched off from here on | $variable=0 |"
    return 0
  fi
  unset "$variable"
  return 1
}
readonly HUGE_PAGES='REKINDLE_GPU_HUGE_PAGES huge pages' HELD_THREADS='REKINDLE_GPU_HOLD_THREADS threads that stand still'
# Both run in CRIU during a capture: where parks work, captures can fail of them all the same.
capture_with_less() {
  local capture=(vector_capture vector-plain --bytes "$SMALL")
  if [[ ${REKINDLE_GPU_HUGE_PAGES:-} != 0 ]]; then
    without "$HUGE_PAGES" "vector: captured, stopped, restored, without huge pages" "${capture[@]}" && return
  fi
  capture[1]=vector-loose
  without "$HELD_THREADS" "vector: captured, stopped, restored, its threads not held" "${capture[@]}"
}
parked_capture() {
  start_vector parked --bytes "$SMALL" && rk 60 gpu park "$JOB" && rk 120 ckpt "$JOB" -t parked:1 &&
    device_state_is checkpointed && rk 60 gpu resume "$JOB" && steps && digest_is_right &&
    rk 120 restore parked:1 --detach && device_state_is running && steps && digest_is_right
}
# A job that all the time waits for a context: of a wait that meets its memory away it would die.
waiting_capture() {
  start_vector waiting --bytes "$SMALL" --first-call context && rk 120 ckpt "$JOB" -t waiting:1 && steps &&
    rk 120 ckpt "$JOB" -t waiting:2 --stop && back_from_image waiting:2 && steps && digest_is_right
}
waiting_park() {
  local stood='it stood at its wait'
  start_vector waiting-park --bytes "$SMALL" --first-call context && rk 60 gpu park "$JOB" || return 1
  wait_until 3 in_trace_stop "$JOB" || stood='it was parked in another call, which waits by itself'
  rk 60 gpu resume "$JOB" && device_state_is running && steps && digest_is_right || return 1
  DETAIL=$stood
}
in_trace_stop() { grep -q '^State:[[:space:]]*t' "/proc/$1/status" 2>/dev/null; }
tree_capture() {
  local children=2 i root
  STATE=$WORK/tree.state
  spawn tree "$TESTS/gpu_tree_job" --children "$children" --state-file "$STATE" --bytes "$SMALL"
  root=$JOB
  steps && rk 120 ckpt "$JOB" -t tree:1 && steps && rk 120 ckpt "$JOB" -t tree:2 --stop &&
    back_from_image tree:2 && steps && park_and_resume && steps || return 1
  end_job "$root"
  VECTOR_OPTIONS=(--bytes "$SMALL")
  for ((i = 0; i < children; i++)); do
    STATE=$WORK/tree.state.$i
    VECTOR_OPTIONS=(--bytes "$SMALL" --seed $((i + 1)))
    digest_is_right || return 1
  done
}
# What CUDA can't save: it is refused and the job runs on, or it works after all.
limited_memory() {
  local name=$1 owner peer='' said
  shift
  start_vector "$name" "$@" || return 1
  if [[ $name == ipc ]]; then
    owner=$JOB
    spawn ipc-peer "$TESTS/gpu_vector_job" --state-file "$WORK/peer.state" --bytes "$SMALL" --ipc-open "$STATE.ipc"
    peer=$JOB
    wait_until 60 test -e "$WORK/peer.state" || { job_ended "the process that opens shared memory" || return; }
    JOB=$owner
  fi
  if rk 120 ckpt "$JOB" -t "$name:1"; then
    steps || return 1
    end_job "$JOB"
    [[ -z $peer ]] || end_job "$peer"
    rk 120 restore "$name:1" --detach && steps && digest_is_right || return 1
    DETAIL="the driver saves and restores it"
  else
    said=$DETAIL
    # Some drivers break the job as they refuse it, which nobody can prevent.
    if ! steps; then
      LIMIT="the driver refused it, and the job does not go on: $said; $DETAIL"
      return 1
    fi
    device_state_is running && digest_is_right || return 1
    DETAIL="refused, and the job runs on: $said"
  fi
}

torch_is_there() {
  local question='import sys, torch; print(torch.__version__); sys.exit(0 if sys.argv[1] == "cpu" or torch.cuda.is_available() else 3)'
  if ! bounded 120 "$PYTHON" -c "$question" "$DEVICE"; then
    DETAIL="$PYTHON has no torch, or torch sees no GPU: $(tail -n 1 <<<"$OUT")"
    return 1
  fi
  TORCH=$OUT
}
training() {
  local curve=$WORK/curve reference=$WORK/curve.reference lengths steps=100 options=(--device "$DEVICE") length
  if [[ $DEVICE == cuda ]]; then
    steps=600
    [[ $1 == graphs ]] && options+=(--cuda-graphs)
  else
    options+=(--layers 2 --width 64 --batch 4)
  fi
  rm -f "$curve" "$reference"
  local expected
  spawn reference "$PYTHON" -B "$PYTHON_JOBS/torch_training.py" --curve-file "$reference" --steps "$steps" "${options[@]}"
  expected=$JOB
  spawn training "$PYTHON" -B "$PYTHON_JOBS/torch_training.py" --curve-file "$curve" --steps 100000 --step-ms 40 \
    "${options[@]}"
  further 5 curve_length "$curve" 90 && rk 120 ckpt "$JOB" -t "training-$1:1" &&
    further 3 curve_length "$curve" 30 && rk 120 ckpt "$JOB" -t "training-$1:2" --stop || return 1
  length=$(curve_length "$curve")
  back_from_image "training-$1:2" && further 5 curve_length "$curve" 30 || return 1
  wait_until 90 reaped "$expected" || { DETAIL="the run without interruption does not end" && return 1; }
  if [[ $DEVICE == cuda ]]; then
    park_and_resume && further 3 curve_length "$curve" 30 || return 1
  fi
  end_job "$JOB"
  lengths=$(smaller "$(curve_length "$curve")" "$(curve_length "$reference")")
  lengths=${lengths%.*}
  if ((lengths <= length)); then
    DETAIL="only $lengths steps to compare, and the restore was at $length"
    return 1
  fi
  if [[ $(head -n "$lengths" "$curve") != "$(head -n "$lengths" "$reference")" ]]; then
    DETAIL="the loss curve differs from that of a run without interruption: $(
      diff <(head -n "$lengths" "$curve") <(head -n "$lengths" "$reference") 2>&1 | sed -n '2p' | cut -c1-80)"
    return 1
  fi
  DETAIL="$lengths steps as without interruption, restored at $length"
}
# start_server NAME SIZE [OPTION...]: SERVER_ASK is the command that asks it.
start_server() {
  SERVER_ASK=("$PYTHON" -B "$PYTHON_JOBS/torch_server.py" --socket "$WORK/$1.sock" --wait 90)
  spawn "$1" "$PYTHON" -B "$PYTHON_JOBS/torch_server.py" --socket "$WORK/$1.sock" --device "$DEVICE" --size "$2" "${@:3}"
}
# ask SEED: OUT is its answer.
ask() { bounded 100 "${SERVER_ASK[@]}" --ask "$1"; }
same_answers() {
  local i
  for i in 1 2; do
    ask "$i" || return 1
    [[ $OUT == "${ANSWERS[$i]}" ]] && continue
    DETAIL="the server's answer to $i was ${ANSWERS[$i]}, and is now $OUT"
    return 1
  done
}
first_answers() {
  local i
  ANSWERS=('')
  for i in 1 2; do
    ask "$i" || return 1
    ANSWERS[i]=$OUT
  done
}
server() {
  local second
  start_server server "$SERVER_SMALL"
  first_answers || { DETAIL+="; $(tail -n 2 "$JOB_LOG" | tr '\n' ' ')" && return 1; }
  rk 120 ckpt "$JOB" -t server:1 && same_answers && rk 120 ckpt "$JOB" -t server:2 --stop || return 1
  second=$(calculate "100 * $(field stored_bytes) / $(field logical_bytes)")
  back_from_image server:2 && same_answers || return 1
  if [[ $DEVICE == cuda ]]; then
    park_and_resume && same_answers || return 1
  fi
  DETAIL="the second checkpoint adds $second % of the job's bytes"
}

# shellcheck source=scripts/gpu_check_figures.sh
source "$HERE/gpu_check_figures.sh"

# ---- the run ----
SMALL=$(mebibytes 64) SERVER_SMALL=512MiB SIZES=(1 8 40) DIGEST_MOST=2000000000
[[ -z $SIM ]] || SIZES=(1 2)
[[ -z $QUICK ]] || SIZES=(1)
if [[ -n $FIGURES ]]; then
  read -r -a SIZES <<<"$FIGURES"
  for size in "${SIZES[@]}"; do ((size <= 8)) || SERVERS=''; done
fi
[[ -z $QUICK ]] || SERVERS=''
[[ -z $SERVER_SIZES ]] || SIZES=()
if [[ -n $SIM ]]; then
  SMALL=$(mebibytes 8) DEVICE=cpu SERVER_SMALL=8MiB DIGEST_MOST=8000000
  [[ -x $TESTS/gpu_sim/gpu_sim_server ]] || die "$TESTS/gpu_sim is missing: build everything."
  spawn simulator "$TESTS/gpu_sim/gpu_sim_server" --socket "$WORK/sim" \
    --gpu "GPU-00000000-0000-0000-0000-000000000001,Simulated,$((4 << 30))"
  wait_until 30 test -S "$WORK/sim" || die "the simulated driver's server does not start: $(cat "$LOGS/simulator")"
  export REKINDLE_GPU_SIM=$WORK/sim LD_LIBRARY_PATH=$TESTS/gpu_sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

# A move that hangs in the driver is given up while there is time for other checks.
MOVE_MAY_TAKE=50
for size in ${SIZES[@]+"${SIZES[@]}"}; do ((size <= 8)) || MOVE_MAY_TAKE=100; done
export REKINDLE_GPU_MOVE_TIMEOUT=${REKINDLE_GPU_MOVE_TIMEOUT:-$MOVE_MAY_TAKE}

CACHES='the page cache is dropped before each, and the programs loaded'
: >"$REPORT" || exit 1
if [[ -n $SIM ]]; then
  report "# Rekindle on the simulated driver" "" \
    "This run proves control flow. It ran on no GPU, and no figure is claimed; torch jobs, if any, ran on the CPU."
else
  report "# Rekindle on a GPU"
fi
bounded 20 "$BIN/rekindle" version || true
report "" "| | |" "| --- | --- |" "| when | $(date -u '+%Y-%m-%d %H:%M UTC') |" \
  "| Rekindle | $(head -n 1 <<<"$OUT") |" \
  "| Python | $(type -P "$PYTHON" || echo "none: no torch, and zombies that fall to us are reaped by nobody") |" \
  "| machine | $(nproc) cores, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo), kernel $(uname -r) |" \
  "| work folder | $(df --output=fstype,avail -h "$WORK" | tail -n 1 | awk '{ print $1 ", " $2 " free" }') |" \
  "| /dev/shm, /run | $(df --output=fstype,avail -h /dev/shm /run 2>/dev/null | tail -n +2 | awk '{ printf "%s%s %s", (NR > 1 ? ", " : ""), $1, $2 }') |"
if [[ -z $SIM ]]; then
  bounded 60 nvidia-smi --query-gpu=name,memory.total,driver_version,pcie.link.gen.current,pcie.link.width.current \
    --format=csv,noheader || OUT="nvidia-smi does not run"
  report "| GPU | $(cell "$OUT") |" \
    "| kernel module | $(cell "$(head -n 1 /proc/driver/nvidia/version 2>&1)") |" \
    "| libcuda | $(cell "$(ldconfig -p 2>/dev/null | grep -F 'libcuda.so.1 ' | head -n 3; echo "${LD_LIBRARY_PATH:-}")") |" \
    "| devices | $(cell "$(echo /dev/nvidia*)") |"
fi
for variable in REKINDLE_GPU_HUGE_PAGES REKINDLE_GPU_HOLD_THREADS; do
  [[ -z ${!variable:-} ]] || report "| $variable | ${!variable} |"
done
transparent() { sed 's/.*\[\(.*\)\].*/\1/' "/sys/kernel/mm/transparent_hugepage/$1" 2>/dev/null || echo "not known"; }
HUGE_PAGES_ALWAYS=''
[[ $(transparent enabled) != always ]] || HUGE_PAGES_ALWAYS=', which have huge pages here, too (always)'
report "| transparent huge pages | $(transparent enabled); to make them (defrag): $(transparent defrag) |"
report "| PID namespace | $([[ $(readlink /proc/self/ns/pid) == 'pid:[4026531836]' ]] && echo "the machine's" || echo "of its own, as in a container") |" \
  "| memory limit, locked memory | $(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo none seen), $(ulimit -l) KiB |"

if [[ -z $FIGURES$SERVER_SIZES ]]; then
  [[ -n $BRIEF ]] || probe_driver
  trace_driver
  report "" "## Correctness" "" "| check | result | |" "| --- | --- | --- |"
  check "doctor" doctor_is_content
  failed=$FAILED
  check "vector: park, resume" vector_park vector-park --bytes "$SMALL"
  ((FAILED == failed)) || [[ ${REKINDLE_GPU_HUGE_PAGES:-} == 0 ]] ||
    without "$HUGE_PAGES" "vector: park, resume, without huge pages" vector_park vector-park-plain --bytes "$SMALL"
  failed=$FAILED
  check "vector: captured, stopped, restored" vector_capture vector --bytes "$SMALL"
  ((FAILED == failed)) || [[ ${REKINDLE_GPU_HOLD_THREADS:-} == 0 ]] || capture_with_less
  check "daemon" start_daemon
  several=(--bytes "$SMALL" --streams 3 --contexts 2)
  check "vector: several streams and contexts" vector_capture contexts "${several[@]}"
  check "vector: several streams and contexts, park, resume" vector_park contexts-park "${several[@]}"
  check "vector: captured while parked" parked_capture
  check "tree of processes" tree_capture
  check "a job that waits for its context all the time, captured" waiting_capture
  check "a job that waits for its context while it is parked" waiting_park
  if [[ -n $SIM && -z $ON_CPU ]]; then
    left_out "torch" "it can not run on the simulated driver"
    NO_TORCH="it can not run on the simulated driver"
  else
    check "torch is there" torch_is_there
    NO_TORCH=$DETAIL
    if [[ -n ${TORCH:-} ]]; then
      check "torch model server" server
      [[ -n $BRIEF ]] || check "torch training" training eager
      [[ -n $BRIEF || $DEVICE == cpu ]] || check "torch training with CUDA graphs" training graphs
    fi
  fi
  # Last: should the driver not get over them, the rest is done.
  check "managed memory" limited_memory managed --bytes "$SMALL" --managed
  check "memory shared with another process" limited_memory ipc --bytes "$SMALL" --ipc
elif [[ -n $SERVERS && (-z $SIM || -n $ON_CPU) ]]; then
  torch_is_there || NO_TORCH=$DETAIL
fi

if [[ -n $SIM && -z $REHEARSE ]]; then
  report "" "Figures: left out, a simulated driver has none."
else
  report "" "## Figures" ""
  if [[ -n $REHEARSE ]]; then
    report "A rehearsal of the script: these numbers are of no GPU and mean nothing." ""
  fi
  report "Against the driver's own page-locked copies (best of three) and bare calls of the same run; a daemon runs." \
    "Moves, bare calls and captures up to 8 GB: best of two each. Beyond that, and of restores and starts: one." \
    "Bare calls leave the driver its small pages, unless the machine gives huge ones always, and Rekindle replaces them: a" \
    "ratio above 1 is no error." \
    "" "| figure | measured | against | ratio | asked | held |" "| --- | --- | --- | --- | --- | --- |"
  if start_daemon; then
    # The largest last, for want of time.
    for size in ${SIZES[@]+"${SIZES[@]}"}; do
      ((size > 8)) || figures "$size GB" $((25 + 4 * size)) size_figures "$size"
    done
    if [[ -n $SERVER_SIZES ]]; then
      read -r -a server_sizes <<<"$SERVER_SIZES"
      warm_starts "${server_sizes[@]}"
    else
      [[ -z $SERVERS ]] || warm_starts "${SIZES[@]}"
      # Of its time nothing is asked.
      ((SIZES[0] > 8)) || figures "restore of a sparse job" $((20 + 2 * SIZES[0])) sparse_restore "${SIZES[0]}"
    fi
    for size in ${SIZES[@]+"${SIZES[@]}"}; do
      ((size <= 8)) || figures "$size GB" 60 size_figures "$size"
    done
  else
    figure_note "all" "FAILED: $DETAIL"
    FAILED=$((FAILED + 1))
  fi
  report "" "Restore to first step: cold, $CACHES; cached, the image has been read before. Warm start: the page cache holds" \
    "the programs, the weights that the cold start reads, and the image."
fi

report_doctor
SUMMARY="$PASSED passed, $FAILED failed, $LEFT_OUT left out, in $((SECONDS - BEGAN)) s"
report "" "$SUMMARY."
say "$SUMMARY; $REPORT"
((FAILED == 0))
