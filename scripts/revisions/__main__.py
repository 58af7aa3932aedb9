"""Compare the measured code with cs336_systems/revisions.yaml, which has the revision of each unit.

Launch: python -m scripts.revisions [{accept,bump} NAME ...]

Without arguments it names the units whose code differs from their revision. `bump` raises their revisions, which makes
their rows stale; `accept` keeps them, for changes that cannot affect measurements. NAME is an experiment, a contender
(flash/triton) or an instrument, or a pattern for several ('flash/*').
"""

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from cs336_systems.experiments.registry import KINDS
from cs336_systems.record.revisions import FIRST, LOCK, Unit, read_lock
from scripts.revisions.measured_code import ALL, Place, digest, modules_below, reach

BENCHMARKS = "cs336_systems.benchmarks"
COMPARISON = f"{BENCHMARKS}.comparison"
INSTRUMENTS = {
    # The measurement of any cell: one after another, with the state of the GPU, as rows.
    "runner": (
        *(f"{BENCHMARKS}.runner", "cs336_systems.measure.gpu_state", "cs336_systems.record.measurement"),
        *("cs336_systems.experiments.base", "cs336_systems.experiments.contender", "cs336_systems.implementations"),
        *("cs336_systems.sizes", "cs336_systems.measure.dtypes", "cs336_systems.accounting.units"),
        *("cs336_systems.ranges", "cs336_systems.adapters", "cs336_systems.folder_modules"),
    ),
    "timing": tuple(f"cs336_systems.measure.{name}" for name in ("timing", "device_busy", "intervals", "profiler")),
    "memory": ("cs336_systems.measure.memory", "cs336_systems.measure.saved_tensors"),
    "model": ("cs336_systems.model", "cs336_systems.training_step"),
    "flash_kernels": ("cs336_systems.attention",),
    "fp8": tuple(f"cs336_systems.training.{name}" for name in ("fp8", "fp8_swiglu", "triton_fp8_swiglu", "spare_sms")),
    "plain_attention": ("cs336_systems.attention.plain",),
    "exact_attention": (f"{COMPARISON}.exact_attention", f"{COMPARISON}.refusal"),
    # Interleaved training on several ranks.
    "comparison": (COMPARISON, "cs336_systems.measure.overlap"),
    # Units that use these cover the parts that they use.
    "": (
        *(f"{COMPARISON}.builders", f"{COMPARISON}.attention_builders"),
        *(f"cs336_systems.attention.{name}" for name in ("autocast", "chip", "differentiation", "operators", "tiled")),
        "cs336_systems.attention.recomputation",
    ),
}
"""Shared instruments: modules and packages that belong to them, the longer name first."""
NOT_MEASURED = "description"
OTHERS = {"kernel_trace": Place("cs336_systems.artifacts.kernel_trace", "write_trace")}
"""Measured code that is not an experiment."""
DESCRIBE = ("cs336_systems.experiments.metrics", "cs336_systems.measure.gpus")
"""Modules that only describe measurements, and the machines that they are from."""
HEADER = """\
# Revisions of the measured code, with the instruments that it uses and a digest of its syntax trees, by
# `python -m scripts.revisions`. Rows carry the revisions that made them.
"""


def instrument_of(module: str) -> str:
    """The instrument that a module belongs to, or an empty string."""
    owners = {owned: name for name, modules in INSTRUMENTS.items() for owned in modules}
    parts = module.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((owners[prefix] for prefix in prefixes if prefix in owners), "")


def all_roots() -> dict[str, list[Place]]:
    """Where the code of each unit begins, by its name: an experiment's at its parameters and what measures them."""
    instruments = {name: [*map(_whole, _modules_of(name))] for name in filter(None, INSTRUMENTS)}
    runner = Place(f"{BENCHMARKS}.runner", "measure_cells")
    experiments = {
        name: [Place(f"{BENCHMARKS}.{name}", "measure"), Place(kind.__module__, kind.__name__), runner]
        for name, kind in sorted(KINDS.items())
    }
    contenders = {
        f"{name}/{contender.name}": [Place(*contender.builder.split(":"))]
        for name, kind in sorted(KINDS.items())
        for contender in getattr(kind, "contenders", ())
    }
    return {**instruments, **experiments, **{name: [place] for name, place in OTHERS.items()}, **contenders}


