"""Wrappers and optimizers that are right while they are checked, and do less while they are timed, each in one way."""

import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.optim import SGD
from torch.optim.optimizer import register_optimizer_step_pre_hook

from examples.my_systems.ddp import DDP
from examples.my_systems.sharded_optimizer import ShardedOptimizer
from tests.support.own import FSDP

CHECKED = 3
"""Steps of a check, and of the observation before others are timed."""


class Late:
    """A wrapper that counts its steps."""

    steps = 0

    @property
    def late(self):
        """Whether nobody checks any more."""
        return self.steps >= CHECKED

    def finish_gradient_synchronization(self):
        super().finish_gradient_synchronization()
        self.steps += 1


class LateDDP(Late, DDP):
    """Sends gradients otherwise when it is late."""

    def reduce(self, parameter):
        if self.late:
            self.cheat(parameter)
        else:
            super().reduce(parameter)

    def finish_gradient_synchronization(self):
        super().finish_gradient_synchronization()
        self.sent = 0


class EveryOther(LateDDP):
    """Averages every other gradient."""

    def cheat(self, parameter):
        self.sent += 1
        if self.sent % 2:
            DDP.reduce(self, parameter)


class HalfPrecision(LateDDP):
    """Sends gradients in bf16."""

    def cheat(self, parameter):
        rounded = parameter.grad.bfloat16()
        dist.all_reduce(rounded)
        parameter.grad.copy_(rounded / dist.get_world_size())


class LastStep(LateDDP):
    """Uses the gradients of the step before, and does not wait for the present ones."""

    def __init__(self, module):
        super().__init__(module)
        self.kept = {}

    def cheat(self, parameter):
        average = parameter.grad / dist.get_world_size()
        work, self.kept[parameter] = self.kept.get(parameter), (dist.all_reduce(average, async_op=True), average)
        if work:
            work[0].wait()
            parameter.grad.copy_(work[1])


class AfterReturn(LateDDP):
    """Divides in a thread, some time after the step."""

    def finish_gradient_synchronization(self):
        if not self.late:
            super().finish_gradient_synchronization()
            return
        waiting, self.handles = self.handles, []
        threading.Timer(0.05, lambda: [work.wait() for work, _ in waiting]).start()

    def cheat(self, parameter):
        sent = parameter.grad.clone()
        self.handles.append((dist.all_reduce(sent, async_op=True), sent))


class WhileTimed(DDP):
    """Averages unless its caller takes the time."""

    def reduce(self, parameter):
        callers = set()
        for frame in sys._current_frames().values():  # On a GPU a thread of its own runs the backward pass.
            while frame := frame.f_back:
                callers.add(frame.f_code.co_name)
        if "time_steps" not in callers:
            super().reduce(parameter)


class WhileBatchesRepeat(DDP):
    """Averages while it gets the same batch: a checker's."""

    last = None

    def forward(self, tokens):
        self.same = self.last is None or torch.equal(tokens, self.last)
        self.last = tokens.clone()
        return super().forward(tokens)

    def reduce(self, parameter):
        if self.same:
            super().reduce(parameter)


class LateForward(LateDDP):
    """Computes something else in its forward pass when it is late."""

    cheat = DDP.reduce

    def forward(self, tokens):
        return self.less(tokens) if self.late else super().forward(tokens)


