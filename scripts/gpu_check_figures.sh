# shellcheck shell=bash
# What gpu_check.sh measures, a row of its report each: park and resume, freeze, restore to the first step, warm starts of a
# server. Sourced by it, with whose words for jobs, commands and the report this is written.
# shellcheck disable=SC2034,SC2153,SC2154  # set here for there, and there for here

# row WHAT MEASURED AGAINST RATIO ASKED: ASKED is "<= 1.3" or such.
row() {
  local held
  held=$(awk -v ratio="$4" -v limit="${5#* }" -v sign="${5%% *}" 'BEGIN {
    print (sign == "<=" ? ratio <= limit : ratio >= limit) ? "yes" : "no" }')
  [[ -z $SIM ]] || held="means nothing"
  say "figure  $1: $2, against $3: $4 (asked for $5): $held"
  report "| $1 | $2 | $3 | $4 | $5 | $held |"
}
figure_note() {
  say "figure  $1: $2"
  report "| $1 | $(cell "$2") | | | | |"
}
drop_caches() {
  sync
  echo 3 2>/dev/null >/proc/sys/vm/drop_caches || CACHES='the page cache could not be dropped'
  # What is measured is the image: Rekindle's programs are ten times as large as CRIU.
  {
    timeout 30 "$BIN/rekindle" version
    timeout 30 "${STOCK_CRIU[@]}" --version
    timeout 30 "$TESTS/gpu_bare_calls" state $$
    cache "$BIN"/rekindle* "$BIN"/criu-plugins/* "$FOLDER"/lib/* "$FOLDER"/libexec/rekindle/* "$TESTS"/gpu_* \
      "$FOLDER"/libexec/rekindle/criu-plugins/* "$CRIU_PREFIX"/usr/sbin/* "$CRIU_PREFIX"/usr/lib/x86_64-linux-gnu/*
  } >/dev/null 2>&1
}
# cache FILE...: into the page cache. Packs are written past it.
cache() { cat "$@" >/dev/null 2>&1 || true; }
per_second() { calculate "$1 / $2 / 1e9"; }  # GB/s
disk_free() { df --output=avail -B1 "$WORK" | tail -n 1; }
on_disk() { [[ $(df --output=fstype "$WORK" | tail -n 1) != tmpfs ]]; }
# How often what takes so many bytes is measured.
repeats() { if (($1 < 20000000000)); then echo 1 2; else echo 1; fi; }
# For one more capture or restore of so many bytes.
time_for() { (($(time_left) >= 15 + 3 * $1 / 2000000000)); }

# movement LABEL BYTES: park and resume of the running job against copies and bare calls.
movement() {
  local label=$1 bytes=$2 i to_host to_device out='' in='' park='' resume='' wall='' made='' t base faults
  bounded 120 "$TESTS/gpu_bare_calls" memcpy "$bytes" || return 1
  to_host=$(field to_host_seconds) to_device=$(field to_device_seconds)
  for i in $(repeats "$bytes"); do
    bounded 120 "$TESTS/gpu_bare_calls" cycle "$JOB" || return 1
    t=$(calculate "$(field lock_seconds) + $(field checkpoint_seconds)")
    out=$(smaller "$t" "${out:-1e9}")
    BARE_CHECKPOINT=$(smaller "$(field checkpoint_seconds)" "${BARE_CHECKPOINT:-1e9}")
    t=$(calculate "$(field restore_seconds) + $(field unlock_seconds)")
    in=$(smaller "$t" "${in:-1e9}")
    BARE_BACK=$in
    steps || return 1
  done
  for i in $(repeats "$bytes"); do
    faults=$(faults_of_threads) t=$(now)
    rk 120 gpu park "$JOB" || return 1
    wall=$(since "$t") MOVED=$(field bytes)
    park=$(smaller "$(field seconds)" "${park:-1e9}")
    note_memory "$faults"
    made+="${made:+; }$MADE"
    t=$(now)
    rk 120 gpu resume "$JOB" || return 1
    wall+=" and $(since "$t")"
    resume=$(smaller "$(field seconds)" "${resume:-1e9}")
    steps || return 1
  done
  base=$(smaller "$(per_second "$bytes" "$to_host")" "$(per_second "$bytes" "$out")")
  row "park $label" "$(per_second "$bytes" "$park") GB/s" \
    "memcpy $(per_second "$bytes" "$to_host"), bare calls $(per_second "$bytes" "$out") GB/s$HUGE_PAGES_ALWAYS" \
    "$(calculate "$(per_second "$bytes" "$park") / $base")" ">= 0.9"
  base=$(smaller "$(per_second "$bytes" "$to_device")" "$(per_second "$bytes" "$in")")
  row "resume $label" "$(per_second "$bytes" "$resume") GB/s" \
    "memcpy $(per_second "$bytes" "$to_device"), bare calls $(per_second "$bytes" "$in") GB/s$HUGE_PAGES_ALWAYS" \
    "$(calculate "$(per_second "$bytes" "$resume") / $base")" ">= 0.9"
  figure_note "park and resume $label, whole commands" "$wall s"
  figure_note "park $label, more" "parked: $made"
  [[ -n ${COMPARED:-} || -n ${REKINDLE_GPU_HUGE_PAGES:-} ]] || ((bytes > 8000000000)) || with_and_without_huge_pages "$label"
}
# Without a daemon, which reads the variable in its own environment.
with_and_without_huge_pages() {
  local label=$1 connection=("${CONNECTION[@]}") wanted faults seconds seen='' done=1
  CONNECTION=(--no-daemon) COMPARED=1
  for wanted in 1 0; do
    faults=$(faults_of_threads)
    REKINDLE_GPU_HUGE_PAGES=$wanted rk 60 gpu park "$JOB" || { done='' && break; }
    seconds=$(field seconds)
    note_memory "$faults"
    seen+="${seen:+; }REKINDLE_GPU_HUGE_PAGES=$wanted $(calculate "$seconds") s, $MADE"
    { rk 60 gpu resume "$JOB" && steps; } || { done='' && break; }
  done
  CONNECTION=("${connection[@]}")
  [[ -n $done ]] || return 1
  figure_note "park $label, without a daemon" "$seen"
}
# From hold_job to let_job_go the job waits between two steps. Restored by stock CRIU it runs before its memory is back, and
# would die of a synchronize that it was in when it was captured.
hold_job() {
  : >"$HOLD"
  wait_until 60 job_is_held || { DETAIL="the job does not wait where $HOLD tells it to: $(tail -n 2 "$JOB_LOG" | tr '\n' ' ')" && return 1; }
}
let_job_go() { rm -f "$HOLD"; }
job_is_held() {
  local line=''
  read -r line <"$STATE"
  [[ $line == *held* ]]
}
# freeze LABEL BYTES NAME: of images NAME:1 and on, which IMAGES has then.
freeze() {
  local label=$1 bytes=$2 i one all seconds='' commit='' parts=''
  IMAGES=()
  # The job's context moves as well.
  bounded 120 "$TESTS/gpu_bare_calls" drain "$MOVED" || return 1
  one=$(field one_thread_seconds) all=$(field all_threads_seconds)
  for i in $(repeats "$bytes"); do
    [[ -z $seconds ]] || time_for "$((3 * bytes))" || break
    hold_job && rk 240 ckpt "$JOB" -t "$3:$i" || return 1
    let_job_go
    IMAGES+=("$3:$i")
    if is_true "$(field freeze_seconds) < ${seconds:-1e9}"; then
      seconds=$(field freeze_seconds) commit=$(field commit_seconds) parts=$(phases)
    fi
    steps || return 1
  done
  row "freeze $label" "$(calculate "$seconds") s" \
    "bare checkpoint $BARE_CHECKPOINT + one thread's memcpy of $MOVED bytes $one s$HUGE_PAGES_ALWAYS" \
    "$(calculate "$seconds / ($BARE_CHECKPOINT + $one)")" "<= 1.3"
  figure_note "freeze $label, more" "with a memcpy of all threads ($all s) the ratio is $(
    calculate "$seconds / ($BARE_CHECKPOINT + $all)"); with the bare way back added, which the freeze holds too, $(
    calculate "$seconds / ($BARE_CHECKPOINT + $one + $BARE_BACK)"); committed in $(calculate "$commit") s; phases: $parts"
}
# criu_times LABEL NAME: a further capture, by a CRIU that tells what it does when, whose log is kept: where the part of the
# freeze goes that is no move of memory.
criu_times() {
  local log=$LOGS/$2.dump.log criu=$WORK/telling-criu connection=("${CONNECTION[@]}") done=1
  {
    echo '#!/usr/bin/env bash'
    echo "criu=($(printf '%q ' "${STOCK_CRIU[@]}"))"
    echo "[[ \$1 == dump ]] || exec \"\${criu[@]}\" \"\$@\""
    echo "exec \"\${criu[@]}\" \"\$@\" -v4 -o $(printf '%q' "$log")"
  } >"$criu"
  chmod +x "$criu"
  # A daemon has its own environment.
  CONNECTION=(--no-daemon)
  hold_job && REKINDLE_CRIU=$criu rk 240 ckpt "$JOB" -t "$2:told" || done=''
  CONNECTION=("${connection[@]}")
  let_job_go
  [[ -n $done ]] || return 1
  figure_note "freeze $1, where CRIU's time goes" "$(longest_in "$log"); phases: $(phases)"
  rk 60 rm "$2:told" && steps
}
# longest_in LOG: the longest times of a log of CRIU's between a line and the next one, and what that line says.
longest_in() {
  awk '{
    if (match($0, /^\([0-9.]+\)/) == 0) next
    t = substr($0, 2, RLENGTH - 2) + 0
    if (seen) printf "%.3f %s\n", t - before, what
    seen = 1; before = t; what = substr($0, RLENGTH + 2, 48)
  } END { if (seen) printf "%.3f in all\n", t }' "$1" | sort -rn | head -n 7 | tr '\n|' ';/'
}
disk_speed() {
  local pack bytes t
  pack=$(find "$REKINDLE_STORE/packs" -type f -printf '%s %p\n' | sort -rn | head -n 1)
  bytes=$(smaller "${pack%% *}" $((2 << 30))) t=$(now)
  dd if="${pack#* }" of=/dev/null bs=16M count=128 iflag=direct 2>/dev/null || return 0
  DISK_SPEED=$(per_second "$bytes" "$(since "$t")")
  figure_note "disk, read past the page cache" "$DISK_SPEED GB/s"
}
# step_after COMMAND...: leaves TOOK, from the start of this restore to the job's first step.
step_after() {
  local t
  rm -f "$STATE"
  t=$(now)
  "$@" || return 1
  wait_until 60 test -e "$STATE" || { job_ended "the restored job" || return; }
  TOOK=$(since "$t")
}
stock_restore() {
  bounded 240 "${STOCK_CRIU[@]}" restore --restore-detached --ext-unix-sk --libdir "$EXPORT" --images-dir "$EXPORT" &&
    "$STOCK_BACK" && let_job_go
}
bare_back() { bounded 120 "$TESTS/gpu_bare_calls" back "$JOB"; }
# What CRIU's own plugin starts.
utility_back() {
  bounded 120 cuda-checkpoint --action restore --pid "$JOB" && bounded 60 cuda-checkpoint --action unlock --pid "$JOB"
}
# A dump of stock CRIU's has the pages that are all zeros; in an export they are holes.
write_zeros() {
  local file
  for file in "$EXPORT"/pages-*.img; do
    (($(stat -c %b "$file") * 512 < $(stat -c %s "$file") * 98 / 100)) || continue
    cp --sparse=never "$file" "$file.whole" && mv "$file.whole" "$file" && continue
    rm -f "$file.whole"
    DETAIL="no room for the pages of the image that are all zeros"
    return 1
  done
}
STOCK_BACK=bare_back
# stock_step KIND
stock_step() {
  if [[ $1 == cold ]]; then
    drop_caches
  elif [[ -z $IN_MEMORY ]]; then
    cache "$EXPORT"/*
  fi
  : >"$HOLD"
  step_after stock_restore
}
# place_export BYTES: leaves EXPORT, where stock CRIU is to find its image, and KINDS, what can be measured there; where it
# can't be anywhere, or not in time, DETAIL.
place_export() {
  local seconds=$((20 + 3 * $1 / 1000000000))
  EXPORT=$WORK/export KINDS='cached'
  if (($(disk_free) >= $1 + (4 << 30))); then
    ! on_disk || KINDS='cold cached'
  elif memory_holds $(($1 * 22 / 10)); then
    IN_MEMORY=$(mktemp -d /dev/shm/gpu-check.XXXXXX) || return 1
    EXPORT=$IN_MEMORY/export seconds=$((20 + 3 * $1 / 2000000000))
  else
    DETAIL="neither the disk nor /dev/shm has room to export the image"
    return 1
  fi
  (($(time_left) >= seconds)) && return 0
  DETAIL="no time left"
  return 1
}
# The exported image and the restored job at once.
memory_holds() {
  local shm available
  shm=$(df --output=avail -B1 /dev/shm 2>/dev/null | tail -n 1)
  available=$(awk '/^MemAvailable:/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
  ((${shm:-0} >= $1 && ${available:-0} >= $1))
}
# stock_first_step LABEL BYTES IMAGE...: the rows of what TOOK has. Of the first image; should its job not go on, of the next.
stock_first_step() {
  local label=$1 bytes=$2 kind image='' what
  shift 2
  for kind in $KINDS; do
    [[ -n ${took[$kind]:-} ]] || continue
    what="restore to first step $label, $kind"
    until [[ -n $image ]] && stock_step "$kind"; do
      [[ -z $image ]] || end_job "$JOB"
      if (($# == 0)) || { [[ -n $image ]] && ! time_for "$((3 * bytes))"; }; then
        figure_note "$what, by stock CRIU" "FAILED: $DETAIL"
        return
      fi
      [[ -z $image ]] || figure_note "$what, by stock CRIU of $image" "FAILED, and $1 is tried: $DETAIL"
      image=$1
      shift
      rm -rf "$EXPORT"
      if ! rk 240 export "$image" --criu "$EXPORT" || ! write_zeros; then
        figure_note "$what, by stock CRIU" "FAILED: $DETAIL"
        return
      fi
    done
    row "$what" "${took[$kind]} s" "criu restore and bare calls $TOOK s${IN_MEMORY:+ (its image lies in /dev/shm)}" \
      "$(calculate "${took[$kind]} / $TOOK")" "<= 0.5"
    end_job "$JOB"
    if ! type -P cuda-checkpoint >/dev/null || ! time_for "$bytes"; then continue; fi
    STOCK_BACK=utility_back
    if stock_step "$kind"; then
      row "$what, with the utility" "${took[$kind]} s" "criu restore and cuda-checkpoint $TOOK s" \
        "$(calculate "${took[$kind]} / $TOOK")" "<= 0.5"
    else
      figure_note "$what, by stock CRIU and cuda-checkpoint" "FAILED: $DETAIL"
    fi
    STOCK_BACK=bare_back
    end_job "$JOB"
  done
}
# first_step LABEL BYTES IMAGE...: ours of the first image, and stock CRIU's, each with its image on disk and in the page cache.
first_step() {
  local label=$1 bytes=$2 kind kinds='cached' parts floor
  local -A took=()
  ! on_disk || kinds='cold cached'
  end_job "$JOB"
  for kind in $kinds; do
    time_for "$bytes" || break
    if [[ $kind == cold ]]; then drop_caches; else cache "$REKINDLE_STORE"/packs/*; fi
    step_after rk 240 restore "$3" --detach || return 1
    took[$kind]=$TOOK
    parts=$(phases) floor=''
    if [[ $kind == cold && -n ${DISK_SPEED:-} ]] && is_true "$DISK_SPEED > 0"; then
      floor="; the disk alone and then the bare way back: $(calculate "$MOVED / 1e9 / $DISK_SPEED + $BARE_BACK") s"
    fi
    figure_note "restore to first step $label, $kind, more" "$TOOK s$floor; phases: $parts"
    # Its steps are checked by itself, too, and many of a large job would take long.
    if ((bytes > DIGEST_MOST)); then
      steps || return 1
      end_job "$JOB"
    else
      digest_is_right || return 1
    fi
  done
  DETAIL="no time left"
  if ((${#took[@]} == 0)) || ! place_export "$bytes"; then
    figure_note "restore to first step $label by stock CRIU" "left out: $DETAIL"
  else
    stock_first_step "$label" "$bytes" "${@:3}"
  fi
  remove_export
}
# shellcheck disable=SC2317  # also called by a trap
remove_export() {
  rm -rf "$WORK/export" ${IN_MEMORY:+"$IN_MEMORY"}
  IN_MEMORY=''
}
# size_of GIGABYTES: LABEL and BYTES.
size_of() {
  LABEL="$1 GB" BYTES=$(($1 * 1000000000))
  [[ -z $REHEARSE ]] || LABEL="$1 x 8 MB" BYTES=$(($1 * 8000000))
}
# sparse_restore GIGABYTES: of a job whose device memory is mostly zeros. The image has none of these, and the driver has the
# kernel make a page for each as it reads it.
sparse_restore() {
  local took parts most
  size_of "$1"
  start_vector figures-sparse --bytes "$BYTES" --sparse && rk 240 ckpt "$JOB" -t figures-sparse:1 --stop || return 1
  wait_until 20 reaped "$JOB" || { DETAIL="the job is there still after --stop" && return 1; }
  step_after rk 240 restore figures-sparse:1 --detach || return 1
  took=$TOOK parts=$(phases)
  note_memory ''
  most=$(awk '/^VmHWM:/ { print int($2 / 1024) }' "/proc/$JOB/status")
  steps || return 1
  figure_note "restore of a sparse job of $LABEL" "$took s; phases: $parts; ${MADE#*, }; at most $most MiB of host memory"
}
# size_figures GIGABYTES
size_figures() {
  local label bytes name=figures$1
  size_of "$1"
  label=$LABEL bytes=$BYTES
  free_device_bytes || return 1
  if ((FREE < bytes + (2 << 30) && ${#REHEARSE} == 0)); then
    figure_note "$label" "left out: $FREE bytes of device memory are free"
    return 0
  fi
  BARE_CHECKPOINT='' BARE_BACK='' MOVED=$bytes
  let_job_go
  start_vector "$name" --bytes "$bytes" --hold "$HOLD" && movement "$label" "$bytes" || return 1
  local images
  images=$(repeats "$bytes" | wc -w)
  if (($(disk_free) < images * bytes + (2 << 30) && ${#REHEARSE} == 0)); then
    figure_note "freeze $label" "left out: not enough disk space for the image"
  elif ! time_for "$bytes"; then
    figure_note "freeze $label" "left out: no time left"
  else
    freeze "$label" "$bytes" "$name" || return 1
    ((bytes > 8000000000)) || ! time_for "$((3 * bytes))" || criu_times "$label" "$name" ||
      figure_note "freeze $label, where CRIU's time goes" "FAILED: $DETAIL"
    if ! time_for "$bytes"; then
      figure_note "restore to first step $label" "left out: no time left"
      return 0
    fi
    [[ -n ${DISK_READ:-} ]] || ! on_disk || disk_speed
    DISK_READ=1
    first_step "$label" "$bytes" "${IMAGES[@]}"
  fi
}
# figures WHAT SECONDS FUNCTION...
figures() {
  local what=$1 seconds=$2
  shift 2
  if (($(time_left) < seconds)); then
    figure_note "$what" "left out: no time left"
    return
  fi
  DETAIL=''
  JOB=''
  "$@" || figure_note "$what" "FAILED: $DETAIL"
  end_all_jobs
  remove_export
  rm -rf "$WORK/weights"
  # Room for the next.
  rk 60 ls || return
  mapfile -t images < <(grep -o '"reference":"figures[^"]*"' <<<"$OUT" | cut -d'"' -f4)
  ((${#images[@]} == 0)) || rk 60 rm "${images[@]}" || true
  rk 120 gc || true
}
# warm_start SIZE: of a model server, from its image, against a start that reads its weights from a file.
warm_start() {
  local size=$1 weights=$WORK/weights t cold warm resumed second parts
  local label="the $size server"
  free_device_bytes || return 1
  if (($(disk_free) < 3 * $2 + (2 << 30) && ${#REHEARSE} == 0)); then
    figure_note "warm start of $label" "left out: not enough disk space for its weights and its image"
    return 0
  elif ((FREE < $2 * 5 / 4 + (2 << 30) && ${#REHEARSE} == 0)); then
    figure_note "warm start of $label" "left out: $FREE bytes of device memory are free"
    return 0
  fi
  # Writes the weights, and has what it loads in the page cache for both starts.
  start_server "writer$size" "$size" --weights "$weights"
  ask 1 || return 1
  end_job "$JOB"
  t=$(now)
  start_server "server$size" "$size" --weights "$weights"
  ask 1 || return 1
  cold=$(since "$t")
  first_answers && rk 240 ckpt "$JOB" -t figures-server:1 && same_answers || return 1
  rk 240 ckpt "$JOB" -t figures-server:2 --stop || return 1
  second=$(calculate "100 * $(field stored_bytes) / $(field logical_bytes)")
  row "second checkpoint of $label" "$(field stored_bytes) bytes" \
    "$(field logical_bytes) bytes of the job (per cent)" "$second" "<= 3"
  wait_until 20 reaped "$JOB"
  cache "$REKINDLE_STORE"/packs/*
  t=$(now)
  rk 240 restore figures-server:2 --detach || return 1
  parts=$(phases)
  ask 1 || return 1
  warm=$(since "$t")
  same_answers || return 1
  row "warm start of $label, from its image" "$warm s" "cold start $cold s" "$(calculate "$cold / $warm")" ">= 5"
  figure_note "warm start of $label, more" "phases: $parts"
  [[ $DEVICE == cuda ]] || return 0
  rk 120 gpu park "$JOB" || return 1
  t=$(now)
  rk 120 gpu resume "$JOB" && ask 1 || return 1
  resumed=$(since "$t")
  same_answers || return 1
  row "the same, parked and resumed" "$resumed s" "cold start $cold s" "$(calculate "$cold / $resumed")" ">= 5"
}
# warm_starts SIZE...: in GB, as the other figures.
warm_starts() {
  local size bytes
  for size in "$@"; do
    ((size <= 8)) || continue
    if [[ -z ${TORCH:-} ]]; then
      figure_note "warm start" "left out: ${NO_TORCH:-torch was not looked for}"
      return
    fi
    bytes=$((size << 30))
    if [[ -n $SIM ]]; then
      figures "warm start" 40 warm_start "$((8 * size))MiB" "$bytes"
    else
      figures "warm start of the ${size}GiB server" $((35 + 6 * size)) warm_start "${size}GiB" "$bytes"
    fi
  done
}
