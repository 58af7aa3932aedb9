"""Answers to `beyond_nccl`: gradients sent without NCCL's kernels, against PyTorch DDP."""

from collections.abc import Sequence

from pandas import DataFrame, Series

from scripts.rendering.answer import Answer, Answers, Tables, say
from scripts.rendering.markup import Tile, Typst, escape, times
from scripts.views.comparison import Duel, duels, fastest, yours
from scripts.views.data import select
from scripts.views.data_parallel import NOTICED, OURS, PYTORCH, duel_answer, why_missing, wrappers
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
    """The speedup of our step over copy engines relative to PyTorch DDP, in the section's cell."""
    asked = next(iter(section["against"]), None)
    if not section["gpu"] or asked is None or not asked.speed.faster:
        return []
    meaning = f"speedup of our data-parallel step with symmetric memory over PyTorch DDP ({asked.cell})"
    return [Tile(times(asked.speed.ratio), escape(meaning))]


def gain(table: DataFrame, rows: DataFrame, comparisons: Sequence[Duel]) -> Answer:
    """Our wrapper against PyTorch's and our buckets at their best."""
    if not comparisons:
        return Answer("Against PyTorch", missing=why_missing(table, rows))
    own = comparisons[0].first
    cell = select(rows, cell=comparisons[0].cell)
    buckets, overlapped = fastest(cell, ["bucketed"]), fastest(cell, ["overlapped"])
    return duel_answer(
        "Against PyTorch",
        comparisons,
        ("symmetric memory", "PyTorch DDP"),
        more=["{elsewhere}"],
        reason=[
            against(own, buckets).sentence("symmetric memory", "bucketed", f"({comparisons[0].cell})"),
            limits(own),
            "_Overlapped_ loses {slowed[stretched]:ms} to additional compute time, although it copies no gradients "
            "into buckets. Most of this time likely comes from NCCL's kernels on the SMs, not from the bytes sent.",
            "Symmetric memory takes {own[outside_memory]:gib} outside PyTorch's allocator.",
            yours(cell, {"our best wrapper": list(OURS), "PyTorch DDP": PYTORCH}),
        ],
        slowed=None if overlapped is None or overlapped["stretched"] <= 2 * own["stretched"] else overlapped,
    )


def limits(row: Series) -> Typst:
    """The parts of a profiled step beyond the baseline's."""
    return say(
        "In the profiled step, _symmetric memory_ loses {row[stretched]:ms} to additional compute time and "
        "{row[uncovered]:ms} to uncovered communication.",
        row=row if row["stretched"] > NOTICED else None,
    )
