"""The leaderboard's cell, for `flash_benchmarking`: by this report's protocol and by the handout's."""

from pandas import DataFrame, Series

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.experiments.flash import HANDOUT_REP, HANDOUT_WARMUP
from scripts.answers.flash_benchmarking.peers import LIBRARIES
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.rendering.markup import Table, Typst, fixed_point
from scripts.views.attention_calls import OURS, titles, with_kernels_for_hopper
from scripts.views.attention_times import duels, strongest
from scripts.views.data import one, reason, select, statistic
from scripts.views.spread import legend, mark, marked
from scripts.views.verdicts import speed

COURSE_RECORD_MS = 5.364
"""Forward and backward at d 64 on one H100: the 2025 leaderboard's best entry."""
REFERENCE_D = 64


def board_row(cells: DataFrame) -> Series | None:
    """Our cell of the leaderboard."""
    return one(cells, compiled_call=True, implementation=OURS, d=REFERENCE_D)


def leaderboard(table: DataFrame, cells: DataFrame, ablations: DataFrame) -> Answer:
    """Both head dimensions, by every implementation."""
    rows, known = select(table, compiled_call=True), select(cells, compiled_call=True)
    ours, asked = board_row(cells), "Leaderboard of 2025"
    if ours is None:
        return Answer(asked, NOTHING, missing="Not measured: its cell needs a GPU.")
    names = titles(rows) | {OURS: ours_by_kernels(rows)}
    dimensions = sorted(set(rows["d"]))
    shown = board_table(rows, known, names, dimensions)
    return Answer(
        asked=asked,
        verdict=say(
            "At d = 64 ours takes {time:ms}; the course’s record, on an H100, is {record} ms.",
            time=ours["median"],
            record=str(COURSE_RECORD_MS),
        ),
        more=paragraph(*(against_fastest(known, names, int(d), aside=not place) for place, d in enumerate(dimensions))),
        evidence=[
            Captioned(
                shown,
                "Batch 1, 16 heads, 16\u202f384 tokens, bf16, causal, through torch.compile; clock and power are "
                "medians. "
                f"{legend(shown)}".strip(),
            )
        ],
        reason=paragraph(by_handout(rows), by_triton(rows, ablations)),
    )


def ours_by_kernels(rows: DataFrame) -> str:
    """What our implementation is called, with the language of its kernels where their names tell."""
    told = select(with_kernels_for_hopper(rows), metric="launches", implementation=OURS)["for_hopper"]
    return "ours" if not len(told) or told.nunique() > 1 else "ours (Gluon)" if told.all() else "ours (Triton)"


def against_fastest(known: DataFrame, names: dict[str, str], d: int, *, aside: bool) -> Typst:
    """Ours against the fastest library measured, at one head dimension; `aside` says that it is."""
    here = select(known, d=d)
    rival = strongest(duels(here, OURS), LIBRARIES)
    if rival is None:
        return NOTHING
    told = speed(*(one(here, implementation=name) for name in (OURS, rival)))
    title = f"{names[rival]}, the fastest library measured" if aside else names[rival]
    if told.faster is None:
        return say("At d = {d} it ties, within the spread, with {title}.", d=d, title=title)
    return told.sentence("ours", title, f"at d = {d}")


def board_table(rows: DataFrame, known: DataFrame, names: dict[str, str], dimensions: list[int]) -> Table:
    """One line per implementation and head dimension."""
    header = ["", "forward", "backward", "both", "TFLOP/s", "mean / ms", "MHz", "W"]
    body: list[list[str]] = []
    for d in dimensions:
        body.append([f"d = {d}"])
        for name, title in names.items():
            own, cell = select(rows, implementation=name, d=d), one(known, implementation=name, d=d)
            if cell is None:
                body.append([title, *[reason(own)] * (len(header) - 1)])
                continue
            rate = flash_flops("forward_backward", *cell[["batch_size", "heads", "sequence", "d"]], causal=True)
            line = [title, *(marked(one(own, metric=timed_pass), 2) or "–" for timed_pass in ("forward", "backward"))]
            line += [f"{cell['median']:.2f}{mark(cell)}", f"{rate / cell['median'] / 1e9:.0f}"]
            line.append(fixed_point(statistic(own, "mean", metric="handout"), 2))
            line += [
                fixed_point(statistic(own, "median", metric=f"handout_{what}"), 0) for what in ("sm_clock", "power")
            ]
            body.append(line)
    return Table(header, body, groups=[("", 1), ("medians / ms", 3), ("", 1), ("handout’s protocol", 3)])


def by_handout(rows: DataFrame) -> Typst:
    """The handout's protocol, and what power does to the clock meanwhile."""
    here = select(rows, d=REFERENCE_D)
    own = select(here, implementation=OURS)
    clock, power = (statistic(own, "median", metric=f"handout_{name}") for name in ("sm_clock", "power"))
    sentence = say(
        "By the handout’s protocol, the mean over {rep} s of calls after {warmup} s of warm-up with gradients that "
        "accumulate, ours takes {time:ms} at d = 64.",
        rep=HANDOUT_REP // 1000,
        warmup=HANDOUT_WARMUP // 1000,
        time=statistic(own, "mean", metric="handout"),
    )
    by_clock = select(here, metric="handout_sm_clock").sort_values("median")
    if not clock or not len(by_clock) or clock >= by_clock["median"].max():
        return sentence
    other = by_clock.iloc[-1]
    return paragraph(
        sentence,
        say(
            "It then draws {power:W} and runs at {clock} MHz; {other}, at {others:W}, keeps {most} MHz: power limits "
            "the "
            "clock of the fast kernels.",
            power=power,
            clock=round(clock),
            other=titles(here)[other["implementation"]],
            others=statistic(here, "median", metric="handout_power", implementation=other["implementation"]),
            most=round(other["median"]),
        ),
    )


def by_triton(rows: DataFrame, ablations: DataFrame) -> Typst:
    """What the Triton kernels take where those for Hopper ran: the leaderboard allows Triton only."""
    if ours_by_kernels(rows) != "ours (Gluon)":
        return NOTHING
    shape = {name: rows.iloc[0][name] for name in ("sequence", "heads", "precision")}
    usual = select(ablations, without="nothing", d=REFERENCE_D, **shape)
    passes = [statistic(usual, "median", metric=metric) for metric in ("forward", "backward_of_sum")]
    return say(
        "These kernels are in Gluon, Triton’s own lower-level language; the leaderboard asks for Triton. The plain "
        "Triton "
        "kernels take {forward:ms} forward and {backward:ms} backward, timed apart (below).",
        forward=passes[0],
        backward=passes[1],
    )
