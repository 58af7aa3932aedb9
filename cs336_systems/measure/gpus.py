"""Names, peak rates, memory and power limits of GPU models: the only table of them. No torch here.

To add a GPU, add its entry to GPUS. Measured code uses it only to check that a time is possible, so nothing is measured
again.
"""

import difflib
import re
from dataclasses import dataclass

NVIDIA = "NVIDIA "
FIRST_BF16, FIRST_FP8 = (8, 0), (8, 9)
"""The first compute capabilities whose tensor cores multiply bf16, and FP8."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Dense peak rates and limits of one GPU model."""

    names: tuple[str, ...]
    """The driver's names of the GPU, today's first, without a leading "NVIDIA "."""
    capability: tuple[int, int]
    """Compute capability, which names the class of chip: (8, 9) is sm_89."""
    bf16: float
    """bf16 matmul on the tensor cores, without sparsity, accumulated in fp32, FLOP/s; on GPUs whose tensor cores lack
    bf16, the fp32 rate, at which such a matmul runs there."""
    fp32: float
    """fp32 outside the tensor cores (TF32 off), FLOP/s."""
    bandwidth: float
    """Device memory, bytes/s."""
    memory: float
    """Device memory, bytes, from the document's GB."""
    power_limit: float
    """The driver's default power limit, W, as nvidia-smi prints it."""
    link: float | None
    """NVLink bandwidth to the other GPUs, one direction, bytes/s; None for GPUs without NVLink, or where it is an
    option."""
    source: str
    """The source document of the numbers."""
    url: str
    """The document's address."""

    @property
    def name(self) -> str:
        """The name printed by today's driver."""
        return self.names[0] if self.names[0].startswith("Tesla ") else f"{NVIDIA}{self.names[0]}"

    def flops(self, precision: str) -> float:
        """Peak rate of a matmul's precision, FLOP/s; GPUs without that precision run the matmul in the next larger one.

        Tensor cores multiply FP8 twice as fast as bf16, and TF32 half as fast. Tensor cores without bf16 multiply fp16,
        eight times as fast as the fp32 units.
        """
        rates = {
            "fp8": 2 * self.bf16 if self.capability >= FIRST_FP8 else self.bf16,
            "fp16": self.bf16 if self.capability >= FIRST_BF16 else 8 * self.fp32,
            "bf16": self.bf16,
            "tf32": max(self.bf16 / 2, self.fp32),
            "fp32": self.fp32,
        }
        return rates[precision]

    def accurate_flops(self, precision: str) -> float:
        """Peak rate of matmuls as accurate as a precision, FLOP/s: six bf16 matmuls are as accurate as one in fp32."""
        return max(self.fp32, self.bf16 / 6) if precision == "fp32" else self.flops(precision)


def _gpu(
    names: str,
    capability: tuple[int, int],
    tflops: tuple[float, float],
    memory: tuple[float, float],
    watts: float,
    source: str,
    *,
    link_gb: float | None = None,
) -> Gpu:
    """Make an entry from the units of data sheets: TFLOP/s of bf16 and fp32, TB/s and GB of memory, W and GB/s.

    There is a | between names. The source is a key of DOCUMENTS and, if needed, after a comma, one of its columns.
    """
    return Gpu(
        names=tuple(names.split("|")),
        capability=capability,
        bf16=tflops[0] * 1e12,
        fp32=tflops[1] * 1e12,
        bandwidth=memory[0] * 1e12,
        memory=memory[1] * 1e9,
        power_limit=watts,
        link=link_gb and link_gb * 1e9,
        source=source,
        url=DOCUMENTS[source.partition(",")[0]],
    )


