"""Answers to `optimizer_state_sharding_accounting`: memory, time and communication of sharded optimizers."""

from collections.abc import Sequence

from pandas import DataFrame, Series

from cs336_systems.accounting.optimizer_sharding import SCHEMES, fp32_adamw
from cs336_systems.accounting.units import MIB
from cs336_systems.compare.speed import SAME
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import Answer, Answers, Captioned, Facts, Tables, choose, say
from scripts.rendering.grid import NONE, Columns, grid
from scripts.rendering.markup import Table, Typst
from scripts.views.communication import BACKENDS
from scripts.views.comparison import (
    ADD_UP,
    FOREIGN,
    PHASES,
    backend_of,
    cells_of,
    contenders,
    device_bound_if_any,
    fastest,
    first_cell,
    names_in,
    yours,
)
from scripts.views.comparison_tables import STARS, STEP, contender_table, missing, setting
from scripts.views.data import first, one, select
from scripts.views.data_parallel import OURS as WRAPPERS
from scripts.views.data_parallel import wrappers
from scripts.views.optimizer_sharding import BEFORE_UPDATE, CELL, INITIALIZED, UNSHARDED, memory, peaks
from scripts.views.units import GB, GIB, memory_unit
from scripts.views.verdicts import against

HANDOUT_SIZE, HANDOUT_VOCABULARY = "xl", 10_000
RANKS = (2, 4)
FORMULAS = {
    "data parallel": ("$16 P$", "$2 r dot 4 P$"),
    "sharded optimizer": ("$8 P + 8 P \\/ N$", "$3 r dot 4 P$"),
    "ZeRO-1": ("$8 P + 8 P \\/ N$", "$2 r dot 4 P$"),
    "ZeRO-2": ("$4 P + 12 P \\/ N$", "$2 r dot 4 P$"),
}
"""Bytes of a rank's training state, and the bytes it sends in a step, without step counters (a few bytes)."""
HANDOUT, PEERS, GRADIENTS = "sharded", "sharded_symmetric_memory", "sharded_gradients"
"""The handout's scheme, the same over symmetric memory, and with sharded gradients."""
RATIO = {"× unsharded": "{ratio:.3f}"}
TIMES: Columns = {
    "step / ms": STEP | RATIO,
    "timed separately / ms": {{"synchronization": "sync."}.get(name, name): f"{{{name}:cut}}" for name in PHASES},
}
PARTS = {"weights": "parameters", "gradients": "gradients", "state": "optimizer_state", "rest": "rest"}
MOMENTS: Columns = {
    "initialized": {"in use": "{initialized:.2f}"},
    "before the update": {title: f"{{{name}:.2f}}" for title, name in PARTS.items()},
    "after the update": {"in use": "{total:.2f}"},
    "peak of a step": {"measured": "{peak:.2f}", "closed form": "{predicted_peak:.2f}"},
}


def answers(tables: Tables) -> Answers:
    """The section's answers, and what all contenders have in common."""
    table = tables["optimizer_sharding"]
    rows = contenders(OptimizerSharding, table)
    whole = select(rows, contender=UNSHARDED).set_index(CELL)["median"].rename("whole")
    rows = rows.join(whole, on=CELL)
    rows["ratio"] = rows["median"] / rows["whole"]
    return {
        "memory": memory_answer(table),
        "time": time_answer(table, rows, wrappers(tables)),
        "zero": zero_answer(),
        "s": setting(rows),
        "size": HANDOUT_SIZE,
    }


