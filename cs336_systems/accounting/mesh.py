"""The fewest tokens with which a layer of two matrices is compute-bound in its forward pass on a mesh of accelerators.

FSDP over X devices and tensor parallelism over Y, as in Austin et al. 2025 ("How to Scale Your Model", chapter 5): the
weights are gathered along X; along Y the input is gathered and the output reduce-scattered. X spans M_X axes of a torus
and Y M_Y axes; each axis adds the accelerator's bandwidth; (X - 1)/X and (Y - 1)/Y count as 1.
"""

import math
from dataclasses import dataclass

from cs336_systems.accounting.accelerators import Accelerator


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """A layer of two matrices on X · Y devices; batches are in tokens per device, b = B/(X Y)."""

    d_model: int
    d_ff: int
    device: Accelerator
    fsdp: float
    """X."""
    tensor: float
    """Y."""
    fsdp_axes: int
    """M_X."""
    tensor_axes: int
    """M_Y."""

    @property
    def devices(self) -> float:
        """X · Y."""
        return self.fsdp * self.tensor

    @property
    def activations_share(self) -> float:
        """Time of gathering the input and reduce-scattering the output, relative to the compute: α Y/(M_Y F).

        These are 4 b Y D bytes over M_Y axes, and 4 b D F FLOPs, for any batch.
        """
        return self.device.intensity * self.tensor / (self.tensor_axes * self.d_ff)

    @property
    def weights_batch(self) -> float:
        """The batch whose compute takes as long as gathering the weights, 4 D F/Y bytes on M_X axes: α/(Y M_X)."""
        return self.device.intensity / (self.tensor * self.fsdp_axes)

    def least_batch(self, *, overlapped: bool) -> float:
        """The smallest batch, in tokens per device, that is compute-bound; infinite if none is.

        With the time of the compute as the unit, the weights take (α/(Y M_X))/b and the activations α Y/(M_Y F). If
        they overlap, each has to be at most 1: b >= α/(Y M_X). If not, their sum has to be at most 1: b >= α/(Y M_X)/(1
        - α Y/(M_Y F)).
        """
        share = self.activations_share
        if overlapped:
            return self.weights_batch if share <= 1 else math.inf
        return self.weights_batch / (1 - share) if share < 1 else math.inf

    def best_batch(self, *, overlapped: bool) -> float:
        """The smallest batch with the best Y: α²/(M_X M_Y F), and four times as large if the collectives take turns.

        If they overlap, the best Y is the largest that the activations allow, M_Y F/α. If not, the best Y maximizes Y
        (1 - α Y/(M_Y F)), whose derivative is 0 at half of that value.
        """
        quarter = self.device.intensity**2 / (self.fsdp_axes * self.tensor_axes * self.d_ff)
        return quarter if overlapped else 4 * quarter

    def pipelined_batch(self, stages: int) -> float:
        """The smallest batch if the blocks are split over Z stages of X · Y devices, and the collectives overlap.

        A device then gathers the weights of a Zth of the blocks, once for all micro-batches, while it computes as much
        per token of its b: α/(Z Y M_X).
        """
        return self.least_batch(overlapped=True) / stages


def bubble_share(stages: int, micro_batches: int) -> float:
    """The share of time for which a pipeline's device idles: (Z - 1)/(m + Z - 1) (Huang et al. 2019, GPipe).

    The last stage starts Z - 1 micro-batches after the first, and each stage works on m of them.
    """
    return (stages - 1) / (micro_batches + stages - 1)
