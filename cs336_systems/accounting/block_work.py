"""FLOPs and memory traffic of the kernels that a block's forward pass launches, from its shape alone."""

from dataclasses import dataclass

from cs336_systems.accounting.attention import forward_flops, softmax_flops
from cs336_systems.accounting.units import BYTES, FP32_BYTES
from cs336_systems.sizes import ModelShape


@dataclass(frozen=True)
class Work:
    """The work of the kernels of one kind in one block."""

    flops: float
    """Matmuls count 2mnk each. Elsewhere a comparison, a conversion and each arithmetic operation count as one."""
    bytes: float
    """Each kernel reads its inputs and writes its output once; data shared by all rows (masks, angles) is left out."""

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


def plain_block(shape: ModelShape, batch: int, context: int, precision: str) -> dict[str, Work]:
    """The kernels of an eager block with plain attention, by kind.

    Under autocast (bf16), the matmuls and the operations after them work on two bytes; the residual stream, the norms
    and the softmax stay in fp32.
    """
    tokens, d, d_ff = batch * context, shape.d_model, shape.d_ff
    size = BYTES[precision]
    wide, inner = tokens * d, tokens * d_ff
    pairs = batch * shape.num_heads * context**2
    attention = forward_flops(batch, shape.num_heads, context, d // shape.num_heads, causal=False)
    cast = 0 if precision == "fp32" else 1  # of the scores, to fp32
    return {
        "projections": Work(8 * wide * d, 4 * size * (2 * wide + d**2)),
        "SwiGLU matmuls": Work(6 * inner * d, 3 * size * (wide + d * d_ff + inner)),
        "attention matmuls": Work(attention, 2 * size * (2 * wide + pairs)),
        "softmax": Work(softmax_flops(batch, shape.num_heads, context), 2 * FP32_BYTES * pairs),
        # A copy of the scores, the mask in place, and the cast.
        "mask and cast": Work((1 + cast) * pairs, (4 * size + cast * (size + FP32_BYTES)) * pairs),
        # Square, mean, and two products: all in fp32.
        "norms": Work(2 * 4 * wide, 2 * 7 * FP32_BYTES * wide),
        # SiLU (negation, exponential, addition, division) and the product with its gate.
        "SiLU and product": Work(5 * inner, 5 * size * inner),
        "residual additions": Work(2 * wide, 2 * (2 * FP32_BYTES + size) * wide),
    }
