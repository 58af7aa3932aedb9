"""Measure the tensors that one Transformer block saves for its backward pass, by operator, and its gradients.

Launch: python -m cs336_systems.benchmarks block_memory --size small --precision fp32 bf16 --attention plain flash
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from cs336_systems.accounting.activations import describe_tensor
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.block_memory import BlockMemory
from cs336_systems.measure.memory import allocated, in_use
from cs336_systems.measure.saved_tensors import SavedTensor, record_saved
from cs336_systems.model import ATTENTION, ROPE_THETA, RotaryEmbedding, TransformerBlock
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from cs336_systems.training_step import precision_context


def measure(cell: BlockMemory, device: torch.device) -> list[Measurement]:
    """Measure the block's saved tensors, by operator and in total, its gradients, and memory after each pass."""
    shape = parse_size(cell.size)
    with device:
        x = torch.empty(cell.batch_size, cell.context, shape.d_model)  # the largest first: memory may run out
        rope = RotaryEmbedding(cell.context, shape.d_model // shape.num_heads, ROPE_THETA)
        block = TransformerBlock(shape.d_model, shape.num_heads, shape.d_ff, rope, ATTENTION[cell.attention])
        x.normal_().requires_grad_()
    grad_output = torch.randn_like(x)

    def forward() -> Tensor:
        with precision_context(cell.precision, device):
            return block(x)

    with record_saved(block) as saved:
        output = forward()
    output.backward(grad_output)  # libraries allocate their workspaces now, not when memory is compared
    del output
    block.zero_grad(set_to_none=True)
    x.grad = None

    start = in_use(device)
    output = forward()
    left_by_forward = in_use(device) - start
    output.backward(grad_output)
    del output
    left_by_backward = in_use(device) - start
    return [
        *by_operator(saved),
        in_mib("saved_activations", (tensor.bytes for tensor in saved if tensor.kind == "activation")),
        in_mib("saved_weight_copies", (tensor.bytes for tensor in saved if tensor.kind == "weight copy")),
        in_mib("parameter_gradients", map(gradient_bytes, block.parameters())),
        in_mib("input_gradient", [gradient_bytes(x)]),
        allocated("left_by_forward", left_by_forward, device),
        allocated("left_by_backward", left_by_backward, device),
    ]


def by_operator(saved: Iterable[SavedTensor]) -> Iterator[Measurement]:
    """Make one row for the activations of one shape and dtype that an operator of a module saves."""
    totals: Counter[tuple[str, str, str]] = Counter()
    for tensor in saved:
        if tensor.kind == "activation":
            totals[tensor.range, tensor.operator, describe_tensor(tensor.dtype, tensor.shape)] += tensor.bytes
    for key, count in totals.items():
        yield summarize("saved", "MiB", [count / MIB], details=dict(zip(BlockMemory.details, key, strict=True)))


def in_mib(metric: str, counts: Iterable[int]) -> Measurement:
    """Sum bytes, in MiB."""
    return summarize(metric, "MiB", [sum(counts) / MIB])


def gradient_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's gradient from a backward pass."""
    assert tensor.grad is not None
    return tensor.grad.untyped_storage().nbytes()
