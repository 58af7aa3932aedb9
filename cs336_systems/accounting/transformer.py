"""FLOPs, parameters and bytes of the Transformer language model, from its shape alone."""

from cs336_systems.accounting.units import BYTES, FP32_BYTES
from cs336_systems.sizes import ModelShape


def block_parameters(shape: ModelShape) -> int:
    """Weights of one block: four d_model² projections, three d_model · d_ff matrices, two norms."""
    return 4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff + 2 * shape.d_model


def parameters(shape: ModelShape, vocab_size: int) -> int:
    """Weights of the whole model, embedding and untied head included."""
    return shape.num_layers * block_parameters(shape) + 2 * vocab_size * shape.d_model + shape.d_model


def parameter_tensors(shape: ModelShape) -> int:
    """Number of weight tensors: seven matrices and two norms per block, embedding, head and the last norm."""
    return 9 * shape.num_layers + 3


def forward_flops(shape: ModelShape, vocab_size: int, batch_size: int, context: int) -> int:
    """Floating-point operations of a forward pass's matrix multiplies, 2mnk each.

    Attention counts the whole score matrix (4 · context² · d_model per sequence and block), since plain attention
    computes it whole, the masked half too. The backward pass needs twice as many: one matmul per operand.
    """
    tokens = batch_size * context
    projections = 2 * tokens * (4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff)
    attention = 4 * tokens * context * shape.d_model
    head = 2 * tokens * shape.d_model * vocab_size
    return shape.num_layers * (projections + attention) + head


def forward_products(shape: ModelShape) -> int:
    """Matmuls of a forward pass: per block four projections, attention's two, three of SwiGLU; the head.

    The backward pass makes two for each: one for the gradient of each operand.
    """
    return 9 * shape.num_layers + 1


def step_flops(mode: str, shape: ModelShape, vocab_size: int, batch_size: int, context: int) -> int:
    """Matrix-multiply FLOPs of a measured step: the forward pass, or three times that with a backward pass."""
    forward = forward_flops(shape, vocab_size, batch_size, context)
    return forward if mode in ("inference", "forward") else 3 * forward


def state_bytes(mode: str, shape: ModelShape, vocab_size: int) -> int:
    """Bytes that outlive a step in fp32: weights, plus gradients, plus AdamW's two moments, depending on the mode."""
    copies = {"inference": 1, "forward": 1, "forward_backward": 2, "train_step": 4}[mode]
    return copies * FP32_BYTES * parameters(shape, vocab_size)


def adamw_bytes(shape: ModelShape, vocab_size: int) -> int:
    """Bytes of fused AdamW's state: two fp32 moments per weight, and per tensor a step counter on the device."""
    return FP32_BYTES * (2 * parameters(shape, vocab_size) + parameter_tensors(shape))


def weight_copy_bytes(shape: ModelShape, vocab_size: int) -> int:
    """Bytes of autocast's bf16 copies of the matmuls' weights: without the embedding's table and the norms.

    Autograd's graph keeps each copy until the backward pass has used it.
    """
    in_blocks = shape.num_layers * (block_parameters(shape) - 2 * shape.d_model)
    return BYTES["bf16"] * (in_blocks + vocab_size * shape.d_model)


def residual_bytes(shape: ModelShape, batch_size: int, context: int) -> int:
    """Bytes of one tensor of the residual stream, [batch, context, d_model] in fp32 (autocast keeps it so)."""
    return FP32_BYTES * batch_size * context * shape.d_model
