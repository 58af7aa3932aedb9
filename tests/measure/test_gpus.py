"""The table of GPUs: names as drivers print them, figures that a GPU can have, and where they are from."""

import re
from dataclasses import dataclass

import pytest

from cs336_systems.measure.gpus import DOCUMENTS, FIRST_BF16, GPUS, full_name, gpu_of, listed

OTHER_NAMES = ["NVIDIA T4", "A100-SXM4-40GB", "NVIDIA A100-SXM-80GB", "NVIDIA GH200 480GB"]
"""Of GPUs in CHIPS, as nvidia-smi and PyTorch also print them."""
OTHERS = [
    *("", "NVIDIA Abacus", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H20-3e", "NVIDIA H20 NVL16", "NVIDIA A10G"),
    *("NVIDIA GeForce RTX 4060 Ti", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA L40"),
]
"""Names with other figures, or of no GPU."""


def test_each_name_is_of_one_entry():
    for name in (*CHIPS, *OTHER_NAMES):
        assert [gpu for gpu in GPUS if name.removeprefix("NVIDIA ") in gpu.names] == [gpu_of(name)], name


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


EVERY_MODEL = ", ".join(re.sub("^(NVIDIA )?((GeForce|Tesla) )?", "", gpu.name) for gpu in GPUS)


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("A100 80GB", "NVIDIA A100-SXM4-80GB or NVIDIA A100 80GB PCIe"),
        ("NVIDIA H100", "NVIDIA H100 PCIe or NVIDIA H100 NVL or NVIDIA H100 80GB HBM3"),
        ("RTX 6000", "NVIDIA RTX 6000 Ada Generation or NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
        ("RTX 3080 12GB", "NVIDIA GeForce RTX 3080 or NVIDIA GeForce RTX 3080 Ti"),  # the listed one has 10
        ("L40", "NVIDIA L40S or NVIDIA L4"),
        ("RTX 4091", "NVIDIA GeForce RTX 4090"),
        *((name, EVERY_MODEL) for name in ("MI250", "CPU", "", "HBM3", "Ada")),
    ],
)
def test_a_name_of_no_model_or_of_several_names_those_near_it(name, models):
    for lookup in (listed, full_name):
        with pytest.raises(ValueError, match=re.escape(f"the GPU is {name!r}; allowed: {models}") + "$"):
            lookup(name)


@pytest.mark.parametrize("name", ["NVIDIA A10G", "Quadro RTX 6000", "NVIDIA GeForce RTX 4090 Laptop GPU"])
def test_a_drivers_name_that_is_not_listed_stays(name):
    assert full_name(name) == name


@dataclass(frozen=True)
class Chip:
    """The numbers behind a GPU's peaks, from whitepapers and product briefs."""

    sms: int
    mhz: int
    """Boost clock."""
    bits: int
    """Width of the memory's bus."""
    gbps: float
    """Gbit/s of each bit of the bus."""
    links: int = 0
    """NVLinks, 25 GB/s in each direction; from compute capability 10.0, 50 GB/s."""
    tensor_mhz: int = 0
    """Boost clock of the tensor cores, where it is lower and published."""


PER_CYCLE = {
    (7, 0): (128, 1024),
    (7, 5): (128, 1024),
    (8, 0): (128, 2048),
    (8, 6): (256, 1024),
    (8, 9): (256, 1024),
    (9, 0): (256, 4096),
    (10, 0): (256, 8192),
    (10, 3): (256, 8192),
    (12, 0): (256, 1024),
}
"""FLOPs of an SM per cycle, by compute capability: in fp32, and dense in bf16 or fp16 on the tensor cores. A GeForce's
tensor cores run at half rate if they accumulate in fp32."""
TENSOR_CLOCK = {(9, 0): 0.86, (10, 0): 0.94, (10, 3): 0.94}
"""The least ratio of the tensor cores' clock to the boost clock, where data sheets assume a lower, unpublished one."""
CHIPS = {
    "Tesla V100-SXM2-16GB": Chip(80, 1530, 4096, 1.75, 6),
    "Tesla V100-SXM2-32GB": Chip(80, 1530, 4096, 1.75, 6),
    "Tesla V100-PCIE-16GB": Chip(80, 1380, 4096, 1.75),
    "Tesla V100-PCIE-32GB": Chip(80, 1380, 4096, 1.75),
    "Tesla T4": Chip(40, 1590, 256, 10),
    "NVIDIA A10": Chip(72, 1695, 384, 12.5),
    "NVIDIA A30": Chip(56, 1440, 3072, 2.43),
    "NVIDIA A100-SXM4-40GB": Chip(108, 1410, 5120, 2.43, 12),
    "NVIDIA A100-SXM4-80GB": Chip(108, 1410, 5120, 3.186, 12),
    "NVIDIA A100-PCIE-40GB": Chip(108, 1410, 5120, 2.43),
    "NVIDIA A100 80GB PCIe": Chip(108, 1410, 5120, 3.024),
    "NVIDIA H100 PCIe": Chip(114, 1755, 5120, 3.186, tensor_mhz=1620),
    "NVIDIA H100 NVL": Chip(132, 1785, 6016, 5.238),
    "NVIDIA H100 80GB HBM3": Chip(132, 1980, 5120, 5.238, 18, tensor_mhz=1830),
    "NVIDIA H200": Chip(132, 1980, 6144, 6.402, 18, tensor_mhz=1830),
    "NVIDIA H200 NVL": Chip(132, 1785, 6144, 6.402),
    "NVIDIA H20": Chip(78, 1980, 6144, 5.238, 18),
    "NVIDIA GH200 120GB": Chip(132, 1980, 6144, 5.238, tensor_mhz=1830),
    "NVIDIA GH200 144G HBM3e": Chip(132, 1980, 6144, 6.402, tensor_mhz=1830),
    "NVIDIA GB200": Chip(152, 2062, 8192, 7.992, 18),
    "NVIDIA B200": Chip(148, 1965, 7680, 7.992, 18),
    "NVIDIA B300 SXM6 AC": Chip(148, 1965, 8192, 7.992, 18),
    "NVIDIA L4": Chip(58, 2040, 192, 12.5),
    "NVIDIA L40S": Chip(142, 2520, 384, 18),
    "NVIDIA RTX A4000": Chip(48, 1560, 256, 14),
    "NVIDIA RTX A5000": Chip(64, 1695, 384, 16),
    "NVIDIA RTX A6000": Chip(84, 1800, 384, 16),
    "NVIDIA RTX 6000 Ada Generation": Chip(142, 2505, 384, 20),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": Chip(188, 2617, 512, 28),
    "NVIDIA GeForce RTX 3060": Chip(28, 1777, 192, 15),
    "NVIDIA GeForce RTX 3070": Chip(46, 1725, 256, 14),
    "NVIDIA GeForce RTX 3080": Chip(68, 1710, 320, 19),
    "NVIDIA GeForce RTX 3080 Ti": Chip(80, 1665, 384, 19),
    "NVIDIA GeForce RTX 3090": Chip(82, 1695, 384, 19.5),
    "NVIDIA GeForce RTX 3090 Ti": Chip(84, 1860, 384, 21),
    "NVIDIA GeForce RTX 4060": Chip(24, 2460, 128, 17),
    "NVIDIA GeForce RTX 4070": Chip(46, 2475, 192, 21),
    "NVIDIA GeForce RTX 4070 SUPER": Chip(56, 2475, 192, 21),
    "NVIDIA GeForce RTX 4070 Ti": Chip(60, 2610, 192, 21),
    "NVIDIA GeForce RTX 4080": Chip(76, 2505, 256, 22.4),
    "NVIDIA GeForce RTX 4080 SUPER": Chip(80, 2550, 256, 23),
    "NVIDIA GeForce RTX 4090": Chip(128, 2520, 384, 21),
    "NVIDIA GeForce RTX 5070": Chip(48, 2512, 192, 28),
    "NVIDIA GeForce RTX 5070 Ti": Chip(70, 2452, 256, 28),
    "NVIDIA GeForce RTX 5080": Chip(84, 2617, 256, 30),
    "NVIDIA GeForce RTX 5090": Chip(170, 2407, 512, 28),
}
QUOTED = {"NVIDIA H20"}
"""GPUs whose FLOP/s follow from no published clock: the H20's are limited for export."""


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_peaks_follow_from_the_chip_and_have_a_source(gpu):
    assert gpu.name in CHIPS, f"CHIPS of tests/measure/test_gpus.py lacks {gpu.name}"
    chip = CHIPS[gpu.name]
    assert gpu.bandwidth == pytest.approx(chip.bits / 8 * chip.gbps * 1e9, rel=0.025)
    assert (gpu.link or 0) == chip.links * (50e9 if gpu.capability >= (10, 0) else 25e9)
    if gpu.name not in QUOTED:
        fp32, tensor = PER_CYCLE[gpu.capability]
        assert gpu.fp32 == pytest.approx(chip.sms * fp32 * chip.mhz * 1e6, rel=0.015)
        peak = chip.sms * tensor * (chip.tensor_mhz or chip.mhz) * 1e6
        peak /= 2 if "GeForce" in gpu.name else 1
        slowest = 1 if chip.tensor_mhz else TENSOR_CLOCK.get(gpu.capability, 1)
        assert 0.985 * slowest * peak < gpu.flops("fp16") < 1.015 * peak
    if gpu.capability < FIRST_BF16:
        assert gpu.bf16 == gpu.fp32
    assert 8e9 <= gpu.memory < 300e9
    assert 50 < gpu.power_limit <= 1200
    assert gpu.source.partition(",")[0] in DOCUMENTS
    assert gpu.url.startswith("https://")


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
