#!/usr/bin/env bash
# Makes the relocatable bundle: one tarball with rekindle, rekindled, CRIU, every library and loader that they need, the
# runtime hook, man pages, and what Slurm and systemd need.
#   packaging/make-bundle.sh [--gpu-tests] BUILD_FOLDER VERSION OUTPUT.tar.zst|OUTPUT.tar.gz
# With --gpu-tests also gpu_check.sh and all that it runs, for machines with a GPU, and the simulated driver.
# The cmake targets `bundle` and `gpu_bundle` call it. Needs a private CRIU prefix (made if missing, as root).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"

GPU_TESTS=
if [[ ${1:-} == --gpu-tests ]]; then
  GPU_TESTS=1
  shift
fi
BUILD=${1:?build folder} VERSION=${2:?version} OUTPUT=${3:?output}
LEVEL=${REKINDLE_BUNDLE_LEVEL:-12}
PREFIX=${REKINDLE_CRIU_PREFIX:-/opt/rekindle/criu}
# Linked into our programs; their licences ask for their notices.
LINKED_PACKAGES=(
  libgrpc++-dev libprotobuf-dev libabsl-dev libssl-dev zlib1g-dev libc-ares-dev libre2-dev liburing-dev libzstd-dev
  libxxhash-dev libcli11-dev nlohmann-json3-dev libboost-dev libc6 libstdc++6)

[[ -x $PREFIX/usr/sbin/criu ]] || "$REPO_ROOT/scripts/make-criu-prefix.sh" "$PREFIX" 4.2
WORK=$(mktemp -d -t rekindle-bundle.XXXXXX)
trap 'rm -rf "$WORK"' EXIT
NAME=rekindle-$VERSION-linux-$(uname -m)
ROOT=$WORK/$NAME
LIBEXEC=$ROOT/libexec/rekindle
mkdir -p "$ROOT"/{bin,lib,share/doc} "$LIBEXEC"

need_built() { [[ -x $BUILD/bin/$1 ]] || die "$BUILD/bin/$1 is missing: build it first (scripts/build.sh)."; }
# need_only_libc FILE: it runs on any machine whose libc is not older than this, RHEL 9's.
OLDEST_LIBC=2.34
need_only_libc() {
  local extra newest
  extra=$(ldd "$1" | grep -vE '^[[:space:]]*(linux-vdso\.so\.1|lib(c|m)\.so\.6|/lib64/ld-linux-x86-64\.so\.2)[ =]' || true)
  [[ -z $extra ]] || die "$1 needs more than libc, so it would not run on other machines: $extra"
  newest=$(objdump -p "$1" | grep -oE 'GLIBC_[0-9.]+' | cut -d_ -f2 | sort -V | tail -n 1)
  [[ $(printf '%s\n' "$newest" "$OLDEST_LIBC" | sort -V | tail -n 1) == "$OLDEST_LIBC" ]] ||
    die "$1 needs libc $newest, so it would not run on machines with $OLDEST_LIBC: see base/older_libc.cc"
}
PROGRAMS=()
for program in rekindle rekindled; do
  need_built "$program"
  install -m 755 "$BUILD/bin/$program" "$LIBEXEC/$program"
  strip --strip-unneeded "$LIBEXEC/$program"
  install -m 755 "$BUILD/bin/bundle_launcher" "$ROOT/bin/$program"
  strip "$ROOT/bin/$program"
  PROGRAMS+=("$LIBEXEC/$program")
done
# Programs that those start. They look beside their own executable, which in a bundle is its loader, in lib.
for program in rekindle-sandbox rekindle-pager; do
  need_built "$program"
  install -m 755 -s "$BUILD/bin/$program" "$LIBEXEC/$program"
  install -m 755 -s "$BUILD/bin/bundle_launcher" "$ROOT/lib/$program"
  PROGRAMS+=("$LIBEXEC/$program")
