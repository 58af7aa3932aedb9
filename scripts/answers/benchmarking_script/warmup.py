"""What the first steps of a process cost, for `benchmarking_script`."""

import statistics
from operator import itemgetter
from typing import Any

import pandas
from pandas import DataFrame

from cs336_systems.measure.measurement import parse_samples
from scripts.rendering.markup import Table, fixed, mean_std
from scripts.views.data import PHASES, one, select, size_order
from scripts.views.steps import step_table

NOTICEABLE = 0.05
"""A first timed step that exceeds the median by a larger share than this is still different."""


def warmup_answers(table: DataFrame) -> dict[str, Any]:
    """Steps by number of warm-up steps, each number in a process of its own."""
    cold = select(step_table(table), cold_start=True, compiled=False, attention="plain")
    cold = cold[cold["first_step"].notna()]
    if cold["warmup"].nunique() < 2 or 0 not in set(cold["warmup"]):
        return {"warmup_table": None, "most_inflated": None}
    first = cold.iloc[0]
    cold = select(cold, **{name: first[name] for name in ("mode", "context", "precision")})
    if 0 not in set(cold["warmup"]):
        return {"warmup_table": None, "most_inflated": None}
    cold = cold.assign(extra=cold["first_step"] - cold["step"])
    warmups, sizes = sorted(cold["warmup"].unique()), size_order(cold)
    by_size = cold.set_index(["size", "warmup"]).reindex(
        pandas.MultiIndex.from_product([sizes, warmups], names=["size", "warmup"])
    )
    at_once = by_size.xs(0, level=1)
    inflation = (at_once["mean"] / at_once["step"]).dropna()
    extra = at_once["extra"].dropna()
    settled = cold[(cold["warmup"] > 0) & (cold["warmup"] < warmups[-1])]
    late = settled[settled["extra"] > NOTICEABLE * settled["step"]]
    return {
        "warmup_table": warmup_table(by_size, sizes, warmups),
        "warmup_counts": [str(warmup) for warmup in warmups],
        "cold_sizes": len(sizes),
        "warmup_context": int(first["context"]),
        "warmup_precision": first["precision"],
        "most_inflated": inflation.max(),
        "least_inflated": inflation.min(),
        "extra_least": extra.min(),
        "extra_most": extra.max(),
        "extra_constant": extra.max() < 1.5 * extra.min(),
        "step_least": at_once["step"].min(),
        "step_most": at_once["step"].max(),
        "extra_by_phase": [
            (phase, milliseconds)
            for phase, milliseconds in extra_by_phase(table, at_once.reset_index())
            if milliseconds > NOTICEABLE * extra.min()
        ],
        "allocations_first": known(at_once["device_allocations"]),
        "allocations_later": known(settled["device_allocations"]),
        "late": [
            {
                "size": step["label"],
                "warmup": str(step["warmup"]),
                "extra": step["extra"],
                "factor": step["first_step"] / step["step"],
                "allocations": None if pandas.isna(step["device_allocations"]) else int(step["device_allocations"]),
            }
            for _, step in late.iterrows()
        ],
        "settled": len(settled),
        "settled_from": int(settled["warmup"].min()) if len(settled) else None,
        "noticeable": NOTICEABLE,
        "after_one_worst": (settled["extra"] / settled["step"]).max(),
        "between_processes": between_processes(cold),
    }


def known(values: "pandas.Series[float]") -> tuple[int, int] | None:
    """Smallest and largest of what was measured."""
    present = values.dropna()
    return (int(present.min()), int(present.max())) if len(present) else None


def warmup_table(by_size: DataFrame, sizes: list[str], warmups: list[int]) -> Table:
    """Mean ± std of the timed steps, what the first of them takes beyond the median, and calls for memory in them."""
    counts = by_size["device_allocations"].notna().any()
    body = []
    for size in sizes:
        rows = by_size.loc[size]
        label = rows["label"].dropna().iloc[0]
        means = mean_std(list(zip(rows["mean"], rows["std"], strict=True)))
        line = [label, *means, *fixed(list(rows["extra"]))]
        if counts:
            line += [f"{count:.0f}" if pandas.notna(count) else "" for count in rows["device_allocations"]]
        body.append([text or "–" for text in line])
    groups = [("", 1), ("mean ± std of the timed steps / ms", len(warmups)), ("first − median / ms", len(warmups))]
    if counts:
        groups.append(("calls for memory", len(warmups)))
    header = ["size", *[f"w = {warmup}" for warmup in warmups] * (len(groups) - 1)]
    return Table(header, body, groups=groups)


def extra_by_phase(table: DataFrame, cells: DataFrame) -> list[tuple[str, float]]:
    """What the first step of a process takes beyond the median, by phase: the median over sizes, ms."""
    found = []
    for phase in PHASES:
        extras = []
        for size in cells["size"]:
            row = one(table, metric=phase, size=size, warmup=0, cold_start=True)
            if row is not None and row["samples"]:
                extras.append(parse_samples(row["samples"])[0] - row["median"])
        if extras:
            found.append((phase, statistics.median(extras)))
    return found


def between_processes(cold: DataFrame) -> dict[str, Any] | None:
    """The size whose median differs most between its processes, if noticeably: the two medians and their warm-ups."""
    found = []
    for label, runs in cold.groupby("label"):
        ordered = runs.sort_values("step")
        quick, slow = ordered.iloc[0], ordered.iloc[-1]
        busy = runs["device_busy"]
        found.append(
            {
                "size": label,
                "factor": slow["step"] / quick["step"],
                "quick": (quick["step"], str(quick["warmup"])),
                "slow": (slow["step"], str(slow["warmup"])),
                "same_work": bool(busy.max() < (1 + NOTICEABLE) * busy.min()),
            }
        )
    widest = max(found, key=itemgetter("factor"))
    return widest if widest["factor"] > 1 + NOTICEABLE else None
