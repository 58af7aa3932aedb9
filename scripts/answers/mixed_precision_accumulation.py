"""Answers to `mixed_precision_accumulation`: a thousand additions of 0.01."""

from pandas import DataFrame

from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, tell
from scripts.rendering.grid import Columns, grid
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
SUMS: Columns = {
    "accumulator + addend": "{way}",
    "0.01 rounded to": "{addend:.9f}",
    "sum": "{sum:.6f}",
    "relative error / %": "{percent:.4f}",
    "last addition adds": "{last:.7f}",
}


def answers(tables: Tables) -> Found:
    """The section's answer."""
    lines = []
    for title, way in WAYS.items():
        rows = select(tables["accumulation"], **way)
        found = {name: statistic(rows, "mean", metric=metric) for name, metric in METRICS.items()}
        lines.append({"way": title, **found})
    rows = DataFrame(lines).astype(dict.fromkeys(METRICS, float))
    full, low, mixed, cast, bf16, _ = (row for _, row in rows.iterrows())
    facts = Facts(low=low, mixed=mixed, full=full)
    return {
        "sum": Answer(
            asked="Sums",
            verdict=facts.say(
                "A thousand times 0.01 in fp16 is off by {low[error]:percent} if summed in fp16, and by "
                "{mixed[error]:percent} in fp32."
            ),
            more=facts.say(
                "With fp32 addends it is off by {full[error]:percent}.",
                "Entirely in bf16 the sum ends at {bf16[sum]:sig}.",
                bf16=bf16,
            ),
            evidence=Captioned(
                grid(rows.dropna().assign(percent=100 * rows["error"]), SUMS),
                "Sum of 1000 additions of 0.01 in each precision; the exact value is 10.",
            ),
            reason=facts.say(
                "fp16 has 10 bits of fraction: between 8 and 16 its numbers are 1/128 = 0.0078125 apart, so each "
                "addition of 0.01 is rounded to such a step (the last one added {low[last]:sig}).",
                "With an fp32 accumulator only the error of rounding 0.01 to fp16 remains, which is added every time"
                + tell(
                    ratio(mixed["sum"], cast["sum"]) == 1,
                    "; casting the addend first changes no bit, since type promotion performs the same cast.",
                    ", the cast included.",
                ),
                "bf16 has 7 bits: at {bf16[sum]:sig} half the distance to the next number exceeds 0.01, so every "
                "further addition is rounded away.",
                "So tensor cores accumulate in fp32, and optimizers keep fp32 weights @micikevicius2018.",
                bf16=bf16 if bf16["last"] == 0 else None,
            ),
        )
    }
