"""Whatever part of the measurements there is, the pipeline makes a report of it."""

import pytest

from tests.subsets import crashes, told

SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_part_of_the_tables_makes_a_report(seed, tmp_path):
    assert [told(*crash) for crash in crashes(seed, tmp_path)] == []
