"""Answers to `mixed_precision_accumulation`: a thousand additions of 0.01."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from scripts.rendering.answer import Answer, Captioned, paragraph, say, tell
from scripts.rendering.markup import Table, fixed_point
from scripts.views.data import ratio, select, statistic

METRICS = {"addend": "rounded_addend", "sum": "sum", "error": "relative_error", "last": "last_step"}
WAYS = {
    "fp32 + fp32": {"accumulator": "fp32", "addend": "fp32", "cast": False},
    "fp16 + fp16": {"accumulator": "fp16", "addend": "fp16", "cast": False},
    "fp32 + fp16": {"accumulator": "fp32", "addend": "fp16", "cast": False},
    "fp32 + (fp16 cast to fp32)": {"accumulator": "fp32", "addend": "fp16", "cast": True},
    "bf16 + bf16": {"accumulator": "bf16", "addend": "bf16", "cast": False},
    "fp32 + bf16": {"accumulator": "fp32", "addend": "bf16", "cast": False},
}
"""The handout's four ways, and two of bf16: accumulator + addend."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answer."""
    table = tables["accumulation"]
    found = {title: sums(select(table, **way)) for title, way in WAYS.items()}
    body = [
        [title, *(fixed_point(row[name] * scale, places) for name, scale, places in COLUMNS)]
        for title, row in found.items()
        if row.notna().all()
    ]
    header = ["accumulator + addend", "0.01 rounded to", "sum", "relative error / %", "last addition adds"]
    low, mixed, cast, bf16 = (found[name] for name in list(WAYS)[1:5])
    return {
        "sum": Answer(
            asked="Sums",
            verdict=say(
                "The accumulator decides: 1000 × 0.01 is off by {error:percent} summed in fp16, {mixed:percent} in "
                "fp32.",
                error=low["error"],
                mixed=mixed["error"],
            ),
            more=paragraph(
                say("Entirely in fp32 the error is {error:percent}.", error=found["fp32 + fp32"]["error"]),
                say("Entirely in bf16 the sum ends at {sum:sig}.", sum=bf16["sum"]),
            ),
            evidence=[
                Captioned(Table(header, body), "Sum of the additions of 0.01 in each way; its true value is 10.")
            ],
            reason=paragraph(
                say(
                    "fp16 has 10 bits of fraction: between 8 and 16 its numbers are 1/128 = 0.0078125 apart, so each "
                    "addition of 0.01 is rounded to such a step (the last one added {last:sig}).",
                    last=low["last"],
                ),
                say(
                    "With an fp32 accumulator only the rounding of 0.01 itself to fp16 remains, made once and added "
                    "every time{equal}.",
                    equal=tell(
                        ratio(mixed["sum"], cast["sum"]) == 1,
                        say("; casting the addend first changes no bit, since type promotion does the same cast"),
                        say(", the cast included"),
                    ),
                ),
                say(
                    "bf16 has 7 bits: at {sum:sig} half the distance to the next number exceeds 0.01, and every "
                    "further addition is rounded away.",
                    sum=bf16["sum"] if bf16["last"] == 0 else None,
                ),
                say("So tensor cores accumulate in fp32, and optimizers keep fp32 weights @micikevicius2018."),
            ),
        )
    }


COLUMNS = [("addend", 1, 9), ("sum", 1, 6), ("error", 100, 4), ("last", 1, 7)]
"""What the table shows: a statistic, its unit's factor, and its decimals."""


def sums(rows: DataFrame) -> Series:
    """The statistics of one way; NaN where there are none."""
    return Series({name: statistic(rows, "mean", metric=metric) for name, metric in METRICS.items()}, dtype=float)
