"""Self-checks that no card was slowed down while attention was timed, as by heat or by its host."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.flash import Flash
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.measure.measurement import POWER, SM_CLOCK
from cs336_systems.measure.record import parameters
from scripts.checks import Check, conclude
from scripts.checks.attention import name_flash
from scripts.checks.gpu_monitor import no_limit
from scripts.views.data import select

SLOWED = 0.05
"""Share of the highest clock by which a clock is below it that something holds back."""
NEAR_LIMIT = 0.05
"""Share of the power limit that a GPU which the limit holds back may leave."""
SLOWER_PRODUCT = 1.3
"""How many times the usual the product that each attention cell times may take: it draws power, so that it varies."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of slowed cards."""
    yield only_power_holds_the_clock_back(tables["flash"])
    yield the_product_takes_the_usual_time(tables["flash"])


def only_power_holds_the_clock_back(flash: DataFrame) -> Check:
    """In long repetitions the clock is near the highest, or the power near its limit: a card too hot is neither."""
    keys = [*parameters(Flash), "gpu"]
    clocks, watts = (select(flash, metric=f"handout_{name}").set_index(keys) for name in (SM_CLOCK, POWER))
    long = DataFrame({"clock": clocks["median"], "power": watts["median"]}).dropna().reset_index()
    highest = flash[flash["metric"].isin([SM_CLOCK, f"handout_{SM_CLOCK}"])].groupby("gpu")["median"].max()
    complaints, examined = [], 0
    for _, row in long.iterrows():
        if not (gpu := gpu_of(row["gpu"])):
            continue
        examined += 1
        limit = gpu.power_limit
        if row["clock"] < (1 - SLOWED) * highest[row["gpu"]] and row["power"] < (1 - NEAR_LIMIT) * limit:
            complaints.append(f"{name_flash(row)}: {row['clock']:.0f} MHz at {row['power']:.0f} W of {limit:g} W")
    check = "where a long repetition lowers the GPU's clock, its power is near the limit: nothing else holds it back"
    return conclude(check, complaints, examined, f"{examined} cells" if examined else no_limit({Flash.name: flash}))


def the_product_takes_the_usual_time(flash: DataFrame) -> Check:
    """The product of two matrices that each cell times takes about as long in all cells of its precision on a GPU."""
    products = select(flash, metric="matmul")
    usual = products.groupby(["gpu", "precision"])["median"].transform("median")
    products = products.assign(usual=usual, times=products["median"] / usual)
    complaints = [
        f"{name_flash(row)}: {row['median']:.3f} ms, usually {row['usual']:.3f} ms"
        for _, row in products[products["times"] > SLOWER_PRODUCT].iterrows()
    ]
    check = "the product that is timed in each attention cell takes the usual time: no card was slowed down meanwhile"
    summary = f"{len(products)} cells; {products['times'].max():.2f} times as long at most"
    return conclude(check, complaints, len(products), summary if len(products) else "the product is timed on GPUs only")