_NVIDIA = "https://www.nvidia.com/en-us"
_SHEETS = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
_PAPERS = "https://images.nvidia.com/aem-dam/Solutions/geforce"
_AMPERE = "NVIDIA Ampere GA102 architecture whitepaper"
_ADA = "NVIDIA Ada architecture whitepaper"
_BLACKWELL = "NVIDIA RTX Blackwell architecture whitepaper"
_PAGES = {
    "3060": "30-series/rtx-3060-3060ti",
    "3080": "30-series/rtx-3080-3080ti",
    "4060": "40-series/rtx-4060-4060ti",
    "4070": "40-series/rtx-4070-family",
    "4080": "40-series/rtx-4080-family",
}
DOCUMENTS = {
    "NVIDIA V100 data sheet": "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    "NVIDIA T4 product brief": f"{_SHEETS}/tesla-t4/t4-tensor-core-product-brief.pdf",
    "NVIDIA A10 data sheet": f"{_SHEETS}/a10/pdf/a10-datasheet.pdf",
    "NVIDIA A30 data sheet": f"{_SHEETS}/products/a30-gpu/pdf/a30-datasheet.pdf",
    "NVIDIA A100 data sheet": f"{_SHEETS}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
    "NVIDIA H100 data sheet": f"{_NVIDIA}/data-center/h100/",
    "NVIDIA H200 data sheet": f"{_NVIDIA}/data-center/h200/",
    # Not public; several server vendors quote it.
    "NVIDIA HGX H20 data sheet": f"{_NVIDIA}/data-center/hgx/",
    "NVIDIA GH200 data sheet": f"{_NVIDIA}/data-center/grace-hopper-superchip/",
    "NVIDIA GB200 NVL72 data sheet": f"{_NVIDIA}/data-center/gb200-nvl72/",
    "NVIDIA HGX B200 data sheet": f"{_NVIDIA}/data-center/hgx/",
    "NVIDIA HGX B300 data sheet": f"{_NVIDIA}/data-center/hgx/",
    "NVIDIA L4 data sheet": f"{_NVIDIA}/data-center/l4/",
    "NVIDIA L40S data sheet": f"{_NVIDIA}/data-center/l40s/",
    "NVIDIA RTX 6000 Ada data sheet": f"{_NVIDIA}/products/workstations/rtx-6000/",
    "NVIDIA RTX A4000 data sheet": f"{_NVIDIA}/design-visualization/rtx-a4000/",
    "NVIDIA RTX A5000 data sheet": f"{_NVIDIA}/design-visualization/rtx-a5000/",
    "NVIDIA RTX PRO 6000 Blackwell data sheet": f"{_NVIDIA}/products/workstations/rtx-pro-6000/",
    **{
        f"NVIDIA GeForce RTX {series} page": f"{_NVIDIA}/geforce/graphics-cards/{path}/"
        for series, path in _PAGES.items()
    },
    _AMPERE: "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
    _ADA: f"{_PAPERS}/ada/nvidia-ada-gpu-architecture.pdf",
    _BLACKWELL: f"{_PAPERS}/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
}

