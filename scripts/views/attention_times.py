"""Times of attention implementations on the device, and which of two is faster."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from typing import Any

from pandas import DataFrame

from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.flash import Flash
from cs336_systems.implementations import PARAMETER
from cs336_systems.record.rows import parameters
from scripts.rendering.answer import NOTHING, least_and_most, say
from scripts.rendering.markup import Typst
from scripts.views.attention_calls import PASSES
from scripts.views.cells import side_by_side
from scripts.views.data import select
from scripts.views.verdicts import against

IMPLEMENTATION = ["implementation", "precision", "compiled_call"]
SHAPE = [name for name in parameters(Flash) if name not in (PARAMETER, "rep")]
KINDS: dict[str, dict[str, Any]] = {
    "One head, causal": {"many": False, "causal": True},
    "Many heads, causal": {"many": True, "causal": True},
    "Many heads, no mask": {"many": True, "causal": False},
}
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

    Columns: the parameters; `many`, whether there are several heads; the medians of calls, ms, as `forward`, `backward`
    and `forward_backward`; of both passes on the device `median`, `samples`, `mean`, `std` and `n`, from a replayed
    CUDA graph, or from the calls if nothing was replayed; `waits`, whether the device waits for the host in these
    calls; `host_bound`, whether this leaves the device time unknown, since nothing was replayed.
    """
    keys = parameters(Flash)
    both = table[table["metric"].isin(["forward_backward", "graph"]) & (table["status"] == "ok")]
    both = both.sort_values("metric").drop_duplicates(keys, keep="last")  # the graph, if there is one
    cells = with_host(timed_calls(table).merge(both[[*keys, "median", "samples", "mean", "std", "n"]], on=keys))
    parts = cells["forward"] + cells["backward"]
    cells["waits"] = host_bound(cells["forward_backward"], cells["graph"], host=cells["host"], parts=parts)
    cells["host_bound"] = cells["waits"] & cells["graph"].isna()
    return cells.assign(many=cells["batch_size"] * cells["heads"] > 1)


def duels(cells: DataFrame, ours: str) -> DataFrame:
    """Ours against every other implementation, shape by shape.

    Columns: SHAPE, `many`, the other's `implementation`; `ratio`, its time over ours; `forward` and `backward`, the
    same for single passes, NaN if the host slows down the calls of either; `speed`, ours against it, and whether ours
    is `faster`: True, False or None. Shapes at which either time is unknown are omitted.
    """
    known = cells[~cells["host_bound"]]
    mine = {tuple(row[SHAPE]): row for _, row in known[known["implementation"] == ours].iterrows()}
    pairs = []
    for _, other in known[known["implementation"] != ours].iterrows():
        own = mine.get(tuple(other[SHAPE]))
        if own is not None:
            speed = against(own, other)
            called = not (own["waits"] or other["waits"])
            passes = {name: other[name] / own[name] if called else nan for name in ("forward", "backward")}
            verdict = {"ratio": speed.ratio, "faster": speed.faster, "speed": speed}
            pairs.append({**other[[*SHAPE, "many", PARAMETER]], **passes, **verdict})
    return DataFrame(pairs, columns=[*SHAPE, "many", PARAMETER, "forward", "backward", "ratio", "faster", "speed"])


@dataclass(frozen=True)
class Score:
    """The comparison of ours with another implementation over some shapes."""

    wins: int
    losses: int
    cells: int
    ratio: float | None
    """The median of the other's time over ours."""
    ratios: tuple[float, float] = (nan, nan)
    """The median twice; of fewer than ENOUGH shapes, the smallest and the largest ratio."""

    @property
    def counts(self) -> list[int]:
        """Numbers of shapes at which ours is faster, equally fast within the spread, and slower."""
        return [self.wins, self.cells - self.wins - self.losses, self.losses]

    @property
    def text(self) -> str:
        """The counts as text for a table."""
        return " / ".join(map(str, self.counts)) if self.cells else "–"

    def sentence(self, other: str, where: str, aside: str = "") -> Typst:
        """Which is faster at most of the shapes, or that neither is; `aside` describes the other."""
        if self.ratio is None:
            return NOTHING
        if 2 * max(self.wins, self.losses) <= self.cells:
            words = "{where}: against {other} ours is faster at {n[0]} shapes, on par at {n[1]}, slower at {n[2]}."
            return say(words, where=where, other=other, n=self.counts)
        named = f"{other}, {aside}" if aside else other
        if self.wins > self.losses:
            words = "{where}: ours is {gains:span times} as fast as {other}."
            return say(words, where=where, gains=self.ratios, other=named)
        words, gains = (
            "{where}: {other} is {gains:span times} as fast as ours.",
            (1 / self.ratios[1], 1 / self.ratios[0]),
        )
        return say(words, where=where, gains=gains, other=f"{named}," if aside else other)


def score(met: DataFrame) -> Score:
    """The score of some duels."""
    faster = list(met["faster"])
    ratio = float(met["ratio"].median())
    ratios = least_and_most(met["ratio"]) if len(met) < ENOUGH else (ratio, ratio)
    wins, losses = (sum(each is way for each in faster) for way in (True, False))
    return Score(wins, losses, len(met), ratio if len(met) else None, ratios)


def strongest(met: DataFrame, names: Iterable[str]) -> str | None:
    """The implementation whose times over ours have the smallest median; None if none was compared."""
    ratios = met[met[PARAMETER].isin(list(names))].groupby(PARAMETER)["ratio"].median()
    return str(ratios.idxmin()) if len(ratios) else None


def backward_pairs(cells: DataFrame) -> DataFrame:
    """Shapes at which the backward pass was timed both as kernels and as compiled PyTorch.

    Columns: SHAPE; `gain`, the time of compiled PyTorch over the kernels'; `waits`, whether either is host-bound.
    """
    kernels, compiled = (select(cells, implementation=name) for name in ("triton", "triton_compiled_backward"))
    pairs = kernels.merge(compiled, on=SHAPE, suffixes=("", "_compiled"))
    return pairs.assign(
        gain=pairs["backward_compiled"] / pairs["backward"], waits=pairs["waits"] | pairs["waits_compiled"]
    )
