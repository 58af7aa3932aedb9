"""Write the memory history of one step for PyTorch's viewer, https://pytorch.org/memory_viz.

Launch: python -m cs336_systems.artifacts.memory_snapshot --size 2.7B --context 512 --output snapshot.pickle
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro

from cs336_systems.benchmarks.memory_profile import build_step, warm_up
from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.measure.memory import Unavailable
from cs336_systems.measure.memory_history import history, require_history
from cs336_systems.measure.timing import synchronize


@dataclass(frozen=True, kw_only=True)
class Snapshot(MemoryProfile):
    """Write the memory history of one step of a Transformer language model for PyTorch's viewer."""

    output: Path
    """The file to write, a pickle."""


def write_snapshot(cell: MemoryProfile, device: torch.device, output: Path) -> None:
    """Record the cell's step, after another one, and write the allocator's own snapshot.

    Raises:
        Unavailable: the allocator keeps no history on this device.
    """
    require_history(device)
    step = build_step(cell, device)
    warm_up(step, cell.mode)
    with history():
        for stage in step.stages(cell.mode).values():
            stage()
        synchronize(device)
        output.parent.mkdir(parents=True, exist_ok=True)
        torch.cuda.memory._dump_snapshot(str(output))


def main() -> None:
    """Parse the command line; exits with status 2 and one sentence where there is nothing to record."""
    parsed = asdict(tyro.cli(Snapshot))
    output = parsed.pop("output")
    try:
        cell = make_cell(MemoryProfile, parsed)
        write_snapshot(cell, torch.device("cuda" if torch.cuda.is_available() else "cpu"), output)
    except (ValueError, Unavailable) as error:
        print(f"memory_snapshot: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{output}: open it at https://pytorch.org/memory_viz")


if __name__ == "__main__":
    main()
