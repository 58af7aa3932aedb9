"""Self-checks of the training ladder."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.experiments.training_ladder import FIRST, FP8
from scripts.checks import RUN_TO_RUN, Case, Cases, check
from scripts.views.training_ladder import SCATTER, losses, rung_table

COOLER = 0.1
"""How much faster a step may be than its parts alone: matmuls in a row reach the power limit, and the clock falls."""


def rungs(tables: Mapping[str, DataFrame]) -> DataFrame:
    """A row per rung and cell."""
    return rung_table(tables["training_ladder"])


@check("{n} step{s}; the closest takes {least:.2f} times as long as its parts", "a CPU also runs other programs")
def no_step_beats_its_floor(rungs: DataFrame) -> Cases:
    """No step of the ladder or in FP8 is more than {COOLER:.0%} faster than its parts alone."""
    known = rungs[rungs["floor"].notna() & (rungs["gpu"] != "")]
    for _, row in known.iterrows():
        detail = f"{row['step']:.1f} ms, its parts alone {row['floor']:.1f} ms"
        where = f"{row['label']}, {row['batch_size']} x {row['context']}, {row['rung']}"
        yield Case(where, row["over"] < (1 - COOLER) * (1 - RUN_TO_RUN), detail, float(row["over"]))


@check("{n} rung{s}; at most {most:.1f} standard deviations apart", "no rung was trained")
def every_rung_learns(training_ladder: DataFrame) -> Cases:
    """Each rung's final loss is within {SCATTER} standard deviations (over seeds) of fp32's.

    FP8's is shown but not checked.
    """
    trained = losses(training_ladder)
    exact = trained[trained["rung"] == FIRST.name]
    if not len(exact):
        return
    loss, std = exact["loss"].iloc[0], exact["std"].iloc[0]
    for _, row in trained[~trained["rung"].isin([FIRST.name, FP8.name])].iterrows():
        away = float(abs(row["loss"] - loss) / std)
        yield Case(row["rung"], not away <= SCATTER, f"{row['loss']:.3f}, fp32 {loss:.3f} ± {std:.3f}", away)
