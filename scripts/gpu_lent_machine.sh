#!/usr/bin/env bash
# What gpu_check.sh is to find out on a machine with a GPU that is lent for half an hour, in two commands of ten minutes each:
# what is wanted least comes last, and is cut off first. docs/gpu-results.md has the calls. Lies beside gpu_check.sh.
#   gpu_lent_machine.sh A|B|C [--out FOLDER] [--seconds N] [OPTION OF gpu_check.sh...]
#   A  correctness, with what a driver might not like switched off where that helps; then 40 GB with a disk
#   B  8 GB without a disk, with stock CRIU; servers; 8 GB with a disk; in what time is left what C is
#   C  the whole look at the driver, correctness and the smallest figure
#   --out FOLDER   for each part's report and logs ($OUT, or the current one)
#   --seconds N    all that is to have ended by then (570)
# What A has switched off stays so in B, on the same machine.
set -uo pipefail

SELF=$(realpath "${BASH_SOURCE[0]}")
usage() {
  sed -n '4,10s/^# \{0,1\}//p' "$SELF" >&2
  exit 2
}
PARTS=${1:-}
shift
FOLDER=${OUT:-.} LIMIT=570 OPTIONS=()
while (($#)); do
  case $1 in
    --out | --seconds)
      (($# > 1)) || usage
      if [[ $1 == --out ]]; then FOLDER=$2; else LIMIT=$2; fi
      shift
      ;;
    *) OPTIONS+=("$1") ;;
  esac
  shift
done
[[ $PARTS =~ ^[ABC]$ && $LIMIT =~ ^[0-9]+$ ]] || usage
mkdir -p "$FOLDER" || exit 1
# Beyond its --minutes a part may take another one; to keep its logs, take its jobs off the GPU and end them it has this.
ENDING=60
SWITCHED_OFF=${TMPDIR:-/var/tmp}/rekindle-gpu-switched-off
STATUS=0

# part NAME MINUTES OPTION...: no longer than that, and than there is time for.
part() {
  local name=$1 minutes=$2 left=$((LIMIT - SECONDS - ENDING)) limit
  shift 2
  end_left_over
  if ((left < 60)); then
    echo "-- $name: left out, no time left"
    return
  fi
  limit=$((60 * minutes + 60))
  if ((limit > left)); then limit=$left minutes=$((left / 60 < minutes ? left / 60 : minutes)); fi
  echo "== $name: --minutes $minutes, at most $limit s; $SECONDS s are over"
  timeout -k "$ENDING" "$limit" "$(dirname "$SELF")/gpu_check.sh" "$@" --minutes "$minutes" \
    --report "$FOLDER/$name.md" --logs "$FOLDER/$name.tgz" ${OPTIONS[@]+"${OPTIONS[@]}"} || STATUS=1
  sed -n 's/^| .* | switched off from here on | \(REKINDLE_GPU_[A-Z_]*=0\) |$/\1/p' "$FOLDER/$name.md" \
    2>/dev/null >>"$SWITCHED_OFF"
  switch_off
}
# Root reads it: anybody could have made one.
switch_off() {
  local variable
  [[ -f $SWITCHED_OFF && -O $SWITCHED_OFF && ! -L $SWITCHED_OFF ]] || return 0
  while read -r variable; do export "${variable?}"; done < <(grep -xE 'REKINDLE_GPU_[A-Z_]+=0' "$SWITCHED_OFF")
}
# What a part that was killed at the end of its time has left: jobs on the GPU, and images, in memory too.
end_left_over() {
  local entry folder
  for entry in /proc/[0-9]*; do
    [[ $(readlink "$entry/cwd" 2>/dev/null) != */gpu-check.* ]] || kill -9 "${entry#/proc/}" 2>/dev/null
  done
  for folder in /dev/shm/gpu-check* "${TMPDIR:-/var/tmp}"/gpu-check*; do rm -rf --one-file-system "$folder"; done
}

case $PARTS in
  A)
    rm -f "$SWITCHED_OFF"
    part first 3 --brief --quick
    part large 6 --figures 40
    ;;
  *)
    switch_off
    if [[ $PARTS == B ]]; then
      part memory 3 --figures 8 --no-servers --work /dev/shm
      part servers 3 --servers "1 8" --work /dev/shm
      part disk 3 --figures 8 --no-servers
    fi
    part look 5 --quick
    ;;
esac
exit "$STATUS"
