"""Answers to `beyond_nccl`: gradients that travel without the collectives' library, against PyTorch's best."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.rendering.markup import Table, Tile, Typst, escape, significant, times
from scripts.views.comparison import OWN, TRIED, Duel, cells_of, device_bound, duels, names_in
from scripts.views.comparison_tables import fixed
from scripts.views.data import select
from scripts.views.data_parallel import (
    BASELINE,
    BEST_BUCKETS,
    BEST_PYTORCH,
    OURS,
    PYTORCH,
    across_cells,
    every_row,
    told,
    why_untold,
    wrappers,
)

TRIED_AT = "100"
"""The bucket size at which all that was tried stands against plain buckets, MB."""
TRIED_TEXT = Typst(
    "_Grouped, no copies_: a bucket's gradients as they lie, in one grouped call. _Small last bucket_: the gradient "
    "made last has its own. _High-priority stream_: NCCL's kernels go first. _bf16 on the wire_: half of the bytes. "
    "_Update per bucket_: the optimizer updates a bucket's parameters as soon as it has arrived."
)
SHOWN = BASELINE | BEST_BUCKETS | {"peer memory": ["peer_memory"], "PyTorch's, default": PYTORCH[:1]} | BEST_PYTORCH


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    table, rows = tables["data_parallel"], wrappers(tables)
    return {
        "gain": gain(table, rows),
        "tried": tried(table, rows),
        "against": duels(rows, ["peer_memory"], PYTORCH),
        "gpu": bool(len(rows) and rows["gpu"].iloc[0]),
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """How much faster our step over copy engines is than PyTorch's best, in the cell that the section is about."""
    asked = next(iter(found["against"]), None)
    if not found["gpu"] or asked is None or not asked.speed.faster:
        return []
    meaning = f"as fast as PyTorch's best data-parallel step, over copy engines: {asked.cell}"
    return [Tile(times(asked.speed.ratio), escape(meaning), "gain from copy engines")]


def gain(table: DataFrame, rows: DataFrame) -> Answer:
    """Our wrapper against PyTorch's and our buckets at their best."""
    found, buckets = duels(rows, ["peer_memory"], PYTORCH), duels(rows, ["peer_memory"], ["bucketed"])
    if not found:
        return Answer("Against PyTorch", NOTHING, missing=why_untold(table, rows))
    asked = found[0]
    every = every_row(table, rows, ["bucketed", "peer_memory", *PYTORCH])
    return Answer(
        asked="Against PyTorch",
        verdict=told(asked, "peer memory", "PyTorch's best", where=True),
        more=paragraph(
            *(told(duel, "peer memory", "our best buckets") for duel in buckets[:1] if duel.cell == asked.cell),
            say(
                "Against PyTorch's best elsewhere: {others:listing}.",
                others=[
                    say("{ratio:times} ({cell})", ratio=duel.speed.ratio, cell=duel.cell)
                    for duel in found[1:]
                    if duel.speed.faster is not None
                ],
            ),
        ),
        evidence=[
            Captioned(
                across_cells(table, rows, SHOWN),
                "Step and exposed communication in device-bound cells, medians, each wrapper at its fastest setting; "
                "a star: percentiles 20 and 80 more than 5 % apart.",
            )
        ],
        reason=paragraph(*(limits(duel) for duel in buckets[:1]), most_ranks(found), yours(rows)),
        details=[Captioned(every, "Buckets, peer memory and PyTorch's in every cell.", long=True)] if every else [],
    )


def limits(duel: Duel) -> Typst:
    """What our profiled step takes beyond the baseline's, against NCCL's buckets."""
    ours, buckets = duel.first, duel.other
    more = (buckets["peak_memory"] - ours["peak_memory"]) / 1024
    return paragraph(
        say(
            "In the profiled step compute takes {ours:ms} longer than the baseline's, against {buckets:ms} next to the "
            "NCCL kernels of our best buckets (@sec-minimal_ddp_flat_benchmarking): most of the slow-down comes from "
            "kernels on the SMs, not from the bytes, although copies share HBM and L2 with compute.",
            ours=ours["stretched"],
            buckets=buckets["stretched"] if buckets["stretched"] > 2 * ours["stretched"] else None,
        ),
        say(
            "It allocates {outside:GiB} outside of PyTorch's allocator; the buckets take {more:GiB} inside.",
            outside=ours["outside_memory"] / 1024,
            more=more if more > 0 else None,
        ),
    )


