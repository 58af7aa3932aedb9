"""The work of a training step in seconds at a GPU's data-sheet rates, and its time, a weighted sum of them.

Each kind of work is divided by the rate that limits it: matmuls by the dense peak of their precision, memory passes by
the bandwidth, communication by the link. A weight is the factor by which a kind of work takes longer: 1.4 for matmuls
means 71 % of the dense peak. `python -m scripts.calibration.rates` fits the weights to recorded steps.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from cs336_systems.accounting.kept_activations import matrix_weights
from cs336_systems.accounting.peak_memory import fully_sharded
from cs336_systems.accounting.setting import Scheme, Setting
from cs336_systems.accounting.units import BYTES, FP32_BYTES

SPLIT_UPDATE_BYTES = 26
"""AdamW bytes per bf16 weight: reads gradient 2, weight 2, remainder of the master 2, moments 8; writes all but the
gradient."""
WHOLE_UPDATE_BYTES = 28
"""AdamW bytes per fp32 weight: reads gradient, weight and moments, writes weight and moments. The same per bf16 weight
with a separate fp32 master: 2 + 4 + 8 read, 2 + 4 + 8 written."""
HEAD_TILE = 64
"""From here on, widths of attention heads are padded to powers of two."""
DIAGONAL = 128
"""Extra keys per query in a kernel's tiles beyond the unmasked half of the scores."""
FP8_SPEED = 2
"""FP8's dense peak over bf16's."""
KERNELS = {"eager": (62, 110), "compiled": (22, 34), "fused": (16, 26)}
"""Approximate number of kernels of a block's forward and backward pass."""
LEAST: Mapping[str, float] = {
    "hidden": 0.0,
    "gathered": 0.0,
    "symmetric": 0.0,
    "kernels": 0.0,
    "flash_exponentials": 0.0,
}
"""The smallest possible weight, if it is not 1: nothing is faster than the data sheet, but communication can be
hidden."""
UNKNOWN: Mapping[str, float] = {"kernels": 2e-6, "flash_exponentials": 500.0}
"""The weight of work that occurs in no recorded step, if it is not DEFAULT."""
DEFAULT = 1.4


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of a GPU: from its data sheet, or measured."""

    bf16: float
    """Dense matmuls, FLOP/s."""
    fp32: float
    bandwidth: float
    """Device memory, bytes/s."""
    link: float
    """To other GPUs, one direction, bytes/s."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Seconds of each kind of work at the rates of the data sheet; kernels are counted."""

    bf16_matmuls: float = 0.0
    fp32_matmuls: float = 0.0
    fp8_matmuls: float = 0.0
    flash_matmuls: float = 0.0
    """Matmuls of attention without scores in memory."""
    flash_exponentials: float = 0.0
    """Scores of that attention, each counted as one FLOP at the bf16 peak."""
    scores: float = 0.0
    """Passes over scores in memory."""
    eager_passes: float = 0.0
    fused_passes: float = 0.0
    """Memory passes of fused and compiled kernels."""
    fp8_casts: float = 0.0
    """Operands of FP8 matmuls that are rounded in a pass of their own: read, once or twice, and written twice."""
    update: float = 0.0
    """Memory passes of PyTorch's fused AdamW over fp32 weights."""
    split_update: float = 0.0
    """Memory passes of this project's AdamW, which splits fp32 masters into bf16 weights and remainders."""
    kernels: float = 0.0
    """Number of kernels."""
    exposed: float = 0.0
    """Exposed ring collectives."""
    hidden: float = 0.0
    """Ring collectives that overlap the passes."""
    gathered: float = 0.0
    """FSDP's collectives, which overlap the passes."""
    symmetric: float = 0.0
    """Copy-engine transfers that overlap the backward pass."""

    def __add__(self, other: "Work") -> "Work":
        return Work(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})

    def __mul__(self, factor: float) -> "Work":
        return Work(**{field.name: factor * getattr(self, field.name) for field in fields(self)})

    def seconds(self, weights: Mapping[str, float]) -> float:
        """The device's time; for a whole step this is the step time, unless the host is slower."""
        return sum(weights[kind] * amount for kind, amount in asdict(self).items())


