"""Made-up memory of a block: the closed form, and an allocator that adds a little."""

from collections import Counter

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.block_memory import BlockMemory
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size


def measure(cell: BlockMemory, *, on_gpu: bool) -> list[Measurement]:
    """The closed form, and 0.5 % more by the allocator."""
    block = BlockActivations(
        shape=parse_size(cell.size),
        batch_size=cell.batch_size,
        context=cell.context,
        precision=cell.precision,
        attention=cell.attention,
        on_gpu=on_gpu,
    )
    totals: Counter[tuple[str, str, str]] = Counter()
    for tensor in block.saved():
        totals[tensor.range, tensor.operator, tensor.tensor] += tensor.bytes
    gradients = block.parameter_gradients + block.residual
    left = {"left_by_forward": block.saved_bytes + block.weight_copies, "left_by_backward": gradients}
    return [
        *(
            summarize("saved", "MiB", [count / MIB], details=dict(zip(cell.details, key, strict=True)))
            for key, count in totals.items()
        ),
        summarize("saved_activations", "MiB", [block.saved_bytes / MIB]),
        summarize("saved_weight_copies", "MiB", [block.weight_copies / MIB]),
        summarize("parameter_gradients", "MiB", [block.parameter_gradients / MIB]),
        summarize("input_gradient", "MiB", [block.residual / MIB]),
        *(
            summarize(metric, "MiB", [1.005 * count / MIB])
            if on_gpu
            else Measurement(metric=metric, unit="MiB", status="skipped", message="on CUDA devices only")
            for metric, count in left.items()
        ),
    ]
