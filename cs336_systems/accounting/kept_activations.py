"""Bytes per token that a block and the loss keep for the backward pass, in every setting of a step.

For eager passes over fp32 weights, `activations` has the exact list, and there is an exact list of one operator's needs
at the peak; kernels' temporaries are left out. torch.compile (min-cut partitioner) differs in what it recomputes: the
norms' normalized inputs, SiLU's result, and casts. Everything else is counted here, in units of d_model and d_ff:
residual sums and norms' results, q, k, v, attention's result and its log-sum-exp, gate, up, and their product.
"""

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.units import BYTES, FP32_BYTES

BF16 = BYTES["bf16"]
INT64_BYTES = 8
"""Bytes of a token's id."""
LOGITS_BYTES = 512 * 2**20
"""Bytes of a chunk's logits in the linear cross-entropy, at most."""


def in_eager_fp32_weights(setting: Setting) -> bool:
    """Whether the exact list applies: eager or compiled passes over fp32 weights.

    FSDP gathers weights in bf16, so its passes have bf16 weights.
    """
    if setting.scheme == "FSDP" and setting.precision == "autocast":
        return False
    return setting.precision != "bf16" and setting.passes != "fused"


def kept_block(setting: Setting) -> int:
    """Bytes that one block keeps, without autocast's copies of weights."""
    if in_eager_fp32_weights(setting):
        saved = setting.block.saved_bytes
        return saved - recomputed_by_compiler(setting) if setting.passes == "compiled" else saved
    per_token = _widths(setting) + FP32_BYTES * setting.shape.num_heads + 2 * FP32_BYTES
    scores = (BF16 * setting.pairs) if setting.attention == "plain" else 0
    weights = matrix_weights(setting) if setting.fp8 and setting.passes == "fused" else 0
    return setting.tokens * per_token + scores + weights


def matrix_weights(setting: Setting) -> int:
    """Numbers in the matrices of a block. In FP8 each is kept as a byte; the compiler rounds them again."""
    d, d_ff = setting.shape.d_model, setting.shape.d_ff
    return 4 * d**2 + 3 * d * d_ff


def _widths(setting: Setting) -> int:
    """Bytes per token that grow with the model's width."""
    d, d_ff = setting.shape.d_model, setting.shape.d_ff
    if setting.fp8 and setting.passes == "fused":
        # Two sums, q, k, v and attention's result; that and two results of norms in FP8; gate and up.
        return 15 * d + 4 * d_ff
    if setting.fp8:  # Two sums, q, k, v and attention's result; normalized inputs in FP8 once; gate and up.
        return 13 * d + 4 * d_ff
    if setting.passes == "fused":  # Two sums (fp32 under autocast), two results of norms, q, k, v, attention's result.
        sums = 2 * (FP32_BYTES if setting.precision == "autocast" else BF16)
        return (sums + 6 * BF16) * d + (3 if setting.keep_hidden else 2) * BF16 * d_ff
    if setting.passes == "compiled":  # As fused, and heads side by side.
        return 18 * d + 6 * d_ff
    # Norms keep their input and its normalized form in fp32; SiLU's result is kept; flash also keeps its own result.
    heads = 5 if setting.attention == "flash" else 4
    return (2 * (2 * FP32_BYTES + BF16) + heads * BF16) * d + 4 * BF16 * d_ff


def recomputed_by_compiler(setting: Setting) -> int:
    """Bytes of an eager block that torch.compile recomputes."""
    d, d_ff = setting.shape.d_model, setting.shape.d_ff
    norms = 2 * FP32_BYTES * d
    if setting.precision == "fp32":
        return setting.tokens * (norms + FP32_BYTES * d_ff)
    casts = 3 * BF16 * d  # q, k, v share one cast of their input; so do gate and up
    scores = BF16 * setting.pairs if setting.attention == "plain" else 0
    return setting.tokens * (norms + BF16 * d_ff + casts) + scores


def recomputed_block(setting: Setting) -> int:
    """Bytes that a checkpointed block with fused passes keeps: its input, and attention's result."""
    return setting.tokens * (2 * BF16 * setting.shape.d_model + FP32_BYTES * setting.shape.num_heads)


def weight_copies(setting: Setting) -> int:
    """Bytes of autocast's bf16 copies of one block's matrices."""
    return setting.block.weight_copies if setting.precision == "autocast" and setting.scheme != "FSDP" else 0


