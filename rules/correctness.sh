#!/usr/bin/env bash
# Nothing is measured with wrong code: run the numeric tests of TEST... on this machine's devices, once for a STAMP.
#   rules/correctness.sh STAMP [TEST...]
set -euo pipefail
stamp=$1
shift
if [ $# -eq 0 ] || [ -e "$stamp" ]; then exit 0; fi
mkdir -p "$(dirname "$stamp")"
if python -m pytest -q -m numeric -p no:cacheprovider "$@" >"$stamp.log" 2>&1; then
    mv "$stamp.log" "$stamp"
else
    cat "$stamp.log" >&2
    echo "The code is wrong on this machine, so nothing was measured with it: $*" >&2
    exit 1
fi
