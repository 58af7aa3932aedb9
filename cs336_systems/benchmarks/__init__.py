"""Measurements: one module per experiment, run as `python -m cs336_systems.benchmarks NAME`."""

import sys

for _argument in sys.orig_argv:
    if _argument.startswith(f"{__name__}."):  # its module would end without a word
        print(f"{_argument} has no command line; allowed: python -m {__name__} NAME [OPTIONS]", file=sys.stderr)
        sys.exit(2)