def memory_answer(table: DataFrame) -> Answer:
    """(a) Memory in use around the update, and at the peak."""
    rows = memory(table)
    unit, size = memory_unit(MIB * rows["total"].max())
    held = with_moments(rows)
    numbers = ["initialized", *PARTS.values(), "total", "peak", "predicted_peak", "passes", "update"]
    held[numbers] = held[numbers].astype(float) * MIB / size
    held["predicted_peak"] = held["predicted_peak"].where(held["peak"].notna())
    asked = first_cell(held)
    whole, own, both = (one(asked, contender=name) for name in (UNSHARDED, HANDOUT, GRADIENTS))
    cell = first(asked)
    rest, gradients = (select(asked, family=FOREIGN)[part].max() for part in ("rest", "gradients"))
    early = own is not None and own["passes"] > own["update"]
    facts = Facts(own=own, whole=whole, both=both, cell=cell, unit=unit)
    return Answer(
        asked="(a) Memory",
        missing=missing(table),
        verdict=facts.say(
            f"After a step of {{cell[label]}}, the fullest of {{own[processes]}} ranks holds {{own[total]:{unit}}}, "
            f"against {{whole[total]:{unit}}} without sharding."
        ),
        more=facts.say(
            f"The peak falls from {{whole[peak]:{unit}}} to {{own[peak]:{unit}}}.",
            f"With gradients sharded too, it is {{both[peak]:{unit}}}.",
        ),
        results=Captioned(
            grid(asked, {"": "{title}", **MOMENTS}),
            facts.say("Memory of the fullest rank in {unit} ({cell[cell]}). In use: the sum of the parts."),
            legend={
                "rest": "Rest: bucket copies, cuBLAS workspaces and allocator rounding",
                "closed form": "closed form: for our buckets only",
            },
        ),
        reason=say(
            "In closed form, weights and gradients take $4 P$ bytes each and the state $8 P$, divided by $N$ if "
            "sharded. Adding activations and buffers gives the peak; measured peaks differ by at most {error:percent}.",
            choose(
                early,
                "The peak occurs in the backward pass, since activations are freed before the update.",
                "",
            ),
            f"PyTorch DDP keeps copies of all gradients ({{copied:{unit}}}) in buckets, unless gradients are views of "
            "the buckets.",
            error=(asked["peak"] / asked["predicted_peak"] - 1).abs().max(),
            copied=gradients if rest > gradients else None,
        ),
    )


def with_moments(rows: DataFrame) -> DataFrame:
    """One row per contender: in use after it, its parts before the update, and after initialization."""
    keys = [*CELL, "contender"]
    begin = select(rows, moment=INITIALIZED).set_index(keys)["total"].rename("initialized")
    parts = list(PARTS.values())
    before = select(rows, moment=BEFORE_UPDATE).set_index(keys)[parts]
    return peaks(rows).drop(columns=parts).join(begin, on=keys).join(before, on=keys)


def time_answer(table: DataFrame, rows: DataFrame, unsharded: DataFrame) -> Answer:
    """(b) The step with and without sharding, in the requested cell, and the fastest of the unsharded wrappers."""
    shown = device_bound_if_any(rows)
    asked = first_cell(shown)
    whole, own, peers = (one(asked, contender=name) for name in (UNSHARDED, HANDOUT, PEERS))
    gain, over_peers = against(own, whole), against(peers, whole)
    theirs = fastest(asked, names_in(asked, FOREIGN))
    steps = "{own[median]:ms} against {whole[median]:ms} ({own[cell]})."
    backend = None if whole is None else BACKENDS[backend_of(whole)]
    known = {"own": own, "whole": whole, "peers": peers, "theirs": theirs, "row": first(asked), "backend": backend}
    facts = Facts(**known, unsharded=best_of(unsharded, own))
    return Answer(
        asked="(b) Step time",
        missing=missing(table),
        verdict=facts.say(
            choose(
                gain.faster,
                "Sharding makes the step {share:percent} shorter: " + steps,
                "Sharding makes the step {share:percent} longer: " + steps,
                gain.sentence("the sharded step", "the unsharded one"),
            ),
            share=gain.share,
        ),
        more=facts.say(
            "Over symmetric memory the sharded step takes {peers[median]:ms}"
            + choose(
                over_peers.faster,
                ", less than the unsharded step over {backend}.",
                ", more than the unsharded step over {backend}.",
                ", on par with the unsharded step over {backend}." if over_peers.verdict == SAME else ".",
            )
        ),
        results=Captioned(
            contender_table(OptimizerSharding, table, shown, TIMES),
            facts.say("Training steps of {row[label]}: median and 20th and 80th percentiles of {row[n]:whole} steps."),
            legend={
                "timed separately / ms": "Phases: medians; the optimizer phase includes sending parameters",
                NONE: f"{NONE}: part of the backward pass, or phases whose sum differs from the step by over "
                f"{100 * ADD_UP:.0f} %",
                **STARS,
            },
        ),
        reason=facts.say(
            "The optimizer phase takes {own[optimizer]:ms} sharded and {whole[optimizer]:ms} unsharded ({own[cell]}): "
            "a rank updates $1\\/N$ of the parameters and receives the rest.",
            "Over symmetric memory the optimizer phase takes {peers[optimizer]:ms}.",
            "PyTorch's fastest step (_{setting}_) takes {theirs[median]:ms}, its optimizer phase "
            "{theirs[optimizer]:ms}.",
            "In another launch (@sec-naive_ddp_benchmarking) our fastest unsharded step ({unsharded[title]}) "
            "takes {unsharded[median]:ms}.",
            *map(elsewhere, cells_of(shown)[1:]),
            yours(asked, {"our sharded optimizer": [HANDOUT]}),
            setting="" if theirs is None else theirs["title"].removeprefix("PyTorch, "),
        ),
    )


