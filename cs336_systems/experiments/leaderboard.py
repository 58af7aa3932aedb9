"""Parameters of the 2026 leaderboard's training step."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from cs336_systems.accounting.leaderboard import FUSED
from cs336_systems.accounting.peak_memory import with_fewest_recomputed
from cs336_systems.accounting.setting import Setting
from cs336_systems.experiments.base import Experiment, Positive, Size

AUTO = -1
"""The value that recomputes as few blocks as the device's memory allows."""
RANKS = 2
"""GPUs of the leaderboard."""
RESERVE = 0.06
"""Share of a device's memory that a step leaves free: for the closed form's error, and the allocator's gaps."""


def usable(free: float) -> float:
    """Bytes that a step may need, given a device's free bytes."""
    return (1 - RESERVE) * free


@dataclass(frozen=True, kw_only=True)
class Leaderboard(Experiment):
    """Measure the leaderboard's training step, or one rank's part of it: bf16 weights, fp32 masters, exact AdamW."""

    name: ClassVar[str] = "leaderboard"
    timed: ClassVar[str] = "step"
    settings: ClassVar[tuple[str, ...]] = ("context", "batch_size", "vocab_size", "recomputed", "warmup", "steps")
    per_step: ClassVar[tuple[str, ...]] = ("step", "forward_backward", "update")
    numeric_tests: ClassVar[tuple[str, ...]] = (
        "test_model",
        "parallel.test_update_in_backward",
        "training.test_sharded_step",
    )

    part: Literal["step", "rank"] = "step"
    """step: the whole step, on all processes. rank: the work of one of two ranks without the other: all layers on its
    own sequences, the loss, and the update of half of the weights."""
    processes: Annotated[int, Ge(1), Le(2)] = 2  # type: ignore[misc]  # a class variable of experiments that do not vary it
    """Number of processes that measure together, one per GPU if there are GPUs; they communicate only in a step."""
    size: Size = "8B:d_model=4096,d_ff=11008,num_layers=34,num_heads=32"
    """Model size: a name (nano, micro, mini, small, medium, large, xl, 2.7B, 10B), or your own shape as
    NAME:d_model=N,d_ff=N,num_layers=N,num_heads=N."""
    context: Positive = 32_768
    """Tokens per sequence."""
    batch_size: Positive = 1
    """Sequences per rank."""
    vocab_size: Positive = 151_936
    """Vocabulary size."""
    recomputed: Annotated[int, Ge(AUTO)] = AUTO
    """Blocks recomputed in the backward pass, except attention; -1: as few as memory allows."""
    warmup: Positive = 1
    """Steps run before timing begins; the first one includes one-time costs."""
    steps: Positive = 3
    """Steps timed."""

    @property
    def ranks(self) -> int:
        """Ranks that share the update."""
        return self.processes if self.part == "step" else RANKS

    def setting(self, free: float = 0.0, *, on_gpu: bool = True) -> Setting:
        """A rank's step; if `recomputed` is AUTO, with as few recomputed blocks as `free` bytes allow."""
        step = Setting.of(vars(self), **FUSED, ranks=self.ranks, on_gpu=on_gpu)
        if self.recomputed == AUTO:
            return with_fewest_recomputed(step, usable(free))
        return replace(step, recomputed=min(self.recomputed, step.shape.num_layers))

    def settings_of_steps(self) -> Iterator[tuple[str, Setting]]:
        """Describe a rank's step."""
        yield "", self.setting()
