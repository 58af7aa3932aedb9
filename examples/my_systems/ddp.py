"""Data parallelism with an all-reduce per parameter, and a bucketed variant that never sends its last bucket."""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn


class DDP(nn.Module):
    """Right: averages each gradient as soon as the backward pass has computed it."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        self.handles: list[tuple[dist.Work, Tensor]] = []
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.reduce)

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the module's output."""
        return self.module(*arguments, **keywords)

    def reduce(self, parameter: Tensor) -> None:
        """Start to sum a gradient; a tied parameter has one gradient, and one hook."""
        self.send(parameter.grad)

    def send(self, gradient: Tensor) -> None:
        """Start an all-reduce."""
        self.handles.append((dist.all_reduce(gradient, async_op=True), gradient))

    def finish_gradient_synchronization(self) -> None:
        """Wait for all gradients, and divide the sums."""
        for handle, gradient in self.handles:
            handle.wait()
            gradient /= dist.get_world_size()
        self.handles.clear()


class BucketedDDP(DDP):
    """Wrong: buckets are sent when they are full, so the last one never is."""

    def __init__(self, module: nn.Module, bucket_size_mb: float):
        super().__init__(module)
        self.capacity = bucket_size_mb * 1e6
        self.bucket: list[Tensor] = []

    def reduce(self, parameter: Tensor) -> None:
        """Put a gradient into the bucket."""
        self.bucket.append(parameter.grad)
        if sum(gradient.nbytes for gradient in self.bucket) >= self.capacity:
            for gradient in self.bucket:
                self.send(gradient)
            self.bucket.clear()
