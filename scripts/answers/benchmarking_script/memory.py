"""Peak memory of training steps beside closed forms, for `benchmarking_script`."""

from operator import itemgetter
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.transformer import state_bytes, weight_copy_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.sizes import parse_size
from scripts.views.cells import name_cell
from scripts.views.data import one, select
from scripts.views.units import GIB

KINDS = {
    "inference": "Inference",
    "forward": "The forward pass",
    "forward_backward": "Forward and backward",
    "train_step": "The training step",
}


def memory_answers(table: DataFrame, steady: DataFrame) -> dict[str, Any]:
    """What must outlive a step against what was in memory at its peak, and whether what did not fit ever could."""
    trained = select(steady, mode="train_step").dropna(subset="peak_memory")
    found: dict[str, Any] = {"lost": lost_cells(table), "memory": None}
    if not len(trained):
        return found
    shares = [
        (
            step["peak_memory"] * MIB / state_bytes("train_step", parse_size(step["size"]), step["vocab_size"]),
            name_cell(step),
        )
        for _, step in trained.iterrows()
    ]
    found["memory"] = {"least": min(shares), "most": max(shares), **against_fp32(trained)}
    return found


def against_fp32(trained: DataFrame) -> dict[str, Any]:
    """Where bf16 autocast takes the smallest and the largest share of fp32's peak, and the weights' copies there."""
    shares = []
    for _, low in select(trained, precision="bf16").iterrows():
        full = one(trained, precision="fp32", size=low["size"], context=low["context"])
        if full is not None:
            copies = weight_copy_bytes(parse_size(low["size"]), low["vocab_size"]) / GIB
            cell = f"{low['label']}, context {low['context']}"
            shares.append({"share": low["peak_memory"] / full["peak_memory"], "cell": cell, "copies": copies})
    return {
        "bf16_least": min(shares, key=itemgetter("share"), default=None),
        "bf16_most": max(shares, key=itemgetter("share"), default=None),
    }


def lost_cells(table: DataFrame) -> list[dict[str, Any]]:
    """The eager kinds of step that ran out of memory, and the closed form of what they must keep, GiB."""
    lost = select(table, status="oom", compiled=False, attention="plain")
    found = []
    for _, rows in lost.groupby(["size", "mode"], sort=False):
        first = rows.iloc[0]
        state = state_bytes(first["mode"], parse_size(first["size"]), first["vocab_size"])
        by_context = rows.groupby("context")["precision"]
        found.append(
            {
                "what": KINDS[first["mode"]],
                "size": first["label"],
                "contexts": [f"{context} ({', '.join(sorted(names))})" for context, names in by_context],
                "state": state / GIB,
                "device": first["gpu_memory"] / GIB,
                "never_fits": state > first["gpu_memory"] > 0,
            }
        )
    return found
