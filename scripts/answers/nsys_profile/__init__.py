"""Answers to `nsys_profile`: the kernels of a step, their times, and their limits."""

from itertools import product

from pandas import DataFrame

from scripts.answers.nsys_profile.kinds import ASKED, longest, others, softmax
from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, median_of, say, tell
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Table
from scripts.views.data import PRECISIONS, measured_gpu, reason, select, size_order
from scripts.views.kernels import MODES_PROFILED, forward_passes, kernels, label_of, profiled_closely, shares

FORWARD: Columns = {
    "size": "{label}{host_bound:star}",
    "precision": "{precision}",
    "kernels / ms": "kernels",
    "stage / ms": "stage",
    "host timer / ms": "timer",
    "busy / %": "{share:share}",
}


def answers(tables: Tables) -> Found:
    """The section's answers."""
    table = tables["kernel_profile"]
    gpu = measured_gpu({"": table})
    close = profiled_closely(table)
    unit = "kernel" if gpu else "operator"
    if not len(close):
        return {"unit": unit, "steps": None, **{name: Answer(asked) for name, asked in ASKED.items()}}
    here = select(table, compiled=False, attention="plain", context=close["context"].iloc[0])
    return {
        "unit": unit,
        "steps": int(here["steps"].iloc[0]),
        "warmup": int(here["warmup"].iloc[0]),
        "forward": forward_time(here, tables["end_to_end"], close, on_gpu=bool(gpu)),
        "longest": longest(here, close, unit),
        "others": others(close, table, gpu, unit),
        "training": training(close, table, unit),
        "softmax": softmax(here, close),
    }


def forward_time(here: DataFrame, end_to_end: DataFrame, close: DataFrame, *, on_gpu: bool) -> Answer:
    """Sub-question (a): the forward pass by the trace, by events and by another experiment's timer."""
    found = forward_passes(here, end_to_end, on_gpu=on_gpu)
    bound = found["host_bound"].astype(bool)
    told, row = found[~bound], close.iloc[0]
    gap = ((told["stage"] - told["timer"]).abs() / told["timer"]).dropna()
    times = [
        say("{row[stage]:ms} in {row[precision]}", row=each)
        for _, each in told.iterrows()
        if each["label"] == row["label"]
    ]
    facts = Facts(row=row, times=times, gap=gap.median(), bound=int(bound.sum()) or None, all=len(found))
    return Answer(
        asked=ASKED["forward"],
        verdict=facts.say("A forward pass of {row[label]} at context {row[context]} takes {times:listing}."),
        more=facts.say(
            "The profiled process and the host's timer differ by {gap:percent} ({cells}).",
            "{bound} of {all} cells {are} host-bound.",
            are="is" if bound.sum() == 1 else "are",
            cells=median_of(len(gap), "device-bound cell" if on_gpu else "cell"),
        ),
        evidence=Captioned(
            grid(found.assign(share=found["busy"] if on_gpu else None), FORWARD, text_columns=2),
            f"Forward pass of inference at context {row['context']}: by the trace, by a clock around the stage "
            f"without the profiler (means), "
            "and by the host's timer in another process (end_to_end, median).",
            legend={"*": "*: host-bound in either"},
        ),
        reason=tell(
            on_gpu,
            "A device-bound pass takes as long as its kernels on any clock. In host-bound cells each clock measures "
            "how fast its process launches kernels, which differs between processes; compare the kernels' time there. "
            "The profiler slows launches, so the stage is timed without it.",
            "The two are different processes, and other programs may have slowed one of them.",
        ),
        details="kernel_timeline",
    )


def training(close: DataFrame, table: DataFrame, unit: str) -> Answer:
    """Sub-question (d): each category's share of inference and of the training step."""
    found = {
        name: [shares(kernels(close, precision=name, mode=mode)) for mode in MODES_PROFILED] for name in PRECISIONS
    }
    whole = {name: both for name, both in found.items() if all(both)}
    facts = Facts(unit=unit, label=close["label"].iloc[0])
    return Answer(
        asked=ASKED["training"],
        verdict=facts.say(
            "The matmuls' share {moves} {shares:listing} ({label}).",
            moves="falls" if all(new["matmul"] < old["matmul"] for old, new in whole.values()) else "goes",
            shares=[
                say("from {old[matmul]:percent} to {new[matmul]:percent} in {name}", old=old, new=new, name=name)
                for name, (old, new) in whole.items()
            ],
        ),
        more=facts.say(
            "AdamW takes {gained:listing} of the training step's {unit} time.",
            gained=[say("{new[optimizer]:percent} in {name}", new=new, name=name) for name, (_, new) in whole.items()],
        ),
        evidence="kernel_shares",
        details=Captioned(
            cells_table(select(table, compiled=False, attention="plain")),
            f"Time of all {unit}s in a step, and the matmuls' share, in every eager cell with plain attention.",
            long=True,
        ),
    )


def cells_table(plain: DataFrame) -> Table:
    """Every cell: the kernels' time and the share of matmuls."""
    lines = []
    for size, context in product(size_order(plain), sorted(plain["context"].unique())):
        for precision, mode in product(PRECISIONS, MODES_PROFILED):
            rows = select(plain, size=size, context=context, precision=precision, mode=mode)
            launched = kernels(rows)
            line = {"label": label_of(plain, size), "context": context, "precision": precision}
            line |= {"mode": MODES_PROFILED[mode], "message": "" if len(launched) else reason(rows)}
            lines.append(line | {"ms": launched["ms"].sum(), "matmul": shares(launched).get("matmul")})
    cell = {name: f"{{{name}}}" for name in ("context", "precision", "mode")}
    columns = {"size": "{label}"} | cell | {"ms": "{ms:sig}", "matmul / %": "{matmul:share}"}
    return grid(DataFrame(lines), columns, text_columns=4)
