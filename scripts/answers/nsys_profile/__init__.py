"""Answers to `nsys_profile`: which kernels a step runs, for how long, and what launches them."""

from collections.abc import Mapping
from typing import Any, cast

from pandas import DataFrame

from cs336_systems.measure.kernel_names import CATEGORIES
from cs336_systems.measure.trace import STAGES
from scripts.answers.nsys_profile.attention import attention_answers, removal_answers
from scripts.answers.nsys_profile.tops import TOGETHER, top_answers
from scripts.checks.kernel_profile import FORWARD_TOLERANCE
from scripts.rendering.markup import Table, Typst, fixed, percent, significant, times
from scripts.views.cells import name_cell
from scripts.views.data import PRECISIONS, measured_gpu, reason, reference_context, select, size_order, statistic
from scripts.views.kernels import (
    FORWARD,
    MODES_PROFILED,
    kernels,
    label_of,
    name_of,
    readable,
    shares,
    total,
)
from scripts.views.steps import HOST_BOUND

LEAST_SHARE = 0.001
"""A smaller share of the time is not written out."""
OTHERS_SHOWN = 6
"""Kernels other than matrix multiplies that are listed for each precision."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["kernel_profile"]
    plain = select(table, compiled=False, attention="plain")
    profiled = kernels(plain)
    if not len(profiled):
        return {"context": None}
    context = reference_context(profiled)
    here = select(plain, context=context)
    focus = focus_size(here)
    launched = "kernel" if measured_gpu({"": table}) else "operator"
    return {
        "context": context,
        "steps": int(here["steps"].iloc[0]),
        "warmup": int(here["warmup"].iloc[0]),
        "unattributed": max(select(table, metric="unattributed", status="ok")["mean"], default=None),
        "focus": label_of(here, focus),
        **forward_answers(here, tables["end_to_end"], on_gpu=bool(measured_gpu({"": table}))),
        **top_answers(here, launched),
        **other_answers(select(here, size=focus), launched),
        **share_answers(here, focus),
        **stage_answers(select(here, size=focus)),
        **attention_answers(here),
        **removal_answers(table),
        **profiler_cost(table),
        "all_cells": all_cells_table(plain),
    }


def focus_size(here: DataFrame) -> str:
    """The size that is looked at closely: the largest of which a training step was profiled in every precision."""
    here = kernels(here)
    sizes = size_order(here)
    precisions = here["precision"].nunique()
    complete = [
        size for size in sizes if select(here, size=size, mode="train_step")["precision"].nunique() == precisions
    ]
    return (complete or sizes)[-1]


def forward_answers(here: DataFrame, end_to_end: DataFrame, *, on_gpu: bool) -> dict[str, Any]:
    """(a) The forward pass by the trace, by events, and by the host's timer in another experiment."""
    elsewhere = select(end_to_end, compiled=False, attention="plain", metric="forward", mode="inference", status="ok")
    names, lines, gaps, host_bound, slowed = [], [], {}, [], []
    for size in size_order(here):
        for precision in PRECISIONS:
            rows = select(here, size=size, precision=precision, mode="inference")
            busy, idle, profiled, unprofiled = (
                total(rows, metric, FORWARD) for metric in ("stage_busy", "stage_idle", "stage_profiled", "stage")
            )
            if busy is None or unprofiled is None:
                continue
            label = rows["label"].iloc[0]
            timed = select(elsewhere, size=size, precision=precision, context=rows["context"].iloc[0])
            host = float(timed.sort_values("warmup")["median"].iloc[-1]) if len(timed) else None
            paced_by_device = busy >= HOST_BOUND * unprofiled
            if not paced_by_device:
                host_bound.append(name_of(label, precision))
                slowed += [] if profiled is None else [profiled / unprofiled]
            if host and (paced_by_device or not on_gpu):
                gaps[name_of(label, precision)] = abs(unprofiled - host) / host
            names.append((label, precision, "device" if paced_by_device else "host"))
            traced = [busy, idle, None if idle is None else busy + idle] if on_gpu else [busy]
            lines.append([*traced, profiled, unprofiled, host])
    columns = [fixed(column) for column in zip(*lines, strict=True)]
    body = [
        [label, precision, *(value or "–" for value in numbers), *([pace] if on_gpu else [])]
        for (label, precision, pace), *numbers in zip(names, *columns, strict=True)
    ]
    if on_gpu:
        header = ["kernels", "idle", "sum", "with", "without", "end_to_end", "pace set by"]
        groups = [("", 2), ("trace / ms", 3), ("between events, profiler / ms", 2), ("host timer / ms", 1), ("", 1)]
    else:
        header = ["operators", "with", "without", "end_to_end"]
        groups = [("", 2), ("trace / ms", 1), ("stage, profiler / ms", 2), ("host timer / ms", 1)]
    return {
        "forward": Table(["size", "precision", *header], body, groups=groups, text_columns=2),
        "host_bound": host_bound,
        "slowed": (min(slowed), max(slowed)) if slowed else None,
        "forward_cells": len(body),
        "agree": FORWARD_TOLERANCE,
        "compared": len(gaps),
        "largest_gap": max(((gap, name) for name, gap in gaps.items()), default=None),
    }


