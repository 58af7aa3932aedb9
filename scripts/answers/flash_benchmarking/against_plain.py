"""An attention against plain attention over the handout's grid, for `flash_benchmarking`: ours, and a user's own."""

from typing import Any

from pandas import DataFrame, Series

from cs336_systems.experiments.flash import REPLAYED
from scripts.rendering.answer import NOTHING, Answer, Captioned, say
from scripts.rendering.grid import NONE, grid
from scripts.rendering.markup import Table, Typst, finalize, with_unit
from scripts.views.attention_calls import ONE_HEAD, OURS, PASSES, availability
from scripts.views.attention_times import duels
from scripts.views.data import last, measured_gpu, one, reason, select, statistic
from scripts.views.spread import MARKS, mark, marked

REFERENCE_D = 64
HIDDEN = {NONE: f"{NONE}: not measured, or host-bound (device time unknown)"}


def against_plain(table: DataFrame, cells: DataFrame, name: str, title: str, short: str) -> Answer:
    """One implementation at every length and head dimension, in both precisions.

    `title` names it in sentences, `short` in tables.
    """
    asked = f"{title[:1].upper()}{title[1:]} against plain attention"
    alone, known = select(table, **ONE_HEAD), select(cells, **ONE_HEAD)
    if why := availability(select(alone, implementation=name)):
        return Answer(asked, missing=f"Not measured on this machine: {why.removeprefix('not timed: ')}.")
    met = select(duels(known, name), implementation="plain")
    dimensions = sorted(set(known["d"]))
    d = REFERENCE_D if REFERENCE_D in dimensions else max(dimensions)
    by_length = select(met, d=d).sort_values("sequence")
    low, full = (last(select(by_length, precision=precision)) for precision in ("bf16", "fp32"))
    cell = full if low is None else low
    on_device = f" Device: device time of both passes, replayed from a CUDA graph up to {REPLAYED} tokens."
    on_device = on_device if table["gpu"].any() else ""
    shown = {
        each: Captioned(
            grid_table(alone, known, met, each, {short: name, "plain": "plain"}),
            f"Median times in ms, causal, one head, d = {each}.{on_device}",
            legend=HIDDEN | MARKS,
        )
        for each in dimensions
    }
    return Answer(
        asked=asked,
        verdict="Not compared with plain attention: the calls are host-bound."
        if cell is None
        else cell["speed"].sentence(
            title,
            "plain attention",
            Typst(f"at {finalize(cell['sequence'])} tokens, d = {d} (one head, {cell['precision']})"),
        ),
        more=say(
            NOTHING if cell is None else memory(alone, name, cell),
            NOTHING if low is None else in_fp32(met, full, short),
        ),
        results=shown.pop(d),
        reason="In fp32, ours runs on the tensor cores, plain attention on the fp32 units (@sec-flash_forward)."
        if name == OURS and low is not None and full is not None
        else "",
        details=list(shown.values()),
    )


def in_fp32(met: DataFrame, longest: Series | None, short: str) -> Typst:
    """The ratio at the longest sequence, and the shapes at which plain attention is faster on the device."""
    fp32 = select(met, precision="fp32")
    slower = int(fp32["lost"].sum())
    return say(
        "In fp32, {short} is {row[ratio]:times} as fast at {row[sequence]} tokens"
        + (", but slower at {slower} of {all} shapes." if slower else "."),
        short=short,
        row=longest if longest is not None and longest["won"] else None,
        slower=slower,
        all=len(fp32),
    )


def memory(alone: DataFrame, name: str, cell: Series) -> Typst:
    """Its peak memory and plain attention's."""
    shape = dict(cell[["sequence", "d", "precision"]])
    peaks = [statistic(alone, "mean", metric="peak_memory", implementation=each, **shape) for each in (name, "plain")]
    texts = [peak and with_unit(*((peak, "MiB") if peak < 1024 else (peak / 1024, "GiB"))) for peak in peaks]
    return say("Peak memory there is {own}, against {plain} for plain attention.", own=texts[0], plain=texts[1])


def grid_table(alone: DataFrame, known: DataFrame, met: DataFrame, d: int, names: dict[str, str]) -> Table:
    """One line per length: every pass as called in one precision, and the device's time and the ratio in each.

    `names` are the implementations by their titles above the columns.
    """
    precisions = [name for name in ("bf16", "fp32") if len(select(known, d=d, precision=name))]
    on_gpu, first = bool(measured_gpu({"": alone})), next(iter(names))
    columns: dict[str, dict[str, str] | str] = {"sequence": "{sequence}"}
    for place, title in enumerate(names):
        passes = zip(("forward", "backward", "both"), PASSES, strict=True)
        columns[f"{precisions[0]}, {title}"] = {head: f"{{{each}{place}}}" for head, each in passes}
    for precision in precisions:
        columns[f"{precision}, device" if on_gpu else precision] = {
            title: f"{{{precision}{place}}}" for place, title in enumerate(names)
        } | {f"plain / {first}": f"{{{precision}}}×"}
    lines = []
    for sequence in sorted(set(select(alone, d=d)["sequence"])):
        line: dict[str, Any] = {"sequence": sequence}
        for precision in precisions:
            cell = {"sequence": sequence, "d": d, "precision": precision}
            duel = one(met, **cell)
            line[precision] = None if duel is None else f"{duel['ratio']:{'.1f' if duel['ratio'] >= 1 else '.2g'}}"
            for place, name in enumerate(names.values()):
                row = one(known, implementation=name, **cell) if on_gpu or precision != precisions[0] else None
                line[f"{precision}{place}"] = device_time(row)
                own = select(alone, implementation=name, **cell)
                for timed in PASSES if precision == precisions[0] else ():
                    line[f"{timed}{place}"] = marked(one(own, metric=timed)) or reason(own)
        lines.append(line)
    return grid(DataFrame(lines), columns, text_columns=0)


def device_time(cell: Series | None) -> str:
    """The time of both passes on the device, or a dash if the host hides it."""
    return NONE if cell is None or cell["host_bound"] else f"{cell['median']:.3f}{mark(cell)}"
