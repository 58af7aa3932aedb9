"""Self-checks of the ablation of the Triton attention kernels."""

from pandas import DataFrame

from cs336_systems.experiments.flash_ablation import FlashAblation
from scripts.checks import TOLERANCE, Case, Evidence, check, name_row
from scripts.views.attention_calls import OURS
from scripts.views.data import select

SHAPE = ["sequence", "d", "heads", "precision"]
PASSES = ["forward", "backward"]
LEAST = 1 - TOLERANCE["GPU"]
"""The share of the usual time that a reverted decision may take."""


def matched(rows: DataFrame, usual: DataFrame) -> DataFrame:
    """The rows whose pass was also measured as usual in the same shape, with the median of that, ms."""
    return rows.join(usual.set_index(SHAPE)["median"].rename("usual"), on=SHAPE, how="inner")


@check(
    "{n} passes within {TOLERANCE[GPU]:.0%}; largest difference {most:.1%}",
    "no shape was measured in both on a GPU",
)
def nothing_reverted_is_the_implementation(flash_ablation: DataFrame, flash: DataFrame) -> Evidence:
    """With nothing reverted, the Triton kernels take as long as ours in the comparison of implementations; in bf16,
    where ours may be others, no less.

    Those are the kernels for Hopper, which are used because they are faster.
    """
    for metric in PASSES:
        rows = select(flash_ablation, metric=metric, without="nothing")
        ours = select(flash, metric=metric, implementation=OURS, batch_size=1, causal=True)
        for _, row in matched(rows, ours).iterrows():
            slower = row["median"] / row["usual"] - 1
            error = max(0.0, -slower) if row["precision"] == "bf16" else abs(slower)
            found = f"{metric} {row['median']:.2f} ms, elsewhere {row['usual']:.2f} ms"
            yield Case(name_row(FlashAblation.name, row), error > TOLERANCE["GPU"], found, error)


@check("{n} passes; {least:.2f} times as long at least, allowed {LEAST:.2f}", "nothing was reverted on a GPU")
def nothing_reverted_is_the_fastest(flash_ablation: DataFrame) -> Evidence:
    """No pass is faster with a design decision of the kernels reverted."""
    for metric in PASSES:
        rows = select(flash_ablation, metric=metric)
        for _, row in matched(rows[rows["without"] != "nothing"], select(rows, without="nothing")).iterrows():
            ratio = row["median"] / row["usual"]
            found = f"{metric} {row['median']:.2f} ms, as it is {row['usual']:.2f} ms"
            yield Case(name_row(FlashAblation.name, row), ratio < LEAST, found, ratio)
