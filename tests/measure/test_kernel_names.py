"""Categories and short names, of names as CUPTI and PyTorch gave them on an H200 and on a CPU."""

import pytest
import yaml

from cs336_systems.measure.kernel_names import CATEGORIES, LONGEST_NAME, categorize, is_product, short_name
from tests.samples import ROOT

NAMES = yaml.safe_load((ROOT / "tests/data/kernel_names.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kernel", NAMES, ids=lambda kernel: kernel[0][:60])
def test_a_name_tells_what_a_kernel_does(kernel):
    name, category, *short = kernel
    assert categorize(name) == category
    assert short_name(name) == (short or [name])[0]


def test_where_a_kernel_was_launched_decides_on_what_several_parts_of_a_model_use():
    mean = NAMES[15][0]
    assert categorize(mean, range_="blocks.attention_norm") == "normalization"
    assert categorize(mean, range_="blocks.feed_forward") == "reduction"
    assert categorize(NAMES[10][0], stage="optimizer") == "optimizer"
    assert categorize("some_new_kernel", operator="aten::mm") == "matmul"
    assert categorize("some_new_kernel", operator="aten::sort") == "other"
    assert categorize("nvjet_x", range_="final_norm") == "matmul"


def test_every_category_occurs():
    assert {category for _, category, *_ in NAMES} == set(CATEGORIES)


def test_a_long_name_loses_its_middle():
    name = "triton_per_fused__to_copy_add_div_embedding_dense_backward_expand_mul_pow_sum_view_13"
    short = short_name(name)
    assert len(short) == LONGEST_NAME
    assert short.startswith(name[:50])
    assert short.endswith("_sum_view_13")


@pytest.mark.parametrize(
    ("name", "product"),
    [("nvjet_x", True), ("splitKreduce_kernel", False), ("aten::mm", True), ("aten::linear", False)],
)
def test_products_are_told_from_what_helps_them(name, product):
    assert is_product(name) == product
