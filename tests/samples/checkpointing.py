"""Made-up training steps with activation checkpointing."""

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.checkpointing import StepMemory
from cs336_systems.accounting.transformer import state_bytes, step_flops
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.checkpointing import Checkpointing
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from tests.samples import H200, OOM, PEAK, jittered


def measure(cell: Checkpointing, *, on_gpu: bool) -> list[Measurement]:
    """Steps at 40 % of an H200's peak with the closed form's memory and 1 % more; OOM where that is too much."""
    shape = parse_size(cell.size)
    block = BlockActivations(
        shape=shape,
        batch_size=cell.batch_size,
        context=cell.context,
        precision=cell.precision,
        attention=cell.attention,
        on_gpu=on_gpu,
    )
    memory = StepMemory(block=block, vocab_size=cell.vocab_size, segment=cell.segment)
    peak = 1.01 * memory.peak
    if on_gpu and peak > H200["gpu_memory"]:
        return [OOM]
    flops = step_flops("forward", shape, cell.vocab_size, cell.batch_size, cell.context)
    forward = 1e3 * flops / (0.4 * PEAK.flops(cell.precision)) * (1.5 if cell.attention == "plain" else 1)
    phases = {
        "forward": forward,
        "backward": (3 if cell.segment else 2) * forward,
        "optimizer": 1e3 * state_bytes("train_step", shape, cell.vocab_size) / PEAK.bandwidth,
    }
    laps = {name: jittered(cell, name, ms, cell.steps) for name, ms in phases.items()}
    before_backward = memory.between_steps + memory.saved_for_backward
    counted = {
        "peak_memory": peak,
        "peak_forward": before_backward,
        "peak_backward": peak,
        "peak_optimizer": state_bytes("train_step", shape, cell.vocab_size),
        "memory_before_step": memory.between_steps,
        "memory_before_backward": before_backward,
    }
    return [
        *(summarize(name, "ms", samples) for name, samples in laps.items()),
        summarize("step", "ms", [sum(lap) for lap in zip(*laps.values(), strict=True)]),
        summarize("warmup", "s", jittered(cell, "warmup", cell.warmup * sum(phases.values()) / 1e3, 1)),
        *(
            summarize(name, "MiB", [count / MIB])
            if on_gpu
            else Measurement(metric=name, unit="MiB", status="skipped", message="on CUDA devices only")
            for name, count in counted.items()
        ),
        summarize("saved_for_backward", "MiB", [memory.saved_for_backward / MIB]),
        summarize("block_calls", "", [(2 if cell.segment else 1) * shape.num_layers]),
    ]
