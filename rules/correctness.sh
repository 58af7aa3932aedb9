#!/usr/bin/env bash
# Run the numeric tests of the instruments and of the named modules (a.b is tests/a/b.py) on this machine's devices, so
# that nothing is measured with incorrect code. They run once for each version of the tests, of the code they import, of
# PyTorch, Triton and the driver, and for each GPU model; results/MACHINE/correctness remembers which have passed. On
# another kind of machine than MACHINE, this fails.
#   rules/correctness.sh results/MACHINE/correctness [all | TEST ...]
set -euo pipefail
passed=$1
machine=$(basename "$(dirname "$passed")")
shift
mkdir -p "$passed"
# When the run made this file, it tested the code of all its jobs. Unless code was edited since, nothing is tested again;
# even computing the stamps takes longer than many jobs.
tested=${CS336_SYSTEMS_TESTED:-}
if [ -e "$tested" ] && [ -z "$(find cs336_systems tests -name '*.py' -newercm "$tested" -print -quit)" ]; then exit; fi
tests=() stamps=()
# Stamps are computed here, not by the rule: as parameters of the job, they would make every edit of the tests measure again.
names=$(python -m cs336_systems.run.gate "$machine" test_instruments "$@")
for name in $names; do
    if [ ! -e "$passed/$name.txt" ]; then
        test=${name%-*-*}
        tests+=("tests/${test//.//}.py")
        stamps+=("$passed/$name.txt")
    fi
done
if [ "${#tests[@]}" = 0 ]; then exit; fi
log="$passed/last.log"
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
# One thread per process, since several ranks share the processor. The time limit only ends hanging tests: a busy host makes
# tests slow. Wide columns, so that the summary names the exceptions of failed tests.
run() { COLUMNS=1000 OMP_NUM_THREADS=1 python -m pytest -q -m numeric -o cache_dir="$cache" -o timeout=1800 "$@" "${tests[@]}" >"$log" 2>&1; }
# Tests run in parallel, because most of their time is compilation. A worker takes neighbouring tests, which share slow
# fixtures, and then steals from others. Failed tests run again alone, since parallel tests share the GPUs' time and memory,
# and some GPUs admit only one process. Not on two cores: most tests have two ranks, and starting a worker's processes takes
# ten seconds.
workers=()
if [ "${#tests[@]}" -gt 1 ] && [ "$(getconf _NPROCESSORS_ONLN)" -gt 2 ]; then
    workers=(--numprocesses=auto --maxprocesses=8 --dist=worksteal)
fi
status=0
run "${workers[@]}" || run --last-failed || status=$?
if [ "$status" -ne 0 ]; then
    cat "$log" >&2
    reason="The code is incorrect on this machine"
    failed=$(grep -E '^(FAILED|ERROR) ' "$log" || true)
    if [ -n "$failed" ] && ! grep -qv 'OutOfResources: ' <<<"$failed"; then reason="A kernel does not fit this GPU"; fi
    if [ "$status" -gt 128 ]; then reason="The tests were ended by SIG$(kill -l "$status")"; fi
    if [ "$status" -eq 137 ]; then reason+=", probably because memory ran out"; fi
    echo "$reason, so nothing was measured with it: ${tests[*]}" >&2
    exit 1
fi
touch "${stamps[@]}"
