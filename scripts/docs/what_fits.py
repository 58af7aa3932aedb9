"""The generated parts of docs/what-fits.md: the API, and how far predictions are from the recorded steps."""

from collections.abc import Iterator

from cs336_systems.fit.recorded import recorded
from scripts.calibration.rates import OTHERS, RECORDED
from scripts.docs import api
from scripts.docs.gpus import short_name
from scripts.docs.markdown import table, with_table
from scripts.views.data import load_recorded
from scripts.views.what_fits import evaluated, predictions, summary

HEADER = ("recorded steps", "number", "median error", "largest error")


def page(text: str) -> str:
    """The text of the page with both parts."""
    return with_table(api.page(text), "accuracy", table(HEADER, errors(), right=range(1, len(HEADER))))


def errors() -> Iterator[list[str]]:
    """Rows for memory and time on each recorded GPU."""
    known = recorded()
    for raw in (RECORDED, *OTHERS):
        steps = predictions(load_recorded(raw), known)
        name = short_name(steps["gpu"].iloc[0])
        memory, time = (summary(evaluated(steps, what)[f"{what}_error"]) for what in ("memory", "time"))
        fitted = "weights fitted to them" if raw == RECORDED else "nothing fitted to them"
        yield [f"{name}: peak memory", *line(**memory)]
        yield [f"{name}: device-bound times, {fitted}", *line(**time)]


def line(cells: float, median: float, most: float) -> list[str]:
    """The numbers of a row."""
    return [str(cells), f"{median:.1%}", f"{most:.1%}"]
