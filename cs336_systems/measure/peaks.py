"""Peak rates of GPUs from their vendor's data sheets: the ceilings that utilization is relative to."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Dense peak rates of one GPU model."""

    bf16: float
    """bf16 matrix multiply on the tensor cores, without sparsity, FLOP/s."""
    fp32: float
    """fp32 outside the tensor cores (TF32 off), FLOP/s."""
    bandwidth: float
    """Device memory, bytes/s."""
    link: float | None
    """What a GPU can send to the others over NVLink, bytes/s; None for cards without it, or with it as an option."""
    source: str
    """The document that the rates are from."""

    def flops(self, precision: str) -> float:
        """Peak of the precision that a matrix multiply runs in, FLOP/s."""
        return self.bf16 if precision == "bf16" else self.fp32


def _peak(
    bf16_tflops: float, fp32_tflops: float, bandwidth_tb: float, source: str, *, link_gb: float | None = None
) -> Peak:
    return Peak(
        bf16=bf16_tflops * 1e12,
        fp32=fp32_tflops * 1e12,
        bandwidth=bandwidth_tb * 1e12,
        link=link_gb and link_gb * 1e9,
        source=source,
    )


# Keyed by the name that the driver reports. Data sheets quote tensor rates with sparsity, and links in both directions
# together: halved here.
PEAKS = {
    "NVIDIA A10": _peak(125, 31.2, 0.600, "NVIDIA A10 data sheet"),
    "NVIDIA A100-SXM4-40GB": _peak(312, 19.5, 1.555, "NVIDIA A100 data sheet", link_gb=300),
    "NVIDIA A100-SXM4-80GB": _peak(312, 19.5, 2.039, "NVIDIA A100 data sheet", link_gb=300),
    "NVIDIA A100 80GB PCIe": _peak(312, 19.5, 1.935, "NVIDIA A100 data sheet"),
    "NVIDIA H100 PCIe": _peak(756, 51, 2.0, "NVIDIA H100 data sheet"),
    "NVIDIA H100 80GB HBM3": _peak(989, 67, 3.35, "NVIDIA H100 data sheet, SXM", link_gb=450),
    "NVIDIA H200": _peak(989, 67, 4.8, "NVIDIA H200 data sheet, SXM", link_gb=450),
    "NVIDIA B200": _peak(2250, 75, 7.7, "NVIDIA HGX B200 data sheet, one eighth of the eight GPUs' rates", link_gb=900),
    "NVIDIA L4": _peak(121, 30.3, 0.300, "NVIDIA L4 data sheet"),
    "NVIDIA L40S": _peak(362, 91.6, 0.864, "NVIDIA L40S data sheet"),
    "NVIDIA GeForce RTX 4090": _peak(165.2, 82.6, 1.008, "NVIDIA Ada architecture whitepaper"),
}


def peak_of(gpu: str) -> Peak | None:
    """The peak rates of a GPU model, or None where the table has none (a CPU, an unlisted GPU)."""
    return PEAKS.get(gpu)
