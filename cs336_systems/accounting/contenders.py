"""What identifies a contender that trains on several ranks: closed forms of the collectives in a step, and its copies.

The benchmarks hold what they observe to it, and the self-checks the recorded rows. A cell is one of an experiment, or a
row of it: something with `size`, `vocab_size`, `context`, `precision` and `processes`. Bytes are those of the whole
tensor that a collective is about; the closed forms are those of the model in `model.py`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cs336_systems.accounting.contender_memory import WHOLE, Needed
from cs336_systems.accounting.fsdp import FullySharded, Unit
from cs336_systems.accounting.transformer import parameters
from cs336_systems.accounting.units import BYTES, FP32_BYTES, MIB
from cs336_systems.experiments.contender import Contender
from cs336_systems.parallel.limits import ALIGNMENT, EVEN, PATIENCE
from cs336_systems.sizes import parse_size

PASSES, SYNCHRONIZATION, UPDATE = "passes", "synchronization", "update"
PART_OF_STEP = {"forward": PASSES, "backward": PASSES, "synchronization": SYNCHRONIZATION, "optimizer": UPDATE}
"""The part of a step that each phase belongs to; what is started ahead may fall into either of the passes."""
MB = 10**6
COPY_SLACK = 0.25
"""Of all gradients: what lists of sizes, sums of losses and padding may add to what is written."""

Bounds = tuple[float, float]
"""The least and the most; equal where the closed form is exact."""
Found = Mapping[tuple[str, str], tuple[float, float]]
"""By part of a step and collective: calls and bytes."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Messages of one kind in a step."""

    part: str
    """The part of the step in which they are started."""
    what: tuple[str, ...]
    """Collectives, any of them; none where ranks write into each other's memory."""
    calls: Bounds
    """How many messages."""
    bytes: Bounds
    """Of all messages together."""


ClosedForm = Callable[[Any], tuple[Sent, ...]]
"""From a cell to what is sent in a step."""


@dataclass(frozen=True, kw_only=True)
class Declared(Contender):
    """One that trains on several ranks, by what identifies it.

    Its builder is called with a model, this entry, a cell and AdamW's hyperparameters; it returns what the model is
    called as from then on, and an optimizer, or raises `Unavailable`. `contest.builders.own` calls a user's own.
    """

    bucket_mb: int | None = None
    """Its bucket size, or None where it has no buckets, or only one size takes part."""
    sends: ClosedForm = lambda cell: ()
    """What it sends in a step; nothing where each rank is by itself."""
    copies: float = 0.0
    """How often, at the most, it writes all gradients or weights in a step, besides what a rank by itself writes."""
    needed: Needed = WHOLE
    """The memory that it takes on each rank."""
    wire: float = 1.0
    """The share of the gradients' bytes that it sends."""
    tolerance: float = 2.0**-10
    """The error of a gradient that is allowed, relative to the mean over the ranks. What is wrong is off by far more;
    in another order of additions it is off by less."""
    updates: bool = False
    """Whether the optimizer's step is part of its synchronization."""
    autocasts: bool = True
    """Whether bf16 is autocast's, or that of the gathered weights."""

    @property
    def key(self) -> str:
        """What tells its rows apart, in one word."""
        return self.name if self.bucket_mb is None else f"{self.name} {self.bucket_mb}"


def names_of(contenders: Sequence[Contender]) -> tuple[str, ...]:
    """Their names; those of one name with several bucket sizes once."""
    return tuple(dict.fromkeys(declared.name for declared in contenders))


