#!/usr/bin/env bash
# Nothing is measured with wrong code: run the numeric tests of tests/TEST.py on this machine's devices, once for each
# form of the tests and of the code they import. What has passed is remembered in FOLDER.
#   rules/correctness.sh FOLDER [TEST]
set -euo pipefail
if [ $# -lt 2 ]; then exit 0; fi
# Worked out here, not by the rule: among a job's parameters it would measure again whatever tests were edited.
digest=$(python -c 'import sys; from cs336_systems.measure.source import source_digest as d; print(d(sys.argv[1]))' "tests.$2")
stamp="$1/$2-$digest.txt"
if [ -e "$stamp" ]; then exit 0; fi
mkdir -p "$1"
if python -m pytest -q -m numeric -p no:cacheprovider "tests/$2.py" >"$stamp.log" 2>&1; then
    mv "$stamp.log" "$stamp"
else
    cat "$stamp.log" >&2
    echo "The code is wrong on this machine, so nothing was measured with it: tests/$2.py" >&2
    exit 1
fi
