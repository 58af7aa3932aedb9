"""Checkpointing strategies against executions that count what is in memory."""

import math

import pytest

from cs336_systems.accounting.strategies import from_the_start, keep_all, nested, one_level


class Chain:
    """Equal blocks, whose inputs or saved tensors may be in memory."""

    def __init__(self):
        self.inputs, self.saved = set(), set()
        self.forwards = 0
        self.most = []

    def run(self, blocks):
        self.forwards += len(blocks)

    def run_saving(self, blocks):
        """Run blocks with everything saved, then their backward passes."""
        self.run(blocks)
        self.saved |= set(blocks)
        self.most.append((len(self.inputs - self.saved), len(self.saved)))
        self.saved -= set(blocks)


def backward_nested(chain, blocks):
    """From the input of the first block, which is there."""
    chain.inputs.add(blocks[0])
    if len(blocks) == 1:
        chain.run_saving(blocks)
    else:
        middle = math.ceil(len(blocks) / 2)
        chain.run(blocks[:middle])
        backward_nested(chain, blocks[middle:])
        backward_nested(chain, blocks[:middle])
    chain.inputs.discard(blocks[0])


def backward_one_level(chain, blocks, segment):
    segments = [blocks[start : start + segment] for start in range(0, len(blocks), segment)]
    chain.run(blocks)
    chain.inputs = {part[0] for part in segments}
    for part in reversed(segments):
        chain.run_saving(part)
        chain.inputs.discard(part[0])


def backward_from_the_start(chain, blocks):
    chain.inputs = {0}
    for block in reversed(blocks):
        chain.run(range(block))
        chain.run_saving(range(block, block + 1))


@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 16, 29, 32])
def test_strategies_are_what_their_execution_counts(blocks):
    cases = [(nested(blocks), backward_nested, ()), (from_the_start(blocks), backward_from_the_start, ())]
    cases += [(one_level(blocks, k), backward_one_level, (k,)) for k in (1, 2, 3, 5, blocks)]
    for strategy, execute, arguments in cases:
        chain = Chain()
        execute(chain, range(blocks), *arguments)
        assert chain.forwards == strategy.forwards
        for residual, saved in ((1, 1), (1, 17), (3, 5)):
            most = max(inputs * residual + whole * saved for inputs, whole in chain.most)
            assert strategy.memory(residual, saved) == most
    assert keep_all(blocks).memory(1, 10) == 10 * blocks
