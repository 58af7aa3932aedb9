"""Peak rates, memory and power limits of GPU models: the only table of them. No torch here.

To add a GPU, add its entry to GPUS. No measured code imports this module, so nothing is measured again.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Dense peak rates and limits of one GPU model."""

    names: str
    """A regular expression that matches the driver's whole name of the GPU, without a leading "NVIDIA "."""
    bf16: float
    """bf16 matmul on the tensor cores, without sparsity, accumulated in fp32, FLOP/s; on GPUs whose tensor cores have
    no bf16, the rate of fp32, in which such a matmul runs there."""
    fp32: float
    """fp32 outside the tensor cores (TF32 off), FLOP/s."""
    bandwidth: float
    """Device memory, bytes/s."""
    memory: float
    """Device memory, bytes: as many GB as the document says."""
    power_limit: float
    """The driver's default power limit, W, as nvidia-smi prints it."""
    link: float | None
    """NVLink bandwidth to the other GPUs, one direction, bytes/s; None for cards without NVLink, or with an option."""
    source: str
    """The document that the numbers are from."""
    url: str
    """The document's address."""

    def flops(self, precision: str) -> float:
        """Peak rate of the precision that a matmul runs in, FLOP/s."""
        return self.bf16 if precision == "bf16" else self.fp32


