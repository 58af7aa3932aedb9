"""Behaviour of each part of cs336_systems.training with everything else of PyTorch and of this library.

Every field is trained by `test_compatibility`. `python -m tests.training.compatibility` writes docs/compatibility.md.
"""

import copy
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from cs336_systems.attention import flash_attention, plain_attention
from cs336_systems.model import SelfAttention, TransformerLM
from cs336_systems.parallel import (
    BucketedDataParallel,
    FlatDataParallel,
    FullyShardedDataParallel,
    NaiveDataParallel,
    OverlappedDataParallel,
    ShardedOptimizer,
    SymmetricMemoryDataParallel,
    SymmetricMemoryShardedOptimizer,
    UpdateInBackward,
    units_of,
)
from cs336_systems.training import (
    CapturedStep,
    GradientSums,
    MasterAdamW,
    checkpoint_blocks,
    clip_scale,
    fuse,
    linear_cross_entropy,
    packed_linear,
    use_fp8,
)
from tests.support.models import through_a_file
from tests.support.wrappers import by, sharded_by
from tests.verify.training import finish, whole

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
VOCABULARY, CONTEXT, SEQUENCES = 32, 16, 4
ADAMW = {"lr": 0.05, "eps": 1e-2, "weight_decay": 0.1}  # an eps at which updates are not the gradients' signs
SGD = {"lr": 0.5}
MAX_NORM = 0.3
EXACT, NARROW, FP8 = 1e-5, 0.15, 0.2
"""Allowed differences, relative to the whole update, in fp32, bf16 and FP8."""


class Loss(nn.Module):
    """A model with its loss, which wrappers wrap."""

    def __init__(self, model: nn.Module, of: Callable[..., torch.Tensor]):
        super().__init__()
        self.model, self.of = model, of

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.of(self.model, x, y)


def cross_entropy(model, x, y):
    return nn.functional.cross_entropy(model(x).flatten(0, -2).float(), y.flatten())


def fused_cross_entropy(model, x, y):
    x = model.token_embedding(x)
    for block in model.blocks:
        x = block(x)
    return linear_cross_entropy(model.final_norm(x), model.lm_head.weight, y)


def hidden_cross_entropy(model, x, y):
    return linear_cross_entropy(model.hidden(x), model.lm_head.weight, y)


class PackedAttention(SelfAttention):
    """Attention of a user's own that calls packed_linear."""

    def forward(self, x):
        weights = self.query.weight, self.key.weight, self.value.weight
        q, k, v = map(self._split_heads, packed_linear(x, weights).chunk(3, -1))
        attended = self.attention(self.rope(q), self.rope(k), v, is_causal=True)
        return self.output(attended.transpose(-3, -2).flatten(-2))


def pack(model):
    for block in model.blocks:
        block.attention.__class__ = PackedAttention


# Steps of training. Each gets a Training and returns a function of a batch.


def eager(t, update=lambda t: t.optimizer.step()):
    def step(x, y):
        t.optimizer.zero_grad()
        t.loss(x, y).backward()
        finish(t.wrapped)
        update(t)

    return step


def clipped(t):
    if t.part.optimizer is torch.optim.AdamW:  # the reference
        return eager(t, lambda t: (nn.utils.clip_grad_norm_(t.parameters(), MAX_NORM), t.optimizer.step()))
    return eager(t, lambda t: t.optimizer.step(scale=clip_scale(t.parameters(), MAX_NORM)))


def summed(t):
    def step(x, y):
        t.optimizer.zero_grad()
        with GradientSums(t.parameters()) as sums:
            for part in zip(x.chunk(2), y.chunk(2), strict=True):
                (t.loss(*part) / 2).backward()
                finish(t.wrapped)
        t.optimizer.step(gradients=sums.gradients)

    return step


def captured(t):
    model = None if type(t.wrapped) is Loss else t.wrapped
    return CapturedStep(t.loss, t.optimizer, model=model, accumulate=2)


def during_backward(t):
    t.optimizer.during_backward()
    return eager(t)


