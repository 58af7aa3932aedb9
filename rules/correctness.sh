#!/usr/bin/env bash
# Nothing is measured with incorrect instruments or incorrect code: run the numeric tests of the instruments, and those in
# tests/TEST.py, on this machine's devices, once for each version of the tests, of the code they import, of PyTorch,
# Triton and the driver, and for each GPU model. FOLDER remembers what has passed.
#   rules/correctness.sh FOLDER [TEST ...]
set -euo pipefail
passed=$1
shift
for test in test_instruments "$@"; do
    # Computed here, not by the rule: as a parameter of the job, it would make every edit of the tests measure again.
    stamp="$passed/$(python -m cs336_systems.measure.gate "$test").txt"
    if [ -e "$stamp" ]; then continue; fi
    mkdir -p "$passed"
    status=0
    python -m pytest -q -m numeric -p no:cacheprovider "tests/$test.py" >"$stamp.log" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then
        cat "$stamp.log" >&2
        reason="The code is incorrect on this machine"
        if [ "$status" -eq 137 ]; then reason="The tests were killed (SIGKILL), as by the kernel when memory runs out"; fi
        echo "$reason, so nothing was measured with it: tests/$test.py" >&2
        exit 1
    fi
    mv "$stamp.log" "$stamp"
done
