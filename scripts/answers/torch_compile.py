"""Answers to `torch_compile`: attention and the whole Transformer, compiled and eager."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.data import MODES, ratio, reason, select, size_order, statistic
from scripts.markup import Table, Tile, Typst, escape, times


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    return {"attention": attention_table(tables["attention"]), **model_answers(tables["end_to_end"])}


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """The most that compiling gains, and the least."""
    if not found["times"] or not found["best"]:
        return []
    (most, where), (least, elsewhere) = found["best"], found["worst"]
    extremes = escape(f"{where} (the smallest: {times(least)}, {elsewhere})")
    return [Tile(times(most), Typst(f"the largest gain from `torch.compile`: {extremes}"))]


def attention_table(table: DataFrame) -> Table | None:
    """(a) Plain attention, eager next to compiled."""
    cells = sorted(set(zip(table["sequence"], table["d"], strict=True)))
    if table["compiled"].nunique() < 2:
        return None
    body = []
    for sequence, d in cells:
        rows = select(table, sequence=sequence, d=d)
        line = [str(sequence), str(d)]
        for phase in ("forward", "backward"):
            eager, fast = (statistic(rows, "median", metric=phase, compiled=c) for c in (False, True))
            gain = ratio(eager, fast)
            if gain is None:
                line += [reason(select(rows, compiled=eager is not None))] * 3
            else:
                line += [f"{eager:.3f}", f"{fast:.3f}", f"{gain:.2f}×"]
        body.append(line)
    groups = [("", 2), ("forward / ms", 3), ("backward / ms", 3)]
    return Table(["sequence", "d", *["eager", "compiled", "ratio"] * 2], body, text_columns=0, groups=groups)


def model_answers(table: DataFrame) -> dict[str, Any]:
    """(b) The whole model, eager next to compiled."""
    table = select(table, attention="plain")
    compiled = select(table, compiled=True)
    if not len(compiled):
        return {"times": None}
    context, warmup = int(compiled["context"].max()), int(compiled["warmup"].max())
    table = select(table, context=context, warmup=warmup)
    body, gains, costs = [], [], []
    for size in size_order(select(table, compiled=True)):
        for precision in ("fp32", "bf16"):
            rows = select(table, size=size, precision=precision)
            line = [rows["label"].iloc[0], precision]
            for mode, title in MODES.items():
                eager, fast = (statistic(rows, "median", metric="step", mode=mode, compiled=c) for c in (False, True))
                gain = ratio(eager, fast)
                if gain is None:
                    line += [reason(select(rows, mode=mode, compiled=eager is not None))] * 3
                    continue
                gains.append((gain, f"{line[0]}, {precision}, {title}"))
                line += [f"{eager:.1f}", f"{fast:.1f}", f"{gain:.2f}×"]
            cost = statistic(rows, "mean", metric="warmup", mode="train_step", compiled=True)
            costs.append((cost or 0, line[0]))
            line.append(f"{cost:.0f}" if cost else "–")
            body.append(line)
    header = ["size", "precision", *["eager", "compiled", "ratio"] * len(MODES), "compile / s"]
    groups = [("", 2), *((f"{title} / ms", 3) for title in MODES.values()), ("", 1)]
    slower = [name for gain, name in gains if gain < 1]
    return {
        "context": context,
        "times": Table(header, body, groups=groups, text_columns=2),
        "best": max(gains, default=None),
        "worst": min(gains, default=None),
        "slower": slower,
        "cost": max(costs, default=None),
    }