def in_backward(t):
    def step(x, y):
        t.loss(x, y).backward()
        t.optimizer.finish()

    return step


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the library in a training loop."""

    prepare: Callable[[TransformerLM], Any] = lambda model: None
    loss: Callable[..., torch.Tensor] = cross_entropy
    optimizer: type = torch.optim.SGD
    make_step: Callable[..., Callable[..., Any]] = eager
    dtype: torch.dtype = torch.float32
    tolerance: float = EXACT
    clips: bool = False


PARTS = {
    "MasterAdamW": Part(optimizer=MasterAdamW, dtype=torch.bfloat16, tolerance=NARROW),
    "CapturedStep": Part(optimizer=MasterAdamW, make_step=captured),
    "GradientSums": Part(optimizer=MasterAdamW, make_step=summed, dtype=torch.bfloat16, tolerance=NARROW),
    "clip_scale": Part(optimizer=MasterAdamW, make_step=clipped, clips=True),
    "during_backward": Part(optimizer=MasterAdamW, make_step=during_backward),
    "fuse": Part(prepare=fuse),
    "packed_linear": Part(prepare=pack),
    "checkpoint_blocks": Part(prepare=checkpoint_blocks),
    "use_fp8": Part(prepare=use_fp8, tolerance=FP8),
    "linear_cross_entropy": Part(loss=fused_cross_entropy),
    "UpdateInBackward": Part(optimizer=UpdateInBackward, make_step=in_backward),
    "all fused": Part(
        prepare=lambda model: checkpoint_blocks(fuse(model)),
        loss=hidden_cross_entropy,
        optimizer=UpdateInBackward,
        make_step=in_backward,
        dtype=torch.bfloat16,
        tolerance=NARROW,
    ),
}
"""The last one is `fuse`, `checkpoint_blocks`, `linear_cross_entropy` and UpdateInBackward of a MasterAdamW."""


class Training:
    """A part in a training loop, together with something else."""

    def __init__(self, part: Part, other: "Other"):
        self.part, self.other = part, other
        torch.manual_seed(0)
        self.model = TransformerLM(VOCABULARY, CONTEXT, 16, 1, 2, 32, 1e4, attention=flash_attention).bfloat16()
        self.model.to(part.dtype)
        other.before(self.model)
        part.prepare(self.model)
        other.after(self.model)
        self.wrapped, self.optimizer = self.build()
        self.model = self.wrapped
        while not isinstance(self.model, TransformerLM):
            self.model = getattr(self.model, "module", None) or self.model.model
        other.built(self)
        self.step = part.make_step(self)

    def build(self):
        build, kind = self.other.build, self.part.optimizer
        module = Loss(self.model, self.part.loss)
        if kind is UpdateInBackward:
            of = MasterAdamW if self.part.dtype is torch.bfloat16 else torch.optim.AdamW
            return build(module, lambda _: UpdateInBackward(units_of(self.model), of, **ADAMW))
        return build(module, partial(kind, **(SGD if kind is torch.optim.SGD else ADAMW)))

    def parameters(self):
        return list(self.wrapped.parameters())

    def loss(self, x, y):
        return self.other.loss(self.wrapped, x, y)


# What a part is used together with.


def alone(module, make):
    return module, make(module.parameters())


def block_of(module):
    return type(next(part for name, part in module.named_modules() if name.endswith("blocks.0")))


def fully_sharded(module):
    return FullyShardedDataParallel(module, together=(block_of(module),))


def by_fully_shard(module):
    for part in module.modules():
        if isinstance(part, block_of(module)):
            fully_shard(part)
    return fully_shard(module)


def as_dtensors(module):
    return distribute_module(module, init_device_mesh("cpu", (dist.get_world_size(),)))


def loss_of_dtensors(module, x, y):
    mesh = next(module.parameters()).device_mesh
    x, y = (DTensor.from_local(tensor, mesh, [Replicate()]) for tensor in (x, y))
    return module(x, y).full_tensor()


def attention_of_dtensors(q, k, v, is_causal=False):
    local = flash_attention(*(x.to_local() for x in (q, k, v)), is_causal)
    return DTensor.from_local(local, q.device_mesh, [Replicate()])


def checkpointed(t):
    for block in t.model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def renew(t, wrapped, optimizer):
    t.wrapped, t.optimizer, t.model = wrapped, optimizer, wrapped.model
    t.step = t.part.make_step(t)


def copied(t):
    renew(t, *copy.deepcopy((t.wrapped, t.optimizer)))


def pickled(t):
    renew(t, *through_a_file((t.wrapped, t.optimizer)))


def loaded(t):
    model, optimizer = through_a_file((t.wrapped.state_dict(), t.optimizer.state_dict()))
    t.__dict__.update(Training(t.part, t.other).__dict__)
    t.wrapped.load_state_dict(model)
    t.optimizer.load_state_dict(optimizer)


def badly_loaded(t):
    states = [copy.deepcopy(t.optimizer.state_dict()) for _ in range(3)]
    states[0]["param_groups"][0]["params"].pop()
    states[1]["param_groups"][0].update(amsgrad=True, lr=1.0)
    for state in states[2]["state"].values():
        state["exp_avg"] = torch.ones(5)
    # PyTorch's optimizers accept any hyperparameter and state.
    for state in states if isinstance(t.optimizer, MasterAdamW) else states[:1]:
        with pytest.raises(ValueError, match=r"group|amsgrad=True|allowed: its parameter's"):
            t.optimizer.load_state_dict(state)


def cast(t):
    t.wrapped.to(torch.bfloat16 if t.part.dtype is torch.float32 else torch.float32)


def with_attention(function):
    """Replace attention's kernels by operators of PyTorch, which have second derivatives, or know DTensors."""

    def replace(t):
        for block in t.model.blocks:
            if block.attention.attention is flash_attention:  # checkpoint_blocks needs its own
                block.attention.attention = function

    return replace