def _gpu(
    names: str,
    tflops: tuple[float, float],
    memory: tuple[float, float],
    watts: float,
    source: str,
    *,
    link_gb: float | None = None,
) -> Gpu:
    """An entry in the units of data sheets.

    Args:
        names: as in Gpu.
        tflops: bf16 and fp32, TFLOP/s.
        memory: TB/s and GB.
        watts: the power limit.
        source: a key of DOCUMENTS, and after a comma, if need be, which of its columns.
        link_gb: GB/s in one direction.
    """
    return Gpu(
        names=names,
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
DOCUMENTS = {
    "NVIDIA V100 data sheet": "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    "NVIDIA T4 data sheet": f"{_SHEETS}/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
    "NVIDIA A10 data sheet": f"{_SHEETS}/a10/pdf/a10-datasheet.pdf",
    "NVIDIA A30 data sheet": f"{_SHEETS}/products/a30-gpu/pdf/a30-datasheet.pdf",
    "NVIDIA A100 data sheet": f"{_SHEETS}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
    "NVIDIA H100 data sheet": f"{_NVIDIA}/data-center/h100/",
    "NVIDIA H200 data sheet": f"{_NVIDIA}/data-center/h200/",
    # Not public; several vendors of servers quote it.
    "NVIDIA HGX H20 data sheet": f"{_NVIDIA}/data-center/hgx/",
    "NVIDIA GH200 data sheet": f"{_NVIDIA}/data-center/grace-hopper-superchip/",
    "NVIDIA GB200 NVL72 data sheet": f"{_NVIDIA}/data-center/gb200-nvl72/",
    "NVIDIA HGX B200 data sheet": f"{_NVIDIA}/data-center/hgx/",
    "NVIDIA HGX B300 data sheet": f"{_NVIDIA}/data-center/hgx/",
    "NVIDIA L4 data sheet": f"{_NVIDIA}/data-center/l4/",
    "NVIDIA L40S data sheet": f"{_NVIDIA}/data-center/l40s/",
    "NVIDIA RTX 6000 Ada data sheet": f"{_NVIDIA}/products/workstations/rtx-6000/",
    "NVIDIA Ampere GA102 architecture whitepaper": "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
    "NVIDIA Ada architecture whitepaper": f"{_PAPERS}/ada/nvidia-ada-gpu-architecture.pdf",
    "NVIDIA RTX Blackwell architecture whitepaper": f"{_PAPERS}/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
}
"""Address of each document."""

# Data sheets quote tensor rates with sparsity, and links in both directions together: halved here. The driver's default
# limit of an H20, a GH200, a GB200 and a B300 is its own; elsewhere it is the data sheet's.
GPUS = (
    _gpu("Tesla V100-SXM2-16GB", (15.7, 15.7), (0.900, 16), 300, "NVIDIA V100 data sheet, SXM2", link_gb=150),
    _gpu("Tesla V100-SXM2-32GB", (15.7, 15.7), (0.900, 32), 300, "NVIDIA V100 data sheet, SXM2", link_gb=150),
    _gpu("Tesla V100-PCIE-16GB", (14, 14), (0.900, 16), 250, "NVIDIA V100 data sheet, PCIe"),
    _gpu("Tesla V100-PCIE-32GB", (14, 14), (0.900, 32), 250, "NVIDIA V100 data sheet, PCIe"),
    _gpu("(Tesla )?T4", (8.1, 8.1), (0.300, 16), 70, "NVIDIA T4 data sheet"),
    _gpu("A10", (125, 31.2), (0.600, 24), 150, "NVIDIA A10 data sheet"),
    _gpu("A30", (165, 10.3), (0.933, 24), 165, "NVIDIA A30 data sheet"),
    _gpu("A100-SXM4-40GB", (312, 19.5), (1.555, 40), 400, "NVIDIA A100 data sheet", link_gb=300),
    _gpu("A100-SXM4?-80GB", (312, 19.5), (2.039, 80), 400, "NVIDIA A100 data sheet", link_gb=300),
    _gpu("A100-PCIE-40GB", (312, 19.5), (1.555, 40), 250, "NVIDIA A100 data sheet"),
    _gpu("A100 80GB PCIe", (312, 19.5), (1.935, 80), 300, "NVIDIA A100 data sheet"),
    _gpu("H100 PCIe", (756, 51), (2.0, 80), 350, "NVIDIA H100 data sheet"),
    _gpu("H100 NVL", (835.5, 60), (3.9, 94), 400, "NVIDIA H100 data sheet, NVL"),
    _gpu("H100 80GB HBM3", (989, 67), (3.35, 80), 700, "NVIDIA H100 data sheet, SXM", link_gb=450),
    _gpu("H200", (989, 67), (4.8, 141), 700, "NVIDIA H200 data sheet, SXM", link_gb=450),
    _gpu("H200 NVL", (835.5, 60), (4.8, 141), 600, "NVIDIA H200 data sheet, NVL"),
    _gpu("H20", (148, 44), (4.0, 96), 500, "NVIDIA HGX H20 data sheet, as vendors quote it", link_gb=450),
    # Their names include the memory of the processor next to the GPU.
    _gpu("GH200 (120|480)GB", (989, 67), (4.0, 96), 900, "NVIDIA GH200 data sheet, HBM3"),
    _gpu("GH200 144G HBM3e", (989, 67), (4.9, 144), 900, "NVIDIA GH200 data sheet, HBM3e"),
    _gpu("GB200", (2500, 80), (8.0, 186), 1200, "NVIDIA GB200 NVL72 data sheet, one of 72 GPUs", link_gb=900),
    _gpu(
        "B200",
        (2250, 75),
        (7.7, 180),
        1000,
        "NVIDIA HGX B200 data sheet, one eighth of the eight GPUs' rates",
        link_gb=900,
    ),
    _gpu(
        "B300 SXM6 AC",
        (2250, 75),
        (8.0, 288),
        1100,
        "NVIDIA HGX B300 data sheet, one eighth of the eight GPUs' rates",
        link_gb=900,
    ),
    _gpu("L4", (121, 30.3), (0.300, 24), 72, "NVIDIA L4 data sheet"),
    _gpu("L40S", (362, 91.6), (0.864, 48), 350, "NVIDIA L40S data sheet"),
    _gpu("RTX A6000", (154.8, 38.7), (0.768, 48), 300, "NVIDIA Ampere GA102 architecture whitepaper, appendix C"),
    _gpu("RTX 6000 Ada Generation", (364.2, 91.1), (0.960, 48), 300, "NVIDIA RTX 6000 Ada data sheet"),
    _gpu("GeForce RTX 3090", (71, 35.6), (0.936, 24), 350, "NVIDIA Ampere GA102 architecture whitepaper, appendix A"),
    _gpu("GeForce RTX 4090", (165.2, 82.6), (1.008, 24), 450, "NVIDIA Ada architecture whitepaper"),
    _gpu("GeForce RTX 5090", (209.5, 104.8), (1.792, 32), 575, "NVIDIA RTX Blackwell architecture whitepaper"),
)


def gpu_of(name: str) -> Gpu | None:
    """Look up the GPU model of a driver's name; None for a CPU or an unlisted GPU.

    A part of a GPU (MIG) has another name, and is not listed: its peaks are not those of the whole.
    """
    return next((gpu for gpu in GPUS if re.fullmatch(f"(NVIDIA )?({gpu.names})", name)), None)


def listed(name: str) -> Gpu:
    """Look up the GPU model of a name that must be in the table.

    Raises:
        ValueError: the name is not in the table.
    """
    if gpu := gpu_of(name):
        return gpu
    raise ValueError(f"the GPU is {name!r}; allowed: one with an entry in cs336_systems/measure/gpus.py")
