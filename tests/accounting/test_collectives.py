"""Times of ring collectives against a ring that passes bytes on step by step, and counts them per link."""

import pytest

from cs336_systems.accounting.collectives import all_gather_seconds, reduce_scatter_seconds

BANDWIDTH = 7.0


class Ring:
    """Devices that hold numbers, and a clock: every step takes as long as the fullest link."""

    def __init__(self, tensors):
        self.count = len(tensors)
        self.held = [dict(enumerate(tensor)) for tensor in tensors]
        self.seconds = 0.0

    def step(self, sends, add):
        """Every device sends the chunk of numbers `sends(device)` to the next, which adds it or keeps it."""
        messages = [{place: self.held[device][place] for place in sends(device)} for device in range(self.count)]
        self.seconds += max(map(len, messages)) / BANDWIDTH
        for device, message in enumerate(messages):
            target = self.held[(device + 1) % self.count]
            for place, number in message.items():
                target[place] = target[place] + number if add else number


def chunk(index, count, size):
    index %= count
    return range(index * size, (index + 1) * size)


def reduce_scatter(ring, size):
    for step in range(ring.count - 1):
        ring.step(lambda device, step=step: chunk(device - step, ring.count, size), add=True)


def all_gather(ring, size, first):
    for step in range(ring.count - 1):
        ring.step(lambda device, step=step: chunk(device + first - step, ring.count, size), add=False)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("size", [1, 3, 11])
def test_a_ring_moves_the_bytes_that_the_formulas_count(count, size):
    total = count * size
    tensors = [[(device + 1) * 1000 + place for place in range(total)] for device in range(count)]
    sums = [sum(column) for column in zip(*tensors, strict=True)]

    ring = Ring(tensors)
    reduce_scatter(ring, size)
    for device in range(count):
        assert all(ring.held[device][place] == sums[place] for place in chunk(device + 1, count, size))
    scattered = reduce_scatter_seconds(total, count, BANDWIDTH)
    assert ring.seconds == pytest.approx(scattered)

    all_gather(ring, size, first=1)
    assert all([held[place] for place in range(total)] == sums for held in ring.held)
    assert ring.seconds == pytest.approx(scattered + all_gather_seconds(total, count, BANDWIDTH))

    shards = Ring([[0] * total for _ in range(count)])
    for device in range(count):
        shards.held[device] = {place: place for place in chunk(device, count, size)}
    all_gather(shards, size, first=0)
    assert all([held[place] for place in range(total)] == list(range(total)) for held in shards.held)
    assert shards.seconds == pytest.approx(all_gather_seconds(total, count, BANDWIDTH))
