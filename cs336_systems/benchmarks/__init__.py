"""Measurements: one module per experiment, run as `python -m cs336_systems.benchmarks NAME`."""

import itertools
import sys

for _option, _argument in itertools.pairwise(sys.orig_argv):
    if _option == "-m" and _argument.startswith(f"{__name__}."):  # its module would end without a word
        print(f"{_argument} has no command line; allowed: python -m {__name__} NAME [OPTIONS]", file=sys.stderr)
        sys.exit(2)
