"""Contents of the card's template: tiles, and tables of rates, facts and reasons."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scripts.card.causes import percent
from scripts.rendering.markup import Table, Tile, Typst, escape, fixed_point, significant, with_unit

TITLES = {
    "matmul": "Matmuls, tokens × d_in × d_out",
    "memory": "Memory",
    "attention": "Causal attention, forward and backward, batch × heads × sequence × d",
    "launches": "Launches",
    "training": "Training step",
    "transfers": "Between host and device",
    "all_reduce": "All-reduce",
}
UNITS = {"launches": (1e6, "M/s"), "training": (1e3, "k tokens/s")}
"""Units in which an instrument's rates are shown: a divisor, and the unit then."""
CPU_UNITS = UNITS | {"matmul": (1e-3, "GFLOP/s"), "attention": (1e-3, "GFLOP/s")}
FACTS = {
    "name": "name",
    "driver": "driver",
    "driver_cuda": "newest CUDA of the driver",
    "power_limit": "power limit, W",
    "default_power_limit": "default power limit, W",
    "max_sm_clock": "highest SM clock, MHz",
    "max_memory_clock": "highest memory clock, MHz",
    "slowdown_temperature": "slows down at, °C",
    "persistence_mode": "persistence mode",
    "display": "display",
    "compute_mode": "compute mode",
    "mig": "MIG",
    "ecc": "ECC",
    "corrected_errors": "corrected memory errors",
    "uncorrected_errors": "uncorrectable memory errors",
    "remapped_rows": "remapped rows of the memory",
    "remapping_pending": "remapping pending",
    "remapping_failed": "remapping failed",
    "max_link_generation": "PCIe generation",
    "max_link_width": "PCIe lanes",
    "other_processes": "other processes on it",
    "idle_utilization": "busy before anything ran, %",
    "logical_cores": "logical cores",
    "threads": "threads that PyTorch uses",
    "governor": "frequency governor",
    "max_clock": "highest clock, MHz",
    "thermal_throttles": "thermal throttles since boot",
}
"""Facts in the order of the table, in words."""
TILES = (
    ("matmul", "bf16", "matmul"),
    ("memory", "copy", "memory"),
    ("attention", "", "attention"),
    ("training", "", "training"),
)


def context(card: Mapping[str, Any], picture: str) -> dict[str, Any]:
    """Everything that the template prints.

    Args:
        card: the card.
        picture: the figure as SVG; empty without one.
    """
    return {
        "card": card,
        "title": title_of(card),
        "picture": picture,
        "tiles": list(tiles(card)),
        "rates": rates(card),
        "facts": facts(card["gpus"]),
        "unmeasured": unmeasured(card["lines"]),
        "reference": reference(card["reference"], card["gpu"] or card["cpu"]),
    }


def title_of(card: Mapping[str, Any]) -> str:
    """The machine in words."""
    if not card["gpu"]:
        return str(card["cpu"])
    count = len(card["gpus"])
    return f"{count} × {card['gpu']}" if count > 1 else str(card["gpu"])


def reference(used: Mapping[str, Any], model: str) -> str:
    """The reference of the rates, in a sentence."""
    if used["source"] == "recorded":
        number = used["cards"]
        return f"The reference is the median of {number} recorded card{'s' if number > 1 else ''} of {model}."
    if used["source"] == "data sheet":
        return "The reference is the share of the data sheet's peak that GPUs usually reach; none is recorded."
    return "There is no reference: no card of this model is recorded, and no data sheet of it is listed."


def with_crosses(work: str) -> str:
    """A work's name as it is printed."""
    return work.replace(" x ", " × ")


def shown_in(line: Mapping[str, Any]) -> tuple[float, str]:
    """The divisor and the unit that a line's rates are shown in."""
    units = UNITS if line["gpu"] else CPU_UNITS
    return units.get(line["instrument"], (1.0, str(line["unit"])))


def tiles(card: Mapping[str, Any]) -> Iterator[Tile]:
    """The largest rate of some instruments."""
    for instrument, beginning, meaning in TILES:
        of_this = [line for line in card["lines"] if line["value"] and line["instrument"] == instrument]
        if own := [line for line in of_this if line["work"].startswith(beginning)]:
            most = max(own, key=lambda line: line["value"])
            divisor, unit = shown_in(most)
            yield Tile(
                number=with_unit(most["value"] / divisor, unit), meaning=f"{meaning}: {with_crosses(most['work'])}"
            )


def rates(card: Mapping[str, Any]) -> Table:
    """The rates of all works; where there are several GPUs, those of the slowest."""
    several = len(card["gpus"]) > 1
    by_work: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in card["lines"]:
        if line["value"]:
            by_work.setdefault((line["instrument"], line["work"]), []).append(line)
    rows: list[list[str]] = []
    instrument = ""
    for (kind, work), lines in by_work.items():
        if kind != instrument:
            rows.append([f"{TITLES[kind]}, {shown_in(lines[0])[1]}"])
            instrument = kind
        slowest = min(lines, key=lambda line: line["value"])
        rows.append(row_of(work, slowest, several=several))
    columns = ["work", "throttle reasons", *(["slowest GPU", "of others"] if several else [])]
    columns += ["rate", "± %", "reference", "share", "MHz", "W", "°C"]
    return Table(columns, rows, text_columns=2)


def row_of(work: str, line: Mapping[str, Any], *, several: bool) -> list[str]:
    """A row of the table of rates."""
    divisor, _ = shown_in(line)
    state, share, of_others = line["state"], percent_of(line["share"]), percent_of(line["of_others"])
    reasons = ", ".join(f"{reason} {percent(part)}" for reason, part in line["throttled"].items())
    if line["slow"]:
        share, of_others = in_red(share), in_red(of_others)
    return [
        with_crosses(work),
        reasons,
        *([line["gpu"], of_others] if several else []),
        significant(line["value"] / divisor),
        fixed_point(100 * line["spread"]),
        significant(line["expected"] / divisor) if line["expected"] else "–",
        share,
        *(fixed_point(state.get(name), 0) for name in ("sm_clock", "power", "temperature")),
    ]


def in_red(text: str) -> Typst:
    """A table of findings."""
    return Typst(f'#text(fill: failed-colour, weight: "bold")[{escape(text)}]')


def percent_of(share: float | None) -> str:
    """A share in a table's cell."""
    return "–" if share is None else percent(share)


def facts(gpus: Iterable[Mapping[str, Any]]) -> Table:
    """A table of the driver's facts of each GPU; equal values of all GPUs stand once."""
    gpus = list(gpus)
    rows = []
    for name, words in FACTS.items():
        values = [gpu["facts"].get(name, "not reported" if name in gpu["unknown"] else "") for gpu in gpus]
        if any(values):
            rows.append([words, ", ".join(dict.fromkeys(values)) if len(set(values)) == 1 else ", ".join(values)])
    return Table(["reported", "value"], rows, text_columns=2)


def unmeasured(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Works that were not measured, and why, in sentences."""
    found = []
    for line in lines:
        if not line["value"]:
            where = f" on GPU {line['gpu']}" if line["gpu"] else ""
            found.append(f"{line['instrument']}, {line['work']}{where}: {line['message']}")
    return found
