"""Answers to `optimizer_state_sharding_accounting`: memory, time and communication of sharded optimizers."""

from collections.abc import Mapping
from typing import Any

import pandas
from pandas import DataFrame, Series

from cs336_systems.accounting.optimizer_sharding import SCHEMES, fp32_adamw
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.sizes import parse_size
from scripts.rendering.markup import Table, Typst, significant
from scripts.views.comparison import (
    FOREIGN,
    OURS,
    OWN,
    PHASES,
    cells_of,
    contenders,
    device_bound,
    fastest,
    names_in,
    outcome,
)
from scripts.views.comparison_tables import NONE, STEP, contender_table, extremes, missing, setting, shares, times
from scripts.views.data import select
from scripts.views.optimizer_sharding import (
    BEFORE_UPDATE,
    CELL,
    INITIALIZED,
    UNSHARDED,
    memory,
    memory_unit_of,
    peaks,
)
from scripts.views.units import GIB

HANDOUT_SIZE, HANDOUT_VOCABULARY = "xl", 10_000
RANKS = (2, 4)
GB = 1e9
FORMULAS = {
    "data parallel": ("$16 P$", "$2 r dot 4 P$"),
    "sharded optimizer": ("$8 P + 8 P \\/ N$", "$3 r dot 4 P$"),
    "ZeRO-1": ("$8 P + 8 P \\/ N$", "$2 r dot 4 P$"),
    "ZeRO-2": ("$4 P + 12 P \\/ N$", "$2 r dot 4 P$"),
}
"""Bytes of a rank's training state, and what it sends in a step; step counters, a few bytes, are left out."""
COMPARED = [
    ("sharded", UNSHARDED),
    ("sharded_peer_memory", "sharded"),
    ("sharded_gradients", "sharded"),
]
"""Whose steps are compared with whose, besides everybody's with PyTorch's fastest."""
COLUMNS = [
    *STEP,
    *(times({"synchronization": "sync."}.get(phase, phase), "timed apart / ms", phase) for phase in PHASES),
    times("comm.", "profile / ms", "communication"),
    shares("hidden / %", "profile / ms", "hidden_share"),
    times("compute", "profile / ms", "compute"),
]


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["optimizer_sharding"]
    rows = contenders(OptimizerSharding, table)
    told = device_bound(rows) if len(rows) else rows
    found: dict[str, Any] = {"schemes": schemes_table(), "ranks": RANKS, "size": HANDOUT_SIZE}
    if not len(rows):
        return found | {"steps": None, "missing": missing(table)}
    return found | {
        "s": setting(OptimizerSharding, table, rows),
        **memory_answers(memory(table)),
        "steps": contender_table(OptimizerSharding, table, rows, COLUMNS),
        "against": steps_against(told),
        "updates": {
            name: extremes(select(told, contender=name), "optimizer")
            for name in (UNSHARDED, "sharded", "sharded_peer_memory")
        },
        "communication": communication(told) if len(told) else None,
    }


def memory_answers(rows: DataFrame) -> dict[str, Any]:
    """What ranks have in use, beside the closed forms."""
    found = peaks(rows)
    error = found.assign(error=(found["peak"] / found["predicted_peak"] - 1).abs())
    return {
        "memory": memory_table(rows, found),
        "unit": memory_unit_of(rows)[0],
        "counted": bool(rows["allocated"].notna().any()),
        "saved": share_of_unsharded(found, "total", "sharded"),
        "saved_peak": share_of_unsharded(found, "peak", "sharded"),
        "saved_gradients_peak": share_of_unsharded(found, "peak", "sharded_gradients"),
        "error": extremes(error, "error"),
        "least_peak": least_peak(found),
    }


def memory_table(rows: DataFrame, found: DataFrame) -> Table:
    """Memory by moment and part, cell by cell."""
    unit, mib = memory_unit_of(rows)
    keys = [*CELL, "contender"]
    first = select(rows, moment=INITIALIZED).set_index(keys)["total"].rename("initialized")
    before = select(rows, moment=BEFORE_UPDATE).set_index(keys)
    parts = {"parameters": "weights", "gradients": "gradients", "optimizer_state": "state", "rest": "rest"}
    whole = found[[*keys, "cell", "title", "total", "passes", "update", "predicted_peak"]]
    whole = whole.join(first, on=keys).join(before[list(parts)], on=keys)
    groups = {
        "first": {"initialized": "in use"},
        "before the update": parts,
        "after it": {"total": "in use"},
        "peak": {"passes": "passes", "update": "update", "predicted_peak": "form"},
    }
    columns = {
        group: {name: title for name, title in names.items() if whole[name].notna().any()}
        for group, names in groups.items()
    }
    if not whole["passes"].notna().any():
        columns["peak"] = {}
    names = [name for group in columns.values() for name in group]
    body: list[list[str]] = []
    for cell, lines in whole.groupby("cell", sort=False):
        body.append([f"{cell}, {unit}"])
        body += [[row["title"], *(amount(row[name], mib) for name in names)] for _, row in lines.iterrows()]
    titles = [title for group in columns.values() for title in group.values()]
    return Table(
        ["", *titles], body, groups=[("", 1), *((group, len(found)) for group, found in columns.items() if found)]
    )


