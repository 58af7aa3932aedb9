"""Made-up training steps."""

from cs336_systems.accounting.transformer import state_bytes, step_flops
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from tests.samples import H200, NO_CPU_MEMORY, OOM, PEAK, jittered


def measure(cell: EndToEnd, *, on_gpu: bool) -> list[Measurement]:
    """Steps at 40 % of an H200's peak, the first one slow without warm-up; OOM where the state alone is too large."""
    shape = parse_size(cell.size)
    memory = 1.3 * state_bytes(cell.mode, shape, cell.vocab_size)
    if on_gpu and memory > H200["gpu_memory"]:
        return [OOM]
    flops = step_flops("forward", shape, cell.vocab_size, cell.batch_size, cell.context)
    forward = 1e3 * flops / (0.4 * PEAK.flops(cell.precision)) * (0.8 if cell.compiled else 1)
    phases = {
        "forward": forward,
        "backward": 2 * forward,
        "optimizer": 1e3 * state_bytes("train_step", shape, cell.vocab_size) / PEAK.bandwidth,
    }
    number = {"forward": 1, "forward_backward": 2, "train_step": 3}[cell.mode]
    first = 20.0 if cell.warmup == 0 else 1.0
    laps = {name: jittered(cell, name, ms, cell.steps, first) for name, ms in list(phases.items())[:number]}
    steps = [sum(lap) for lap in zip(*laps.values(), strict=True)]
    dtype = {"bf16": "bfloat16", "fp32": "float32"}[cell.precision]
    return [
        *(summarize(name, "ms", samples) for name, samples in laps.items()),
        summarize("step", "ms", steps),
        summarize("first_step", "ms", steps[:1]),
        summarize("build", "s", [0.5]),
        summarize("warmup", "s", [cell.warmup * steps[-1] / 1e3]),
        summarize("peak_memory", "MiB", [memory / MIB]) if on_gpu else NO_CPU_MEMORY,
        summarize("compiled_graphs", "", [1 if cell.compiled else 0]),
        Measurement(metric="logits_dtype", unit="dtype", n=1, value=dtype),
    ]
