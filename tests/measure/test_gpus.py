"""The table of GPUs: names as drivers print them, figures that a GPU can have, and where they are from."""

import re

import pytest

from cs336_systems.measure.gpus import DOCUMENTS, GPUS, gpu_of, listed

NAMES = [
    *("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB", "Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"),
    *("Tesla T4", "NVIDIA T4", "NVIDIA A10", "NVIDIA A30"),
    *("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM-80GB"),
    *("NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"),
    *("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H20"),
    *("NVIDIA GH200 120GB", "NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"),
    *("NVIDIA GB200", "NVIDIA B200", "NVIDIA B300 SXM6 AC", "NVIDIA L4", "NVIDIA L40S"),
    *("NVIDIA RTX A6000", "NVIDIA RTX 6000 Ada Generation"),
    *("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090"),
]
"""As nvidia-smi and PyTorch print them."""
OTHERS = [
    *("", "NVIDIA Abacus", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H20-3e", "NVIDIA H20 NVL16", "NVIDIA A10G"),
    *("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA L40"),
]
"""Of which the figures are others, or which are no GPU."""


def matching(name):
    return [gpu for gpu in GPUS if re.fullmatch(f"(NVIDIA )?({gpu.names})", name)]


def test_each_name_is_of_one_entry_and_each_entry_has_a_name():
    found = {name: matching(name) for name in NAMES}
    assert {name for name, entries in found.items() if len(entries) != 1} == set()
    assert {gpu for entries in found.values() for gpu in entries} == set(GPUS)
    assert all(gpu_of(name) is entries[0] for name, entries in found.items())


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_listed_has_no_figures(name):
    assert gpu_of(name) is None
    with pytest.raises(ValueError, match=re.escape(f"the GPU is {name!r}; allowed: one with an entry in ")):
        listed(name)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.names)
def test_figures_are_in_si_units_and_have_a_source(gpu):
    assert 5e12 < gpu.fp32 <= gpu.bf16 < 3e15
    assert (gpu.flops("bf16"), gpu.flops("fp32")) == (gpu.bf16, gpu.fp32)
    assert 2e11 < gpu.bandwidth < 1e13
    assert 10e9 < gpu.memory < 300e9
    assert 50 < gpu.power_limit <= 1200
    assert gpu.link is None or 1e11 < gpu.link < 1e12
    assert 8 < gpu.fp32 / gpu.bandwidth < 110  # FLOPs per byte
    assert gpu.source.partition(",")[0] in DOCUMENTS
    assert gpu.url.startswith("https://")


def test_the_recorded_report_is_relative_to_these():
    gpu = listed("NVIDIA H200")
    assert (gpu.bf16, gpu.fp32, gpu.bandwidth, gpu.link) == (989e12, 67e12, 4.8e12, 450e9)
    assert (gpu.power_limit, gpu.source) == (700, "NVIDIA H200 data sheet, SXM")
