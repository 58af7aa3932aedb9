def test_a_cell_is_described_by_what_sets_it_apart():
    cells = [Accumulation(additions=1, cast=cast) for cast in (False, True)]
    assert describe(cells[1], cells) == "cast=True"
    assert describe(cells[0], cells[:1]) == "accumulator=fp32 addend=fp32 cast=False additions=1"
