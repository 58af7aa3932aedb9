"""Answers to `benchmarking_script`: step times, their spread, and what warm-up does."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import parameters, step_flops
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.sizes import parse_size
from scripts.answers.benchmarking_script.memory import memory_answers
from scripts.answers.benchmarking_script.warmup import NOTICEABLE, warmup_answers
from scripts.rendering.markup import Table, Tile, mean_std, percent, significant, times
from scripts.views.cells import name_cell
from scripts.views.data import PHASES, measured_gpu, one, reason, reference_context, select, size_order, statistic
from scripts.views.steps import PASSES, steady, step_table
from scripts.views.variability import spread

WHOSE_PEAK = {"bf16": "the tensor cores' dense bf16 peak", "fp32": "the CUDA cores' fp32 peak"}
"""What a utilization is relative to."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["end_to_end"]
    measured = steady(step_table(table))
    eager = select(measured, compiled=False, attention="plain")
    plain = select(table, compiled=False, attention="plain", cold_start=False)
    context = reference_context(select(eager, mode="train_step"))
    return {
        "context": context,
        "warmup": int(eager["warmup"].max()) if len(eager) else None,
        "steps": int(eager["steps"].max()) if len(eager) else None,
        "times": times_table(plain, eager, context),
        "elsewhere": [label for label, at in contexts(plain, context).items() if at != context],
        "inference": inference_share(eager),
        "all_times": all_times_table(plain, eager),
        "utilization": best_utilization(measured),
        **memory_answers(table, eager),
        **spread(measured),
        **warmup_answers(table),
        **overhead(table),
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """The best utilization; where no peak rate is known, what warm-up does and how far repeated steps scatter."""
    if best := found["utilization"]:
        first, *others = best
        what = f"of {first['of']}, the best utilization of all steps"
        rest = [f"; in {other['precision']} {100 * other['share']:.0f} % of {other['of']}" for other in others]
        return [Tile(percent(first["share"]), "".join([what, *rest]), f"utilization in {first['precision']}")]
    shown = []
    if found["most_inflated"] and found["most_inflated"] > 1 + NOTICEABLE:
        inflation = f"how much timing without warm-up inflates the mean of {found['steps']} steps, at worst"
        shown.append(Tile(times(found["most_inflated"]), inflation))
    if found["cells"]:
        scatter = f"standard deviation over mean of repeated steps: the median of {found['cells']} cells"
        shown.append(Tile(percent(found["typical_variation"]), scatter))
    return shown


def contexts(table: DataFrame, reference: int | None) -> dict[str, int | None]:
    """The context at which each size is shown: the reference, or the longest at which it was tried."""
    shown: dict[str, int | None] = {}
    for size in size_order(table):
        rows = select(table, size=size)
        shown[rows["label"].iloc[0]] = int(rows["context"].max())
        if reference in set(rows["context"]):
            shown[rows["label"].iloc[0]] = reference
    return shown


def times_table(table: DataFrame, eager: DataFrame, reference: int | None) -> Table:
    """Mean ± std of each phase, the device's share and the utilization of the whole step, by size and precision."""
    columns: dict[str, list[tuple[float | None, float | None]]] = {name: [] for name in ("inference", *PHASES)}
    texts, shares, reasons = [], [], []
    for label, context in contexts(table, reference).items():
        for precision in ("fp32", "bf16"):
            rows = select(table, label=label, context=context, precision=precision)
            rows = rows[rows["warmup"] == rows["warmup"].max()]
            if not len(rows):
                continue
            columns["inference"].append(mean_and_std(rows, "forward", "inference"))
            for phase in PHASES:
                columns[phase].append(phase_statistics(rows, phase))
            size = parse_size(rows["size"].iloc[0])
            shown = label if context == reference else f"{label} at {context}"
            texts.append([shown, f"{parameters(size, int(rows['vocab_size'].iloc[0])) / 1e6:,.0f}", precision])
            reasons.append(reason(rows, mode="train_step"))
            kinds = select(eager, label=label, context=context, precision=precision)
            whole = kinds[kinds["mode"] != "inference"].tail(1)
            shares.append([first_share(whole["busy"]), first_share(whole.apply(utilization, axis=1))])
    formatted = {name: mean_std(pairs) for name, pairs in columns.items()}
    body = [
        [
            *text,
            formatted["inference"][index] or "–",
            *(formatted[phase][index] or reasons[index] for phase in PHASES),
            *shares[index],
        ]
        for index, text in enumerate(texts)
    ]
    header = ["size", "weights / M", "precision", "inference", "forward", "backward", "AdamW", "busy / %", "MFU / %"]
    groups = [("", 3), ("mean ± std / ms", 4), ("of the step", 2)]
    if all(share == "–" for pair in shares for share in pair):  # no GPU, or one whose peak is not known
        header, body, groups = header[:-2], [line[:-2] for line in body], groups[:-1]
    return Table(header, body, groups=groups)


def first_share(shares: Series) -> str:
    """A share in percent, or a dash where there is none."""
    present = shares.dropna() if len(shares) else shares
    return f"{100 * present.iloc[0]:.0f}" if len(present) else "–"


def phase_statistics(rows: DataFrame, phase: str) -> tuple[float | None, float | None]:
    """Mean and std of a phase, from the most complete kind of step that was measured."""
    for mode in ("train_step", "forward_backward", "forward"):
        mean, std = mean_and_std(rows, phase, mode)
        if mean is not None:
            return mean, std
    return None, None


def mean_and_std(rows: DataFrame, metric: str, mode: str) -> tuple[float | None, float | None]:
    """Mean and std of a metric in one kind of step."""
    wanted = {"mode": mode, "metric": metric}
    return statistic(rows, "mean", **wanted), statistic(rows, "std", **wanted)


def inference_share(eager: DataFrame) -> dict[str, Any] | None:
    """Inference's time over that of the training step's forward pass: the smallest and the largest ratio.

    Not of cells whose pace the host sets, which differs from process to process.
    """
    ratios = []
    for _, alone in select(eager, mode="inference").iterrows():
        cell = {name: alone[name] for name in ("size", "context", "precision")}
        trained = one(eager, mode="train_step", **cell)
        if trained is not None and not (alone["host_bound"] or trained["host_bound"]):
            words = f"{alone['label']}, context {alone['context']}, {alone['precision']}"
            ratios.append((alone["step"] / trained["forward"], words))
    return {"least": min(ratios), "most": max(ratios), "cells": len(ratios)} if ratios else None


def utilization(step: Series) -> float | None:
    """FLOPs of a step's matrix multiplies over its median time and the GPU's dense peak; None where none is known."""
    peak = gpu_of(step["gpu"])
    if peak is None:
        return None
    flops = step_flops(step["mode"], parse_size(step["size"]), step["vocab_size"], step["batch_size"], step["context"])
    return flops / (step["step"] / 1e3) / peak.flops(step["precision"])


def best_utilization(measured: DataFrame) -> list[dict[str, Any]]:
    """In each precision the step that comes closest to its peak, of all with plain attention, which computes all FLOPs.

    The closest comes first.
    """
    plain = select(measured, attention="plain")
    shares = [(utilization(step), step) for _, step in plain.iterrows()]
    best = []
    for precision in WHOSE_PEAK:
        known = [(share, name_cell(step)) for share, step in shares if share and step["precision"] == precision]
        if known:
            share, cell = max(known)
            best.append({"precision": precision, "share": share, "cell": cell, "of": WHOSE_PEAK[precision]})
    return sorted(best, key=lambda entry: -entry["share"])


def all_times_table(table: DataFrame, eager: DataFrame) -> Table:
    """Median times, the device's share and peak memory of the training step in all eager cells."""
    cells = list(dict.fromkeys(zip(table["size"], table["context"], strict=True)))
    order, on_gpu = size_order(table), bool(measured_gpu({"": table}))
    body = []
    for size, context in sorted(cells, key=lambda cell: (order.index(cell[0]), cell[1])):
        line = [select(table, size=size)["label"].iloc[0], str(context)]
        for precision in ("fp32", "bf16"):
            cell = {"size": size, "context": context, "precision": precision}
            steps = select(eager, **cell)
            lost = "OOM" if len(select(table, status="oom", **cell)) else "n/m"
            whole = steps[steps["mode"] != "inference"].tail(1)
            line += [short(whole[title], lost) for title in PASSES]
            if on_gpu:
                star = "*" if whole["host_bound"].any() else ""
                line += [first_share(whole["busy"]) + star, short(whole["peak_memory"] / 1024, "–")]
        body.append(line)
    header = ["forward", "+ backward", "+ AdamW", *(["busy", "peak"] if on_gpu else [])]
    units = "ms, % and GiB" if on_gpu else "ms"
    groups = [("", 2), *((f"{precision}: {units}", len(header)) for precision in ("fp32", "bf16"))]
    header = ["size", "context", *header * 2]
    return Table(header, body, groups=groups)


def short(values: Series, otherwise: str) -> str:
    """The one number, or what stands for it."""
    present = values.dropna()
    return str(significant(present.iloc[0])) if len(present) else otherwise


def overhead(table: DataFrame) -> dict[str, Any]:
    """How the time of this experiment's jobs divides into timed steps and the rest, seconds."""
    wall = select(table, metric="wall")["mean"].sum()
    steps = select(table, metric="step")
    timed = (steps["mean"] * steps["n"]).sum() / 1e3
    startup = table.drop_duplicates(["utc", "startup_seconds"])["startup_seconds"].sum()
    return {
        "job_total": wall + startup,
        "job_timed": timed,
        "job_startup": startup,
        "job_build": select(table, metric="build")["mean"].sum(),
        "job_warmup": select(table, metric="warmup")["mean"].sum(),
    }
