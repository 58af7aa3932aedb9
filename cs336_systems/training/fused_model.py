"""The project's Transformer with fused passes and packed matmuls, built as such or made of an existing model."""

from collections.abc import Callable, Iterable
from typing import Any, Self

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cs336_systems.model import RMSNorm, RotaryEmbedding, SelfAttention, SwiGLU, TransformerBlock, TransformerLM
from cs336_systems.training.packed_linear import pack_rows, packed_linear
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

    packed_linear = staticmethod(packed_linear)
    """The matmul of x and the packed weights."""

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, d_model] to the same shape."""
        qkv = self.packed_linear(x, self.packed_weights())
        q, k, v = rotate_qkv(qkv, self.rope.cos, self.rope.sin, self.num_heads)
        return self.output(self.attention(q, k, v, is_causal=True).transpose(-3, -2).flatten(-2))

    def packed_weights(self) -> tuple[Tensor, ...]:
        """The weights of the one matmul."""
        return self.query.weight, self.key.weight, self.value.weight


class FusedSwiGLU(SwiGLU):
    """SwiGLU with one matmul for gate and up."""

    packed_linear = staticmethod(packed_linear)
    """The matmul of x and the packed weights."""
    keep_hidden = True
    """Keep the hidden layer for the backward pass, rather than compute it again: see swiglu_linear."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to the same shape."""
        gate_up = self.packed_linear(x, self.packed_weights())
        return self.down(swiglu(gate_up)) if self.keep_hidden else swiglu_linear(gate_up, self.down.weight)

    def packed_weights(self) -> tuple[Tensor, ...]:
        """The weights of the one matmul."""
        return self.gate.weight, self.up.weight


class FusedTransformerBlock(TransformerBlock):
    """A block that leaves its last residual addition to the next norm."""

    returns_sum = False
    """Return one tensor, and None: for a checkpoint, which keeps whatever enters the next block."""

    def forward(  # type: ignore[override]
        self, x: Tensor, delta: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the block on x + delta, [batch, sequence, d_model] each; return its result as two summands."""
        x, normed = add_rms_norm(x, delta, self.attention_norm.weight, self.attention_norm.eps)
        delta = self.attention(normed)
        x, normed = add_rms_norm(x, delta, self.feed_forward_norm.weight, self.feed_forward_norm.eps)
        delta = self.feed_forward(normed)
        return (x + delta, None) if self.returns_sum else (x, delta)


class FusedTransformerLM(TransformerLM):
    """TransformerLM with fused passes and packed matmuls: same arguments, parameters and results up to rounding.

    Each residual addition happens in the norm that follows. q, k and v come from one matmul, as do gate and up; their
    parameters keep their names and lie next to each other in memory.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        fuse(self)

    def hidden(self, token_ids: Tensor) -> Tensor:
        """Map [batch, sequence] integers to what the head, lm_head, gets: [batch, sequence, d_model], normalized.

        For a loss that is computed together with the head's matmul, such as a linear cross-entropy.
        """
        x: Tensor = self.token_embedding(token_ids)
        blocks, segment = list(self.blocks), self.checkpoint_segment
        if not segment:
            x, delta = run_fused_blocks(x, blocks)
            return self._normalize(x, delta)
        for start in range(0, len(blocks), segment):
            # Blocks draw no random numbers, so their state need not be put back for the second run.
            x = checkpoint(
                run_segment, x, blocks[start : start + segment], use_reentrant=False, preserve_rng_state=False
            )
        return self._normalize(x, None)

    def _normalize(self, x: Tensor, delta: Tensor | None) -> Tensor:
        return add_rms_norm(x, delta, self.final_norm.weight, self.final_norm.eps)[1]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Pack weights again that a move or a conversion has torn apart."""
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
        x, delta = block(x, delta)
    return x, delta


def run_segment(x: Tensor, blocks: Iterable[nn.Module]) -> Tensor:
    """Run at least one block on x; return one tensor, since a checkpoint keeps whatever enters the next segment."""
    x, delta = run_fused_blocks(x, blocks)
    return x if delta is None else x + delta


def fuse(model: nn.Module, *, keep_hidden: bool = True) -> FusedTransformerLM:
    """Make a TransformerLM run fused passes and packed matmuls, in place; see FusedTransformerLM.

    Parameters stay the same objects under the same names, so optimizers and state dicts of the model keep working. The
    attention function is kept. Fuse a model before `.to(torch.bfloat16)`: that rounds the angles of rotary embeddings
    in a model that is not fused. Forward hooks of norms, and of the linear maps that became one, are not called.

    For models of other classes, call add_rms_norm, rotate_qkv, packed_linear and swiglu in their forward methods.

    Args:
        model: of the class TransformerLM, all submodules of the classes in cs336_systems.model.
        keep_hidden: keep the feed-forward networks' hidden layers for the backward pass. Otherwise they are computed
            again: 2 d_ff bytes less memory per token and block in bf16, for half a pass over memory more.

    Returns:
        The model.

    Raises:
        TypeError: a module is of another class.
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
    """Move the weights of each packed matmul next to each other, where they are not."""
    for module in model.modules():
        if isinstance(module, FusedSelfAttention | FusedSwiGLU):
            pack_rows(module.packed_weights())


FUSED: dict[type[nn.Module], type[nn.Module]] = {
    TransformerLM: FusedTransformerLM,
    TransformerBlock: FusedTransformerBlock,
    SelfAttention: FusedSelfAttention,
    SwiGLU: FusedSwiGLU,
    RotaryEmbedding: FusedRotaryEmbedding,
}
"""The classes that fuse replaces, and their fused forms."""

KNOWN = (*FUSED, *FUSED.values(), RMSNorm, nn.Linear, nn.Embedding, nn.ModuleList)
"""Classes of modules in models that can be fused."""


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


def _name(x: nn.Module) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"
