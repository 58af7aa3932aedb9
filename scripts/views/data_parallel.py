"""Data-parallel wrappers by kind, of each of which pictures show the fastest setting."""

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import CONTENDERS, FLOOR
from scripts.views.comparison import OWN, TRIED, fastest, names_in

OURS = {each.name: each.title for each in CONTENDERS if not each.foreign and each.name not in (FLOOR, *TRIED)}
"""Those of this project that are more than a variation, and what readers call them."""
PYTORCH = list(dict.fromkeys(declared.name for declared in CONTENDERS if declared.foreign))


def kinds(rows: DataFrame) -> dict[str, list[str]]:
    """The wrappers of each kind, by what pictures call it: PyTorch's come as they are and at their best."""
    return {
        **{title: [name] for name, title in OURS.items()},
        "PyTorch's,\ndefault": PYTORCH[:1],
        "PyTorch's,\nbest": PYTORCH,
        **{name: [name] for name in names_in(rows, OWN)},
    }


def shown_in_timelines(cell: DataFrame) -> DataFrame:
    """Of a cell's contenders, the fastest of each kind; PyTorch's at its best only."""
    found = [fastest(cell, names) for names in kinds(cell).values() if names != PYTORCH[:1]]
    return cell.loc[[row.name for row in found if row is not None]]
