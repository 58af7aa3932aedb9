"""A user's attention on inputs that it has never seen: results and times have to be those that were measured.

Code that keeps results, by the place or by the content of its inputs, or that stops working after some calls, passes a
comparison before it is timed. So it is called once more after it was timed, in turns on inputs that stay and on inputs
whose values are new, written in place outside of what is timed, from a seed that it cannot know.
"""

import secrets
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cs336_systems.benchmarks.comparison.exact_attention import AttentionCall, require_close
from cs336_systems.benchmarks.comparison.refusal import refuse

CALLS = 12
"""Calls on each kind of inputs."""
COMPARED = 2
"""Calls on new inputs whose results are compared with float64, chosen at random."""
SLOWER = 1.5
"""How many times as long the fastest call on new inputs may take: about 1.0 where nothing is kept."""
HOST_S = 5e-4
"""Seconds that the host may add to what the device was timed at."""
FLUSHED = 2**28
"""Bytes that are written before each call on a GPU, so that its L2 cache holds neither kind of inputs."""
TIMERS: dict[str, Callable[[], object]] = {
    "time.perf_counter": lambda: time.perf_counter,
    "torch.cuda.Event": lambda: torch.cuda.Event,
    "torch.cuda.synchronize": lambda: torch.cuda.synchronize,
    "torch.cuda.CUDAGraph": lambda: torch.cuda.CUDAGraph,
}
"""The timers of measurements, by name: code under test is imported after this module, and must leave them alone."""
_ORIGINAL = {name: timer() for name, timer in TIMERS.items()}
_now, _synchronize = time.perf_counter, torch.cuda.synchronize


def require_the_same_on_new_inputs(
    call: AttentionCall, inputs: Sequence[Tensor], timed: float, *, is_causal: bool
) -> None:
    """Compare results and times on new inputs, forward and backward.

    Args:
        call: the implementation, which has been timed.
        inputs: q, k and v, as they were timed; their values change.
        timed: the seconds at which it was timed.
        is_causal: whether the implementation is causal.

    Raises:
        Unavailable: results are wrong, new inputs take longer, or it has replaced a timer.
    """
    for name, timer in TIMERS.items():
        if timer() is not _ORIGINAL[name]:
            refuse(f"it has replaced {name}", foreign=True)
    device = inputs[0].device
    generator = torch.Generator(device).manual_seed(secrets.randbits(62))
    grad_o = torch.randn_like(inputs[0], requires_grad=False)
    compared = secrets.SystemRandom().sample(range(CALLS), COMPARED)
    seconds: dict[str, list[float]] = {"seen": [], "new": []}
    for index in range(CALLS):
        for kind, laps in seconds.items():
            if kind == "new":
                _draw(inputs, grad_o, generator)
            lap, found = _timed(call, inputs, grad_o)
            laps.append(lap)
            if kind == "new" and index in compared:
                require_close(found, [*inputs, grad_o], is_causal=is_causal, foreign=True)
    seen, new = (min(laps) for laps in seconds.values())
    if new > SLOWER * seen:
        refuse(f"on inputs that it has not seen it takes {new / seen:.2g} times as long", foreign=True)
    if new > SLOWER * timed + HOST_S:
        refuse(f"it was timed at {1e3 * timed:.3g} ms, and takes {1e3 * new:.3g} ms afterwards", foreign=True)


def _draw(inputs: Sequence[Tensor], grad_o: Tensor, generator: torch.Generator) -> None:
    """Write new values in place."""
    with torch.no_grad():
        for x in (*inputs, grad_o):
            x.normal_(generator=generator)


def _timed(call: AttentionCall, inputs: Sequence[Tensor], grad_o: Tensor) -> tuple[float, dict[str, Tensor]]:
    """Time a forward and a backward pass until the device is done, in seconds; the results too."""
    on_gpu = inputs[0].is_cuda
    if on_gpu:
        torch.empty(FLUSHED, dtype=torch.int8, device=inputs[0].device).zero_()
        _synchronize(inputs[0].device)
    start = _now()
    o = call(*inputs)
    gradients = torch.autograd.grad(o, inputs, grad_o)
    if on_gpu:
        _synchronize(inputs[0].device)
    lap = _now() - start
    return lap, dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients), strict=True))
