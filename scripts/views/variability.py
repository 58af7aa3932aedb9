"""How far repeated steps scatter, which single ones stand out, and in which cells the host sets the pace."""

import statistics
from typing import Any

import pandas
from pandas import DataFrame, Series

from scripts.rendering.markup import Table, mean_std
from scripts.views.cells import name_cell
from scripts.views.steps import HOST_BOUND

SMALL_SPREAD = 0.05
"""A coefficient of variation that a reader would call small."""
OUTLIER = 1.2
"""A step that takes more than this many medians of its cell is named as an outlier."""
LISTED = 8
"""So many of the cells that scatter most are listed."""


def spread(steps: DataFrame) -> dict[str, Any]:
    """How far single steps scatter about their mean, with and without outliers, and a verdict.

    `verdict`: `small` everywhere; `outliers`, if it is small everywhere without them; else `mostly` or `large`, by
    whether most cells are below SMALL_SPREAD.
    """
    steps = steps[steps["std"].notna()].copy()
    if not len(steps):
        return {"cells": 0, "pace_known": 0}
    steps["variation"] = steps["std"] / steps["mean"]
    steps["outliers"] = [outliers(step) for _, step in steps.iterrows()]
    steps["variation_without"] = [variation_without_outliers(step) for _, step in steps.iterrows()]
    wide = steps[steps["variation"] > SMALL_SPREAD].sort_values("variation", ascending=False)
    without_samples = int((steps["samples"].map(len) == 0).sum())
    still_wide = int((wide["variation_without"] > SMALL_SPREAD).sum())
    if not len(wide):
        verdict = "small"
    elif not still_wide:
        verdict = "outliers"
    else:
        verdict = "mostly" if len(wide) < len(steps) / 2 else "large"
    worst = steps.iloc[steps["variation"].argmax()]
    return {
        "cells": len(steps),
        "verdict": verdict,
        "typical_variation": steps["variation"].median(),
        "worst_variation": worst["variation"],
        "worst_cell": name_cell(worst),
        "worst_step": worst["mean"],
        "wide_cells": len(wide),
        "still_wide": still_wide,
        "without_samples": without_samples,
        "small_spread": SMALL_SPREAD,
        "outlier_factor": OUTLIER,
        "outliers": int(steps["outliers"].map(len).sum()),
        "first_outliers": sum(1 in places for places in steps["outliers"]),
        "wide": wide_table(wide.head(LISTED)) if len(wide) else None,
        "listed": min(LISTED, len(wide)),
        **pace(steps),
    }


def outliers(step: Series) -> list[int]:
    """The numbers of a cell's timed steps, from 1, that took more than OUTLIER medians; none without samples."""
    return [place for place, sample in enumerate(step["samples"], start=1) if sample > OUTLIER * step["step"]]


def variation_without_outliers(step: Series) -> float:
    """Standard deviation over mean of the steps that are no outliers; of all steps where these are fewer than two."""
    kept = [sample for place, sample in enumerate(step["samples"], start=1) if place not in step["outliers"]]
    return statistics.stdev(kept) / statistics.fmean(kept) if len(kept) > 1 else float(step["variation"])


def wide_table(wide: DataFrame) -> Table:
    """The cells that scatter most: what single steps did, and what is left without outliers."""
    body = []
    pairs = mean_std(list(zip(wide["mean"], wide["std"], strict=True)))
    for (_, step), pair in zip(wide.iterrows(), pairs, strict=True):
        slowest = max(step["samples"], default=None)
        body.append(
            [
                name_cell(step),
                pair,
                f"{step['step']:.1f}",
                f"{slowest / step['step']:.2f}× (no. {step['samples'].index(slowest) + 1})" if slowest else "–",
                f"{100 * step['variation']:.0f}",
                f"{100 * step['variation_without']:.1f}",
                "–" if pandas.isna(step["busy"]) else f"{100 * step['busy']:.0f}",
            ]
        )
    header = ["cell", "mean ± std / ms", "median / ms", "slowest step", "std / %", "without outliers / %", "busy / %"]
    if wide["busy"].isna().all():  # a CPU
        header, body = header[:-1], [line[:-1] for line in body]
    return Table(header, body)


def pace(steps: DataFrame) -> dict[str, Any]:
    """In which cells the device waits for the host, where its busy time was measured, and how those scatter."""
    known = steps[steps["busy"].notna()]
    slow, fast = known[known["host_bound"]], known[~known["host_bound"]]
    return {
        "pace_known": len(known),
        "host_bound": len(slow),
        "host_bound_share": HOST_BOUND,
        "host_bound_variation": slow["variation"].median() if len(slow) else None,
        "device_bound_variation": fast["variation"].median() if len(fast) else None,
        "host_bound_training": {
            precision: (int(group["host_bound"].sum()), len(group))
            for precision, group in training(known).groupby("precision", sort=False)
        },
    }


def training(steps: DataFrame) -> DataFrame:
    """The eager training steps with plain attention."""
    return steps[(steps["mode"] == "train_step") & ~steps["compiled"] & (steps["attention"] == "plain")]
