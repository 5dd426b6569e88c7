#!/usr/bin/env bash
# The bundle runs where nothing is installed: in a root folder that holds only the bundle, /proc and /dev.
#   packaging/bundle_test.sh BUILD_FOLDER VERSION
# Everything happens in a mount namespace of its own, so nothing stays mounted however this ends.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"

BUILD=${1:?build folder} VERSION=${2:?version}
if [[ -z ${REKINDLE_BUNDLE_TEST_INSIDE:-} ]]; then
  WORK=$(mktemp -d -t rekindle-bundle-test.XXXXXX)
  trap 'rm -rf --one-file-system "$WORK"' EXIT
  REKINDLE_BUNDLE_TEST_INSIDE=$WORK unshare --mount --propagation private "$0" "$@"
  exit
fi
WORK=$REKINDLE_BUNDLE_TEST_INSIDE
unset REKINDLE_BUNDLE_TEST_INSIDE REKINDLE_CRIU REKINDLE_STORE REKINDLE_HOST

REKINDLE_BUNDLE_LEVEL=1 "$REPO_ROOT/packaging/make-bundle.sh" --gpu-tests "$BUILD" "$VERSION" "$WORK/bundle.tar.zst"
ROOT=$WORK/root
mkdir -p "$ROOT"/{proc,dev,tmp,some/where,usr}
tar -C "$ROOT/some/where" --zstd -xf "$WORK/bundle.tar.zst"
mv "$ROOT/some/where"/rekindle-* "$ROOT/some/where/moved"
ln -s some/where/moved/bin/rekindle "$ROOT/link"
mount --bind /proc "$ROOT/proc"
mount --bind /dev "$ROOT/dev"

# expect TEXT COMMAND...: runs inside the empty root; the output must hold TEXT.
expect() {
  local text=$1 output
  shift
  if ! output=$(env -i "$(command -v chroot)" "$ROOT" "$@" 2>&1 </dev/null); then
    die "$* failed in the empty root: $output"
  fi
  grep -qF -- "$text" <<<"$output" || die "$* did not print '$text' but: $output"
}

criu_in_prefix "$ROOT/some/where/moved/criu"
EXPECTED=$(criu_version "${CRIU[@]}")
[[ -n $EXPECTED ]] || die "the CRIU of the bundle does not run: $("${CRIU[@]}" --version 2>&1)"
criu_in_prefix /some/where/moved/criu
expect "$EXPECTED" "${CRIU[@]}" --version
expect "$VERSION" /some/where/moved/bin/rekindle version
# It finds the CRIU that it brought along, also when started through a link.
expect "$EXPECTED" /some/where/moved/bin/rekindle version -v
expect "$EXPECTED" /link version -v
expect "--store" /some/where/moved/bin/rekindle --help
expect "--socket" /some/where/moved/bin/rekindled --help

# The GPU helper loads the machine's driver (here the simulated one), so it must run on the machine's libc: not in the
# empty root, and with nothing of the bundle's private libraries.
BUNDLE=$ROOT/some/where/moved
SIM=$BUNDLE/gpu-tests/gpu_sim
PIDS=()
# shellcheck disable=SC2317  # called by the trap
end_processes() {
  local pid
  for pid in "${PIDS[@]}"; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
}
trap end_processes EXIT
exec {ready}< <(exec "$SIM/gpu_sim_server" --socket "$WORK/sim" \
  --gpu "GPU-00000000-0000-0000-0000-000000000001,Simulated,$((1 << 30))")
PIDS+=($!)
read -r -t 30 _ <&"$ready" || die "the simulated driver's server does not start"
export REKINDLE_GPU_SIM=$WORK/sim LD_LIBRARY_PATH=$SIM
"$BUNDLE/bin/rekindled" --socket "$WORK/socket" --store "$WORK/store" --runtime-dir "$WORK/run" \
  --log-dir "$WORK/log" >"$WORK/daemon.log" 2>&1 &
