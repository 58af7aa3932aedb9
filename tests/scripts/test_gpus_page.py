"""The page of GPUs has the tables of the list and of the plan."""

from cs336_systems.measure.gpus import GPUS
from scripts.gpus_page import CLASSES, PAGE, with_tables
from tests.samples import ROOT


def test_it_is_up_to_date():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == with_tables(page), f"{PAGE} is stale: python -m scripts.gpus_page writes its tables anew"


def test_every_listed_gpu_is_of_a_class_on_the_page():
    elsewhere = {gpu.name for gpu in GPUS if gpu.capability not in CLASSES}
    assert elsewhere == {gpu.name for gpu in GPUS if "V100" in gpu.name or "B300" in gpu.name}
