"""Measure peak memory and time of a training step whose blocks are checkpointed in segments.

Launch: python -m cs336_systems.benchmarks checkpointing --size small --attention flash --segment 0 1 2 4
"""

import torch

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.checkpointing import Checkpointing
from cs336_systems.measure.memory import allocated, in_use, most_in_use, peak_memory, reset_peak
from cs336_systems.measure.saved_tensors import record_saved
from cs336_systems.measure.timing import time_phases
from cs336_systems.model import TransformerLM, build_model
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from cs336_systems.training_step import TrainingStep


def measure(cell: Checkpointing, device: torch.device) -> list[Measurement]:
    """Measure time and peak memory of a step and its phases; then, in one more step, the memory's breakdown."""
    reset_peak(device)
    model = build_model(
        "cs336_systems.model:TransformerLM",
        parse_size(cell.size),
        vocab_size=cell.vocab_size,
        context_length=cell.context,
        attention=cell.attention,
        checkpoint_segment=cell.segment,
        device=device,
    )
    assert isinstance(model, TransformerLM)
    step = TrainingStep(
        model,
        torch.randint(cell.vocab_size, (cell.batch_size, cell.context + 1), device=device),
        precision=cell.precision,
        optimizer=torch.optim.AdamW(model.parameters(), fused=True),
    )
    warmup_seconds, seconds = time_phases(
        step.phases("train_step"), warmup=cell.warmup, steps=cell.steps, device=device
    )
    step_seconds = [sum(laps) for laps in zip(*seconds.values(), strict=True)]
    return [
        *(summarize(phase, "ms", [1e3 * lap for lap in laps]) for phase, laps in seconds.items()),
        summarize("step", "ms", [1e3 * lap for lap in step_seconds]),
        summarize("warmup", "s", [warmup_seconds]),
        peak_memory(device),
        *memory_of_a_step(step, model, device),
    ]


def memory_of_a_step(step: TrainingStep, model: TransformerLM, device: torch.device) -> list[Measurement]:
    """Measure memory before each phase of a step, each phase's peak, saved tensors, and the number of block runs."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    handles = [block.register_forward_pre_hook(count) for block in model.blocks]
    step.loss = None
    model.zero_grad(set_to_none=True)
    before, peaks = {}, {}
    for name, phase in step.phases("train_step").items():
        before[name] = in_use(device)
        reset_peak(device)
        if name == "forward":
            with record_saved(model) as saved:
                phase()
        else:
            phase()
        peaks[name] = most_in_use(device)
    for handle in handles:
        handle.remove()
    return [
        *(allocated(f"peak_{name}", peak, device) for name, peak in peaks.items()),
        allocated("memory_before_step", before["forward"], device),
        allocated("memory_before_backward", before["backward"], device),
        summarize(
            "saved_for_backward", "MiB", [sum(tensor.bytes for tensor in saved if tensor.kind != "parameter") / MIB]
        ),
        summarize("block_calls", "", [calls]),
    ]
