#!/usr/bin/env bash
# Nothing is measured with incorrect instruments or incorrect code: run the numeric tests of the instruments, and those in
# tests/TEST.py, on this machine's devices, once for each version of the tests, of the code they import, of PyTorch,
# Triton and the driver, and for each GPU model. results/MACHINE/correctness remembers what has passed. On another kind of
# machine nothing is measured either.
#   rules/correctness.sh results/MACHINE/correctness [TEST ...]
set -euo pipefail
passed=$1
machine=$(basename "$(dirname "$passed")")
shift
for test in test_instruments "$@"; do
    # Computed here, not by the rule: as a parameter of the job, it would make every edit of the tests measure again.
    stamp=$(python -m cs336_systems.measure.gate "$machine" "$test")
    stamp="$passed/$stamp.txt"
    if [ -e "$stamp" ]; then continue; fi
    mkdir -p "$passed"
    if ! python -m pytest -q -m numeric -p no:cacheprovider "tests/$test.py" >"$stamp.log" 2>&1; then
        cat "$stamp.log" >&2
        echo "The code is incorrect on this machine, so nothing was measured with it: tests/$test.py" >&2
        exit 1
    fi
    mv "$stamp.log" "$stamp"
done
