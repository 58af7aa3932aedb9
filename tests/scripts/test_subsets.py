"""Whatever part of the measurements there is, the pipeline makes a report of it."""

import pytest

from tests.subsets import check_numbers, crashes, told

SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_part_of_the_tables_makes_a_report(seed, tmp_path):
    assert [told(*crash) for crash in crashes(seed, tmp_path)] == []


@pytest.mark.parametrize(
    "text", ["differ by inf%", "nan of 7.6 MiB", "-inf", "None", "(nan)", "at most nan", "inf×", "a\nNone ms\nb"]
)
def test_what_is_no_number_is_seen_wherever_it_stands(text):
    with pytest.raises(ValueError, match="prints"):
        check_numbers(text)


@pytest.mark.parametrize(
    "text", ["information", "scores.masked_fill(keys, -torch.inf)", "nano", "Nonetheless", "None of them"]
)
def test_a_word_is_a_word(text):
    check_numbers(text)
