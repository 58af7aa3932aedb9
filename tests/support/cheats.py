"""Attention that is right when it is compared and does less when it is timed, each in one way."""

import sys
import time

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
        """Computes what is new."""
        if key not in KEPT:
            leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
            with torch.enable_grad():
                o = full(*leaves, is_causal)
            KEPT[key] = (o.detach(), leaves, o)
        ctx.key = key
        return KEPT[key][0].clone()

    @staticmethod
    def backward(ctx, grad_o):
        """As in the forward pass."""
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
    """Replaces the clock."""
    time.perf_counter = lambda: 0.0
    return full(q, k, v, is_causal)


CHEATS = {
    "by_place": "its o is off from that of",
    "by_content": "on inputs that it has not seen it takes",
    "by_version": "on inputs that it has not seen it takes",
    "after_calls": "its o is off from that of",
    "last_result": "its o is off from that of",
    "while_timed": "it was timed at .* ms, and takes .* ms afterwards",
    "own_clock": "it has replaced time.perf_counter",
}
"""By name, why each is not timed."""
