#!/usr/bin/env bash
# Do the tests pass on a kernel that is not this machine's? Boots one of Debian's in a virtual machine that has systemd,
# cgroup v2 alone and all capabilities, and runs this tree's tests there. Emulated where KVM does not work, which is ten
# to twenty times slower: choose tests.
#   scripts/check-kernel.sh [--kernel PACKAGE] [--kvm] [CTEST OPTIONS]
#     scripts/check-kernel.sh                                           a choice of tests, on Debian 12's own kernel
#     scripts/check-kernel.sh --kernel linux-image-6.12-amd64 -R jobs   on that of backports
#     scripts/check-kernel.sh --shell                                   a login on its console instead; Ctrl-A X ends it
# Needs root, a Debian mirror, and about 12 GB below /var/tmp (or REKINDLE_VM_DIR), where the machine's disk is kept: the
# next run with the same kernel begins at once.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly SUITE=bookworm
readonly DEFAULT_TESTS='^(ckpt_test|criu_roundtrip_test|frozen_dump_test|capture_tracking_test|integration\.(jobs|bad_targets|dirty_pages|doctor|files|shared_memory|containers|clone|service)\..*)$'
KERNEL=linux-image-amd64 SHELL_WANTED='' TESTS=()
ACCELERATION=(-accel "tcg,thread=multi,tb-size=2048" -cpu max)
PATIENCE=5
while (($#)); do
  case $1 in
    -h | --help)
      sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    --kernel)
      KERNEL=${2:?package}
      shift
      ;;
    --kvm) ACCELERATION=(-accel kvm -cpu host) PATIENCE=2 ;;
    --shell) SHELL_WANTED=1 ;;
    *) TESTS+=("$1") ;;
  esac
  shift
