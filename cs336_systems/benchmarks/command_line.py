"""The command line of every experiment: cells in, one CSV (or a printed table) out.

Each field of the experiment's dataclass is an option that accepts one or more values; all combinations are measured.
An experiment with several processes is launched by torchrun; rank 0 writes and prints.
"""

import atexit
import contextlib
import dataclasses
import faulthandler
import gc
import itertools
import os
import signal
import sys
import tempfile
import time
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, TypeVar

import psutil
import torch
import tyro
from torch.distributed.elastic.multiprocessing.errors import record

from cs336_systems.benchmarks.runner import Measure, first_line, measure_cells
from cs336_systems.config import CPU, CUDA, LARGEST_SEED
from cs336_systems.experiments.base import Experiment, expand, field_docs
from cs336_systems.grids import check_grid, device_of, launch_command
from cs336_systems.implementations import WHO, family_of, own_implementations
from cs336_systems.implementations import check as check_implementation
from cs336_systems.lifeline import end_with_the_run
from cs336_systems.measure.memory import is_out_of_memory
from cs336_systems.model_check import check_model
from cs336_systems.options import options_of, parse
from cs336_systems.parallel.process_group import Rank, current_rank, process_group
from cs336_systems.record import provenance
from cs336_systems.record.machine import detect
from cs336_systems.record.measurement import WHOLE_CELL, Measurement
from cs336_systems.record.revisions import as_text, contenders_of, revisions_of
from cs336_systems.record.rows import check_replaceable, make_row, parameters, reserved, write_job
from cs336_systems.record.validation import Row
from cs336_systems.run.kept_cells import keep, kept_cells, say_out_of_memory
from cs336_systems.run.progress import describe, finished_line

E = TypeVar("E", bound=Experiment)

STDERR = 2
"""The file descriptor of standard error, also where Python writes it elsewhere."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options of a job, other than its cells."""

    output: Path | None = None
    """CSV file to write, with its SHA-256 next to it; if not given, a table is printed."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to measure on; auto uses a GPU if PyTorch sees one. A cell's backend takes precedence."""
    seed: int = 0
    """Seed for the random weights and data."""


@record  # torchrun then reports the error of the rank that died first.
def main(experiment: type[E], measure: Measure[E]) -> None:
    """Parse the command line, measure all its cells, and write or print their rows.

    Exits with status 2 and one sentence on bad input. A bug in `measure` raises, and no file is written.
    """
    end_with_the_run()
    faulthandler.register(signal.SIGTERM, STDERR, chain=True)  # a job that hangs shows where, once it is ended
    try:
        rank = current_rank()
    except ValueError as error:
        print(f"{experiment.name}: {error}", file=sys.stderr)
        sys.exit(2)
    with contextlib.ExitStack() as until_written:
        try:
            cells, options = parse_command_line(experiment, sys.argv[1:])
            detect()  # raises ValueError if the environment names a GPU that does not exist
            machine = resolve_device(options.device)
            for cell in cells:
                check_processes(cell, rank)
                check_own(cell)
            device = device_of_rank(cells, machine, rank)
            kept = kept_cells()
            if options.output and rank.number == 0:
                check_replaceable(options.output)
                until_written.enter_context(reserved(options.output, len(cells)))
        except ValueError as error:
            if rank.number == 0:
                print(f"{experiment.name}: {error}", file=sys.stderr)
            sys.exit(2)
        startup_seconds = time.time() - psutil.Process().create_time()

        measured = measure_all(cells, measure, device, rank, options.seed, kept)
        if rank.number == 0:
            origin = provenance.collect(
                machine,
                gpus=rank.processes if device.type == CUDA else 0,
                nodes=rank.processes // rank.local_processes,
                seed=options.seed,
                startup_seconds=startup_seconds,
            )
            rows = [
                make_row(
                    cell, row, dataclasses.replace(origin, revisions=as_text(revisions_of(cell, of_row(cell, row))))
                )
                for cell, of_cell in measured
                for row in of_cell
            ]
            if options.output:
                write_job(options.output, experiment, rows)
            else:
                print(format_table(experiment, rows))


def check_own(cell: Experiment) -> None:
    """Raise a ValueError if a user's own model or implementation cannot be loaded and called."""
    if model := getattr(cell, "model", None):
        check_model(model, getattr(cell, "attention", "plain"))
    for implementation in own_implementations(cell):
        check_implementation(family_of(cell.name), implementation)


def of_row(cell: Experiment, row: Measurement) -> list[str]:
    """The contender of a measurement: the cell's, or the one named in its details, if any."""
    if not set(WHO).intersection(cell.details):
        return contenders_of(cell)
    return [row.details[name] for name in WHO if row.details.get(name)]


def measure_all(
    cells: Sequence[E],
    measure: Measure[E],
    device: torch.device,
    rank: Rank,
    seed: int,
    earlier: Sequence[list[Measurement]] = (),
) -> list[tuple[E, list[Measurement]]]:
    """Measure all cells but the first ones, which an earlier launch of the job has measured or lost."""
    kept = list(zip(cells, earlier, strict=False))
    cells_left = cells[len(kept) :]
    names = [describe(cell, cells) for cell in cells_left]
    with tempfile.TemporaryDirectory() as cache, process_group(rank, device), lost_memory():
        # Compilation starts from an empty cache, so that its cost does not depend on earlier runs.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        # Collections between cells then skip the modules' objects, which would take a tenth of a second each time.
        gc.freeze()
        atexit.register(gc.unfreeze)  # or Triton's bindings would call what is still there leaked, in 30 lines
        measured = measure_cells(cells_left, measure, device, seed) if cells_left else iter(())
        if rank.number > 0:
            return list(measured)
        return list(report_progress(itertools.chain(kept, keep(measured, names)), cells))


