"""Contents of the card's template: tiles, and tables of rates and facts."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from scripts.card.causes import percent
from scripts.card.lines import Facts, Key, Line
from scripts.card.verdict import Verdict
from scripts.rendering.markup import Table, Tile, Typst, escape, fixed_point, significant, with_unit

TITLES = {
    "matmul": "Matmuls, tokens × d_in × d_out",
    "memory": "Memory",
    "attention": "Causal attention, forward and backward, batch × heads × sequence × d",
    "launches": "Launches",
    "training": "Training step",
    "transfers": "Transfers between host and device",
    "all_reduce": "All-reduce",
}
UNITS = {"launches": (1e6, "M/s"), "training": (1e3, "k tokens/s")}
"""Units in which an instrument's rates are shown: a divisor, and the resulting unit."""
CPU_UNITS = {"launches": UNITS["launches"], "matmul": (1e-3, "GFLOP/s"), "attention": (1e-3, "GFLOP/s")}
FACTS = {
    "name": "name",
    "driver": "driver",
    "driver_cuda": "newest supported CUDA",
    "power_limit": "power limit, W",
    "default_power_limit": "default power limit, W",
    "max_sm_clock": "highest SM clock, MHz",
    "max_memory_clock": "highest memory clock, MHz",
    "slowdown_temperature": "slowdown temperature, °C",
    "persistence_mode": "persistence mode",
    "display": "display",
    "compute_mode": "compute mode",
    "mig": "MIG",
    "ecc": "ECC",
    "corrected_errors": "corrected memory errors",
    "uncorrected_errors": "uncorrectable memory errors",
    "remapped_rows": "remapped memory rows",
    "remapping_pending": "remapping pending",
    "remapping_failed": "remapping failed",
    "max_link_generation": "PCIe generation",
    "max_link_width": "PCIe lanes",
    "other_processes": "other processes",
    "idle_utilization": "busy before anything ran, %",
    "logical_cores": "logical cores",
    "threads": "PyTorch's threads",
    "governor": "frequency governor",
    "max_clock": "highest clock, MHz",
    "thermal_throttles": "thermal throttles since boot",
}
"""Facts in the order of the table, in words."""
TILES = {"matmul": "bf16", "memory": "copy", "attention": "", "training": ""}
"""Instruments of the tiles, with the prefixes of their workloads' names."""


def context(verdict: Verdict, picture: str) -> dict[str, Any]:
    """Everything that the template prints.

    Args:
        verdict: the verdict.
        picture: the figure as SVG; empty without one.
    """
    origin, count = verdict.rows[0], len(verdict.gpus)
    model = origin.gpu or origin.cpu
    return {
        "verdict": verdict,
        "origin": origin,
        "model": model,
        "title": f"{count} × {model}" if count > 1 else model,
        "seconds": origin.startup_seconds + sum(row.mean for row in verdict.rows if row.metric == "wall"),
        "recorded": max((line.expected.gpus for line in verdict.lines if line.expected), default=None),
        "picture": picture,
        "tiles": list(tiles(verdict.lines)),
        "rates": rates(verdict.lines, several=count > 1),
        "facts": facts([verdict.facts.get(gpu, {}) for gpu in verdict.gpus]),
    }


def with_crosses(work: str) -> str:
    """A workload's printed name."""
    return work.replace(" x ", " × ")


def shown_in(line: Line) -> tuple[float, str]:
    """The divisor and the unit that a line's rates are shown in."""
    units = UNITS if line.gpu else CPU_UNITS
    return units.get(line.instrument, (1.0, line.unit))


def tiles(lines: Iterable[Line]) -> Iterator[Tile]:
    """The largest rate of some instruments."""
    for instrument, beginning in TILES.items():
        of_this = [line for line in lines if line.instrument == instrument and line.work.startswith(beginning)]
        most = max(of_this, key=lambda line: line.value or 0.0, default=None)
        if most and most.value:
            divisor, unit = shown_in(most)
            yield Tile(with_unit(most.value / divisor, unit), f"{instrument}: {with_crosses(most.work)}")


def rates(lines: Iterable[Line], *, several: bool) -> Table:
    """The rates of all workloads, without empty columns; with several GPUs, the slowest one's."""
    slowest: dict[Key, Line] = {}
    for line in lines:
        if line.value:
            slowest[line.key] = min(slowest.get(line.key, line), line, key=lambda each: each.value or 0.0)
    rows: list[list[str]] = []
    for instrument, group in groupby(slowest.values(), key=lambda line: line.instrument):
        of_this = list(group)
        rows.append([f"{TITLES[instrument]}, {shown_in(of_this[0])[1]}"])
        rows += [row_of(line, several=several) for line in of_this]
    columns = ["workload", "throttle reasons", *(["slowest GPU", "of others"] if several else [])]
    columns += ["rate", "± %", "reference", "share", "MHz", "W", "°C"]
    values = [row for row in rows if row[1:]]
    filled = [column for column in range(len(columns)) if not values or {row[column] for row in values} - {"", "–"}]
    rows = [[row[column] for column in filled] if row[1:] else row for row in rows]
    return Table([columns[column] for column in filled], rows, text_columns=sum(column < 2 for column in filled))


def row_of(line: Line, *, several: bool) -> list[str]:
    """A row of the table of rates."""
    divisor, _ = shown_in(line)
    share, of_others = ("–" if part is None else percent(part) for part in (line.share, line.of_others))
    if line.slow:
        share, of_others = in_red(share), in_red(of_others)
    return [
        with_crosses(line.work),
        ", ".join(f"{reason} {percent(part)}" for reason, part in line.throttled.items()),
        *([line.gpu, of_others] if several else []),
        significant((line.value or 0.0) / divisor),
        fixed_point(100 * line.spread),
        significant(line.expected.value / divisor) if line.expected else "–",
        share,
        *(fixed_point(line.state.get(name), 0) for name in ("sm_clock", "power", "temperature")),
    ]


def in_red(text: str) -> Typst:
    """A rate that is too low, in a table."""
    return Typst(f'#text(fill: failed-colour, weight: "bold")[{escape(text)}]')


def facts(gpus: Sequence[Facts]) -> Table:
    """A table of the facts of each GPU; values that are equal on all GPUs are shown once."""
    rows = []
    for name, words in FACTS.items():
        values = ["" if name not in gpu else gpu[name] or "not reported" for gpu in gpus]
        if any(values):
            rows.append([words, ", ".join(dict.fromkeys(values) if len(set(values)) == 1 else values)])
    return Table(["reported", "value"], rows, text_columns=2)
