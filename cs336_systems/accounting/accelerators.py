"""The accelerator whose rates closed forms of parallelism use."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """Rates and memory of an accelerator."""

    name: str
    flops: float
    """C, matrix multiplies in bf16, FLOP/s."""
    bandwidth: float
    """W, bytes/s sent to its neighbours; on a torus in both directions of one axis."""
    memory: float
    """Device memory, bytes."""

    @property
    def intensity(self) -> float:
        """α = C/W: FLOPs in the time needed to send a byte."""
        return self.flops / self.bandwidth


TPU_V5P = Accelerator(name="TPU v5p", flops=4.6e14, bandwidth=2 * 9e10, memory=95e9)
"""Rates of the handout and of Austin et al. 2025, "How to Scale Your Model", chapter 2."""
