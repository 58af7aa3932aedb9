"""Answers to `mixed_precision_accumulation`: a thousand additions of 0.01."""

from pandas import MultiIndex

from scripts.rendering.answer import Answer, Answers, Captioned, Facts, Tables
from scripts.rendering.grid import Columns, grid
from scripts.views.data import ratio

METRICS = ["rounded_addend", "sum", "relative_error", "last_step"]
KEYS = ["accumulator", "addend", "cast"]
WAYS = {
    "fp32 + fp32": ("fp32", "fp32", False),
    "fp16 + fp16": ("fp16", "fp16", False),
    "fp32 + fp16": ("fp32", "fp16", False),
    "fp32 + (fp16 cast to fp32)": ("fp32", "fp16", True),
    "bf16 + bf16": ("bf16", "bf16", False),
    "fp32 + bf16": ("fp32", "bf16", False),
}
"""The handout's four ways, and two of bf16: accumulator + addend."""
SUMS: Columns = {
    "accumulator + addend": "{way}",
    "0.01 rounded to": "{rounded_addend:.9f}",
    "sum": "{sum:.6f}",
    "relative error / %": "{percent:.4f}",
    "last addition adds": "{last_step:.7f}",
}


def answers(tables: Tables) -> Answers:
    """The section's answer."""
    rows = tables["accumulation"].pivot(index=KEYS, columns="metric", values="mean")
    rows = rows.reindex(MultiIndex.from_tuples(WAYS.values(), names=KEYS), columns=METRICS).astype(float)
    full, low, mixed, cast, bf16, _ = (row for _, row in rows.iterrows())
    facts = Facts(low=low, mixed=mixed, full=full, bf16=bf16)
    shown = rows.assign(way=list(WAYS), percent=100 * rows["relative_error"]).dropna()
    return {
        "sum": Answer(
            asked="Sums",
            verdict=facts.say(
                "The sum of 1000 × 0.01 in fp16 is off by {low[relative_error]:percent} with an fp16 accumulator, by "
                "{mixed[relative_error]:percent} with fp32."
            ),
            more=facts.say(
                "Entirely in fp32, it is off by {full[relative_error]:percent}.",
                "Entirely in bf16, it ends at {bf16[sum]:sig}.",
            ),
            results=Captioned(
                grid(shown, SUMS), "Sum of 1000 additions of 0.01 in each precision; the exact value is 10."
            ),
            reason=facts.say(
                "fp16 has 10 fraction bits: between 8 and 16 its numbers are 1/128 = 0.0078125 apart, so each addition "
                "of 0.01 is rounded to a multiple of that.",
                "With an fp32 accumulator, each addition contributes only the error of rounding 0.01 to fp16.",
                "Casting the addend first changes no bit: type promotion performs the same cast."
                if ratio(mixed["sum"], cast["sum"]) == 1
                else "",
                "bf16 has 7 fraction bits: at {bf16[sum]:sig}, half the distance to the next number exceeds 0.01, so "
                "every further addition is rounded away."
                if bf16["last_step"] == 0
                else "",
                "This is why tensor cores accumulate in fp32 and optimizers keep fp32 weights @micikevicius2018.",
            ),
        )
    }
