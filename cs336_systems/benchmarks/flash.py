"""Time attention implementations against each other, after comparing each one's results with float64.

Launch: python -m cs336_systems.benchmarks flash --sequence 1024 --implementation triton sdpa_flash flex_autotuned
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
import torch._functorch.config
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cs336_systems.attention import plain_attention
from cs336_systems.benchmarks.comparison.attention_builders import build
from cs336_systems.benchmarks.comparison.device_clock import take_persisting_l2
from cs336_systems.benchmarks.comparison.exact_attention import (
    OF_USERS,
    TF32,
    TOLERANCE,
    AttentionCall,
    require_attention,
)
from cs336_systems.benchmarks.comparison.least_times import require_possible
from cs336_systems.benchmarks.comparison.new_inputs import (
    require_the_same_on_new_inputs,
    require_timers,
    times_that_hold,
)
from cs336_systems.benchmarks.comparison.refusal import errors_of_own_code, refuse
from cs336_systems.experiments.flash import HANDOUT_REP, HANDOUT_WARMUP, MATMUL, AttentionContender, Flash, replayed
from cs336_systems.measure.dtypes import DTYPES
from cs336_systems.measure.gpu_state import GpuState
from cs336_systems.measure.kernel_names import short_name
from cs336_systems.measure.memory import Unavailable, in_use, peak_memory, reset_peak
from cs336_systems.measure.profiler import events_of, profiling
from cs336_systems.measure.timing import time_phases
from cs336_systems.nvidia import uuid
from cs336_systems.record.measurement import Measurement, skipped, summarize

HOST_ROUNDS, HOST_CALLS = 10, 20
LEAST_CALLS = 5
"""Minimum number of timed calls, even if they take longer than requested: a single sample has no spread."""
CPU_WARMUP, CPU_CALLS = 2, 10
TIMES_OF_PASSES = ("forward", "backward", "forward_backward", "graph", "handout")


def measure(cell: Flash, device: torch.device) -> list[Measurement]:
    """Measure forward, backward and both; on a GPU also peak memory, host overhead and the kernels' names."""
    contender = cell.contender
    if device.type not in contender.devices:
        those = (each.name for each in Flash.contenders if device.type in each.devices)
        raise Unavailable(f"{contender.name} needs a CUDA device; on a CPU: {', '.join(those)}")
    # Chosen here, not in each call, where it would cost the host some microseconds.
    with errors_of_own_code(own=contender.own), backend_of(contender):
        return measure_on_gpu(cell, device) if device.type == "cuda" else measure_on_cpu(cell, device)


def backend_of(contender: AttentionContender) -> AbstractContextManager[None]:
    """Make PyTorch's scaled_dot_product_attention run the contender's backend, if it names one."""
    return sdpa_kernel(getattr(SDPBackend, contender.backend)) if contender.backend else contextlib.nullcontext()


