#!/usr/bin/env bash
# `rekindle sim` from end to end: makes a trace, plays it, and refuses what is wrong with an error that says what and where.
#   cli/sim_command_test.sh PATH_OF_REKINDLE
set -euo pipefail

REKINDLE=${1:?path of rekindle}
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
cd "$WORK"
# It must not look for a daemon.
export REKINDLE_HOST=unix:///nonexistent/rekindled.sock
FAILURES=0

fail() {
  echo "FAILED: $*"
  ((++FAILURES))
}

# refused STATUS TEXT ARGUMENT...
refused() {
  local wanted=$1 text=$2 status=0
  shift 2
  "$REKINDLE" sim "$@" >out 2>err || status=$?
  [[ $status == "$wanted" ]] || fail "sim $* ended with $status, not $wanted"
  grep -qF -- "$text" err || fail "sim $* does not say '$text' but: $(cat err)"
}

"$REKINDLE" sim --generate one --functions 120 --days 2 --seed 3 >out
grep -qE '^[0-9]+ invocations of 120 functions in [0-9]+ applications: 6 files in one$' out || fail "generate says: $(cat out)"
"$REKINDLE" --json sim --generate two --functions 120 --days 2 --seed 3 >out
python3 -c 'import json,sys; d = json.load(open("out")); assert len(d["files"]) == 6 and d["functions"] == 120, d' || fail "JSON of generate"
diff -r one two || fail "the same seed makes other files"

"$REKINDLE" sim --trace one/*.csv --memory 6G --plot sim.svg >out 2>err
[[ -s err ]] && fail "standard error has: $(cat err)"
for policy in none fixed snapshot hotswap rekindle; do grep -q "^$policy " out || fail "no line of $policy"; done
python3 -c 'import xml.dom.minidom as x; assert x.parse("sim.svg").documentElement.tagName == "svg"' || fail "the plot is no SVG"

# What can't be plotted is told before anything is simulated, or after the result.
refused 1 "nothing was simulated, for the plot can't be written to nowhere/sim.svg" --trace one/*.csv --plot nowhere/sim.svg
[[ -s out ]] && fail "a plot that can't be written: standard output has: $(cat out)"
refused 1 "nothing was simulated" --trace one/*.csv --plot one
ln -s /dev/full full.svg
refused 1 "the plot was not written" --trace one/*.csv --memory 6G --plot full.svg
grep -q "^rekindle " out || fail "the result is lost with the plot: $(cat out)"
refused 1 "cannot open the trace" --trace none.csv --plot unmade.svg
compgen -G 'unmade.svg*' && fail "a simulation that failed leaves a plot"
mkdir elsewhere
ln -s elsewhere/plot.svg link.svg
"$REKINDLE" sim --trace one/*.csv --memory 6G --policies none --plot link.svg >out
[[ -L link.svg && -s elsewhere/plot.svg ]] || fail "the plot took the place of a symbolic link"

"$REKINDLE" sim --trace one/*.csv --memory 6G --json >out
python3 - <<'PYTHON' || fail "JSON of a replay"
import json
d = json.load(open("out"))
p = {one["policy"]: one for one in d["policies"]}
assert list(p) == ["none", "fixed", "snapshot", "hotswap", "rekindle"]
for one in p.values():
    assert sum(one["starts"].values()) == d["invocations"], one["policy"]
    assert len(one["memory_bytes"]) == 2 * 144
assert p["none"]["starts"]["cold"] == d["invocations"]
assert 3 * p["rekindle"]["slow_starts"] <= p["snapshot"]["slow_starts"]
assert 10 * p["rekindle"]["slow_starts"] <= p["fixed"]["slow_starts"]
PYTHON

"$REKINDLE" sim --print-model --json >line
[[ $(wc -l <line) == 1 ]] || fail "JSON of a model is more than one line"
"$REKINDLE" sim --print-model >model.json
python3 -c 'import json; assert json.load(open("line")) == json.load(open("model.json"))' || fail "JSON of a model"
"$REKINDLE" sim --trace one/*.csv --memory 6G --json --model model.json >again
cmp out again || fail "the model that is printed is not the one that applies"
echo '{"warm_ms": 7}' >warm.json
"$REKINDLE" sim --trace one/*.csv --memory 6G --json --policies fixed --model warm.json >out
python3 -c 'import json; d = json.load(open("out")); [p] = d["policies"]; assert 6.9 < p["p50_ms"] < 7.1, p["p50_ms"]' || fail "--model has no effect"

refused 2 'give one of --trace'
refused 2 'give one of --trace' --trace one/*.csv --generate three
refused 2 'is no' --trace one/*.csv --memory lots
refused 2 '--functions' --generate three --functions 0
refused 2 "oracle not in" --trace one/*.csv --policies oracle
refused 1 "cannot open the trace 'none.csv'" --trace none.csv
refused 1 "none.json" --trace one/*.csv --model none.json
echo '{"warmth": 1}' >bad.json
refused 1 "model 'bad.json': there is no 'warmth'" --trace one/*.csv --model bad.json
echo '{"warm_ms": 1e300}' >bad.json
refused 1 "model 'bad.json': warm_ms must not be more than 1e+09" --trace one/*.csv --model bad.json
refused 2 "'nan' is no number above 0" --trace one/*.csv --slow-ms nan
printf 'HashOwner,HashApp,HashFunction,Trigger,1\n' >bad.csv
refused 1 'bad.csv:1: has 1 minutes' --trace bad.csv
INVOCATIONS=one/invocations_per_function_md.anon.d01.csv
{ head -2 "$INVOCATIONS"; sed -n 3p "$INVOCATIONS" | sed 's/,[0-9]*$/,many/'; } >bad.csv
refused 1 "bad.csv:3: minute 1440 is 'many'" --trace bad.csv
refused 1 'no file of invocations' --trace one/app_memory_percentiles.anon.d01.csv
((FAILURES == 0))
