"""Closed form of the tensors that a Transformer block of `model.py` saves for its backward pass.

A storage that several operators save is listed once, under the first. The lists apply to more than one head and more
than one token: with one, some copies become views.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from cs336_systems.accounting.transformer import block_parameters, residual_bytes
from cs336_systems.accounting.units import BYTES, FP32_BYTES
from cs336_systems.sizes import ModelShape

DTYPE = {"fp32": "float32", "bf16": "bfloat16"}
DTYPE_BYTES = {"float32": FP32_BYTES, "bfloat16": BYTES["bf16"], "bool": 1}


def describe_tensor(dtype: str, shape: tuple[int, ...]) -> str:
    """Format a tensor's dtype and shape.

    >>> describe_tensor("float32", (4, 128))
    'float32 4×128'
    """
    return f"{dtype} {'×'.join(map(str, shape))}"


@dataclass(frozen=True)
class Saved:
    """One tensor that an operator saves for its backward pass."""

    range: str
    """The module that saves the tensor, relative to the block."""
    operator: str
    """The function of PyTorch that saves it; empty for a custom autograd function."""
    dtype: str
    """The dtype's name in PyTorch."""
    shape: tuple[int, ...]
    """The shape saved by the operator: matmuls fold their leading axes."""
    meaning: str
    """A description of the tensor."""

    @property
    def tensor(self) -> str:
        """Dtype and shape as text."""
        return describe_tensor(self.dtype, self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return DTYPE_BYTES[self.dtype] * prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class BlockActivations:
    """Activations of a block for a batch."""

    shape: ModelShape
    batch_size: int
    """Sequences."""
    context: int
    """Tokens per sequence."""
    precision: str
    """fp32, or bf16 for autocast over fp32 weights, where the residual stream and the norms stay in fp32."""
    attention: str
    """plain or flash."""
    on_gpu: bool = True
    """Under autocast softmax computes in fp32 on a GPU, in bf16 on a CPU."""

    @property
    def tokens(self) -> int:
        """Tokens in the batch."""
        return self.batch_size * self.context

    @property
    def residual(self) -> int:
        """Bytes of the residual stream, [batch, context, d_model] in fp32."""
        return residual_bytes(self.shape, self.batch_size, self.context)

    @property
    def saved_bytes(self) -> int:
        """Bytes of all tensors that the block saves, including its input but not the weights."""
        return sum(tensor.bytes for tensor in self.saved())

    @property
    def weight_copies(self) -> int:
        """Bytes of the matrices' bf16 copies that autocast makes and the matmuls save; 0 in fp32."""
        return self.weight_copies_of(4 * self.shape.d_model + 3 * self.shape.d_ff)

    @property
    def parameter_gradients(self) -> int:
        """Bytes of the gradients of the block's weights, in the weights' dtype."""
        return FP32_BYTES * block_parameters(self.shape)

    def weight_copies_of(self, width: int) -> int:
        """Bytes of autocast's copies of matrices with d_model by `width` elements in total; 0 in fp32."""
        return BYTES["bf16"] * self.shape.d_model * width if self.precision == "bf16" else 0

    @property
    def softmax_dtype(self) -> str:
        """Dtype of the attention weights computed by softmax."""
        return DTYPE["fp32" if self.on_gpu else self.precision]

    def saved(self) -> list[Saved]:
        """All tensors that the block saves, in the order of its forward pass."""
        attention = self._flash() if self.attention == "flash" else self._plain()
        return [
            *self._norm("attention_norm", "the block's input"),
            *self._inputs(("attention.query", "attention.key", "attention.value"), "normalized input"),
            *attention,
            Saved("attention.output", "linear", self._dtype, self._rows(self.shape.d_model), "heads side by side"),
            *self._norm("feed_forward_norm", "residual stream after attention"),
            *self._feed_forward(),
        ]

    @property
    def _dtype(self) -> str:
        """Dtype of the matmuls' inputs and outputs."""
        return DTYPE[self.precision]

    def _rows(self, width: int) -> tuple[int, int]:
        """The shape in which a linear map saves its input."""
        return (self.tokens, width)

    def _norm(self, range_: str, of_what: str) -> Iterator[Saved]:
        wide = (self.batch_size, self.context, self.shape.d_model)
        yield Saved(range_, "square", "float32", wide, of_what)
        yield Saved(range_, "rsqrt", "float32", (*wide[:2], 1), "one over its root mean square")
        yield Saved(range_, "mul", "float32", wide, "input over its root mean square")

    def _inputs(self, ranges: tuple[str, ...], meaning: str) -> Iterator[Saved]:
        """The shared input of several linear maps: in bf16, autocast casts it separately for each of them."""
        for range_ in ranges if self.precision == "bf16" else ranges[:1]:
            yield Saved(range_, "linear", self._dtype, self._rows(self.shape.d_model), meaning)

    def _plain(self) -> Iterator[Saved]:
        matrices = self.batch_size * self.shape.num_heads
        scores = (self.context, self.context)
        d_head = self.shape.d_model // self.shape.num_heads
        vectors = (matrices, self.context, d_head)
        yield Saved("attention", "matmul", self._dtype, (matrices, d_head, self.context), "rotated keys, transposed")
        yield Saved("attention", "matmul", self._dtype, vectors, "rotated queries")
        yield Saved("attention", "masked_fill", "bool", scores, "causal mask")
        softmax = (self.batch_size, self.shape.num_heads, *scores)
        yield Saved("attention", "softmax", self.softmax_dtype, softmax, "probabilities")
        yield Saved("attention", "matmul", self._dtype, vectors, "values")
        if self.softmax_dtype != self._dtype:
            yield Saved("attention", "matmul", self._dtype, (matrices, *scores), "probabilities, cast")

    def _flash(self) -> Iterator[Saved]:
        rows = (self.batch_size, self.shape.num_heads, self.context)
        vectors = (*rows, self.shape.d_model // self.shape.num_heads)
        for meaning in ("rotated queries", "rotated keys", "values", "output"):
            yield Saved("attention", "", self._dtype, vectors, meaning)
        yield Saved("attention", "", "float32", rows, "log-sum-exp of each row of scores")

    def _feed_forward(self) -> Iterator[Saved]:
        yield from self._inputs(("feed_forward.gate", "feed_forward.up"), "normalized residual stream")
        inner = (self.batch_size, self.context, self.shape.d_ff)
        yield Saved("feed_forward", "silu", self._dtype, inner, "gate before its SiLU")
        yield Saved("feed_forward", "mul", self._dtype, inner, "gate after its SiLU")
        yield Saved("feed_forward", "mul", self._dtype, inner, "up projection")
        yield Saved("feed_forward.down", "linear", self._dtype, self._rows(self.shape.d_ff), "gated product")
