"""Measure the 2026 leaderboard's training step on two GPUs, or one rank's part of it on one.

Before allocating, it prints whether the step fits, and chooses how many blocks are recomputed.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks leaderboard
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist

from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks.ranks import gather, slowest, spare_memory
from cs336_systems.benchmarks.runner import require_kernels
from cs336_systems.experiments.leaderboard import RESERVE, Leaderboard, usable
from cs336_systems.measure.device_busy import device_busy
from cs336_systems.measure.memory import Unavailable, peak_memory, release, reset_peak
from cs336_systems.measure.timing import synchronize, time_phases
from cs336_systems.model import build_model
from cs336_systems.parallel.update_in_backward import UpdateInBackward, UpdateOfOneRank, units_of
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from cs336_systems.training import MasterAdamW, checkpoint_blocks, fuse, linear_cross_entropy

GB = 1e9
HYPERPARAMETERS: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def measure(cell: Leaderboard, device: torch.device) -> list[Measurement]:
    """Measure the step, its passes and its update alone, memory, and the time from the process's start to a step."""
    if device.type == "cuda":
        # Without it, freed blocks of 1.4 GB leave gaps that nothing else fits into.
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    plan = plan_step(cell, device)
    reset_peak(device)
    runs = make_runs(cell, plan, device)
    runs["step"]()
    synchronize(device)
    cold_start = time.time() - psutil.Process().create_time()
    seconds: dict[str, list[float]] = {}
    for name, run in runs.items():
        warmup = max(0, cell.warmup - 1) if name == "step" else 0
        seconds |= time_phases({name: run}, warmup=warmup, steps=cell.steps, device=device)[1]
    seconds = {name: slowest(laps, device) for name, laps in seconds.items()}
    return [
        *(summarize(name, "ms", [1e3 * lap for lap in laps]) for name, laps in seconds.items()),
        *(row for row in device_busy({"step": runs["step"]}, device) if row.metric == "device_busy"),
        peak_memory(device),
        summarize("planned_memory", "MiB", [peak(plan).total / MIB]),
        summarize("recomputed_blocks", "", [plan.recomputed]),
        summarize("cold_start", "s", [cold_start]),
    ]


def plan_step(cell: Leaderboard, device: torch.device) -> Setting:
    """Choose the number of blocks to recompute, and print whether a rank's step fits; Unavailable if it does not."""
    require_kernels(device)
    free = spare_memory(device)
    if cell.processes > 1:
        free = round(min(rank[0] for rank in gather([free], device)))
    plan = cell.setting(free, on_gpu=device.type == "cuda")
    said = verdict(plan, free)
    if cell.processes == 1 or dist.get_rank() == 0:
        print(said, file=sys.stderr, flush=True)
    if peak(plan).total > usable(free):
        raise Unavailable(said)
    return plan


def verdict(step: Setting, free: float) -> str:
    """Say in a sentence whether a rank's step fits into the given free bytes."""
    blocks = f"with {step.recomputed} of {step.shape.num_layers} blocks recomputed in the backward pass"
    needed, has = f"{peak(step).total / GB:.3g} GB", f"{free / GB:.3g} GB"
    if peak(step).total <= usable(free):
        return f"It fits: a rank needs {needed} of {has} {blocks}"
    return f"It does not fit: a rank needs {needed} {blocks}, and {has} are free, less a reserve of {RESERVE:.0%}"


def make_runs(cell: Leaderboard, plan: Setting, device: torch.device) -> dict[str, Callable[[], None]]:
    """Build the step, and return the timed functions: the step, its passes without an update, and its update alone."""
    model = build_model(
        "cs336_systems.model:TransformerLM",
        parse_size(cell.size),
        vocab_size=cell.vocab_size,
        context_length=cell.context,
        attention="flash",
        device=device,
    )
    model = fuse(model, keep_hidden=False).to(torch.bfloat16)
    checkpoint_blocks(model, plan.recomputed)
    communicates = cell.part == "step" and cell.processes > 1
    make_update = UpdateInBackward if communicates else partial(UpdateOfOneRank, ranks=plan.ranks)
    update = make_update(units_of(model), MasterAdamW, **HYPERPARAMETERS)
    release(device)  # The model was made in fp32.
    tokens = torch.randint(cell.vocab_size, (cell.batch_size, cell.context + 1), device=device)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def step() -> None:
        linear_cross_entropy(model.hidden(inputs), model.lm_head.weight, targets).backward()
        update.finish()

    def passes() -> None:
        update.enabled = False
        step()
        update.enabled = True

    largest = max(len(unit.flat) for unit in update.units)

    def updates() -> None:
        gradients = torch.randn(largest, dtype=torch.bfloat16, device=device)
        for number, unit in enumerate(update.units):
            update.start(number, gradients[: len(unit.flat)])
        update.wait()

    return {"step": step, "forward_backward": passes, "update": updates}