def measure_on_gpu(cell: Flash, device: torch.device) -> list[Measurement]:
    """Measure times with CUDA events around calls with a cold L2 cache."""
    from triton.testing import do_bench

    contender = cell.contender
    if cell.precision not in contender.precisions:
        raise Unavailable(f"on a GPU, {contender.name} takes {' and '.join(contender.precisions)} only")
    # The backward pass is timed separately, several times for one forward pass.
    torch._functorch.config.donated_buffer = False
    take_persisting_l2()  # of earlier code under test
    # Not counted for this cell: cuBLAS keeps a workspace for every thread and stream that has run a matmul.
    multiply_matrices(cell, device)
    workspaces = in_use(device)
    call = build(cell)
    q, k, v = make_inputs(cell, device)

    def forward() -> Tensor:
        return call(q, k, v)

    def forward_backward() -> None:
        call(q, k, v).sum().backward()
        q.grad = k.grad = v.grad = None

    start = time.perf_counter()
    forward_backward()
    torch.cuda.synchronize()
    first_call = time.perf_counter() - start
    reset_peak(device)
    forward_backward()
    peak = peak_memory(device, above=workspaces)
    # Not earlier: first_call compiles, and this takes memory.
    rounding = require_right(cell, call, (q, k, v))
    if contender.own:
        require_timers()
    launched = launches(contender, forward_backward, device)

    o = forward()
    loss = o.sum()

    def bench(timed: Callable[[], object]) -> list[float]:
        laps = do_bench(timed, warmup=25, rep=cell.rep, return_mode="all")
        if len(laps) < LEAST_CALLS:
            laps = do_bench(timed, warmup=1, rep=(LEAST_CALLS + 1) * max(laps), return_mode="all")
        return laps

    forwards = bench(forward)
    backwards = bench(lambda: torch.autograd.grad(loss, (q, k, v), retain_graph=True))
    both = bench(forward_backward)
    measurements = [
        summarize("forward", "ms", forwards),
        summarize("backward", "ms", backwards),
        summarize("forward_backward", "ms", both),
        peak,
        launched,
        *rounding,
        summarize("first_call", "s", [first_call]),
        summarize("matmul", "ms", bench(square_product(DTYPES[cell.precision], device))),
    ]
    if cell.compiled_call:
        measurements += handout_protocol(lambda: call(q, k, v).sum().backward(), device)
    if replayed(cell.batch_size, cell.heads, cell.sequence):
        measurements.append(summarize("host", "us", [1e6 * host_seconds(forward_backward) for _ in range(HOST_ROUNDS)]))
        measurements.append(replay(cell, call, (q, k, v)))
    if contender.own:
        timed = seconds_of(measurements)
        precision = TF32.lower() if rounding else cell.precision
        require_possible(timed, (q, k, v), precision, torch.cuda.get_device_name(device), is_causal=cell.causal)
        require_the_same_on_new_inputs(call, (q, k, v), timed, is_causal=cell.causal)
    return measurements


def require_right(cell: Flash, call: AttentionCall, inputs: Sequence[Tensor]) -> list[Measurement]:
    """Compare an implementation with float64; return a row if a user's fp32 is no more exact than TF32."""
    contender = cell.contender
    tolerance = OF_USERS if contender.own else TOLERANCE
    foreign = contender.foreign or contender.own
    error = require_attention(call, inputs, is_causal=cell.causal, foreign=foreign, tolerance=tolerance)
    exact = cell.precision != "fp32" or error <= TOLERANCE[torch.float32]
    return [] if exact else [Measurement(metric="rounding", unit="dtype", n=1, value=TF32)]


def seconds_of(measurements: Iterable[Measurement]) -> dict[str, float]:
    """The median seconds of an implementation's passes, by metric."""
    return {
        row.metric: row.median / 1e3 for row in measurements if row.median is not None and row.metric in TIMES_OF_PASSES
    }


def launches(contender: AttentionContender, step: Callable[[], None], device: torch.device) -> Measurement:
    """Count the kernels, copies and fills that a call launches; return their names in the order of first launch.

    An implementation without the kernel that identifies it is refused.
    """
    with profiling(device, operators=False) as watching:
        step()
    names = [short_name(event.name()) for event in events_of(watching)]
    kernels = ", ".join(dict.fromkeys(names))
    if contender.kernel not in kernels.lower():
        refuse(f"it launches {kernels}", foreign=contender.foreign)
    return summarize("launches", "", [len(names)], details={"kernels": kernels})


def multiply_matrices(cell: Flash, device: torch.device) -> None:
    """Run small matmuls in this thread and in autograd's, so that cuBLAS holds both workspaces."""
    q, k, v = make_inputs(replace(cell, sequence=16), device)
    plain_attention(q, k, v, is_causal=True).sum().backward()


