"""The peak memory of a traced training step, depending on how ranks share its state."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from cs336_systems.accounting.bucketed_bytes import MB, grouped
from cs336_systems.accounting.caching_allocator import Block, CachingAllocator
from cs336_systems.accounting.peak_memory import UNITS_IN_FLIGHT, WORKSPACE, Use
from cs336_systems.accounting.setting import Scheme
from cs336_systems.accounting.units import BYTES, FP32_BYTES
from cs336_systems.fit.tracing import Trace
from cs336_systems.limits import AHEAD
from cs336_systems.parallel.ownership import plan_buckets

BUCKET = 100 * MB
REST_OF_MASTER = 2
"""Bytes by which an fp32 master exceeds its bf16 weight."""
SHARED: Mapping[Scheme, tuple[str, ...]] = {
    **dict.fromkeys(("alone", "data parallel"), ()),
    "sharded optimizer": ("state",),
    "ZeRO-2": ("gradients", "state"),
    "FSDP": ("weights", "gradients", "state"),
}
"""State that ranks share under each scheme."""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How ranks share a model's state."""

    scheme: Scheme = "alone"
    ranks: int = 1

    def shares(self, what: Literal["weights", "gradients", "state"]) -> int:
        """Ranks that share the weights, the gradients or the optimizer's state."""
        return self.ranks if what in SHARED[self.scheme] else 1


def peak_of(trace: Trace, sharing: Sharing = Sharing()) -> Use:
    """The peak memory of the second step, when the optimizer state exists."""
    memory = _Memory()
    replay = _Replay(trace, sharing, memory)
    replay.hold_state()
    replay.step()
    replay.update()
    memory.forget_peak()
    replay.step()
    replay.update()
    workspaces = len(trace.matmuls) * WORKSPACE
    return Use(**memory.parts, workspaces=workspaces, rounding=memory.peak - sum(memory.parts.values()))


def heaviest_share(parameters: Sequence[Tensor], ranks: int) -> set[int]:
    """The parameters that belong to the rank with most of them, where ranks own whole ones."""
    loads = [0] * ranks
    last = len(parameters) - 1
    buckets = plan_buckets(parameters[::-1], loads, BUCKET)
    owner = loads.index(max(loads))
    return {last - index for bucket in buckets for index, rank in bucket.items() if rank == owner}


class _Memory:
    """Tensors in a caching allocator, by purpose, and the moment of the peak."""

    def __init__(self) -> None:
        self.allocator = CachingAllocator()
        self.live: dict[object, tuple[Block, str, int]] = {}
        self.now: Counter[str] = Counter()
        self.forget_peak()

    def forget_peak(self) -> None:
        self.peak, self.parts = 0, dict[str, int]()

    def allocate(self, name: object, use: str, size: int) -> None:
        self.live[name] = (self.allocator.allocate(size), use, size)
        self.now[use] += size
        if self.allocator.allocated > self.peak:
            self.peak, self.parts = self.allocator.allocated, dict(self.now)

    def free(self, name: object) -> None:
        block, use, size = self.live.pop(name)
        self.now[use] -= size
        self.allocator.release(block)

    def rename(self, name: object, use: str) -> None:
        block, before, size = self.live[name]
        self.now[before] -= size
        self.now[use] += size
        self.live[name] = (block, use, size)


