"""FLOPs, parameters and bytes of the Transformer language model, from its shape alone."""

from cs336_systems.accounting.units import BYTES, FP32_BYTES
from cs336_systems.sizes import ModelShape


def block_parameters(shape: ModelShape) -> int:
    """Weights of one block: four d_model² projections, three d_model · d_ff matrices, two norms."""
    return 4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff + 2 * shape.d_model


def parameters(shape: ModelShape, vocab_size: int) -> int:
    """Weights of the whole model, including embedding and untied head."""
    return shape.num_layers * block_parameters(shape) + 2 * vocab_size * shape.d_model + shape.d_model


def weight_sizes(shape: ModelShape, vocab_size: int, each: int) -> list[int]:
    """Bytes of each weight in model order, `each` bytes per element; gradients arrive in reverse order."""
    square, wide, d, table = shape.d_model**2, shape.d_model * shape.d_ff, shape.d_model, vocab_size * shape.d_model
    block = [d, *4 * [square], d, *3 * [wide]]
    return [each * numbers for numbers in (table, *shape.num_layers * block, d, table)]


def parameter_tensors(shape: ModelShape) -> int:
    """Number of weight tensors: seven matrices and two norms per block, embedding, head and the last norm."""
    return 9 * shape.num_layers + 3


def matmul_flops(shape: ModelShape, vocab_size: int, tokens: int) -> int:
    """FLOPs of a forward pass's linear maps, 2mnk each: the blocks' and the head's."""
    in_blocks = shape.num_layers * (block_parameters(shape) - 2 * shape.d_model)
    return 2 * tokens * (in_blocks + vocab_size * shape.d_model)


def forward_flops(shape: ModelShape, vocab_size: int, batch_size: int, context: int, *, causal: bool = False) -> int:
    """FLOPs of a forward pass's matmuls, 2mnk each.

    Attention counts the full score matrix (4 · context² · d_model per sequence and block), since plain attention also
    computes the masked half; or, if `causal`, only the unmasked half. The backward pass needs twice as many: one matmul
    per operand.
    """
    tokens = batch_size * context
    attention = (2 if causal else 4) * tokens * context * shape.d_model
    return matmul_flops(shape, vocab_size, tokens) + shape.num_layers * attention


def forward_products(shape: ModelShape) -> int:
    """Matmuls of a forward pass: per block four projections, attention's two, three of SwiGLU; the head.

    The backward pass has two for each: one for each operand's gradient.
    """
    return 9 * shape.num_layers + 1


def step_flops(
    mode: str, shape: ModelShape, vocab_size: int, batch_size: int, context: int, *, causal: bool = False
) -> int:
    """Matmul FLOPs of a measured step: the forward pass, or three times that with a backward pass."""
    forward = forward_flops(shape, vocab_size, batch_size, context, causal=causal)
    return forward if mode in ("inference", "forward") else 3 * forward


def adamw_bytes(shape: ModelShape, vocab_size: int) -> int:
    """Bytes of fused AdamW's state: two fp32 moments per weight, and per tensor a step counter on the device."""
    return FP32_BYTES * (2 * parameters(shape, vocab_size) + parameter_tensors(shape))


def weight_copy_bytes(shape: ModelShape, vocab_size: int) -> int:
    """Bytes of autocast's bf16 copies of the matmuls' weights: excluding the embedding's table and the norms.

    Autograd's graph keeps each copy until the backward pass has used it.
    """
    in_blocks = shape.num_layers * (block_parameters(shape) - 2 * shape.d_model)
    return BYTES["bf16"] * (in_blocks + vocab_size * shape.d_model)


def residual_bytes(shape: ModelShape, batch_size: int, context: int) -> int:
    """Bytes of one tensor of the residual stream, [batch, context, d_model] in fp32 (autocast keeps it so)."""
    return FP32_BYTES * batch_size * context * shape.d_model
