"""Training in one process, and how far from it the weights of several end."""

import inspect
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from cs336_systems.model import TransformerLM

CONTEXT, VOCABULARY = 6, 17
STEPS = 3
TOLERANCE = 2.0**-10
"""Of the way that a weight has gone: what other orders of adding up come to in fp32, many times over."""
SIZES_MB = (100, 0.0004)
"""One bucket, and many."""


class OddModel(nn.Module):
    """A language model that is hard on wrappers: tied, frozen and unused parameters, of odd sizes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 5)
        self.unused = nn.Linear(3, 7)
        self.inner = nn.Linear(5, 13)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.outer = nn.Linear(13, 5, bias=False)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.head = nn.Linear(5, VOCABULARY)
        self.head.weight = self.embedding.weight

    def forward(self, token_ids):
        x = self.embedding(token_ids)
        x = x + self.scale * self.outer(torch.tanh(self.inner(x)))
        return self.head(x + self.frozen(x))


def small_transformer(model=TransformerLM, **options):
    """The project's model, or one with its interface."""
    return model(
        vocab_size=VOCABULARY,
        context_length=CONTEXT,
        d_model=12,
        num_layers=3,
        num_heads=3,
        d_ff=19,
        rope_theta=10_000.0,
        **options,
    )


MODELS = {"odd": OddModel, "transformer": partial(small_transformer, checkpoint_segment=1)}


def wrappers(found):
    """Ways to wrap a module: one, or with buckets one for each size, and what to call them."""
    if "bucket_size_mb" not in inspect.signature(found).parameters:
        return {"": found}
    return {
        f" with bucket_size_mb={size}": lambda module, size=size: found(module, bucket_size_mb=size)
        for size in SIZES_MB
    }


def finish(wrapped):
    """Do what comes after a backward pass, for those that ask for it."""
    if hasattr(wrapped, "finish_gradient_synchronization"):
        wrapped.finish_gradient_synchronization()


def make_model(model, seed, device):
    torch.manual_seed(seed)
    return MODELS[model]().to(device)


def make_batches(steps, device):
    """Random token ids [sequences, CONTEXT + 1], the same on all ranks."""
    generator = torch.Generator().manual_seed(0)
    sizes = (3 * dist.get_world_size(), CONTEXT + 1)
    return [torch.randint(VOCABULARY, sizes, generator=generator).to(device) for _ in range(steps)]


def own_parts(batches):
    """This rank's sequences of each batch."""
    return [batch.chunk(dist.get_world_size())[dist.get_rank()] for batch in batches]


def backward(model, batch):
    logits = model(batch[:, :-1]).float()
    nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()


def momentum(parameters):
    """SGD that tells a gradient of zero from none, and amplifies no rounding."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def take_step(model, optimizer, x):
    """A step that makes outputs small."""
    optimizer.zero_grad()
    model(x).square().mean().backward()
    finish(model)
    optimizer.step()


def train(model, batches, optimizer=None, set_to_none=True):
    optimizer = optimizer or momentum(model.parameters())
    for batch in batches:
        optimizer.zero_grad(set_to_none)
        backward(model, batch)
        finish(model)
        optimizer.step()


def weights_of(module):
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def whole(tensor):
    """The rows of all ranks, all of which call this, if the tensor is a DTensor; else the tensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_weights(wrapped, names):
    """The weights of a wrapped model, whole and by their names in the module, whichever way it gives them."""
    for method in ("gather_full_parameters", "gather_full_params"):
        if hasattr(wrapped, method):
            found = dict(getattr(wrapped, method)())
            break
    else:
        found = {name: whole(p.detach()) for name, p in wrapped.named_parameters()}
    found = {name.removeprefix("module."): tensor for name, tensor in found.items()}
    missing = sorted(set(names) - set(found))
    assert not missing, f"it has no weight {missing[0]}; it has {', '.join(sorted(found))}"
    return found


def require_same_way(found, right, before, what, tolerance=TOLERANCE):
    """Assert that all weights have gone the right way; else name the one that is farthest off, and by how much."""
    errors = {}
    for name, weight in right.items():
        shape = list(found[name].shape)
        assert shape == list(weight.shape), f"{what} {name} is {shape}, not {list(weight.shape)}"
        way, off = (weight - before[name]).norm(), (found[name].detach() - weight).norm()
        assert way > 0 or off == 0, f"{what} {name} has moved, which has no gradient"
        errors[name] = (off / way).nan_to_num(nan=torch.inf).item() if way > 0 else 0.0
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] <= tolerance, (
        f"{what} {worst} {list(right[worst].shape)} is off from one process's by {errors[worst]:.2g} of its way, "
        f"on rank {dist.get_rank()}"
    )