def other_answers(rows: DataFrame, launched: str) -> dict[str, Any]:
    """(c) What else matters in the forward pass of one size."""
    body, share_of_others = [], {}
    for precision in PRECISIONS:
        forward = kernels(rows, FORWARD, precision=precision, mode="inference")
        if not len(forward):
            continue
        others = forward[forward["category"] != "matmul"]
        share_of_others[precision] = float(others["ms"].sum() / forward["ms"].sum())
        others = others[~others["kernel"].str.startswith(TOGETHER)]
        grouped = others.groupby(["kernel", "category"])["ms"].sum().sort_values(ascending=False)
        for key, ms in grouped.head(OTHERS_SHOWN).items():
            kernel, category = cast(tuple[str, str], key)
            chosen = select(others, kernel=kernel, category=category)
            ranges = chosen.groupby("range")["ms"].sum().sort_values(ascending=False).index
            where = f"{ranges[0]} and {len(ranges) - 1} more" if len(ranges) > 1 else ranges[0]
            share = percent(ms / forward["ms"].sum())
            numbers = [f"{chosen['calls'].sum():.0f}", str(significant(ms)), str(share)]
            body.append([precision, readable(kernel), category, where, *numbers])
    header = ["precision", launched, "category", "most of it in", "calls", "ms", "share"]
    return {"others": Table(header, body, text_columns=4), "share_of_others": share_of_others}


def share_answers(here: DataFrame, focus: str) -> dict[str, Any]:
    """(d) Each category's share of inference and of the training step."""
    found = {
        (precision, mode): {
            size: share
            for size in size_order(here)
            if (share := shares(kernels(here, size=size, precision=precision, mode=mode)))
        }
        for precision in PRECISIONS
        for mode in MODES_PROFILED
    }
    columns = {key: by_size[focus] for key, by_size in found.items() if focus in by_size}
    body = [
        [category, *(share_text(column[category]) for column in columns.values())]
        for category in CATEGORIES
        if any(column[category] for column in columns.values())
    ]
    changes = []
    for precision in PRECISIONS:
        inference, step = found[precision, "inference"], found[precision, "train_step"]
        both = [size for size in inference if size in step]
        if focus not in both:
            continue
        before, after = (columns[precision, mode] for mode in MODES_PROFILED)
        most = max(CATEGORIES, key=lambda name: after[name] - before[name])
        changes.append(
            {
                "precision": precision,
                "inference": extremes(inference[size]["matmul"] for size in both),
                "step": extremes(step[size]["matmul"] for size in both),
                "falls": sum(step[size]["matmul"] < inference[size]["matmul"] for size in both),
                "sizes": len(both),
                "gainer": most,
                "gain": [percent(before[most]), percent(after[most])],
            }
        )
    groups = [("", 1), *((precision, 2) for precision in PRECISIONS if (precision, "train_step") in columns)]
    header = ["category", *(MODES_PROFILED[mode] for _, mode in columns)]
    whole = len(columns) == 2 * (len(groups) - 1)
    return {"shares": Table(header, body, groups=groups if whole else ()), "changes": changes}


