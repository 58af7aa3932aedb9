"""Our attention kernels against the libraries', for `flash_benchmarking`."""

from pandas import DataFrame

from cs336_systems.experiments.flash import Flash
from scripts.rendering.answer import Answer, Captioned, say
from scripts.rendering.grid import crossed
from scripts.rendering.markup import Table, Typst
from scripts.views.attention_calls import OURS, titles, with_kernels_for_hopper
from scripts.views.attention_times import ENOUGH, KINDS, duels, score, strongest
from scripts.views.data import select
from scripts.views.own import own_rows

LIBRARIES = [contender.name for contender in Flash.contenders if contender.foreign]


def peers(table: DataFrame, cells: DataFrame) -> Answer:
    """Every library, by the kind of shape."""
    met = select(duels(cells, OURS), precision="bf16", compiled_call=False)
    kinds = {kind: select(met, **wanted) for kind, wanted in KINDS.items()}
    kinds = {kind: rows for kind, rows in kinds.items() if strongest(rows, LIBRARIES)}
    if not kinds:
        missing = "Not measured: the compared kernels need a GPU."
        return Answer("Against the libraries", missing=missing)
    main = next((kind for kind in ("Many heads, causal", "One head, causal") if kind in kinds), min(kinds))
    rival = str(strongest(kinds[main], LIBRARIES))
    names = titles(table)
    scores = {kind: score(select(rows, implementation=rival)) for kind, rows in kinds.items()}
    by_median = all(found.cells >= ENOUGH for found in scores.values())
    return Answer(
        asked="Against the libraries",
        verdict=scores[main].sentence(names[rival], main, "the fastest library measured"),
        more=say(
            *(found.sentence(names[rival], kind) for kind, found in scores.items() if kind != main),
            "Medians of {cells:listing} shapes.",
            cells=[str(scores[kind].cells) for kind in dict.fromkeys([main, *scores])] if by_median else None,
        ),
        evidence=[
            "flash_training",
            Captioned(
                score_table(kinds, names),
                "Both passes in bf16 against every other implementation, by kind of shape: the number of shapes at "
                "which ours is faster / on par / slower, and the median of the other’s time divided by ours. Shapes "
                "with only a host-bound time are left out.",
            ),
        ],
        reason=say(
            which_kernels(table),
            "Short calls are replayed from a CUDA graph with a warm L2 cache; long ones are called with a cold "
            "cache. At each shape this is the same for all implementations. FlashAttention-3 is not on PyPI and was "
            "not measured.",
        ),
    )


def score_table(kinds: dict[str, DataFrame], names: dict[str, str]) -> Table:
    """One line per compared implementation, libraries and users' own included."""
    lines: list[dict[str, object]] = []
    for name, title in names.items():
        scores = {kind: score(select(rows, implementation=name)) for kind, rows in kinds.items()}
        lines += [
            {"title": title, "kind": kind, "score": found.text, "ratio": found.ratio}
            for kind, found in scores.items()
            if found.cells
        ]
    columns = {"faster / on par / slower": "{score}", "ratio": "{ratio:.2f}×"}
    return crossed(DataFrame(lines), "title", "kind", columns, "against", list(kinds))


def which_kernels(table: DataFrame) -> Typst:
    """The cells in which the kernels for Hopper ran."""
    told = select(with_kernels_for_hopper(table), metric="launches", implementation=OURS, precision="bf16")
    told = told[~own_rows(told) & ~told["compiled_call"]]
    return say(
        "According to the launched kernels' names, ours ran the Gluon kernels for Hopper in {ran} of {all} recorded "
        "bf16 cells, and the Triton kernels in the others.",
        ran=int(told["for_hopper"].sum()) or "none",
        all=len(told) or None,
    )
