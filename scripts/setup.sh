#!/usr/bin/env bash
# Gets a Debian machine (12 or newer, root) ready for Rekindle: packages that are missing, and a CRIU that works.
# What is there already is left alone; a second run does nothing and takes well under a second.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly OLDEST_CRIU=4.2

BUILD_PACKAGES=(
  g++ cmake ninja-build pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libabsl-dev libssl-dev zlib1g-dev libc-ares-dev libre2-dev liburing-dev libzstd-dev libxxhash-dev
  libcli11-dev nlohmann-json3-dev libboost-dev libgtest-dev libgmock-dev libbenchmark-dev zstd)
# What the functions of bench/functions import.
FUNCTION_PACKAGES=(
  python3 python3-torch python3-numpy python3-sklearn python3-joblib python3-pandas python3-opencv opencv-data
  python3-pil python3-pyaes python3-chameleon)
TEST_PACKAGES=(
  "${FUNCTION_PACKAGES[@]}"
  python3-protobuf python3-boto3 python3-yaml awscli redis-server nodejs curl sqlite3 procps iproute2 util-linux mount bsdutils
  e2fsprogs xfsprogs btrfs-progs runc rclone)
# The headers for the hook's addon, which other packages of Node.js than Debian's bring along (and exclude libnode-dev).
compgen -G '/usr/include/node*/node_api.h' >/dev/null || TEST_PACKAGES+=(libnode-dev)
DEMO_PACKAGES=(python3 python3-torch python3-numpy procps)
BENCH_PACKAGES=(
  "${FUNCTION_PACKAGES[@]}"
  restic borgbackup casync fio zstd nodejs redis-server util-linux git)
SLURM_PACKAGES=(munge slurmctld slurmd slurm-client)
LINT_PACKAGES=(clang clang-tidy clang-format lld libclang-rt-dev shellcheck pylint git)

usage() {
  cat <<USAGE
Usage: scripts/setup.sh [--build] [--test] [--demo] [--criu] [--lint] [--bench] [--slurm] [--criu-version experimental]

  --build   compilers and libraries to build Rekindle
  --test    the programs that the integration tests checkpoint (torch, Redis, Node.js, ...), the functions' libraries
  --demo    what scripts/demo.sh shows: torch
  --criu    a CRIU of $OLDEST_CRIU or newer: the system's, else a private prefix in /opt/rekindle/criu
  --lint    clang (also for sanitizer builds) with its linker, clang-format and clang-tidy, shellcheck, pylint
  --bench   what the store is measured against, and what is measured with it
  --slurm   Slurm, for the tests that let it preempt jobs; its services are not started
  --criu-version experimental
            a second, newer CRIU in /opt/rekindle/criu-4.3, to compare against in benchmarks

Without options: --build --criu. The private prefix goes elsewhere with REKINDLE_CRIU_PREFIX=DIR.
Examples:
  scripts/setup.sh
  scripts/setup.sh --build --test --criu
USAGE
}

# missing_packages PACKAGE...: those that are not installed, one a line.
missing_packages() {
  local installed
  # shellcheck disable=SC2016  # dpkg's own ${...}
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p' || true)
  comm -23 <(printf '%s\n' "$@" | sort -u) <(sort -u <<<"$installed")
}

# Packages such as redis-server start a service when they are installed; a test must not leave one on the machine.
POLICY_MADE=
forbid_services() {
  [[ -e /usr/sbin/policy-rc.d ]] && return 0
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod 755 /usr/sbin/policy-rc.d
  POLICY_MADE=1
}
allow_services() {
  [[ -n $POLICY_MADE ]] && rm -f /usr/sbin/policy-rc.d
  POLICY_MADE=
  return 0
}
trap allow_services EXIT

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  [[ $EUID -eq 0 ]] || die "these Debian packages are missing: ${missing[*]}. Run scripts/setup.sh as root, or install them."
  command -v apt-get >/dev/null || die "apt-get was not found: this script knows Debian only. Install by hand: ${missing[*]}"
  step "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  local log
  log=$(mktemp -t rekindle-apt.XXXXXX)
  quietly "$log" apt-get update || warn "apt-get update failed; going on with the package lists that are here"
  forbid_services
  if ! quietly "$log" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    -o DPkg::Lock::Timeout=600 "${missing[@]}"; then
    die "apt-get could not install them (log: $log). Check the network and /etc/apt/sources.list*, then run this again."
  fi
  allow_services
  rm -f "$log"
  # Packages enable their services for the next boot as well.
  local service
  for service in redis-server munge slurmctld slurmd; do
    if [[ " ${missing[*]} " == *" $service "* ]] && command -v systemctl >/dev/null; then
      systemctl disable "$service" >/dev/null 2>&1 || true
    fi
  done
}

setup_criu() {
  local version
  if [[ -z $CRIU_SUITE ]]; then
    local found
    for found in /usr/sbin/criu /usr/local/sbin/criu "$(command -v criu || true)"; do
      [[ -x $found ]] || continue
      version=$(criu_version "$found")
      if [[ -n $version ]] && version_at_least "$version" "$OLDEST_CRIU"; then
        note "CRIU $version: $found"
        return 0
      fi
    done
  fi
  local prefix=${REKINDLE_CRIU_PREFIX:-/opt/rekindle/criu${CRIU_SUITE:+-4.3}}
  local wanted=$OLDEST_CRIU
  [[ -n $CRIU_SUITE ]] && wanted=4.3
  criu_in_prefix "$prefix"
  version=$(criu_version "${CRIU[@]}")
  if [[ -z $version ]] || ! version_at_least "$version" "$wanted"; then
    "$REPO_ROOT/scripts/make-criu-prefix.sh" "$prefix" "$wanted" "${CRIU_SUITE:-}"
    version=$(criu_version "${CRIU[@]}")
  fi
  note "CRIU $version: $prefix"
}

WANT_BUILD='' WANT_TEST='' WANT_DEMO='' WANT_CRIU='' WANT_LINT='' WANT_BENCH='' WANT_SLURM='' CRIU_SUITE=''
while (($#)); do
  case $1 in
    --build) WANT_BUILD=1 ;;
    --test) WANT_TEST=1 ;;
    --demo) WANT_DEMO=1 ;;
    --criu) WANT_CRIU=1 ;;
    --lint) WANT_LINT=1 ;;
    --bench) WANT_BENCH=1 ;;
    --slurm) WANT_SLURM=1 ;;
    --criu-version)
      [[ ${2:-} == experimental ]] || { usage >&2; exit 2; }
      WANT_CRIU=1 CRIU_SUITE=experimental
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[[ -z $WANT_BUILD$WANT_TEST$WANT_DEMO$WANT_CRIU$WANT_LINT$WANT_BENCH$WANT_SLURM ]] && WANT_BUILD=1 WANT_CRIU=1

PACKAGES=()
[[ -n $WANT_BUILD ]] && PACKAGES+=("${BUILD_PACKAGES[@]}")
[[ -n $WANT_TEST ]] && PACKAGES+=("${TEST_PACKAGES[@]}")
[[ -n $WANT_DEMO ]] && PACKAGES+=("${DEMO_PACKAGES[@]}")
[[ -n $WANT_LINT ]] && PACKAGES+=("${LINT_PACKAGES[@]}")
[[ -n $WANT_BENCH ]] && PACKAGES+=("${BENCH_PACKAGES[@]}")
[[ -n $WANT_SLURM ]] && PACKAGES+=("${SLURM_PACKAGES[@]}")
((${#PACKAGES[@]})) && install_packages "${PACKAGES[@]}"
[[ -n $WANT_CRIU ]] && setup_criu
exit 0
