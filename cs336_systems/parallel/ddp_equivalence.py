"""Train with each data-parallel wrapper, and in one process on the whole batch, and compare the weights.

torchrun --standalone --nproc-per-node=2 -m cs336_systems.parallel.ddp_equivalence
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
import tyro
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record

from cs336_systems.model import TransformerLM
from cs336_systems.parallel.data_parallel import (
    BucketedDataParallel,
    DataParallel,
    FlatDataParallel,
    NaiveDataParallel,
    OverlappedDataParallel,
)
from cs336_systems.parallel.process_group import current_rank, process_group
from cs336_systems.parallel.symmetric_memory_data_parallel import SymmetricMemoryDataParallel
from cs336_systems.parallel.variations import Bf16WireDataParallel, GroupedDataParallel, SmallLastDataParallel

STEPS = 5
SEQUENCES_PER_RANK, CONTEXT, VOCABULARY = 4, 6, 17


class OddModel(nn.Module):
    """A language model that is hard on wrappers: tied, frozen, unused and rarely used parameters, of odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 5)
        self.unused = nn.Linear(3, 7)
        self.inner = nn.Linear(5, 13)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.outer = nn.Linear(13, 5, bias=False)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.expert = nn.Linear(5, 5)
        self.head = nn.Linear(5, VOCABULARY)
        self.head.weight = self.embedding.weight

    def forward(self, token_ids: Tensor) -> Tensor:
        """[batch, sequence] integers to logits [batch, sequence, VOCABULARY]."""
        x = self.embedding(token_ids)
        x = x + self.scale * self.outer(torch.tanh(self.inner(x)))
        x = x + self.frozen(x)
        chosen = token_ids[:, 0] == 0  # a rank whose sequences all begin otherwise does not use the expert
        if chosen.any():
            x = torch.where(chosen[:, None, None], self.expert(x), x)
        return self.head(x)


def small_transformer() -> TransformerLM:
    """The project's model with activation checkpointing."""
    return TransformerLM(
        vocab_size=VOCABULARY,
        context_length=CONTEXT,
        d_model=12,
        num_layers=2,
        num_heads=3,
        d_ff=19,
        rope_theta=10_000.0,
        checkpoint_segment=1,
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"odd": OddModel, "transformer": small_transformer}
WRAPPERS: dict[str, Callable[[nn.Module], DataParallel]] = {
    "naive": NaiveDataParallel,
    "flat": FlatDataParallel,
    "overlapped": OverlappedDataParallel,
    "bucketed, 0.4 kB": partial(BucketedDataParallel, bucket_size_mb=0.0004),
    "bucketed, 1 MB": partial(BucketedDataParallel, bucket_size_mb=1),
    "symmetric memory, 40 B": partial(SymmetricMemoryDataParallel, bucket_size_mb=0.00004),
    "symmetric memory": SymmetricMemoryDataParallel,
}
VARIATIONS: dict[str, Callable[[nn.Module], DataParallel]] = {
    "grouped": partial(GroupedDataParallel, bucket_size_mb=0.0004),
    "small last": partial(SmallLastDataParallel, bucket_size_mb=0.0004),
    "bf16 wire": partial(Bf16WireDataParallel, bucket_size_mb=0.0004),
}
"""Experimental wrappers; without `optimizer_overlap`, which needs its optimizer, and `priority`, which needs NCCL."""


@dataclass(frozen=True)
class Comparison:
    """How far the weights of a wrapped model are from those of a model trained in one process."""

    difference: float
    """The largest difference of a weight, relative to the largest weight of its tensor."""
    bound: float
    """The largest difference that rounding explains."""
    same_bits: bool
    """Whether all ranks have the same weights to the bit."""

    @property
    def passed(self) -> bool:
        """Whether the wrapper trains like one process."""
        return self.same_bits and self.difference <= self.bound


def rounding_bound(terms: int, bf16_roundings: int = 0) -> float:
    """The difference that rounding explains, relative to a tensor's largest weight.

    Both runs compute a gradient from the same terms, one per token, and add them in a different order. The sum of n
    terms in any order is off by at most n·u times the sum of their magnitudes, u = 2^-24 in fp32 (Higham 2002,
    section 4.2). That sum, times the learning rate, is taken to be the largest weight; here it is less. The errors of
    the steps add up.

    Where gradients are rounded to bf16, u = 2^-8, each rounding adds its own.
    """
    return STEPS * (terms * 2.0**-24 + bf16_roundings * 2.0**-8)


