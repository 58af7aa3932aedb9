"""Answers to `nsys_profile`: which kernels a step runs, for how long, and what limits them."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.answers.nsys_profile.kinds import (
    ASKED,
    longest,
    others,
    softmax,
)
from scripts.rendering.answer import NOTHING, Answer, Captioned, count, paragraph, say, tell
from scripts.rendering.markup import Table, Typst, fixed, significant
from scripts.views.data import PRECISIONS, measured_gpu, reason, select, size_order
from scripts.views.kernels import (
    MODES_PROFILED,
    forward_passes,
    kernels,
    label_of,
    profiled_closely,
    shares,
)


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    table = tables["kernel_profile"]
    gpu = measured_gpu({"": table})
    close = profiled_closely(table)
    unit = "kernel" if gpu else "operator"
    if not len(close):
        return {"unit": unit, "steps": None, **{name: Answer(asked, NOTHING) for name, asked in ASKED.items()}}
    here = select(table, compiled=False, attention="plain", context=close["context"].iloc[0])
    return {
        "unit": unit,
        "steps": int(here["steps"].iloc[0]),
        "warmup": int(here["warmup"].iloc[0]),
        "forward": forward_time(here, tables["end_to_end"], close, on_gpu=bool(gpu)),
        "longest": longest(here, close, unit),
        "others": others(close, gpu, unit),
        "training": training(close, table, unit),
        "softmax": softmax(here, close),
    }


def forward_time(here: DataFrame, end_to_end: DataFrame, close: DataFrame, *, on_gpu: bool) -> Answer:
    """Sub-question (a): the forward pass by the trace, by events and by another experiment's timer."""
    found = forward_passes(here, end_to_end, on_gpu=on_gpu)
    told = found[~found["host_bound"].astype(bool)]
    gap = ((told["stage"] - told["timer"]).abs() / told["timer"]).dropna()
    quoted = select(told, label=close["label"].iloc[0])
    return Answer(
        asked=ASKED["forward"],
        verdict=say(
            "A forward pass of {label} at context {context} takes {times:listing}.",
            label=close["label"].iloc[0],
            context=int(close["context"].iloc[0]),
            times=[
                say("{time:ms} in {name}", time=row["stage"], name=row["precision"]) for _, row in quoted.iterrows()
            ],
        ),
        more=paragraph(
            say(
                "The profiled process and the host's timer differ by {gap:percent} (median of {cells}).",
                gap=gap.median(),
                cells=count(len(gap), "device-bound cell" if on_gpu else "cell"),
            ),
            say("{bound} of {all} cells are host-bound.", bound=len(found) - len(told) or None, all=len(found)),
        ),
        evidence=[Captioned(forward_table(found, on_gpu=on_gpu), FORWARD_CAPTION + (STARRED if on_gpu else ""))],
        reason=tell(
            on_gpu,
            Typst(
                "A device-bound pass lasts as long as its kernels, whoever holds the clock. In host-bound cells both "
                "clocks measure how fast their own process launches kernels, and processes differ in that "
                "(@sec-host_costs): there the kernels' time is the one to compare. The profiler slows launches, so the "
                "stage is timed without it."
            ),
            Typst("The two are different processes; other programs may have slowed either."),
        ),
        details=["kernel_timeline"],
    )


FORWARD_CAPTION = (
    "Forward pass of inference at one context: by the trace, by a clock around the stage without the profiler (means), "
    "and by the host's timer in another process (end_to_end, median)."
)


STARRED = " A star: host-bound in one of the two processes."


def forward_table(found: DataFrame, *, on_gpu: bool) -> Table:
    """The forward pass by three clocks."""
    columns = [fixed(list(found[name])) for name in ("kernels", "stage", "timer")]
    body = [
        [
            row["label"] + ("*" if row["host_bound"] else ""),
            row["precision"],
            *(text or "–" for text in texts),
            *([f"{100 * row['busy']:.0f}"] if on_gpu else []),
        ]
        for (_, row), *texts in zip(found.iterrows(), *columns, strict=True)
    ]
    header = ["size", "precision", "kernels / ms" if on_gpu else "operators / ms", "stage / ms", "host timer / ms"]
    return Table([*header, *(["busy / %"] if on_gpu else [])], body, text_columns=2)


def training(close: DataFrame, table: DataFrame, unit: str) -> Answer:
    """Sub-question (d): each category's share of inference and of the training step."""
    found = {
        name: [shares(kernels(close, precision=name, mode=mode)) for mode in MODES_PROFILED] for name in PRECISIONS
    }
    whole = {name: both for name, both in found.items() if all(both)}
    moves = [
        say("from {before:percent} to {after:percent} in {name}", before=old["matmul"], after=new["matmul"], name=name)
        for name, (old, new) in whole.items()
    ]
    gained = [say("{share:percent} in {name}", share=new["optimizer"], name=name) for name, (_, new) in whole.items()]
    falls = all(new["matmul"] < old["matmul"] for old, new in whole.values())
    title = f"Time of all {unit}s in a step, and the matmuls' share, in every eager cell with plain attention."
    return Answer(
        asked=ASKED["training"],
        verdict=say(
            "The matmuls' share {moves} {shares:listing} ({label}).",
            moves="falls" if falls else "goes",
            shares=moves,
            label=close["label"].iloc[0],
        ),
        more=say("AdamW takes {gained:listing} of the training step's {unit} time.", gained=gained, unit=unit),
        evidence=["kernel_shares"],
        reason=say(
            "The backward pass makes two matmuls for each of the forward pass, but also element-wise {unit}s and "
            "copies for each of its own, so the mixture changes little (@fig-kernel_shares). AdamW has no matmuls: it "
            "reads and writes every weight, gradient and moment once, in fp32 in both precisions, so it weighs more "
            "where the rest is faster.",
            unit=unit,
        ),
        details=[Captioned(cells_table(select(table, compiled=False, attention="plain")), title, long=True)],
    )


def cells_table(plain: DataFrame) -> Table:
    """Every size and context: the kernels' time and the share of matmuls."""
    body = []
    kinds = [(precision, mode) for precision in PRECISIONS for mode in MODES_PROFILED]
    for size in size_order(plain):
        for context in sorted(plain["context"].unique()):
            line = [label_of(plain, size), str(context)]
            for precision, mode in kinds:
                rows = select(plain, size=size, context=context, precision=precision, mode=mode)
                launched = kernels(rows)
                lost = "OOM" if "memory" in reason(rows) else "n/m"
                line += (
                    [str(significant(launched["ms"].sum())), f"{100 * shares(launched)['matmul']:.0f}"]
                    if len(launched)
                    else [lost] * 2
                )
            body.append(line)
    groups = [("", 2), *((f"{precision}, {MODES_PROFILED[mode]}", 2) for precision, mode in kinds)]
    return Table(["size", "context", *["ms", "matmul / %"] * len(kinds)], body, groups=groups)