def step_work(setting: Setting, rates: Rates) -> Work:
    """All work of a step on one rank."""
    layers = setting.shape.num_layers
    forward, backward = block_work(setting, rates)
    head, head_backward = head_work(setting, rates)
    work = forward * layers + head
    if setting.mode == "inference":
        return work
    if setting.mode != "forward":
        work += backward * layers + head_backward
        if setting.segment:
            work += forward * layers
        if setting.recomputed:
            attention = attention_work(setting, rates)[0]
            work += (forward + attention * -1) * min(setting.recomputed, layers)
    if setting.trains:
        work += update_work(setting, rates)
    return work + communication(setting, rates)


def linear_maps(setting: Setting) -> list[tuple[int, int]]:
    """Inputs and outputs of a block's linear maps: fused passes pack the maps with a common input."""
    d, d_ff = setting.shape.d_model, setting.shape.d_ff
    if setting.passes == "fused":
        return [(d, 3 * d), (d, d), (d, 2 * d_ff), (d_ff, d)]
    return [*4 * [(d, d)], (d, d_ff), (d, d_ff), (d_ff, d)]


def matmul(setting: Setting, rates: Rates, d_in: int, d_out: int, *, fp8: bool = False) -> Work:
    """One matmul of all tokens with a matrix."""
    flops = 2 * setting.tokens * d_in * d_out
    if setting.precision == "fp32":
        kind = {"fp32_matmuls": flops / rates.fp32}
    elif fp8:
        kind = {"fp8_matmuls": flops / FP8_SPEED / rates.bf16}
    else:
        kind = {"bf16_matmuls": flops / rates.bf16}
    return Work(**kind)


def _each(setting: Setting) -> int:
    return FP32_BYTES if setting.precision == "fp32" else BYTES["bf16"]


def block_work(setting: Setting, rates: Rates) -> tuple[Work, Work]:
    """The work of a block's forward and backward pass."""
    matmuls = Work()
    for d_in, d_out in linear_maps(setting):
        matmuls += matmul(setting, rates, d_in, d_out, fp8=setting.fp8)
    attention, attention_backward = attention_work(setting, rates)
    passes, passes_backward = pass_bytes(setting)
    casts = 6 * sum(d_in * d_out for d_in, d_out in linear_maps(setting)) if setting.precision == "autocast" else 0
    if setting.scheme == "FSDP":
        casts = 0
    kind = "eager_passes" if setting.passes == "eager" else "fused_passes"
    forward_kernels, backward_kernels = KERNELS[setting.passes]
    rounded, rounded_backward = fp8_bytes(setting)
    forward = Work(
        **{kind: (passes + casts) / rates.bandwidth},
        fp8_casts=rounded / rates.bandwidth,
        kernels=forward_kernels,
    )
    backward = Work(
        **{kind: (passes_backward + casts) / rates.bandwidth},
        fp8_casts=rounded_backward / rates.bandwidth,
        kernels=backward_kernels,
    )
    return matmuls + attention + forward, matmuls * 2 + attention_backward + backward


