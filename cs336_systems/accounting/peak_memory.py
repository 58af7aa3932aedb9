"""The peak memory of a rank's training step, by purpose.

The candidates are the moments of a step: the loss, each block's backward pass, and the update. Each has weights,
optimizer state, gradients so far, activations not yet used, and temporaries; cuBLAS's workspaces and the allocator's
rounding are added.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

from cs336_systems.accounting import kept_activations as kept
from cs336_systems.accounting.bucketed_bytes import bucketed_bytes
from cs336_systems.accounting.caching_allocator import LARGE, SMALL, fresh_excess
from cs336_systems.accounting.fsdp import FullySharded
from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.transformer import parameter_tensors, weight_sizes
from cs336_systems.accounting.units import BYTES, FP32_BYTES, MIB
from cs336_systems.limits import REDUCTIONS

WORKSPACE = 32 * MIB
"""cuBLAS's workspace of one thread and stream on Hopper and Blackwell; 8 MiB before (torch.backends.cuda)."""
UPDATES_IN_FLIGHT = 512 * MIB
"""Gradients whose updates may be pending during the backward pass (`cs336_systems.training.under_backward`)."""
REUSED = MIB // 5
"""Mean excess of a tensor above 1 MiB carved out of the remainders of other blocks, in recorded steps."""
UNITS_IN_FLIGHT = 3
"""Units whose gradients are in flight or incomplete in ZeRO-2."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """Bytes at one moment, by purpose."""

    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0
    """Kept for the backward pass."""
    weight_copies: int = 0
    """Autocast's bf16 copies of weights; in FSDP, gathered weights."""
    temporaries: int = 0
    """Bytes that one operator or one message needs while it runs."""
    workspaces: int = 0
    """cuBLAS's."""
    rounding: int = 0
    """The caching allocator's."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def between_steps(self) -> int:
        """Weights and optimizer state, which outlive a step's gradients."""
        return self.parameters + self.optimizer_state


def peak(setting: Setting) -> Use:
    """The moment of a step with the most memory in use."""
    most = max(moments(setting), key=lambda use: use.total)
    if not setting.on_gpu:
        return most
    return Use(**vars(most) | {"workspaces": workspaces(setting), "rounding": rounding(setting, most)})


@cache  # many rows of a table share a setting
def possible_peaks(setting: Setting) -> tuple[Use, ...]:
    """The possible peaks of a step, largest first: several if the program alone does not determine it."""
    if setting.rebuilds:
        return peak(setting), peak(replace(setting, first_buckets=False))
    return (peak(setting),)


def saved_for_backward(setting: Setting) -> int:
    """Bytes saved for the backward pass by forward pass and loss, including copies of weights but not the weights."""
    at_the_loss = next(moments(setting))
    return at_the_loss.activations + at_the_loss.weight_copies


def best_segment(setting: Setting) -> int:
    """The segment length with the lowest peak, the shortest of several."""
    lengths = range(1, setting.shape.num_layers + 1)
    return min(lengths, key=lambda length: peak(replace(setting, segment=length)).total)


def with_fewest_recomputed(setting: Setting, capacity: float, least: int = 0) -> Setting:
    """The fused step with as few recomputed blocks as `capacity` bytes allow, but at least one.

    If none fits, all but one are recomputed: memory falls with each block except the last, since everything that a
    block keeps is needed anyway.
    """

    def fits(blocks: int) -> bool:
        return peak(replace(setting, recomputed=blocks)).total <= capacity

    return replace(setting, recomputed=bisect_left(range(setting.shape.num_layers - 1), True, least, key=fits))


def moments(setting: Setting) -> Iterator[Use]:
    """The moments of a step, without workspaces and rounding."""
    if setting.mode == "inference":
        yield _inference(setting)
    elif setting.mode == "forward":
        yield _forward(setting)
    else:
        yield from _passes(setting)


def workspaces(setting: Setting) -> int:
    """cuBLAS's workspaces: of the forward pass's thread and the backward pass's, and again in a CUDA graph."""
    threads = 1 if setting.mode in ("inference", "forward") else 2
    return threads * (2 if setting.graph else 1) * WORKSPACE


