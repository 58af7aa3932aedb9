"""An optimizer with sharded state: each rank updates the parameters it owns and sends them to all ranks.

    model = BucketedDataParallel(model, bucket_size_mb=25)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, fused=True)

The gradients have to be the same on all ranks, as after a data-parallel wrapper. The wrapper in `sharded_gradients`
gives each rank only its own parameters' gradients, which takes less memory and time. The optimizer in
`symmetric_memory_optimizer` sends the parameters without collectives. (Rajbhandari et al. 2020, ZeRO.)
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import LBFGS, Adafactor, Optimizer
from torch.optim.optimizer import ParamsT

from cs336_systems.parallel.buckets import MB
from cs336_systems.parallel.consolidation import consolidate
from cs336_systems.parallel.ownership import check_separate, plan_buckets
from cs336_systems.parallel.replicas import check_in_memory, check_member, check_same_on_all_ranks, describe
from cs336_systems.parallel.sharded_buckets import ShardedBucket

PARTS = 8
"""Approximate number of parts that the update is split into. Each part costs the host a fraction of a millisecond; the
first part's update overlaps with no communication."""

# Without this protocol GradScaler does not report overflows to the optimizer: see `step`.
warnings.filterwarnings("ignore", "GradScaler is going to stop passing itself", FutureWarning)


