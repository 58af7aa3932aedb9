"""Our attention against plain attention over the handout's grid, for `flash_benchmarking`."""

from typing import Any

from pandas import DataFrame, Series

from scripts.rendering.answer import Answer, Captioned, say
from scripts.rendering.grid import NONE, grid
from scripts.rendering.markup import Table, Typst, finalize, with_unit
from scripts.views.attention_calls import ONE_HEAD, PASSES, gain_of_products, our_implementation
from scripts.views.attention_times import duels
from scripts.views.data import measured_gpu, one, reason, select, statistic
from scripts.views.spread import MARKS, mark, marked

REFERENCE_D = 64
HIDDEN = {NONE: f"{NONE}: host-bound, so the device's time is unknown"}


def against_plain(table: DataFrame, cells: DataFrame, why: str) -> Answer:
    """Every length and head dimension, in both precisions."""
    ours, asked = our_implementation(table), "Ours against plain attention"
    alone, known = select(table, **ONE_HEAD), select(cells, **ONE_HEAD)
    if why or not len(known):
        return Answer(asked, missing=f"Not measured on this machine: {why or 'not run'}.")
    met = select(duels(known, ours), implementation="plain")
    dimensions = sorted(set(known["d"]))
    d = REFERENCE_D if REFERENCE_D in dimensions else max(dimensions)
    longest = {str(name): own.iloc[-1] for name, own in select(met, d=d).sort_values("sequence").groupby("precision")}
    precision = min(longest, default="")  # bf16, if it was measured
    cell, other = longest.get(precision), longest.get("fp32") if precision == "bf16" else None
    on_device = " Device: both passes on the device, replayed from a CUDA graph where the host is slower."
    on_device = on_device if table["gpu"].any() else ""
    shown = {
        each: Captioned(
            grid_table(alone, known, met, each, ours),
            f"Medians, causal, one head, d = {each}, ms.{on_device}",
            legend=HIDDEN | MARKS,
        )
        for each in dimensions
    }
    return Answer(
        asked=asked,
        verdict="Not compared with plain attention: the calls are host-bound."
        if cell is None
        else cell["speed"].sentence(
            "our attention",
            "plain attention",
            Typst(f"at {finalize(cell['sequence'])} tokens, d = {d} ({precision})"),
        ),
        more=say(
            "" if cell is None else memory(alone, ours, cell),
            in_fp32(met, other),
        ),
        evidence=shown.pop(d),
        reason="" if other is None else units(table),
        details=list(shown.values()),
    )


def in_fp32(met: DataFrame, longest: Series | None) -> Typst:
    """The ratio at the longest sequence, and the shapes at which ours is slower on the device than plain attention."""
    fp32 = select(met, precision="fp32")
    slower = int(fp32["lost"].sum())
    return say(
        "In fp32 our attention is {row[ratio]:times} as fast at {row[sequence]} tokens"
        + (", slower at {slower} of {all} shapes." if slower else "."),
        row=longest if longest is not None and longest["won"] else None,
        slower=slower,
        all=len(fp32),
    )


def memory(alone: DataFrame, ours: str, cell: Series) -> Typst:
    """The peaks of ours and of plain attention."""
    shape = dict(cell[["sequence", "d", "precision"]])
    peaks = [statistic(alone, "mean", metric="peak_memory", implementation=name, **shape) for name in (ours, "plain")]
    texts = [peak and with_unit(*((peak, "MiB") if peak < 1024 else (peak / 1024, "GiB"))) for peak in peaks]
    return say("Its memory peaks at {ours} there, plain attention's at {plain}.", ours=texts[0], plain=texts[1])


def grid_table(alone: DataFrame, known: DataFrame, met: DataFrame, d: int, ours: str) -> Table:
    """One line per length: every pass as called in one precision, and the device's time and the ratio in each."""
    precisions = [name for name in ("bf16", "fp32") if len(select(known, d=d, precision=name))]
    names, on_gpu = {"ours": ours, "plain": "plain"}, bool(measured_gpu({"": alone}))
    columns: dict[str, dict[str, str] | str] = {"sequence": "{sequence}"}
    for who in names:
        columns[f"{precisions[0]}, {who}"] = {
            title: f"{{{who} {each}}}" for title, each in zip(("forward", "backward", "both"), PASSES, strict=True)
        }
    for precision in precisions:
        columns[f"{precision}, device"] = {who: f"{{{precision} {who}}}" for who in names} | {
            "plain / ours": f"{{{precision} ratio:.1f}}×"
        }
    lines = []
    for sequence in sorted(set(select(alone, d=d)["sequence"])):
        line: dict[str, Any] = {"sequence": sequence}
        for precision in precisions:
            cell = {"sequence": sequence, "d": d, "precision": precision}
            told = one(met, **cell)
            line[f"{precision} ratio"] = None if told is None else told["ratio"]
            for who, name in names.items():
                row = one(known, implementation=name, **cell) if on_gpu or precision != precisions[0] else None
                line[f"{precision} {who}"] = device_time(row)
                own = select(alone, implementation=name, **cell)
                for timed in PASSES if precision == precisions[0] else ():
                    line[f"{who} {timed}"] = marked(one(own, metric=timed)) or reason(own)
        lines.append(line)
    return grid(DataFrame(lines), columns, text_columns=0)


def device_time(cell: Series | None) -> str:
    """The time of both passes on the device, or a dash if the host hides it."""
    return NONE if cell is None or cell["host_bound"] else f"{cell['median']:.3f}{mark(cell)}"


def units(table: DataFrame) -> Typst:
    """Why fp32 compares two kinds of arithmetic."""
    return say(
        "In fp32 the two run on different units. Ours computes each matmul as six bf16 matmuls on the tensor cores. "
        "Plain attention runs on the fp32 units, since TF32 is off; the tensor cores' peak is {gain:times} theirs.",
        gain=gain_of_products(measured_gpu({"": table})),
    )
