"""A whole training step in one CUDA graph: forward, backward, clipping and update."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.clipping import clip_scale
from cs336_systems.training.cuda_graph import capture, run_on
from cs336_systems.training.gradient_sums import GradientSums

WARM_UP_CALLS = 2
"""Calls that run eagerly before the capture: kernels are compiled, and the optimizer's state is allocated."""


class CapturedStep:
    """A training step that the host launches at once.

        step = CapturedStep(lambda x, y: loss_of(model(x), y), MasterAdamW(model.parameters(), lr=3e-4), max_norm=1.0)
        for x, y in batches:
            loss = step(x, y)

    Every call is one step of training: the first two run eagerly, the third captures the graph and replays it, as all
    later ones do. So nothing has to be undone or restored, and the results are those of eager steps, bit for bit where
    the kernels are deterministic. The graph keeps its memory (activations, gradients) until this object is deleted.
    On a CPU all calls run eagerly.

    Random numbers of the default generator, as dropout draws them, are new in each replay. What the loss function does
    on the host, such as printing or reading a value, happens only during the first three calls.
    """

    def __init__(
        self,
        loss_function: Callable[..., Tensor],
        optimizer: Optimizer,
        *,
        accumulate: int = 1,
        max_norm: float | None = None,
        update_during_backward: bool = False,
    ):
        """Prepare a step; nothing runs yet.

        Args:
            loss_function: tensors of a batch to its mean loss, a scalar; without synchronizing with the host.
            optimizer: a MasterAdamW, or an optimizer of PyTorch with capturable=True. The latter reads its learning
                rate from the device only if it is a tensor.
            accumulate: micro-batches per step, consecutive parts of the batch along its first axis. Their gradients
                are averaged, as the micro-batches have equal sizes: for a MasterAdamW in fp32 (see `GradientSums`).
            max_norm: clips the gradients to this global norm; None: no clipping.
            update_during_backward: whether a MasterAdamW updates each parameter under the backward pass (see
                `MasterAdamW.during_backward`).

        Raises:
            ValueError: accumulate or max_norm is out of range, the optimizer cannot be captured, or
                update_during_backward is combined with what needs all gradients at once.
        """
        if accumulate < 1:
            raise ValueError(f"accumulate is {accumulate}; allowed: whole numbers from 1")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm is {max_norm}; allowed: numbers above 0, or None")
        self._own = isinstance(optimizer, MasterAdamW)
        on_gpu = any(p.is_cuda for group in optimizer.param_groups for p in group["params"])
        if on_gpu and not self._own and not all(group.get("capturable") for group in optimizer.param_groups):
            name = type(optimizer).__name__
            raise ValueError(f"{name} cannot be captured; allowed: MasterAdamW, or an optimizer with capturable=True")
        if update_during_backward:
            _check_update_during_backward(optimizer, accumulate, max_norm)
        self.loss_function = loss_function
        self.optimizer = optimizer
        self.accumulate = accumulate
        self.max_norm = max_norm
        self.update_during_backward = update_during_backward
        self.graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        self._calls = 0
        self._inputs: tuple[Tensor, ...] = ()
        self._loss: Tensor
        self._fixed: list[dict[str, Any]] = []

    def __call__(self, *batch: Tensor) -> Tensor:
        """Train on a batch.

        Args:
            batch: the loss function's arguments. Those of the first call set shapes, dtypes and devices for good, on a
                GPU.

        Returns:
            the loss before the update, the mean over micro-batches: a scalar without a graph for differentiation.

        Raises:
            ValueError: a tensor differs in shape, dtype or device from the first call's, its first axis cannot be
                divided by accumulate, or a hyperparameter that the graph holds as a constant was changed.
        """
        for number, x in enumerate(batch):
            if self.accumulate > 1 and (x.dim() == 0 or len(x) % self.accumulate):
                shape = list(x.shape)
                raise ValueError(
                    f"argument {number} has shape {shape}; allowed: {self.accumulate} equal parts of axis 0"
                )
        if not self._parameters()[0].is_cuda:
            return self._step(batch)
        if not self._inputs:
            # Updates under the backward pass run on a stream of lower priority, in the gaps that this one leaves.
            self._stream = torch.cuda.Stream(priority=-1)
            device = self._parameters()[0].device
            self._inputs = tuple(torch.empty_like(x, device=device) for x in batch)
        self._check_batch(batch)
        for static, x in zip(self._inputs, batch, strict=True):
            static.copy_(x, non_blocking=True)
        self._calls += 1
        if self._calls <= WARM_UP_CALLS:
            return self._aside()
        if self.graph is None:
            self._capture()
        assert self.graph is not None
        if isinstance(self.optimizer, MasterAdamW):
            self.optimizer.upload_hyperparameters()
        elif self._constants() != self._fixed:
            raise ValueError(
                "a hyperparameter was changed after the capture; allowed: lr as a tensor, changed in place"
            )
        self.graph.replay()
        return self._loss.clone()

    def _step(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Run forward, backward and the update."""
        self.optimizer.zero_grad(set_to_none=True)  # a capture allocates them from the graph's memory
        parts = zip(*(x.chunk(self.accumulate) for x in batch), strict=True)
        total: Tensor | None = None
        optimizer = self.optimizer
        with contextlib.ExitStack() as stack:
            if self.update_during_backward:
                assert isinstance(optimizer, MasterAdamW)
                stack.callback(optimizer.during_backward().remove)
            sums = GradientSums(self._parameters() if self._own and self.accumulate > 1 else ())
            stack.enter_context(sums)
            for part in parts:
                loss = self.loss_function(*part) / self.accumulate
                loss.backward()
                total = loss.detach() if total is None else total + loss.detach()
        if isinstance(optimizer, MasterAdamW):
            scale = None
            if self.max_norm is not None:
                scale = clip_scale(self._parameters(), self.max_norm, gradients=sums.gradients)
            optimizer.step(scale=scale, gradients=sums.gradients)
        else:
            if self.max_norm is not None:
                torch.nn.utils.clip_grad_norm_(self._parameters(), self.max_norm)
            optimizer.step()
        assert total is not None
        return total

    def _aside(self) -> Tensor:
        """Run a step eagerly on the stream of the capture."""
        assert self._stream is not None
        loss = run_on(self._stream, lambda: self._step(self._inputs))
        loss.record_stream(torch.cuda.current_stream())
        return loss

    def _capture(self) -> None:
        """Record a step, which does not run yet."""
        self.optimizer.zero_grad(set_to_none=True)  # their memory is not the graph's
        if isinstance(self.optimizer, MasterAdamW):
            self.optimizer.prepare()
        assert self._stream is not None
        self.graph, self._loss = capture(self._stream, lambda: self._step(self._inputs))
        self._fixed = self._constants()

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _constants(self) -> list[dict[str, Any]]:
        """Hyperparameters that are not on the device."""
        return [
            {name: value for name, value in group.items() if name != "params" and not isinstance(value, Tensor)}
            for group in self.optimizer.param_groups
        ]

    def _check_batch(self, batch: tuple[Tensor, ...]) -> None:
        if len(batch) != len(self._inputs):
            raise ValueError(f"the batch has {len(batch)} tensors; allowed: {len(self._inputs)}, as in the first call")
        for number, (x, static) in enumerate(zip(batch, self._inputs, strict=True)):
            if (x.shape, x.dtype) != (static.shape, static.dtype):
                found, allowed = (f"shape {list(y.shape)} and {y.dtype}" for y in (x, static))
                raise ValueError(f"argument {number} has {found}; allowed: {allowed}, as in the first call")


def _check_update_during_backward(optimizer: Optimizer, accumulate: int, max_norm: float | None) -> None:
    if not isinstance(optimizer, MasterAdamW):
        raise ValueError(f"update_during_backward with {type(optimizer).__name__}; allowed: MasterAdamW")
    if accumulate > 1:
        raise ValueError("update_during_backward excludes accumulate: each micro-batch would update the parameters")
    if max_norm is not None:
        raise ValueError("update_during_backward excludes max_norm: the global norm is known after the backward pass")
