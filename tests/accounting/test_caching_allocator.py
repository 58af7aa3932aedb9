"""The caching allocator's rules, by sequences whose result follows from PyTorch's source."""

from cs336_systems.accounting.caching_allocator import CachingAllocator

MIB = 2**20


def test_small_tensors_share_a_segment_of_2_mib():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size) for size in (1, 513, 4096)]
    assert allocator.allocated == 512 + 1024 + 4096
    assert allocator.reserved == 2 * MIB
    for block in blocks:
        allocator.release(block)
    assert allocator.allocated == 0
    assert allocator.allocate(MIB).size == MIB
    assert allocator.reserved == 2 * MIB  # the freed neighbours were joined


def test_a_rest_of_at_most_1_mib_is_given_away():
    allocator = CachingAllocator()
    allocator.allocate(25 * MIB)
    assert (allocator.allocated, allocator.reserved) == (26 * MIB, 26 * MIB)


def test_medium_tensors_are_carved_out_of_20_mib():
    allocator = CachingAllocator()
    for _ in range(3):
        allocator.allocate(8 * MIB)
    assert (allocator.allocated, allocator.reserved) == (24 * MIB, 40 * MIB)


def test_the_best_fit_is_taken_and_the_rest_split_off():
    allocator = CachingAllocator()
    large, gap, small = (allocator.allocate(size * MIB) for size in (40, 30, 20))
    allocator.release(large)
    allocator.release(small)
    assert allocator.allocate(16 * MIB).address == small.address
    assert allocator.reserved == 90 * MIB
    assert gap.size == 30 * MIB
    assert allocator.allocate(3 * MIB).address == small.address + 16 * MIB
    assert allocator.allocate(39 * MIB).size == 40 * MIB
