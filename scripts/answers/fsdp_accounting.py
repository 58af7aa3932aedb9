"""Answers to `fsdp_accounting`: the memory saved by sharding, and whether weights arrive in time, expected and
measured.
"""

import math

from numpy import nan
from pandas import DataFrame, Series

from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.units import BYTES, MIB
from cs336_systems.experiments.data_parallel import BASELINE
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.limits import AHEAD
from cs336_systems.measure.gpus import gpu_of
from scripts.rendering.answer import Answer, Answers, Captioned, Facts, Tables, choose, say
from scripts.rendering.grid import NONE, Columns
from scripts.views.closed_forms import contender_step
from scripts.views.comparison import OWN, cells_of, contenders, device_bound, device_bound_if_any, fastest, first_cell
from scripts.views.comparison_tables import contender_table, missing, setting
from scripts.views.data import select
from scripts.views.fsdp import OURS, SHARDED, by_block, sharded
from scripts.views.units import memory_unit

MEMORY: dict[str, dict[str, str]] = {
    "between steps": {"closed form": "{kept:cut}", "measured": "{between_steps:cut}"},
    "gathered": {"closed form": "{gathered:cut}"},
    "peak": {"closed form": "{expected_peak:cut}", "measured": "{peak_memory:cut}"},
}
WAITING: Columns = {
    "forward pass / ms": {"waits": "{late:sig}", "pauses": "{pause:sig}"},
    "all-gathers": {"hidden / %": "{forward_share:share}"},
}


def answers(tables: Tables) -> Answers:
    """The section's answers, and the number of units that are gathered at a time."""
    table = tables["fsdp"]
    rows = contenders(FullyShardedTraining, table)
    return {
        "saving": saving(table, rows),
        "in_time": in_time(table, rows),
        "gathered": 1 + AHEAD,
    }


def expected(row: Series) -> dict[str, float]:
    """The closed forms of a contender's memory, bytes: none for a user's own, and for PyTorch's only between steps, as
    other units are gathered in it.
    """
    if row["family"] == OWN:
        return dict.fromkeys(("kept", "gathered", "expected_peak"), nan)
    use = peak(contender_step(FullyShardedTraining, row))
    if row["contender"] not in (BASELINE, *OURS):
        return {"kept": use.between_steps, "gathered": nan, "expected_peak": nan}
    gathered = 0 if row["contender"] == BASELINE else sharded(row).gathered
    return {"kept": use.between_steps, "gathered": gathered, "expected_peak": use.total}


def saving(table: DataFrame, rows: DataFrame) -> Answer:
    """(a) The memory saved by sharding between steps and at the peak, in the first fp32 cell: there, activations are
    equal.
    """
    kept = rows[rows["contender"].isin([BASELINE, *SHARDED]) | (rows["family"] == OWN)]
    if not len(kept):
        return Answer("(a) Memory saved", missing=missing(table))
    forms = DataFrame([expected(row) for _, row in kept.iterrows()], index=kept.index)
    unit, size = memory_unit(forms["expected_peak"].max())
    measured = kept[["between_steps", "peak_memory"]].astype(float) * MIB / size
    kept = kept.assign(**(forms / size), **measured)
    cell = first_cell(select(kept, precision="fp32"))
    whole, own = fastest(cell, [BASELINE]), fastest(cell, OURS)
    columns = {f"{group} / {unit}": forms for group, forms in MEMORY.items()}
    facts = Facts(whole=whole, own=own)
    # In a tiny model, the gathered units outweigh what is sharded.
    peak = facts.say(f"{{whole[expected_peak] - own[expected_peak]:{unit}}}") or "nothing"
    return Answer(
        asked="(a) Memory saved",
        verdict=facts.say(
            f"FSDP should save {{whole[kept] - own[kept]:{unit}}} between steps and {{peak}} at the peak "
            "({own[cell]}).",
            peak=peak,
        ),
        more=facts.say(
            f"Measured savings are {{whole[between_steps] - own[between_steps]:{unit}}} and "
            f"{{whole[peak_memory] - own[peak_memory]:{unit}}} (_{{own[title]}}_ against _{{whole[title]}}_).",
            "" if kept["gpu"].any() else "The saving is measured on GPUs only.",
        ),
        missing="Not measured: no fp32 cell has both our FSDP and training without sharding.",
        results=Captioned(
            contender_table(FullyShardedTraining, table.iloc[:0], device_bound_if_any(kept), columns),
            "Memory per rank with unsharded and sharded state: weights and moments between steps, gathered weights "
            "at the peak, and peak memory.",
            legend={"measured": "Measured once, on rank 0", NONE: f"{NONE}: no closed form"},
        ),
    )


