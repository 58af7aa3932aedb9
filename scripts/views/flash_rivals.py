"""Our attention kernels against each other implementation, for `flash_benchmarking`."""

import itertools
from typing import Any

import pandas
from pandas import DataFrame

from cs336_systems.experiments.flash import HOST_BOUND
from scripts.rendering.markup import Table, fixed_point
from scripts.views.attention_calls import OURS, titles, with_kernels_for_hopper, without_own
from scripts.views.data import select

LONG = 1024
"""Only sequences from this length up count when implementations are compared."""
ONE_HEAD = {"batch_size": 1, "heads": 1, "causal": True, "compiled_call": False}
SHAPE = ["precision", "batch_size", "heads", "causal", "d", "sequence"]


def rivalry(table: DataFrame) -> dict[str, Any]:
    """Over the cells that ours and another both ran: where ours is faster end to end, and the extremes of the ratio.

    Once by events around a call, and once on the device only: from a replayed graph where there is one, and by events
    elsewhere, where the host is ahead of the device.
    """
    rows = select(table, **ONE_HEAD)
    gains = ratios(rows[rows["sequence"] >= LONG])
    body = []
    for (rival, title), precision in itertools.product(titles(gains).items(), sorted(set(gains["precision"]))):
        own = select(gains, implementation=rival, precision=precision)
        if len(own):
            line = [title, precision]
            for metric in ("forward_backward", "device"):
                ratios_ = own[metric].dropna()
                line += (
                    [f"{(ratios_ > 1).sum()} of {len(ratios_)}", f"{ratios_.min():.2f}×", f"{ratios_.max():.2f}×"]
                    if len(ratios_)
                    else ["–"] * 3
                )
            body.append(line)
    groups = [("", 2), ("called one by one", 3), ("on the device", 3)]
    header = ["against", "precision", *["faster in", "smallest", "largest"] * 2]
    return {
        "against": Table(header, body, text_columns=2, groups=groups) if body else None,
        "lost_on_device": losses(gains),
    }


def ratios(rows: DataFrame) -> DataFrame:
    """One row per shape and implementation beside ours: for each pass its time over ours, and `device` for both."""
    timed = rows[rows["metric"].isin(["forward", "backward", "forward_backward", "graph"]) & (rows["status"] == "ok")]
    columns = ["forward", "backward", "forward_backward", "graph"]
    medians = timed.pivot_table(index=[*SHAPE, "implementation"], columns="metric", values="median")
    medians = medians.reindex(columns=columns)
    medians["device"] = medians["graph"].fillna(medians["forward_backward"])
    medians = medians.drop(columns="graph").reset_index()
    pairs = medians[medians["implementation"] != OURS].merge(
        select(medians, implementation=OURS).drop(columns="implementation"), on=SHAPE, suffixes=("", "_ours")
    )
    for column in ("forward", "backward", "forward_backward", "device"):
        pairs[column] = pairs[column] / pairs[f"{column}_ours"]
    return pairs[pairs["forward_backward"].notna() | pairs["device"].notna()]


def losses(gains: DataFrame) -> list[dict[str, Any]]:
    """Against whom ours is slower on the device, in how many cells, and by which pass.

    The passes are those of lengths at which the device sets the pace of each by itself.
    """
    found = []
    for (rival, title), precision in itertools.product(titles(gains).items(), sorted(set(gains["precision"]))):
        own = select(gains, implementation=rival, precision=precision).dropna(subset=["device"])
        lost = own[own["device"] < 1]
        if not len(lost):
            continue
        long = lost[lost["sequence"] > HOST_BOUND]
        found.append(
            {
                "name": f"{title} in {precision}",
                "cells": len(lost),
                "of": len(own),
                "lengths": sorted({int(length) for length in lost["sequence"]}),
                "long": len(long),
                "forward": extremes(long["forward"]),
                "backward": extremes(long["backward"]),
            }
        )
    return found


def extremes(values: "pandas.Series[float]") -> tuple[float, float] | None:
    """The least and the most, or None of nothing."""
    known = values.dropna()
    return (float(known.min()), float(known.max())) if len(known) else None


def training_answers(table: DataFrame) -> dict[str, Any]:
    """Shapes that models train with: ours against each library, by mask and head dimension."""
    rows = select(table, compiled_call=False)
    many = rows[rows["batch_size"] * rows["heads"] > 1]
    gains = ratios(many)
    if not len(gains):
        return {"training": None, "training_all": None, "training_shapes": None, "for_hopper": {}}
    body = []
    for (rival, title), causal, d in itertools.product(titles(gains).items(), (True, False), sorted(set(gains["d"]))):
        own = select(gains, implementation=rival, causal=causal, d=d)["device"].dropna()
        if len(own):
            mask = "causal" if causal else "none"
            numbers = [f"{(own > 1).sum()} of {len(own)}", f"{own.min():.2f}×", f"{own.max():.2f}×"]
            body.append([title, mask, str(d), *numbers])
    return {
        "training": Table(["against", "mask", "d", "faster in", "smallest", "largest"], body, text_columns=2),
        "training_all": training_table(many),
        "training_sequences": sorted({int(b * h) for b, h in zip(gains["batch_size"], gains["heads"], strict=True)}),
        "training_shapes": heads_matter(
            *(without_own(each) for each in (gains, ratios(select(rows, batch_size=1, heads=1))))
        ),
        "for_hopper": {
            "many heads": ran_for_hopper(many),
            "one head": ran_for_hopper(select(rows, batch_size=1, heads=1)),
        },
    }


def ran_for_hopper(rows: DataFrame) -> tuple[int, int]:
    """In how many of ours in bf16 the kernels for Hopper ran, and how many tell their kernels."""
    told = select(with_kernels_for_hopper(rows), metric="launches", implementation=OURS, precision="bf16")
    return int(told["for_hopper"].sum()), len(told)


def training_table(many: DataFrame) -> Table:
    """Every shape with many heads: both passes of each implementation, medians."""
    times = select(many, metric="forward_backward")
    names = titles(times)
    keys = ["causal", "d", "sequence", "batch_size", "heads"]
    by_name = times.pivot_table(index=keys, columns="implementation", values="median")
    body = [
        [
            "causal" if own["causal"] else "none",
            *(str(own["d"]), str(own["sequence"]), f"{own['batch_size']} × {own['heads']}"),
            *(fixed_point(own[name], 3) for name in names),
        ]
        for _, own in by_name.reset_index().iterrows()
    ]
    header = ["mask", "d", "sequence", "batch × heads", *names.values()]
    return Table(header, body)


def heads_matter(many: DataFrame, alone: DataFrame) -> dict[str, Any] | None:
    """The ratios to the fastest other implementation on the device, with one head and with many: equal lengths, causal.

    Where the two differ, it is how few tiles one head has; where both are below one, it is not.
    """
    keys = ["precision", "causal", "d", "sequence"]
    both = [
        group.dropna(subset=["device"]).groupby(keys)["device"].min().rename(name)
        for name, group in (("many", many), ("one", alone))
    ]
    pairs = both[0].to_frame().join(both[1], how="inner")
    if not len(pairs):
        return None
    return {"one": extremes(pairs["one"]), "many": extremes(pairs["many"]), "shapes": len(pairs)}
