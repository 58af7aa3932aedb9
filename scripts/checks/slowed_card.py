"""Self-checks that no card was slowed down while attention was timed, as by heat or by its host."""

from pandas import DataFrame

from cs336_systems.experiments.flash import Flash
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.record.measurement import POWER, SM_CLOCK
from cs336_systems.record.rows import parameters
from scripts.checks import Case, Evidence, check, name_row
from scripts.checks.gpu_monitor import NO_LIMIT
from scripts.views.data import select

SLOWED = 0.05
"""Share of the highest clock by which a clock is below it that something holds back."""
NEAR_LIMIT = 0.05
"""Share of the power limit that a GPU which the limit holds back may leave."""


@check("{n} cells", NO_LIMIT)
def only_power_holds_the_clock_back(flash: DataFrame) -> Evidence:
    """Where a long repetition lowers the GPU's clock, its power is near the limit: nothing else holds it back.

    A card that is too hot has neither a high clock nor a high power.
    """
    keys = [*parameters(Flash), "gpu"]
    clocks, watts = (select(flash, metric=f"handout_{name}").set_index(keys) for name in (SM_CLOCK, POWER))
    long = DataFrame({"clock": clocks["median"], "power": watts["median"]}).dropna().reset_index()
    highest = flash[flash["metric"].isin([SM_CLOCK, f"handout_{SM_CLOCK}"])].groupby("gpu")["median"].max()
    for _, row in long.iterrows():
        if gpu := gpu_of(row["gpu"]):
            slow, limit = row["clock"] < (1 - SLOWED) * highest[row["gpu"]], gpu.power_limit
            found = f"{row['clock']:.0f} MHz at {row['power']:.0f} W of {limit:g} W"
            yield Case(name_row(Flash.name, row), slow and row["power"] < (1 - NEAR_LIMIT) * limit, found)
