"""AdamW for bf16 weights with exact fp32 masters, in one pass over memory.

    model = model.to(torch.bfloat16)
    optimizer = MasterAdamW(model.parameters(), lr=3e-4)
    loss.backward()
    optimizer.step(scale=clip_scale(model.parameters(), max_norm=1.0))

With 26 bytes per parameter and step, the update is purely memory-bound. It is computed in fp32 for any weight dtype, so
small updates are not lost in bf16's eight bits.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cs336_systems.parallel.distributed_parameters import own_part
from cs336_systems.parallel.synchronized import check_complete_in_backward
from cs336_systems.training.adamw_groups import UNSUPPORTED, check_group, loaded_groups, one_number
from cs336_systems.training.adamw_state import (
    check_gradient,
    check_like,
    check_parameter,
    check_saved,
    check_state,
    fit_state,
    load_saved,
)
from cs336_systems.training.dispatch import runs_kernels
from cs336_systems.training.master_weights import join_master, master_of, set_master, split_master
from cs336_systems.training.parameter_table import Kind, ParameterTable
from cs336_systems.training.under_backward import UnderBackward

Numbered = tuple[torch.nn.Parameter, int]


class MasterAdamW(Optimizer):
    """AdamW (Loshchilov & Hutter 2019, algorithm 2) with fp32 masters and moments; semantics of torch.optim.AdamW.

    For bf16 parameters, the state keeps the rest of the fp32 master as an int16 remainder; fp32 parameters are their
    own masters. On a GPU one Triton kernel updates all parameters without a synchronization, so the step can be
    captured in a CUDA graph after one call of `prepare`. A parameter without a gradient is skipped.
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
            betas: decay rates of the first and the second moment.
            eps: added to the denominator.
            weight_decay: decoupled weight decay, multiplied by lr.
            unsupported: options of torch.optim.AdamW, accepted only with values that change nothing.

        Raises:
            TypeError: an argument is unknown.
            ValueError: a value is out of range, or an option or a parameter is not supported.
        """
        for name, value in unsupported.items():
            if name not in UNSUPPORTED:
                raise TypeError(f"MasterAdamW has no argument {name}")
            if value not in UNSUPPORTED[name]:
                raise ValueError(f"MasterAdamW does not support {name}={value}; leave it out")
        self._begin()
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    check_saved = staticmethod(check_saved)

    def _begin(self) -> None:
        self._hooked = False
        self._tables: list[ParameterTable] = []
        self._captured: set[ParameterTable] = set()  # which graphs read

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group after checking each parameter; a refused group is not added."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_group(group)
            if len(set(group["params"])) < len(group["params"]):
                raise ValueError("a group lists a parameter twice; allowed: each parameter once")
            for parameter in group["params"]:
                check_parameter(parameter)
        except Exception:
            self.param_groups.pop()
            raise
        self._tables.clear()  # they have a row for each group

    @torch.no_grad()
    def prepare(self) -> None:
        """Allocate the state of all parameters that require gradients, and upload hyperparameters.

        Call it before a step is captured in a CUDA graph; nothing is updated.
        """
        self._ready([(p, number) for p, number in self._numbered() if p.requires_grad or p.grad is not None])
        self._captured = {table for table in self._captured if table.is_current(self.state)}
        self.upload_hyperparameters()

    def upload_hyperparameters(self) -> None:
        """Write changed hyperparameters to the device; call it before replaying a graph with a step.

        Raises:
            RuntimeError: parameters or state have moved in memory since the graph was captured.
        """
        if not all(table.is_current(self.state) for table in self._captured):
            raise RuntimeError("parameters or their state have moved since a CUDA graph was captured; capture it again")
        for table in {*self._tables, *self._captured}:
            table.upload(self.param_groups)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        closure: Callable[[], float] | None = None,
        *,
        scale: Tensor | float | None = None,
        gradients: Mapping[torch.nn.Parameter, Tensor] | None = None,
    ) -> float | None:
        """Update the parameters that have gradients.

        Args:
            closure: computes the loss, and gradients.
            scale: factor of the gradients, one number. If it is on their device, like the result of `clip_scale`, the
                host does not wait.
            gradients: fp32 gradients to use instead of `.grad`, such as the sums of `GradientSums`.

        Returns:
            the closure's result.

        Raises:
            ValueError: a gradient is sparse, has neither its parameter's dtype nor fp32, or is not shaped or sharded
                like its parameter; a parameter now has a property that the constructor refuses; a state has another
                shape; or `scale` is not one number, or is given while updates run during the backward pass. Nothing is
                updated.
        """
        if self._hooked and scale is not None:
            raise ValueError("scale is given while updates run during the backward pass; it needs all gradients")
        factor = None if scale is None else one_number(scale)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if gradients:
            updates = [(p, gradients.get(p, p.grad), number) for p, number in self._numbered()]
        else:
            updates = [(p, p.grad, number) for p, number in self._numbered()]
        self._update([(p, gradient, number) for p, gradient, number in updates if gradient is not None], factor)
        return loss

    def during_backward(self) -> UnderBackward:
        """Update each parameter as soon as its gradient is accumulated, and free the gradient.

        On a GPU the updates run on a separate stream, overlapping the rest of the backward pass; when backward returns,
        the current stream waits for them. Hyperparameters are read at the backward call, and `step` has nothing left to
        do. Anything that needs all gradients at once is impossible: clipping by their global norm, accumulation over
        several backward passes (each would update), reading gradients afterwards, and wrappers that average gradients
        after the backward pass. Sharded parameters of FullyShardedDataParallel and `fully_shard` are updated when their
        averaged gradients are set.

        Returns:
            a handle whose `remove` ends this.

        Raises:
            RuntimeError: updates already run during the backward pass.
            ValueError: a data-parallel wrapper averages a gradient later, as torch DDP does.
        """
        if self._hooked:
            raise RuntimeError("updates already run during the backward pass; remove the first handle first")
        trained = {p: number for p, number in self._numbered() if p.requires_grad}
        check_complete_in_backward(trained, "MasterAdamW.during_backward")
        self.prepare()
        self._hooked = True
        return UnderBackward(trained, lambda p, gradient: self._update([(p, gradient, trained[p])], None), self._unhook)

    def masters(self) -> dict[torch.nn.Parameter, Tensor]:
        """The fp32 master of each parameter: a new tensor for a bf16 parameter, the parameter itself for others."""
        return {p: self._master(p) for p, _ in self._numbered()}

    @torch.no_grad()
    def load_masters(self, masters: Mapping[torch.nn.Parameter, Tensor]) -> None:
        """Set parameters to fp32 masters, such as the weights before the model was cast to bf16, in place.

        Raises:
            ValueError: a parameter is not one of this optimizer, or its master has another shape or sharding; nothing
                is set.
        """
        numbers = dict(self._numbered())
        for parameter, master in masters.items():
            if parameter not in numbers:
                raise ValueError(
                    f"a parameter of shape {list(parameter.shape)} is not the optimizer's; allowed: its parameters"
                )
            check_like("a master", master, parameter)
        self._ready([(parameter, numbers[parameter]) for parameter in masters])
        for parameter, master in masters.items():
            set_master(parameter, self.state[parameter], master.detach())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a MasterAdamW, or of a torch.optim.AdamW; tensors that a graph holds are kept, and filled.

        Weights are not part of it: a model's bf16 weights are loaded before or after, with the model. A state without
        remainders, like torch.optim.AdamW's, leaves the masters unchanged: load the fp32 weights with `load_masters`.

        Raises:
            ValueError: it is another optimizer's, or does not fit the parameters; nothing is loaded.
        """
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict := state_dict.copy())
            state_dict = state_dict if changed is None else changed
        self._load(state_dict)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    @torch.no_grad()
    def _load(self, state_dict: Mapping[str, Any]) -> None:
        groups = loaded_groups(self.param_groups, state_dict["param_groups"])
        order = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        pairs = zip(self._numbered(), order, strict=True)
        saved = {p: (state_dict["state"].get(key) or None, number) for (p, number), key in pairs}
        for parameter, (state, _) in saved.items():
            if state is not None:
                check_saved(parameter, state)
        self._ready([(p, number) for p, (state, number) in saved.items() if state is not None or self.state.get(p)])
        for parameter, (state, _) in saved.items():
            if state is not None:
                load_saved(parameter, self.state[parameter], state)
            else:  # as if new, in its existing memory
                for value in self.state.get(parameter, {}).values():
                    value.zero_()
        self.param_groups = groups

    def _unhook(self) -> None:
        self._hooked = False

    def _numbered(self) -> list[tuple[torch.nn.Parameter, int]]:
        return [(p, number) for number, group in enumerate(self.param_groups) for p in group["params"]]

    def _master(self, parameter: torch.nn.Parameter) -> Tensor:
        if parameter.dtype is torch.float32:
            return parameter.detach()
        return master_of(parameter, self.state.get(parameter, {}))

    def _update(self, updates: Sequence[tuple[torch.nn.Parameter, Tensor, int]], scale: Tensor | float | None) -> None:
        for parameter, gradient, _ in updates:
            check_gradient(parameter, gradient)
        gradients = {p: gradient for p, gradient, _ in updates}
        on_host, tables = self._ready([(p, number) for p, _, number in updates])
        for parameter, number in on_host:
            _update_on_host(parameter, gradients[parameter], self.state[parameter], self.param_groups[number], scale)
        for table, members in tables:
            if _capturing(table.device):
                self._captured.add(table)
            else:
                table.upload(self.param_groups)
            table.update([(p, gradients[p]) for p, _ in members], scale)
        torch.autograd.graph.increment_version(list(gradients))

    def _ready(self, wanted: Sequence[Numbered]) -> tuple[list[Numbered], list[tuple[ParameterTable, list[Numbered]]]]:
        """Make states match their parameters; return the parameters to update on the host, and the others by table.

        Everything is checked before a state is changed. Parameters in a table have already been checked.
        """
        for table in self._tables:  # usually the only one
            if table.holds(wanted, self.state):
                return [], [(table, list(wanted))]
        on_host: list[Numbered] = []
        by_kind: dict[Kind, list[Numbered]] = {}
        for parameter, number in wanted:
            part = own_part(parameter)
            members = by_kind.setdefault((part.device, part.dtype), []) if runs_kernels(part) else on_host
            members.append((parameter, number))
        tables = {kind: self._table_of(kind, members) for kind, members in by_kind.items()}
        missing = {kind for kind, table in tables.items() if table is None}
        new = [*on_host, *(member for kind in missing for member in by_kind[kind])]
        for parameter, _ in new:
            check_parameter(parameter)
            check_state(parameter, self.state.get(parameter, {}))
        for parameter, _ in new:
            fit_state(parameter, self.state[parameter])
        ready = [(table or self._make_table(kind), by_kind[kind]) for kind, table in tables.items()]
        return on_host, ready

    def _table_of(self, kind: Kind, members: Sequence[Numbered]) -> ParameterTable | None:
        """The table with the current parameters of a kind.

        Raises:
            RuntimeError: there is none, and a CUDA graph is being captured.
        """
        for table in self._tables:
            if table.holds(members, self.state):
                return table
        if _capturing(kind[0]):
            raise RuntimeError(
                "parameters or their state are new or have moved; call prepare() before capturing a CUDA graph"
            )
        return None

    def _make_table(self, kind: Kind) -> ParameterTable:
        """Make a table of all parameters of a kind that have a state; outdated tables are dropped."""
        alike = {p: n for p, n in self._numbered() if (p.device, p.dtype) == kind and self.state.get(p)}
        with_elements = {p: n for p, n in alike.items() if own_part(p).numel()}
        for parameter in with_elements:
            check_parameter(parameter)
            check_state(parameter, self.state[parameter])
            fit_state(parameter, self.state[parameter])
        table = ParameterTable(with_elements, self.param_groups, self.state)
        self._tables = [*(t for t in self._tables if t.is_current(self.state)), table]
        return table

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_tables" not in self.__dict__:  # unpickled or copied
            self._begin()
        super().__setstate__(state)


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _update_on_host(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    group: Mapping[str, Any],
    scale: Tensor | float | None,
) -> None:
    """The kernel's formula in PyTorch."""
    state["step"] += 1
    weight, gradient = own_part(parameter), own_part(gradient).float()
    if not weight.numel():
        return
    lr, (beta1, beta2), step = float(group["lr"]), group["betas"], float(state["step"])
    if scale is not None:
        gradient = gradient * (scale.to(gradient) if isinstance(scale, Tensor) else scale)
    parts = {name: own_part(value) for name, value in state.items()}
    master = join_master(weight, parts["remainder"]) if weight.dtype is torch.bfloat16 else weight
    exp_avg, exp_avg_sq = parts["exp_avg"], parts["exp_avg_sq"]
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = (exp_avg_sq.sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
    master.mul_(1 - lr * group["weight_decay"]).addcdiv_(exp_avg, denominator, value=-lr / (1 - beta1**step))
    if master is not weight:
        high, low = split_master(master)
        weight.copy_(high)
        parts["remainder"].copy_(low)
