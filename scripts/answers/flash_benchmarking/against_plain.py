"""Our attention against plain attention over the handout's grid, for `flash_benchmarking`."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.measure.gpus import gpu_of
from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.rendering.markup import Table, Typst, finalize, with_unit
from scripts.views.attention_calls import ONE_HEAD, PASSES, our_implementation
from scripts.views.attention_times import duels, opening
from scripts.views.data import measured_gpu, one, ratio, reason, select, statistic
from scripts.views.spread import legend, mark, marked
from scripts.views.verdicts import Speed

REFERENCE_D = 64
PRODUCTS = 6
"""bf16 products that make one in fp32."""


def against_plain(table: DataFrame, cells: DataFrame, found: Mapping[str, Any]) -> Answer:
    """Every length and head dimension, in both precisions."""
    ours, asked = our_implementation(table), "Ours against plain attention"
    alone, known = select(table, **ONE_HEAD), select(cells, **ONE_HEAD)
    if not found["measured"] or not len(known):
        return Answer(asked, NOTHING, missing=f"Not measured on this machine: {found.get('why', 'not run')}.")
    met = select(duels(known, ours), implementation="plain")
    shown = {d: grid_table(alone, known, met, d, ours) for d in sorted(set(known["d"]))}
    d = REFERENCE_D if REFERENCE_D in shown else max(shown)
    longest = {str(name): own.iloc[-1] for name, own in select(met, d=d).sort_values("sequence").groupby("precision")}
    precision = min(longest, default="")  # bf16, if it was measured
    cell = longest.get(precision)
    other = longest.get("fp32") if precision == "bf16" else None
    return Answer(
        asked=asked,
        verdict=say("No comparison with plain attention can be told: the calls are host-bound.")
        if cell is None
        else opening(
            Speed(float(cell["ratio"]), "" if cell["faster"] is not None else "closer than their spread"),
            "our attention",
            "plain attention",
            Typst(f"at {finalize(int(cell['sequence']))} tokens, d = {d} ({precision})"),
        ),
        more=paragraph(
            say(
                "In fp32 it is {gain:times} as fast at {length} tokens.",
                gain=None if other is None or not other["faster"] else other["ratio"],
                length=None if other is None else int(other["sequence"]),
            ),
            NOTHING if cell is None else memory(alone, ours, cell),
        ),
        evidence=[captioned(shown[d], d, measured_gpu({"": table}))],
        reason=paragraph(units(table, other is not None), NOTHING if cell is None else growth(alone, ours, cell)),
        details=[
            *(captioned(grid, other_d, "") for other_d, grid in shown.items() if other_d != d),
            "flash_throughput",
        ],
    )


def captioned(grid: Table, d: int, gpu: str) -> Captioned:
    """A grid with its caption, which explains its columns."""
    device = (
        "; device: both passes replayed from a CUDA graph, or as called where the device does not wait for the host"
        if gpu
        else ""
    )
    return Captioned(grid, f"Medians at d = {d}, causal, one head, ms{device}. {legend(grid)}".strip())


def memory(alone: DataFrame, ours: str, cell: Series) -> Typst:
    """The peaks of ours and of plain attention."""
    shape = dict(cell[["sequence", "d", "precision"]])
    peaks = [statistic(alone, "mean", metric="peak_memory", implementation=name, **shape) for name in (ours, "plain")]
    texts = [peak and with_unit(*((peak, "MiB") if peak < 1024 else (peak / 1024, "GiB"))) for peak in peaks]
    return say("It peaks at {ours} there, plain attention at {plain}.", ours=texts[0], plain=texts[1])


def grid_table(alone: DataFrame, known: DataFrame, met: DataFrame, d: int, ours: str) -> Table:
    """One line per length: in one precision every pass as called, and in each the device's time and the ratio."""
    precisions = [name for name in ("bf16", "fp32") if len(select(known, d=d, precision=name))]
    on_gpu = bool(measured_gpu({"": alone}))
    names = (ours, "plain")
    body = []
    for sequence in sorted(set(select(alone, d=d)["sequence"])):
        line = [str(sequence)]
        for place, precision in enumerate(precisions):
            cell = {"sequence": sequence, "d": d, "precision": precision}
            if not place:
                for own in (select(alone, implementation=name, **cell) for name in names):
                    line += [marked(one(own, metric=timed_pass)) or reason(own) for timed_pass in PASSES]
            line += [device_time(one(known, implementation=name, **cell)) for name in names] if on_gpu or place else []
            told = one(met, **cell)
            line.append("–" if told is None else f"{told['ratio']:.1f}×")
        body.append(line)
    groups, header = [("", 1)], ["sequence"]
    for place, precision in enumerate(precisions):
        if not place:
            groups += [(f"{precision}, ours", 3), (f"{precision}, plain", 3)]
            header += ["forward", "backward", "both"] * 2
        device = 2 if on_gpu or place else 0
        groups.append((f"{precision}, device" if on_gpu else precision, device + 1))
        header += [*("ours", "plain")[:device], "plain / ours"]
    return Table(header, body, text_columns=0, groups=groups)


def device_time(cell: Series | None) -> str:
    """The time of both passes on the device, or a dash where the host hides it."""
    return "–" if cell is None or cell["host_bound"] else f"{cell['median']:.3f}{mark(cell)}"


def units(table: DataFrame, both: bool) -> Typst:
    """Why fp32 compares two kinds of arithmetic."""
    peak = gpu_of(measured_gpu({"": table}))
    if not both or peak is None or peak.bf16 <= peak.fp32:
        return NOTHING
    return say(
        "In fp32 the two run on different units: ours computes each product as six bf16 products on the tensor cores, "
        "whose peak is {gain:times} that of the fp32 units, on which plain attention runs, since TF32 is off.",
        gain=peak.bf16 / PRODUCTS / peak.fp32,
    )


def growth(alone: DataFrame, ours: str, cell: Series) -> Typst:
    """How our peak memory grows over the last doubling."""
    wanted = {"metric": "peak_memory", "implementation": ours, "d": cell["d"], "precision": cell["precision"]}
    length = int(cell["sequence"])
    return say(
        "Our peak memory grows {growth:times} over the last doubling, with the inputs; plain attention’s grows with "
        "the "
        "scores, the square of the sequence.",
        growth=ratio(*(statistic(alone, "mean", sequence=n, **wanted) for n in (length, length // 2))),
    )