done
# Helpers that are linked statically, so that they need no launcher.
for helper in "$BUILD"/bin/rekindle-*; do
  [[ -x $helper && ! -e $LIBEXEC/${helper##*/} ]] || continue
  if [[ $helper == *.so ]]; then  # loaded into CRIU, needs nothing of its own
    install -m 755 -s "$helper" "$LIBEXEC/"
    continue
  fi
  # It loads the machine's own NVIDIA driver, which needs the machine's own libc: the one helper that is dynamic.
  if [[ $helper == */rekindle-gpu-helper ]]; then
    need_only_libc "$helper"
    install -m 755 -s "$helper" "$LIBEXEC/"
    continue
  fi
  ! ldd "$helper" >/dev/null 2>&1 || die "$helper needs libraries, so it would not run inside the bundle: link it statically"
  install -m 755 -s "$helper" "$LIBEXEC/"
done

# What CRIU is to load when it has to do with a GPU.
[[ -r $BUILD/bin/criu-plugins/rekindle-gpu.so ]] || die "$BUILD/bin/criu-plugins is missing: build it first (scripts/build.sh)."
mkdir "$LIBEXEC/criu-plugins"
install -m 755 -s "$BUILD/bin/criu-plugins/rekindle-gpu.so" "$LIBEXEC/criu-plugins/"

# ldd prints "name => path (address)" and, for the loader, "path (address)".
LIBRARIES=$(ldd "${PROGRAMS[@]}")
! grep 'not found' <<<"$LIBRARIES" || die "libraries of our own programs are missing (above)"
while read -r path; do
  cp -L "$path" "$ROOT/lib/"
done < <(sed -n 's/^\t\(.* => \)\{0,1\}\(\/[^ ]*\) (0x.*/\2/p' <<<"$LIBRARIES" | sort -u)
[[ -x $ROOT/lib/ld-linux-x86-64.so.2 ]] || die "the loader of $BUILD/bin/rekindle was not found"

cp -a "$PREFIX" "$ROOT/criu"

# For programs of the machine, which load it with their own libc.
HOOK=$BUILD/hook/librekindle_hook.so
[[ -r $HOOK ]] || die "$HOOK is missing: build it first (scripts/build.sh)."
need_only_libc "$HOOK"
mkdir -p "$ROOT/lib/rekindle/python/rekindle" "$ROOT/include"
# by_content FILE FOLDER: as `cmake --install` does it.
by_content() {
  cmake -DFILE="$1" -DFOLDER="$2" -DSTRIP="$(command -v strip)" -P "$REPO_ROOT/hook/install_by_content.cmake"
}
by_content "$HOOK" "$ROOT/lib/rekindle"
install -m 644 "$REPO_ROOT"/hook/python/rekindle/*.py "$ROOT/lib/rekindle/python/rekindle/"
install -m 644 "$REPO_ROOT/hook/python/snapshot_restore_py.py" "$ROOT/lib/rekindle/python/"
ADDON=$BUILD/hook/rekindle_hook.node
if [[ -r $ADDON ]]; then
  need_only_libc "$ADDON"
  mkdir -p "$ROOT/lib/rekindle/node/rekindle"
  by_content "$ADDON" "$ROOT/lib/rekindle/node/rekindle"
  install -m 644 "$REPO_ROOT"/hook/node/rekindle/*.js{,on} "$ROOT/lib/rekindle/node/rekindle/"
fi
RUNTIMES=$ROOT/lib/rekindle/runtimes
mkdir -p "$RUNTIMES/python/rekindle_lambda" "$RUNTIMES/node/lib"
install -m 755 "$REPO_ROOT/functions/runtimes/python/discover_imports.py" "$RUNTIMES/python/"
install -m 644 "$REPO_ROOT"/functions/runtimes/python/{bootstrap,import_probe}.py "$RUNTIMES/python/"
install -m 644 "$REPO_ROOT"/functions/runtimes/python/rekindle_lambda/*.py "$RUNTIMES/python/rekindle_lambda/"
install -m 644 "$REPO_ROOT"/functions/runtimes/node/{bootstrap,discover_imports}.js "$RUNTIMES/node/"
install -m 644 "$REPO_ROOT"/functions/runtimes/node/lib/*.js "$RUNTIMES/node/lib/"
install -m 644 "$REPO_ROOT/hook/rekindle_hook.h" "$ROOT/include/"

# systemd asks for the daemon's whole path, which is known where the bundle is unpacked: README says how it is filled in.
mkdir -p "$ROOT"/share/{man/man1,man/man8,systemd,examples}
install -m 644 "$REPO_ROOT"/packaging/man/rekindle*.1 "$ROOT/share/man/man1/"
install -m 644 "$REPO_ROOT/packaging/man/rekindled.8" "$ROOT/share/man/man8/"
sed 's|@CMAKE_INSTALL_FULL_SBINDIR@|@BUNDLE@/bin|' "$REPO_ROOT/packaging/rekindled.service.in" \
  >"$ROOT/share/systemd/rekindled.service"
install -m 755 "$REPO_ROOT/examples/slurm/rekindle-slurm" "$ROOT/bin/"
install -m 644 "$REPO_ROOT/packaging/rekindle.logrotate" "$ROOT/share/"
install -m 644 "$REPO_ROOT"/examples/{slurm/rekindle.sbatch,systemd/train.service,systemd/rekindle-prune.service,systemd/rekindle-prune.timer} \
  "$ROOT/share/examples/"
mkdir -p "$ROOT"/share/{doc/rekindle,completions}
cp -R --no-preserve=ownership "$REPO_ROOT"/{README.md,docs,examples} "$ROOT/share/doc/rekindle/"
install -m 644 "$REPO_ROOT"/packaging/completions/* "$ROOT/share/completions/"

if [[ -n $GPU_TESTS ]]; then
  [[ -x $LIBEXEC/rekindle-gpu-helper ]] || die "$BUILD/bin/rekindle-gpu-helper is missing: build it first (scripts/build.sh)."
  mkdir -p "$ROOT/gpu-tests/gpu_sim"
  for program in gpu_vector_job gpu_tree_job gpu_bare_calls gpu_driver_probe \
    gpu_sim/{gpu_sim_server,gpu_sim_ctl,cuda-checkpoint,libcuda.so.1,libnvidia-ml.so.1}; do
    need_built "$program"
    need_only_libc "$BUILD/bin/$program"
    install -m 755 "$BUILD/bin/$program" "$ROOT/gpu-tests/$program"
    strip --strip-unneeded "$ROOT/gpu-tests/$program"
  done
  install -m 644 "$REPO_ROOT"/tests/gpu_jobs/*.py "$ROOT/gpu-tests/"
  install -m 755 "$REPO_ROOT"/scripts/gpu_{check,lent_machine}.sh "$ROOT/"
  install -m 644 "$REPO_ROOT/scripts/gpu_check_figures.sh" "$ROOT/"
fi
for package in "${LINKED_PACKAGES[@]}"; do
  notice=/usr/share/doc/$package/copyright
  if [[ -r $notice ]]; then install -Dm644 "$notice" "$ROOT/share/doc/$package/copyright"; fi
done
cat >"$ROOT/README" <<README
Rekindle $VERSION, relocatable: unpack anywhere, then run bin/rekindle. Nothing needs to be installed.

  bin/rekindle doctor                     what this machine lacks, if anything
  bin/rekindle ckpt PID -t name:tag       freeze a running job into the store
  bin/rekindle restore name:tag           bring it back

The daemon, with which users who are not root can do it, too. As root in this folder, where the bundle is to stay:

  sed "s|@BUNDLE@|\$PWD|" share/systemd/rekindled.service >/etc/systemd/system/rekindled.service
  systemctl daemon-reload && systemctl enable --now rekindled

Where units and scripts look for programs, as those in share/ do:

  ln -sf "\$PWD"/bin/rekindle "\$PWD"/bin/rekindle-slurm /usr/local/bin/

The unit and the links name this folder: after an upgrade make it anew in the folder of the new bundle, in the same way, and then

  systemctl daemon-reload && systemctl restart rekindled

Links, and PATH, lead to the old one until they are changed, too. It may go once no job runs, and no image is kept, that has
loaded its hook.

bin/rekindle-slurm runs a command in a Slurm job that goes on after a preemption (--help; it looks for rekindle in PATH),
share/examples has a batch script and a systemd unit for it, and a timer that removes old images. man -M share/man rekindle,
and rekindle-fn, rekindle-gpu, rekindle-group and rekindled. share/doc/rekindle has the documents that messages name
(docs/functions.md and others), share/completions those of shells.

PYTHONPATH=lib/rekindle/python is the runtime hook for Python, NODE_PATH=lib/rekindle/node the one for Node.js,
lib/rekindle/librekindle_hook.so the one for C. lib/rekindle/runtimes has the Lambda runtimes.

Keep the folders together; symbolic links to bin/rekindle work. criu/ is CRIU under its own licence (GPL 2; sources:
the Debian packages listed in criu/packages.txt); the notices of the libraries are in share/doc and criu/usr/share/doc.
README

case $OUTPUT in
  *.tar.zst) COMPRESS=(zstd -q -T0 "-$LEVEL" -c) ;;
  *.tar.gz) COMPRESS=(gzip -9 -n -c) ;;
  *) die "$OUTPUT must end in .tar.zst or .tar.gz" ;;
esac
mkdir -p "$(dirname "$OUTPUT")"
tar -C "$WORK" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$(date +%s)}" \
  -cf - "$NAME" | "${COMPRESS[@]}" >"$OUTPUT.tmp"
mv "$OUTPUT.tmp" "$OUTPUT"
note "$OUTPUT ($(du -h "$OUTPUT" | cut -f1))"
