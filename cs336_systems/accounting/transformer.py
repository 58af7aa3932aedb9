"""FLOPs, parameters and bytes of the Transformer language model, from its shape alone."""

from cs336_systems.accounting.units import BYTES, FP32_BYTES
from cs336_systems.sizes import ModelShape


def block_parameters(shape: ModelShape) -> int:
    """Weights of one block: four d_model² projections, three d_model · d_ff matrices, two norms."""
    return 4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff + 2 * shape.d_model


def parameters(shape: ModelShape, vocab_size: int) -> int:
    """Weights of the whole model, embedding and untied head included."""
    return shape.num_layers * block_parameters(shape) + 2 * vocab_size * shape.d_model + shape.d_model


def forward_flops(shape: ModelShape, vocab_size: int, batch_size: int, context: int) -> int:
    """Floating-point operations of a forward pass's matrix multiplies, 2mnk each.

    Attention counts the whole score matrix (4 · context² · d_model per sequence and block), since plain attention
    computes it whole, the masked half too. The backward pass takes twice this: one product per operand.
    """
    tokens = batch_size * context
    projections = 2 * tokens * (4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff)
    attention = 4 * tokens * context * shape.d_model
    head = 2 * tokens * shape.d_model * vocab_size
    return shape.num_layers * (projections + attention) + head


def step_flops(mode: str, shape: ModelShape, vocab_size: int, batch_size: int, context: int) -> int:
    """Matrix-multiply FLOPs of a measured step: the forward pass, or three times that with a backward pass."""
    forward = forward_flops(shape, vocab_size, batch_size, context)
    return forward if mode in ("inference", "forward") else 3 * forward


def state_bytes(mode: str, shape: ModelShape, vocab_size: int) -> int:
    """Bytes that outlive a step in fp32: weights, plus gradients, plus AdamW's two moments, depending on the mode."""
    copies = {"inference": 1, "forward": 1, "forward_backward": 2, "train_step": 4}[mode]
    return copies * FP32_BYTES * parameters(shape, vocab_size)


def autocast_copy_bytes(shape: ModelShape, vocab_size: int) -> int:
    """Bytes of the bf16 copies that autocast makes of the weights of all matrix multiplies.

    Autograd's graph keeps each copy until the backward pass has used it.
    """
    block = 4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff
    return BYTES["bf16"] * (shape.num_layers * block + vocab_size * shape.d_model)
