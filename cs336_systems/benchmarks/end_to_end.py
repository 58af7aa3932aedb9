"""Time a Transformer language model's forward pass, backward pass and whole training step.

Launch: python -m cs336_systems.benchmarks end_to_end --size small --context 512 --precision fp32 bf16
"""

import torch
import torch._dynamo  # imported here: otherwise an optimizer would import it while the model's build is timed

from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.device_busy import device_busy
from cs336_systems.measure.dtypes import dtype_name
from cs336_systems.measure.memory import allocations_since, device_allocations, peak_memory, reset_peak
from cs336_systems.measure.timing import Stopwatch, time_phases
from cs336_systems.model import build_model
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from cs336_systems.training_step import TrainingStep


def measure(cell: EndToEnd, device: torch.device) -> list[Measurement]:
    """Measure times of a step, its phases, build and warm-up, device-busy time, memory, graphs, and logits' dtype."""
    reset_peak(device)
    stopwatch = Stopwatch(device)
    step = build_step(cell, device)
    build_seconds = stopwatch.lap()

    graphs_before = compiled_graphs()
    phases = step.phases(cell.mode)
    warmup_seconds, _ = time_phases(phases, warmup=cell.warmup, steps=0, device=device)
    allocated = device_allocations(device)
    _, seconds = time_phases(phases, warmup=0, steps=cell.steps, device=device)
    step_seconds = [sum(laps) for laps in zip(*seconds.values(), strict=True)]
    memory = [peak_memory(device), allocations_since(allocated, device)]
    return [
        *(summarize(phase, "ms", [1e3 * lap for lap in laps]) for phase, laps in seconds.items()),
        summarize("step", "ms", [1e3 * lap for lap in step_seconds]),
        summarize("first_step", "ms", [1e3 * step_seconds[0]]),
        summarize("build", "s", [build_seconds]),
        summarize("warmup", "s", [warmup_seconds]),
        *memory,
        *device_busy(phases, device),
        summarize("compiled_graphs", "", [compiled_graphs() - graphs_before]),
        Measurement(metric="logits_dtype", unit="dtype", n=1, value=dtype_name(step.logits_dtype)),
    ]


def build_step(cell: EndToEnd, device: torch.device) -> TrainingStep:
    """Build the cell's step with random weights and tokens, and with fused AdamW if its mode updates."""
    model = build_model(
        cell.model,
        parse_size(cell.size),
        vocab_size=cell.vocab_size,
        context_length=cell.context,
        attention=cell.attention,
        device=device,
    )
    return TrainingStep(
        model,
        torch.randint(cell.vocab_size, (cell.batch_size, cell.context + 1), device=device),
        precision=cell.precision,
        compiled=cell.compiled,
        optimizer=torch.optim.AdamW(model.parameters(), fused=True) if cell.mode == "train_step" else None,
    )


def compiled_graphs() -> int:
    """Count the graphs that torch.compile has captured so far."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
