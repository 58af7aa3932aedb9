"""Closed forms of a step's collectives on several ranks, which contenders declare as their signatures.

The benchmarks compare their observations with them, and the self-checks the recorded rows. Bytes count the whole tensor
of a collective; the closed forms are for the model in `model.py`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from cs336_systems.accounting.bucketed_bytes import MB, grouped
from cs336_systems.accounting.fsdp import FullySharded, Unit
from cs336_systems.accounting.transformer import parameters, weight_sizes
from cs336_systems.accounting.units import BYTES, FP32_BYTES, MIB
from cs336_systems.limits import ALIGNMENT, EVEN, PATIENCE
from cs336_systems.sizes import parse_size

PASSES, SYNCHRONIZATION, UPDATE = "passes", "synchronization", "update"
PART_OF_STEP = {"forward": PASSES, "backward": PASSES, "synchronization": SYNCHRONIZATION, "optimizer": UPDATE}
"""The part of a step to which each phase belongs; prefetched work may fall into either pass."""
COPY_SLACK = 0.25
"""Share of all gradients by which lists of sizes, sums of losses and padding may increase the written bytes."""

Bounds = tuple[float, float]
"""Minimum and maximum; equal if the closed form is exact."""
Collectives = Mapping[tuple[str, str], tuple[float, float]]
"""Calls and bytes, by part of a step and collective."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Messages of one kind in a step."""

    part: str
    """The part of the step in which they start."""
    what: tuple[str, ...]
    """The possible collectives; none if ranks write into each other's memory."""
    calls: Bounds
    """Number of messages."""
    bytes: Bounds
    """Bytes of all messages together."""


class RanksCell(Protocol):
    """A cell of an experiment on several ranks, or a row of one."""

    @property
    def size(self) -> str: ...  # noqa: D102

    @property
    def vocab_size(self) -> int: ...  # noqa: D102

    @property
    def context(self) -> int: ...  # noqa: D102

    @property
    def precision(self) -> str: ...  # noqa: D102

    @property
    def processes(self) -> int: ...  # noqa: D102


ClosedForm = Callable[[RanksCell], tuple[Sent, ...]]
"""Function from a cell to the messages of a step."""


def differences(sends: Sequence[Sent], observed: Collectives) -> Iterator[str]:
    """Describe how observed collectives differ from the declared ones."""
    left = dict(observed)
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
    """Messages with a known number and size."""
    return Sent(part=part, what=(what,), calls=(calls, calls), bytes=(size, size))


def gradient_sizes(cell: RanksCell) -> list[int]:
    """Bytes of each gradient in fp32, in the order in which the backward pass completes them."""
    return weight_sizes(parse_size(cell.size), int(cell.vocab_size), FP32_BYTES)[::-1]


def one_by_one(part: str) -> ClosedForm:
    """Messages of one all-reduce per weight."""
    return lambda cell: (exactly(part, "all_reduce", len(gradient_sizes(cell)), sum(gradient_sizes(cell))),)


def at_once(cell: RanksCell) -> tuple[Sent, ...]:
    """Message of one all-reduce of all gradients."""
    return (exactly(SYNCHRONIZATION, "all_reduce", 1, sum(gradient_sizes(cell))),)


def in_buckets(megabytes: float) -> ClosedForm:
    """Messages of one all-reduce per bucket during the backward pass."""

    def sends(cell: RanksCell) -> tuple[Sent, ...]:
        sizes = gradient_sizes(cell)
        return (exactly(PASSES, "all_reduce", len(grouped(sizes, megabytes * MB)), sum(sizes)),)

    return sends


def to_peers(megabytes: float) -> ClosedForm:
    """Messages of gradients in groups, written into the memory of their owners, and back."""

    def sends(cell: RanksCell) -> tuple[Sent, ...]:
        sizes = gradient_sizes(cell)
        # Small gradients sent together need not be consecutive.
        count = len(grouped(sizes, megabytes * MB))
        return (Sent(part=PASSES, what=(), calls=(count - 1, count + 1), bytes=(sum(sizes), sum(sizes))),)

    return sends


def ddp(mebibytes: int, *, broadcasts: bool) -> ClosedForm:
    """Messages of PyTorch's buckets: each is closed when it reaches its size, the first at 1 MiB by default."""

    def sends(cell: RanksCell) -> tuple[Sent, ...]:
        sizes, cap = gradient_sizes(cell), mebibytes * MIB
        calls = (math.ceil(sum(sizes) / (cap + max(sizes))), sum(sizes) // cap + 2)
        reduces = Sent(part=PASSES, what=("all_reduce",), calls=calls, bytes=(sum(sizes), sum(sizes)))
        shape = parse_size(cell.size)
        # A sine and a cosine for each pair.
        angles = FP32_BYTES * int(cell.context) * (shape.d_model // shape.num_heads)
        return (reduces, *([exactly(PASSES, "broadcast", 1, angles)] if broadcasts else []))

    return sends


def by_owners(part: str, what: tuple[str, ...], megabytes: float) -> ClosedForm:
    """Messages of whole tensors in buckets of a minimum size, with equal parts for all ranks or a single owner."""

    def sends(cell: RanksCell) -> tuple[Sent, ...]:
        sizes, ranks, cap = gradient_sizes(cell), int(cell.processes), megabytes * MB
        calls = (math.ceil(sum(sizes) / (PATIENCE * ranks * cap + max(sizes))), ranks * (sum(sizes) // cap + 1))
        most = EVEN * (sum(sizes) + ALIGNMENT * len(sizes))
        return (Sent(part=part, what=what, calls=calls, bytes=(sum(sizes), most)),)

    return sends


def broadcasts(*, views: bool) -> ClosedForm:
    """Messages of PyTorch's updated weights: one by one, or each rank's in one message."""

    def sends(cell: RanksCell) -> tuple[Sent, ...]:
        sizes = gradient_sizes(cell)
        return (exactly(UPDATE, "broadcast", int(cell.processes) if views else len(sizes), sum(sizes)),)

    return sends


def together(*forms: ClosedForm) -> ClosedForm:
    """Messages of a wrapper and an optimizer together."""
    return lambda cell: tuple(sent for form in forms for sent in form(cell))


def sharded(cell: RanksCell, *, by_block: bool) -> tuple[Sent, ...]:
    """Messages of our FSDP: units are gathered for both passes, first and last for one; norms are all-reduced."""
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


def fully_shard(cell: RanksCell) -> tuple[Sent, ...]:
    """Messages of `fully_shard`: each block is gathered for both passes, the rest is one unit that stays gathered."""
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


def gradients(cell: RanksCell) -> int:
    """Bytes of all gradients in fp32."""
    return FP32_BYTES * parameters(parse_size(cell.size), int(cell.vocab_size))
