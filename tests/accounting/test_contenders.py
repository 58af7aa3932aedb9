"""Sizes and groups of the weights that contenders send."""

from cs336_systems.accounting.contenders import groups, weight_bytes


def test_weights_are_listed_as_gradients_arrive():
    class Cell:
        size, vocab_size = "odd:d_model=24,d_ff=37,num_layers=2,num_heads=3", 101

    block = [3 * [24 * 37], 24, 4 * [24 * 24], 24]
    flat = [*block[0], block[1], *block[2], block[3]]
    assert weight_bytes(Cell) == [4 * numbers for numbers in [101 * 24, 24, *flat, *flat, 101 * 24]]
    assert groups([3, 3, 3, 9, 1, 1, 10, 2], 6) == 6
    assert groups([5], 1) == 1
