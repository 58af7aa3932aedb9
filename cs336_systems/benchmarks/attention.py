"""Time plain attention, check the timed results, and account for memory.

Launch: python -m cs336_systems.benchmarks attention --sequence 256 1024 4096 --d 16 64 --compiled False True
"""

import torch
from torch import Tensor

from cs336_systems.attention.plain import plain_attention
from cs336_systems.benchmarks.comparison.exact_attention import require_close
from cs336_systems.experiments.attention import Attention
from cs336_systems.measure.device_busy import device_busy
from cs336_systems.measure.dtypes import DTYPES
from cs336_systems.measure.memory import allocated, in_use, peak_memory, reset_peak
from cs336_systems.measure.timing import time_phases
from cs336_systems.record.measurement import Measurement, summarize


def measure(cell: Attention, device: torch.device) -> list[Measurement]:
    """Measure times of forward and backward pass, device-busy time, and memory between the passes and at the peak."""
    shape = (cell.batch_size, cell.sequence, cell.d)
    dtype = DTYPES[cell.precision]
    q, k, v = (torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(3))
    grad_o = torch.randn(shape, dtype=dtype, device=device)
    attention = torch.compile(plain_attention, dynamic=False) if cell.compiled else plain_attention
    held: list[int] = []
    o: Tensor

    def forward() -> None:
        nonlocal o
        q.grad = k.grad = v.grad = None
        o = attention(q, k, v)

    def backward() -> None:
        held.append(in_use(device))
        torch.autograd.backward(o, grad_o)

    phases = {"forward": forward, "backward": backward}
    warmup_seconds, _ = time_phases(phases, warmup=cell.warmup, steps=0, device=device)
    reset_peak(device)
    _, seconds = time_phases(phases, warmup=0, steps=cell.steps, device=device)
    peak, before_backward = peak_memory(device), held[-1]
    made = {"output": o.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}  # from the last timed pass
    results = {name: result for name, result in made.items() if result is not None}
    assert results.keys() == made.keys(), "a pass leaves an input without a gradient"
    require_close(results, (q, k, v, grad_o), is_causal=False)
    return [
        *(summarize(phase, "ms", [1e3 * lap for lap in laps]) for phase, laps in seconds.items()),
        summarize("warmup", "s", [warmup_seconds]),
        allocated("memory_before_backward", before_backward, device),
        peak,
        *device_busy(phases, device),
    ]