def pass_bytes(setting: Setting) -> tuple[int, int]:
    """Bytes of a block's norms, rotary embeddings, additions and activations: forward and backward.

    Eager fp32, forward, per token: a norm 28 d (square, mean, two products), q's and k's rotations 36 d each, an
    addition 12 d, copies of q, k, v and of attention's result 32 d, SwiGLU 20 d_ff. Under autocast norms stay in fp32
    and five casts follow; with bf16 weights norms cast in and out. The backward pass moves about twice as much.

    Fused: two residual additions with norms read 2 d and write 2 d in each direction, and the rotation of q and k reads
    and writes 2 d; SwiGLU reads 2 d_ff and writes d_ff, and in the backward pass reads 3 d_ff and writes 2 d_ff.
    Compiled passes save and read more.
    """
    d, d_ff = setting.shape.d_model, setting.shape.d_ff
    if setting.passes == "eager":
        widths = {
            "fp32": (2 * 28 + 2 * 36 + 2 * 12 + 32, 20),
            "autocast": (2 * 28 + 5 * 6 + 2 * 38 + 2 * 10 + 16, 10),
            "bf16": (2 * 40 + 2 * 38 + 2 * 6 + 16, 10),
        }[setting.precision]
        forward = setting.tokens * (widths[0] * d + widths[1] * d_ff)
        return forward, 2 * forward
    each = _each(setting)
    forward, backward = each * (10 * d + 3 * d_ff), each * (14 * d + 5 * d_ff)
    if setting.precision == "autocast":  # sums in fp32
        forward, backward = forward + 8 * d, backward + 8 * d
    if setting.passes == "compiled":  # heads side by side, and separate rotations
        forward, backward = forward + each * 6 * d, backward + each * (6 * d + d_ff)
    return setting.tokens * forward, setting.tokens * backward


def all_pass_bytes(setting: Setting) -> int:
    """Bytes of norms, rotary embeddings, activations, embedding and loss if each is one pass in each direction.

    The last norm is like a block's. The embedding reads and writes d in each direction and fills its gradient; the loss
    reads the logits and writes their gradient.
    """
    d, vocabulary = setting.shape.d_model, setting.vocab_size
    once = setting.tokens * (2 * 4 * d + 2 * 2 * d + 2 * vocabulary) + vocabulary * d
    return setting.shape.num_layers * sum(pass_bytes(setting)) + _each(setting) * once


def fp8_bytes(setting: Setting) -> tuple[int, int]:
    """Bytes of rounding a block's operands to FP8: weights and inputs, and in the backward pass gradients.

    Compiled passes read them twice, under current scaling. Fused ones read them once, under delayed scaling, and round
    the results of SwiGLU's passes there.
    """
    if not setting.fp8:
        return 0, 0
    tokens, d, weights = setting.tokens, setting.shape.d_model, matrix_weights(setting)
    if setting.passes == "fused":
        each = BYTES["bf16"] + 2
        return each * (weights + tokens * 3 * d), each * tokens * 5 * d
    each, d_ff = 2 * BYTES["bf16"] + 2, setting.shape.d_ff
    return each * (weights + tokens * (3 * d + d_ff)), each * tokens * (5 * d + 2 * d_ff)


def attention_work(setting: Setting, rates: Rates) -> tuple[Work, Work]:
    """The work of attention's forward and backward pass."""
    width = setting.shape.d_model // setting.shape.num_heads
    if setting.attention == "plain":
        flops = 4 * setting.pairs * width
        kind = "fp32_matmuls" if setting.precision == "fp32" else "bf16_matmuls"
        peak = rates.fp32 if setting.precision == "fp32" else rates.bf16
        each = _each(setting)
        if setting.passes != "compiled":
            wide = 6 if setting.precision == "autocast" else 0  # casts to fp32, and the gradients' casts back
            softmax = FP32_BYTES if setting.precision == "autocast" else each
            forward, backward = 6 * each + 2 * softmax + 2 * wide, 8 * each + 6 * softmax + 2 * wide
        else:
            forward, backward = 5 * each, 8 * each
        return (
            Work(**{kind: flops / peak}, scores=forward * setting.pairs / rates.bandwidth),
            Work(**{kind: 2 * flops / peak}, scores=backward * setting.pairs / rates.bandwidth),
        )
    padded = max(HEAD_TILE, 1 << (width - 1).bit_length())
    pairs = setting.batch_size * setting.shape.num_heads * setting.context * (setting.context / 2 + DIAGONAL)
    padded_flops = 4 * pairs * padded
    if setting.precision == "fp32":
        return Work(fp32_matmuls=padded_flops / rates.fp32), Work(fp32_matmuls=2.5 * padded_flops / rates.fp32)
    forward_work = Work(flash_matmuls=padded_flops / rates.bf16, flash_exponentials=pairs / rates.bf16)
    return forward_work, Work(flash_matmuls=2.5 * padded_flops / rates.bf16, flash_exponentials=2 * pairs / rates.bf16)


