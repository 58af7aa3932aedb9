"""Parameters of the toy experiment."""

from dataclasses import dataclass
from typing import Any, ClassVar

from cs336_systems.experiments.base import Experiment, Positive


@dataclass(frozen=True, kw_only=True)
class Ping(Experiment):
    """Time an all-reduce between processes."""

    name: ClassVar[str] = "ping"
    timed: ClassVar[str] = "all_reduce"
    settings: ClassVar[tuple[str, ...]] = ("steps",)
    numeric_tests: ClassVar[tuple[str, ...]] = ("test_ping",)

    processes: Positive = 2
    """Processes that take part."""
    numbers: Positive = 1000
    """fp32 numbers that each of them contributes."""
    steps: Positive = 10
    """All-reduces timed."""

    @classmethod
    def planned_samples(cls, cell: Any, metric: str) -> int | None:
        """Each all-reduce is a sample."""
        return cell.steps if metric == "all_reduce" else None
