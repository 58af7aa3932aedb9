"""Stamps of the correctness gate, which identify the versions and the hardware on which tests have passed.

Launch: python -m cs336_systems.run.gate nvidia-h200 test_model parallel.test_fsdp, which prints the stamps of
tests/test_model.py and tests/parallel/test_fsdp.py here, one per line; `all` stands for every experiment's tests.
"""

import hashlib
import sys

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.machine import Machine, detect, machine_label, version_of
from cs336_systems.record.source import DIGEST_CHARACTERS, source_digest

DECIDE = ("torch", "triton", "numpy", "nvidia-nccl-cu13")
"""Packages whose versions can change whether the tests pass."""


def environment_digest(machine: Machine) -> str:
    """A digest of the GPUs (or the processor), the driver, Python and the packages that compute."""
    versions = [f"{package} {version_of(package)}" for package in DECIDE]
    words = [machine.name, str(len(machine.gpus)), machine.driver, sys.version, *versions]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:DIGEST_CHARACTERS]


def stamp(test: str) -> str:
    """Name the stamp of a module of `tests`, by digests of the tests, their imports, and the environment."""
    return f"{test}-{source_digest(f'tests.{test}')}-{environment_digest(detect())}"


def all_tests() -> list[str]:
    """List the numeric tests of all experiments."""
    return sorted({test for experiment in EXPERIMENTS.values() for test in experiment.numeric_tests})


def check_machine(planned: str, machine: Machine) -> None:
    """Check that this is the machine for which the run was planned: a cluster's login node plans for other nodes.

    Raises:
        ValueError: it has another GPU, or none; the sentence names both.
    """
    if planned not in (machine_label(""), machine.label):
        where = "see the key machine in config.yaml, or in profiles/slurm/nodes.yaml"
        raise ValueError(f"the run was planned for {planned}, but this is {machine.label}; {where}")


if __name__ == "__main__":
    planned, *tests = sys.argv[1:]
    try:
        check_machine(planned, detect())
    except ValueError as error:
        sys.exit(str(error))
    named = [name for test in tests for name in (all_tests() if test == "all" else [test])]
    print(*map(stamp, named), sep="\n")