done
((${#TESTS[@]})) || TESTS=(-R "$DEFAULT_TESTS")
[[ $EUID -eq 0 ]] || die "the disk of the virtual machine can be made by root only: run this as root."

VM=${REKINDLE_VM_DIR:-/var/tmp/rekindle-vm}/$KERNEL
mkdir -p "$VM/share"
chmod 700 "$VM"
for program in debootstrap:debootstrap qemu-system-x86_64:qemu-system-x86 mkfs.ext4:e2fsprogs; do
  command -v "${program%%:*}" >/dev/null && continue
  step "Installing ${program##*:}"
  quietly "$VM/log" apt-get install -y --no-install-recommends "${program##*:}" || die "apt-get install failed (above)"
done

# The root file system, as a folder, in namespaces of its own: whatever is mounted there is gone with them.
make_root() {
  local root=$1 mirror
  # shellcheck disable=SC2016  # apt's own $(...)
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk '$3 == "main" && $2 !~ /security/ { print $1; exit }')
  mirror=${mirror:-http://deb.debian.org/debian}
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,udev,kmod,iproute2,procps,python3,ca-certificates \
    "$SUITE" "$root" "$mirror"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  apt-config dump | grep -E '^Acquire::(http|https)' >"$root/etc/apt/apt.conf.d/90host" || true
  printf 'deb %s %s main\n' "$mirror" "$SUITE" "$mirror" "$SUITE-backports" >"$root/etc/apt/sources.list"
  printf 'deb %s %s main\n' "${mirror%/debian*}/debian-security" "$SUITE-security" >>"$root/etc/apt/sources.list"
  mkdir -p "$root$REPO_ROOT" "$root/share"
  mount --bind "$REPO_ROOT" "$root$REPO_ROOT"
  mount -t proc proc "$root/proc"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod 755 "$root/usr/sbin/policy-rc.d"
  # shellcheck disable=SC2016  # expanded inside
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    bash -euc '
      apt-get update
      apt-get install -y --no-install-recommends initramfs-tools zstd nftables "$1"
      cd "$2"
      scripts/setup.sh --build --test --criu
    ' - "$KERNEL" "$REPO_ROOT"
  rm "$root/usr/sbin/policy-rc.d"
  umount "$root/proc" "$root$REPO_ROOT"
  rm -f "$root"/etc/systemd/system/*.wants/{redis-server.service,apt-daily.timer,apt-daily-upgrade.timer}
  passwd -R "$root" -d root
  printf '/dev/vda / ext4 defaults 0 1\nshare /share 9p trans=virtio,version=9p2000.L,msize=1048576 0 0\n' \
    >"$root/etc/fstab"
  cat >"$root/etc/systemd/system/task.service" <<'UNIT'
[Unit]
Description=what /share/task says
After=share.mount network.target
ConditionPathExists=/share/task
[Service]
Type=oneshot
ExecStart=/bin/bash /share/task
StandardOutput=tty
TTYPath=/dev/ttyS0
ExecStopPost=/bin/systemctl poweroff
TimeoutStartSec=infinity
UNIT
  ln -s ../task.service "$root/etc/systemd/system/multi-user.target.wants/task.service"
}
if [[ ${REKINDLE_VM_MAKE_ROOT-} ]]; then
  make_root "$REKINDLE_VM_MAKE_ROOT"
  exit
fi

if [[ ! -e $VM/ready ]]; then
  step "Debian $SUITE with $KERNEL, in $VM (some minutes)"
  rm -rf --one-file-system "$VM/root" "$VM/disk"
  mkdir "$VM/root"
  trap 'rm -rf --one-file-system "$VM/root"' EXIT
  REKINDLE_VM_MAKE_ROOT=$VM/root quietly "$VM/log" \
    unshare --mount --propagation private --pid --fork --kill-child "$0" --kernel "$KERNEL" ||
    die "making the virtual machine's file system failed (above; all of it in $VM/log)"
  cp "$VM"/root/boot/vmlinuz-* "$VM/vmlinuz"
  cp "$VM"/root/boot/initrd.img-* "$VM/initrd"
  truncate -s 16G "$VM/disk"
  quietly "$VM/log" mkfs.ext4 -q -F -d "$VM/root" "$VM/disk" || die "mkfs.ext4 failed (above): is there room in $VM?"
  rm -rf --one-file-system "$VM/root"
  trap - EXIT
  touch "$VM/ready"
fi

rm -f "$VM"/share/*
if [[ ! $SHELL_WANTED ]]; then
  "$REPO_ROOT/scripts/build.sh" release
  tar -C / -cf "$VM/share/tree.tar" --exclude='*.o' --exclude='*.a' --exclude=.git --exclude=__pycache__ \
    --exclude="${REPO_ROOT#/}/build/[!r]*" "${REPO_ROOT#/}"
  cat >"$VM/share/task" <<TASK
exec 2>&1
uname -sr
rm -rf ${REPO_ROOT@Q}
tar -C / -xf /share/tree.tar
cd ${REPO_ROOT@Q}
export LANG=C.UTF-8 HOME=/root REKINDLE_TEST_PATIENCE=$PATIENCE
find build/release -name CTestTestfile.cmake -exec sed -i 's/ TIMEOUT "[0-9]*"/ TIMEOUT "3600"/' {} +
ctest --test-dir build/release -j 3 --output-on-failure --no-tests=error ${TESTS[*]@Q}
echo \$? >/share/status
TASK
fi
step "Booting $KERNEL"
# Its console is the tests', and a login would hang up what has it open.
CONSOLE=systemd.mask=serial-getty@ttyS0.service
[[ ! $SHELL_WANTED ]] || CONSOLE=''
timeout --foreground 6h qemu-system-x86_64 "${ACCELERATION[@]}" -smp "$(nproc)" -m 8192 -nographic -no-reboot \
  -kernel "$VM/vmlinuz" -initrd "$VM/initrd" \
  -append "root=/dev/vda rw console=ttyS0 panic=-1 quiet systemd.show_status=0 mitigations=off $CONSOLE" \
  -drive "file=$VM/disk,format=raw,if=virtio,cache=unsafe" -nic none \
  -virtfs "local,path=$VM/share,mount_tag=share,security_model=none" ||
  die "the virtual machine ended with an error"
[[ $SHELL_WANTED ]] && exit
[[ -e $VM/share/status ]] || die "the virtual machine ended before the tests did"
(($(<"$VM/share/status") == 0)) || die "tests failed on $KERNEL (above)"
note "$KERNEL: passed"