def swapped(t):
    for parameter in t.wrapped.parameters():
        parameter.data = parameter.data.clone()


def tied(model):
    model.lm_head.weight = model.token_embedding.weight


def frozen(model):
    model.final_norm.requires_grad_(False)
    model.blocks[0].attention.key.requires_grad_(False)


def replaced(model):
    old = model.lm_head.weight
    torch.manual_seed(1)
    model.lm_head.weight = nn.Parameter(0.3 * torch.randn_like(old))
    query = nn.Linear(16, 16, bias=False).bfloat16().to(old.dtype)
    model.blocks[0].attention.query = query


def gradients_of_torch_func(module, x, y):
    """A loss whose gradients come from torch.func.grad."""
    parameters = dict(module.named_parameters())
    gradients, value = torch.func.grad_and_value(
        lambda given: torch.func.functional_call(module, given, (x, y), tie_weights=True)
    )({name: parameter.detach() for name, parameter in parameters.items()})
    linear = sum((p.float() * gradients[name].float()).sum() for name, p in parameters.items())
    return linear + (value - linear).detach()


def penalized(module, x, y):
    """A loss and a term of its gradients, linear in them: the mean over parts of a batch is the whole batch's."""
    loss = module(x, y)
    gradients = torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad], create_graph=True)
    return loss + 0.1 * sum(gradient.float().sum() for gradient in gradients)


def nothing(_):
    pass


@dataclass(frozen=True)
class Other:
    """A companion of a part: changes of the model, its wrapper, the loss, or something between steps."""

    name: str
    before: Callable[[TransformerLM], Any] = nothing
    after: Callable[[TransformerLM], Any] = nothing
    build: Callable[..., Any] = alone
    built: Callable[[Training], Any] = nothing
    loss: Callable[..., torch.Tensor] = Loss.__call__
    between: Callable[[Training], Any] = nothing
    splits: bool = False
    """Whether each rank has its part of the batch."""
    tolerance: float = 0
    reference: "Other | None" = None
    """The companion of the reference; None: nothing."""


ALONE = Other("alone")


def like_pytorch(name, **options):
    """An entry whose reference is PyTorch in the same way."""
    return Other(name, **options, reference=Other(name, **options))


OTHERS = [
    Other("NaiveDataParallel", build=by(NaiveDataParallel), splits=True),
    Other("FlatDataParallel", build=by(FlatDataParallel), splits=True),
    Other("OverlappedDataParallel", build=by(OverlappedDataParallel), splits=True),
    Other("BucketedDataParallel", build=by(partial(BucketedDataParallel, bucket_size_mb=1)), splits=True),
    Other("SymmetricMemoryDataParallel", build=by(SymmetricMemoryDataParallel), splits=True),
    Other("ShardedGradientsDataParallel", build=sharded_by(ShardedOptimizer, True), splits=True),
    Other("FullyShardedDataParallel", build=by(fully_sharded), splits=True),
    Other("ShardedOptimizer", build=sharded_by(ShardedOptimizer), splits=True),
    Other("SymmetricMemoryShardedOptimizer", build=sharded_by(SymmetricMemoryShardedOptimizer), splits=True),
    Other("torch DDP", build=by(DistributedDataParallel), splits=True),
    Other("fully_shard", build=by(by_fully_shard), splits=True),
    Other("DTensor", built=with_attention(attention_of_dtensors), build=by(as_dtensors), loss=loss_of_dtensors),
    Other("torch.utils.checkpoint", built=checkpointed),
    Other("copy.deepcopy", between=copied),
    Other("torch.save of the objects", between=pickled),
    Other("load_state_dict", between=loaded),
    Other("load_state_dict that fails", between=badly_loaded),
    Other("Module.to(dtype)", between=cast, tolerance=NARROW),
    Other("p.data = ...", between=swapped),
    like_pytorch("tied parameters", before=tied),
    like_pytorch("frozen parameters", before=frozen),
    like_pytorch("replaced parameters and layers", after=replaced),
    Other("torch.func.grad", loss=gradients_of_torch_func),
    like_pytorch("double backward", built=with_attention(plain_attention), loss=penalized),
]


