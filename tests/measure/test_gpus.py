"""The table of GPUs: names as drivers print them, figures that a GPU can have, and where they are from."""

import re

import pytest

from cs336_systems.measure.gpus import DOCUMENTS, GPUS, full_name, gpu_of, listed

NAMES = [
    *("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB", "Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"),
    *("Tesla T4", "NVIDIA T4", "NVIDIA A10", "NVIDIA A30"),
    *("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM-80GB"),
    *("NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"),
    *("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H20"),
    *("NVIDIA GH200 120GB", "NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"),
    *("NVIDIA GB200", "NVIDIA B200", "NVIDIA B300 SXM6 AC", "NVIDIA L4", "NVIDIA L40S"),
    *("NVIDIA RTX A4000", "NVIDIA RTX A5000", "NVIDIA RTX A6000", "NVIDIA RTX 6000 Ada Generation"),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    *(f"NVIDIA GeForce RTX {model}" for model in ("3060", "3070", "3080", "3080 Ti", "3090", "3090 Ti")),
    *(
        f"NVIDIA GeForce RTX {model}"
        for model in ("4060", "4070", "4070 SUPER", "4070 Ti", "4080", "4080 SUPER", "4090")
    ),
    *(f"NVIDIA GeForce RTX {model}" for model in ("5070", "5070 Ti", "5080", "5090")),
]
"""As nvidia-smi and PyTorch print them."""
OTHERS = [
    *("", "NVIDIA Abacus", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H20-3e", "NVIDIA H20 NVL16", "NVIDIA A10G"),
    *("NVIDIA GeForce RTX 4060 Ti", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA L40"),
]
"""Of which the figures are others, or which are no GPU."""


def matching(name):
    return [gpu for gpu in GPUS if name.removeprefix("NVIDIA ") in gpu.names]


def test_each_name_is_of_one_entry_and_each_entry_has_a_name():
    found = {name: matching(name) for name in NAMES}
    assert {name for name, entries in found.items() if len(entries) != 1} == set()
    unnamed = {gpu.name for gpu in GPUS} - {gpu.name for entries in found.values() for gpu in entries}
    assert not unnamed, f"NAMES of tests/measure/test_gpus.py lacks the names that nvidia-smi prints of {unnamed}"
    assert all(gpu_of(name) is entries[0] for name, entries in found.items())


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_listed_has_no_figures(name):
    assert gpu_of(name) is None
    with pytest.raises(ValueError, match=re.escape(f"the GPU is {name!r}; allowed: ")):
        listed(name)


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        *(
            (name, "NVIDIA GeForce RTX 4090")
            for name in ("RTX 4090", "rtx4090", "GeForce RTX 4090", "4090", "RTX-4090")
        ),
        *((name, "NVIDIA GeForce RTX 4070 SUPER") for name in ("RTX4070SUPER", "rtx 4070 Super 12 GB")),
        ("nvidia-h200", "NVIDIA H200"),
        ("t4", "Tesla T4"),
        ("A100 40GB PCIe", "NVIDIA A100-PCIE-40GB"),
        ("B300", "NVIDIA B300 SXM6 AC"),
        ("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
    ],
)
def test_short_names(name, driver):
    assert listed(name).name == full_name(name) == driver


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("A100 80GB", "NVIDIA A100-SXM4-80GB or NVIDIA A100 80GB PCIe"),
        ("NVIDIA H100", "NVIDIA H100 PCIe or NVIDIA H100 NVL or NVIDIA H100 80GB HBM3"),
        ("RTX 6000", "NVIDIA RTX 6000 Ada Generation or NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
        ("RTX 3080 12GB", "NVIDIA GeForce RTX 3080 or NVIDIA GeForce RTX 3080 Ti"),  # the listed one has 10
        ("L40", "NVIDIA L40S or NVIDIA L4"),
        ("RTX 4091", "NVIDIA GeForce RTX 4090"),
        *((name, "one with an entry in cs336_systems/measure/gpus.py") for name in ("MI250", "CPU", "", "HBM3", "Ada")),
    ],
)
def test_a_name_of_no_model_or_of_several_names_those_near_it(name, models):
    for lookup in (listed, full_name):
        with pytest.raises(ValueError, match=re.escape(f"the GPU is {name!r}; allowed: {models}") + "$"):
            lookup(name)


@pytest.mark.parametrize("name", ["NVIDIA A10G", "Quadro RTX 6000", "NVIDIA GeForce RTX 4090 Laptop GPU"])
def test_a_drivers_name_that_is_not_listed_stays(name):
    assert full_name(name) == name


def test_a_geforce_accumulates_in_fp32_at_twice_its_rate_outside_the_tensor_cores():
    for gpu in GPUS:
        if "GeForce" in gpu.name:
            assert gpu.bf16 / gpu.fp32 == pytest.approx(2, rel=0.01), gpu.name


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_figures_are_in_si_units_and_have_a_source(gpu):
    assert 5e12 < gpu.fp32 <= gpu.bf16 < 3e15
    assert (gpu.flops("bf16"), gpu.flops("fp32")) == (gpu.bf16, gpu.fp32)
    assert 2e11 < gpu.bandwidth < 1e13
    assert 8e9 <= gpu.memory < 300e9
    assert 50 < gpu.power_limit <= 1200
    assert gpu.link is None or 1e11 < gpu.link < 1e12
    assert gpu.capability in {(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)}
    assert 8 < gpu.fp32 / gpu.bandwidth < 110  # FLOPs per byte
    assert gpu.source.partition(",")[0] in DOCUMENTS
    assert gpu.url.startswith("https://")


def test_the_recorded_report_is_relative_to_these():
    gpu = listed("NVIDIA H200")
    assert (gpu.bf16, gpu.fp32, gpu.bandwidth, gpu.link) == (989e12, 67e12, 4.8e12, 450e9)
    assert (gpu.power_limit, gpu.source) == (700, "NVIDIA H200 data sheet, SXM")


@pytest.mark.parametrize(
    ("name", "tflops"),
    [  # as the data sheets have them: FP8, fp16, bf16, TF32, fp32
        ("NVIDIA H200", (1979, 989, 989, 494.7, 67)),
        ("NVIDIA L4", (242, 121, 121, 60, 30.3)),
        ("NVIDIA A100-SXM4-80GB", (312, 312, 312, 156, 19.5)),
        ("NVIDIA GeForce RTX 3090", (71, 71, 71, 35.6, 35.6)),
        ("Tesla V100-SXM2-32GB", (15.7, 125, 15.7, 15.7, 15.7)),
        ("Tesla T4", (8.1, 65, 8.1, 8.1, 8.1)),
        ("NVIDIA B200", (4500, 2250, 2250, 1100, 75)),
    ],
)
def test_each_precision_has_a_peak(name, tflops):
    gpu = listed(name)
    for precision, rate in zip(("fp8", "fp16", "bf16", "tf32", "fp32"), tflops, strict=True):
        assert gpu.flops(precision) / 1e12 == pytest.approx(rate, rel=0.03), precision
    with pytest.raises(KeyError):
        gpu.flops("int8")
