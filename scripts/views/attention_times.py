"""Times of attention implementations on the device, and which of two is faster."""

from pandas import DataFrame, Series

from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.flash import Flash
from cs336_systems.implementations import PARAMETER
from cs336_systems.record.rows import parameters
from scripts.rendering.answer import say
from scripts.rendering.markup import Typst
from scripts.views.attention_calls import PASSES
from scripts.views.cells import side_by_side
from scripts.views.verdicts import against

LIBRARIES = [contender.name for contender in Flash.contenders if contender.foreign]
IMPLEMENTATION = ["implementation", "precision", "compiled_call"]
SHAPE = [name for name in parameters(Flash) if name not in (PARAMETER, "rep")]
IN_WORDS = {
    "One head, causal": "one head (causal)",
    "Many heads, causal": "many heads (causal)",
    "Many heads, no mask": "many heads and no mask",
}
KINDS = list(IN_WORDS)
"""The kinds of shapes in which implementations are compared, besides the leaderboard's."""
ENOUGH = 3
"""Number of shapes from which their median is quoted."""


def timed_calls(table: DataFrame) -> DataFrame:
    """One row per measured cell of `flash`: its parameters, the medians of PASSES and `graph`, ms, and `host`, µs."""
    return side_by_side(table, Flash, "median").reindex(columns=[*PASSES, "graph", "host"]).reset_index()


def with_host(cells: DataFrame) -> DataFrame:
    """Timed calls with `host` in ms; if it was not measured, the median of the same implementation's other calls."""
    usual = cells.groupby(IMPLEMENTATION)["host"].transform("median")
    return cells.assign(host=cells["host"].fillna(usual).fillna(0) / 1e3)


def call_table(table: DataFrame) -> DataFrame:
    """One row per measured cell of `flash`.

    Columns: the parameters; `kind`, one of KINDS or another; the medians of calls, ms, as `forward`, `backward` and
    `forward_backward`; of both passes on the device `median`, `samples`, `mean`, `std` and `n`, from a replayed CUDA
    graph, or from the calls if nothing was replayed; `waits`, whether the device waits for the host in these calls;
    `host_bound`, whether this leaves the device time unknown, since nothing was replayed.
    """
    keys = parameters(Flash)
    both = table[table["metric"].isin(["forward_backward", "graph"]) & (table["status"] == "ok")]
    both = both.sort_values("metric").drop_duplicates(keys, keep="last")  # the graph, if there is one
    cells = with_host(timed_calls(table).merge(both[[*keys, "median", "samples", "mean", "std", "n"]], on=keys))
    parts = cells["forward"] + cells["backward"]
    cells["waits"] = host_bound(cells["forward_backward"], cells["graph"], host=cells["host"], parts=parts)
    cells["host_bound"] = cells["waits"] & cells["graph"].isna()
    heads = (cells["batch_size"] * cells["heads"] > 1).map({True: "Many heads, ", False: "One head, "})
    return cells.assign(kind=heads + cells["causal"].map({True: "causal", False: "no mask"}))


def duels(cells: DataFrame, ours: str) -> DataFrame:
    """Ours against every other implementation, shape by shape.

    Columns: SHAPE, `kind`, the other's `implementation`; `speed`, ours against it; `ratio`, its time over ours; `won`
    and `lost`, whether ours is faster and slower. Shapes at which either time is unknown are omitted.
    """
    known = cells[~cells["host_bound"]]
    mine = {tuple(row[SHAPE]): row for _, row in known[known["implementation"] == ours].iterrows()}
    pairs = []
    for _, other in known[known["implementation"] != ours].iterrows():
        if (own := mine.get(tuple(other[SHAPE]))) is not None:
            speed = against(own, other)
            verdict = {"speed": speed, "ratio": speed.ratio, "won": speed.faster is True, "lost": speed.faster is False}
            pairs.append({**other[[*SHAPE, "kind", PARAMETER]], **verdict})
    return DataFrame(pairs, columns=[*SHAPE, "kind", PARAMETER, "speed", "ratio", "won", "lost"])


def scores(met: DataFrame) -> DataFrame:
    """One row per kind of shape and other implementation in some duels.

    Columns: the numbers of shapes (`cells`) at which ours is faster (`won`), on par (`even`) and slower (`lost`); the
    `median`, `least` and `most` of the ratios.
    """
    columns = {"cells": ("ratio", "size"), "won": ("won", "sum"), "lost": ("lost", "sum")}
    columns |= {"median": ("ratio", "median"), "least": ("ratio", "min"), "most": ("ratio", "max")}
    scored = met.groupby(["kind", PARAMETER], as_index=False).agg(**columns)
    return scored.assign(even=scored["cells"] - scored["won"] - scored["lost"])


def score_sentence(score: Series, other: str) -> Typst:
    """Which is faster at most of a score's shapes, or that neither is."""
    start = f"With {IN_WORDS[score['kind']]}, "
    if 2 * max(score["won"], score["lost"]) <= score["cells"]:
        words = "ours is faster than {other} at {row[won]} of {row[cells]} shapes and slower at {row[lost]}."
        words = words if score["won"] or score["lost"] else "ours and {other} are on par."
        return say(start + words, row=score, other=other)
    low, high = score[["median", "median"] if score["cells"] >= ENOUGH else ["least", "most"]]
    end = " (median of {row[cells]} shapes)." if score["cells"] >= ENOUGH else "."
    if score["won"] > score["lost"]:
        words = "ours is {gains:span times} as fast as {other}"
        return say(start + words + end, row=score, gains=(low, high), other=other)
    words = "{other} is {gains:span times} as fast as ours"
    return say(start + words + end, row=score, gains=(1 / high, 1 / low), other=other)


def strongest(met: DataFrame) -> str | None:
    """The library whose times over ours have the smallest median; None if none was compared."""
    ratios = met[met[PARAMETER].isin(LIBRARIES)].groupby(PARAMETER)["ratio"].median()
    return str(ratios.idxmin()) if len(ratios) else None
