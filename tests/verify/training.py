"""A small Transformer, its batches, and steps of training on one rank and on several."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from cs336_systems.model import TransformerLM

CONTEXT, VOCABULARY = 6, 17


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


def finish(wrapped):
    """Do what comes after a backward pass, for those that ask for it."""
    if hasattr(wrapped, "finish_gradient_synchronization"):
        wrapped.finish_gradient_synchronization()


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
    """SGD that distinguishes a gradient of zero from none, and amplifies no rounding."""
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


def whole(tensor):
    """The rows of all ranks, which all call this, if the tensor is a DTensor; else the tensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
