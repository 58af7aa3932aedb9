"""The project's Transformer with fused passes and packed matmuls, built directly or from an existing model."""

from collections.abc import Callable, Iterable
from typing import Any, Self

from torch import Tensor, nn

from cs336_systems.model import (
    RMSNorm,
    RotaryEmbedding,
    SelfAttention,
    SwiGLU,
    TransformerBlock,
    TransformerLM,
    run_in_segments,
)
from cs336_systems.training.dispatch import needs_operators
from cs336_systems.training.fp8 import Fp8Linear, linear
from cs336_systems.training.fp8_operands import rounds_in_kernels
from cs336_systems.training.fp8_swiglu import Scaling, fp8_swiglu
from cs336_systems.training.packed_linear import can_move, pack_rows, packed_linear
from cs336_systems.training.rms_norm import add_rms_norm
from cs336_systems.training.rope import rotate_qkv
from cs336_systems.training.swiglu import swiglu, swiglu_linear


class FusedRotaryEmbedding(RotaryEmbedding):
    """Tables of angles that stay in fp32 when the model is converted to another dtype."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the tables where fn moves tensors, in their dtype."""
        for name, table in list(self.named_buffers()):
            moved = fn(table)
            setattr(self, name, moved if moved.dtype == table.dtype else table.to(moved.device))
        return self


class FusedSelfAttention(SelfAttention):
    """Causal self-attention with one matmul for q, k and v, which are rotated in place."""

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, d_model] to the same shape."""
        qkv = packed(x, self.query, self.key, self.value) if is_bare(self.rope, FusedRotaryEmbedding) else None
        if qkv is None:
            return super().forward(x)
        q, k, v = rotate_qkv(qkv, self.rope.cos, self.rope.sin, self.num_heads)
        return self.output(self.attention(q, k, v, is_causal=True).transpose(-3, -2).flatten(-2))

    def packed_layers(self) -> tuple[nn.Module, ...]:
        """The layers of the one matmul."""
        return self.query, self.key, self.value


class FusedSwiGLU(SwiGLU):
    """SwiGLU with one matmul for gate and up."""

    keep_hidden = True
    """Keep the hidden layer for the backward pass instead of recomputing it: see swiglu_linear."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to the same shape."""
        if layers := self._fp8_layers(x):
            gate, up, down = layers
            scaling = Scaling(gate.options.gradient_dtype, gate.begin(x), down.begin(x))
            return fp8_swiglu(x, (gate.weight, up.weight), down.weight, scaling)
        gate_up = packed(x, self.gate, self.up)
        if gate_up is None:
            return super().forward(x)
        if self.keep_hidden or not is_bare(self.down, nn.Linear):
            return self.down(swiglu(gate_up))
        return swiglu_linear(gate_up, self.down.weight)

    def packed_layers(self) -> tuple[nn.Module, ...]:
        """The layers of the one matmul."""
        return self.gate, self.up

    def _fp8_layers(self, x: Tensor) -> list[Fp8Linear]:
        """Gate, up and down, if all train in FP8 alike, on kernels, which then round the activation in its pass."""
        layers = [m for m in (self.gate, self.up, self.down) if isinstance(m, Fp8Linear) and is_bare(m, Fp8Linear)]
        if len(layers) < 3 or not rounds_in_kernels(x):
            return []
        alike = {layer.options for layer in layers} == {layers[0].options} and not layers[0].options.rowwise
        weights = [layer.weight for layer in layers]
        trained = all(w.requires_grad and w.dtype == x.dtype for w in weights)
        return layers if alike and trained and not needs_operators(*weights) else []


