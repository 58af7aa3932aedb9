"""Closed forms of a training step's work, and of what each rung of the ladder should gain."""

from collections.abc import Mapping
from dataclasses import dataclass

from cs336_systems.accounting.block_work import plain_block
from cs336_systems.accounting.transformer import parameters
from cs336_systems.sizes import ModelShape, parse_size

SPLIT_UPDATE_BYTES = 26
"""AdamW per bf16 weight: reads gradient 2, weight 2, remainder of the master 2, moments 8; writes all but the first."""
WHOLE_UPDATE_BYTES = 28
"""AdamW per fp32 weight: reads gradient, weight and moments, writes weight and moments. As much per bf16 weight with a
whole fp32 master next to it: 2 + 4 + 8 read, 2 + 4 + 8 written."""
CAST_BYTES = 12
"""Autocast per weight of a matmul: the weight is read in fp32 and written in bf16, its gradient the other way round."""
BF16_BYTES = 2
MFU_CONVENTIONS: Mapping[str, tuple[bool, bool]] = {
    "causal, without embedding": (False, True),
    "causal, with embedding": (True, True),
    "full scores, without embedding": (False, False),
    "full scores, with embedding": (True, False),
}
"""Conventions of counting FLOPs, by name: the embedding table as if it were a matmul, and the masked half of the scores
left out. The first one is this project's."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The work of one training step."""

    shape: ModelShape
    vocab_size: int
    batch_size: int
    context: int

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch_size * self.context

    @property
    def weights(self) -> int:
        """All weights of the model."""
        return parameters(self.shape, self.vocab_size)

    @property
    def matmul_weights(self) -> int:
        """Weights of the matmuls: of the blocks and of the head."""
        shape = self.shape
        block = 4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff
        return shape.num_layers * block + shape.d_model * self.vocab_size


def load_of(size: str, batch_size: int, context: int, vocab_size: int) -> Load:
    """The work of a step of a model whose size is named."""
    return Load(shape=parse_size(size), vocab_size=vocab_size, batch_size=batch_size, context=context)


@dataclass(frozen=True)
class Product:
    """A linear map of the model: x [tokens, d_in] by weights [d_out, d_in], `count` times in a step."""

    name: str
    d_in: int
    d_out: int
    count: int


def products(load: Load) -> list[Product]:
    """The linear maps of a model, with q, k and v, and gate and up, as one each."""
    d, d_ff, layers = load.shape.d_model, load.shape.d_ff, load.shape.num_layers
    return [
        Product("qkv", d, 3 * d, layers),
        Product("output", d, d, layers),
        Product("gate and up", d, 2 * d_ff, layers),
        Product("down", d_ff, d, layers),
        Product("head", d, load.vocab_size, 1),
    ]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates that a device reaches."""

    bf16: float
    """bf16 matmuls at the model's shapes, FLOP/s."""
    fp32: float
    """fp32 matmuls, FLOP/s."""
    copy: float
    """Bytes read and written per second by a copy."""


def step_flops(load: Load, *, embedding: bool = False, causal: bool = True) -> int:
    """FLOPs of a training step's matmuls, three times the forward pass's: 2 per weight and token, and attention's.

    Args:
        load: the step.
        embedding: whether the embedding table counts as a matmul, which it is not.
        causal: whether only the half of the scores counts that a causal mask leaves.
    """
    weights = load.matmul_weights + (load.vocab_size * load.shape.d_model if embedding else 0)
    scores = (2 if causal else 4) * load.context * load.shape.d_model * load.shape.num_layers
    return 3 * load.tokens * (2 * weights + scores)


def matmul_flops(load: Load) -> int:
    """FLOPs of a step's matmuls without attention's."""
    return 6 * load.tokens * load.matmul_weights


def update_bytes(load: Load) -> int:
    """Bytes that AdamW moves for bf16 weights with split fp32 masters."""
    return SPLIT_UPDATE_BYTES * load.weights


def pass_bytes(load: Load) -> int:
    """Bytes of norms, rotations, activations, embedding and loss in bf16 if each is one pass in each direction.

    Per token and block, in numbers: two residual additions with norms read 2 d and write 2 d in each direction; the
    rotation of q and k reads and writes 2 d; SwiGLU reads 2 d_ff and writes d_ff, and in the backward pass reads 3 d_ff
    and writes 2 d_ff. The last norm is like the others. The embedding reads and writes d in each direction and fills
    its gradient; the loss reads the logits and writes their gradient.
    """
    d, d_ff = load.shape.d_model, load.shape.d_ff
    block = 2 * (2 * 4 * d + 4 * d) + (3 + 5) * d_ff
    once = 2 * 4 * d + 2 * 2 * d + 2 * load.vocab_size
    numbers = load.tokens * (load.shape.num_layers * block + once) + load.vocab_size * d
    return BF16_BYTES * numbers


def eager_pass_bytes(load: Load) -> int:
    """Bytes of the blocks' norms, rotations, additions and activations op by op, weights in bf16.

    Forward, bytes per token: a norm casts, squares, averages, multiplies twice and casts back, in fp32: 40 d; an
    addition 6 d; a rotation of q or k four products, two sums, a stack and a cast: 38 d; SwiGLU 10 d_ff. The backward
    pass moves about twice as much.
    """
    d, d_ff = load.shape.d_model, load.shape.d_ff
    return 3 * load.tokens * load.shape.num_layers * (2 * 40 * d + 2 * 6 * d + 2 * 38 * d + 10 * d_ff)


def fused_block_bytes(load: Load) -> int:
    """The part of `pass_bytes` that is the blocks'."""
    return BF16_BYTES * load.tokens * load.shape.num_layers * (24 * load.shape.d_model + 8 * load.shape.d_ff)


def score_bytes(load: Load) -> int:
    """Bytes of plain attention's scores under autocast, forward and about twice as much backward."""
    work = plain_block(load.shape, load.batch_size, load.context, "bf16")
    return int(3 * load.shape.num_layers * (work["softmax"].bytes + work["mask and cast"].bytes))


def expected_gains(load: Load, rates: Rates) -> dict[str, float]:
    """Expected savings of each rung, in ms; a rung whose gain is the host's is not among them.

    fp32 to autocast: the matmuls at the other rate. Our attention: the scores stay in registers, and half of them are
    not computed. Masters: no casts of weights and gradients, and two bytes per weight less to update. Fused passes: as
    against eager ones. The update under the backward pass: at most all of it.
    """
    half_of_scores = step_flops(load, causal=False) - step_flops(load)
    masters = CAST_BYTES * load.matmul_weights + (WHOLE_UPDATE_BYTES - SPLIT_UPDATE_BYTES) * load.weights
    return {
        "autocast": 1e3 * step_flops(load, causal=False) * (1 / rates.fp32 - 1 / rates.bf16),
        "attention": 1e3 * (score_bytes(load) / rates.copy + half_of_scores / rates.bf16),
        "masters": 1e3 * masters / rates.copy,
        "fused": 1e3 * (eager_pass_bytes(load) - fused_block_bytes(load)) / rates.copy,
        "overlap": 1e3 * update_bytes(load) / rates.copy,
    }