# Data sheets quote tensor rates with sparsity, and links in both directions together: halved here. H20, GH200, GB200
# and B300 have their own default limits in the driver; elsewhere it is the data sheet's.
GPUS = (
    _gpu("Tesla V100-SXM2-16GB", (7, 0), (15.7, 15.7), (0.900, 16), 300, "NVIDIA V100 data sheet, SXM2", link_gb=150),
    _gpu("Tesla V100-SXM2-32GB", (7, 0), (15.7, 15.7), (0.900, 32), 300, "NVIDIA V100 data sheet, SXM2", link_gb=150),
    _gpu("Tesla V100-PCIE-16GB", (7, 0), (14, 14), (0.900, 16), 250, "NVIDIA V100 data sheet, PCIe"),
    _gpu("Tesla V100-PCIE-32GB", (7, 0), (14, 14), (0.900, 32), 250, "NVIDIA V100 data sheet, PCIe"),
    _gpu("Tesla T4|T4", (7, 5), (8.1, 8.1), (0.320, 16), 70, "NVIDIA T4 product brief"),
    _gpu("A10", (8, 6), (125, 31.2), (0.600, 24), 150, "NVIDIA A10 data sheet"),
    _gpu("A30", (8, 0), (165, 10.3), (0.933, 24), 165, "NVIDIA A30 data sheet"),
    _gpu("A100-SXM4-40GB", (8, 0), (312, 19.5), (1.555, 40), 400, "NVIDIA A100 data sheet", link_gb=300),
    _gpu("A100-SXM4-80GB|A100-SXM-80GB", (8, 0), (312, 19.5), (2.039, 80), 400, "NVIDIA A100 data sheet", link_gb=300),
    _gpu("A100-PCIE-40GB", (8, 0), (312, 19.5), (1.555, 40), 250, "NVIDIA A100 data sheet"),
    _gpu("A100 80GB PCIe", (8, 0), (312, 19.5), (1.935, 80), 300, "NVIDIA A100 data sheet"),
    _gpu("H100 PCIe", (9, 0), (756, 51), (2.0, 80), 350, "NVIDIA H100 data sheet"),
    _gpu("H100 NVL", (9, 0), (835.5, 60), (3.9, 94), 400, "NVIDIA H100 data sheet, NVL"),
    _gpu("H100 80GB HBM3", (9, 0), (989, 67), (3.35, 80), 700, "NVIDIA H100 data sheet, SXM", link_gb=450),
    _gpu("H200", (9, 0), (989, 67), (4.8, 141), 700, "NVIDIA H200 data sheet, SXM", link_gb=450),
    _gpu("H200 NVL", (9, 0), (835.5, 60), (4.8, 141), 600, "NVIDIA H200 data sheet, NVL"),
    _gpu("H20", (9, 0), (148, 44), (4.0, 96), 500, "NVIDIA HGX H20 data sheet, as vendors quote it", link_gb=450),
    # Their names include the memory of the processor next to the GPU.
    _gpu("GH200 120GB|GH200 480GB", (9, 0), (989, 67), (4.0, 96), 900, "NVIDIA GH200 data sheet, HBM3"),
    _gpu("GH200 144G HBM3e", (9, 0), (989, 67), (4.9, 144), 900, "NVIDIA GH200 data sheet, HBM3e"),
    _gpu("GB200", (10, 0), (2500, 80), (8.0, 186), 1200, "NVIDIA GB200 NVL72 data sheet, one of 72 GPUs", link_gb=900),
    _gpu("B200", (10, 0), (2250, 75), (7.7, 180), 1000, "NVIDIA HGX B200 data sheet, one of 8 GPUs", link_gb=900),
    _gpu("B300 SXM6 AC", (10, 3), (2250, 75), (8, 288), 1100, "NVIDIA HGX B300 data sheet, one of 8 GPUs", link_gb=900),
    _gpu("L4", (8, 9), (121, 30.3), (0.300, 24), 72, "NVIDIA L4 data sheet"),
    _gpu("L40S", (8, 9), (362, 91.6), (0.864, 48), 350, "NVIDIA L40S data sheet"),
    _gpu("RTX A4000", (8, 6), (76.7, 19.2), (0.448, 16), 140, "NVIDIA RTX A4000 data sheet"),
    _gpu("RTX A5000", (8, 6), (111.1, 27.8), (0.768, 24), 230, "NVIDIA RTX A5000 data sheet"),
    _gpu("RTX A6000", (8, 6), (154.8, 38.7), (0.768, 48), 300, f"{_AMPERE}, appendix C"),
    _gpu("RTX 6000 Ada Generation", (8, 9), (364.2, 91.1), (0.960, 48), 300, "NVIDIA RTX 6000 Ada data sheet"),
    _gpu(
        "RTX PRO 6000 Blackwell Workstation Edition",
        (12, 0),
        (503.8, 126),
        (1.792, 96),
        600,
        "NVIDIA RTX PRO 6000 Blackwell data sheet",
    ),
    # A GeForce's fp32 rate is twice its cores times its boost clock. Its tensor cores run at half rate if they
    # accumulate in fp32: twice the fp32 rate. Models that share a name differ in memory: an RTX 3060 with 8 GB and an
    # RTX 3080 with 12 GB fail the self-check `card_has_its_memory`; the RTX 4060 Ti and 5060 Ti are not listed.
    _gpu("GeForce RTX 3060", (8, 6), (25.5, 12.7), (0.360, 12), 170, "NVIDIA GeForce RTX 3060 page"),
    _gpu("GeForce RTX 3070", (8, 6), (40.6, 20.3), (0.448, 8), 220, f"{_AMPERE}, appendix B"),
    _gpu("GeForce RTX 3080", (8, 6), (59.5, 29.8), (0.760, 10), 320, f"{_AMPERE}, appendix A"),
    _gpu("GeForce RTX 3080 Ti", (8, 6), (68.2, 34.1), (0.912, 12), 350, "NVIDIA GeForce RTX 3080 page"),
    _gpu("GeForce RTX 3090", (8, 6), (71, 35.6), (0.936, 24), 350, f"{_AMPERE}, appendix A"),
    _gpu("GeForce RTX 3090 Ti", (8, 6), (80, 40), (1.008, 24), 450, _ADA),
    _gpu("GeForce RTX 4060", (8, 9), (30.2, 15.1), (0.272, 8), 115, "NVIDIA GeForce RTX 4060 page"),
    _gpu("GeForce RTX 4070", (8, 9), (58.3, 29.1), (0.504, 12), 200, "NVIDIA GeForce RTX 4070 page"),
    _gpu("GeForce RTX 4070 SUPER", (8, 9), (71, 35.5), (0.504, 12), 220, "NVIDIA GeForce RTX 4070 page"),
    _gpu("GeForce RTX 4070 Ti", (8, 9), (80.2, 40.1), (0.504, 12), 285, "NVIDIA GeForce RTX 4070 page"),
    _gpu("GeForce RTX 4080", (8, 9), (97.5, 48.7), (0.717, 16), 320, _ADA),
    _gpu("GeForce RTX 4080 SUPER", (8, 9), (104.4, 52.2), (0.736, 16), 320, "NVIDIA GeForce RTX 4080 page"),
    _gpu("GeForce RTX 4090", (8, 9), (165.2, 82.6), (1.008, 24), 450, _ADA),
    _gpu("GeForce RTX 5070", (12, 0), (61.7, 30.9), (0.672, 12), 250, _BLACKWELL),
    _gpu("GeForce RTX 5070 Ti", (12, 0), (87.9, 43.9), (0.896, 16), 300, _BLACKWELL),
    _gpu("GeForce RTX 5080", (12, 0), (112.6, 56.3), (0.960, 16), 360, _BLACKWELL),
    _gpu("GeForce RTX 5090", (12, 0), (209.5, 104.8), (1.792, 32), 575, _BLACKWELL),
)