def share_text(share: float) -> str:
    """A share in percent; a dash for none."""
    if not share:
        return "–"
    return str(percent(share)) if share >= LEAST_SHARE else f"< {percent(LEAST_SHARE)}"


def stage_answers(rows: DataFrame) -> dict[str, Any]:
    """How long each stage of one size's training step takes, and how much of it the device computes."""
    body = []
    for precision in PRECISIONS:
        cell = select(rows, precision=precision, mode="train_step")
        for stage in STAGES:
            busy, whole = (statistic(cell, "mean", metric=metric, stage=stage) for metric in ("stage_busy", "stage"))
            if busy is not None and whole:
                body.append([precision, stage, *fixed([busy, whole]), str(percent(max(0.0, 1 - busy / whole)))])
    return {"stages": Table(["precision", "stage", "busy / ms", "stage / ms", "idle"], body, text_columns=2)}


def extremes(values: Any) -> Typst:
    """The least and the most of some shares, or the one that they all are."""
    ordered = sorted(values)
    least, most = percent(ordered[0]), percent(ordered[-1])
    return least if least == most else Typst(f"{least} to {most}")


def profiler_cost(table: DataFrame) -> dict[str, Any]:
    """How much longer steps take under the profiler, and how much by who sets the pace of the step without it."""
    cells = ["label", "context", "precision", "compiled", "attention", "mode"]
    rows = table[table["metric"].isin(["step", "step_profiled"]) & (table["status"] == "ok")]
    means = rows.pivot_table(index=cells, columns="metric", values="mean").reindex(columns=["step", "step_profiled"])
    cost = (means["step_profiled"] / means["step"]).dropna().sort_values()
    if not len(cost):
        return {"cost_cells": 0}
    busy = select(table, metric="stage_busy").groupby(cells)["mean"].sum() / means["step"]
    waiting, steady = (cost[cost.index.isin(busy[rows].index)] for rows in (busy < HOST_BOUND, busy >= HOST_BOUND))
    return {
        "cost_median": times(cost.median()),
        "cost_least": times(cost.iloc[0]),
        "cost_most": times(cost.iloc[-1]),
        "cost_where": name_cell(cost.index.to_frame().iloc[-1]),
        "cost_cells": len(cost),
        "cost_by_pace": {"host": waiting.median(), "device": steady.median()}
        if measured_gpu({"": table}) and len(waiting) and len(steady)
        else None,
    }


def all_cells_table(plain: DataFrame) -> Table:
    """Every size and context: the kernels' time and the share of matrix multiplies."""
    body = []
    kinds = [(precision, mode) for precision in PRECISIONS for mode in MODES_PROFILED]
    for size in size_order(plain):
        for context in sorted(plain["context"].unique()):
            line = [label_of(plain, size), str(context)]
            for precision, mode in kinds:
                rows = select(plain, size=size, context=context, precision=precision, mode=mode)
                launched = kernels(rows)
                if len(launched):
                    line += [str(significant(launched["ms"].sum())), f"{100 * shares(launched)['matmul']:.0f}"]
                else:
                    line += [cell_state(rows)] * 2
            body.append(line)
    header = ["size", "context", *["ms", "matmul / %"] * len(kinds)]
    groups = [("", 2), *((f"{precision}, {MODES_PROFILED[mode]}", 2) for precision, mode in kinds)]
    return Table(header, body, groups=groups)


def cell_state(rows: DataFrame) -> str:
    """Why a cell has no kernels, in a word or two."""
    return "OOM" if "memory" in reason(rows) else "n/m"
