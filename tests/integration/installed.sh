#!/usr/bin/env bash
# Runs a command, such as other tests, on an installation instead of the build folder: `cmake --install` to a folder of
# its own, with programs and libraries where a user has them.
#   tests/integration/installed.sh BUILD_FOLDER COMMAND [ARGUMENT...]
set -euo pipefail

BUILD=${1:?build folder}
shift
FOLDER=$(mktemp -d /var/tmp/rekindle-installed.XXXXXX)
trap 'rm -rf "$FOLDER"' EXIT
chmod 755 "$FOLDER"
cmake --install "$BUILD" --prefix "$FOLDER/usr" >"$FOLDER/install.log" || { cat "$FOLDER/install.log"; exit 1; }
# Another installation from this build folder makes another one.
cp "$BUILD/install_manifest.txt" "$FOLDER/manifest"
DAEMON=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$FOLDER/usr/lib/systemd/system/rekindled.service")
[[ $DAEMON == "$FOLDER/usr/sbin/rekindled" ]] || { echo "the unit starts '$DAEMON', which is not what was installed" >&2; exit 1; }
# The tests look for both programs in one folder, and for the hook beside it. They find their own place through links.
mkdir -p "$FOLDER/tested/bin"
ln -s "$FOLDER/usr/bin/rekindle" "$FOLDER/usr/sbin/rekindled" "$FOLDER/tested/bin/"
ln -s "$FOLDER/usr/lib" "$FOLDER/tested/hook"
REKINDLE_BIN_DIR=$FOLDER/tested/bin "$@"

# As docs/upgrading.md says it is removed. The manifest is CMake's, which writes no newline at its end.
! grep -v "^$FOLDER/usr/" "$FOLDER/manifest" || { echo "that is not in $FOLDER/usr" >&2; exit 1; }
xargs rm <"$FOLDER/manifest"
LEFT=$(find "$FOLDER/usr" ! -type d)
[[ -z $LEFT ]] || { echo "the manifest does not name: $LEFT" >&2; exit 1; }