PIDS+=($!)
for ((i = 0; i < 300; i++)); do
  [[ ! -S $WORK/socket ]] || break
  sleep 0.1
done
OUTPUT=$("$BUNDLE/bin/rekindle" --host "unix://$WORK/socket" gpu ps 2>&1) || die "gpu ps: $OUTPUT"
grep -q Simulated <<<"$OUTPUT" || die "gpu ps does not show the simulated GPU: $OUTPUT"
HELPER=$(pgrep -P "${PIDS[1]}" -f rekindle-gpu-helper) || die "the daemon has no GPU helper: $(cat "$WORK/daemon.log")"
grep -q "$SIM/libcuda.so.1" "/proc/$HELPER/maps" || die "the GPU helper has not loaded the driver"
if grep "$BUNDLE/lib/" "/proc/$HELPER/maps"; then die "the GPU helper uses the bundle's private libraries (above)"; fi

# A clone needs all of it: the programs that make sandboxes and serve memory, and their loader.
unset REKINDLE_GPU_SIM LD_LIBRARY_PATH
REKINDLE=("$BUNDLE/bin/rekindle" --host "unix://$WORK/socket")
"${REKINDLE[@]}" run --detach --name waits -- sleep 1000 >/dev/null
"${REKINDLE[@]}" ckpt waits -t waits:1 --stop >/dev/null
"${REKINDLE[@]}" restore waits:1 --clone --count 2 --detach --json >"$WORK/clones"
PAGER=$(pgrep -P "${PIDS[1]}" -f rekindle-pager) || die "the daemon has no pager: $(ps -o args= --ppid "${PIDS[1]}")"
PIDS+=("$PAGER")
mapfile -t CLONES < <(grep -oE '"job":\{"pid":[0-9]+' "$WORK/clones" | grep -oE '[0-9]+')
((${#CLONES[@]} == 2)) || die "not two clones: $(cat "$WORK/clones")"
kill "${CLONES[@]}"
for ((i = 0; i < 300; i++)); do
  [[ -d /proc/${CLONES[0]} || -d /proc/${CLONES[1]} ]] || break
  sleep 0.1
done
[[ ! -d /proc/${CLONES[0]} && ! -d /proc/${CLONES[1]} ]] || die "a clone does not end"

# As its README says.
(cd "$BUNDLE" && sh -ec "$(grep -o 'sed "s|@BUNDLE.*>' README | sed "s|>$|>'$WORK/rekindled.service'|")") ||
  die "the README's command makes no unit"
DAEMON=$(sed -n 's/^ExecStart=//p' "$WORK/rekindled.service")
[[ -x $DAEMON ]] || die "the unit's daemon, $DAEMON, is not there"
if grep -n '@' "$WORK/rekindled.service"; then die "the unit is not filled in (above)"; fi
for page in man1/rekindle{,-fn,-gpu,-group}.1 man8/rekindled.8; do
  [[ -s $BUNDLE/share/man/$page ]] || die "$page is missing"
done
for page in README.md docs/functions.md docs/daemon.md examples/kubernetes/daemonset.yaml; do
  [[ -s $BUNDLE/share/doc/rekindle/$page ]] || die "$page is missing"
done
"$BUNDLE/bin/rekindle-slurm" --help >/dev/null || die "bin/rekindle-slurm does not run"

# The hook is for programs of the machine.
PYTHONPATH=$BUNDLE/lib/rekindle/python python3 -c 'import rekindle; rekindle.unsafe_to_fork()' ||
  die "Python can't use the bundle's hook"
if [[ -d $BUNDLE/lib/rekindle/node ]] && command -v node >/dev/null; then
  NODE_PATH=$BUNDLE/lib/rekindle/node node -e 'process.exit(require("rekindle").unsafeToFork() === null ? 1 : 0)' ||
    die "Node.js can't use the bundle's hook"
fi
echo "1 passed, 0 failed"
