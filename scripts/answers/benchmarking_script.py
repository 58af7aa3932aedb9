"""Answers to `benchmarking_script`: step times, their spread, and what warm-up does."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import parameters, step_flops
from cs336_systems.measure.measurement import parse_samples
from cs336_systems.measure.peaks import peak_of
from cs336_systems.sizes import parse_size
from scripts.data import (
    PHASES,
    measured_gpu,
    ratio,
    reason,
    reference_context,
    select,
    size_order,
    statistic,
    steady_warmup,
)
from scripts.markup import NOT_MEASURED, Table, Tile, fixed, mean_std, percent, significant, times

PHASES_OF = {"forward": PHASES[:1], "forward_backward": PHASES[:2], "train_step": PHASES}
SMALL_SPREAD = 0.05
"""A coefficient of variation that a reader would call small."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["end_to_end"]
    eager = select(table, compiled=False, attention="plain")
    context, warmup = reference_context(eager), steady_warmup(eager)
    steady = select(eager, warmup=warmup)
    return {
        "context": context,
        "warmup": warmup,
        "steps": int(steady["steps"].max()) if len(steady) else None,
        "times": times_table(select(steady, context=context)),
        "all_times": all_times_table(steady),
        "best_utilization": best_utilization(steady),
        "only_fp32_fits": only_fp32_fits(steady),
        **spread(steady),
        **warmup_answers(eager),
        **overhead(table),
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """The best utilization; where no peak rate is known, what warm-up does and how far repeated steps scatter."""
    if best := found["best_utilization"]:
        what = f"of the dense peak in the {best['cell']} training step: the best utilization here"
        return [Tile(percent(best["share"]), what)]
    shown = []
    if found["warmup_table"]:
        inflation = f"how much timing without warm-up inflates the mean of {found['steps']} steps, at worst"
        shown.append(Tile(times(found["most_inflated"]), inflation))
    if found["cells"]:
        scatter = f"standard deviation over mean of repeated steps: the median of {found['cells']} cells"
        shown.append(Tile(percent(found["typical_variation"]), scatter))
    return shown


def phase_statistics(rows: DataFrame, phase: str) -> tuple[float | None, float | None]:
    """Mean and std of a phase, from the most complete kind of step that was measured."""
    for mode in reversed(PHASES_OF):
        if phase in PHASES_OF[mode]:
            mean = statistic(rows, "mean", mode=mode, metric=phase)
            if mean is not None:
                return mean, statistic(rows, "std", mode=mode, metric=phase)
    return None, None


def times_table(rows: DataFrame) -> Table:
    """Mean ± std of each phase and the utilization of the whole step, one row per size and precision."""
    cells = [(size, precision) for size in size_order(rows) for precision in ("fp32", "bf16")]
    columns: dict[str, list[tuple[float | None, float | None]]] = {phase: [] for phase in PHASES}
    texts, utilization, reasons = [], [], []
    for size, precision in cells:
        cell = select(rows, size=size, precision=precision)
        for phase in PHASES:
            columns[phase].append(phase_statistics(cell, phase))
        shape = parse_size(size)
        label = select(rows, size=size)["label"].iloc[0]
        texts.append([label, f"{parameters(shape, int(rows['vocab_size'].iloc[0])) / 1e6:,.0f}", precision])
        utilization.append(model_utilization(cell))
        reasons.append(reason(cell, mode="train_step"))
    formatted = [mean_std(columns[phase]) for phase in PHASES]
    shares = [f"{100 * share:.0f}" if share is not None else "–" for share in utilization]
    body = []
    for index, text in enumerate(texts):
        values = [column[index] or reasons[index] for column in formatted]
        body.append([*text, *values, shares[index]])
    header = ["size", "parameters / M", "precision", "forward / ms", "backward / ms", "AdamW / ms", "MFU / %"]
    if not any(utilization):  # no peak rate is known for this machine
        header, body = header[:-1], [line[:-1] for line in body]
    return Table(header, body, text_columns=1)


def model_utilization(rows: DataFrame) -> float | None:
    """FLOPs of the most complete step that ran, over its median time and the GPU's dense peak."""
    peak = peak_of(measured_gpu({"": rows}))
    for mode in reversed(PHASES_OF):
        median = statistic(rows, "median", mode=mode, metric="step")
        if median is not None and peak:
            first = rows.iloc[0]
            shape = parse_size(first["size"])
            flops = step_flops(mode, shape, first["vocab_size"], first["batch_size"], first["context"])
            return flops / (median / 1e3) / peak.flops(first["precision"])
    return None


def best_utilization(steady: DataFrame) -> dict[str, Any] | None:
    """The training step that comes closest to the peak of its precision."""
    shares: list[dict[str, Any]] = [
        {"share": share, "cell": f"{label} {precision} (context {context})"}
        for (_, label, precision, context), rows in select(steady, mode="train_step").groupby(
            ["size", "label", "precision", "context"], sort=False
        )
        if (share := model_utilization(rows)) is not None
    ]
    return max(shares, key=lambda entry: entry["share"], default=None)


def only_fp32_fits(steady: DataFrame) -> str | None:
    """A cell that fits in fp32 but runs out of memory in bf16 autocast, in words."""
    for _, row in select(steady, status="oom", precision="bf16").iterrows():
        cell = {name: row[name] for name in ("size", "context", "mode")}
        if statistic(steady, "median", metric="step", precision="fp32", **cell) is not None:
            return f"{row['label']}, context {row['context']}, {row['mode'].replace('_', ' ')}"
    return None


def all_times_table(rows: DataFrame) -> Table:
    """Median step time of every kind of step, context and precision, and the training step's peak memory."""
    cells = [
        (size, context) for size in size_order(rows) for context in sorted(select(rows, size=size)["context"].unique())
    ]
    precisions = ["fp32", "bf16"]
    body = []
    for size, context in cells:
        line = [select(rows, size=size)["label"].iloc[0], str(context)]
        for precision in precisions:
            cell = select(rows, size=size, context=context, precision=precision)
            for mode in PHASES_OF:
                median = statistic(cell, "median", metric="step", mode=mode)
                line.append(short(median, reason(cell, mode=mode)))
            peak = statistic(cell, "mean", metric="peak_memory", mode="train_step")
            line.append(f"{peak / 1024:.1f}" if peak else "–")
        body.append(line)
    header = ["size", "context", *["forward", "+ backward", "+ AdamW", "peak"] * 2]
    return Table(header, body, groups=[("", 2), ("fp32: ms and GiB", 4), ("bf16: ms and GiB", 4)])


def short(value: float | None, why: str) -> str:
    """A number, or the shortest form of the reason for its absence."""
    if value is not None:
        return str(significant(value))
    return "OOM" if "out of memory" in why else "n/m"


def spread(steady: DataFrame) -> dict[str, Any]:
    """How far single steps scatter about their mean."""
    steps = select(steady, metric="step").copy()
    steps["variation"] = steps["std"] / steps["mean"]
    if not len(steps):
        return {"cells": 0}
    worst = steps.iloc[steps["variation"].argmax()]
    wide = int((steps["variation"] > SMALL_SPREAD).sum())
    return {
        "cells": len(steps),
        "typical_variation": steps["variation"].median(),
        "worst_variation": worst["variation"],
        "worst_cell": name_of(worst),
        "worst_step": worst["mean"],
        "wide_cells": wide,
        "small_spread": SMALL_SPREAD,
        "outlier": outlier(steps),
    }


def outlier(steps: DataFrame) -> dict[str, Any] | None:
    """The sample that exceeds the median of its cell by the largest factor; None where no samples were kept."""
    kept = steps[steps["samples"] != ""]
    if not len(kept):
        return None
    factors = kept["samples"].map(lambda samples: max(parse_samples(samples))) / kept["median"]
    return {"factor": factors.max(), "cell": name_of(kept.iloc[factors.argmax()])}


def name_of(step: Series) -> str:
    """A cell in words."""
    return f"{step['label']}, context {step['context']}, {step['precision']}, {step['mode'].replace('_', ' ')}"


def warmup_answers(eager: DataFrame) -> dict[str, Any]:
    """Step times by number of warm-up steps, at the context and in the mode in which warm-up was varied."""
    cold = eager[eager["warmup"] == 0]
    if not len(cold):
        return {"warmup_table": None}
    mode, context, precision = cold[["mode", "context", "precision"]].iloc[0]
    data = select(eager, mode=mode, context=context, precision=precision)
    warmups, sizes = sorted(data["warmup"].unique()), size_order(cold)
    if len(warmups) < 2:
        return {"warmup_table": None}
    body = []
    inflation, settled = [], []
    for size in sizes:
        rows = select(data, size=size)
        pairs = [
            (statistic(rows, "mean", metric="step", warmup=w), statistic(rows, "std", metric="step", warmup=w))
            for w in warmups
        ]
        first, second = (statistic(rows, "median", metric="first_step", warmup=w) for w in (0, 1))
        steps = mean_std(pairs)
        body.append([rows["label"].iloc[0], *(step or NOT_MEASURED for step in steps), *fixed([first])])
        inflation.append(ratio(pairs[0][0], statistic(rows, "median", metric="step", warmup=warmups[-1])))
        settled.append(ratio(second, statistic(rows, "median", metric="step", warmup=1)))
    header = ["size", *(f"w = {w}" for w in warmups), "first step, w = 0"]
    present = [value for value in inflation if value]
    after_one = [value for value in settled if value]
    return {
        "warmup_table": Table(
            header, body, groups=[("", 1), ("mean ± std of the timed steps / ms", len(warmups)), ("ms", 1)]
        ),
        "warmup_context": int(context),
        "warmup_values": [str(w) for w in warmups],
        "most_inflated": max(present, default=None),
        "least_inflated": min(present, default=None),
        "after_one_worst": max(after_one, default=None),
    }


def overhead(table: DataFrame) -> dict[str, Any]:
    """How the jobs' time divides into timed steps and the rest, seconds."""
    wall = select(table, metric="wall")["mean"].sum()
    steps = select(table, metric="step")
    timed = (steps["mean"] * steps["n"]).sum() / 1e3
    startup = table.drop_duplicates("utc")["startup_seconds"].sum()
    return {
        "job_total": wall + startup,
        "job_timed": timed,
        "job_startup": startup,
        "job_build": select(table, metric="build")["mean"].sum(),
        "job_warmup": select(table, metric="warmup")["mean"].sum(),
    }
