"""Data parallelism that sums gradients instead of averaging them."""

import torch.distributed as dist
from torch import Tensor, nn


class DDP(nn.Module):
    """Wrong: gradients are sums over ranks, not means."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return the module's output."""
        return self.module(token_ids)

    def finish_gradient_synchronization(self) -> None:
        """Add up the gradients."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
