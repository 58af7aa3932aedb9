"""A user's attention on new inputs: results and times have to match the measured ones.

Code that caches results, works on other streams or after it returns, or does less while timers run would pass a
comparison before timing. So it is called again after timing: each pass on inputs with new values, written in place
outside the timed region, from a seed that it cannot know. A time counts only if the results of the same call are
correct.

This costs three comparisons of some heads with float64 (four on a GPU), copies of inputs and results, 256 MiB and a
profile.
"""

import contextlib
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from cs336_systems.benchmarks.comparison import device_clock
from cs336_systems.benchmarks.comparison.device_trace import Traced, trace
from cs336_systems.benchmarks.comparison.exact_attention import (
    OF_USERS,
    RESULTS,
    AttentionCall,
    require_close,
    require_unchanged,
)
from cs336_systems.benchmarks.comparison.originals import originals, restore
from cs336_systems.benchmarks.comparison.refusal import refuse
from cs336_systems.measure.memory import Unavailable

T = TypeVar("T")
PASSES = {"forward": RESULTS[:1], "backward": RESULTS[1:], "forward_backward": RESULTS}
SLOWER = 1.5
"""Maximum ratio of the time on new inputs: about 1.0 if nothing is cached."""
SLACK_S = {"cpu": 5e-4, "cuda": 5e-5}
"""Additional seconds that they may take."""
LAPS = 3
"""Maximum number of laps per pass before its kernels are counted: one lap as fast as the timed one is enough."""
ROUNDS = 4
"""Maximum number of attempts on a CPU until new inputs take as long: other programs may slow it down."""
COMPARED = 2**30
"""Scores compared after each lap, in randomly chosen heads, at least one."""
originals()  # before code under test is imported


class Slower(Unavailable):
    """Raised if new inputs take longer."""


def require_timers() -> None:
    """Refuse code under test that has replaced a timer, which is restored."""
    if replaced := restore():
        refuse(replaced[0], foreign=True)


def require_the_same_on_new_inputs(
    call: AttentionCall, inputs: Sequence[Tensor], timed: Mapping[str, float], *, is_causal: bool
) -> None:
    """Compare results and times on new inputs, forward and backward, with seconds by metric, including all passes.

    The values of q, k and v change. New inputs that take longer raise Slower; wrong results, work outside the timed
    region and replaced timers are refused.
    """
    require_timers()
    device = inputs[0].device
    if device.type == "cuda" and (size := device_clock.take_persisting_l2()):
        refuse(f"it reserves {size / 2**20:.3g} MiB of the L2 cache (cudaLimitPersistingL2CacheSize)", foreign=True)
    new = NewInputs(call, inputs, is_causal=is_causal)
    for name in PASSES:
        _require_time(name, timed[name], new.laps(name), device)
    if device.type == "cuda" and (traced := new.traced("forward_backward")):
        for name in timed.keys() - {"forward", "backward"}:
            _require_time(name, timed[name], [traced.seconds], device)


class NewInputs:
    """An implementation with inputs, and a gradient of its output, whose values change before each call."""

    def __init__(self, call: AttentionCall, inputs: Sequence[Tensor], *, is_causal: bool):
        self.call = call
        self.inputs = inputs
        self.is_causal = is_causal
        self.grad_o = torch.randn_like(inputs[0], requires_grad=False)
        self._generator = torch.Generator(inputs[0].device).manual_seed(secrets.randbits(62))

    def draw(self) -> list[Tensor]:
        """Write new values in place; return copies of q, k, v and the gradient."""
        given = [*self.inputs, self.grad_o]
        with torch.no_grad():
            for x in given:
                x.normal_(generator=self._generator)
            return [device_clock.copy(x) for x in given]

    def forward(self) -> Sequence[Tensor]:
        """Run the forward pass."""
        return (self.call(*self.inputs),)

    def backward(self, o: Tensor) -> Sequence[Tensor]:
        """Run the backward pass."""
        return torch.autograd.grad(o, self.inputs, self.grad_o)

    def both(self) -> Sequence[Tensor]:
        """Run both passes."""
        (o,) = self.forward()
        return o, *self.backward(o)

    def laps(self, name: str) -> Iterator[float]:
        """Time one of PASSES on new values, in seconds, lap by lap; on a GPU finally its kernels, without the host."""
        device = self.inputs[0].device
        for _ in range(LAPS):
            work, given = self._prepare(name)
            seconds, results = device_clock.lap(work, device)
            self._compare(name, results, given)
            yield seconds
        if device.type == "cuda" and (traced := self.traced(name)):
            yield traced.seconds

    def traced(self, name: str) -> Traced | None:
        """Trace one of PASSES on new values; None if the profiler records nothing.

        Kernels that run while the timed stream is idle are refused.
        """
        work, given = self._prepare(name)
        results: list[Tensor] = []
        traced = trace(lambda: results.extend(work()), self.inputs[0].device)
        self._compare(name, device_clock.copies_of(results), given)
        if traced and traced.outside:
            why = f"{traced.outside} of its {traced.kernels} kernels run while the timed stream is idle"
            refuse(why, foreign=True)
        return traced

    def _prepare(self, name: str) -> tuple[Callable[[], Sequence[Tensor]], list[Tensor]]:
        """Draw new values; return a function that runs a pass on them, and copies of them."""
        given = self.draw()
        if name == "backward":
            (o,) = self.forward()
            return lambda: self.backward(o), given
        return self.forward if name == "forward" else self.both, given

    def _compare(self, name: str, results: Sequence[Tensor], given: Sequence[Tensor]) -> None:
        require_unchanged([*self.inputs, self.grad_o], given, foreign=True)
        by_name = dict(zip(PASSES[name], results, strict=True))
        require_close(
            by_name, given, is_causal=self.is_causal, foreign=True, heads=self._some_heads(), tolerance=OF_USERS
        )

    def _some_heads(self) -> list[int]:
        heads, sequence, _ = self.inputs[0].shape
        return secrets.SystemRandom().sample(range(heads), min(heads, max(1, COMPARED // sequence**2)))


def _require_time(name: str, timed: float, laps: Iterable[float], device: torch.device) -> None:
    """Check that one of several laps takes about as long as the timed pass."""
    fastest = math.inf
    for seconds in laps:
        fastest = min(fastest, seconds)
        if fastest <= SLOWER * timed + SLACK_S[device.type]:
            return
    raise Slower(f"not timed: {name} was timed at {1e3 * timed:.3g} ms, but takes {1e3 * fastest:.3g} ms on new inputs")


def times_that_hold(measure: Callable[[], T], check: Callable[[T], None]) -> T:
    """Measure times until a check on new inputs confirms them, and return the confirmed times."""
    for _ in range(ROUNDS - 1):
        times = measure()
        with contextlib.suppress(Slower):
            check(times)
            return times
    times = measure()
    check(times)
    return times
