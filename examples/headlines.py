"""Training steps on several GPUs, with plain PyTorch modules and the library's public API.

    torchrun --standalone --nproc-per-node=2 examples/headlines.py > headlines.csv

Contenders take turns in one process, in an order that rotates from round to round. Each turn begins with a new model
and a warm-up. A step's time is from the end of the previous step to its own, on the slowest rank; the host may run
ahead, as in any training loop. `--size tiny` runs on CPUs in seconds.
"""

import argparse
import csv
import gc
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from cs336_systems.parallel import (
    BucketedDataParallel,
    FullyShardedDataParallel,
    SymmetricMemoryDataParallel,
    SymmetricMemoryShardedOptimizer,
)
from cs336_systems.training import CapturedStep, compile_blocks

WARMUP = 4
BASELINE = "no communication"


@dataclass(frozen=True)
class Shape:
    """A language model, and its batch on each rank."""

    width: int
    inner: int
    layers: int
    heads: int
    batch: int
    context: int
    words: int = 10_000


TINY = Shape(32, 64, 2, 2, 2, 16, words=64)
XL = Shape(1600, 6400, 48, 25, 4, 512)
LARGEST = Shape(2560, 10240, 32, 32, 4, 1024)


class Block(nn.Module):
    """Causal attention and a gated feed-forward network, each behind a norm."""

    def __init__(self, width: int, inner: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, context, width] to the same shape."""
        y = self.attention_norm(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = x + self.output(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.feed_forward_norm(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class LanguageModel(nn.Module):
    """A Transformer with learned positions."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.words, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.inner, shape.heads) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, context] integers to logits, [batch, context, words]."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


Build = Callable[[LanguageModel], tuple[nn.Module, Optimizer]]


def adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Make PyTorch's fused AdamW, which can be captured."""
    parameters = list(parameters)
    return AdamW(parameters, lr=1e-4, fused=True, capturable=parameters[0].is_cuda)


def wrapped(wrap: Callable[..., nn.Module], **options: Any) -> Build:
    """Make a contender from a wrapper."""

    def build(net: LanguageModel) -> tuple[nn.Module, Optimizer]:
        model = wrap(net, **options)
        return model, adamw(model.parameters())

    return build


def sharded_optimizer(net: LanguageModel) -> tuple[nn.Module, Optimizer]:
    """Average gradients, and let each rank update its share of the weights."""
    model = SymmetricMemoryDataParallel(net)
    return model, SymmetricMemoryShardedOptimizer(model.parameters(), AdamW, lr=1e-4, fused=True)


def by_block(net: LanguageModel, dtype: torch.dtype | None, *, prefetch: bool, symmetric: bool = False) -> nn.Module:
    """Shard a model with fully_shard, block by block."""
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    blocks: list[Any] = [fully_shard(block, mp_policy=policy) for block in net.blocks]
    root: Any = fully_shard(net, mp_policy=policy)
    for number, block in enumerate(blocks if prefetch else ()):
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 3])
        block.set_modules_to_backward_prefetch(blocks[max(0, number - 2) : number][::-1])
    for module in (*blocks, root) if symmetric else ():
        module.set_symm_mem_for_comm()
    return root


TUNED = {"gradient_as_bucket_view": True, "bucket_cap_mb": 100, "static_graph": True}
REPLICATED = {
    BASELINE: wrapped(lambda net: net),
    "torch DDP": wrapped(DistributedDataParallel, **TUNED),
    "BucketedDataParallel": wrapped(BucketedDataParallel),
    "SymmetricMemoryDataParallel": wrapped(SymmetricMemoryDataParallel),
}


def sharded(dtype: torch.dtype | None) -> dict[str, Build]:
    """Contenders that shard weights and compute in a dtype."""
    ours = partial(wrapped, FullyShardedDataParallel, compute_dtype=dtype, together=(Block,))
    return {
        "fully_shard": wrapped(by_block, dtype=dtype, prefetch=False),
        "fully_shard, prefetch": wrapped(by_block, dtype=dtype, prefetch=True),
        "fully_shard, symmetric memory": wrapped(by_block, dtype=dtype, prefetch=True, symmetric=True),
        "FullyShardedDataParallel": ours(),
        "FullyShardedDataParallel, symmetric memory": ours(symmetric_memory=True),
    }