@contextlib.contextmanager
def lost_memory() -> Iterator[None]:
    """Notify the launcher if memory runs out while other ranks wait: the launch ends, but need not lose other cells."""
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is not None and is_out_of_memory(error.__cause__):
            say_out_of_memory(f"{error}: {first_line(error.__cause__)}")
        raise


def parse_command_line(
    experiment: type[E], arguments: Sequence[str], kind: type = JobOptions, program: str = ""
) -> tuple[list[E], Any]:
    """Parse the cells and options of a command line; a ValueError refuses a value in one sentence.

    `kind` is a dataclass of the other options, `seed` among them, of which an instance is returned. `program` is the
    module to run, if it is not the experiment's.
    """
    hints, docs = typing.get_type_hints(experiment, include_extras=True), field_docs(experiment)
    sweep = [
        (
            parameter.name,
            Annotated[GenericAlias(tuple, (hints[parameter.name], ...)), tyro.conf.arg(help=docs[parameter.name])],
            field(default=(parameter.default,)),
        )
        for parameter in dataclasses.fields(experiment)
    ]
    settings = options_of(kind)
    command = make_dataclass("Command", [*sweep, *settings], kw_only=True)
    description = f"{experiment.__doc__} Options take several values; all combinations are measured."
    prog = f"python -m {program}" if program else f"cs336-systems measure {experiment.name}"
    parsed = parse(command, prog, arguments, description)
    grid = {name: getattr(parsed, name) for name, *_ in sweep}
    check_grid(grid)
    if not 0 <= parsed.seed <= LARGEST_SEED:
        raise ValueError(f"seed is {parsed.seed}; allowed: whole numbers from 0 to {LARGEST_SEED}")
    return expand(experiment, grid), kind(**{name: getattr(parsed, name) for name, *_ in settings})


def resolve_device(device: str) -> torch.device:
    """Resolve `auto` to the machine's device; a ValueError if a GPU was requested and PyTorch sees none."""
    visible = torch.cuda.is_available() and not torch.version.hip
    if device == CUDA and not visible:
        raise ValueError(f"device is cuda, but PyTorch {torch.__version__} sees no NVIDIA GPU; allowed here: cpu")
    if device == "auto":
        device = CUDA if visible else CPU
    return torch.device(device)


def device_of_rank(cells: Sequence[Experiment], machine: torch.device, rank: Rank) -> torch.device:
    """Choose the device on which this rank measures all cells of its launch; each rank has its own GPU.

    A ValueError says that the cells' backends need different devices, or more GPUs than the machine has.
    """
    devices = sorted({device_of(cell, machine.type) for cell in cells})
    if len(devices) > 1:
        raise ValueError(f"the backends need {' and '.join(devices)}; allowed: one backend per launch")
    if devices == [CPU]:
        return torch.device(CPU)
    visible = torch.cuda.device_count() if machine.type == CUDA else 0
    if rank.local_processes > visible:
        raise ValueError(f"{rank.local_processes} processes need a GPU each, but {visible} are visible")
    return torch.device(CUDA, rank.local_number) if rank.processes > 1 else machine


def check_processes(cell: Experiment, rank: Rank) -> None:
    """Raise a ValueError that says how to launch a cell if it was launched with another number of processes."""
    if cell.processes != rank.processes:
        raise ValueError(
            f"processes is {cell.processes}, but {rank.processes} were launched; "
            f"launch with {launch_command(cell.name, cell.processes)}"
        )


def report_progress(
    measured: Iterable[tuple[E, list[Measurement]]], cells: Sequence[E]
) -> Iterator[tuple[E, list[Measurement]]]:
    """Pass cells through, with a line for each on standard error."""
    for number, (cell, measurements) in enumerate(measured, start=1):
        first, wall = measurements[0], measurements[-1]
        outcome = f"{first.status}: {first.message}" if first.metric == WHOLE_CELL else "ok"
        assert wall.mean is not None
        line = finished_line(number, len(cells), describe(cell, cells), outcome, wall.mean)
        print(line, file=sys.stderr, flush=True)
        yield cell, measurements


def format_table(experiment: type[Experiment], rows: Sequence[Row]) -> str:
    """Format rows as a plain-text table of parameters and measurements, without empty columns."""
    import pandas  # Jobs with a file do not need it.

    table = pandas.DataFrame([row.model_dump() for row in rows])
    statistics = ["metric", *experiment.details, "unit", "n", "mean", "std", "median", "value", "status", "message"]
    varying = [name for name in parameters(experiment) if table[name].nunique() > 1]
    constant = ", ".join(f"{name} {table[name].iloc[0]}" for name in parameters(experiment) if name not in varying)
    said = [name for name in statistics if not table[name].isin(["", None]).all()]
    return f"{constant}\n{table[varying + said].to_string(index=False, na_rep='', float_format='{:.4g}'.format)}"