class _Replay:
    """Passes of one rank."""

    def __init__(self, trace: Trace, sharing: Sharing, memory: _Memory):
        self.trace, self.sharing, self.memory = trace, sharing, memory
        self.passed = 0
        self.travelling: deque[tuple[object, int]] = deque()
        self.gradients: list[object] = []
        self.lone: set[int] = set()
        """Parameters whose gradient has a bucket of its own, and stays where it is."""
        self.owned = heaviest_share(trace.parameters, sharing.ranks)

    def hold_state(self) -> None:
        """Allocate the tensors that outlive all steps."""
        for index, parameter in enumerate(self.trace.parameters):
            size = self._share(parameter.numel(), self.sharing.shares("weights")) * self._stored(parameter)
            self.memory.allocate(("weight", index), "parameters", size)
        for index, size in enumerate(self.trace.constants):
            self.memory.allocate(("constant", index), "parameters", size)
        if self.sharing.scheme in ("data parallel", "sharded optimizer"):
            sizes = [parameter.numel() * parameter.element_size() for parameter in self.trace.parameters]
            index = len(sizes)
            for bucket in grouped(sizes[::-1], BUCKET):
                index -= len(bucket)
                if len(bucket) > 1:
                    self.memory.allocate(("bucket", index), "gradients", sum(bucket))
                else:
                    self.lone.add(index)
        if self.sharing.scheme == "FSDP":
            units = self.trace.unit_numbers()
            windows = [sum(units[at : at + 1 + AHEAD]) for at in range(max(1, len(units) - AHEAD))]
            self.memory.allocate("gathered", "weight_copies", max(windows) * self.trace.weight_bytes)

    def step(self) -> None:
        """Run the forward and backward pass."""
        memory = self.memory
        self.passed += 1
        for event in self.trace.events:
            name = (self.passed, event.storage)
            match event.kind:
                case "allocate":
                    memory.allocate(name, "activations", event.bytes)
                case "free" if name in memory.live:
                    memory.free(name)
                case "copy":
                    memory.rename(name, "weight_copies")
                case "gradient":
                    self._reduce(name, event.bytes)
                case "passing":
                    memory.allocate("passing", "temporaries", event.bytes)
                    memory.free("passing")
        while self.travelling:
            self._arrive()

    def update(self) -> None:
        """Create the optimizer state in the first update, and free gradients and the step's remaining tensors."""
        for index, parameter in enumerate(self.trace.parameters):
            numbers = self._part(index, self.sharing.shares("state"))
            if ("moment 1", index) in self.memory.live:
                break
            for which in ("moment 1", "moment 2"):
                self.memory.allocate((which, index), "optimizer_state", FP32_BYTES * numbers)
            if self._stored(parameter) == BYTES["bf16"]:
                self.memory.allocate(("master", index), "optimizer_state", REST_OF_MASTER * numbers)
        for name in self.gradients:
            self.memory.free(name)
        self.gradients = []
        for name in [name for name in self.memory.live if isinstance(name, tuple) and name[0] == self.passed]:
            self.memory.free(name)

    def _reduce(self, name: object, index: int) -> None:
        """Share a full gradient: it is copied into a bucket, or in flight while others are computed."""
        self.memory.rename(name, "gradients")
        match self.sharing.scheme:
            case "alone":
                self.gradients.append(name)
            case "data parallel" | "sharded optimizer" if index not in self.lone:
                self.memory.free(name)
            case "data parallel" | "sharded optimizer":
                self.gradients.append(name)
            case _:
                self.memory.rename(name, "temporaries")
                self.travelling.append((name, index))
                units = [self.trace.units[which] for _, which in self.travelling]
                while len(set(units)) > UNITS_IN_FLIGHT:
                    self._arrive()
                    units.pop(0)

    def _arrive(self) -> None:
        name, index = self.travelling.popleft()
        self.memory.free(name)
        parameter = self.trace.parameters[index]
        size = self._part(index, self.sharing.shares("gradients")) * self._stored(parameter)
        shard = ("shard", self.passed, index)
        self.memory.allocate(shard, "gradients", size)
        self.gradients.append(shard)

    def _part(self, index: int, ranks: int) -> int:
        """How much of a parameter's gradient or state a rank has: a share in FSDP, otherwise all of it or nothing."""
        numbers = self.trace.parameters[index].numel()
        if ranks == 1 or self.sharing.scheme == "FSDP":
            return self._share(numbers, ranks)
        return numbers * (index in self.owned)

    def _stored(self, parameter: object) -> int:
        """Bytes of a weight on a rank: FSDP keeps fp32 shards."""
        return FP32_BYTES if self.sharing.scheme == "FSDP" else parameter.element_size()  # type: ignore[attr-defined]

    @staticmethod
    def _share(numbers: int, ranks: int) -> int:
        return -(-numbers // ranks)