class ShardedOptimizer(Optimizer):
    """Wraps any optimizer that updates each parameter independently, with 1/N of the state on each of N ranks.

    The weights are bitwise identical to the unsharded optimizer's. Ranks own whole parameters, balanced by bytes. While
    some buckets of updated parameters are sent, the next ones are updated.

    On every rank, `param_groups` has all parameters, but `state` only the rank's own. Parameters are moved into buckets
    and become views of them. Frozen parameters stay where they are until they need a gradient.

    `torch.amp.GradScaler` works as with any optimizer: if one rank detects an infinity, all skip the step.
    """

    _bucket_type: type[ShardedBucket] = ShardedBucket
    _step_supports_amp_scaling = True  # has GradScaler call `step` on all ranks, and pass itself

    def __init__(
        self,
        params: ParamsT,
        optimizer_cls: type[Optimizer],
        *,
        bucket_size_mb: float = 100,
        process_group: dist.ProcessGroup | None = None,
        **kwargs: Any,
    ):
        """Make an optimizer on every rank.

        Args:
            params: parameters or parameter groups, as for any optimizer; the same on all ranks.
            optimizer_cls: the class of the optimizer.
            bucket_size_mb: minimum size of one collective, in 10^6 bytes of parameters.
            process_group: the ranks that share the state; None: all.
            kwargs: arguments of the optimizer.

        Raises:
            TypeError: optimizer_cls is not an optimizer class.
            ValueError: the ranks' parameters differ, two of them share memory, one is on the meta device, the bucket
                size is not positive, this process is not in the group, or the optimizer is LBFGS, whose updates depend
                on all parameters at once.
        """
        check_member(process_group)
        if not bucket_size_mb > 0:
            raise ValueError(f"bucket_size_mb is {bucket_size_mb}; allowed: numbers above 0")
        check_class(optimizer_cls)
        super().__init__(params, {})
        self.process_group = process_group
        self._bucket_bytes = bucket_size_mb * MB
        self._buckets: list[ShardedBucket] = []
        self._running: list[dist.Work] = []
        self._placed: set[nn.Parameter] = set()
        self._mine: set[nn.Parameter] = set()
        self._loads = [0] * dist.get_world_size(process_group)  # bytes of the parameters that each rank owns
        self._place(self._parameters_to_update())
        make: Callable[..., Optimizer] = optimizer_cls
        mine = [{**g, "params": [p for p in g["params"] if p in self._mine]} for g in self.param_groups]
        # It updates the parameters in its groups at the time: this rank's share of one part.
        self._local = make(mine, **kwargs)
        self.state = self._local.state
        self.defaults = self._local.defaults
        for group, complete in zip(self.param_groups, self._local.param_groups, strict=True):
            group.update(hyperparameters(complete))
        self._device = self._parameters()[0].device

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled; allowed: its state_dict()")

    @property
    def buckets(self) -> list[ShardedBucket]:
        """The parameters to update, roughly in the order of their gradients in a backward pass."""
        newcomers = [parameter for parameter in self._parameters_to_update() if parameter not in self._placed]
        if newcomers:
            self._place(newcomers)
        return self._buckets

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None, *, grad_scaler: GradScaler | None = None, **kwargs: Any
    ) -> float | None:
        """Update the parameters on all ranks; on a GPU the current stream, not the host, waits for other ranks.

        Args:
            closure: computes the loss, and gradients that are equal on all ranks.
            grad_scaler: passed by `GradScaler.step`. Nothing is updated if a gradient on any rank is not finite.
            kwargs: passed on to the optimizer's step.

        Returns:
            the closure's result.
        """
        if grad_scaler is not None and self._overflowed(grad_scaler):
            return None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        changed: dict[int, dict[str, Any]] = {}
        parts = split(self.buckets)
        for bucket in self._buckets:  # all of them, before any rank writes into another one's
            bucket.take_in()
        for buckets, members in zip(parts, self._members(parts), strict=True):
            self._local.param_groups = [
                {**self.param_groups[number], "params": parameters} for number, parameters in members.items()
            ]
            self._local.step(**kwargs)
            changed.update(zip(members, self._local.param_groups, strict=True))
            self._share(buckets)
        # Some optimizers count steps in their groups. Done only now, so that each part's update starts from the same
        # counts.
        for number, group in changed.items():
            self.param_groups[number].update(hyperparameters(group))
        self._wait()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parameters in the host's memory, in the unsharded optimizer's format.

        All ranks call this, since they exchange their states: a rank that calls it alone waits until its collective
        times out. The result loads into any number of ranks, and into the unsharded optimizer. If only one rank saves
        it, `consolidate_state_dict` needs no memory on the others.
        """
        return self._consolidated(keep=True)

    def consolidate_state_dict(self, to: int = 0) -> dict[str, Any] | None:
        """Return `state_dict()` on the group's rank `to`, and None on the others. All ranks call this."""
        wanted = dist.get_rank(self.process_group) == to
        state_dict = self._consolidated(keep=wanted)
        return state_dict if wanted else None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load hyperparameters, and the states of this rank's parameters. All ranks call this.

        Args:
            state_dict: from `state_dict` on any number of ranks, or from the unsharded optimizer.

        Raises:
            ValueError: the state dict has other groups, or is another optimizer's; nothing is loaded.
        """
        saved, ours = (
            [len(group["params"]) for group in some] for some in (state_dict["param_groups"], self.param_groups)
        )
        if saved != ours:
            raise ValueError(f"the state has groups of {saved} parameters; allowed: {ours}, as the optimizer")
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameter_of = dict(zip(numbers, self._parameters(), strict=False))
        states = {number: state for number, state in state_dict["state"].items() if number in parameter_of}
        with_state = {parameter_of[number] for number in states}
        self._place([p for p in self._parameters() if p in with_state and p not in self._placed])
        for number, state in states.items():  # on all ranks, so that all refuse it or none
            self._check_saved(parameter_of[number], state)
        mine = {number: state for number, state in states.items() if parameter_of[number] in self._mine}
        if type(self._local).load_state_dict is not Optimizer.load_state_dict:  # like MasterAdamW's, which keeps fp32
            self._load_in_its_way({**state_dict, "state": mine}, parameter_of)
            return
        before = [{name: vars(x)[name] for name in ("state", "param_groups")} for x in (self, self._local)]
        super().load_state_dict({**state_dict, "state": mine})
        try:  # The optimizer completes groups and states written by an older version of it.
            self._local.__setstate__({"state": self.state, "param_groups": self.param_groups})
        except KeyError as error:
            for x, values in zip((self, self._local), before, strict=True):
                vars(x).update(values)
            raise ValueError(
                f"a state or group has no {error.args[0]}; allowed: states and groups of {type(self._local).__name__}"
            ) from None

    def _check_saved(self, parameter: nn.Parameter, state: Mapping[str, Any]) -> None:
        """Raise a ValueError if a state is another parameter's, or another optimizer's."""
        own_check = getattr(self._local, "check_saved", None)
        if own_check is not None:
            own_check(parameter, state)
        elif type(self._local).__module__.startswith("torch.optim.") and not isinstance(self._local, Adafactor):
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                    shapes = f"{list(value.shape)}; allowed: its parameter's, {list(parameter.shape)}"
                    raise ValueError(f"{name} is of shape {shapes}")

    def _load_in_its_way(self, state_dict: dict[str, Any], parameter_of: dict[int, nn.Parameter]) -> None:
        """Let the optimizer load this rank's part of a state dict."""
        mine = [[p for p in group["params"] if p in self._mine] for group in self.param_groups]
        self._local.param_groups = [{**g, "params": p} for g, p in zip(self.param_groups, mine, strict=True)]
        groups = [
            {**group, "params": [number for number in group["params"] if parameter_of[number] in self._mine]}
            for group in state_dict["param_groups"]
        ]
        self._local.load_state_dict({**state_dict, "param_groups": groups})
        for group, loaded in zip(self.param_groups, self._local.param_groups, strict=True):
            group.update(hyperparameters(loaded))
        self.state = self._local.state

    def _overflowed(self, scaler: GradScaler) -> bool:
        """Unscale the gradients, and notify all ranks' scalers if a gradient on any rank is not finite."""
        if scaler._per_optimizer_states[id(self)]["stage"] is OptState.READY:
            scaler.unscale_(self)
        infinities: dict[Any, Any] = scaler._found_inf_per_device(self)  # a rank without gradients has detected nothing
        overflow = sum((value.to(self._device) for value in infinities.values()), torch.zeros((), device=self._device))
        dist.all_reduce(overflow, group=self.process_group)
        infinities.clear()
        infinities[self._device] = overflow
        return bool(overflow)

    def _share(self, buckets: Sequence[ShardedBucket]) -> None:
        self._running.extend(bucket.share() for bucket in buckets)

    def _wait(self) -> None:
        for work in self._running:
            work.wait()
        self._running.clear()

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _parameters_to_update(self) -> list[nn.Parameter]:
        return [p for p in self._parameters() if p.requires_grad or p.grad is not None]

    def _place(self, newcomers: Iterable[nn.Parameter]) -> None:
        parameters = list(dict.fromkeys(newcomers))[::-1]
        named = [(f"parameter {i}", parameter) for i, parameter in enumerate(parameters)]
        check_same_on_all_ranks([describe(*each) for each in named], self.process_group)
        check_in_memory(named)
        unique = dict.fromkeys(self._parameters())
        check_separate([(f"a parameter of shape {list(parameter.shape)}", parameter) for parameter in unique])
        for owner_of in plan_buckets(parameters, self._loads, self._bucket_bytes):
            bucket = self._bucket_type([parameters[i] for i in owner_of], owner_of.values(), self.process_group)
            self._mine.update(bucket.mine)
            self._buckets.append(bucket)
        self._placed.update(parameters)

    def _members(self, parts: Sequence[Sequence[ShardedBucket]]) -> list[dict[int, list[nn.Parameter]]]:
        """For each part, this rank's parameters by group number.

        A group without parameters of this rank is in the first part without members, so that its step count advances.
        """
        part_of = {parameter: i for i, part in enumerate(parts) for bucket in part for parameter in bucket.mine}
        members: list[dict[int, list[nn.Parameter]]] = [{} for _ in parts]
        for number, group in enumerate(self.param_groups):
            mine = [parameter for parameter in group["params"] if parameter in part_of]
            for parameter in mine:
                members[part_of[parameter]].setdefault(number, []).append(parameter)
            if members and not mine:
                members[0][number] = []
        return members

    def _consolidated(self, *, keep: bool) -> dict[str, Any]:
        state_dict = super().state_dict()
        states = consolidate(state_dict["state"], self._device, keep=keep, group=self.process_group)
        return {**state_dict, "state": states}


def check_class(optimizer_cls: Any) -> None:
    """Raise an error unless this is a class of optimizers that update each parameter independently."""
    if not (isinstance(optimizer_cls, type) and issubclass(optimizer_cls, Optimizer)):
        given = getattr(optimizer_cls, "__name__", f"an instance of {type(optimizer_cls).__name__}")
        raise TypeError(f"optimizer_cls is {given}; allowed: a class of optimizers, such as torch.optim.AdamW")
    if issubclass(optimizer_cls, LBFGS):
        raise ValueError("optimizer_cls is LBFGS; allowed: optimizers that update each parameter independently")


def split(buckets: Sequence[ShardedBucket]) -> list[list[ShardedBucket]]:
    """Split the buckets, in order, into at most `PARTS` parts of roughly equal size; no bucket is divided."""
    parts: dict[int, list[ShardedBucket]] = {}
    total, before = max(1, sum(bucket.nbytes for bucket in buckets)), 0
    for bucket in buckets:
        parts.setdefault(PARTS * before // total, []).append(bucket)
        before += bucket.nbytes
    return list(parts.values())


def hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """The entries of a parameter group, except its parameters."""
    return {name: value for name, value in group.items() if name != "params"}
