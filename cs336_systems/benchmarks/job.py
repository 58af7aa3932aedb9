"""The command line of every experiment: cells in, one CSV (or a printed table) out.

Each field of the experiment's dataclass is an option that takes one value or several; all combinations are measured.
"""

import dataclasses
import os
import sys
import tempfile
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pandas
import psutil
import torch
import tyro
from pydantic import BaseModel
from tqdm import tqdm

from cs336_systems.experiments.base import Experiment, expand, field_docs
from cs336_systems.measure import provenance
from cs336_systems.measure.memory import Unavailable, is_out_of_memory, release
from cs336_systems.measure.record import WHOLE_CELL, Measurement, make_row, summarize, write_rows

E = TypeVar("E", bound=Experiment)
Measure = Callable[[E, torch.device], list[Measurement]]
"""Measures one cell on a device. It may raise `Unavailable`, run out of memory, or fail to compile."""

WALL = "wall"
"""Metric of the row that says how long a cell took in all, with what is not timed: build, compilation, release; s."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What a job is told besides its cells."""

    output: Path | None = None
    """CSV file to write; without it a table is printed."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; auto takes a GPU if PyTorch sees one."""
    seed: int = 0
    """Seed of random weights and data."""


def main(experiment: type[E], measure: Measure, module: str, check: Callable[[E], object] = lambda cell: None) -> None:
    """Parse the command line, measure all its cells, and write or print their rows.

    Args:
        experiment: parameters of a cell.
        measure: measures one cell.
        module: dotted name of the calling module, whose source digest the rows carry.
        check: raises ValueError for a cell that asks for what does not exist, before any is measured.

    Exits with status 2 and one sentence on bad input. A bug in `measure` raises, and no file is written.
    """
    try:
        cells, options = parse_command_line(experiment, sys.argv[1:])
        device = resolve_device(options.device)
        for cell in cells:
            check(cell)
    except ValueError as error:
        print(f"{experiment.name}: {error}", file=sys.stderr)
        sys.exit(2)
    # fp32 means fp32: no rounding of matrix multiplies' inputs to TF32.
    torch.set_float32_matmul_precision("highest")
    startup_seconds = time.time() - psutil.Process().create_time()

    with tempfile.TemporaryDirectory() as cache:
        # Compilation starts from an empty cache, so that what it costs does not depend on earlier runs.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        measured = list(measure_all(cells, measure, device, options.seed))
    origin = provenance.collect(module, device, processes=1, seed=options.seed, startup_seconds=startup_seconds)
    rows = [make_row(cell, measurement, origin) for cell, measurements in measured for measurement in measurements]
    if options.output:
        write_rows(options.output, experiment, rows)
    else:
        print(format_table(experiment, rows))


def measure_all(
    cells: Sequence[E], measure: Measure, device: torch.device, seed: int
) -> Iterator[tuple[E, list[Measurement]]]:
    """Each cell with its measurements; nothing of a cell stays in memory when the next one begins.

    Progress is a bar on a terminal and a line a cell elsewhere.
    """
    progress = tqdm(cells, unit="cell", disable=not sys.stderr.isatty())
    for number, cell in enumerate(progress, start=1):
        progress.set_description(describe(cell, cells))
        torch.manual_seed(seed)
        start = time.perf_counter()
        measurements = measure_or_explain(measure, cell, device)
        release(device)
        seconds = time.perf_counter() - start
        if progress.disable:
            outcome = measurements[0]
            note = f"{outcome.status}: {outcome.message}" if outcome.metric == WHOLE_CELL else "ok"
            print(f"[{number}/{len(cells)}] {describe(cell, cells)}: {note}, {seconds:.1f} s", file=sys.stderr)
        yield cell, [*measurements, summarize(WALL, "s", [seconds])]


