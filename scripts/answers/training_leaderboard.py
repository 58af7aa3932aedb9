"""Answers to the 2026 edition's leaderboard, from closed forms: it is run on two B200s."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting import leaderboard
from cs336_systems.measure.gpus import listed
from scripts.rendering.markup import Table
from scripts.views.units import GB

OTHER_GPU = "NVIDIA H200"
"""That of the recorded results, beside the leaderboard's."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    flops = leaderboard.step_flops()
    total = sum(flops.values())
    least = {gpu: total / (leaderboard.GPUS * listed(gpu).bf16) for gpu in (leaderboard.GPU, OTHER_GPU)}
    return {
        "given": leaderboard,
        "flops": total,
        "attention_share": flops["attention"] / total,
        "head_share": flops["head"] / total,
        "memory": memory_table(),
        "gpu": leaderboard.GPU,
        "peak": listed(leaderboard.GPU),
        "least": least[leaderboard.GPU],
        "other_gpu": OTHER_GPU,
        "other_least": least[OTHER_GPU],
        "record_share": least[leaderboard.GPU] / leaderboard.RECORD_SECONDS,
        "naive_share": least[leaderboard.GPU] / leaderboard.NAIVE_SECONDS,
    }


def memory_table() -> Table:
    """What a rank keeps, whole or sharded, and what its forward pass leaves, with checkpointing and without."""
    state = leaderboard.STATE_BYTES
    rows = {
        "state, whole on every rank": state,
        "state, sharded over the ranks": state / leaderboard.GPUS,
        "saved for backward, nothing computed again": leaderboard.saved_bytes(0),
        "saved for backward, each block computed again": leaderboard.saved_bytes(1),
    }
    return Table(["of one rank", "GB"], [[name, f"{size / GB:.1f}"] for name, size in rows.items()])