def head_work(setting: Setting, rates: Rates) -> tuple[Work, Work]:
    """Embedding, head and loss: forward and backward."""
    product = matmul(setting, rates, setting.shape.d_model, setting.vocab_size)
    logits = setting.tokens * setting.vocab_size
    if setting.passes == "fused":  # One pass computes the loss and the gradients.
        return product + Work(fused_passes=4 * logits / rates.bandwidth), product * 2
    cast = 6 if setting.precision != "fp32" else 0
    kind = "eager_passes" if setting.passes == "eager" else "fused_passes"
    if setting.passes == "compiled":
        sizes = (2 * _each(setting), 3 * _each(setting))
    else:
        sizes = (0 if setting.mode == "inference" else cast + 8, cast + 20)
    return (
        product + Work(**{kind: sizes[0] * logits / rates.bandwidth}),
        product * 2 + Work(**{kind: sizes[1] * logits / rates.bandwidth}),
    )


def update_work(setting: Setting, rates: Rates) -> Work:
    """AdamW's pass over weights, gradients and state: this rank's share."""
    shares = setting.ranks if setting.scheme in ("sharded optimizer", "ZeRO-2", "FSDP") else 1
    seconds = setting.weights / shares / rates.bandwidth
    if setting.precision == "bf16":
        return Work(split_update=SPLIT_UPDATE_BYTES * seconds)
    return Work(update=WHOLE_UPDATE_BYTES * seconds)


def communication(setting: Setting, rates: Rates) -> Work:
    """Ring collectives of a step: (N - 1)/N of the reduced or gathered bytes, per direction."""
    gradients = setting.weight_bytes * setting.weights
    if setting.scheme == "FSDP":
        return Work(gathered=fully_sharded(setting).sent_in_a_step / rates.link) if setting.ranks > 1 else Work()
    seconds = 2 * (setting.ranks - 1) / setting.ranks * gradients / rates.link
    if setting.scheme == "alone":
        return Work()
    if setting.symmetric:
        return Work(symmetric=seconds)
    if setting.exposed:
        return Work(exposed=seconds)
    return reduced_work(setting.scheme, seconds, overlap=setting.overlap)


def reduced_work(scheme: Scheme, seconds: float, *, overlap: bool = False) -> Work:
    """Collectives of gradients and updated weights, given the seconds of an all-reduce of the gradients."""
    if scheme in ("sharded optimizer", "ZeRO-2") and not overlap:
        return Work(hidden=seconds / 2 if scheme == "ZeRO-2" else seconds, exposed=seconds / 2)
    return Work(hidden=seconds)


def part_work(part: str, setting: Setting, rates: Rates) -> Work:
    """One part of a step alone: "matmuls", "attention", "update", or "norms and elementwise"."""
    layers = setting.shape.num_layers
    match part:
        case "matmuls":
            work = matmul(setting, rates, setting.shape.d_model, setting.vocab_size) * 3
            for d_in, d_out in linear_maps(setting):
                work += matmul(setting, rates, d_in, d_out) * (3 * layers)
            return work
        case "attention":
            forward, backward = attention_work(setting, rates)
            return (forward + backward) * layers
        case "update":
            return update_work(setting, rates)
    forward_bytes, backward_bytes = pass_bytes(setting)
    return Work(fused_passes=(forward_bytes + backward_bytes) * layers / rates.bandwidth)