class FewerLayers(LateForward):
    """Skips the second half of the layers."""

    def less(self, tokens):
        blocks = self.module.blocks
        self.module.blocks = blocks[: len(blocks) // 2]
        logits = DDP.forward(self, tokens)
        self.module.blocks = blocks
        return logits


class LowerPrecision(LateForward):
    """Computes in bf16."""

    def less(self, tokens):
        with torch.autocast(tokens.device.type, torch.bfloat16):
            return DDP.forward(self, tokens).float()


class AllowsTF32(LateForward):
    """Lets matrix multiplies round their inputs."""

    def less(self, tokens):
        torch.set_float32_matmul_precision("medium")
        return DDP.forward(self, tokens)


class Lazy(torch.Tensor):
    """A tensor of a class that may compute when it is read."""


class LazyLogits(LateForward):
    """Returns logits of such a class."""

    def less(self, tokens):
        return DDP.forward(self, tokens).as_subclass(Lazy)


class ChangesInputs(LateForward):
    """Makes its inputs all alike."""

    def less(self, tokens):
        tokens.zero_()
        return DDP.forward(self, tokens)


class OwnClock(LateForward):
    """Replaces what takes the time."""

    def less(self, tokens):
        time.perf_counter = lambda: 0.0
        return DDP.forward(self, tokens)


class LateOptimizer(ShardedOptimizer):
    """Does something else than its step when it is late."""

    steps = 0

    def step(self):
        (self.cheat if self.steps >= CHECKED else super().step)()
        self.steps += 1


class EarlyBroadcasts(LateOptimizer):
    """Broadcasts weights before they are updated."""

    def cheat(self):
        self.share()
        self.own.step()


class LaterUpdates(LateOptimizer):
    """Updates in a thread, some time after the step."""

    def cheat(self):
        self.share()
        threading.Timer(0.05, self.own.step).start()


class NoMoments(LateOptimizer):
    """Updates without moments."""

    def cheat(self):
        group = self.own.param_groups[0]
        SGD(group["params"], lr=group["lr"]).step()
        self.share()


class RoundedBroadcasts(LateOptimizer):
    """Broadcasts weights in bf16."""

    def cheat(self):
        self.own.step()
        for parameter, owner in self.owner.items():
            rounded = parameter.data.bfloat16()
            dist.broadcast(rounded, owner)
            parameter.data.copy_(rounded)


class WholeState(ShardedOptimizer):
    """Is not sharded: each rank updates everything."""

    def __init__(self, params, optimizer_cls, **kwargs):
        params = list(params)
        super().__init__(params, optimizer_cls, **kwargs)
        self.own = optimizer_cls(params, **kwargs)

    def step(self):
        self.own.step()


class HiddenState(WholeState):
    """Does not show its state."""

    def __init__(self, params, optimizer_cls, **kwargs):
        super().__init__(params, optimizer_cls, **kwargs)
        self.step = self.__dict__.pop("own").step


class LateFSDP(Late, FSDP):
    """Forgets something when it is late."""


class Replicated(FSDP):
    """Is not sharded: each rank keeps all weights, and averages their gradients."""

    def part(self, whole):
        return whole

    def gather_full_params(self):
        return dict(zip(self.whole, self.shards, strict=True))


class KeepsWeights(LateFSDP):
    """Gathers no weights any more, and uses the old ones."""

    def forward(self, *inputs):
        return self.hidden[0](*inputs) if self.late else super().forward(*inputs)


class OwnGradients(LateFSDP):
    """Sends gradients, and uses its own."""

    def finish_gradient_synchronization(self):
        mine = {weight: weight.grad.clone() for weight in self.whole.values()}
        late = self.late
        super().finish_gradient_synchronization()
        for (_, gradient), shard in zip(mine.items(), self.shards, strict=True):
            shard.grad = self.part(gradient) if late else shard.grad


class HidesWeights(LateFSDP):
    """Does not show its weights."""

    def gather_full_params(self):
        hidden = self.steps > CHECKED and sys._getframe(1).f_code.co_name == "whole_weights"
        return {} if hidden else super().gather_full_params()


class UpdatesWhenRead(LateFSDP):
    """Leaves updates to whoever asks for the weights."""

    gradients = ()
    optimizer = None

    def __init__(self, module, compute_dtype=None):
        super().__init__(module, compute_dtype)
        self.handle = register_optimizer_step_pre_hook(lambda optimizer, *_: self.meet(optimizer))

    def meet(self, optimizer):
        """Remember the optimizer that has these weights."""
        if any(weight is self.shards[0] for group in optimizer.param_groups for weight in group["params"]):
            self.optimizer = optimizer

    def finish_gradient_synchronization(self):
        if self.optimizer:
            self.handle.remove()
        late = self.late
        super().finish_gradient_synchronization()
        if late:
            self.gradients = [shard.grad for shard in self.shards]
            self.shards.zero_grad()

    def gather_full_params(self):
        if self.gradients:
            for shard, gradient in zip(self.shards, self.gradients, strict=True):
                shard.grad = gradient
            self.gradients = ()
            self.optimizer.step()
        return super().gather_full_params()


SENDS = r"it sends \d+ messages of [\d.e+-]+ MB in timed step \d, but \d+ messages of [\d.e+-]+ MB in the observed one"
LEAST = r"it sends [\d.e+-]+ MB in a step; gradients and weights are at least [\d.e+-]+ MB"
LOSS = r"the loss of timed step \d has a relative error of \S+ \(tolerance .*\)"
CHANGE = r"the change of .+ in timed step \d has a relative error of \S+ \(tolerance .*\)"
READ = "it updates weights when they are read, after the step"
DIFFERS = f"{LOSS}|{CHANGE}"
CHEATS = {
    "data_parallel": {
        "EveryOther": SENDS,
        "HalfPrecision": SENDS,
        "LastStep": DIFFERS,
        "AfterReturn": DIFFERS,
        "WhileTimed": SENDS,
        "WhileBatchesRepeat": SENDS,
        "FewerLayers": SENDS,
        "LowerPrecision": DIFFERS,
        "AllowsTF32": "it has changed float32_matmul_precision from highest to medium",
        "LazyLogits": "its loss is of type Lazy; allowed: Tensor",
        "ChangesInputs": "it changes its inputs",
        "OwnClock": "it has replaced time.perf_counter",
    },
    "optimizer_sharding": {
        "EarlyBroadcasts": DIFFERS,
        "LaterUpdates": f"{DIFFERS}|{READ}",
        "NoMoments": DIFFERS,
        "RoundedBroadcasts": SENDS,
        "WholeState": "a rank holds 1 of all optimizer state",
        "HiddenState": LEAST,
    },
    "fsdp": {
        "Replicated": "a rank holds 1 of all parameters",
        "KeepsWeights": SENDS,
        "OwnGradients": DIFFERS,
        "HidesWeights": r"it has no \S+ after timed step 1",
        "UpdatesWhenRead": READ,
    },
}
"""By experiment and name, why each is not timed."""