def compare(
    make_model: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module], device: torch.device
) -> Comparison:
    """Train both ways on the same random data; every rank calls this, and holds the whole batch for comparison.

    Args:
        make_model: a model with random weights, from token ids to logits over VOCABULARY.
        wrap: a data-parallel wrapper.
        device: this rank's.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    batches = make_batches(ranks * SEQUENCES_PER_RANK, device)
    torch.manual_seed(0)
    alone = make_model().to(device)
    train(alone, batches)
    torch.manual_seed(rank)  # Weights that differ: the wrapper has to make them rank 0's, which are those of `alone`.
    wrapped = wrap(make_model().to(device))
    train(wrapped, [batch.chunk(ranks)[rank] for batch in batches])
    # On the wire: once on each rank, and when they are added and divided.
    bf16_roundings = (ranks + 1) * isinstance(wrapped, Bf16WireDataParallel)
    return Comparison(
        difference=relative_difference(wrapped.parameters(), alone.parameters()),
        bound=rounding_bound(batches[0][:, 1:].numel(), bf16_roundings),
        same_bits=same_on_all_ranks(wrapped.parameters()),
    )


def make_batches(sequences: int, device: torch.device) -> list[Tensor]:
    """Random token ids, [sequences, CONTEXT + 1] for each step, the same on all ranks.

    In turn a sequence of the first rank, one of the last and none begins with 0, which asks for OddModel's expert.
    """
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(1, VOCABULARY, (sequences, CONTEXT + 1), generator=generator) for _ in range(STEPS)]
    for batch in batches[0::3]:
        batch[0, 0] = 0
    for batch in batches[1::3]:
        batch[-1, 0] = 0
    return [batch.to(device) for batch in batches]


def train(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """A step of SGD on each batch. Updates linear in the gradients amplify no rounding, as Adam's would.

    With momentum, a parameter goes on moving under a gradient of zero, but stays where it is without a gradient.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        if isinstance(model, DataParallel):
            model.finish_gradient_synchronization()
        optimizer.step()


def relative_difference(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> float:
    """The largest difference between two models' tensors, each relative to the largest value of its tensor."""
    pairs = zip(ours, theirs, strict=True)
    differences = [(mine - other).abs().max() / other.abs().max() for mine, other in pairs]
    return torch.stack(differences).max().item()  # unlike Python's max, never loses a NaN


def same_on_all_ranks(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> bool:
    """Whether all ranks of `group` (None: all) hold the same bits in tensors of a common dtype."""
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    digests = [""] * dist.get_world_size(group)
    mine = hashlib.sha256(flat.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()
    dist.all_gather_object(digests, mine, group=group)
    return len(set(digests)) == 1


def format_comparisons(comparisons: Sequence[tuple[str, str, Comparison]]) -> str:
    """A table, one line for each model and wrapper."""
    lines = [f"{'model':<12} {'wrapper':<20} {'difference':>10} {'bound':>8}  {'same bits':<9}  verdict"]
    for model, wrapper, found in comparisons:
        lines.append(
            f"{model:<12} {wrapper:<20} {found.difference:>10.1e} {found.bound:>8.1e}  "
            f"{'yes' if found.same_bits else 'no':<9}  {'passed' if found.passed else 'FAILED'}"
        )
    return "\n".join(lines)


@record
def main(device: Literal["auto", "cpu", "cuda"] = "auto") -> None:
    """Compare all wrappers' training with that of one process.

    Args:
        device: cuda: one GPU per process, over NCCL; cpu: over Gloo; auto: cuda if there are enough GPUs.
    """
    try:
        rank = current_rank()
    except ValueError as error:
        sys.exit(f"ddp_equivalence: {error}")
    if rank.processes == 1:
        sys.exit("ddp_equivalence needs processes to compare: launch it with torchrun --nproc-per-node=2")
    if device == "auto":
        device = "cuda" if torch.cuda.device_count() >= rank.processes else "cpu"
    own = torch.device("cuda", rank.local_number) if device == "cuda" else torch.device("cpu")
    with process_group(rank, own):
        comparisons = [
            (model, wrapper, compare(make_model, wrap, own))
            for model, make_model in MODELS.items()
            for wrapper, wrap in (WRAPPERS | VARIATIONS).items()
        ]
        backend = dist.get_backend()
    if rank.number == 0:
        print(f"{STEPS} steps of {rank.processes} processes over {backend}, against one process on the whole batch")
        print(format_comparisons(comparisons))
    if not all(found.passed for *_, found in comparisons):
        sys.exit(1)


if __name__ == "__main__":
    tyro.cli(main)