NOT_COMBINED = {
    (part, other)
    for part in ("during_backward", "UpdateInBackward", "all fused")
    for other in ("ShardedGradientsDataParallel", "ShardedOptimizer", "SymmetricMemoryShardedOptimizer")
}
"""Sharded optimizers have no such method, or are both."""


REFUSED = {
    (part, other): entry["sentence"]
    for entry in yaml.safe_load((PAGE.parents[1] / "tests/data/refused.yaml").read_text(encoding="utf-8"))
    for parts, others in entry["refused"]
    for part in parts
    for other in others
}
"""Refused combinations, by part and by companion: a regular expression of the error's sentence."""


def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(VOCABULARY, (2, SEQUENCES, CONTEXT), generator=generator) for _ in range(2)]


def weights(training):
    return torch.cat([whole(p.detach()).flatten().double() for p in training.parameters()])


def train(training, mine=slice(None)):
    """Train for two steps; an error leaves the weights as they were."""
    (x1, y1), (x2, y2) = batches()
    first, second = ((lambda x=x, y=y: training.step(x[mine], y[mine])) for x, y in ((x1, y1), (x2, y2)))
    for action in (first, lambda: training.other.between(training), second):
        before = weights(training)
        try:
            action()
        except Exception:
            assert torch.equal(weights(training), before), "the weights were changed before the error"
            raise
    return weights(training)


@functools.cache
def by_pytorch(optimizer, clips, other):
    """Weights before and after training as PyTorch does, in one process, on the whole batch."""
    training = Training(Part(optimizer=optimizer, make_step=clipped if clips else eager), other)
    begin = weights(training)
    return begin, train(training)


def takes_all_ranks(part, other):
    return other.splits or part.optimizer is UpdateInBackward or other.name == "DTensor"


def difference(part, other):
    """Distance of the final weights from PyTorch's, relative to how far PyTorch's moved."""
    optimizer = torch.optim.SGD if part.optimizer is torch.optim.SGD else torch.optim.AdamW
    begin, end = by_pytorch(optimizer, part.clips, other.reference or ALONE)
    share = SEQUENCES // dist.get_world_size()
    start = dist.get_rank() * share
    splits = other.splits or part.optimizer is UpdateInBackward
    ours = train(Training(part, other), slice(start, start + share) if splits else slice(None))
    return ((ours - end).norm() / (end - begin).norm()).item()


def problem(part_name, other):
    """The error in a field; an empty string if it is right."""
    part, sentence = PARTS[part_name], REFUSED.get((part_name, other.name))
    try:
        off = difference(part, other)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        if sentence and re.match(sentence, str(error)):
            return ""
        return f"{type(error).__name__}: {error}, expected: {sentence or 'the same as PyTorch'}"
    if sentence:
        return f"trained, {off:.2g} from PyTorch; expected: {sentence}"
    return "" if off <= max(part.tolerance, other.tolerance) else f"{off:.2g} from PyTorch"


INTRODUCTION = """# What works together

Each part of `cs336_systems.training` was trained together with everything in the first column, for two steps on two
ranks over Gloo, and compared with the same training in PyTorch. An entry says:

- **same**: the weights equal PyTorch's, up to the rounding of the part's precision;
- a number: refused with the message of that number, and the weights are unchanged;
- –: both are sharded optimizers, or sharded optimizers lack this method.

A loss used with a wrapper is part of the wrapped module. `CapturedStep` gets the wrapper as `model`, and splits the
batch into two micro-batches. `all fused` stands for `fuse`, `checkpoint_blocks`, `linear_cross_entropy` and an
`UpdateInBackward` of a `MasterAdamW`. Weights are bf16 for `all fused`, `MasterAdamW` and `GradientSums`.
`tests/training/compatibility.py` is the source of this page.
"""


def page():
    """The page of the documentation."""
    sentences = list(dict.fromkeys(REFUSED.values()))

    def field(part, other):
        if (part, other.name) in NOT_COMBINED:
            return "–"
        sentence = REFUSED.get((part, other.name))
        return f"[{sentences.index(sentence) + 1}](#messages)" if sentence else "same"

    lines = [INTRODUCTION, f"| with | {' | '.join(f'`{name}`' for name in PARTS)} |", "|---" * (1 + len(PARTS)) + "|"]
    lines += [f"| {other.name} | {' | '.join(field(part, other) for part in PARTS)} |" for other in OTHERS]
    lines += ["", "## Messages", ""]
    lines += [f"{number}. {readable(sentence)}" for number, sentence in enumerate(sentences, start=1)]
    return "\n".join(lines) + "\n"


def readable(sentence):
    return sentence.replace(".*", "…").replace("\\", "")


if __name__ == "__main__":
    PAGE.write_text(page())
