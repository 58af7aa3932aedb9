"""Attention that is right when it is compared and does less when it is timed, each in one way."""

import ctypes
import sys
import threading
import time
from types import SimpleNamespace

import torch

from tests.support.own_attention import Right

KEPT = {}
CALLS = [0]


def full(q, k, v, is_causal):
    """The work, slowly enough to be seen."""
    for _ in range(4):
        o = Right.apply(q, k, v, is_causal)
    return o


class Kept(torch.autograd.Function):
    """Results of earlier, forward and backward."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, key):
        if key not in KEPT:
            leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
            with torch.enable_grad():
                o = full(*leaves, is_causal)
            KEPT[key] = (o.detach(), leaves, o)
        ctx.key = key
        return KEPT[key][0].clone()

    @staticmethod
    def backward(ctx, grad_o):
        _, leaves, o = KEPT[ctx.key]
        return *torch.autograd.grad(o, leaves, grad_o, retain_graph=True), None, None


def by_place(q, k, v, is_causal):
    """Keeps results by the addresses of its inputs."""
    return Kept.apply(q, k, v, is_causal, (q.data_ptr(), k.data_ptr(), v.data_ptr()))


def by_content(q, k, v, is_causal):
    """Keeps results by some of the inputs' values."""
    return Kept.apply(q, k, v, is_causal, tuple(x.flatten()[:4].sum().item() for x in (q, k, v)))


def by_version(q, k, v, is_causal):
    """Keeps results until its inputs are written."""
    return Kept.apply(q, k, v, is_causal, (q.data_ptr(), q._version, k._version, v._version))


def after_calls(q, k, v, is_causal):
    """Computes nothing from the fifth call on."""
    CALLS[0] += 1
    return full(q, k, v, is_causal) if CALLS[0] < 5 else (q + k + v) * 0


def last_result(q, k, v, is_causal):
    """Returns the results of the call before."""
    o, KEPT["last"] = KEPT.get("last"), full(q, k, v, is_causal)
    return KEPT["last"] if o is None or o.shape != q.shape else o.detach() + 0 * KEPT["last"]


def while_timed(q, k, v, is_causal):
    """Works for whoever does not take the time."""
    frame = sys._getframe()
    while frame:
        if frame.f_code.co_name in ("time_phases", "do_bench"):
            return q + 0 * (k + v)
        frame = frame.f_back
    return full(q, k, v, is_causal)


def own_clock(q, k, v, is_causal):
    """Replaces what takes the time."""
    time.perf_counter = lambda: 0.0
    return full(q, k, v, is_causal)


def own_allclose(q, k, v, is_causal):
    """Replaces comparisons."""
    torch.allclose = torch.equal = torch.isclose = lambda *_, **__: True
    return (q + k + v) * 0


class Threaded(torch.autograd.Function):
    """The output, computed by another thread, and the gradients."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.save_for_backward(q, k, v)
        ctx.is_causal, o = is_causal, torch.empty_like(q)
        # Later than a CPU that is busy compares it.
        ctx.thread = threading.Timer(0.2, lambda: o.copy_(full(q, k, v, is_causal)))
        ctx.thread.start()
        return o

    @staticmethod
    def backward(ctx, grad_o):
        ctx.thread.join()
        return Right.backward(ctx, grad_o)


def another_thread(q, k, v, is_causal):
    """Works after it has returned."""
    return Threaded.apply(q, k, v, is_causal)


class Lazy(torch.Tensor):
    """Computes when it is used."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [x.compute() if isinstance(x, Lazy) else x for x in args]
        return func(*args, **kwargs or {})


def later(like, compute):
    """A tensor that computes when it is used."""
    x = torch.empty_like(like).as_subclass(Lazy)
    x.compute = compute
    return x


def lazy(q, k, v, is_causal):
    """Works when it is compared."""
    return later(q, lambda: full(q, k, v, is_causal))


class LazyGradients(Right):
    """The same of gradients."""

    @staticmethod
    def backward(ctx, grad_o):
        kept = SimpleNamespace(saved_tensors=ctx.saved_tensors, is_causal=ctx.is_causal)
        return *(later(grad_o, lambda i=i: Right.backward(kept, grad_o)[i]) for i in range(3)), None


def empties_inputs(q, k, v, is_causal):
    """Makes its task easier."""
    v.data.zero_()
    return 0 * (q + k + v)


def bf16(q, k, v, is_causal):
    """Multiplies in bf16."""
    return full(*(x.bfloat16() for x in (q, k, v)), is_causal).to(q.dtype)


def fp8_values(q, k, v, is_causal):
    """Rounds one input to FP8, for which tensor cores are faster."""
    return full(q, k, v + (v.to(torch.float8_e4m3fn).to(v.dtype) - v).detach(), is_causal)