def square_product(dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    """Make the reference matmul, which shows the matmul rate in this run."""
    a, b = torch.randn((2, MATMUL, MATMUL), dtype=dtype, device=device)
    return lambda: a @ b


def handout_protocol(step: Callable[[], None], device: torch.device) -> list[Measurement]:
    """Time a step with accumulating gradients under the leaderboard's protocol, with the GPU's clock and power."""
    from triton.testing import do_bench

    with GpuState(uuid(device)) as monitor:
        laps = do_bench(step, warmup=HANDOUT_WARMUP, rep=HANDOUT_REP, return_mode="all")
    meanwhile = [replace(row, metric=f"handout_{row.metric}") for row in monitor.measurements()]
    return [summarize("handout", "ms", laps, keep=False), *meanwhile]


def replay(cell: Flash, call: AttentionCall, inputs: tuple[Tensor, ...]) -> Measurement:
    """Measure device time of forward and backward, or report why a user's code cannot be captured."""
    try:
        with errors_of_own_code(own=cell.contender.own):
            if cell.contender.own:
                require_no_waiting(call, inputs)
            return summarize("graph", "ms", graph_milliseconds(call, inputs, cell.rep))
    except Unavailable as error:
        return skipped("graph", "ms", str(error))


def require_no_waiting(call: AttentionCall, inputs: tuple[Tensor, ...]) -> None:
    """Raise a RuntimeError if a call synchronizes with the device, which no CUDA graph can capture.

    Not left to the capture, since a failed capture leaves PyTorch's random number generator unusable.
    """
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.grad(call(*inputs).sum(), inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def graph_milliseconds(call: AttentionCall, inputs: tuple[Tensor, ...], rep: int) -> list[float]:
    """Time forward and backward in replays of a CUDA graph, which exclude the host's launch costs; in ms."""
    from triton.testing import do_bench_cudagraph

    # New leaves: the old ones' gradients are tied to the default stream, which a capture must not touch.
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    torch.cuda.synchronize()
    return do_bench_cudagraph(lambda: torch.autograd.grad(call(*leaves).sum(), leaves), rep=rep, return_mode="all")


def host_seconds(step: Callable[[], None]) -> float:
    """Time a call on the host without waiting for the device, in seconds."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        step()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / HOST_CALLS


def measure_on_cpu(cell: Flash, device: torch.device) -> list[Measurement]:
    """Measure times by the host's clock."""
    contender = cell.contender
    call = build(cell)
    q, k, v = make_inputs(cell, device)
    rounding = require_right(cell, call, (q, k, v))
    o: Tensor

    def forward() -> None:
        nonlocal o
        o = call(q, k, v)

    def backward() -> None:
        o.sum().backward()
        q.grad = k.grad = v.grad = None

    phases = {"forward": forward, "backward": backward}

    def times() -> list[Measurement]:
        _, seconds = time_phases(phases, warmup=CPU_WARMUP, steps=CPU_CALLS, device=device)
        both = [sum(laps) for laps in zip(*seconds.values(), strict=True)]
        return [
            *(summarize(phase, "ms", [1e3 * lap for lap in laps]) for phase, laps in seconds.items()),
            summarize("forward_backward", "ms", [1e3 * lap for lap in both]),
        ]

    def check(rows: list[Measurement]) -> None:
        require_the_same_on_new_inputs(call, (q, k, v), seconds_of(rows), is_causal=cell.causal)

    return [*(times_that_hold(times, check) if contender.own else times()), *rounding, peak_memory(device)]


def make_inputs(cell: Flash, device: torch.device) -> list[Tensor]:
    """Draw random q, k and v, [batch, heads, sequence, d] each; for a user's own code [batch x heads, sequence, d]."""
    heads = (cell.batch_size * cell.heads,) if cell.contender.own else (cell.batch_size, cell.heads)
    shape = (*heads, cell.sequence, cell.d)
    return [torch.randn(shape, dtype=DTYPES[cell.precision], device=device, requires_grad=True) for _ in range(3)]
