#!/usr/bin/env bash
# Makes the relocatable bundle: one tarball with rekindle, rekindled, CRIU and every library and loader that they need.
#   packaging/make-bundle.sh BUILD_FOLDER VERSION OUTPUT.tar.zst
# The cmake target `bundle` calls it. Needs a private CRIU prefix (made if missing, as root).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"

BUILD=${1:?build folder} VERSION=${2:?version} OUTPUT=${3:?output}
LEVEL=${REKINDLE_BUNDLE_LEVEL:-12}
PREFIX=${REKINDLE_CRIU_PREFIX:-/opt/rekindle/criu}
# Linked into our programs; their licences ask for their notices.
LINKED_PACKAGES=(
  libgrpc++-dev libprotobuf-dev libabsl-dev libssl-dev zlib1g-dev libc-ares-dev libre2-dev liburing-dev libzstd-dev
  libxxhash-dev libcli11-dev nlohmann-json3-dev libc6 libstdc++6)

[[ -x $PREFIX/usr/sbin/criu ]] || "$REPO_ROOT/scripts/make-criu-prefix.sh" "$PREFIX" 4.2
WORK=$(mktemp -d -t rekindle-bundle.XXXXXX)
trap 'rm -rf "$WORK"' EXIT
NAME=rekindle-$VERSION-linux-$(uname -m)
ROOT=$WORK/$NAME
LIBEXEC=$ROOT/libexec/rekindle
mkdir -p "$ROOT"/{bin,lib,share/doc} "$LIBEXEC"

PROGRAMS=()
for program in rekindle rekindled; do
  [[ -x $BUILD/bin/$program ]] || die "$BUILD/bin/$program is missing: build it first (scripts/build.sh)."
  install -m 755 "$BUILD/bin/$program" "$LIBEXEC/$program"
  strip --strip-unneeded "$LIBEXEC/$program"
  install -m 755 "$BUILD/bin/bundle_launcher" "$ROOT/bin/$program"
  strip "$ROOT/bin/$program"
  PROGRAMS+=("$LIBEXEC/$program")
done
# Helpers that the programs start themselves; linked statically, so they need no launcher.
for helper in "$BUILD"/bin/rekindle-*; do
  [[ -x $helper ]] || continue
  if [[ $helper == *.so ]]; then  # loaded into CRIU, needs nothing of its own
    install -m 755 -s "$helper" "$LIBEXEC/"
    continue
  fi
  ! ldd "$helper" >/dev/null 2>&1 || die "$helper needs libraries, so it would not run inside the bundle: link it statically"
  install -m 755 -s "$helper" "$LIBEXEC/"
done

# ldd prints "name => path (address)" and, for the loader, "path (address)".
LIBRARIES=$(ldd "${PROGRAMS[@]}")
! grep 'not found' <<<"$LIBRARIES" || die "libraries of our own programs are missing (above)"
while read -r path; do
  cp -L "$path" "$ROOT/lib/"
done < <(sed -n 's/^\t\(.* => \)\{0,1\}\(\/[^ ]*\) (0x.*/\2/p' <<<"$LIBRARIES" | sort -u)
[[ -x $ROOT/lib/ld-linux-x86-64.so.2 ]] || die "the loader of $BUILD/bin/rekindle was not found"

cp -a "$PREFIX" "$ROOT/criu"
for package in "${LINKED_PACKAGES[@]}"; do
  notice=/usr/share/doc/$package/copyright
  if [[ -r $notice ]]; then install -Dm644 "$notice" "$ROOT/share/doc/$package/copyright"; fi
done
cat >"$ROOT/README" <<README
Rekindle $VERSION, relocatable: unpack anywhere, then run bin/rekindle. Nothing needs to be installed.

  bin/rekindle doctor                     what this machine lacks, if anything
  bin/rekindle ckpt PID -t name:tag       freeze a running job into the store
  bin/rekindle restore name:tag           bring it back

Keep the folders together; symbolic links to bin/rekindle work. criu/ is CRIU under its own licence (GPL 2; sources:
the Debian packages listed in criu/packages.txt); the notices of the libraries are in share/doc and criu/usr/share/doc.
README

mkdir -p "$(dirname "$OUTPUT")"
tar -C "$WORK" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$(date +%s)}" \
  -cf - "$NAME" | zstd -q -T0 "-$LEVEL" -f -o "$OUTPUT.tmp"
mv "$OUTPUT.tmp" "$OUTPUT"
note "$OUTPUT ($(du -h "$OUTPUT" | cut -f1))"
