"""Answers to `nsys_profile`: the kernels of a step, their times, and their limits."""

from itertools import product

from pandas import DataFrame, Series

from cs336_systems.compare.speed import host_bound
from cs336_systems.sizes import size_name
from scripts.answers.nsys_profile.kinds import ASKED, longest, others, softmax
from scripts.rendering.answer import Answer, Answers, Captioned, Facts, Tables, count, least_and_most, say
from scripts.rendering.grid import NONE, Columns, grid
from scripts.rendering.markup import Table, Typst
from scripts.views.data import PRECISIONS, measured_gpu, reason, select, size_order, small_to_large
from scripts.views.kernels import CELL, MODES_PROFILED, kernels, profiled_closely, shares
from scripts.views.steps import steady, step_table

FORWARD: Columns = {
    "size": "{label}{host_bound:star}",
    "precision": "{precision}",
    "kernels / ms": "stage_busy",
    "stage / ms": "stage",
    "host timer / ms": "forward",
    "busy / %": "{share:share}",
}


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table = tables["kernel_profile"]
    close = profiled_closely(table)
    unit = "kernel" if measured_gpu({"": table}) else "operator"
    if not len(close):
        return {"unit": unit, "steps": None, **{name: Answer(asked) for name, asked in ASKED.items()}}
    plain = select(table, compiled=False, attention="plain")
    here = select(plain, context=close["context"].iloc[0])
    return {
        "unit": unit,
        "steps": int(here["steps"].iloc[0]),
        "warmup": int(here["warmup"].iloc[0]),
        "forward": forward_time(forward_passes(here, tables["end_to_end"]), close, unit),
        "longest": longest(here, close, unit),
        "others": others(close, unit),
        "training": training(close, plain, unit),
        "softmax": softmax(here, close),
    }


def forward_passes(here: DataFrame, end_to_end: DataFrame) -> DataFrame:
    """The forward pass of each size and precision by three clocks, ms: `stage_busy`, `stage` and `forward`.

    Also the `share` in which the device is busy, and `host_bound`, whether either process is.
    """
    keys, metrics = [*CELL, "context"], ["stage_busy", "stage"]
    rows = select(here, mode="inference", stage="forward")
    rows = rows[rows["metric"].isin(metrics)].pivot(index=keys, columns="metric", values="mean")
    timed = select(steady(step_table(end_to_end)), compiled=False, attention="plain", mode="inference")
    timed = timed.set_index(keys)[["forward", "host_bound"]].rename(columns={"host_bound": "elsewhere"})
    passes = small_to_large(rows.reindex(columns=metrics).dropna().join(timed).reset_index())
    if not here["gpu"].any():
        return passes.assign(share=None, host_bound=False)
    bound = host_bound(passes["stage"], passes["stage_busy"]) | passes["elsewhere"].eq(True)
    return passes.assign(share=passes["stage_busy"] / passes["stage"], host_bound=bound)


def forward_time(passes: DataFrame, close: DataFrame, unit: str) -> Answer:
    """Sub-question (a): the forward pass by the trace, by events and by another experiment's timer."""
    on_gpu, bound = unit == "kernel", passes["host_bound"].astype(bool)
    steady_cells, row = passes[~bound], close.iloc[0]
    gap = ((steady_cells["stage"] - steady_cells["forward"]).abs() / steady_cells["forward"]).dropna()
    quoted = select(steady_cells, size=row["size"])
    facts = Facts(row=row, gap=least_and_most(gap), bound=int(bound.sum()) or None, all=len(passes))
    return Answer(
        asked=ASKED["forward"],
        verdict=facts.say(
            "In inference, a forward pass of {row[label]} at context {row[context]} takes {times:listing}.",
            times=[say("{row[stage]:ms} in {row[precision]}", row=each) for _, each in quoted.iterrows()],
        ),
        more=facts.say(
            "The host timer in another process differs by {gap:span percent} ({cells}).",
            "Of {all} cells, {bound} {are} host-bound.",
            are="is" if bound.sum() == 1 else "are",
            cells=count(len(gap), "device-bound cell" if on_gpu else "cell"),
        ),
        results=Captioned(
            grid(passes, {title.replace("kernel", unit): column for title, column in FORWARD.items()}, text_columns=2),
            f"Inference forward pass at context {row['context']}, timed in three ways. {unit.title()}s: from the "
            "trace; stage: from start to end, without the profiler (both are means); host timer: in another process "
            "(end_to_end, median).",
            legend={
                "busy / %": "Busy: kernels over stage",
                "*": "*: host-bound in either process",
                NONE: f"{NONE}: not measured",
            },
        ),
        reason=say(
            "" if on_gpu else "Other programs may have slowed any of the three.",
            "In host-bound cells, compare the kernels' times: processes differ in how fast they launch kernels."
            if bound.any()
            else "",
        ),
        details="kernel_timeline",
    )


