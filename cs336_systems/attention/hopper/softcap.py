"""Softcap in the Hopper kernels: scaled scores s become c tanh(s / c). Without it nothing is compiled."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def cap_scores(scores, softmax_scale, SOFTCAP_LOG2: gl.constexpr):
    """Compute scores and their factor: as they are, or tanh(softmax_scale S) and c, in units of log2."""
    if SOFTCAP_LOG2 is None:
        return scores, softmax_scale
    else:
        return _approximate("tanh.approx.f32", scores * softmax_scale), SOFTCAP_LOG2


@gluon.jit
def through_softcap(ds, p, lse, SOFTCAP_LOG2: gl.constexpr):
    """Multiply dS with the derivative of the cap, 1 - tanh^2, where c tanh = log2(P) + L: no tanh need be kept."""
    if SOFTCAP_LOG2 is not None:
        tanh = (_approximate("lg2.approx.ftz.f32", p) + lse[None, :]) * (1 / SOFTCAP_LOG2)
        ds = gl.where(p > 1e-37, ds * (1 - tanh * tanh), 0.0)  # below, log2 is -inf, and L may be infinite
    return ds


@gluon.jit
def _approximate(INSTRUCTION: gl.constexpr, x):
    assembly: gl.constexpr = INSTRUCTION + " $0, $1;"
    return gl.inline_asm_elementwise(assembly, "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)
