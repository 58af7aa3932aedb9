#!/usr/bin/env bash
# No incorrect code is measured: run the numeric tests in tests/TEST.py on this machine's devices, once for each version
# of the tests and of the code they import. FOLDER remembers what has passed.
#   rules/correctness.sh FOLDER [TEST ...]
set -euo pipefail
passed=$1
shift
for test in "$@"; do
    # Computed here, not by the rule: as a parameter of the job, it would make every edit of the tests measure again.
    digest=$(python -c 'import sys; from cs336_systems.measure.source import source_digest as d; print(d(sys.argv[1]))' "tests.$test")
    stamp="$passed/$test-$digest.txt"
    if [ -e "$stamp" ]; then continue; fi
    mkdir -p "$passed"
    if ! python -m pytest -q -m numeric -p no:cacheprovider "tests/$test.py" >"$stamp.log" 2>&1; then
        cat "$stamp.log" >&2
        echo "The code is incorrect on this machine, so nothing was measured with it: tests/$test.py" >&2
        exit 1
    fi
    mv "$stamp.log" "$stamp"
done
