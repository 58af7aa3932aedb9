"""The data dictionary is that of the code."""

from scripts.data_dictionary import DICTIONARY, dictionary
from tests.samples import ROOT


def test_it_is_up_to_date():
    made = (ROOT / DICTIONARY).read_text(encoding="utf-8")
    assert made == dictionary(), f"{DICTIONARY} is stale: python -m scripts.data_dictionary makes it anew"