def parse_command_line(experiment: type[E], arguments: Sequence[str]) -> tuple[list[E], JobOptions]:
    """Cells and options that a command line asks for.

    Raises:
        ValueError: a value that the experiment does not allow, in one sentence.
    """
    docs = field_docs(experiment) | field_docs(JobOptions)
    hints = typing.get_type_hints(experiment, include_extras=True)
    sweep = [
        (
            parameter.name,
            Annotated[tuple[hints[parameter.name], ...], tyro.conf.arg(help=docs[parameter.name])],
            (parameter.default,),
        )
        for parameter in dataclasses.fields(experiment)
    ]
    settings = [
        (option.name, Annotated[option.type, tyro.conf.arg(help=docs[option.name])], option.default)
        for option in dataclasses.fields(JobOptions)
    ]
    command = make_dataclass(
        "Command", [(name, kind, field(default=default)) for name, kind, default in [*sweep, *settings]], kw_only=True
    )
    description = f"{experiment.__doc__} Options take several values; all combinations are measured."
    program = f"python -m cs336_systems.benchmarks.{experiment.name}"
    parsed: Any = tyro.cli(command, prog=program, args=list(arguments), description=description)
    grid = {name: getattr(parsed, name) for name, *_ in sweep}
    return expand(experiment, grid), JobOptions(**{name: getattr(parsed, name) for name, *_ in settings})


def resolve_device(device: str) -> torch.device:
    """The device to measure on.

    Raises:
        ValueError: a GPU was asked for and PyTorch sees none.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is cuda, but PyTorch {torch.__version__} sees no GPU; allowed here: cpu")
    return torch.device(device)


def measure_or_explain(measure: Measure, cell: Experiment, device: torch.device) -> list[Measurement]:
    """What a cell measures, or the one row that says why it could not be measured.

    Only outcomes that are results are caught: no memory, a missing device or tool, a compiler that fails.
    """
    try:
        return measure(cell, device)
    except Unavailable as error:
        return [Measurement(metric=WHOLE_CELL, status="skipped", message=str(error))]
    except (RuntimeError, MemoryError) as error:
        in_compiler = is_compiler_failure(error)
        # The compiler's own out-of-memory reaches us wrapped.
        if is_out_of_memory(error) or (in_compiler and is_out_of_memory(error.__cause__)):
            status = "oom"
        elif in_compiler:
            status = "failed"
        else:
            raise
        return [Measurement(metric=WHOLE_CELL, status=status, message=first_line(error))]


def is_compiler_failure(error: BaseException) -> bool:
    """Whether an exception says that torch.compile failed, or a tool that it needs."""
    # Imported when there is something to explain: it takes a second, which an experiment that compiles nothing saves.
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    return isinstance(error, (TorchDynamoException, CppCompileError, InvalidCxxCompiler))


def first_line(error: BaseException) -> str:
    """The first two sentences of an error's first line; an allocator's second one says how much it wanted."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ". ".join(line.split(". ")[:2])[:300]


def describe(cell: Experiment, cells: Sequence[Experiment]) -> str:
    """The parameters in which a cell differs from the other cells of its job (all of them for a lone cell)."""
    shown = {
        parameter.name: getattr(cell, parameter.name)
        for parameter in dataclasses.fields(cell)
        if len(cells) == 1 or len({getattr(other, parameter.name) for other in cells}) > 1
    }
    return " ".join(f"{key}={value}" for key, value in shown.items())


def format_table(experiment: type[Experiment], rows: Sequence[BaseModel]) -> str:
    """Rows as a plain-text table: the parameters and the measurement, columns that say nothing left out."""
    parameters = [parameter.name for parameter in dataclasses.fields(experiment)]
    table = pandas.DataFrame([row.model_dump() for row in rows])
    statistics = ["metric", "unit", "n", "mean", "std", "median", "value", "status", "message"]
    varying = [name for name in parameters if table[name].nunique() > 1]
    constant = ", ".join(f"{name} {table[name].iloc[0]}" for name in parameters if name not in varying)
    said = [name for name in statistics if not table[name].isin(["", None]).all()]
    return f"{constant}\n{table[varying + said].to_string(index=False, na_rep='', float_format='{:.4g}'.format)}"
