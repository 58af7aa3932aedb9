"""Answers to `beyond_nccl`: gradients sent without NCCL's kernels, against PyTorch's best."""

from collections.abc import Sequence

from pandas import DataFrame

from scripts.rendering.answer import Answer, Answers, Tables
from scripts.rendering.markup import Tile, escape, times
from scripts.views.comparison import Duel, duels, fastest, yours
from scripts.views.data import select
from scripts.views.data_parallel import OURS, PYTORCH, against_baseline, duel_answer, why_untold, wrappers
from scripts.views.verdicts import against


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table, rows = tables["data_parallel"], wrappers(tables)
    comparisons = duels(rows, ["symmetric_memory"], PYTORCH)
    return {
        "gain": gain(table, rows, comparisons),
        "against": comparisons,
        "gpu": bool(len(rows) and rows["gpu"].iloc[0]),
    }


def tiles(section: Answers) -> list[Tile]:
    """The speedup of our step over copy engines relative to PyTorch's best, in the section's cell."""
    asked = next(iter(section["against"]), None)
    if not section["gpu"] or asked is None or not asked.speed.faster:
        return []
    meaning = f"our data-parallel step with symmetric memory against PyTorch's best: {asked.cell}"
    return [Tile(times(asked.speed.ratio), escape(meaning))]


def gain(table: DataFrame, rows: DataFrame, comparisons: Sequence[Duel]) -> Answer:
    """Our wrapper against PyTorch's and our buckets at their best."""
    if not comparisons:
        return Answer("Against PyTorch", missing=why_untold(table, rows))
    own = comparisons[0].first
    largest = max((duel.first for duel in comparisons), key=lambda row: int(row["processes"]))
    cell = select(rows, cell=comparisons[0].cell)
    buckets, overlapped = fastest(cell, ["bucketed"]), fastest(cell, ["overlapped"])
    return duel_answer(
        "Against PyTorch",
        comparisons,
        ("symmetric memory", "PyTorch's best"),
        more=[
            "{elsewhere}",
            against(own, buckets).sentence("symmetric memory", "our best buckets", f"({comparisons[0].cell})"),
        ],
        reason=[
            "In the profiled step, compute takes {own[stretched]:ms} longer than in the baseline. Next to the NCCL "
            "kernels of _overlapped_, which copies no gradients either, it takes {slowed[stretched]:ms} longer. "
            "So most of the slow-down likely comes from kernels on the SMs, not from the bytes, although copies share "
            "HBM and L2 with compute.",
            "Symmetric memory takes {own[outside_memory]:gib} outside PyTorch's allocator.",
            against_baseline(largest, f"symmetric memory ({largest['cell']})")
            if largest["cell"] != comparisons[0].cell
            else "",
            yours(cell, {"our best": list(OURS), "PyTorch's best": PYTORCH}),
        ],
        slowed=None if overlapped is None or overlapped["stretched"] <= 2 * own["stretched"] else overlapped,
    )