@dataclass(frozen=True)
class Part:
    """Contenders that are compared with each other."""

    shape: Shape
    contenders: Mapping[str, Build]
    autocast: bool
    """Whether unsharded contenders use bf16 autocast."""
    captured: tuple[bool, ...] = (False,)


ALONE = {BASELINE: REPLICATED[BASELINE]}
FP32 = {**REPLICATED, "sharded optimizer": sharded_optimizer, **sharded(None)}
PARTS = {
    "bf16": Part(XL, REPLICATED, autocast=True, captured=(False, True)),
    "sharded": Part(LARGEST, {**ALONE, **sharded(torch.bfloat16)}, autocast=True),
    "fp32": Part(XL, {name: build for name, build in FP32.items() if "shard, " not in name}, autocast=False),
}


Step = Callable[[], object]


def make_step(part: Part, shape: Shape, name: str, captured: bool, device: torch.device) -> Step:
    """Build a contender's training step, on a new model and one batch."""
    torch.manual_seed(0)
    with device:
        net = LanguageModel(shape)
        tokens = torch.randint(shape.words, (shape.batch, shape.context + 1))
    if device.type == "cuda":
        compile_blocks(net)
    model, optimizer = part.contenders[name](net)
    casts = part.autocast and name in REPLICATED

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=casts):
            logits = model(x)
        return cross_entropy(logits.flatten(0, 1).float(), y.flatten())

    def eager(x: Tensor, y: Tensor) -> None:
        loss(x, y).backward()
        if finish := getattr(model, "finish_gradient_synchronization", None):
            finish()
        optimizer.step()
        optimizer.zero_grad()

    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if not captured:
        return partial(eager, inputs, targets)
    step = CapturedStep(loss, optimizer, model=None if model is net else model)
    while device.type == "cuda" and step.graph is None:
        step(inputs, targets)
    return partial(step, inputs, targets)


def seconds_of(step: Step, device: torch.device, steps: int) -> list[float]:
    """Seconds between the ends of consecutive steps after a warm-up, on the slowest rank."""
    for _ in range(WARMUP):
        step()
    ends = [now(device)]
    for _ in range(steps):
        step()
        ends.append(now(device))
    if device.type == "cuda":
        torch.cuda.synchronize()
    laps = [seconds_between(*pair) for pair in itertools.pairwise(ends)]
    slowest = torch.tensor(laps, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist()


def now(device: torch.device) -> Any:
    """The moment when the device has finished its queued work."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(begin: Any, end: Any) -> float:
    """Seconds between two moments."""
    return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3


def turn(make: Callable[[], Step], device: torch.device, steps: int) -> tuple[list[float], str]:
    """Seconds of a contender's steps, or why there are none, which is the same on all ranks."""
    try:
        return seconds_of(make(), device, steps), ""
    except (RuntimeError, ValueError, AttributeError, TypeError) as error:  # out of memory is a RuntimeError
        return [], f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


COLUMNS = ("part", "contender", "mode", "n", "median_ms", "p20_ms", "p80_ms", "reason")


def measure(name: str, device: torch.device, options: argparse.Namespace) -> Iterator[list[str]]:
    """The rows of a part's contenders, measured in rounds."""
    part = PARTS[name]
    shape = TINY if options.size == "tiny" else part.shape
    cells = [(contender, captured) for captured in part.captured for contender in part.contenders]
    seconds: dict[tuple[str, bool], list[float]] = {cell: [] for cell in cells}
    reasons = dict.fromkeys(cells, "")
    for number in range(options.rounds):
        for cell in cells[number % len(cells) :] + cells[: number % len(cells)]:
            if not reasons[cell]:
                more, reasons[cell] = turn(partial(make_step, part, shape, *cell, device), device, options.steps)
                seconds[cell] += more
    for cell, laps in seconds.items():
        contender, captured = cell
        low, *_, high = statistics.quantiles(laps, n=5, method="inclusive") if laps else ("", "")
        numbers = [f"{1e3 * lap:.2f}" for lap in (statistics.median(laps), low, high)] if laps else ["", "", ""]
        yield [name, contender, "captured" if captured else "eager", str(len(laps)), *numbers, reasons[cell]]


def main() -> None:
    """Measure, and print a CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="timed in each turn")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream())  # DistributedDataParallel cannot be captured on the default one
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    for row in itertools.chain([COLUMNS], *(measure(name, device, options) for name in options.parts)):
        if dist.get_rank() == 0:
            csv.writer(sys.stdout).writerow(row)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
