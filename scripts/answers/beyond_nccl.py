"""Answers to `beyond_nccl`: gradients that travel without the collectives' library, against PyTorch's best."""

from typing import Any

from pandas import DataFrame

from scripts.rendering.answer import Answer, Captioned, Found, Tables, say
from scripts.rendering.markup import Tile, escape, times
from scripts.views.comparison import Duel, device_bound, duels, preferred_cells, yours
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
    why_untold,
    wrappers,
)

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
        "against": duels(rows, ["symmetric_memory"], PYTORCH),
        "gpu": bool(len(rows) and rows["gpu"].iloc[0]),
    }


def tiles(found: Found) -> list[Tile]:
    """How much faster our step over copy engines is than PyTorch's best, in the cell that the section is about."""
    asked = next(iter(found["against"]), None)
    if not found["gpu"] or asked is None or not asked.speed.faster:
        return []
    meaning = f"our data-parallel step over copy engines against PyTorch's best: {asked.cell}"
    return [Tile(times(asked.speed.ratio), escape(meaning), "gain from copy engines")]


def gain(table: DataFrame, rows: DataFrame) -> Answer:
    """Our wrapper against PyTorch's and our buckets at their best."""
    found, buckets = duels(rows, ["symmetric_memory"], PYTORCH), duels(rows, ["symmetric_memory"], ["bucketed"])
    if not found:
        return Answer("Against PyTorch", missing=why_untold(table, rows))
    asked = found[0]
    most = max((duel.first for duel in found), key=lambda row: int(row["processes"]))
    where = "" if asked.speed.why_untold else f"({asked.cell})"
    mine = next((cell for cell in preferred_cells(device_bound(rows)) if asked.cell in set(cell["cell"])), rows)
    return Answer(
        asked="Against PyTorch",
        verdict=asked.speed.sentence("symmetric memory", "PyTorch's best", where),
        more=say(
            elsewhere(found),
            *(
                duel.speed.sentence("symmetric memory", "our best buckets", f"({asked.cell})")
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
