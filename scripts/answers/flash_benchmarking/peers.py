"""Our attention kernels against the libraries', for `flash_benchmarking`."""

from pandas import DataFrame

from cs336_systems.implementations import PARAMETER
from scripts.rendering.answer import Answer, Captioned, say
from scripts.rendering.grid import NONE, grid
from scripts.views.attention_calls import OURS, availability, titles
from scripts.views.attention_times import KINDS, LIBRARIES, duels, score_sentence, scores, strongest
from scripts.views.data import flat, select

MAIN = ["Many heads, causal", "One head, causal", "Many heads, no mask"]
"""The kind of shapes that the verdict is about: the first that was measured."""


def peers(table: DataFrame, cells: DataFrame) -> Answer:
    """Every library, by the kind of shape."""
    met = select(duels(cells, OURS), precision="bf16", compiled_call=False)
    main = next((kind for kind in MAIN if strongest(select(met, kind=kind))), "")
    rival = strongest(select(met, kind=main))
    asked = "Against the fastest library measured (bf16)"
    if rival is None:
        return Answer(asked, missing="Not compared: our kernels were not timed next to any library.")
    names, every = titles(table), scores(met)
    every["order"], every["title"] = every[PARAMETER].map(list(names).index), every[PARAMETER].map(names)
    kinds = [kind for kind in KINDS if strongest(select(met, kind=kind))]
    every = every[every["kind"].isin(kinds)].sort_values("order", kind="stable")
    by_kind = {row["kind"]: row for _, row in select(every, implementation=rival).iterrows()}
    others = [by_kind[kind] for kind in kinds if kind in by_kind and kind != main]
    lines = flat(every.pivot(index=["order", "title"], columns="kind", values=["won", "even", "lost", "median"]))
    columns: dict[str, dict[str, str] | str] = {"against": "{title}"}
    for kind in kinds:
        numbers = " / ".join(f"{{{name} {kind}:.0f}}" for name in ("won", "even", "lost"))
        columns[kind] = {"faster / on par / slower": numbers, "ratio": f"{{median {kind}:.2f}}×"}
    return Answer(
        asked=asked,
        verdict=score_sentence(by_kind[main], names[rival]),
        more=say(*(score_sentence(score, names[rival]) for score in others)),
        results=[
            "flash_training",
            Captioned(
                grid(lines.reset_index(), columns),
                "Ours against every other implementation in bf16, both passes together: number of shapes at which ours "
                "is faster / on par / slower, and median of the other’s time divided by ours. Shapes with only a "
                "host-bound time are left out.",
                legend={NONE: f"{NONE}: not timed at these shapes"},
            ),
        ],
        reason=say(
            "Replayed calls start with a warm L2 cache, the others with a cold one; at each shape, all implementations "
            "are timed the same way. FlashAttention-3 was not measured.",
            *(
                say("{name} was not measured: {why}.", name=names[str(name)], why=availability(rows))
                for name, rows in table.groupby(PARAMETER, sort=False)
                if name in LIBRARIES
            ),
        ),
    )
