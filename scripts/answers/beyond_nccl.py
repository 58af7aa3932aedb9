"""Answers to `beyond_nccl`: gradients that travel without the collectives' library, against PyTorch's best."""

from typing import Any

import pandas
from pandas import DataFrame

from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, say
from scripts.rendering.grid import crossed
from scripts.rendering.markup import Table, Tile, escape, times
from scripts.views.comparison import TRIED, Duel, cells_of, device_bound, duels, preferred_cells, yours
from scripts.views.data import select
from scripts.views.data_parallel import (
    ACROSS,
    BEST_BUCKETS,
    BEST_PYTORCH,
    OURS,
    PYTORCH,
    WITHOUT_COMMUNICATION,
    across_cells,
    against_baseline,
    elsewhere,
    every_row,
    why_untold,
    wrappers,
)

TRIED_AT = "100"
"""The bucket size at which all that was tried stands against plain buckets, MB."""
SHOWN = (
    WITHOUT_COMMUNICATION
    | BEST_BUCKETS
    | {"symmetric memory": ["symmetric_memory"], "PyTorch's, default": PYTORCH[:1]}
    | BEST_PYTORCH
)


def answers(tables: Tables) -> Found:
    """The section's answers."""
    table, rows = tables["data_parallel"], wrappers(tables)
    return {
        "gain": gain(table, rows),
        "tried": tried(table, rows),
        "against": duels(rows, ["symmetric_memory"], PYTORCH),
        "gpu": bool(len(rows) and rows["gpu"].iloc[0]),
    }


def tiles(found: Found) -> list[Tile]:
    """How much faster our step over copy engines is than PyTorch's best, in the cell that the section is about."""
    asked = next(iter(found["against"]), None)
    if not found["gpu"] or asked is None or not asked.speed.faster:
        return []
    meaning = f"as fast as PyTorch's best data-parallel step, over copy engines: {asked.cell}"
    return [Tile(times(asked.speed.ratio), escape(meaning), "gain from copy engines")]


def gain(table: DataFrame, rows: DataFrame) -> Answer:
    """Our wrapper against PyTorch's and our buckets at their best."""
    found, buckets = duels(rows, ["symmetric_memory"], PYTORCH), duels(rows, ["symmetric_memory"], ["bucketed"])
    if not found:
        return Answer("Against PyTorch", missing=why_untold(table, rows))
    asked = found[0]
    most = max((duel.first for duel in found), key=lambda row: int(row["processes"]))
    mine = next((cell for cell in preferred_cells(device_bound(rows)) if asked.cell in set(cell["cell"])), rows)
    return Answer(
        asked="Against PyTorch",
        verdict=asked.speed.sentence("symmetric memory", "PyTorch's best", f"({asked.cell})"),
        more=say(
            elsewhere(found),
            *(
                duel.speed.sentence("it", "our best buckets", f"({asked.cell})")
                for duel in buckets
                if duel.cell == asked.cell
            ),
        ),
        evidence=Captioned(across_cells(table, rows, SHOWN), ACROSS),
        reason=say(
            *map(limits, buckets[:1]),
            against_baseline(most, f"symmetric memory ({most['cell']})"),
            yours(mine, {"ours at its best": list(OURS), "PyTorch's at its best": PYTORCH}),
        ),
        details=every_row(
            table, rows, ["bucketed", "symmetric_memory", *PYTORCH], "Buckets, symmetric memory and PyTorch's"
        ),
    )


def limits(duel: Duel) -> Any:
    """The time of our profiled step beyond the baseline's, against NCCL's buckets."""
    ours, buckets = duel.first, duel.other
    more = buckets["peak_memory"] - ours["peak_memory"]
    return say(
        "In the profiled step compute takes {ours[stretched]:ms} longer than the baseline's, against "
        "{buckets[stretched]:ms} next to the NCCL kernels of our best buckets "
        "(@sec-minimal_ddp_flat_benchmarking): most of the slow-down comes from kernels on the SMs, not from the "
        "bytes, although copies share HBM and L2 with compute.",
        "It allocates {ours[outside_memory]:gib} outside of PyTorch's allocator; the buckets take {more:gib} inside.",
        ours=ours,
        buckets=buckets if buckets["stretched"] > 2 * ours["stretched"] else None,
        more=more if more > 0 else None,
    )


def tried(table: DataFrame, rows: DataFrame) -> Answer:
    """The other variations against plain buckets of the same size."""
    bound = device_bound(rows)
    names = [name for name in TRIED if name in set(bound["contender"])]
    at_size = bound[(bound["contender"] != "bucketed") | (bound["bucket_mb"] == TRIED_AT)]
    firsts = [pairs[0] for name in names if (pairs := duels(at_size, [name], ["bucketed"]))]
    best = max(firsts, key=lambda duel: float(duel.speed.ratio or 0), default=None)
    known = set(TRIED) & set(rows["contender"])
    facts = Facts(error=select(at_size, contender="bf16_wire")["gradient_error"].median())
    return Answer(
        asked="What else was tried",
        verdict=""
        if best is None
        else best.speed.sentence(f"“{best.first['title']}”, the best variation,", "plain buckets", f"({best.cell})"),
        more=facts.say("Gradients sent as bf16 are off by {error:percent}."),
        evidence=Captioned(
            tried_table(at_size, names),
            f"Variations against plain buckets of {TRIED_AT} MB, device-bound cells: median step, ms, and its "
            "ratio to theirs.",
        ),
        reason=say(
            "_Grouped, no copies_: a bucket's gradients as they lie, in one grouped call. _Small last bucket_: the "
            "gradient made last has its own. _High-priority stream_: NCCL's kernels go first. _bf16 on the wire_: half "
            "of the bytes. _Update per bucket_: the optimizer updates a bucket's parameters as soon as it has arrived."
        ),
        details=every_row(table, rows, ["bucketed", *TRIED], "Variations against plain buckets") if known else (),
        missing=why_untold(table, rows[rows["contender"].isin(TRIED)]) if known else "Not measured on this machine.",
    )


def tried_table(rows: DataFrame, names: list[str]) -> Table:
    """A row per variation, a pair of columns per cell."""
    cells = [cell for cell in cells_of(rows) if set(names) & set(cell["contender"])]
    every = [select(cell, contender=name) for name in ["bucketed", *names] for cell in cells]
    found = pandas.concat([rows.iloc[:1] for rows in every] or [rows])
    plain = select(found, contender="bucketed").set_index("cell")["median"]
    found["ratio"] = found["median"] / found["cell"].map(plain)
    return crossed(found, "title", "cell", {"step": "{median:cut}", "ratio": "{ratio:.4g}"})
