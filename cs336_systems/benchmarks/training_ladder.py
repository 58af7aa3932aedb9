"""Time a training step from the first setting to the fastest, rung by rung, and its parts alone.

Small models are all in memory at once and take turns; large ones are built, timed and released one after another.

Launch: python -m cs336_systems.benchmarks training_ladder --size 2.7B --context 1024 --rungs all

On two GPUs, under each wrapper: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks training_ladder
--part processes --processes 2 --size 2.7B --context 1024 --rungs wrapped
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import torch
import torch._dynamo  # imported here: otherwise an optimizer would import it while the set-up is timed
import torch.distributed as dist

from cs336_systems.accounting.transformer import parameters
from cs336_systems.benchmarks.ladder.learning import chain_entropy, gradients, measure_learning
from cs336_systems.benchmarks.ladder.parts_alone import measure_parts_alone
from cs336_systems.benchmarks.ladder.steps import RungStep
from cs336_systems.benchmarks.ladder.sustained import Turn, sustained_turn, timed
from cs336_systems.benchmarks.runner import rows_or_reason
from cs336_systems.experiments.training_ladder import FIRST, Rung, TrainingLadder, rungs_of
from cs336_systems.measure.device_busy import device_busy
from cs336_systems.measure.memory import in_use, peak_memory, release, reset_peak
from cs336_systems.measure.timing import Stopwatch, time_phases
from cs336_systems.record.measurement import Measurement, skipped, summarize
from cs336_systems.sizes import parse_size

ROUNDS = 3
"""Number of turns per rung, if rungs take turns."""
LEAST_STEPS = 3
LONGEST_S = 3.0
"""Seconds after which a turn ends, if it has had its minimum number of steps."""
HELD_BYTES = 40
"""Memory budget per weight for each model in memory: weights, gradients, moments, and as much again for activations."""
SHARE_HELD = 0.5
"""Share of the memory that all models together may use, so that one of them can run."""


def measure(cell: TrainingLadder, device: torch.device) -> list[Measurement]:
    """Measure every rung of a cell and the step's parts alone, or whether the rungs learn."""
    rungs = rungs_of(cell.rungs)
    if cell.part == "training":
        reference = cache(lambda: gradients(FIRST, cell, device))
        rows = [summarize("entropy", "nat", [chain_entropy()])]
        for rung in rungs:
            rows += explained("loss_after", rung, partial(measure_learning, rung, cell, device, reference))
            release(device)
        return rows
    alone = measure_parts_alone(cell, device) if cell.part == "steps" else []
    together = fit_together(cell, rungs, device)
    rows = []
    for group in [rungs] if together else [(rung,) for rung in rungs]:
        rows += measure_group(group, cell, device)
        release(device)
    order = "interleaved" if together else "one after another"
    return [*rows, *alone, Measurement(metric="order", unit="order", n=1, value=order)]


def fit_together(cell: TrainingLadder, rungs: Sequence[Rung], device: torch.device) -> bool:
    """Whether the models of all rungs fit into memory at once."""
    if device.type != "cuda":
        return True
    memory = torch.cuda.get_device_properties(device).total_memory
    return len(rungs) * HELD_BYTES * parameters(parse_size(cell.size), cell.vocab_size) < SHARE_HELD * memory


def measure_group(rungs: Sequence[Rung], cell: TrainingLadder, device: torch.device) -> list[Measurement]:
    """Build the steps of some rungs, let them take turns, and measure each."""
    ready: dict[Rung, RungStep] = {}
    rows = []
    for rung in rungs:
        set_up_rows = explained("step", rung, partial(set_up, rung, ready, cell, device))
        if set_up_rows[0].status != "ok":
            release(device)
        rows += set_up_rows
    rounds = ROUNDS if len(rungs) > 1 else 1
    turns: dict[Rung, list[Turn]] = {rung: [] for rung in ready}
    for _ in range(rounds):
        for rung, step in ready.items():
            turns[rung].append(take_turn(step, -(-cell.steps // rounds), device))
    for rung, step in ready.items():
        rows += details_of(rung, summaries(step, turns[rung], device))
    return rows


def set_up(rung: Rung, ready: dict[Rung, RungStep], cell: TrainingLadder, device: torch.device) -> list[Measurement]:
    """Build and warm up a rung's step."""
    # The same weights and tokens for all rungs, others on each rank.
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    stopwatch, before = Stopwatch(device), in_use(device)
    step = RungStep(rung, cell, torch.randint(cell.vocab_size, (cell.batch_size, cell.context + 1), device=device))
    reset_peak(device)
    step.prepare()
    time_phases({"step": step}, warmup=cell.warmup, steps=0, device=device)
    ready[rung] = step
    rows = [
        summarize("setup", "s", [stopwatch.lap()]),
        peak_memory(device, above=before),
        observed_dtype("weights_dtype", step.weights_dtype),
        observed_dtype("attention_dtype", step.attention_dtype),
    ]
    return list(details_of(rung, rows))


def observed_dtype(metric: str, dtype: str) -> Measurement:
    """Make the row of an observed dtype."""
    return Measurement(metric=metric, unit="dtype", n=1, value=dtype)


def take_turn(step: RungStep, steps: int, device: torch.device) -> Turn:
    """Time steps: on a GPU until steady state; on a CPU some steps after an untimed one, fewer if they are slow."""
    if device.type == "cuda":
        return sustained_turn(step, device)
    seconds: list[float] = []
    while len(seconds) < min(steps, LEAST_STEPS) or (len(seconds) < steps and sum(seconds) < LONGEST_S):
        seconds += timed(step, 1, device, warmup=0 if seconds else 1)
    return Turn(seconds, [], math.nan)


def summaries(step: RungStep, turns: Sequence[Turn], device: torch.device) -> Iterator[Measurement]:
    """Summarize a rung's times and energy, and measure how long the device is busy."""
    yield summarize("step", "ms", [1e3 * lap for turn in turns for lap in turn.laps])
    if first := turns[0].first:
        yield summarize("first_steps", "ms", [1e3 * lap for lap in first])
    joules = [turn.joules for turn in turns]
    if math.isnan(sum(joules)):
        yield skipped("energy", "J", "this device has no energy counter")
    else:
        yield summarize("energy", "J", joules)
    yield from (row for row in device_busy({"step": step}, device) if row.metric in TrainingLadder.metrics)


def explained(metric: str, rung: Rung, measure_rung: Callable[[], list[Measurement]]) -> list[Measurement]:
    """Measure a rung, or report at a metric why it could not be measured: no other rung is lost."""
    return rows_or_reason(measure_rung, metric, TrainingLadder.metrics[metric], {"rung": rung.name})


def details_of(rung: Rung, rows: Sequence[Measurement] | Iterator[Measurement]) -> Iterator[Measurement]:
    """The detail columns of a rung's rows."""
    for row in rows:
        yield dataclasses.replace(row, details={"rung": rung.name})