def amount(mib: float, unit: float) -> str:
    """Memory in units of so many MiB."""
    return NONE if pandas.isna(mib) else f"{mib / unit:.2f}"


def share_of_unsharded(found: DataFrame, column: str, contender: str) -> dict[str, tuple[float, str]] | None:
    """The least and the most of a contender's memory over the unsharded one's, by cell."""
    whole = select(found, contender=UNSHARDED).set_index(CELL)[column].rename("whole")
    own = select(found, contender=contender).join(whole, on=CELL)
    return extremes(own.assign(share=own[column] / own["whole"]), "share")


def least_peak(found: DataFrame) -> dict[str, Any] | None:
    """The peak of our sharded optimizer, in each of its modes, over the least of PyTorch's, by cell."""
    known = found[found["peak"].notna()]
    theirs = known[known["family"] == FOREIGN].groupby(CELL)["peak"].min().rename("theirs")
    ratios = {}
    for name in ("sharded", "sharded_gradients"):
        own = select(known, contender=name).join(theirs, on=CELL)
        ratios[name] = extremes(own.assign(ratio=own["peak"] / own["theirs"]), "ratio")
    return ratios if all(ratios.values()) else None


def steps_against(rows: DataFrame) -> Table | None:
    """Median steps over those of other contenders, each at its fastest, cell by cell; None where there are no two."""
    titles = dict(zip(rows["contender"], rows["title"], strict=True))
    sharded = [name for name in names_in(rows, OURS) if name != UNSHARDED]
    own, theirs = names_in(rows, OWN), names_in(rows, FOREIGN)
    pairs = [
        *((name, "PyTorch's fastest", theirs) for name in [*sharded, *own]),
        *((name, titles.get(other, ""), [other]) for name, other in COMPARED),
        *((name, "our fastest sharded", sharded) for name in own),
        *((name, before, [before]) for place, name in enumerate(own) for before in own[:place]),
    ]
    body = []
    for name, title, others in pairs:
        ratios = [over(fastest(cell, [name]), fastest(cell, others)) for cell in cells_of(rows)]
        if any(ratios):
            body.append([titles[name], title, *(ratio or NONE for ratio in ratios)])
    cells = [str(cell["cell"].iloc[0]) for cell in cells_of(rows)]
    return Table(["step of", "over that of", *cells], body, text_columns=2) if body else None


def over(own: Series | None, other: Series | None) -> str | None:
    """The ratio of two median steps as text, marked where neither is faster."""
    if own is None or other is None:
        return None
    return f"{'≈ ' if outcome(other, own) == 'same' else ''}{own['median'] / other['median']:.2f}"


def communication(rows: DataFrame) -> list[dict[str, Any]] | None:
    """How long our sharded modes communicate in the profiled step, over the unsharded one, beside the bytes' ratio."""
    found = []
    whole = fp32_adamw(parse_size(rows["size"].iloc[0]), int(rows["vocab_size"].iloc[0]))
    base = select(rows, contender=UNSHARDED).set_index(CELL)["communication"].rename("base")
    for name, scheme in (("sharded", "sharded optimizer"), ("sharded_gradients", "ZeRO-2")):
        own = select(rows, contender=name).join(base, on=CELL)
        ratio = extremes(own.assign(ratio=own["communication"] / own["base"]), "ratio")
        if ratio is None:
            return None
        sent = [SCHEMES[each].sent(whole, 2) for each in (scheme, "data parallel")]
        found.append({"title": own["title"].iloc[0], "ratio": ratio, "bytes": sent[0] / sent[1]})
    return found


def schemes_table() -> Table:
    """(c) Memory and communication by closed form, at the handout's size."""
    whole = fp32_adamw(parse_size(HANDOUT_SIZE), HANDOUT_VOCABULARY)
    body = []
    for name, scheme in SCHEMES.items():
        state, sent = FORMULAS[name]
        body.append(
            [
                name,
                Typst(state),
                *(str(significant(scheme.memory(whole, ranks).total / GIB)) for ranks in RANKS),
                Typst(sent),
                *(str(significant(scheme.sent(whole, ranks) / GB)) for ranks in RANKS),
            ]
        )
    numbers = [f"N = {ranks}" for ranks in RANKS]
    return Table(
        ["", "bytes", *numbers, "bytes", *numbers],
        body,
        groups=[("", 1), ("training state of a rank / GiB", 3), ("sent by a rank in a step / GB", 3)],
    )