def head_kept(setting: Setting) -> int:
    """Bytes that the final norm, the head and the loss keep, including the head's copy."""
    tokens, d, vocabulary = setting.tokens, setting.shape.d_model, setting.vocab_size
    logits = tokens * vocabulary
    autocasts = setting.precision == "autocast" and setting.scheme != "FSDP"
    copy = BF16 * vocabulary * d if autocasts else 0
    if in_eager_fp32_weights(setting):
        norm = 2 * setting.block.residual + FP32_BYTES * tokens
        ids = INT64_BYTES * (tokens + setting.batch_size) + INT64_BYTES * tokens  # inputs and targets overlap
        log_probabilities = (FP32_BYTES + (BF16 if _casts_log_probabilities(setting) else 0)) * logits
        number = FP32_BYTES  # that cross-entropy keeps: the total weight
        return ids + norm + BYTES[setting.block.precision] * tokens * d + copy + log_probabilities + number
    norm = (2 * BF16 * d + FP32_BYTES) * tokens
    if setting.passes == "fused":  # the norm's input; the gradients of the head's input and of its weight
        return norm + head_gradient(setting) + copy
    if setting.passes == "compiled":  # the logits, in bf16
        return norm + BF16 * logits
    return norm + (2 * FP32_BYTES - BF16) * d * tokens + FP32_BYTES * logits


def head_gradient(setting: Setting) -> int:
    """Bytes of the head weight's gradient, which a linear cross-entropy computes in the forward pass."""
    return setting.weight_bytes * setting.vocab_size * setting.shape.d_model


def _casts_log_probabilities(setting: Setting) -> bool:
    """Whether cross-entropy casts log-probabilities computed in bf16; on a CPU autocast casts the logits instead."""
    return setting.precision == "autocast" and setting.on_gpu


def loss_working(setting: Setting) -> int:
    """Maximum additional bytes that the loss needs."""
    logits = setting.tokens * setting.vocab_size
    if setting.passes == "fused":
        rounded = FP32_BYTES * setting.vocab_size * setting.shape.d_model if BF16 * logits > LOGITS_BYTES else 0
        head_input = BF16 * setting.tokens * setting.shape.d_model
        return min(LOGITS_BYTES, BF16 * logits) + rounded + head_input
    if in_eager_fp32_weights(setting):
        # Gradients of the log-probabilities and of the logits; if the former are cast, the fp32 log-probabilities are
        # freed before both exist.
        return (1 if _casts_log_probabilities(setting) else 2) * FP32_BYTES * logits
    return 0 if setting.passes == "compiled" else 2 * FP32_BYTES * logits


def block_working(setting: Setting) -> int:
    """Maximum bytes that a block's backward pass needs in addition to the tensors that the block keeps."""
    if in_eager_fp32_weights(setting):
        return _exact_block_working(setting.block)
    d, d_ff, tokens = setting.shape.d_model, setting.shape.d_ff, setting.tokens
    inner = BF16 * (2 if setting.passes == "eager" else 3)  # gradients of the hidden layer, and of gate and up
    if setting.fp8 and setting.passes == "fused":  # The latter by rows and by columns; the hidden layer.
        inner = BF16 + 2 + 2 + 1
    feed_forward = tokens * (BF16 * d + inner * d_ff) + setting.weight_bytes * d * d_ff
    scores = 3 * BF16 * setting.pairs if setting.attention == "plain" else 0
    return max(feed_forward, tokens * BF16 * d + scores)


def _exact_block_working(block: BlockActivations) -> int:
    """The same for eager passes over fp32 weights.

    There are two candidates. In the feed-forward network: the gradients of both factors of the gated product, while the
    factors still exist. In plain attention: the gradients of the attention weights and of the scores, when everything
    saved after them is freed; a GPU's kernel also needs the product of weights and gradient.
    """
    shape = block.shape
    inner = block.tokens * shape.d_ff * BYTES[block.precision]
    down = FP32_BYTES * shape.d_model * shape.d_ff - block.weight_copies_of(shape.d_ff)
    feed_forward = block.residual + 2 * inner + down
    if block.attention == "flash":
        return feed_forward
    saved = block.saved()
    softmax = next(index for index, tensor in enumerate(saved) if tensor.operator == "softmax")
    freed = sum(tensor.bytes for tensor in saved[softmax + 1 :])
    values = block.tokens * shape.d_model * BYTES[block.precision]
    width = 3 * shape.d_ff + shape.d_model
    weights = FP32_BYTES * shape.d_model * width - block.weight_copies_of(width)
    scores = (3 if block.on_gpu else 2) * saved[softmax].bytes
    return max(feed_forward, block.residual + scores + values + weights - freed)
