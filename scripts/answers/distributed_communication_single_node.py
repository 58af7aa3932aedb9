"""Answers to `distributed_communication_single_node`: all-reduce by size, backend and number of processes."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.measure.gpus import gpu_of
from cs336_systems.measure.measurement import WHOLE_CELL
from scripts.rendering.answer import NOTHING, Answer, Captioned, count, paragraph, say
from scripts.rendering.markup import Table, Typst, significant
from scripts.views.communication import BACKENDS, WIDE_SPREAD, Line, all_reduce_table, lines
from scripts.views.data import measured_gpu, reason, select

CELL = ["backend", "processes", "megabytes"]
FITS = (
    "Overhead o and bandwidth w (of the message) of an all-reduce, fitted to the medians over all sizes by least "
    "squares of relative deviations; at o·w bytes the overhead takes half of the time."
)


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    table = tables["all_reduce"]
    cells = all_reduce_table(table)
    fits = lines(cells)
    return {
        "times": times(table, cells, fits, measured_gpu(tables)),
        "interaction": interaction(cells, fits),
        "steps": int(cells["n"].max()) if len(cells) else None,
        "exact": bool((select(table, metric="wrong_numbers")["mean"] == 0).all()),
    }


def largest(cells: DataFrame, backend: str) -> Series | None:
    """A backend's largest message between the fewest processes."""
    found = select(cells, backend=backend)
    return None if not len(found) else found.sort_values(["processes", "megabytes"], ascending=[True, False]).iloc[0]


def times(table: DataFrame, cells: DataFrame, fits: Mapping[tuple[str, int], Line], gpu: str) -> Answer:
    """How long an all-reduce takes, and who is faster."""
    nccl, gloo = largest(cells, "nccl"), largest(cells, "gloo")
    shown = {"steps": int(cells["n"].max())} if len(cells) else {}
    both = select(cells, backend="gloo").merge(select(cells, backend="nccl"), on=CELL[1:], suffixes=("_gloo", "_nccl"))
    fastest = gloo if nccl is None else nccl
    most = select(cells, backend="nccl")["processes"].max()
    alone = [number for number in set(select(cells, backend="gloo")["processes"]) if number > most]
    wide = int(((cells["p80"] - cells["p20"]) / cells["median"] > WIDE_SPREAD).sum())
    every = Captioned(
        times_table(table, cells, fits),
        f"All-reduce, {shown.get('steps')} per cell after a warm-up; medians, a star: percentiles 20 and 80 more than "
        f"{WIDE_SPREAD:.0%} apart; line: o + s/w; rank spread: slowest less fastest rank.",
        long=True,
    )
    return Answer(
        asked="Time of an all-reduce",
        verdict=NOTHING
        if fastest is None
        else say(
            "{megabytes} MB take {time:ms} over {backend} between {processes} processes.",
            megabytes=int(fastest["megabytes"]),
            time=fastest["median"],
            backend=BACKENDS[fastest["backend"]],
            processes=int(fastest["processes"]),
        ),
        more=say(
            "Over Gloo they take {gloo:ms}; NCCL is {ratio:times} as fast (median of {cells} measured with both).",
            gloo=None if gloo is None else gloo["median"],
            ratio=(both["median_gloo"] / both["median_nccl"]).median() if len(both) else None,
            cells=count(len(both), "cell"),
        )
        or say(
            "Only {backend} was measured{why}.",
            backend=BACKENDS[fastest["backend"]] if fastest is not None else None,
            why="" if gpu else Typst(": NCCL needs a GPU per process"),
        ),
        evidence=["all_reduce_time"],
        reason=paragraph(
            say("Gloo moves the data through the host's memory and NCCL from GPU to GPU.") if len(both) else NOTHING,
            link(cells, gpu),
            say(
                "Between {lost:listing} processes NCCL was not measured: it needs a GPU for each.",
                lost=[str(number) for number in sorted(alone)] if nccl is not None else None,
            ),
            say(
                "In {wide} of {cells} the percentiles are more than {limit:percent} of the median apart.",
                wide=wide or None,
                cells=count(len(cells), "cell"),
                limit=WIDE_SPREAD,
            ),
        ),
        details=[every] if len(cells) else [],
    )


def link(cells: DataFrame, gpu: str) -> Typst:
    """The best bus bandwidth between GPUs as a share of their link's, where that is listed."""
    peak, rows = gpu_of(gpu), select(cells, backend="nccl").dropna(subset="bus_bandwidth")
    if peak is None or peak.link is None or not len(rows):
        return NOTHING
    best = rows.sort_values("bus_bandwidth").iloc[-1]
    return say(
        "NCCL's best bus bandwidth is {best:GB/s} ({megabytes} MB between {processes}), {share:percent} of the "
        "{peak:GB/s} that NVLink carries in each direction ({source}).",
        best=best["bus_bandwidth"],
        megabytes=int(best["megabytes"]),
        processes=int(best["processes"]),
        share=1e9 * best["bus_bandwidth"] / peak.link,
        peak=peak.link / 1e9,
        source=Typst(peak.source),
    )


