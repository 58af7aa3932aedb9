#!/usr/bin/env bash
# Nothing is measured with incorrect instruments or incorrect code: run the numeric tests of the instruments, and of the
# named modules (a.b is tests/a/b.py), on this machine's devices, once for each version of the tests, of the code they
# import, of PyTorch, Triton and the driver, and for each GPU model. results/MACHINE/correctness remembers what has
# passed. On another kind of machine nothing is measured either.
#   rules/correctness.sh results/MACHINE/correctness [all | TEST ...]
set -euo pipefail
passed=$1
machine=$(basename "$(dirname "$passed")")
shift
mkdir -p "$passed"
# The run has tested the code of all its jobs since it made this file: only what has been edited since is tested again.
# To compute stamps takes longer than many jobs.
tested=${CS336_SYSTEMS_TESTED:-}
if [ -e "$tested" ] && [ -z "$(find cs336_systems tests -name '*.py' -newercm "$tested" -print -quit)" ]; then exit; fi
tests=() stamps=()
# Computed here, not by the rule: as a parameter of the job, stamps would make every edit of the tests measure again.
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
# One thread per process, since several ranks share the processor. A busy host makes tests slow, not wrong: the limit only
# ends what hangs. Wide, so that the summary's lines of failed tests name their exceptions.
run() { COLUMNS=1000 OMP_NUM_THREADS=1 python -m pytest -q -m numeric -o cache_dir="$cache" -o timeout=1800 "$@" "${tests[@]}" >"$log" 2>&1; }
# Side by side: most of the time processors compile. A worker takes neighbours, which share what takes long to make, and then
# the rest of others'. What has failed runs again by itself, since GPUs are shared too: their time and memory, and some let
# in one process only. Not on two processors: most tests have two ranks, and each worker spends ten seconds on starting
# processes of its own.
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
    if [ "$status" -eq 137 ]; then reason+=", as by the kernel when memory runs out"; fi
    echo "$reason, so nothing was measured with it: ${tests[*]}" >&2
    exit 1
fi
touch "${stamps[@]}"
