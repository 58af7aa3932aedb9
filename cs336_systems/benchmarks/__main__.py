"""Measure an experiment's cells, and write or print their rows.

Launch: python -m cs336_systems.benchmarks NAME [OPTIONS], or with torchrun for several processes
"""

import importlib
import sys

from cs336_systems.experiments.registry import KINDS

if __name__ == "__main__":
    name = "".join(sys.argv[1:2])
    allowed = ", ".join(sorted(KINDS))
    if name in ("-h", "--help"):
        print(
            f"cs336-systems measure NAME [OPTIONS]; --help after NAME lists its options.\n\nNAME is one of {allowed}."
        )
        sys.exit()
    if name not in KINDS:
        print(f"cs336-systems: measure: the experiment is {name!r}; allowed: {allowed}", file=sys.stderr)
        sys.exit(2)
    del sys.argv[1]
    measure = importlib.import_module(f"cs336_systems.benchmarks.{name}").measure
    from cs336_systems.benchmarks.command_line import main

    main(KINDS[name], measure)
