#!/usr/bin/env bash
# The man page and the three shell completions know every command and option that the program has, and no others.
#   packaging/docs_match_test.sh PATH_OF_REKINDLE
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"

REKINDLE=${1:?path of rekindle}
cd "$REPO_ROOT/packaging"
COMMANDS=(doctor run ckpt restore ps ls inspect diff rm gc fsck stats export import version)
FAILURES=0

# has FILE PATTERN WHAT
has() {
  grep -qE -- "$2" "$1" || { echo "$1 does not know $3"; ((++FAILURES)); }
}

OPTIONS_OF_PROGRAM=()
# Only the lines that describe an option: examples may show options of other programs.
options_of() { "$REKINDLE" "$@" --help | grep -E '^ +-' | grep -oE -- '--[a-z][a-z-]+' | sort -u; }

for command in "${COMMANDS[@]}"; do
  "$REKINDLE" "$command" --help >/dev/null || { echo "rekindle $command --help failed"; ((++FAILURES)); }
  has man/rekindle.1 "Cm $command( |\$)" "the command $command"
  for completion in completions/rekindle.bash completions/_rekindle completions/rekindle.fish; do
    has "$completion" "(^|[^-a-z])$command([^-a-z]|\$)" "the command $command"
  done
done
for option in $({ options_of; for command in "${COMMANDS[@]}"; do options_of "$command"; done; } | sort -u); do
  OPTIONS_OF_PROGRAM+=("$option")
  name=${option#--}
  has man/rekindle.1 "Fl Fl $name( |\$)" "$option"
  has completions/rekindle.bash "$option([ '=]|\$)" "$option"
  has completions/_rekindle "--${name}([^a-z-]|\$)" "$option"
  has completions/rekindle.fish "-l $name( |\$)" "$option"
done
while read -r option; do
  [[ " ${OPTIONS_OF_PROGRAM[*]} " == *" $option "* ]] ||
    { echo "man/rekindle.1 describes $option, which no command has"; ((++FAILURES)); }
done < <(grep -oE 'Fl Fl [a-z][a-z-]+' man/rekindle.1 | sed 's/Fl Fl /--/' | sort -u)
((FAILURES == 0))
