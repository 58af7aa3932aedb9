"""AdamW for bf16 weights with exact fp32 masters, in one pass over memory.

    model = model.to(torch.bfloat16)
    optimizer = MasterAdamW(model.parameters(), lr=3e-4)
    loss.backward()
    optimizer.step(scale=clip_scale(model.parameters(), max_norm=1.0))

With 26 bytes per parameter and step, the update is limited by memory bandwidth alone. It is computed in fp32 whatever
the weights' dtype, so small updates are not lost in bf16's eight bits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cs336_systems.parallel.synchronized import check_complete_in_backward
from cs336_systems.training.dispatch import runs_kernels
from cs336_systems.training.master_weights import join_master, split_master
from cs336_systems.training.parameter_table import ParameterTable, values
from cs336_systems.training.under_backward import UnderBackward

DTYPES = (torch.bfloat16, torch.float32)
HYPERPARAMETERS = ("lr", "beta1", "beta2", "eps", "weight_decay")
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "amsgrad": (False,),
    "maximize": (False,),
    "foreach": (None, True, False),
    "fused": (None, True, False),
    "capturable": (True, False),
    "differentiable": (False,),
}
"""Options of torch.optim.AdamW, each with the values that change no result here."""


class MasterAdamW(Optimizer):
    """AdamW (Loshchilov & Hutter 2019, algorithm 2) with fp32 masters and moments; semantics of torch.optim.AdamW.

    bf16 parameters keep the rest of their fp32 master as an int16 remainder in the state; fp32 parameters are their own
    masters. On a GPU one Triton kernel updates all parameters, without a synchronization: the step can be captured in
    a CUDA graph after one call of `prepare`. A parameter without a gradient is skipped.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **unsupported: Any,
    ):
        """Wrap parameters; their state is allocated by `prepare` or the first step.

        Args:
            params: bf16 or fp32 parameters, or groups of them.
            lr: learning rate. Schedulers may set it; inside a CUDA graph it is read from the device, where
                `upload_hyperparameters` writes it.
            betas: decay of the first and of the second moment per step.
            eps: added to the denominator.
            weight_decay: decoupled weight decay, multiplied by lr.
            unsupported: options of torch.optim.AdamW, accepted at values that change nothing.

        Raises:
            TypeError: an argument does not exist.
            ValueError: a value is out of range, or an option or a parameter is not supported.
        """
        for name, value in unsupported.items():
            if name not in UNSUPPORTED:
                raise TypeError(f"MasterAdamW has no argument {name}")
            if value not in UNSUPPORTED[name]:
                raise ValueError(f"MasterAdamW does not support {name}={value}; leave it out")
        self._begin()
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _begin(self) -> None:
        self._hooked = False
        self._tables: list[ParameterTable] = []
        self._captured: set[ParameterTable] = set()  # which graphs read

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, each of which is checked."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        _check_group(group)
        for parameter in group["params"]:
            _check_parameter(parameter)
        self._tables.clear()  # they have a row for each group

    @torch.no_grad()
    def prepare(self) -> None:
        """Allocate the state of all parameters that require gradients, and upload hyperparameters.

        Call it before a step is captured in a CUDA graph; nothing is updated.
        """
        parameters = [p for p in self._parameters() if p.requires_grad or p.grad is not None]
        for parameter in parameters:
            self._allocate(parameter)
        list(self._tables_of(self._group_of(parameters)))
        self.upload_hyperparameters()

    def upload_hyperparameters(self) -> None:
        """Write changed hyperparameters to the device; before the replay of a graph that holds a step."""
        for table in {*self._tables, *self._captured}:
            table.upload(self.param_groups)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        closure: Callable[[], float] | None = None,
        *,
        scale: Tensor | None = None,
        gradients: Mapping[torch.nn.Parameter, Tensor] | None = None,
    ) -> float | None:
        """Update the parameters that have gradients.

        Args:
            closure: computes the loss, and gradients.
            scale: factor of the gradients, one number on their device, as `clip_scale` returns it.
            gradients: fp32 gradients that replace those in `.grad`, such as those of `GradientSums`.

        Returns:
            the closure's result.

        Raises:
            ValueError: a gradient is sparse, or has neither its parameter's dtype nor fp32; or `scale` is given while
                updates run under the backward pass.
        """
        if self._hooked and scale is not None:
            raise ValueError("scale is given while updates run under the backward pass, which needs all gradients")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        given = gradients or {}
        found = {p: given.get(p, p.grad) for p in self._parameters()}
        self._update({p: gradient for p, gradient in found.items() if gradient is not None}, scale)
        return loss

    def during_backward(self) -> UnderBackward:
        """Update each parameter as soon as its gradient is accumulated, and free the gradient.

        On a GPU the updates run on a stream of their own, under the rest of the backward pass; backward returns when
        the current stream waits for them. Hyperparameters are those of the backward call, and `step` has nothing left
        to do. What needs all gradients at once is impossible: clipping by their global norm, accumulation over several
        backward passes (each would update), gradients that are read afterwards, and wrappers that average gradients
        after the backward pass. Sharded parameters of FullyShardedDataParallel and `fully_shard` are updated when their
        averaged gradients are set.

        Returns:
            a handle whose `remove` ends this.

        Raises:
            RuntimeError: updates already run under the backward pass.
            ValueError: a data-parallel wrapper averages a gradient later, as torch DDP does.
        """
        if self._hooked:
            raise RuntimeError("updates already run under the backward pass; remove the first handle before")
        trained = [p for p in dict.fromkeys(self._parameters()) if p.requires_grad]
        check_complete_in_backward(trained, "MasterAdamW.during_backward")
        self.prepare()
        self._hooked = True
        return UnderBackward(trained, self._update, self._unhook)

    def masters(self) -> dict[torch.nn.Parameter, Tensor]:
        """The fp32 master of each parameter: a new tensor for a bf16 parameter, the parameter itself for others."""
        return {p: self._master(p) for p in self._parameters()}

    @torch.no_grad()
    def load_masters(self, masters: Mapping[torch.nn.Parameter, Tensor]) -> None:
        """Set parameters to fp32 masters, such as the weights before the model was cast to bf16, in place."""
        for parameter, master in masters.items():
            self._allocate(parameter)
            master = master.detach().to(parameter.device, torch.float32)
            if parameter.dtype is torch.float32:
                parameter.copy_(master)
                continue
            weight, remainder = split_master(master)
            parameter.copy_(weight)
            self.state[parameter]["remainder"].copy_(remainder)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a MasterAdamW, or of a torch.optim.AdamW; tensors that a graph holds are kept, and filled.

        Weights are not part of it: a model's bf16 weights are loaded before or after, with the model. A state without
        remainders, as torch.optim.AdamW's, leaves the masters as they are: load the fp32 weights with `load_masters`.
        """
        existing = dict(self.state)
        super().load_state_dict({**state_dict, "state": {}})
        for group in self.param_groups:
            _check_group(group)
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        self.state.update(existing)
        for number, parameter in zip(numbers, self._parameters(), strict=True):
            saved = state_dict["state"].get(number)
            if saved is None:
                for value in self.state.get(parameter, {}).values():
                    value.zero_()
                continue
            self._allocate(parameter)
            for name, value in self.state[parameter].items():
                if name in saved:
                    _fill(name, value, torch.as_tensor(saved[name]))

    def _unhook(self) -> None:
        self._hooked = False

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _master(self, parameter: torch.nn.Parameter) -> Tensor:
        if parameter.dtype is torch.float32:
            return parameter.detach()
        state = self.state.get(parameter)
        return join_master(parameter.detach(), state["remainder"]) if state else parameter.detach().float()

    def _allocate(self, parameter: torch.nn.Parameter) -> None:
        """Make the state of a parameter that has none."""
        state = self.state[parameter]
        if state:
            return
        if _capturing(parameter):
            raise RuntimeError("a parameter has no state yet; call prepare() before a step is captured in a CUDA graph")
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
        state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
        if parameter.dtype is torch.bfloat16:
            state["remainder"] = torch.zeros_like(parameter, dtype=torch.int16, requires_grad=False)

    def _update(self, gradients: Mapping[torch.nn.Parameter, Tensor], scale: Tensor | None) -> None:
        """Update parameters by their gradients."""
        for parameter, gradient in gradients.items():
            _check_gradient(parameter, gradient)
            self._allocate(parameter)
        group_of = self._group_of(gradients)
        for parameter, number in group_of.items():
            if not runs_kernels(parameter):
                _update_on_host(
                    parameter, gradients[parameter], self.state[parameter], self.param_groups[number], scale
                )
        for table, members in self._tables_of(group_of):
            if _capturing(members[0]):
                self._captured.add(table)
            else:
                table.upload(self.param_groups)
            table.update({p: gradients[p] for p in members}, scale)
            torch.autograd.graph.increment_version(members)

    def _group_of(self, parameters: Iterable[torch.nn.Parameter]) -> dict[torch.nn.Parameter, int]:
        """Those parameters that have elements, each with the number of its group."""
        wanted = {p for p in parameters if p.numel()}
        return {p: number for number, group in enumerate(self.param_groups) for p in group["params"] if p in wanted}

    def _tables_of(
        self, group_of: Mapping[torch.nn.Parameter, int]
    ) -> Iterator[tuple[ParameterTable, list[torch.nn.Parameter]]]:
        """The tables of those parameters that the kernel updates, made anew if parameters are new or have moved."""
        members: dict[tuple[torch.device, torch.dtype], dict[torch.nn.Parameter, int]] = {}
        for parameter, number in group_of.items():
            if runs_kernels(parameter):
                members.setdefault((parameter.device, parameter.dtype), {})[parameter] = number
        for kind, needed in members.items():
            table = next((table for table in self._tables if table.holds(needed)), None)
            if table is None:
                if _capturing(next(iter(needed))):
                    raise RuntimeError("parameters are new or have moved; call prepare() before a CUDA graph is made")
                with_state = self._group_of(p for p in self._parameters() if self.state.get(p))
                alike = {p: number for p, number in with_state.items() if (p.device, p.dtype) == kind}
                table = ParameterTable(alike, self.param_groups, self.state)
                self._tables = [*(t for t in self._tables if not t.is_stale()), table]
            yield table, list(needed)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_tables" not in self.__dict__:  # unpickled or copied
            self._begin()
        super().__setstate__(state)


def _check_group(group: Mapping[str, Any]) -> None:
    """Refuse hyperparameters that are out of range, and options that are not supported."""
    for name, allowed in UNSUPPORTED.items():
        if group.get(name, allowed[0]) not in allowed:
            raise ValueError(f"MasterAdamW does not support {name}={group[name]}; leave it out")
    for name, value in zip(HYPERPARAMETERS, values(group), strict=True):
        if isinstance(value, Tensor):
            if name != "lr" or value.numel() != 1:
                raise ValueError(f"{name} is a tensor of {value.numel()} elements; allowed: a number, for lr a scalar")
            continue
        if not value >= 0 or (name.startswith("beta") and not value < 1):
            limits = "numbers in [0, 1)" if name.startswith("beta") else "numbers from 0"
            raise ValueError(f"{name} is {value}; allowed: {limits}")


def _check_parameter(parameter: Tensor) -> None:
    """Refuse parameters whose memory the kernel cannot walk through."""
    if parameter.dtype not in DTYPES:
        raise ValueError(f"a parameter is of dtype {parameter.dtype}; allowed: {', '.join(map(str, DTYPES))}")
    if not _is_dense(parameter):
        shown = f"shape {list(parameter.shape)} and strides {list(parameter.stride())}"
        raise ValueError(f"a parameter of {shown} has gaps in memory; allowed: dense parameters")


def _check_gradient(parameter: Tensor, gradient: Tensor) -> None:
    if gradient.layout is not torch.strided:
        raise ValueError("MasterAdamW does not support sparse gradients; use dense ones, or torch.optim.SparseAdam")
    if gradient.dtype not in (parameter.dtype, torch.float32):
        allowed = f"its parameter's, {parameter.dtype}, and {torch.float32}"
        raise ValueError(f"a gradient is of dtype {gradient.dtype}; allowed: {allowed}")


def _is_dense(x: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in any order of axes."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _fill(name: str, value: Tensor, saved: Tensor) -> None:
    """Copy a saved tensor of the state."""
    if saved.shape != value.shape:
        raise ValueError(f"{name} is of shape {list(saved.shape)}; allowed: its parameter's, {list(value.shape)}")
    value.copy_(saved)


def _capturing(parameter: Tensor) -> bool:
    return parameter.is_cuda and torch.cuda.is_current_stream_capturing()


def _update_on_host(
    parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any], scale: Tensor | None
) -> None:
    """The kernel's formula in PyTorch."""
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    gradient = gradient.float()
    if scale is not None:
        gradient = gradient * scale.to(gradient.device)
    split = parameter.dtype is torch.bfloat16
    master = join_master(parameter.detach(), state["remainder"]) if split else parameter.detach()
    state["step"] += 1
    step = float(state["step"])
    state["exp_avg"].lerp_(gradient, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = (state["exp_avg_sq"].sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
    master.mul_(1 - lr * group["weight_decay"]).addcdiv_(state["exp_avg"], denominator, value=-lr / (1 - beta1**step))
    if split:
        weight, remainder = split_master(master)
        parameter.copy_(weight)
        state["remainder"].copy_(remainder)