def half_the_heads(q, k, v, is_causal):
    """Copies the other half."""
    half = len(q) // 2
    return full(*(x[:half] for x in (q, k, v)), is_causal).repeat(2, 1, 1)


def half_the_rows(q, k, v, is_causal):
    """Leaves out the later queries."""
    half = q.shape[1] // 2
    o = full(*(x[:, :half] for x in (q, k, v)), is_causal)
    return torch.cat((o, v[:, half:]), 1)


class NoGradients(Right):
    """No gradients from the fifth call on."""

    @staticmethod
    def backward(ctx, grad_o):
        CALLS[0] += 1
        return Right.backward(ctx, grad_o) if CALLS[0] < 5 else (*(torch.zeros_like(grad_o),) * 3, None)


class OtherStream(Right):
    """Works on a stream of its own, for which nobody waits."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        with torch.cuda.stream(torch.cuda.Stream()):
            return Right.forward(ctx, q, k, v, is_causal)


def new_stream(q, k, v, is_causal):
    """Leaves another stream current, which has nothing to wait for."""
    o = full(q, k, v, is_causal)
    torch.cuda.set_stream(torch.cuda.Stream())
    return o


def joined_stream(q, k, v, is_causal):
    """Works on another stream as one should: right."""
    other, timed = torch.cuda.Stream(), torch.cuda.current_stream()
    other.wait_stream(timed)
    with torch.cuda.stream(other):
        o = full(q, k, v, is_causal)
    timed.wait_stream(other)
    return o


def persisting_l2(q, k, v, is_causal):
    """Sets 8 MiB of the L2 cache aside for itself."""
    assert ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(6, ctypes.c_size_t(2**23)) == 0
    return full(q, k, v, is_causal)


class KeptGradients(Right):
    """Computes the gradients of a graph once, however often they are asked for."""

    @staticmethod
    def backward(ctx, grad_o):
        if not hasattr(ctx, "kept"):
            ctx.kept = Right.backward(ctx, grad_o)
        return ctx.kept


class OnesOnly(Right):
    """Computes no gradients of a sum."""

    @staticmethod
    def backward(ctx, grad_o):
        if not any(grad_o.stride()):
            return *ctx.saved_tensors, None
        return Right.backward(ctx, grad_o)


def skipped_in_graphs(q, k, v, is_causal):
    """Leaves its work out of CUDA graphs."""
    return q + 0 * (k + v) if torch.cuda.is_current_stream_capturing() else full(q, k, v, is_causal)


LATER = r"\w+ was timed at \S+ ms, but takes \S+ ms on new inputs"
CHEATS = {
    "by_place": "its output has a relative error of",
    "by_content": LATER,
    "by_version": LATER,
    "after_calls": "its output has a relative error of",
    "last_result": "its output has a relative error of",
    "while_timed": LATER,
    "own_clock": "it has replaced time.perf_counter",
    "own_allclose": "its output has a relative error of",
    "another_thread": "its output has a relative error of",
    "lazy": "its output is a Lazy",
    "LazyGradients": "it returns a Lazy; allowed: a plain tensor",
    "empties_inputs": "it changes its v",
    "fp8_values": "its output has a relative error of",
    "half_the_heads": r"its output has a relative error of \S+ \(tolerance \S+\) against causal attention, "
    r"largest in head [23], ",
    "half_the_rows": r"its output has a relative error of .*, largest in head ., rows (1..|64) to ",
    "NoGradients": "its dq has a relative error of",
}
"""By name, why each is not timed."""
IN_FP32 = dict.fromkeys(("bf16", "fp8_values"), "its output has a relative error of")
"""The same in fp32."""
SHORT = r"\w+ was timed at \S+ ms, (but takes|less than the) \S+ ms"
ON_GPU = {
    **{name: CHEATS[name] for name in ("another_thread", "lazy", "fp8_values", "own_clock", "own_allclose")},
    # A GPU that is listed has a roofline, which what is not computed at all exceeds.
    **{name: f"({CHEATS[name]}|{SHORT})" for name in ("by_place", "after_calls", "NoGradients", "LazyGradients")},
    "empties_inputs": "its dv has a relative error of",  # v is empty already when it is compared
    **dict.fromkeys(("by_version", "while_timed", "OnesOnly"), SHORT),
    "last_result": "its (output|dq) has a relative error of",
    "OtherStream": rf"(its output has a relative error of|\d of its \d+ kernels run while the timed stream is idle"
    rf"|{SHORT})",
    "new_stream": f"(it leaves another stream current|{SHORT})",
    "persisting_l2": r"it reserves \S+ MiB of the L2 cache",
    "KeptGradients": f"backward{SHORT[3:]}",
    "skipped_in_graphs": f"graph{SHORT[3:]}",
}
"""The same on a GPU."""
