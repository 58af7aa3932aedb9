"""Answers to `distributed_communication_single_node`: all-reduce by size, backend and number of processes."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.measure.gpus import gpu_of
from cs336_systems.measure.measurement import WHOLE_CELL
from scripts.rendering.markup import Table, significant
from scripts.views.communication import BACKENDS, WIDE_SPREAD, Line, all_reduce_table, lines
from scripts.views.data import measured_gpu, reason, select

CELL = ["backend", "processes", "megabytes"]
LARGE_SHARE = 0.25
"""Of overhead in the time of a message, from which on sending fewer messages is worth while."""
NEAR = 0.15
"""Relative difference between a measured ratio and a model's that counts as agreement."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["all_reduce"]
    cells = all_reduce_table(table)
    if not len(cells):
        return {"times": None}
    fits = lines(cells)
    wide = (cells["p80"] - cells["p20"]) / cells["median"] > WIDE_SPREAD
    wrong = select(table, metric="wrong_numbers")
    sizes = [by_size(cells, backend, fits) for backend in BACKENDS if any(key[0] == backend for key in fits)]
    residuals = [(line.residual, name(*key)) for key, line in fits.items() if line.residual is not None]
    return {
        "times": times_table(table, cells, fits),
        "steps": int(cells["n"].max()),
        "exact": bool((wrong["mean"] == 0).all()),
        "wide": int(wide.sum()),
        "wide_spread": WIDE_SPREAD,
        "cells": len(cells),
        "backends": [BACKENDS[backend] for backend in BACKENDS if backend in set(cells["backend"])],
        "fits": fits_table(fits) if fits else None,
        "worst_residual": max(residuals, default=None),
        "sizes": sizes,
        "sent_together": [share["backend"] for share in sizes if share["small"][0] > LARGE_SHARE],
        "near": NEAR,
        "processes": [found for backend in BACKENDS if (found := by_processes(select(cells, backend=backend)))],
        "between": between_backends(cells),
        "link": share_of_the_link(cells, measured_gpu(tables)),
    }


def name(backend: str, processes: int) -> str:
    """A launch in words."""
    return f"{BACKENDS[backend]} between {processes} processes"


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


def by_size(cells: DataFrame, backend: str, fits: Mapping[tuple[str, int], Line]) -> dict[str, Any]:
    """What part of the time is overhead at the smallest and at the largest size, from the lines of a backend."""
    sizes = select(cells, backend=backend)["size"]
    own = [line for key, line in fits.items() if key[0] == backend]
    shares = {
        end: sorted(line.overhead / line.seconds(size) for line in own)
        for end, size in (("small", sizes.min()), ("large", sizes.max()))
    }
    return {
        "backend": BACKENDS[backend],
        "smallest": int(sizes.min() / 1e6),
        "largest": int(sizes.max() / 1e6),
        **{end: (share[0], share[-1]) for end, share in shares.items()},
    }


def by_processes(cells: DataFrame) -> dict[str, Any] | None:
    """What the most processes take over the fewest, at the largest size that both were measured at, beside a ring's.

    Each process of a ring sends 2 (n - 1) / n times the message, whatever it shares the link with.
    """
    if cells["processes"].nunique() < 2:
        return None
    few, many = select(cells, processes=cells["processes"].min()), select(cells, processes=cells["processes"].max())
    common = set(few["megabytes"]) & set(many["megabytes"])
    if not common:
        return None
    one, other = (select(rows, megabytes=max(common)).iloc[0] for rows in (few, many))
    factor = other["median"] / one["median"]
    ring = (1 - 1 / other["processes"]) / (1 - 1 / one["processes"])
    return {
        "backend": BACKENDS[one["backend"]],
        "few": int(one["processes"]),
        "many": int(other["processes"]),
        "megabytes": int(one["megabytes"]),
        "factor": factor,
        "ring": ring,
        "verdict": "ring" if abs(factor / ring - 1) <= NEAR else "more" if factor > ring else "less",
    }


def between_backends(cells: DataFrame) -> dict[str, Any] | None:
    """How many times as long Gloo takes as NCCL, at least and at most over what both were measured at."""
    both = select(cells, backend="gloo").merge(select(cells, backend="nccl"), on=CELL[1:], suffixes=("_gloo", "_nccl"))
    if not len(both):
        return None
    ratios = [(row["median_gloo"] / row["median_nccl"], cell_name(row)) for _, row in both.iterrows()]
    return {"least": min(ratios), "most": max(ratios), "cells": len(ratios)}


def cell_name(row: Series) -> str:
    """Size and processes in words."""
    return f"{row['megabytes']} MB between {row['processes']} processes"


def share_of_the_link(cells: DataFrame, gpu: str) -> dict[str, Any] | None:
    """The best bus bandwidth between GPUs as a share of their link's, where that is listed."""
    peak, rows = gpu_of(gpu), select(cells, backend="nccl").dropna(subset="bus_bandwidth")
    if peak is None or peak.link is None or not len(rows):
        return None
    best = rows.sort_values("bus_bandwidth").iloc[-1]
    return {
        "best": best["bus_bandwidth"],
        "cell": cell_name(best),
        "peak": peak.link / 1e9,
        "share": 1e9 * best["bus_bandwidth"] / peak.link,
        "source": peak.source,
    }
