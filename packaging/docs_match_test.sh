#!/usr/bin/env bash
# The man pages and the three shell completions know every command with its options, and no others.
#   packaging/docs_match_test.sh PATH_OF_REKINDLE PATH_OF_REKINDLED
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"

REKINDLE=${1:?path of rekindle} REKINDLED=${2:?path of rekindled}
cd "$REPO_ROOT/packaging"
FAILURES=0

fail() {
  echo "$*"
  ((++FAILURES))
}

# has FILE PATTERN WHAT
has() { grep -qE -- "$2" "$1" || fail "$1 does not know $3"; }

# options_of HELP: those that it describes, not what examples and descriptions mention.
options_of() { grep -oE '^ +-[^ ]*' <<<"$1" | grep -oE -- '--[a-z][a-z-]+' | grep -vx -- --help | sort -u; }

commands_of() { awk '/^Subcommands:/ { inside = 1; next } /^$/ { inside = 0 } inside { print $1 }' <<<"$1"; }

# Each of these prints the options that a file knows for the command `rekindle WORDS...`.
man_options() {
  awk -v head="Nm (rekindle )?Cm $*( [A-Z]|\$)" '
    /^\.(It )?Nm (rekindle )?Cm / { inside = $0 ~ head }
    /^\.Sh / { inside = 0 }
    inside' man/rekindle*.1 | grep -oE 'Fl Fl [a-z][a-z-]+' | sed 's/Fl Fl /--/' | sort -u
}

bash_options() (
  # shellcheck disable=SC2317  # the completion calls it
  rekindle() { :; }
  # shellcheck source=/dev/null
  source completions/rekindle.bash
  # shellcheck disable=SC2034  # the completion reads them
  COMP_WORDS=(rekindle "$@" --) COMP_CWORD=$(($# + 1))
  _rekindle
  printf '%s\n' "${COMPREPLY[@]}" | sort -u
)

# The branch of the command, or of its subcommand, is found by how far it is indented.
zsh_options() {
  awk -v words="$*" '
    function names(line) { sub(/^ +/, "", line); sub(/\).*/, "", line); gsub(/ /, "", line); return "|" line "|" }
    BEGIN { split(words, word, " ") }
    /^  (timeline|copy)=\(/ { array = $1; sub(/=.*/, "", array) }
    array != "" { arrays[array] = arrays[array] $0 }
    /\)$/ && array != "" { array = "" }
    /^        [^ ]/ { inside = index(names($0), "|" word[1] "|"); branch = "" }
    !inside { next }
    word[2] != "" && /^            [^ ]/ { branch = names($0) }
    word[2] == "" || branch == "|*|" && !found || index(branch, "|" word[2] "|") {
      if (index(branch, "|" word[2] "|")) found = 1
      text = $0
      gsub(/\$timeline/, arrays["timeline"], text)
      gsub(/\$copy/, arrays["copy"], text)
      print text
    }' completions/_rekindle | grep -oE -- '--[a-z][a-z-]+' | sort -u
}

fish_options() {
  awk -v words="$*" '
    function holds(condition,   clauses, i, n, list, j, m, seen, negated) {
      n = split(condition, clauses, "; and ")
      for (i = 1; i <= n; ++i) {
        negated = sub(/^not /, "", clauses[i])
        m = split(clauses[i], list, " ")
        seen = 0
        for (j = 2; j <= m; ++j) if (index(" " words " ", " " list[j] " ")) seen = 1
        if (seen == negated) return 0
      }
      return 1
    }
    /^for command in / { $1 = $2 = $3 = ""; loop = $0 }
    /^end/ { loop = "" }
    match($0, / -n ("[^"]*"|\047[^\047]*\047)/) {
      condition = substr($0, RSTART + 5, RLENGTH - 6)
      if (match($0, / -l [a-z-]+/)) {
        option = "--" substr($0, RSTART + 4, RLENGTH - 4)
        sub(/\$command/, loop, condition)
        if (holds(condition)) print option
      }
    }' completions/rekindle.fish | sort -u
}

# compare WHAT HAS WANTED: two lists of options, one a line.
compare() {
  local option
  while read -r option; do
    [[ -z $option ]] || fail "$1 does not know $option"
  done < <(comm -13 <(echo "$2") <(echo "$3"))
  while read -r option; do
    [[ -z $option ]] || fail "$1 has $option, which does not exist there"
  done < <(comm -23 <(echo "$2") <(echo "$3"))
}

# check_command COMMAND [SUBCOMMAND]
check_command() {
  local command=$* help wanted shell subcommand subcommands
  help=$("$REKINDLE" "$@" --help) || fail "rekindle $command --help failed"
  grep -qE "^Usage: rekindle $command( |\$)" <<<"$help" || fail "rekindle $command --help does not describe it"
  wanted=$(options_of "$help") || true  # it may have none
  ALL+=$'\n'$wanted
  for shell in rekindle.bash _rekindle rekindle.fish; do
    has "completions/$shell" "(^|[^-a-z])${*: -1}([^-a-z]|\$)" "the command $command"
  done
  compare "completions/rekindle.bash: $command" "$(bash_options "$@" | grep -vxF -- "$GLOBALS"$'\n--help')" "$wanted"
  subcommands=$(commands_of "$help")
  if [[ -z $subcommands ]]; then
    compare "completions/_rekindle: $command" "$(zsh_options "$@")" "$wanted"
    compare "completions/rekindle.fish: $command" "$(fish_options "$@")" "$wanted"
    grep -qE "Nm (rekindle )?Cm $command( [A-Z]|\$)" man/rekindle*.1 || fail "no manual page knows the command $command"
    # Its text may name options of other commands.
    compare "manual pages: $command" "$(man_options "$@" | grep -xF -- "$wanted")" "$wanted"
  fi
  for subcommand in $subcommands; do check_command "$@" "$subcommand"; done
}

HELP=$("$REKINDLE" --help)
GLOBALS=$(options_of "$HELP")
ALL=$GLOBALS
COMMANDS=$(commands_of "$HELP")
(($(wc -w <<<"$GLOBALS") > 5 && $(wc -w <<<"$COMMANDS") > 20)) || fail "rekindle --help lists hardly anything"
compare completions/rekindle.bash "$(bash_options | grep -vx -- --help)" "$GLOBALS"
for command in $COMMANDS; do check_command "$command"; done

# man_has_only PAGE OPTIONS
man_has_only() {
  local option
  while read -r option; do
    grep -qx -- "$option" <<<"$2"$'\n--help' || fail "$1 describes $option, which does not exist"
  done < <(grep -oE 'Fl Fl [a-z][a-z-]+' "$1" | sed 's/Fl Fl /--/' | sort -u)
}
for option in $GLOBALS; do
  has man/rekindle.1 "Fl Fl ${option#--}( |\$)" "$option"
  has completions/_rekindle "$option([^a-z-]|\$)" "$option"
  has completions/rekindle.fish "^complete -c rekindle (-s . )?-l ${option#--}( |\$)" "$option"
done
for page in man/rekindle*.1; do man_has_only "$page" "$ALL"; done

DAEMON=$(options_of "$("$REKINDLED" --help)")
for option in $DAEMON; do has man/rekindled.8 "Fl Fl ${option#--}( |\$)" "$option"; done
man_has_only man/rekindled.8 "$DAEMON"
# Of several in one line each would be shown within the one before.
while read -r line; do fail "one .Op a line: $line"; done < <(grep -nE 'Op .* Op ' man/*.[18] | grep -vF 'clone Op Ar options')
((FAILURES == 0))
