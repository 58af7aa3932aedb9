"""Answers to `benchmarking_script`: step times, their spread, and what warm-up does."""

from collections.abc import Mapping
from typing import Any

import pandas
from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import parameters, step_flops
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import NOTHING, Answer, Captioned, count, paragraph, say, tell
from scripts.rendering.markup import Table, Tile, Typst, fixed, mean_std, percent, significant
from scripts.views.cells import name_cell
from scripts.views.data import (
    PHASES,
    measured_gpu,
    reason,
    reference_context,
    select,
    size_order,
    statistic,
)
from scripts.views.spread import WIDE
from scripts.views.steps import HOST_BOUND, PASSES, steady, step_table

WHOSE_PEAK = {"bf16": "the tensor cores' dense bf16 peak", "fp32": "the CUDA cores' fp32 peak"}
"""What a utilization is relative to."""
NOTICEABLE = 0.05
"""A first timed step that exceeds every other step of its run by a larger share than this is still different."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    table = tables["end_to_end"]
    measured = steady(step_table(table))
    eager = select(measured, compiled=False, attention="plain")
    best = best_utilization(measured)
    return {
        "times": times(table, eager, best),
        "variability": variability(measured),
        "warmup": warmup(table),
        "best": best,
        "steps": int(eager["steps"].max()) if len(eager) else None,
        "warmups": int(eager["warmup"].max()) if len(eager) else None,
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """The best utilization in each precision, where the peak rate is known."""
    return [
        Tile(percent(best["share"]), f"of {best['of']}: the best step in {best['precision']}", best["precision"])
        for best in found["best"]
    ]


def times(table: DataFrame, eager: DataFrame, best: list[dict[str, Any]]) -> Answer:
    """Sub-question (b): forward, backward and optimizer of every size."""
    context = reference_context(select(eager, mode="train_step"))
    trained = select(eager, mode="train_step", context=context)
    told = trained[~trained["host_bound"].astype(bool)]
    ends = trained[trained["precision"] == "fp32"]
    first, last = (ends.iloc[place] if len(ends) else None for place in (0, -1))
    plain = select(table, compiled=False, attention="plain", cold_start=False)
    utilization = [
        say("{share:percent} of {of} ({cell})", share=each["share"], of=each["of"], cell=each["cell"]) for each in best
    ]
    return Answer(
        asked="(b) Step times",
        verdict=NOTHING
        if first is None or last is None
        else say(
            "A training step takes {least:ms} ({small}) to {most:ms} ({large}) in fp32 at context {context}.",
            least=first["step"],
            small=first["label"],
            most=last["step"],
            large=last["label"],
            context=context,
        )
        if first["label"] != last["label"]
        else say("A training step of {label} takes {time:ms} in fp32.", label=first["label"], time=first["step"]),
        more=say(
            "The backward pass takes {ratio:times} the forward pass, AdamW {share:percent} of the step "
            "(medians of {cells}).",
            ratio=(told["backward"] / told["forward"]).median(),
            share=(told["optimizer"] / told["step"]).median(),
            cells=count(len(told), "device-bound cell" if told["busy"].notna().any() else "cell"),
        ),
        evidence=[Captioned(times_table(plain, eager, context), times_caption(table, eager, context))],
        reason=paragraph(
            say("The best utilization is {shares:listing}.", shares=utilization),
            say(
                "Backward computes two matmuls for each one of the forward pass; AdamW reads and writes every weight, "
                "gradient and moment, so its time follows the number of weights, not the context."
            ),
            host_sentence(eager),
        ),
        details=["step_phases", "step_context", Captioned(all_times_table(plain, eager), ALL_TIMES, long=True)],
    )


ALL_TIMES = "Medians of the training step up to each of its phases, in all eager cells; a star: host-bound."


def times_caption(table: DataFrame, eager: DataFrame, context: int | None) -> str:
    """The caption of the table of times."""
    steps = f"Mean ± std of {int(eager['steps'].max()) if len(eager) else 0} steps, context {context} unless given"
    busy = "; busy: the device's share of the step, a star where it is host-bound" if measured_gpu({"": table}) else ""
    return f"{steps}{busy}."


def host_sentence(eager: DataFrame) -> Typst:
    """How many eager training steps are host-bound, by precision."""
    trained = select(eager, mode="train_step").dropna(subset="busy")
    parts = [
        say("{slow} of {all} in {precision}", slow=int(rows["host_bound"].sum()), all=len(rows), precision=precision)
        for precision, rows in trained.groupby("precision", sort=False)
    ]
    return say(
        "Of the eager training steps {parts:listing} are host-bound: the device works for less than {share:percent} "
        "of them, waiting for launches, so their times are the host's (@sec-host_costs).",
        parts=parts,
        share=HOST_BOUND,
    )


def variability(measured: DataFrame) -> Answer:
    """Sub-question (b): whether repeated steps scatter."""
    steps = measured[measured["std"].notna()]
    variation = steps["std"] / steps["mean"]
    bound = steps["host_bound"].astype(bool)
    known = steps["busy"].notna().any()
    judged = variation[~bound] if known else variation
    wide = int((judged > WIDE).sum())
    kind = "device-bound cell" if known else "cell"
    return Answer(
        asked="(b) Variability",
        verdict=say(
            "{is_small}: the std of a step is {typical:percent} of its mean (median of {cells}).",
            is_small=tell(not wide, Typst("It is small"), Typst("It is not small everywhere")),
            typical=judged.median(),
            cells=count(len(judged), kind),
        ),
        more=paragraph(
            say("It exceeds {limit:percent} in {wide} of them.", limit=WIDE, wide=wide or "none"),
            say(
                "Host-bound cells scatter more: {typical:percent} in the median of {cells}.",
                typical=variation[bound].median() if known else None,
                cells=len(variation[bound]),
            ),
        ),
        evidence=["variability"],
        reason=tell(
            bool(known),
            say(
                "What else the host does delays a launch, and shows in the step only where the device waits for "
                "launches. Ratios in this report are formed from medians, and from device-bound cells only."
            ),
            Typst("The processor runs other programs too. Ratios in this report are formed from medians."),
        ),
    )


def warmup(table: DataFrame) -> Answer:
    """Sub-question (c): the first steps of a process."""
    cold = select(step_table(table), cold_start=True, compiled=False, attention="plain")
    cold = cold[cold["first_step"].notna()]
    missing = "Not measured: the number of warm-up steps was not varied."
    at_once = select(cold, warmup=0).set_index("label")
    if cold["warmup"].nunique() < 2 or not len(at_once):
        return Answer("(c) Warm-up", NOTHING, missing=missing)
    extra = at_once["first_step"] - at_once["step"]
    inflation = at_once["mean"] / at_once["step"]
    later = cold[cold["warmup"] > 0]
    late = later[[different(step) for _, step in later.iterrows()]]
    asked_again = at_once["device_allocations"].dropna()
    return Answer(
        asked="(c) Warm-up",
        verdict=say(
            "Without it the first step takes {extra:span ms} longer and inflates the mean up to {factor:times}.",
            extra=(extra.min(), extra.max()),
            factor=inflation.max(),
        ),
        more=tell(
            not len(late),
            say(
                "One warm-up step is enough: after it no first step stands out of its run ({runs}).",
                runs=count(len(later), "run"),
            ),
            say(
                "After warm-up the first step still stands out of its run in {late} of {runs} ({where:listing}).",
                late=len(late),
                runs=count(len(later), "run"),
                where=[f"{step['label']}, w = {step['warmup']}" for _, step in late.iterrows()],
            ),
        ),
        evidence=[
            Captioned(warmup_table(cold), "Forward + backward by number w of warm-up steps, each a new process.")
        ],
        reason=paragraph(
            say(
                "The allocator asks the driver for memory {calls} times in these steps, and {later} times after a "
                "warm-up step.",
                calls=Typst(f"{asked_again.min():.0f} to {asked_again.max():.0f}") if len(asked_again) else None,
                later=int(later["device_allocations"].max()) if len(asked_again) else None,
            ),
            tell(
                bool(len(asked_again)),
                Typst(
                    "Likely the rest: CUDA loads each kernel's module at its first launch, and cuBLAS creates its "
                    "workspace and picks an algorithm for each shape; neither was timed apart."
                ),
                Typst("Likely causes: threads start, matmul kernels are set up for each shape, fresh pages fault."),
            ),
            Typst("Columns are different processes; only _first − median_ compares within one."),
        ),
        details=["warmup"],
    )


def different(step: Series) -> bool:
    """Whether the first timed step of a run exceeds every other one noticeably."""
    return bool(step["first_step"] > (1 + NOTICEABLE) * max(step["samples"][1:], default=step["step"]))


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
            star = "*" if whole["host_bound"].any() else ""
            shares.append([first_share(whole["busy"]) + star, first_share(whole.apply(utilization, axis=1))])
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


def utilization(step: Series) -> float | None:
    """FLOPs of a step's matrix multiplies over its median time and the GPU's dense peak; None where none is known."""
    peak = gpu_of(step["gpu"])
    if peak is None:
        return None
    flops = step_flops(step["mode"], parse_size(step["size"]), step["vocab_size"], step["batch_size"], step["context"])
    return flops / (step["step"] / 1e3) / peak.flops(step["precision"])


def best_utilization(measured: DataFrame) -> list[dict[str, Any]]:
    """In each precision the step that comes closest to its peak.

    The closest comes first.
    """
    shares = [(utilization(step), step) for _, step in measured.iterrows()]
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


def warmup_table(cold: DataFrame) -> Table:
    """Mean ± std of the timed steps, and what the first of them takes beyond the median, by warm-up steps."""
    sizes, warmups = size_order(cold), sorted(cold["warmup"].unique())
    every = pandas.MultiIndex.from_product([sizes, warmups], names=["size", "warmup"])
    by_size = cold.set_index(["size", "warmup"]).reindex(every)
    body = []
    for size in sizes:
        rows = by_size.loc[size]
        means = mean_std(list(zip(rows["mean"], rows["std"], strict=True)))
        extra = fixed(list(rows["first_step"] - rows["step"]))
        body.append([rows["label"].dropna().iloc[0], *(text or "–" for text in [*means, *extra])])
    groups = [("", 1), ("mean ± std of the timed steps / ms", len(warmups)), ("first − median / ms", len(warmups))]
    return Table(["size", *[f"w = {warmup}" for warmup in warmups] * 2], body, groups=groups)
