"""The training step of each rung, on one process or, under this project's wrappers, on several."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from cs336_systems.benchmarks.runner import require_kernels
from cs336_systems.experiments.training_ladder import Rung, TrainingLadder
from cs336_systems.measure.dtypes import dtype_name
from cs336_systems.measure.memory import Unavailable
from cs336_systems.model import ATTENTION, ROPE_THETA, TransformerBlock, TransformerLM, run_blocks
from cs336_systems.nvidia import compute_capability
from cs336_systems.parallel.data_parallel import BucketedDataParallel
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.update_in_backward import UpdateInBackward, units_of
from cs336_systems.sizes import parse_size
from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.captured_step import CapturedStep
from cs336_systems.training.checkpointing import checkpoint_blocks
from cs336_systems.training.compiled_blocks import compile_blocks
from cs336_systems.training.fp8 import use_fp8
from cs336_systems.training.fp8_formats import CAPABILITY
from cs336_systems.training.fused_model import FusedTransformerLM, fuse
from cs336_systems.training.linear_cross_entropy import linear_cross_entropy
from cs336_systems.training_step import precision_context

LEARNING_RATE = 1e-3
BUCKET_MB = 100
"""Gradients that the data-parallel wrapper sends at once, in 10^6 bytes."""

ComputeLoss = Callable[[Tensor, Tensor], Tensor]
Wrapped = tuple[ComputeLoss, Callable[[], object]]
"""Functions that compute a wrapped model's loss, and that end a step after the backward pass, with weights updated."""


class RungStep:
    """A whole training step: forward pass, loss, backward pass and update of AdamW."""

    def __init__(self, rung: Rung, cell: TrainingLadder, tokens: Tensor):
        """Build a model with random weights on the tokens' device; Unavailable if it lacks the rung's feature.

        The tokens, [batch_size, context + 1] integers, may be overwritten between steps.
        """
        require(rung, tokens.device)
        self.rung = rung
        self.inputs, self.targets = tokens[:, :-1], tokens[:, 1:]
        self.model = build_model(rung, cell, tokens.device)
        self.weights_dtype = " ".join(sorted({dtype_name(weight.dtype) for weight in self.model.parameters()}))
        self.loss: Tensor
        self.tail: Callable[..., Tensor] = head_and_loss
        self.forward: ComputeLoss = self.compute_loss
        self.captured: CapturedStep | None = None
        if rung.wrapper:
            self.forward, self.update = WRAP[rung.wrapper](self.model, self.compute_loss)
        self.attention_dtype = observe_attention(self.model, lambda: self.forward(self.inputs, self.targets))
        if rung.wrapper:
            return
        if rung.passes == "compiled":
            compile_blocks(self.model)
            self.tail = torch.compile(head_and_loss)
        optimizer = build_optimizer(rung, self.model)
        self.update = optimizer.step
        if rung.graph:
            self.captured = CapturedStep(self.compute_loss, optimizer, update_during_backward=rung.overlap)
        elif rung.overlap:
            assert isinstance(optimizer, MasterAdamW)
            optimizer.during_backward()

    def __call__(self) -> None:
        """Run the step, or replay it; `loss` becomes the loss before the update."""
        self.loss = self.captured(self.inputs, self.targets) if self.captured else self.eager()

    def eager(self) -> Tensor:
        """Run the step call by call, and return the loss."""
        self.model.zero_grad(set_to_none=True)
        loss = self.forward(self.inputs, self.targets)
        loss.backward()
        self.update()
        return loss.detach()

    def compute_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Compute cross-entropy, with the graph for a backward pass."""
        model = self.model
        # FSDP casts by itself.
        autocast = self.rung.precision == "autocast" and not self.rung.wrapper
        with precision_context("bf16" if autocast else "fp32", inputs.device):
            if isinstance(model, FusedTransformerLM):
                return linear_cross_entropy(model.hidden(inputs), model.lm_head.weight, targets)
            x = run_blocks(model.token_embedding(inputs), model.blocks)
            return self.tail(model.final_norm, model.lm_head, x, targets)

    def prepare(self) -> None:
        """Run as many steps as a graph needs until it is captured; none without a graph."""
        while self.captured and self.captured.graph is None:
            self()


def require(rung: Rung, device: torch.device) -> None:
    """Raise Unavailable if a device does not support a rung."""
    if rung.graph and device.type != "cuda":
        raise Unavailable("a CUDA graph needs a CUDA device")
    if rung.wrapper and not dist.is_initialized():
        raise Unavailable("a wrapper needs several processes; launch them with torchrun")
    if rung.fp8 and compute_capability(device) < CAPABILITY:
        raise Unavailable(f"FP8 matmuls need an NVIDIA GPU of compute capability {CAPABILITY[0]}.{CAPABILITY[1]}")
    if rung.attention == "flash":
        require_kernels(device)


def build_model(rung: Rung, cell: TrainingLadder, device: torch.device) -> TransformerLM:
    """Build the model; only its weights become bf16, never the tables of angles."""
    shape = parse_size(cell.size)
    with device:
        model = TransformerLM(
            vocab_size=cell.vocab_size,
            context_length=cell.context,
            d_model=shape.d_model,
            num_layers=shape.num_layers,
            num_heads=shape.num_heads,
            d_ff=shape.d_ff,
            rope_theta=ROPE_THETA,
            attention=ATTENTION[rung.attention],
        )
    if rung.precision == "bf16":
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    if rung.fp8:
        use_fp8(model, delayed=True)
    if rung.passes == "fused":
        fuse(model)
    if rung.checkpoint:
        checkpoint_blocks(model)
    return model


def build_optimizer(rung: Rung, model: nn.Module) -> Optimizer:
    """Build PyTorch's fused AdamW over fp32 weights if it supports the rung; otherwise ours."""
    if rung.precision != "bf16" and not rung.graph and not rung.overlap:
        return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    return MasterAdamW(model.parameters(), lr=LEARNING_RATE)


