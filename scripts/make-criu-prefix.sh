#!/usr/bin/env bash
# Makes a private prefix that holds one CRIU with its own loader and libraries, so that nothing of the system changes.
#   scripts/make-criu-prefix.sh PREFIX OLDEST_VERSION [experimental]
# The packages come from Debian's newer suites through a private apt state, checked against the installed archive
# keyring. The prefix appears at once or not at all (renamed into place).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

PREFIX=${1:?prefix} OLDEST=${2:?oldest version} SUITE=${3:-}
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
readonly FALLBACK_MIRROR=http://deb.debian.org/debian

[[ $EUID -eq 0 ]] || die "a private CRIU in $PREFIX is needed and only root can make it: run scripts/setup.sh --criu as root."
[[ $(uname -m) == x86_64 ]] || die "no private CRIU for $(uname -m): install CRIU $OLDEST or newer yourself."
[[ -r $KEYRING ]] || die "$KEYRING is missing, so nothing can be verified: apt-get install debian-archive-keyring."

mkdir -p "$(dirname "$PREFIX")"
exec {LOCK}>"$(dirname "$PREFIX")/.$(basename "$PREFIX").lock"
flock "$LOCK"
criu_in_prefix "$PREFIX"
HAVE=$(criu_version "${CRIU[@]}")
# Somebody else made it while we waited.
if [[ -n $HAVE ]] && version_at_least "$HAVE" "$OLDEST"; then exit 0; fi

WORK=$(mktemp -d /var/tmp/rekindle-criu.XXXXXX)
NEW=$PREFIX.new.$$
trap 'rm -rf "$WORK" "$NEW"' EXIT
chmod 755 "$WORK"

# The Debian mirror that this machine uses: not the security archive, not other people's repositories.
machine_mirror() {
  local codename
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  # shellcheck disable=SC2016  # apt's own $(...)
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    awk -v codename="$codename" '($2 == codename || $2 == "stable") && $3 == "main" { print $1; exit }' |
    sed 's,/*$,,'
}

# write_apt_config MIRROR: a state of its own in $WORK, with the machine's proxy settings and nothing else of it.
write_apt_config() {
  rm -rf "$WORK/apt"
  mkdir -p "$WORK/apt/lists/partial" "$WORK/apt/cache/archives/partial"
  : >"$WORK/apt/status"
  local suite
  for suite in forky sid $SUITE; do
    echo "deb [signed-by=$KEYRING] $1 $suite main"
  done >"$WORK/apt/sources.list"
  {
    env -u APT_CONFIG apt-config dump | grep -E '^Acquire::(http|https|ftp|Retries|ForceIPv)' || true
    cat <<CONFIG
Dir::Etc::Parts "/dev/null";
Dir::Etc::main "/dev/null";
Dir::Etc::sourcelist "$WORK/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$WORK/apt";
Dir::State::Lists "$WORK/apt/lists";
Dir::State::status "$WORK/apt/status";
Dir::Cache "$WORK/apt/cache";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Default-Release "${SUITE:-forky}";
APT::Install-Recommends "false";
APT::Get::Assume-Yes "true";
CONFIG
  } >"$WORK/apt/apt.conf"
  export APT_CONFIG=$WORK/apt/apt.conf
}

update_lists() {
  quietly "$WORK/update.log" apt-get update 2>/dev/null && return 0
  # A mirror that stands still (a snapshot, an archive, a machine whose clock runs ahead) is past its "valid until".
  # Signatures are checked all the same.
  grep -q 'is expired' "$WORK/update.log" || { tail -n 5 "$WORK/update.log" >&2; return 1; }
  warn "the mirror's package lists are past their valid-until date; taking them anyway (signatures are checked)"
  echo 'Acquire::Check-Valid-Until "false";' >>"$APT_CONFIG"
  quietly "$WORK/update.log" apt-get update
}