def differences(sends: Sequence[Sent], found: Found) -> Iterator[str]:
    """Where observed collectives are not the declared ones, in words."""
    left = dict(found)
    for sent in sends:
        if not sent.what:
            continue
        parts = [left.pop((sent.part, what), (0.0, 0.0)) for what in sent.what]
        calls, size = (sum(each) for each in zip(*parts, strict=True))
        named = f"{'/'.join(sent.what)} in {sent.part}"
        if not sent.calls[0] <= calls <= sent.calls[1]:
            yield f"{calls:g} × {named}, and {in_words(sent.calls)} declared"
        elif not sent.bytes[0] <= size <= sent.bytes[1]:
            yield f"{size:.0f} bytes by {named}, and {in_words(sent.bytes)} declared"
    for (part, what), (calls, _) in left.items():
        if calls:
            yield f"{calls:g} × {what} in {part}, and none declared"


def in_words(bounds: Bounds) -> str:
    """Bounds, as in "3" or "3 to 5"."""
    least, most = bounds
    return f"{least:.0f}" if least == most else f"{least:.0f} to {most:.0f}"


def total(sends: Sequence[Sent]) -> tuple[Bounds, Bounds]:
    """Bounds of all messages, and of their bytes."""
    calls, sizes = [sent.calls for sent in sends], [sent.bytes for sent in sends]
    return sum_of(calls), sum_of(sizes)


def sum_of(bounds: Sequence[Bounds]) -> Bounds:
    """Bounds of a sum."""
    return sum(least for least, _ in bounds), sum(most for _, most in bounds)


def exactly(part: str, what: str, calls: float, size: float) -> Sent:
    """Messages whose number and bytes are known."""
    return Sent(part=part, what=(what,), calls=(calls, calls), bytes=(size, size))


def weight_bytes(cell: Any) -> list[int]:
    """Bytes of each weight of the model in fp32, the last one first, as gradients arrive."""
    shape, vocabulary = parse_size(cell.size), int(cell.vocab_size)
    square, wide, d_model = shape.d_model**2, shape.d_model * shape.d_ff, shape.d_model
    block = [d_model, *4 * [square], d_model, *3 * [wide]]
    table = vocabulary * d_model
    return [FP32_BYTES * numbers for numbers in (table, d_model, *shape.num_layers * block[::-1], table)]


def groups(sizes: Sequence[int], most: float) -> int:
    """How many buckets of at most so many bytes consecutive tensors fill; a larger one is alone."""
    count, filled = 0, math.inf
    for size in sizes:
        if filled + size > most:
            count, filled = count + 1, 0.0
        filled += size
    return count


def one_by_one(part: str) -> ClosedForm:
    """An all-reduce per weight."""
    return lambda cell: (exactly(part, "all_reduce", len(weight_bytes(cell)), sum(weight_bytes(cell))),)


def at_once(cell: Any) -> tuple[Sent, ...]:
    """One all-reduce of everything."""
    return (exactly(SYNCHRONIZATION, "all_reduce", 1, sum(weight_bytes(cell))),)


def in_buckets(megabytes: float, *, wire: float = 1.0, last_alone: bool = False) -> ClosedForm:
    """An all-reduce per bucket, while the backward pass goes on; `wire` is the share of the bytes that travels."""

    def sends(cell: Any) -> tuple[Sent, ...]:
        sizes = weight_bytes(cell)
        buckets = groups(sizes[:-1], megabytes * MB) + 1 if last_alone else groups(sizes, megabytes * MB)
        return (exactly(PASSES, "all_reduce", buckets, wire * sum(sizes)),)

    return sends


def to_peers(megabytes: float) -> ClosedForm:
    """Weights' gradients in groups, written into the memory of their owners, and back."""

    def sends(cell: Any) -> tuple[Sent, ...]:
        sizes = weight_bytes(cell)
        # Small ones that travel together may lie otherwise than one after another.
        count = groups(sizes, megabytes * MB)
        return (Sent(part=PASSES, what=(), calls=(count - 1, count + 1), bytes=(sum(sizes), sum(sizes))),)

    return sends


