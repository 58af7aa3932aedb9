"""Self-checks of the ablation of the Triton attention kernels."""

import math
from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.flash_ablation import FlashAblation
from cs336_systems.measure.record import parameters
from scripts.checks import TOLERANCE, Check, conclude
from scripts.views.attention_calls import OURS
from scripts.views.cells import in_words
from scripts.views.data import select

SHAPE = ["sequence", "d", "heads", "precision"]
PASSES = ["forward", "backward"]
ALIKE = {"batch_size": 1, "causal": True}


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    yield nothing_reverted_is_the_implementation(tables["flash_ablation"], tables["flash"])
    yield nothing_reverted_is_the_fastest(tables["flash_ablation"])


def nothing_reverted_is_the_implementation(table: DataFrame, flash: DataFrame) -> Check:
    """With nothing reverted, the kernels take as long as where they are compared with other implementations.

    Except where those may be the kernels for Hopper, which are used because they are faster.
    """
    complaints, examined, worst = [], 0, 0.0
    for metric in PASSES:
        rows = select(table, metric=metric, status="ok", without="nothing")
        times = select(flash, metric=metric, status="ok", implementation=OURS, **ALIKE).set_index(SHAPE)["median"]
        pairs = rows.join(times.rename("elsewhere"), on=SHAPE, how="inner")
        for _, row in pairs.iterrows():
            examined += 1
            slower = row["median"] / row["elsewhere"] - 1
            error = max(0.0, -slower) if row["precision"] == "bf16" else abs(slower)
            worst = max(worst, error)
            if error > TOLERANCE["GPU"]:
                cell = in_words(FlashAblation, tuple(row[parameters(FlashAblation)]))
                complaints.append(f"{cell}: {metric} {row['median']:.2f} ms, elsewhere {row['elsewhere']:.2f} ms")
    check = (
        "with nothing reverted, the Triton kernels take as long as ours in the comparison of implementations; in bf16,"
        " where ours may be others, no less"
    )
    summary = f"{examined} passes within {TOLERANCE['GPU']:.0%}; largest difference {worst:.1%}"
    return conclude(check, complaints, examined, summary if examined else "no shape was measured in both on a GPU")


def nothing_reverted_is_the_fastest(table: DataFrame) -> Check:
    """No decision of the kernels slows them down: reverting it does not make a pass faster."""
    complaints, examined, least = [], 0, math.inf
    for metric in PASSES:
        rows = select(table, metric=metric, status="ok")
        usual = select(rows, without="nothing").set_index(SHAPE)["median"]
        reverted = rows[rows["without"] != "nothing"].join(usual.rename("usual"), on=SHAPE, how="inner")
        for _, row in reverted.iterrows():
            examined += 1
            ratio = row["median"] / row["usual"]
            least = min(least, ratio)
            if ratio < 1 - TOLERANCE["GPU"]:
                cell = in_words(FlashAblation, tuple(row[parameters(FlashAblation)]))
                complaints.append(f"{cell}: {metric} {row['median']:.2f} ms, as it is {row['usual']:.2f} ms")
    check = "no pass is faster with a design decision of the kernels reverted"
    summary = f"{examined} passes; {least:.2f} times as long at least, allowed {1 - TOLERANCE['GPU']:.2f}"
    return conclude(check, complaints, examined, summary if examined else "nothing was reverted on a GPU")
