"""A whole training step in one CUDA graph: forward, backward, clipping and update."""

import contextlib
import functools
import inspect
import itertools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cs336_systems.parallel.gradient_norm import gradient_norm
from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer
from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.clipping import scale_of
from cs336_systems.training.cuda_graph import capture, run_on
from cs336_systems.training.gradient_sums import GradientSums, LocalSums
from cs336_systems.training.token_weights import weigh
from cs336_systems.training.wrapped_passes import WrappedPasses


class CapturedStep:
    """A training step that the host launches with one call.

        step = CapturedStep(lambda x, y: loss_of(model(x), y), MasterAdamW(model.parameters(), lr=3e-4), max_norm=1.0)
        for x, y in batches:
            loss = step(x, y)

    Every call is one training step: the first two run eagerly (eleven with DistributedDataParallel), the next one
    captures the graph and replays it, and all later ones replay it. Nothing has to be undone or restored, and the
    results are the same as in eager steps, bit for bit if the kernels are deterministic. The graph keeps its memory
    (activations, gradients) until this object is deleted. On a CPU all calls run eagerly.

    Random numbers of the default generator, such as dropout's, are new in each replay. The loss function's actions on
    the host, such as printing or reading a value, happen only during the first three calls.
    """

    def __init__(
        self,
        loss_function: Callable[..., Tensor | tuple[Tensor, Tensor | float]],
        optimizer: Optimizer,
        *,
        model: nn.Module | None = None,
        accumulate: int = 1,
        max_norm: float | None = None,
        update_during_backward: bool = False,
        check_finite: bool = False,
    ):
        """Prepare a step; nothing runs yet.

        Args:
            loss_function: maps a batch's tensors to its mean loss, a scalar, or to a sum and its number of tokens; it
                must not synchronize with the host.
            optimizer: a MasterAdamW, or an optimizer of PyTorch with capturable=True. The latter reads its learning
                rate from the device only if it is a tensor.
            model: the data-parallel wrapper that averages the gradients, if any: a wrapper of `cs336_systems.parallel`,
                DistributedDataParallel, or a module after `fully_shard`.
            accumulate: micro-batches per step, consecutive parts of the batch along its first axis. For a MasterAdamW,
                their gradients are summed in fp32 (see `GradientSums`). They are averaged over ranks once, unless they
                are sharded.
            max_norm: clips the gradients to this global norm, over all ranks; None: no clipping.
            update_during_backward: whether a MasterAdamW updates each parameter during the backward pass (see
                `MasterAdamW.during_backward`).
            check_finite: raises a RuntimeError before the update if the loss or the norm of the gradients is not
                finite. On a GPU it is a device-side assertion, which the process does not survive.

        Raises:
            TypeError: model is not a data-parallel wrapper, or the optimizer is not a PyTorch optimizer (an
                UpdateInBackward is not).
            ValueError: accumulate or max_norm is out of range, the optimizer cannot be captured, the gradients are
                averaged by a wrapper other than model, or update_during_backward is combined with an option that needs
                all gradients at once.
        """
        if accumulate < 1:
            raise ValueError(f"accumulate is {accumulate}; allowed: whole numbers from 1")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm is {max_norm}; allowed: numbers above 0, or None")
        _check_optimizer(optimizer, model)
        if update_during_backward:
            _check_update_during_backward(optimizer, model, accumulate, max_norm or check_finite)
        self._master = optimizer if isinstance(optimizer, MasterAdamW) else None
        self.loss_function = loss_function
        self.optimizer = optimizer
        self.accumulate = accumulate
        self.max_norm = max_norm
        self.update_during_backward = update_during_backward
        self.check_finite = check_finite
        self._passes = WrappedPasses(model, self._parameters())
        self.graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        self._calls = 0
        self._inputs: tuple[Tensor, ...] = ()
        self._loss: Tensor
        self._fixed: list[dict[str, Any]] = []

    def __call__(self, *batch: Tensor) -> Tensor:
        """Train on a batch.

        Args:
            batch: the loss function's arguments. On a GPU, the first call fixes shapes, dtypes and devices.

        Returns:
            this rank's loss before the update, the mean over its micro-batches: a detached scalar.

        Raises:
            TypeError: an argument is not a tensor, or the loss function did not return a loss.
            ValueError: a tensor differs in shape, dtype or device from the first call's, the batch cannot be divided
                into micro-batches, gradients are averaged by a wrapper other than model, the loss is not a scalar or
                hides which tokens count, it does not come from model, or a hyperparameter that the graph holds as a
                constant was changed.
            RuntimeError: check_finite is set, and the loss or the gradients' norm is not finite.
        """
        _check_inputs(batch, self.accumulate)
        if not self._parameters()[0].is_cuda:
            return self._step(batch)
        if self._stream is None:
            # Updates during the backward pass run on a stream of lower priority, in this stream's gaps; communication
            # runs at higher or equal priority, since other ranks wait for it.
            self._stream = torch.cuda.Stream(priority=-1 if self.update_during_backward else 0)
            device = self._parameters()[0].device
            self._inputs = tuple(torch.empty_like(x, device=device) for x in batch)
        self._check_batch(batch)
        for static, x in zip(self._inputs, batch, strict=True):
            static.copy_(x, non_blocking=True)
        self._calls += 1
        if self._calls <= self._passes.calls_before_capture:
            return self._aside()
        if self.graph is None:
            self._capture()
        assert self.graph is not None
        if self._master is not None:
            self._master.upload_hyperparameters()
        elif self._constants() != self._fixed:
            raise ValueError(
                "a hyperparameter was changed after the capture; allowed: lr as a tensor, changed in place"
            )
        self.graph.replay()
        return self._loss.clone()

    def _step(self, batch: tuple[Tensor, ...]) -> Tensor:
        self._passes.check()
        self.optimizer.zero_grad(set_to_none=True)  # a capture allocates them from the graph's memory
        with contextlib.ExitStack() as stack:
            if self.update_during_backward and self._master is not None:
                stack.callback(self._master.during_backward().remove)
            adds_up = self._master is not None and self.accumulate > 1
            kind = LocalSums if self._passes.is_replicated else GradientSums
            sums = stack.enter_context(kind(self._parameters() if adds_up else ()))
            loss = self._accumulate(batch, sums)
        if self.check_finite:
            _assert_finite(self._passes.mean(loss), "loss")  # all ranks raise, or none
        self._update(sums)
        return loss

    def _accumulate(self, batch: tuple[Tensor, ...], sums: GradientSums) -> Tensor:
        losses: list[Tensor] = []
        weights: list[Tensor] = []
        units: list[Tensor | int] = []

        def unit_of(tokens: int) -> Tensor | int:
            if not units:  # the first micro-batch's
                units.append(tokens if self.accumulate == 1 else self._passes.unit(tokens))
            return units[0]

        for number, part in enumerate(_parts(batch, self.accumulate), start=1):
            last = number == self.accumulate
            with self._passes.local(last=last):
                result = self._passes.run(self.loss_function, part, last=last)
                alone = self.accumulate == 1 and not self._passes.groups
                loss, weight, unit = weigh(result, alone=alone, unit_of=unit_of)
                loss = loss / self.accumulate
                losses.append(loss.detach())
                weights.extend([] if weight is None else [weight])
                if last and weights:
                    loss = loss * self._normalize(sums, weights, unit)
                if last and isinstance(sums, LocalSums):
                    sums.give()
                loss.backward()
            self._passes.finish(last=last)
        total = _sum(losses)
        return total * (self.accumulate * unit / _sum(weights)) if weights else total

    @torch.no_grad()
    def _normalize(self, sums: GradientSums, weights: list[Tensor], unit: Tensor | int) -> Tensor:
        """Give the gradients so far weights with a mean of 1 over all ranks; return the last pass's factor."""
        mean = self._passes.mean(_sum(weights) / self.accumulate)
        factor = torch.where(mean > 0, unit / mean, 1)
        kept = (p.grad for p in self._parameters() if p.grad is not None)
        for gradient in itertools.chain(sums.gradients.values(), kept):
            gradient.mul_(factor.to(gradient.device))
        return factor

    def _update(self, sums: GradientSums) -> None:
        if self.max_norm is not None or self.check_finite:
            if self._master is not None:
                norm = gradient_norm(self._parameters(), gradients=sums.gradients)
            else:
                norm = self._passes.clip_grad_norm_(self.max_norm or math.inf)
            if self.check_finite:
                _assert_finite(norm, "norm of the gradients")
        if self._master is not None:
            scale = None if self.max_norm is None else scale_of(norm, self.max_norm)
            self._master.step(scale=scale, gradients=sums.gradients)
        else:
            self.optimizer.step()

    def _aside(self) -> Tensor:
        assert self._stream is not None
        loss = run_on(self._stream, lambda: self._step(self._inputs))
        loss.record_stream(torch.cuda.current_stream())
        return loss

    def _capture(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)  # their memory is not the graph's
        if self._master is not None:
            self._master.prepare()
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
                given, allowed = (f"shape {list(y.shape)} and {y.dtype}" for y in (x, static))
                raise ValueError(f"argument {number} has {given}; allowed: {allowed}, as in the first call")


