"""Write the memory history of one step for PyTorch's viewer, https://pytorch.org/memory_viz.

Launch: python -m cs336_systems.artifacts.memory_snapshot --size 2.7B --context 512 --output snapshot.pickle
"""

import sys
from dataclasses import asdict
from pathlib import Path

import torch

from cs336_systems.artifacts.one_step import parse_step
from cs336_systems.benchmarks.end_to_end import build_step
from cs336_systems.benchmarks.memory_profile import warm_up
from cs336_systems.benchmarks.runner import measure_or_explain
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.measure.memory_history import history, require_history
from cs336_systems.measure.timing import synchronize
from cs336_systems.record.measurement import Measurement


def write_snapshot(cell: MemoryProfile, device: torch.device, output: Path) -> str:
    """Write the allocator's snapshot of one step after warm-up; returns why there is none, or an empty text."""

    def snapshot(cell: MemoryProfile, device: torch.device) -> list[Measurement]:
        require_history(device)
        step = build_step(EndToEnd(**asdict(cell)), device)
        warm_up(step, cell.mode)
        with history():
            for stage in step.stages(cell.mode).values():
                stage()
            synchronize(device)
            output.parent.mkdir(parents=True, exist_ok=True)
            torch.cuda.memory._dump_snapshot(str(output))
        return []

    obstacles = measure_or_explain(snapshot, cell, device)
    return obstacles[0].message if obstacles else ""


if __name__ == "__main__":
    described, target, options = parse_step("memory_snapshot", MemoryProfile, sys.argv[1:])
    if message := write_snapshot(described, target, options.output):
        print(f"No snapshot was written: {message}")
    else:
        print(f"{options.output}: open it at https://pytorch.org/memory_viz")
