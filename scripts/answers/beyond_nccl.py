"""Answers to `beyond_nccl`: gradients sent without NCCL's kernels, against PyTorch's best."""

from collections.abc import Sequence

from pandas import DataFrame, Series

from scripts.rendering.answer import Answer, Answers, Tables, say
from scripts.rendering.markup import Tile, Typst, escape, times
from scripts.views.comparison import Duel, duels, fastest, yours
from scripts.views.data import select
from scripts.views.data_parallel import NOTICED, OURS, PYTORCH, duel_answer, why_untold, wrappers
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
    costs = [largest_cost(row) for row in (own, largest)[: 1 + (largest["cell"] != own["cell"])]]
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
            "In the profiled step, compute takes {own[stretched]:ms} longer than in the baseline; with _overlapped_, "
            "which copies no gradients into buckets either, {slowed[stretched]:ms} longer. So most of the slow-down "
            "likely comes from NCCL's kernels on the SMs, not from the bytes that are sent.",
            "Symmetric memory takes {own[outside_memory]:gib} outside PyTorch's allocator.",
            say("What limits it most, by the profiled steps: {costs:listing}.", costs=list(filter(None, costs))),
            yours(cell, {"our best": list(OURS), "PyTorch's best": PYTORCH}),
        ],
        slowed=None if overlapped is None or overlapped["stretched"] <= 2 * own["stretched"] else overlapped,
    )


def largest_cost(row: Series) -> Typst:
    """The largest part of a profiled step beyond the baseline's."""
    parts = {"slower compute": row["stretched"], "uncovered communication": row["uncovered"], "idle time": row["idle"]}
    part = max(parts, key=lambda name: parts[name])
    ms = parts[part] if parts[part] > NOTICED else None
    return say("{part}, {ms:ms} ({row[cell]})", part=part, ms=ms, row=row)
