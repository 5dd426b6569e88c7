#!/usr/bin/env bash
# Runs a command as if on a machine of its own, so that several integration tests can run side by side: PIDs, mounts,
# /tmp, /var/tmp, /srv, /run, /dev/shm, IPC objects and network (loopback only) are nobody else's. Cgroups and the
# clock are the machine's. It ends with the command's status; nothing that the command started outlives it.
#   tests/integration/own_machine.sh COMMAND [ARGUMENT...]
set -euo pipefail

if [[ ${1-} != --inside ]]; then
  FOLDER=$(mktemp -d /var/tmp/rekindle-it.machine.XXXXXX)
  trap 'rm -rf "$FOLDER"' EXIT
  unshare --mount --pid --net --ipc --fork --kill-child "$0" --inside "$FOLDER" "$@"
  exit
fi

FOLDER=$2
shift 2
mount -t proc proc /proc
mkdir -p "$FOLDER/tmp" "$FOLDER/var/tmp" "$FOLDER/srv" /srv
chmod 1777 "$FOLDER/tmp" "$FOLDER/var/tmp"
# What is tested: it may lie below those itself, or in a folder that only its owner may enter, such as /root, and some
# tests are other users.
REPO=$(realpath "$(dirname "$0")/../..")
BIN=$(realpath "${REKINDLE_BIN_DIR:-$REPO/build/release/bin}")
others_may_enter() { [[ $(stat -c %A "$1") == *[xt] ]]; }
# The topmost folder on the way to this one that they may not enter.
closed_on_way() {
  local way='' name
  IFS=/ read -ra names <<<"${1#/}"
  for name in "${names[@]}"; do
    way+=/$name
    others_may_enter "$way" || { printf %s "$way" && return; }
  done
}
# What lies in a folder, at a place where others may enter.
show_at() {
  local folder=$1 place=$2 entry
  mkdir -p "$place"
  if others_may_enter "$folder"; then
    mount --bind "$folder" "$place"
    return
  fi
  for entry in "$folder"/* "$folder"/.[!.]*; do
    if [[ -d $entry ]]; then mkdir "$place/${entry##*/}"; else touch "$place/${entry##*/}"; fi
    mount --bind "$entry" "$place/${entry##*/}"
  done
}
for needed in "$REPO" "$BIN"; do
  if [[ $needed == /tmp/* || $needed == /var/tmp/* ]]; then
    show_at "$needed" "$FOLDER$needed"
    continue
  fi
  closed=$(closed_on_way "$needed")
  [[ -n $closed ]] || continue
  mkdir -p "$FOLDER/needed"
  mount --bind "$needed" "$FOLDER/needed"
  mount -t tmpfs -o mode=755 tmpfs "$closed"
  show_at "$FOLDER/needed" "$needed"
  umount "$FOLDER/needed"
done
cd "$PWD"  # it may have been covered
mount --rbind "$FOLDER/srv" /srv
mount --rbind "$FOLDER/tmp" /tmp
mount --rbind "$FOLDER/var/tmp" /var/tmp
for place in /run /dev/shm; do
  mount -t tmpfs -o mode=1777 tmpfs "$place"
done
chmod 755 /run
# Programs that look for IPv4 by what the machine's own addresses are (Slurm) find loopback alone too little.
ip link set lo up
ip link add outside0 type veth peer name outside1
ip addr add 192.0.2.1/24 dev outside0
ip link set outside0 up
# PIDs that are no other test's either: they are part of the names of cgroups.
echo $((RANDOM % 30000 + 1000)) >/proc/sys/kernel/ns_last_pid
# Not exec: the first process of a PID namespace ignores signals that others die of.
"$@" </dev/null