def interaction(cells: DataFrame, fits: Mapping[tuple[str, int], Line]) -> Answer:
    """How size, backend and number of processes act together."""
    backend = next((backend for backend in BACKENDS if any(key[0] == backend for key in fits)), "")
    own = {processes: line for (name, processes), line in fits.items() if name == backend}
    few = min(own, default=0)
    sizes = select(cells, backend=backend)["size"]
    line = own.get(few)
    return Answer(
        asked="How the factors interact",
        verdict=say(
            "Below {half:MB} (o·w) the overhead of a call decides, above it bandwidth ({backend}, n = {few}).",
            half=line.half / 1e6 if line else None,
            backend=BACKENDS.get(backend, ""),
            few=few,
        ),
        more=paragraph(
            say(
                "Overhead is {small:percent} of the line's time at {least} MB and {large:percent} at {most} MB.",
                small=line.overhead / line.seconds(sizes.min()) if line else None,
                large=line.overhead / line.seconds(sizes.max()) if line else None,
                least=int(sizes.min() / 1e6) if line else None,
                most=int(sizes.max() / 1e6) if line else None,
            ),
            say("So gradients are better sent together.") if line and line.half > sizes.min() else NOTHING,
        ),
        evidence=[Captioned(fits_table(fits), FITS)],
        reason=paragraph(
            *(growth(select(cells, backend=each), fits) for each in BACKENDS),
            fit_quality(fits),
            say("Which algorithm NCCL chose is not recorded.") if backend == "nccl" else NOTHING,
        ),
        missing="No line could be fitted: fewer than two sizes were measured, or time does not grow with size.",
    )


def growth(cells: DataFrame, fits: Mapping[tuple[str, int], Line]) -> Typst:
    """What the most processes take over the fewest, at the smallest and the largest size that both were measured at.

    Each process of a ring sends 2 (n - 1) / n times the message, whatever it shares the link with.
    """
    if not len(cells):
        return NOTHING
    few, many = cells["processes"].min(), cells["processes"].max()
    both = select(cells, processes=few).merge(select(cells, processes=many), on="megabytes", suffixes=("", "_many"))
    both = both.sort_values("megabytes")
    if few == many or len(both) < 2:
        return NOTHING
    ratios = both["median_many"] / both["median"]
    backend = both["backend"].iloc[0]
    overheads = [fits[backend, n].overhead if (backend, n) in fits else None for n in (few, many)]
    return paragraph(
        say(
            "Over {backend}, from {few} to {many} processes, {largest} MB take {large:times} and {smallest} MB "
            "{small:times} as long; a ring with equal links would take {ring:times} at every size.",
            backend=BACKENDS[backend],
            few=int(few),
            many=int(many),
            largest=int(both["megabytes"].iloc[-1]),
            smallest=int(both["megabytes"].iloc[0]),
            large=ratios.iloc[-1],
            small=ratios.iloc[0],
            ring=(1 - 1 / many) / (1 - 1 / few),
        ),
        NOTHING
        if ratios.iloc[0] <= ratios.iloc[-1]
        else say(
            "Small messages pay more for processes: the overhead grows from {before:µs} to {after:µs}.",
            before=1e6 * overheads[0] if overheads[0] is not None else None,
            after=1e6 * overheads[1] if overheads[1] is not None and overheads[1] > (overheads[0] or 0.0) else None,
        ),
    )


def fit_quality(fits: Mapping[tuple[str, int], Line]) -> Typst:
    """How far the worst line is from its points."""
    residuals = [(line.residual, key) for key, line in fits.items() if line.residual is not None]
    if not residuals:
        return NOTHING
    residual, (backend, processes) = max(residuals)
    return say(
        "The lines meet their points to within {residual:percent} (root mean square; worst: {backend}, "
        "n = {processes}).",
        residual=residual,
        backend=BACKENDS[backend],
        processes=int(processes),
    )


def times_table(table: DataFrame, cells: DataFrame, fits: Mapping[tuple[str, int], Line]) -> Table:
    """One row per cell that was tried; wide spreads are marked."""
    tried = table.drop_duplicates(CELL)
    order = tried.assign(rank=tried["backend"].map(list(BACKENDS).index)).sort_values(["rank", *CELL[1:]])
    body = []
    for backend, processes, megabytes in order[CELL].itertuples(index=False):
        line = [BACKENDS[backend], str(processes), str(megabytes)]
        rows = select(cells, backend=backend, processes=processes, megabytes=megabytes)
        if not len(rows):
            why = select(table, backend=backend, processes=processes, megabytes=megabytes)
            known = len(select(why, metric=WHOLE_CELL)) > 0
            body.append([*line, *[reason(why) if known else "not measured: its sum is wrong"] * 6])
            continue
        row = rows.iloc[0]
        fit = fits.get((backend, processes))
        mark = " *" if (row["p80"] - row["p20"]) / row["median"] > WIDE_SPREAD else ""
        body.append(
            [
                *line,
                f"{significant(row['median'])}{mark}",
                f"{significant(row['p20'])}–{significant(row['p80'])}",
                str(significant(1e3 * fit.seconds(row["size"]))) if fit else "–",
                str(significant(row["rank_spread"], 2)),
                str(significant(row["algorithm_bandwidth"])),
                str(significant(row["bus_bandwidth"])),
            ]
        )
    header = ["backend", "n", "MB", "median", "p20–p80", "line", "rank spread", "algorithm", "bus"]
    return Table(header, body, groups=[("", 3), ("time / ms", 4), ("bandwidth / GB/s", 2)])


def fits_table(fits: Mapping[tuple[str, int], Line]) -> Table:
    """Overhead and bandwidth of each line, and how well it meets its points."""
    body = [
        [
            BACKENDS[backend],
            str(processes),
            str(significant(1e6 * line.overhead)),
            str(significant(line.bandwidth / 1e9)),
            str(significant(line.half / 1e6, 2)),
            "–" if line.residual is None else f"{100 * line.residual:.1f}",
        ]
        for (backend, processes), line in fits.items()
    ]
    return Table(["backend", "n", "o / µs", "w / GB/s", "o·w / MB", "residual / %"], body)
