"""The headline table of README.md, from the recorded H200 results."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame, Series

from scripts.docs.markdown import table, with_table
from scripts.views.data import select

RECORDED = Path("recorded/nvidia-h200/raw")
COMPARED = ("this project", "speed relative to")
"""Titles of the columns of numbers."""
PYTORCH_ATTENTION = ["sdpa_flash", "sdpa_cudnn", "flex"]


def page(readme: str) -> str:
    """The text of README.md with the table of the recorded results."""
    header = ["on NVIDIA H200, bf16, medians", *COMPARED]
    return with_table(readme, "headlines", table(header, headlines(RECORDED), right=[1]))


def headlines(raw: Path) -> Iterator[list[str]]:
    """The rows of the table that a recorded machine has the measurements for."""
    calls = rows(raw, "flash/leaderboard.csv", metric="forward_backward").set_index("implementation")
    for d in (64, 128):
        yield from line(
            f"causal attention, 16 heads × 16 384 tokens, d = {d}: forward + backward",
            calls[calls["d"] == d]["median"],
            ["triton"],
            {"PyTorch’s fastest": PYTORCH_ATTENTION, "FlashAttention-4": ["flash_attention_4"]},
        )
    yield from line(
        "2.7B, 4 × 1024 tokens: whole training step with exact AdamW",
        rows(
            raw, "training_ladder/*.csv", metric="step", size="2.7B", context=1024, batch_size=4, part="steps"
        ).set_index("rung")["median"],
        ["graph", "overlap"],
        {"bf16 autocast": ["autocast"], "bf16 weights, blocks compiled": ["compiled"]},
    )
    for gpus in (2, 4):
        yield from line(
            f"xl (2.0 B parameters), {gpus} GPUs: compiled data-parallel training step",
            rows(raw, f"data_parallel/compiled-{gpus}_processes.csv", metric="step").set_index("wrapper")["median"],
            ["symmetric_memory"],
            {"tuned DistributedDataParallel": ["ddp", "ddp_view"], "the no-communication baseline": ["none"]},
        )
    yield from line(
        "10B, 2 GPUs: fully sharded training step",
        rows(raw, "fsdp/largest-2_processes.csv", metric="step").set_index("wrapper")["median"],
        ["fsdp", "fsdp_blocks"],
        {"`fully_shard`": ["fully_shard"]},
    )
    yield from line(
        "xl, 2 GPUs: update of the sharded optimizer",
        rows(raw, "optimizer_sharding/bf16-2_processes.csv", metric="optimizer").set_index("contender")["median"],
        ["sharded_symmetric_memory"],
        {
            "tuned ZeroRedundancyOptimizer": ["zero_redundancy", "zero_redundancy_view", "zero_redundancy_views"],
            "the unsharded optimizer": ["unsharded"],
        },
    )


def rows(raw: Path, path: str, metric: str, **parameters: Any) -> DataFrame:
    """The measured rows of one metric, and of some parameters, in recorded CSV files; none without the files."""
    columns = ["metric", "status", "median", "d", "implementation", "rung", "wrapper", "contender", *parameters]
    tables = [pd.read_csv(each) for each in sorted(raw.glob(path))] or [DataFrame(columns=columns)]
    return select(pd.concat(tables), metric=metric, status="ok", **parameters)


def line(what: str, medians: Series, ours: list[str], others: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """A row of the table: the fastest of ours against the fastest of each group of others; medians in ms, by name.

    No row without ours, and no group of which nothing was measured.
    """
    fastest = medians[medians.index.isin(ours)].min()
    slower = {title: medians[medians.index.isin(names)].min() for title, names in others.items()}
    against = [
        f"{title} ({other:.1f} ms): **{other / fastest:.2f}×**" for title, other in slower.items() if pd.notna(other)
    ]
    if pd.notna(fastest):
        yield [what, f"{fastest:.1f} ms", ", ".join(against)]