def in_time(table: DataFrame, rows: DataFrame) -> Answer:
    """(b) Whether weights arrive before their block begins, in the first profiled device-bound cell."""
    passes = rows[rows["contender"].isin(SHARDED) & rows["forward_length"].notna()]
    waits = [by_block(table, row)[["late", "pause"]].sum(min_count=1) for _, row in passes.iterrows()]
    passes = passes.join(DataFrame(waits, index=passes.index, columns=["late", "pause"])).dropna(subset="late")
    bound = device_bound(passes)
    own = next((row for cell in cells_of(bound) if (row := fastest(cell, OURS)) is not None), None)
    blocks = DataFrame(columns=["late", "pause"]) if own is None else by_block(table, own)
    late = blocks[blocks["late"] > 0]
    first = set(late.index) <= set(range(1 + AHEAD))
    facts = Facts(own=own, late=len(late), blocks=len(blocks) or None)
    return Answer(
        asked="(b) In time",
        missing=not_profiled(table, rows),
        verdict=facts.say(
            choose(first, "Yes, except at the start:" if len(late) else "Yes:", "No:")
            + " {late} of {blocks} units wait for weights, {own[late]:ms} in total ({own[cell]})."
        ),
        more=facts.say(
            "The profiled forward pass of _{own[title]}_ takes {own[forward_length]:ms} (@fig-fsdp_gathers). Compiled "
            "steps were not examined.",
            "No verdict on {cells:listing}: host-bound.",
            cells=list(passes[passes["host_bound"].astype(bool)]["cell"].unique()),
        ),
        results=[
            Captioned(
                contender_table(FullyShardedTraining, table.iloc[:0], bound, WAITING),
                "One profiled forward pass of an eager step on rank 0. Waits: for weights; pauses: any wait before a "
                "unit; hidden: share of all-gather time that overlaps with compute.",
            ),
            "fsdp_gathers",
        ],
        reason=say(
            "The first weights always arrive late, since no compute runs before them." if len(late) else "",
            "With $C$ and $W$ from the data sheet, the condition requires at least this many tokens per GPU: "
            "{enough:listing}. These steps have {tokens}.",
            enough=[
                say("{tokens} ({row[cell]})", tokens=least_tokens(row), row=row)
                for _, row in rows[rows["contender"].isin(OURS)].drop_duplicates("cell").iterrows()
            ],
            tokens=None if own is None else int(own["batch_size"] * own["context"]),
        ),
    )


def least_tokens(row: Series) -> int | None:
    """The fewest tokens of a rank whose compute at peak rate takes as long as gathering its weights over a link."""
    gpu, ranks = gpu_of(row["gpu"]), row["processes"]
    if gpu is None or gpu.link is None:
        return None
    return math.ceil(BYTES[row["precision"]] / 2 * (1 - 1 / ranks) * gpu.flops(row["precision"]) / gpu.link)


def not_profiled(table: DataFrame, rows: DataFrame) -> str:
    """Why no device-bound forward pass was profiled."""
    common = setting(rows)
    if common is None:
        return missing(table)
    if common["gpu"]:
        return "No device-bound forward pass was profiled."
    return "Not measured: kernel traces need a GPU."