def ddp(mebibytes: int, *, broadcasts: bool) -> ClosedForm:
    """PyTorch's buckets: each is closed when it has reached its size, a first one of 1 MiB by default."""

    def sends(cell: Any) -> tuple[Sent, ...]:
        sizes, cap = weight_bytes(cell), mebibytes * MIB
        calls = (math.ceil(sum(sizes) / (cap + max(sizes))), sum(sizes) // cap + 2)
        reduces = Sent(part=PASSES, what=("all_reduce",), calls=calls, bytes=(sum(sizes), sum(sizes)))
        shape = parse_size(cell.size)
        # A sine and a cosine for each pair.
        angles = FP32_BYTES * int(cell.context) * (shape.d_model // shape.num_heads)
        return (reduces, *([exactly(PASSES, "broadcast", 1, angles)] if broadcasts else []))

    return sends


def by_owners(part: str, what: tuple[str, ...], megabytes: float) -> ClosedForm:
    """Whole tensors in buckets that hold at least so much and have parts of one size for all ranks, or one owner."""

    def sends(cell: Any) -> tuple[Sent, ...]:
        sizes, ranks, cap = weight_bytes(cell), int(cell.processes), megabytes * MB
        calls = (math.ceil(sum(sizes) / (PATIENCE * ranks * cap + max(sizes))), ranks * (sum(sizes) // cap + 1))
        most = EVEN * (sum(sizes) + ALIGNMENT * len(sizes))
        return (Sent(part=part, what=what, calls=calls, bytes=(sum(sizes), most)),)

    return sends


def broadcasts(*, views: bool) -> ClosedForm:
    """PyTorch's updated weights: one by one, or each rank's in one message."""

    def sends(cell: Any) -> tuple[Sent, ...]:
        sizes = weight_bytes(cell)
        return (exactly(UPDATE, "broadcast", int(cell.processes) if views else len(sizes), sum(sizes)),)

    return sends


def together(*forms: ClosedForm) -> ClosedForm:
    """What a wrapper and an optimizer send."""
    return lambda cell: tuple(sent for form in forms for sent in form(cell))


def sharded(cell: Any, *, by_block: bool) -> tuple[Sent, ...]:
    """Ours: units are gathered for both passes, but the first and the last for one; norms are reduced by themselves."""
    model = FullySharded(
        shape=parse_size(cell.size),
        vocab_size=int(cell.vocab_size),
        ranks=int(cell.processes),
        precision=cell.precision,
        by_block=by_block,
    )
    units = len(model.units())
    return (
        exactly(PASSES, "all_gather", 2 * units - 2, model.gathered_in_a_step),
        exactly(PASSES, "reduce_scatter", units, model.reduced_in_a_step),
        exactly(SYNCHRONIZATION, "all_reduce", 1, FP32_BYTES * model.replicated),
    )


by_layer, by_block = partial(sharded, by_block=False), partial(sharded, by_block=True)


def fully_shard(cell: Any) -> tuple[Sent, ...]:
    """PyTorch's: each block is a unit that is gathered for both passes, the rest one that is kept in between."""
    shape, vocabulary, ranks = parse_size(cell.size), int(cell.vocab_size), int(cell.processes)
    model = FullySharded(shape=shape, vocab_size=vocabulary, ranks=ranks, precision=cell.precision, by_block=True)
    embedding, *blocks, head = model.units()

    def travels(matrices: Unit, norms: int) -> int:
        padded = sum(matrix.padded(ranks) for matrix in matrices) + norms * ranks * math.ceil(shape.d_model / ranks)
        return BYTES[cell.precision] * padded

    of_blocks, rest = sum(travels(block, 2) for block in blocks), travels((*embedding, *head), 1)
    return (
        exactly(PASSES, "all_gather", 2 * len(blocks) + 1, 2 * of_blocks + rest),
        exactly(PASSES, "reduce_scatter", len(blocks) + 1, of_blocks + rest),
    )


def gradients(cell: Any) -> int:
    """Bytes of all gradients in fp32."""
    return FP32_BYTES * parameters(parse_size(cell.size), int(cell.vocab_size))