def head_and_loss(norm: nn.Module, head: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the next tokens, in fp32, from the blocks' output [batch, context, d_model]."""
    logits = head(norm(x))
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def observe_attention(model: TransformerLM, forward: Callable[[], Tensor]) -> str:
    """Run a forward pass, and return the dtype of the queries in the first block's attention."""
    block, seen = model.blocks[0], []
    block = getattr(block, "_orig_mod", block)  # of a compiled one
    assert isinstance(block, TransformerBlock)
    attention = block.attention.attention

    def observed(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
        seen.append(q.dtype)
        return attention(q, k, v, is_causal=is_causal)

    block.attention.attention = observed
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        forward()
    block.attention.attention = attention
    return dtype_name(seen[0])


def data_parallel(model: TransformerLM, compute_loss: ComputeLoss) -> Wrapped:
    """Gradients are averaged during the backward pass, and each rank updates all weights after it."""
    wrapper = BucketedDataParallel(model, BUCKET_MB)
    optimizer = MasterAdamW(model.parameters(), lr=LEARNING_RATE)
    return compute_loss, partial(synchronize_and_step, wrapper, optimizer)


def sharded_optimizer(model: TransformerLM, compute_loss: ComputeLoss) -> Wrapped:
    """Gradients are averaged, and each rank updates its share of the weights, during the backward pass."""
    update = UpdateInBackward(units_of(model), MasterAdamW, lr=LEARNING_RATE)
    return compute_loss, update.finish


def fsdp(model: TransformerLM, compute_loss: ComputeLoss) -> Wrapped:
    """Each rank keeps its share of all weights in fp32; a block's weights are gathered in bf16 while in use."""
    compile_blocks(model)
    wrapper = FullyShardedDataParallel(model, torch.bfloat16)
    optimizer = torch.optim.AdamW(wrapper.parameters(), lr=LEARNING_RATE, fused=True)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        logits = wrapper(inputs)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return loss, partial(synchronize_and_step, wrapper, optimizer)


def synchronize_and_step(wrapper: BucketedDataParallel | FullyShardedDataParallel, optimizer: Optimizer) -> None:
    """End a step after its backward pass."""
    wrapper.finish_gradient_synchronization()
    optimizer.step()


WRAP = {"data_parallel": data_parallel, "sharded_optimizer": sharded_optimizer, "fsdp": fsdp}