def training(close: DataFrame, plain: DataFrame, unit: str) -> Answer:
    """Sub-question (d): each category's share of inference and of the training step."""
    times = {
        name: [shares(kernels(close, precision=name, mode=mode)) for mode in MODES_PROFILED] for name in PRECISIONS
    }
    whole = {name: both for name, both in times.items() if all(both)}
    lines = every_cell(plain)
    pairs = lines.pivot(index=[*CELL, "context"], columns="mode", values="matmul").dropna()
    old, new = (pairs[mode] for mode in MODES_PROFILED.values())
    facts = Facts(unit=unit, close=close.iloc[0])
    return Answer(
        asked=ASKED["training"],
        verdict=facts.say(
            "The matmul share {moves} {shares:listing} ({close[label]}, context {close[context]}).",
            moves="falls" if all(new["matmul"] < old["matmul"] for old, new in whole.values()) else "goes",
            shares=[
                say("from {old[matmul]:percent} to {new[matmul]:percent} in {name}", old=old, new=new, name=name)
                for name, (old, new) in whole.items()
            ],
        ),
        more=facts.say(
            "It rises in {rises} of {cells}." if len(pairs) > 1 else "",
            "AdamW takes {gained:listing} of the training step's {unit} time.",
            rises=int((new > old).sum()) or "none",
            cells=count(len(pairs), "cell"),
            gained=[say("{new[optimizer]:percent} ({name})", new=new, name=name) for name, (_, new) in whole.items()],
        ),
        reason=say(
            "AdamW has no matmuls and always works in fp32, so its share grows as the rest becomes faster "
            "(@fig-kernel_shares).",
            *(other_shares(name, *both) for name, both in whole.items()),
        ),
        results="kernel_shares",
        details=Captioned(
            cells_table(lines),
            f"Total {unit} time of a step and the matmul share, in every eager cell with plain attention.",
        ),
    )


def other_shares(name: str, inference: dict[str, float], step: dict[str, float]) -> Typst:
    """The shares of inference that change most in the training step, except the matmuls'."""
    old, new = Series(inference), Series(step).drop("optimizer", errors="ignore")
    changes = new.sub(old, fill_value=0).drop("matmul").abs().nlargest(3)
    return say(
        "In {name}, the other shares that change most are {shares:listing}.",
        name=name,
        shares=[
            say("{kind} ({old:percent} to {new:percent})", kind=kind, old=old.get(kind, 0), new=new.get(kind, 0))
            for kind in changes.index
        ],
    )


def every_cell(plain: DataFrame) -> DataFrame:
    """The kernels' time in each cell, `ms`, and the share of matmuls, `matmul`."""
    lines = []
    for size, context in product(size_order(plain), sorted(plain["context"].unique())):
        for precision, mode in product(PRECISIONS, MODES_PROFILED):
            rows = select(plain, size=size, context=context, precision=precision, mode=mode)
            launched = kernels(rows)
            line = {"size": size, "label": size_name(size), "context": context, "precision": precision}
            line |= {"mode": MODES_PROFILED[mode], "message": "" if len(launched) else reason(rows)}
            lines.append(line | {"ms": launched["ms"].sum(), "matmul": shares(launched).get("matmul")})
    return DataFrame(lines)


def cells_table(lines: DataFrame) -> Table:
    """Every cell of `every_cell`."""
    cell = {name: f"{{{name}}}" for name in ("context", "precision", "mode")}
    columns = {"size": "{label}"} | cell | {"ms": "{ms:sig}", "matmul / %": "{matmul:share}"}
    return grid(lines, columns, text_columns=4)