class FusedTransformerBlock(TransformerBlock):
    """A block that leaves its last residual addition to the next norm."""

    returns_sum = False
    """Return one tensor, and None: for a checkpoint, which keeps the next block's inputs."""

    def forward(  # type: ignore[override]
        self, x: Tensor, delta: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the block on x + delta, [batch, sequence, d_model] each; return its result as two summands."""
        x, normed = add_and_normalize(x, delta, self.attention_norm)
        delta = self.attention(normed)
        x, normed = add_and_normalize(x, delta, self.feed_forward_norm)
        delta = self.feed_forward(normed)
        return (x + delta, None) if self.returns_sum else (x, delta)


def is_bare(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling a module runs only its class's forward method: no hook, no adapter, no bias."""
    hooks = module._forward_pre_hooks or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
    return (
        type(module) is kind
        and not hooks
        and "forward" not in module.__dict__
        and module._parameters.get("bias") is None
    )


def packed(x: Tensor, *layers: Any) -> Tensor | None:
    """Compute the outputs of similar linear layers as one matmul; None if a layer has to be called separately."""
    first, kind = layers[0], type(layers[0])
    if kind not in (nn.Linear, Fp8Linear) or not all(is_bare(layer, kind) for layer in layers):
        return None
    weights = [layer._parameters.get("weight") for layer in layers]
    kinds = {weight is not None and (weight.shape, weight.dtype) for weight in weights}
    if len(kinds) > 1 or False in kinds:
        return None
    if kind is nn.Linear:
        return packed_linear(x, weights)
    if any(layer.options != first.options for layer in layers):
        return None
    return linear(x, weights, first.options, first.begin(x))


def add_and_normalize(x: Tensor, delta: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
    """Compute x + delta and its norm, in one pass if the norm is an RMSNorm without hooks."""
    if is_bare(norm, RMSNorm):
        return add_rms_norm(x, delta, norm.weight, norm.eps)
    x = x if delta is None else x + delta
    return x, norm(x)


class FusedTransformerLM(TransformerLM):
    """TransformerLM with fused passes and packed matmuls: same arguments, parameters and results up to rounding.

    Each residual addition happens in the norm that follows. One matmul computes q, k and v, and another gate and up;
    their parameters keep their names and are adjacent in memory.
    """

    forward_methods = ("hidden",)
    """Methods that a FullyShardedDataParallel of the model runs like its forward method."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        fuse(self)

    def hidden(self, token_ids: Tensor) -> Tensor:
        """Map [batch, sequence] integers to the head's input: [batch, sequence, d_model], normalized.

        For a loss that is computed together with the head's matmul, such as a linear cross-entropy.
        """
        x: Tensor = self.token_embedding(token_ids)
        if self.checkpoint_segment:
            x = run_in_segments(run_segment, x, list(self.blocks), self.checkpoint_segment)
            return self._normalize(x, None)
        return self._normalize(*run_fused_blocks(x, self.blocks))

    def _normalize(self, x: Tensor, delta: Tensor | None) -> Tensor:
        return add_and_normalize(x, delta, self.final_norm)[1]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Pack weights again after a move or a conversion has separated them."""
        super()._apply(fn, recurse)
        pack(self)
        return self

    def forward(self, token_ids: Tensor) -> Tensor:
        """[batch, sequence] integers to logits [batch, sequence, vocab_size]."""
        return self.lm_head(self.hidden(token_ids))


def run_fused_blocks(x: Tensor, blocks: Iterable[nn.Module]) -> tuple[Tensor, Tensor | None]:
    """Run blocks one after another on x, [batch, sequence, d_model]; return the result as two summands."""
    delta: Tensor | None = None
    for block in blocks:
        if isinstance(getattr(block, "_orig_mod", block), FusedTransformerBlock):
            x, delta = block(x, delta)
        else:  # replaced, or wrapped
            result = block(x if delta is None else x + delta)
            x, delta = result if isinstance(result, tuple) else (result, None)
    return x, delta


def run_segment(x: Tensor, blocks: Iterable[nn.Module]) -> Tensor:
    """Run at least one block on x; return one tensor, since a checkpoint keeps the next segment's inputs."""
    x, delta = run_fused_blocks(x, blocks)
    return x if delta is None else x + delta


def fuse(model: nn.Module, *, keep_hidden: bool = True) -> FusedTransformerLM:
    """Make a TransformerLM run fused passes and packed matmuls, in place; see FusedTransformerLM.

    Parameters stay the same objects under the same names, so optimizers and state dicts of the model keep working. The
    attention function is kept. Fuse a model before `.to(torch.bfloat16)`, which would round the angles of rotary
    embeddings in an unfused model. Layers may be replaced, adapted or parametrized afterwards, and hooks registered:
    such a layer is then called separately, unfused.

    For models of other classes, call add_rms_norm, rotate_qkv, packed_linear and swiglu in their forward methods.

    Args:
        model: a TransformerLM whose submodules are all classes of cs336_systems.model.
        keep_hidden: keep the feed-forward networks' hidden layers for the backward pass. Otherwise they are recomputed,
            which saves 2 d_ff bytes per token and block in bf16, and writes 2 d_ff more bytes.

    Returns:
        The model.

    Raises:
        TypeError: a module is of another class, or has hooks or its own forward method.
    """
    _check(model)
    for module in model.modules():
        module.__class__ = FUSED.get(type(module), type(module))
        if isinstance(module, FusedSwiGLU):
            module.keep_hidden = keep_hidden
    assert isinstance(model, FusedTransformerLM)
    pack(model)
    return model


def pack(model: nn.Module) -> None:
    """Move the weights of each packed matmul next to each other, if possible and not already done."""
    for module in model.modules():
        if isinstance(module, FusedSelfAttention | FusedSwiGLU):
            weights: list[Any] = [getattr(layer, "weight", None) for layer in module.packed_layers()]
            if can_move(weights):
                pack_rows(weights)


FUSED: dict[type[nn.Module], type[nn.Module]] = {
    TransformerLM: FusedTransformerLM,
    TransformerBlock: FusedTransformerBlock,
    SelfAttention: FusedSelfAttention,
    SwiGLU: FusedSwiGLU,
    RotaryEmbedding: FusedRotaryEmbedding,
}

KNOWN = (*FUSED, *FUSED.values(), RMSNorm, nn.Linear, Fp8Linear, nn.Embedding, nn.ModuleList)


def _check(model: nn.Module) -> None:
    """Refuse a model whose forward pass may differ from TransformerLM's."""
    if not isinstance(model, TransformerLM):
        raise TypeError(f"fuse accepts cs336_systems.model.TransformerLM, got {_name(model)}.")
    for path, module in model.named_modules():
        if type(module) not in KNOWN:
            raise TypeError(
                f"fuse replaces the classes of cs336_systems.model, but {path or 'the model'} is {_name(module)}."
            )
        if isinstance(module, nn.Linear) and module.bias is not None:
            raise TypeError(f"fuse accepts linear maps without a bias, but {path} has one.")
        if not is_bare(module, type(module)):
            raise TypeError(
                f"fuse changes how modules are called, but {path or 'the model'} has a hook or its own forward "
                "method; allowed: fusing first."
            )


def _name(x: nn.Module) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"