def elsewhere(cell: DataFrame) -> Typst:
    """The steps of another cell."""
    whole, own, peers = (one(cell, contender=name) for name in (UNSHARDED, HANDOUT, PEERS))
    return Facts(whole=whole, own=own, peers=peers).say(
        "In another setting ({own[cell]}), the step takes {whole[median]:ms} unsharded, {own[median]:ms} sharded and "
        "{peers[median]:ms} sharded over symmetric memory."
    )


def best_of(wrappers: DataFrame, row: Series | None) -> Series | None:
    """Our fastest data-parallel wrapper in a row's setting."""
    if row is None:
        return None
    setting = {name: row[name] for name in ("size", "context", "batch_size", "processes", "precision")}
    return fastest(select(wrappers, compiled=False, **setting), list(WRAPPERS))


def zero_answer() -> Answer:
    """(c) Memory and communication against ZeRO's stage 1, by closed form at the handout's size."""
    whole = fp32_adamw(parse_size(HANDOUT_SIZE), HANDOUT_VOCABULARY)
    ours, zero = (SCHEMES[name] for name in ("sharded optimizer", "ZeRO-1"))
    ranks = RANKS[0]
    sent, least = ours.sent(whole, ranks), zero.sent(whole, ranks)
    facts = Facts(
        size=HANDOUT_SIZE, ranks=ranks, sent=sent / GB, zero=least / GB, state=ours.memory(whole, ranks).total / GIB
    )
    return Answer(
        asked="(c) Against ZeRO stage 1",
        verdict=facts.say(
            "The sharded optimizer uses as much memory as ZeRO stage 1 but sends {sent / zero:times} as many bytes."
        ),
        more=facts.say(
            "In closed form ({size} in fp32), each of {ranks} ranks holds {state:GiB} of training state and sends "
            "{sent:GB} per step; ZeRO stage 1 sends {zero:GB}."
        ),
        results=Captioned(
            schemes_table(RANKS),
            f"Training state per rank and bytes sent per rank and step, in closed form, for {HANDOUT_SIZE} with AdamW "
            "in fp32, without activations and buffers.",
        ),
    )


def schemes_table(ranks: Sequence[int]) -> Table:
    """Memory and communication of each scheme by closed form, at the handout's size."""
    whole = fp32_adamw(parse_size(HANDOUT_SIZE), HANDOUT_VOCABULARY)
    lines = []
    for name, scheme in SCHEMES.items():
        state, sent = map(Typst, FORMULAS[name])
        held = {f"held{each}": scheme.memory(whole, each).total / GIB for each in ranks}
        lines.append({"name": name, "state": state, "sent": sent, **held})
        lines[-1] |= {f"sent{each}": scheme.sent(whole, each) / GB for each in ranks}

    def columns(what: str, formula: str) -> dict[str, str]:
        return {"bytes": formula, **{f"N = {each}": f"{{{what}{each}:sig}}" for each in ranks}}

    groups = {"training state per rank / GiB": columns("held", "{state}")}
    groups |= {"sent per rank and step / GB": columns("sent", "{sent}")}
    return grid(DataFrame(lines), {"": "{name}", **groups})
