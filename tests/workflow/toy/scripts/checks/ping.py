"""Self-checks of the toy experiment."""

from pandas import DataFrame

from scripts.checks import Case, Cases, check
from scripts.views.data import select


@check("{n} cell{s}")
def pings_are_counted(ping: DataFrame) -> Cases:
    """Every process was counted once by a ping."""
    for _, row in select(ping, metric="sum").iterrows():
        yield Case(f"{row['processes']} processes", row["mean"] != row["processes"], f"{row['mean']}")
