"""Time attention implementations against each other, each after its results were compared with those of attention.

Launch: python -m cs336_systems.benchmarks.flash --sequence 1024 --implementation triton sdpa_flash flex
"""

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import torch
import torch._functorch.config
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from cs336_systems.attention import TiledFlashAttention, flash_attention, plain_attention
from cs336_systems.benchmarks.contest.exact_attention import AttentionCall, require_attention
from cs336_systems.benchmarks.contest.refusal import refuse
from cs336_systems.experiments.flash import HANDOUT_REP, HANDOUT_WARMUP, KERNEL_OF, MATMUL, Flash, replayed
from cs336_systems.measure.dtypes import DTYPES
from cs336_systems.measure.gpu_monitor import GpuMonitor
from cs336_systems.measure.kernel_names import short_name
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.memory import Unavailable, in_use, peak_memory, reset_peak
from cs336_systems.measure.profiler import profiling
from cs336_systems.measure.timing import time_phases

SDPA = {"sdpa_flash": SDPBackend.FLASH_ATTENTION, "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION}
HALF_ONLY = (*SDPA, "flash_attention_4")
"""On a GPU these take only fp16 and bf16."""
HOST_ROUNDS, HOST_CALLS = 10, 20
FOREIGN = (*SDPA, "flex", "flex_autotuned", "flash_attention_4")
"""Libraries' implementations."""
LEAST_CALLS = 5
"""So many calls are timed even if they take longer than asked for: a single sample has no spread."""
COMPILER_MODES = {"flex_autotuned": "max-autotune-no-cudagraphs"}
"""Tiles chosen by timing them, without CUDA graphs, from which no other implementation is replayed."""
ON_CPU = ("tiled", "tiled_compiled", "plain", "plain_compiled", "sdpa_flash")
CPU_WARMUP, CPU_CALLS = 2, 10


def measure(cell: Flash, device: torch.device) -> list[Measurement]:
    """Forward, backward and both; on a GPU also their peak memory, what they cost the host, and which kernels ran."""
    # Chosen here, not in each call, which it would cost the host some microseconds.
    backend = sdpa_kernel(SDPA[cell.implementation]) if cell.implementation in SDPA else contextlib.nullcontext()
    with backend:
        return measure_on_gpu(cell, device) if device.type == "cuda" else measure_on_cpu(cell, device)


def measure_on_gpu(cell: Flash, device: torch.device) -> list[Measurement]:
    """Times by CUDA events around calls with a cold L2 cache."""
    from triton.testing import do_bench

    if cell.implementation in HALF_ONLY and cell.precision == "fp32":
        raise Unavailable("this backend takes fp16 and bf16 only")
    # The backward pass is timed by itself, several times for one forward pass.
    torch._functorch.config.donated_buffer = False
    # Not counted for this cell: cuBLAS keeps a workspace for every thread and stream that has multiplied matrices.
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
    # Not before: first_call compiles, and this takes memory.
    require_attention(call, (q, k, v), is_causal=cell.causal, foreign=cell.implementation in FOREIGN)
    launched = own_kernels(cell, forward_backward, device)

    o = forward()
    loss = o.sum()

    def bench(timed: Callable[[], object]) -> list[float]:
        laps = do_bench(timed, warmup=25, rep=cell.rep, return_mode="all")
        if len(laps) < LEAST_CALLS:
            laps = do_bench(timed, warmup=1, rep=(LEAST_CALLS + 1) * max(laps), return_mode="all")
        return laps

    measurements = [
        summarize("forward", "ms", bench(forward)),
        summarize("backward", "ms", bench(lambda: torch.autograd.grad(loss, (q, k, v), retain_graph=True))),
        summarize("forward_backward", "ms", bench(forward_backward)),
        peak,
        launched,
        summarize("first_call", "s", [first_call]),
        summarize("matmul", "ms", bench(square_product(DTYPES[cell.precision], device))),
    ]
    if cell.compiled_call:
        measurements += handout_protocol(lambda: call(q, k, v).sum().backward(), device)
    if replayed(cell.batch_size, cell.heads, cell.sequence):
        measurements.append(summarize("host", "us", [1e6 * host_seconds(forward_backward) for _ in range(HOST_ROUNDS)]))
        measurements.append(summarize("graph", "ms", graph_milliseconds(call, (q, k, v), cell.rep)))
    return measurements


def own_kernels(cell: Flash, step: Callable[[], None], device: torch.device) -> Measurement:
    """How many kernels, copies and fills a call launches, with their names in the order of their first launch.

    Raises:
        Unavailable: none of them is one that a library's implementation is known by; AssertionError if it is ours.
    """
    with profiling(device, operators=False) as watching:
        step()
    results = watching.profiler.kineto_results if watching.profiler else None
    assert results is not None, "the profile has ended"
    names = [short_name(event.name()) for event in results.events() if event.device_type().name == "CUDA"]
    kernels = ", ".join(dict.fromkeys(names))
    if KERNEL_OF.get(cell.implementation, "") not in kernels:
        refuse(f"it launches {kernels}", foreign=cell.implementation in FOREIGN)
    return summarize("launches", "", [len(names)], details={"kernels": kernels})


def multiply_matrices(cell: Flash, device: torch.device) -> None:
    """Small products in this thread and in autograd's, after which cuBLAS holds the workspaces of both."""
    q, k, v = make_inputs(replace(cell, sequence=16), device)
    plain_attention(q, k, v, is_causal=True).sum().backward()


def square_product(dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    """A product of two square matrices, which shows what rate matrix multiplies reach in this run."""
    a, b = torch.randn((2, MATMUL, MATMUL), dtype=dtype, device=device)
    return lambda: a @ b


def handout_protocol(step: Callable[[], None], device: torch.device) -> list[Measurement]:
    """The leaderboard's way to time a step whose gradients accumulate, ms, and the GPU's clock and power meanwhile."""
    from triton.testing import do_bench

    with GpuMonitor(device) as monitor:
        laps = do_bench(step, warmup=HANDOUT_WARMUP, rep=HANDOUT_REP, return_mode="all")
    meanwhile = [replace(row, metric=f"handout_{row.metric}") for row in monitor.measurements()]
    return [summarize("handout", "ms", laps, keep=False), *meanwhile]


def graph_milliseconds(call: AttentionCall, inputs: tuple[Tensor, ...], rep: int) -> list[float]:
    """Device time of forward and backward, ms: replays of a graph, which leave out what launching costs the host."""
    from triton.testing import do_bench_cudagraph

    # New leaves: the old ones' gradients are tied to the default stream, which a capture must not touch.
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    torch.cuda.synchronize()
    return do_bench_cudagraph(lambda: torch.autograd.grad(call(*leaves).sum(), leaves), rep=rep, return_mode="all")


def host_seconds(step: Callable[[], None]) -> float:
    """What a call costs the host when it does not wait for the device, seconds."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        step()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / HOST_CALLS


def measure_on_cpu(cell: Flash, device: torch.device) -> list[Measurement]:
    """Times by the host's clock."""
    if cell.implementation not in ON_CPU:
        raise Unavailable(f"{cell.implementation} needs a CUDA device; on a CPU: {', '.join(ON_CPU)}")
    call = build(cell)
    q, k, v = make_inputs(cell, device)
    require_attention(call, (q, k, v), is_causal=cell.causal, foreign=cell.implementation in FOREIGN)
    o: Tensor

    def forward() -> None:
        nonlocal o
        o = call(q, k, v)

    def backward() -> None:
        o.sum().backward()
        q.grad = k.grad = v.grad = None

    phases = {"forward": forward, "backward": backward}
    _, seconds = time_phases(phases, warmup=CPU_WARMUP, steps=CPU_CALLS, device=device)
    both = [sum(laps) for laps in zip(*seconds.values(), strict=True)]
    return [
        *(summarize(phase, "ms", [1e3 * lap for lap in laps]) for phase, laps in seconds.items()),
        summarize("forward_backward", "ms", [1e3 * lap for lap in both]),
        peak_memory(device),
    ]


def make_inputs(cell: Flash, device: torch.device) -> list[Tensor]:
    """Random q, k and v, [batch, heads, sequence, d] each."""
    shape = (cell.batch_size, cell.heads, cell.sequence, cell.d)
    return [torch.randn(shape, dtype=DTYPES[cell.precision], device=device, requires_grad=True) for _ in range(3)]


def build(cell: Flash) -> AttentionCall:
    """The implementation as a function of q, k, v, [batch, heads, sequence, d] each.

    Raises:
        Unavailable: it cannot run these inputs, or is not installed.
    """
    call = BUILDERS[cell.implementation](cell)
    if not cell.compiled_call:
        return call
    return torch.compile(call, dynamic=False, mode=COMPILER_MODES.get(cell.implementation))


def _tiled(cell: Flash) -> AttentionCall:
    return lambda q, k, v: TiledFlashAttention.apply(q, k, v, cell.causal)


def _tiled_compiled(cell: Flash) -> AttentionCall:
    return torch.compile(_tiled(cell), dynamic=False)


def _triton(cell: Flash) -> AttentionCall:
    return functools.partial(flash_attention, is_causal=cell.causal)


def _triton_compiled_backward(cell: Flash) -> AttentionCall:
    from cs336_systems.attention.triton_attention import TritonForwardCompiledBackward

    return lambda q, k, v: TritonForwardCompiledBackward.apply(q, k, v, cell.causal)


def _plain(cell: Flash) -> AttentionCall:
    return functools.partial(plain_attention, is_causal=cell.causal)


def _plain_compiled(cell: Flash) -> AttentionCall:
    return torch.compile(_plain(cell), dynamic=False)


def _sdpa(cell: Flash) -> AttentionCall:
    call = functools.partial(torch.nn.functional.scaled_dot_product_attention, is_causal=cell.causal)
    if not cell.compiled_call:
        return call

    def with_backend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Compiled, it is part of the graph, or that of another backend would be taken from the compiler's cache.
        with sdpa_kernel(SDPA[cell.implementation]):
            return call(q, k, v)

    return with_backend


def _flex(cell: Flash) -> AttentionCall:
    compiled = torch.compile(flex_attention, dynamic=False, mode=COMPILER_MODES.get(cell.implementation))
    if not cell.causal:
        return lambda q, k, v: compiled(q, k, v)
    mask = create_block_mask(
        lambda _batch, _head, query, key: query >= key, None, None, cell.sequence, cell.sequence, device="cuda"
    )
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def _flash_attention_4(cell: Flash) -> AttentionCall:
    if find_spec("flash_attn") is None:
        raise Unavailable("the package flash-attn-4 is not installed")
    from flash_attn.cute import flash_attn_func

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Its layout is [batch, sequence, heads, d].
        o = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=cell.causal)
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)

    return call


BUILDERS: dict[str, Callable[[Flash], AttentionCall]] = {
    "tiled": _tiled,
    "tiled_compiled": _tiled_compiled,
    "triton": _triton,
    "triton_compiled_backward": _triton_compiled_backward,
    "plain": _plain,
    "plain_compiled": _plain_compiled,
    "sdpa_flash": _sdpa,
    "sdpa_cudnn": _sdpa,
    "flex": _flex,
    "flex_autotuned": _flex,
    "flash_attention_4": _flash_attention_4,
}


if __name__ == "__main__":
    from cs336_systems.benchmarks.command_line import main

    main(Flash, measure)