def rounding(setting: Setting, most: Use) -> int:
    """The allocator's rounding of weights, activations, gradients and moments.

    In the first step, gradients and moments reuse memory of the forward pass, and only the rest comes from new
    segments.
    """
    shards = setting.ranks if setting.scheme == "FSDP" else 1

    def sizes_of(each: int) -> tuple[int, ...]:
        return tuple(size // shards for size in weight_sizes(setting.shape, setting.vocab_size, each))

    excess = fresh_excess(sizes_of(setting.weight_bytes))
    if setting.precision == "autocast" and most.weight_copies and setting.scheme != "FSDP":
        excess += fresh_excess(sizes_of(BYTES["bf16"]))
    if most.activations and setting.passes == "eager" and not setting.segment:
        excess += setting.shape.num_layers * reused_excess(
            tensor.bytes for tensor in setting.block.saved() if tensor.bytes < LARGE
        )
    persistent = (most.gradients + most.optimizer_state) // max(1, FP32_BYTES * setting.weights // shards)
    room = most.activations + most.weight_copies + most.temporaries
    fresh = max(0.0, 1 - room / max(1, most.parameters))
    numbers = sizes_of(FP32_BYTES)
    each = fresh * fresh_excess(numbers) + (1 - fresh) * reused_excess(numbers)
    return round(excess + persistent * each)


def reused_excess(sizes: Iterable[int]) -> int:
    """Mean excess of tensors that fit into what others have left, bytes."""
    return REUSED * sum(size > SMALL for size in sizes)


def _state(setting: Setting) -> dict[str, int]:
    """Weights and optimizer state of a rank."""
    weights, ranks = setting.weights, setting.ranks
    if setting.scheme == "FSDP":
        model = fully_sharded(setting)
        return {"parameters": model.weights, "optimizer_state": model.moments if setting.trains else 0}
    remainder = 2 if setting.precision == "bf16" else 0
    counters = FP32_BYTES * parameter_tensors(setting.shape)
    moments = (2 * FP32_BYTES + remainder) * weights + counters if setting.trains else 0
    shares = ranks if setting.scheme in ("sharded optimizer", "ZeRO-2") else 1
    return {"parameters": setting.weight_bytes * weights, "optimizer_state": math.ceil(moments / shares)}


def fully_sharded(setting: Setting) -> FullySharded:
    """How FSDP divides the model."""
    return FullySharded(
        shape=setting.shape,
        vocab_size=setting.vocab_size,
        ranks=setting.ranks,
        precision="fp32" if setting.precision == "fp32" else "bf16",
        by_block=setting.by_block,
    )


def _passes(setting: Setting) -> Iterator[Use]:
    """The loss, each block's turn in the backward pass, and the update."""
    state, layers = _state(setting), setting.shape.num_layers
    block, copies, head = kept.kept_block(setting), kept.weight_copies(setting), kept.head_kept(setting)
    whole = setting.weight_bytes * setting.weights
    of_head = setting.weight_bytes * (setting.vocab_size + 1) * setting.shape.d_model
    of_block = (whole - 2 * of_head + setting.weight_bytes * setting.shape.d_model) // layers
    at_the_loss, at_a_block = kept.loss_working(setting), kept.block_working(setting)
    gathered = fully_sharded(setting).gathered if setting.scheme == "FSDP" else 0
    input_ = kept.recomputed_block(setting) if setting.passes == "fused" else setting.block.residual
    for index in (None, *reversed(range(layers))):
        gradients = 0 if index is None else of_head + (layers - 1 - index) * of_block
        if setting.passes == "fused" and setting.recomputed:
            # The first blocks are recomputed, and their recomputed tensors are freed after their turn.
            inputs = min(setting.recomputed, layers if index is None else index + 1)
            saved = max(0, (layers if index is None else index + 1) - setting.recomputed)
            saved += 1 if index is not None and index < setting.recomputed else 0
        elif setting.segment:
            inputs = math.ceil(layers / setting.segment) if index is None else index // setting.segment
            saved = 0 if index is None else index % setting.segment + 1
        else:
            inputs, saved = 0, layers if index is None else index + 1
        working = at_the_loss if index is None else at_a_block
        yield Use(
            **state,
            gradients=_held_gradients(setting, gradients, whole),
            activations=saved * block + inputs * input_ + (head if index is None else 0),
            weight_copies=saved * copies + gathered,
            temporaries=working + _travelling(setting, 0 if index is None else layers - index, of_block),
        )
    gradients = 0 if setting.overlap and setting.trains else whole
    yield Use(**state, gradients=_held_gradients(setting, gradients, whole))


def _held_gradients(setting: Setting, so_far: int, whole: int) -> int:
    """Bytes of the gradients on a rank when it has computed `so_far` of all bytes."""
    if setting.overlap:
        return min(so_far, UPDATES_IN_FLIGHT)
    match setting.scheme:
        case "FSDP":
            return round(so_far * fully_sharded(setting).weights / (FP32_BYTES * setting.weights))
        case "ZeRO-2":
            return math.ceil(so_far / setting.ranks)
        case "data parallel" | "sharded optimizer":
            if setting.rebuilds:
                return (1 + setting.first_buckets) * whole
            buckets = bucketed_bytes(setting)
            return min(whole, buckets + round(so_far * (1 - buckets / whole)))
    return so_far


def _travelling(setting: Setting, blocks: int, of_block: int) -> int:
    """Bytes of unsharded gradients in flight at a block's turn, given its distance from the end.

    In FSDP a block's own gradients follow after its temporaries.
    """
    match setting.scheme:
        case "FSDP":
            sharded = fully_sharded(setting)
            units = sharded.units()[:0:-1]
            per_block = 1 if setting.by_block else (len(units) - 1) // setting.shape.num_layers
            last = blocks * per_block
            alive = units[max(0, last - REDUCTIONS) : last]
            each = BYTES[sharded.precision]
            return each * sum(matrix.padded(setting.ranks) for unit in alive for matrix in unit)
        case "ZeRO-2":
            return min(UNITS_IN_FLIGHT, blocks) * of_block
    return 0


def _inference(setting: Setting) -> Use:
    """The largest moment of a block without a graph: in attention, in the feed-forward network, or at the head."""
    d, d_ff, tokens = setting.shape.d_model, setting.shape.d_ff, setting.tokens
    each = FP32_BYTES if setting.precision == "fp32" else BYTES["bf16"]
    stream, narrow, scores = FP32_BYTES * tokens * d, each * tokens * d, each * setting.pairs
    # The sum and its norm; q, k, v, q and k rotated, and all three in the matmuls' layout; the scores and their softmax
    # in fp32, and the scores in bf16.
    attention = 2 * stream + 8 * narrow
    if setting.attention == "plain":
        attention += 2 * FP32_BYTES * setting.pairs + (scores if each < FP32_BYTES else 0)
    feed_forward = 2 * stream + 3 * each * tokens * d_ff
    head = 2 * stream + each * tokens * setting.vocab_size
    copies = setting.shape.num_layers * kept.weight_copies(setting)
    copies += BYTES["bf16"] * setting.vocab_size * d if setting.precision == "autocast" else 0
    return Use(
        parameters=setting.weight_bytes * setting.weights,
        weight_copies=copies,
        temporaries=max(attention, feed_forward, head),
    )


def _forward(setting: Setting) -> Use:
    """The end of a forward pass with a graph: the kept tensors, and the logits, which the loss reads."""
    layers = setting.shape.num_layers
    logits = setting.tokens * setting.vocab_size
    return Use(
        parameters=setting.weight_bytes * setting.weights,
        activations=layers * kept.kept_block(setting) + kept.head_kept(setting),
        weight_copies=layers * kept.weight_copies(setting),
        temporaries=(FP32_BYTES if setting.precision == "fp32" else BYTES["bf16"]) * logits,
    )


def inputs_and_gradients_bytes(heads: int, sequence: int, d: int, precision: str) -> int:
    """Bytes of q, k, v and their gradients, heads · sequence · d each, which exist after any backward pass."""
    return 6 * heads * sequence * d * BYTES[precision]
