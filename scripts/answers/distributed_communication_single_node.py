"""Answers to `distributed_communication_single_node`: all-reduce by size, backend and number of processes."""

from collections.abc import Mapping
from math import nan

from pandas import DataFrame

from cs336_systems.measure.gpus import gpu_of
from scripts.rendering.answer import NOTHING, Answer, Answers, Captioned, Facts, Tables, count, least_and_most, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Typst
from scripts.views.communication import BACKENDS, Line, all_reduce_table, lines
from scripts.views.data import first, last, measured_gpu, select

Lines = Mapping[tuple[str, int], Line]
FITS: Columns = {
    "backend": "{backend}",
    "n": "{n}",
    "o / µs": "{overhead:sig}",
    "w / GB/s": "{bandwidth:sig}",
    "o·w / MB": "{half:sig2}",
    "residual / %": "{residual:.1f}",
}


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table = tables["all_reduce"]
    cells = all_reduce_table(table)
    cells = cells.assign(name=cells["backend"].map(BACKENDS))
    fits = lines(cells)
    return {
        "times": times(cells, measured_gpu(tables)),
        "interaction": interaction(cells, fits),
        "steps": int(cells["n"].max()) if len(cells) else None,
        "exact": bool((select(table, metric="wrong_numbers")["mean"] == 0).all()),
    }


def times(cells: DataFrame, gpu: str) -> Answer:
    """The time of an all-reduce, and the faster backend."""
    largest = cells.sort_values(["processes", "megabytes"], ascending=[True, False])
    quoted = first(largest.sort_values("backend", key=lambda names: names.map(list(BACKENDS).index), kind="stable"))
    same = None if quoted is None else first(select(largest, backend="gloo", **quoted[["processes", "megabytes"]]))
    both = select(cells, backend="gloo").merge(
        select(cells, backend="nccl"), on=["processes", "megabytes"], suffixes=("_gloo", "_nccl")
    )
    nccl = select(cells, backend="nccl")
    most = nccl["processes"].max()
    alone = sorted(number for number in set(select(cells, backend="gloo")["processes"]) if number > most)
    fastest = last(nccl.sort_values("bus_bandwidth"))
    sheet = gpu_of(gpu)
    link = sheet.link / 1e9 if sheet and sheet.link else None
    facts = Facts(gloo=same, row=quoted, alone=list(map(str, alone)), best=fastest, link=link)
    return Answer(
        asked="Time of an all-reduce",
        verdict=facts.say(
            "An all-reduce of {row[megabytes]} MB takes {row[median]:ms} over {row[name]} between {row[processes]} "
            "processes."
        ),
        more=facts.say(
            "Over Gloo it takes {gloo[median]:ms}." if len(both) else "",
            "NCCL is {ratio:span times} as fast as Gloo in the {cells} measured with both.",
            ratio=least_and_most(both["median_gloo"] / both["median_nccl"]),
            cells=count(len(both), "cell"),
        )
        or facts.say(
            "Only {row[name]} was measured"
            + (": NCCL needs a GPU per process." if not gpu else "." if len(nccl) else ", in host memory.")
        ),
        results="all_reduce_time",
        reason=facts.say(
            "Over NCCL the bus bandwidth reaches {best[bus_bandwidth]:GB/s} ({best[processes]} processes, "
            "{best[megabytes]} MB), {best[bus_bandwidth] / link:percent} of the link's {link:GB/s} per direction.",
            "Gloo's data is in host memory, NCCL's in GPU memory." if len(both) else "",
            "With {alone:listing} processes NCCL was not measured: it needs a GPU for each process.",
        ),
    )


def interaction(cells: DataFrame, fits: Lines) -> Answer:
    """How size, backend and number of processes interact."""
    fitted = fits_of(fits)
    # Without overhead, no size divides the two.
    few = first(fitted[fitted["half"] > 0]) if len(fitted) else None
    with_overhead = {key: line for key, line in fits.items() if line.overhead}
    sizes = select(cells, backend=next(iter(with_overhead), ("",))[0])["size"]
    line = next(iter(with_overhead.values()), None)
    ends = [(size / 1e6, line.overhead / line.seconds(size)) for size in (sizes.min(), sizes.max())] if line else None
    facts = Facts(few=few, ends=ends)
    return Answer(
        asked="How the factors interact",
        verdict=facts.say(
            "Call overhead dominates below {few[half]:MB}, bandwidth above ({few[backend]}, {few[n]} processes)."
        )
        or ("The time is proportional to the size: no call overhead could be fitted." if fits else ""),
        more=facts.say(
            "The overhead is {ends[0][1]:percent} of the fitted time at {ends[0][0]:whole} MB and "
            "{ends[1][1]:percent} at {ends[1][0]:whole} MB.",
            "So it pays to send small gradients together." if line and line.half > sizes.min() else "",
        ),
        results=Captioned(
            grid(fitted, FITS),
            "Overhead o and algorithm bandwidth w of an all-reduce between n processes, "
            + (
                "fitted to the medians of all sizes. Residual: root mean square of the relative errors, which the fit "
                "minimizes."
                if any(line.residual is not None for line in fits.values())
                else "from the medians of two sizes."
            )
            + " At o·w bytes, overhead is half of the time.",
        ),
        reason=say(*(growth(select(cells, backend=each)) for each in BACKENDS)),
        missing="No line could be fitted: fewer than two sizes were measured, or the time does not grow with the size.",
    )


def fits_of(fits: Lines) -> DataFrame:
    """One row per line, in µs, GB/s, MB and percent."""
    return DataFrame(
        [
            {
                "backend": BACKENDS[backend],
                "n": processes,
                "overhead": 1e6 * line.overhead,
                "bandwidth": line.bandwidth / 1e9,
                "half": line.half / 1e6,
                "residual": nan if line.residual is None else 100 * line.residual,
            }
            for (backend, processes), line in fits.items()
        ]
    )


def growth(cells: DataFrame) -> Typst:
    """The time with the most processes over the time with the fewest, at the smallest and the largest size measured
    with both.

    Each process of a ring sends 2 (n - 1) / n times the message, whatever it shares the link with.
    """
    few, many = cells["processes"].min(), cells["processes"].max()
    both = select(cells, processes=few).merge(select(cells, processes=many), on="megabytes", suffixes=("", "_many"))
    both = both.assign(ratio=both["median_many"] / both["median"]).sort_values("megabytes")
    if few == many or len(both) < 2:
        return NOTHING
    small, large = both.iloc[0], both.iloc[-1]
    facts = Facts(small=small, large=large, few=few, many=many, ring=(1 - 1 / many) / (1 - 1 / few))
    return facts.say(
        "Over {small[name]}, {many} processes take {large[ratio]:times} the time of {few} at {large[megabytes]} MB and "
        "{small[ratio]:times} at {small[megabytes]} MB; a ring of equal links without overhead would take "
        "{ring:times} the time at every size.",
    )