# fetch MIRROR: leaves the packages of CRIU and everything that it depends on in $WORK/apt/cache/archives.
fetch() {
  write_apt_config "$1"
  update_lists || return 1
  local candidate
  candidate=$(apt-cache policy criu | sed -n 's/^ *Candidate: *\([0-9.]*\).*/\1/p')
  if [[ -z $candidate ]] || ! version_at_least "$candidate" "$OLDEST"; then
    warn "$1 has CRIU ${candidate:-nowhere}, not $OLDEST or newer"
    return 1
  fi
  # The status file is empty, so this is the whole closure down to libc, all of matching suites.
  quietly "$WORK/download.log" apt-get install --download-only criu
}

step "Making a private CRIU in $PREFIX (about 10 MB from Debian ${SUITE:-forky/sid})"
MIRROR=$(machine_mirror)
FETCHED=
for mirror in $(printf "%s\n" "$MIRROR" "$FALLBACK_MIRROR" | uniq); do
  fetch "$mirror" && FETCHED=$mirror && break
done
[[ -n $FETCHED ]] || die "CRIU $OLDEST or newer could not be fetched from ${MIRROR:-$FALLBACK_MIRROR}. Check the network," \
  "or put a CRIU of $OLDEST or newer into PATH, then run scripts/setup.sh --criu again."
unset APT_CONFIG

mkdir "$WORK/root"
# Merged /usr, as in these suites: packages that still ship /lib land in the same place.
mkdir -p "$WORK/root/usr/lib" "$WORK/root/usr/lib64"
ln -s usr/lib "$WORK/root/lib"
ln -s usr/lib64 "$WORK/root/lib64"
for package in "$WORK"/apt/cache/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$WORK/root"
done

# Keep what the program loads and nothing else. The loader itself resolves NEEDED recursively.
criu_in_prefix "$WORK/root"
mkdir -p "$NEW/lib64" "$NEW/usr/lib/x86_64-linux-gnu" "$NEW/usr/sbin" "$NEW/usr/share/doc"
cp -L "${CRIU[0]}" "$NEW/lib64/"
cp -L "$WORK/root/usr/sbin/criu" "$NEW/usr/sbin/"
LIBRARIES=$("${CRIU[0]}" --list --library-path "$WORK/root/usr/lib/x86_64-linux-gnu" "$WORK/root/usr/sbin/criu")
! grep 'not found' <<<"$LIBRARIES" || die "the packages of CRIU do not hold every library that it loads (above)"
while read -r name _ path _; do
  [[ $path == "$WORK/root/"* && $name != */* ]] || continue
  cp -L "$path" "$NEW/usr/lib/x86_64-linux-gnu/$name"
done <<<"$LIBRARIES"
# Who made what, and under which licence: the bundle hands these files on.
for package in "$WORK"/apt/cache/archives/*.deb; do
  # shellcheck disable=SC2016  # dpkg's own ${...}
  dpkg-deb -W --showformat='${Package} ${Version}\n' "$package"
done >"$NEW/packages.txt"
while read -r package _; do
  copyright=$WORK/root/usr/share/doc/$package/copyright
  [[ -r $copyright ]] && install -Dm644 "$copyright" "$NEW/usr/share/doc/$package/copyright"
done <"$NEW/packages.txt"

criu_in_prefix "$NEW"
VERSION=$(criu_version "${CRIU[@]}")
[[ -n $VERSION ]] || die "the CRIU just made does not run: $("${CRIU[@]}" --version 2>&1 | tail -n 3)"
if ! CHECK=$("${CRIU[@]}" check 2>&1); then
  warn "criu check found that this kernel or container lacks something that checkpoints need:"
  grep -v '^Warn' <<<"$CHECK" | head -n 5 >&2
fi

if [[ -e $PREFIX ]]; then mv -T "$PREFIX" "$WORK/old"; fi
mv -T "$NEW" "$PREFIX"
note "CRIU $VERSION made in $PREFIX ($(du -sh "$PREFIX" | cut -f1))"
