#!/usr/bin/env bash
# Does the tree as it is here build on Debian 13, whose libraries are newer, and do its unit tests pass there? Everything
# happens in a chroot below /var/tmp (about 5 GB, needs root and a Debian mirror) that is removed at the end.
#   scripts/check-debian13.sh [SUITE]                 default: trixie
#   scripts/check-debian13.sh --bundle FILE [SUITE]   instead: does the GPU bundle (cmake target gpu_bundle) work there, with
#                                                     nothing installed, on the simulated driver?
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

BUNDLE=''
if [[ ${1-} == --bundle ]]; then
  BUNDLE=$(realpath "${2:?file}")
  shift 2
fi
SUITE=${1:-trixie}
[[ $EUID -eq 0 ]] || die "a chroot can be made by root only: run this as root."

if [[ -z ${REKINDLE_CHROOT:-} ]]; then
  if ! command -v debootstrap >/dev/null; then
    step "Installing debootstrap"
    apt-get install -y --no-install-recommends debootstrap >/dev/null || die "apt-get install debootstrap failed (above)"
  fi
  REKINDLE_CHROOT=$(mktemp -d "/var/tmp/rekindle-$SUITE.XXXXXX")
  export REKINDLE_CHROOT
  trap 'rm -rf --one-file-system "$REKINDLE_CHROOT"' EXIT
  # Namespaces of its own: whatever was mounted or started inside is gone when this ends, in whichever way.
  nice unshare --mount --propagation private --pid --fork --kill-child "$0" \
    ${BUNDLE:+--bundle "$BUNDLE"} "$SUITE"
  exit
fi

ROOT=$REKINDLE_CHROOT
# shellcheck disable=SC2016  # apt's own $(...)
MIRROR=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
  awk '$3 == "main" && $2 !~ /security/ { print $1; exit }')
step "Debian $SUITE in $ROOT"
quietly "$ROOT.log" debootstrap --variant=minbase --include=ca-certificates,python3 "$SUITE" "$ROOT" \
  "${MIRROR:-http://deb.debian.org/debian}" || die "debootstrap failed (above)"
rm -f "$ROOT.log"
chmod 0755 "$ROOT" # some tests are other users
cp -L /etc/resolv.conf "$ROOT/etc/resolv.conf"
apt-config dump | grep -E '^Acquire::(http|https)' >"$ROOT/etc/apt/apt.conf.d/90host" || true
# A root that is a mount point, as every real one is: it becomes that of this mount namespace, and tests make mounts
# and namespaces of their own below it.
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount --rbind /sys "$ROOT/sys"
mount -t tmpfs -o mode=0755 tmpfs "$ROOT/run"

# inside SCRIPT: from here on nothing of the host is seen. Not chroot: who enters a namespace leaves that.
inside() {
  mkdir "$ROOT/host" && cd "$ROOT" && pivot_root . host && umount -l /host && rmdir /host || return 1
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" bash -euc "$1"
}

if [[ -n $BUNDLE ]]; then
  mkdir "$ROOT/bundle"
  tar -xzf "$BUNDLE" -C "$ROOT/bundle"
  inside '
    cd /bundle
    rekindle-*/gpu_check.sh --sim --report /bundle/report.md
  ' || die "the bundle does not work on Debian $SUITE (above)"
  note "Debian $SUITE: the bundle works"
  exit
fi

mkdir -p "$ROOT/src"
(cd "$REPO_ROOT" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --ignore-failed-read) |
  tar -x -C "$ROOT/src"
# shellcheck disable=SC2016  # that shell's
inside '
  cd /src
  scripts/setup.sh --build --test --criu
  nice scripts/build.sh release
  ctest --test-dir build/release -j "$(nproc)" --output-on-failure --no-tests=error -L "^unit\$"
' || die "the tree does not build or pass its unit tests on Debian $SUITE (above)"
note "Debian $SUITE: the tree builds and its unit tests pass"
