"""Whether one contender is faster than another, cell by cell, and what the profiled steps say of why it is not."""

from collections.abc import Sequence
from typing import Any

import pandas
from pandas import DataFrame, Series

from scripts.views.comparison import FOREIGN, OWN, Kind, cells_of, fastest, names_in, outcome
from scripts.views.comparison_tables import extremes


def progress(
    kind: Kind, rows: DataFrame, earlier: Sequence[str], later: Sequence[str], names: tuple[str, str] | None = None
) -> dict[str, Any] | None:
    """Whether some contenders make the training step shorter than others, each at its fastest in each cell.

    Host-bound cells count only where there are no others, and nothing is concluded from them.

    Args:
        kind: the experiment.
        rows: of `contenders`.
        earlier: what is compared with.
        later: what is compared.
        names: what readers call both; None: by the first one's title.
    """
    both = [(fastest(cell, earlier), fastest(cell, later)) for cell in cells_of(rows)]
    pairs = [(first, second) for first, second in both if first is not None and second is not None]
    if not pairs:
        return None
    told = [pair for pair in pairs if not pair[0]["host_bound"]]
    found = [verdict(*pair) for pair in told]
    gains = [(pair["gain"], pair["cell"]) for pair in found]
    faster = [(pair["gain"], pair["cell"]) for pair in found if pair["verdict"] == "faster"]
    named = names or (at_its_best(kind, rows, earlier), at_its_best(kind, rows, later))
    return {
        "earlier": named[0],
        "later": named[1],
        "cells": len(found),
        "host_bound": [first["cell"] for first, _ in pairs] if not told else [],
        "faster": len(faster),
        "least": min(gains, default=None),
        "most": max(gains, default=None),
        "most_where_faster": max(faster, default=None),
        "exceptions": exceptions(found),
        "peak": extremes(DataFrame(found, columns=["cell", "peak"]), "peak"),
    }


def yours(kind: Kind, rows: DataFrame, ours: Sequence[str]) -> list[dict[str, Any]]:
    """Each of the reader's own against ours and the library's, at their best, and against each own one before it."""
    own = names_in(rows, OWN)
    others = [(ours, "ours at its best"), (names_in(rows, FOREIGN), "PyTorch's at its best")]
    pairs: list[tuple[Sequence[str], str, str]] = [
        (names, title, mine)
        for place, mine in enumerate(own)
        for names, title in [*others, *(([before], before) for before in own[:place])]
    ]
    found = [progress(kind, rows, names, [mine], (title, mine)) for names, title, mine in pairs]
    return [each for each in found if each is not None]


def at_its_best(kind: Kind, rows: DataFrame, names: Sequence[str]) -> str:
    """A kind of contender in words, with the choice that is made for each cell if there is one."""
    titles = {each.name: each.title for each in kind.contenders}
    several = rows[rows["contender"].isin(names)].groupby("cell").size().max() > 1
    return f"{titles[names[0]]}{' at its best' if several else ''}"


def verdict(first: Series, second: Series) -> dict[str, Any]:
    """The second contender of a cell against the first, and what the profiled step shows if it is slower."""
    found = outcome(first, second)
    loss = second["median"] - first["median"]
    reasons = {part: second[part] - first[part] for part in ("stretched", "uncovered", "idle")}
    most = max(reasons, key=lambda name: reasons[name]) if pandas.notna(list(reasons.values())).all() else ""
    return {
        "cell": first["cell"],
        "loss": loss,
        "gain": first["median"] / second["median"],
        "peak": second["memory"] / first["memory"],
        "verdict": found,
        # The largest part of the profiled steps' difference, if it is large enough to stand for most of the loss.
        "why": most if found == "slower" and most and reasons[most] > loss / 2 else "",
        "more": reasons[most] if most else None,
    }


def exceptions(pairs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells in which a contender is not faster, those with the same reason together."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for pair in pairs:
        if pair["verdict"] != "faster":
            found.setdefault((pair["verdict"], pair["why"]), []).append(pair)
    return [
        {
            "verdict": result,
            "why": why,
            "cells": [pair["cell"] for pair in same],
            "loss": (min(pair["loss"] for pair in same), max(pair["loss"] for pair in same)),
            "more": (min(pair["more"] for pair in same), max(pair["more"] for pair in same)) if why else None,
            "profiled": same[0]["more"] is not None,
        }
        for (result, why), same in found.items()
    ]