_BY_NAME = {name: gpu for gpu in GPUS for name in gpu.names}
DRIVERS = (NVIDIA, "Tesla ", "Quadro ")


def gpu_of(name: str) -> Gpu | None:
    """Look up the GPU model of a driver's name; None for a CPU or an unlisted GPU.

    A GPU partition (MIG) has another name and is not listed: its peaks differ from the whole GPU's.
    """
    return _BY_NAME.get(name.removeprefix(NVIDIA))


def listed(name: str) -> Gpu:
    """Look up the GPU model for a driver's or a user's name: "RTX 4090", "rtx4090", "A100 40GB PCIe".

    If the name matches none or several, a ValueError lists similar models, or else all.
    """
    meant = candidates(name)
    if len(meant) == 1:
        return meant[0]
    allowed = " or ".join(near(name)) or ", ".join(re.sub("^(GeForce|Tesla) ", "", gpu.names[0]) for gpu in GPUS)
    raise ValueError(f"the GPU is {name!r}; allowed: {allowed}")


def full_name(name: str) -> str:
    """Spell out a GPU model's name as the driver does; a driver's name of an unlisted model is unchanged."""
    if name.startswith(DRIVERS) and (gpu_of(name) or not candidates(name)):
        return name
    return listed(name).name


def near(name: str) -> list[str]:
    """The names of the models that a name may mean, or else of models with its number or a similar spelling."""
    words, _ = _words(name)
    if meant := candidates(name) or [gpu for gpu in GPUS if _model(gpu.names[0]) in words]:
        return [gpu.name for gpu in meant]
    spelt = {spelling: gpu.name for gpu in GPUS for spelling in _spellings(gpu)}
    return [spelt[spelling] for spelling in difflib.get_close_matches("".join(words), spelt)]


def candidates(name: str) -> list[Gpu]:
    """The GPU models that a name may mean: the model with that name, or else the models whose names have all its words.

    A last word such as 80GB is the memory: models with another amount are left out.
    """
    if gpu := gpu_of(name):
        return [gpu]
    words, memory = _words(name)
    matching = [gpu for gpu in GPUS if "".join(words) in _spellings(gpu)] or [gpu for gpu in GPUS if _has(gpu, words)]
    return [gpu for gpu in matching if memory in ("", f"{gpu.memory / 1e9:.0f}")]


def _words(name: str) -> tuple[list[str], str]:
    """The words of a name in lower case, without vendor and brand, and the GB of memory at its end."""
    words = re.sub(r"nvidia|geforce|tesla|rtx|-", " ", name.lower())
    rest, _, memory = re.fullmatch(r"(.*?)( ([0-9]+) ?gb)?\s*", words, re.S).groups("")  # type: ignore[union-attr]
    return rest.split(), memory


def _parts(name: str) -> list[str]:
    """The words of a driver's name, which may have its memory anywhere."""
    words, memory = _words(name)
    return [*words, *([f"{memory}gb"] if memory else [])]


def _spellings(gpu: Gpu) -> list[str]:
    return ["".join(_parts(name)) for name in gpu.names]


def _model(name: str) -> str:
    """The word of a driver's name that names the model: the first one with a digit."""
    return next(word for word in _parts(name) if re.search("[0-9]", word))


def _has(gpu: Gpu, words: list[str]) -> bool:
    """Whether one of a model's names has all words, its model among them: "A100", but not "HBM3"."""
    return any(_model(name) in words and set(words) <= set(_parts(name)) for name in gpu.names)
