#!/usr/bin/env bash
# The man pages and the three shell completions know every command and option that the programs have, and no others.
#   packaging/docs_match_test.sh PATH_OF_REKINDLE PATH_OF_REKINDLED
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"

REKINDLE=${1:?path of rekindle} REKINDLED=${2:?path of rekindled}
cd "$REPO_ROOT/packaging"
COMMANDS=(doctor run stop attach ckpt restore ps top ls inspect diff rm working-set prune gc fsck quota stats gpu template group fn deps sim copy export import version)
GPU_COMMANDS=(ps park resume swap lease release)
TEMPLATE_COMMANDS=(up down ls start)
GROUP_COMMANDS=(ckpt restore ls rm resolve)
WORKING_SET_COMMANDS=(drop)
FN_COMMANDS=(deploy invoke ls logs rm stats)
DEPS_COMMANDS=(build ls rm)
FAILURES=0

# has FILE PATTERN WHAT
has() {
  grep -qE -- "$2" "$1" || { echo "$1 does not know $3"; ((++FAILURES)); }
}

# Only the lines that describe an option: examples may show options of other programs.
options_of() { "$@" --help | grep -E '^ +-' | grep -oE -- '--[a-z][a-z-]+' | sort -u; }

# man_describes_only PAGE OPTION...
man_describes_only() {
  local page=$1 option
  shift
  while read -r option; do
    [[ " $* " == *" $option "* ]] || { echo "$page describes $option, which does not exist"; ((++FAILURES)); }
  done < <(grep -oE 'Fl Fl [a-z][a-z-]+' "$page" | sed 's/Fl Fl /--/' | sort -u)
}

for command in "${COMMANDS[@]}"; do
  "$REKINDLE" "$command" --help >/dev/null || { echo "rekindle $command --help failed"; ((++FAILURES)); }
  has man/rekindle.1 "Cm $command( |\$)" "the command $command"
  for completion in completions/rekindle.bash completions/_rekindle completions/rekindle.fish; do
    has "$completion" "(^|[^-a-z])$command([^-a-z]|\$)" "the command $command"
  done
done

# knows_subcommands COMMAND SUBCOMMAND...
knows_subcommands() {
  local command=$1 subcommand
  shift
  for subcommand in "$@"; do
    "$REKINDLE" "$command" "$subcommand" --help | grep -q "^Usage: rekindle $command $subcommand" ||
      { echo "rekindle $command $subcommand --help does not describe it"; ((++FAILURES)); }
    has man/rekindle.1 "Cm $command $subcommand( |\$)" "the command $command $subcommand"
    for completion in completions/rekindle.bash completions/_rekindle completions/rekindle.fish; do
      has "$completion" "(^|[^-a-z])$subcommand([^-a-z]|\$)" "the command $command $subcommand"
    done
  done
}
knows_subcommands gpu "${GPU_COMMANDS[@]}"
knows_subcommands template "${TEMPLATE_COMMANDS[@]}"
knows_subcommands group "${GROUP_COMMANDS[@]}"
knows_subcommands working-set "${WORKING_SET_COMMANDS[@]}"
knows_subcommands fn "${FN_COMMANDS[@]}"
knows_subcommands deps "${DEPS_COMMANDS[@]}"

mapfile -t OPTIONS < <({
  options_of "$REKINDLE"
  for command in "${COMMANDS[@]}"; do options_of "$REKINDLE" "$command"; done
  for command in "${GPU_COMMANDS[@]}"; do options_of "$REKINDLE" gpu "$command"; done
  for command in "${TEMPLATE_COMMANDS[@]}"; do options_of "$REKINDLE" template "$command"; done
  for command in "${GROUP_COMMANDS[@]}"; do options_of "$REKINDLE" group "$command"; done
  for command in "${WORKING_SET_COMMANDS[@]}"; do options_of "$REKINDLE" working-set "$command"; done
  for command in "${FN_COMMANDS[@]}"; do options_of "$REKINDLE" fn "$command"; done
  for command in "${DEPS_COMMANDS[@]}"; do options_of "$REKINDLE" deps "$command"; done
} | sort -u)
((${#OPTIONS[@]} > 10)) || { echo "rekindle --help lists hardly any options"; ((++FAILURES)); }
for option in "${OPTIONS[@]}"; do
  name=${option#--}
  has man/rekindle.1 "Fl Fl $name( |\$)" "$option"
  has completions/rekindle.bash "$option([ '=]|\$)" "$option"
  has completions/_rekindle "$option([^a-z-]|\$)" "$option"
  has completions/rekindle.fish "-l $name( |\$)" "$option"
done
man_describes_only man/rekindle.1 "${OPTIONS[@]}"

mapfile -t OPTIONS < <(options_of "$REKINDLED")
for option in "${OPTIONS[@]}"; do
  has man/rekindled.8 "Fl Fl ${option#--}( |\$)" "$option"
done
man_describes_only man/rekindled.8 "${OPTIONS[@]}"
((FAILURES == 0))