def most_ranks(found: list[Duel]) -> Typst:
    """What is left between the most processes."""
    last = max((duel.first for duel in found), key=lambda row: int(row["processes"]))
    parts = {
        "compute that takes longer": last["stretched"],
        "communication next to no compute": last["uncovered"],
        "idle time": last["idle"],
    }
    name = max(parts, key=lambda part: float(parts[part]))
    return say(
        "What limits the rest: of {longer:ms} beyond the baseline, {ms:ms} are {name} ({cell}).",
        longer=last["longer"],
        ms=parts[name],
        name=name,
        cell=last["cell"],
    )


def yours(rows: DataFrame) -> Typst:
    """Each of the reader's own against ours and PyTorch's at their best."""
    others = {"ours at its best": list(OURS), "PyTorch's at its best": PYTORCH}
    return paragraph(
        *(
            duel.speed.sentence(mine, title, f"({duel.cell})")
            for mine in names_in(rows, OWN)
            for title, names in others.items()
            for duel in duels(rows, [mine], names)[:1]
        )
    )


def tried(table: DataFrame, rows: DataFrame) -> Answer:
    """What else was tried, against plain buckets of the same size."""
    bound = device_bound(rows)
    names = [name for name in TRIED if name in set(bound["contender"])]
    at_size = bound[(bound["contender"] != "bucketed") | (bound["bucket_mb"] == TRIED_AT)]
    found = {name: duels(at_size, [name], ["bucketed"]) for name in names}
    best = max(
        (pairs[0] for pairs in found.values() if pairs), key=lambda duel: float(duel.speed.ratio or 0), default=None
    )
    every = every_row(table, rows, ["bucketed", *TRIED]) if set(TRIED) & set(rows["contender"]) else None
    errors = select(at_size, contender="bf16_wire")["gradient_error"].dropna()
    return Answer(
        asked="What else was tried",
        verdict=NOTHING
        if best is None
        else best.speed.sentence(f"“{best.first['title']}”, the best variation,", "plain buckets", f"({best.cell})"),
        more=say("Gradients sent as bf16 are off by {error:percent}.", error=errors.median()),
        evidence=[
            Captioned(
                tried_table(at_size, names),
                f"Variations against plain buckets of {TRIED_AT} MB, device-bound cells: median step, ms, and its "
                "ratio to theirs.",
            )
        ],
        reason=TRIED_TEXT,
        details=[Captioned(every, "Variations against plain buckets in every cell.", long=True)] if every else [],
        missing=why_untold(table, rows[rows["contender"].isin(TRIED)]) if every else "Not measured on this machine.",
    )


def tried_table(rows: DataFrame, names: list[str]) -> Table:
    """A row per variation, a pair of columns per cell."""
    cells = [cell for cell in cells_of(rows) if set(names) & set(cell["contender"])]
    body = []
    for name in ["bucketed", *names]:
        pairs = [(select(cell, contender=name), select(cell, contender="bucketed")) for cell in cells]
        line = [next((found["title"].iloc[0] for found, _ in pairs if len(found)), name)]
        for found, plain in pairs:
            step = found["median"].iloc[0] if len(found) else float("nan")
            base = plain["median"].iloc[0] if len(plain) else float("nan")
            line += [fixed(step), "–" if step / base != step / base else str(significant(step / base, 4))]
        body.append(line)
    groups = [("", 1), *((str(cell["cell"].iloc[0]), 2) for cell in cells)]
    return Table(["", *["step", "ratio"] * len(cells)], body, groups=groups)