def _whole(module: str) -> Place:
    return Place(module, ALL)


def _modules_of(instrument: str) -> list[str]:
    names = {module for owned in INSTRUMENTS[instrument] for module in modules_below(owned)}
    return sorted(module for module in names if instrument_of(module) == instrument)


def present_units(lock: dict[str, Unit]) -> dict[str, Unit]:
    """All units of the current code, with the revisions from the lock."""
    units = {}
    for name, roots in all_roots().items():
        statements, uses = reach(roots, partial(_other_instrument, name))
        revision = lock[name].revision if name in lock else FIRST
        units[name] = Unit(revision, tuple(sorted(uses - {NOT_MEASURED})), digest(statements))
    return units


def _other_instrument(unit: str, module: str) -> str:
    """The instrument of a module that a unit reaches, or an empty string if the module belongs to the unit."""
    if module in DESCRIBE:
        return NOT_MEASURED
    instrument = instrument_of(module)
    return instrument if instrument != unit else ""


def changed(lock: dict[str, Unit], units: dict[str, Unit]) -> list[str]:
    """The units that differ from the lock, and those that exist only in the code or in the lock."""
    return sorted(name for name in lock.keys() | units.keys() if lock.get(name) != units.get(name))


def explanation(names: Sequence[str]) -> str:
    """Explain how to handle changed units, in one sentence; empty if there are none."""
    if not names:
        return ""
    return (
        f"the code of {', '.join(names)} differs from its revision in {LOCK.name}: run `python -m scripts.revisions "
        "bump NAME ...` for code whose measurements may change, and `python -m scripts.revisions accept NAME ...` for"
        " the rest"
    )


def write(units: dict[str, Unit], file: Path = LOCK) -> None:
    """Write the lock, a line for each unit, so that branches seldom change the same one."""
    lines = [
        f'{name}: {{revision: {unit.revision}, uses: [{", ".join(unit.uses)}], digest: "{unit.digest}"}}\n'
        for name, unit in units.items()
    ]
    file.write_text(HEADER + "".join(lines), encoding="utf-8")


def revise(action: str, patterns: Sequence[str], file: Path = LOCK) -> list[str]:
    """Accept or bump the units that match, and return their names; new units begin at revision 1.

    Raises:
        ValueError: a pattern that no unit matches.
    """
    lock = read_lock(file) if file.exists() else {}
    units = present_units(lock)
    chosen = {name for name in {**units, **lock} if any(fnmatch(name, pattern) for pattern in patterns)}
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in chosen):
            raise ValueError(f"the unit is {pattern!r}; allowed: {', '.join(units)}")
    revised = {name: unit for name, unit in units.items() if name in chosen}
    if action == "bump":
        revised |= {name: unit._replace(revision=unit.revision + 1) for name, unit in revised.items() if name in lock}
    kept = {name: unit for name, unit in lock.items() if name not in chosen}
    write({name: {**kept, **revised}[name] for name in {**units, **lock} if name in kept or name in revised}, file)
    read_lock.cache_clear()
    return sorted(chosen)


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SystemExit: units have changed, or a name is unknown.
    """
    parser = argparse.ArgumentParser(
        prog="python -m scripts.revisions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", nargs="?", choices=["accept", "bump"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    if options.action and not options.names:
        parser.error(f"{options.action} needs at least one NAME")
    if options.action:
        try:
            revise(options.action, options.names)
        except ValueError as error:
            parser.error(str(error))
    lock = read_lock() if LOCK.exists() else {}
    sys.exit(explanation(changed(lock, present_units(lock))) or None)


if __name__ == "__main__":
    main(sys.argv[1:])
