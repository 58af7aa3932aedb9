"""The command line of the artifacts: one step of a language model, described like a cell of an experiment."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch

from cs336_systems.benchmarks.command_line import parse_command_line, resolve_device
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.experiments.training_ladder import TrainingLadder, check_one_rung
from cs336_systems.lifeline import end_with_the_run
from cs336_systems.model_check import check_model
from cs336_systems.record.rows import reserved

E = TypeVar("E", KernelProfile, MemoryProfile, TrainingLadder)


@dataclass(frozen=True, kw_only=True)
class ArtifactOptions:
    """The options of an artifact in addition to its step."""

    output: Path
    """File to write."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto uses a GPU if PyTorch sees one."""
    seed: int = 0
    """Seed for the random weights and data."""


def parse_step(program: str, experiment: type[E], arguments: Sequence[str]) -> tuple[E, torch.device, ArtifactOptions]:
    """The step, the device and the options of an artifact's command line; seeds PyTorch, and turns TF32 off.

    `experiment`'s parameters describe the step. Exits with status 2 and one sentence on bad input.
    """
    end_with_the_run()
    try:
        cells, options = parse_command_line(
            experiment, arguments, ArtifactOptions, f"cs336_systems.artifacts.{program}"
        )
        if len(cells) > 1:
            raise ValueError(f"{len(cells)} steps are described; allowed: one value of each parameter")
        check_one_rung(cells[0])
        if not isinstance(cells[0], TrainingLadder):
            check_model(cells[0].model, cells[0].attention)
        device = resolve_device(options.device)
        with reserved(options.output, len(cells)):  # or it says why no file can be written there
            pass
    except ValueError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(options.seed)
    return cells[0], device, options
