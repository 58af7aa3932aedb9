"""Peak memory of a training step whose weights, gradients and optimizer state are sharded."""

from cs336_systems.accounting.checkpointing import StepMemory
from cs336_systems.accounting.fsdp import FullySharded
from cs336_systems.accounting.units import FP32_BYTES


def peak_bytes(sharded: FullySharded, step: StepMemory) -> int:
    """Upper bound of the peak memory on the first rank, bytes.

    Compared with an unsharded step: shards of weights, gradients and moments, plus gathered units and whole gradients
    in flight, without autocast's copies of weights. The maximum of each term is counted at all times, so the true peak
    is lower by up to some units.

    Args:
        sharded: the sharded model.
        step: the same training without sharding and recomputation.
    """
    shape, block = step.block.shape, step.block
    share = sharded.weights / (step.state - step.between_steps)
    passing = sharded.gathered + sharded.gradients_in_flight
    most = sharded.state
    *earlier, _ = step.turns()  # The optimizer's is the state.
    for index, in_use in earlier:
        gradients, blocks = 0, shape.num_layers
        if index is not None:
            head = FP32_BYTES * (step.vocab_size + 1) * shape.d_model
            gradients, blocks = head + (shape.num_layers - 1 - index) * block.parameter_gradients, index + 1
        activations = in_use - step.between_steps - gradients - blocks * block.weight_copies
        most = max(most, sharded.weights + sharded.moments + round(share * gradients) + activations + passing)
    return most
