"""Our attention kernels against the libraries', for `flash_benchmarking`."""

from pandas import DataFrame

from cs336_systems.experiments.flash import Flash
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.rendering.markup import Table, Typst, fixed_point
from scripts.views.attention_calls import OURS, titles, with_kernels_for_hopper
from scripts.views.attention_times import KINDS, duels, score, strongest
from scripts.views.data import select
from scripts.views.own import own_rows

LIBRARIES = [contender.name for contender in Flash.contenders if contender.foreign]


def peers(table: DataFrame, cells: DataFrame) -> Answer:
    """Every library, by the kind of shape."""
    asked = "Against the libraries"
    met = select(duels(cells, OURS), precision="bf16", compiled_call=False)
    kinds = {kind: select(met, **wanted) for kind, wanted in KINDS.items()}
    kinds = {kind: rows for kind, rows in kinds.items() if strongest(rows, LIBRARIES)}
    if not kinds:
        return Answer(asked, NOTHING, missing="Not measured: the kernels that are compared need a GPU.")
    main = next((kind for kind in ("Many heads, causal", "One head, causal") if kind in kinds), min(kinds))
    rival = str(strongest(kinds[main], LIBRARIES))
    names = titles(table)
    scores = {kind: score(select(rows, implementation=rival)) for kind, rows in kinds.items()}

    return Answer(
        asked=asked,
        verdict=scores[main].sentence(names[rival], main, "the fastest library measured"),
        more=paragraph(
            *(found.sentence(names[rival], kind) for kind, found in scores.items() if kind != main),
            say(
                "Medians of {cells:listing} shapes.",
                cells=[str(scores[kind].cells) for kind in dict.fromkeys([main, *scores])],
            ),
        ),
        evidence=[
            "flash_training",
            Captioned(
                score_table(kinds, names),
                "Both passes in bf16 against each other implementation, by kind of shape: at how many shapes ours is "
                "faster / as fast within the spread / slower, and the median of the other’s time over ours. Shapes at "
                "which the device’s time is not known, since the host sets the pace, are left out.",
            ),
        ],
        reason=paragraph(
            by_pass(kinds.get("Many heads, no mask"), rival, names[rival]),
            which_kernels(table),
            Typst(
                "Short calls are replayed from a CUDA graph with a warm L2 cache, long ones called with a cold one: "
                "all implementations alike at each shape. FlashAttention-3 has no package and was not measured."
            ),
        ),
    )


def score_table(kinds: dict[str, DataFrame], names: dict[str, str]) -> Table:
    """One line per implementation that was met, libraries and users' own included."""
    body = []
    for name, title in names.items():
        line, met = [title], False
        for rows in kinds.values():
            found = score(select(rows, implementation=name))
            met = met or found.cells > 0
            line += [found.text, fixed_point(found.ratio, 2, "×")]
        if met:
            body.append(line)
    header = ["against", *["faster / equal / slower", "ratio"] * len(kinds)]
    return Table(header, body, groups=[("", 1), *((kind, 2) for kind in kinds)])


def by_pass(met: DataFrame | None, rival: str, title: str) -> Typst:
    """Which pass ours loses or wins without a mask."""
    if met is None:
        return NOTHING
    passes = select(met, implementation=rival)[["forward", "backward"]].median()
    return say(
        "By single passes without a mask, {title} takes {forward:times} our time forward and {backward:times} "
        "backward.",
        title=title,
        forward=passes["forward"],
        backward=passes["backward"],
    )


def which_kernels(table: DataFrame) -> Typst:
    """Where the kernels for Hopper ran."""
    told = select(with_kernels_for_hopper(table), metric="launches", implementation=OURS, precision="bf16")
    told = told[~own_rows(told) & ~told["compiled_call"]]
    ran = told[told["for_hopper"]]
    return say(
        "By the names of the launched kernels, ours is Gluon’s for Hopper in {ran} of {all} recorded bf16 cells, and "
        "Triton’s in the others.",
        ran=len(ran) or "none",
        all=len(told) or None,
    )