def _parts(batch: tuple[Tensor, ...], number: int) -> Iterable[tuple[Tensor, ...]]:
    return [batch] if number == 1 else zip(*(x.chunk(number) for x in batch), strict=True)


def _sum(numbers: list[Tensor]) -> Tensor:
    return functools.reduce(operator.add, numbers)


def _assert_finite(number: Tensor, name: str) -> None:
    torch._assert_async(number.isfinite(), f"the {name} is not finite")


def _check_inputs(batch: tuple[Any, ...], accumulate: int) -> None:
    for number, x in enumerate(batch):
        if not isinstance(x, Tensor):
            raise TypeError(f"argument {number} is a {type(x).__name__}; allowed: tensors")
    if accumulate == 1:
        return
    lengths = {len(x) if x.dim() else 0 for x in batch}
    if len(lengths) != 1 or (length := lengths.pop()) == 0 or length % accumulate:
        shapes = " and ".join(str(list(x.shape)) for x in batch) or "none"
        raise ValueError(
            f"the arguments' shapes are {shapes}; allowed: one nonzero length of axis 0, divisible by "
            f"accumulate={accumulate}"
        )


def _check_optimizer(optimizer: Any, model: nn.Module | None) -> None:
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer is a {name}; allowed: torch.optim.Optimizer, such as MasterAdamW")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(f"{name} computes losses in its step; allowed: optimizers whose step needs no closure")
    if isinstance(optimizer, ShardedOptimizer) and model is None:
        raise ValueError(f"a {name} needs averaged gradients; allowed: model=their wrapper")
    on_gpu = any(p.is_cuda for group in optimizer.param_groups for p in group["params"])
    capturable = isinstance(optimizer, MasterAdamW) or all(g.get("capturable") for g in optimizer.param_groups)
    if on_gpu and not capturable:
        raise ValueError(f"{name} cannot be captured; allowed: MasterAdamW, or an optimizer with capturable=True")


def _check_update_during_backward(
    optimizer: Optimizer, model: nn.Module | None, accumulate: int, needs_norm: object
) -> None:
    if not isinstance(optimizer, MasterAdamW):
        raise ValueError(f"update_during_backward with {type(optimizer).__name__}; allowed: MasterAdamW")
    if model is not None:
        raise ValueError("update_during_backward excludes model: its gradients are averaged after the backward pass")
    if accumulate > 1:
        raise ValueError("update_during_backward excludes accumulate: each micro-batch would update the parameters")
    if needs_norm:
        raise ValueError(
            "update_during_backward excludes max_norm and check_finite: the global norm is known after the backward "
            "pass"
        )
