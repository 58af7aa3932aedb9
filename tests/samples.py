"""Made-up measurements of a whole plan, which pass every self-check, and the report that the real scripts make of them."""

import contextlib
import copy
import random
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import BaseModel
from pypdf import PdfReader

from cs336_systems.accounting.transformer import state_bytes, step_flops
from cs336_systems.benchmarks import accumulation, autocast_dtypes
from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.peaks import PEAKS
from cs336_systems.measure.record import WHOLE_CELL, Measurement, Provenance, make_row, summarize, write_rows
from cs336_systems.plan import Plan, make_plan
from cs336_systems.sizes import parse_size
from scripts import coverage, tables, writeup
from scripts.checks import write_checks
from scripts.figures import speedup, step_context, step_phases, warmup

ROOT = Path(__file__).parents[1]
MIB = 2**20
H200 = {"gpu": "NVIDIA H200", "gpu_count": 1, "gpu_memory": 141 * 2**30, "driver": "580.1", "cuda": "13.0"}
OOM = Measurement(metric=WHOLE_CELL, status="oom", message="CUDA out of memory. Tried to allocate 20.00 GiB")


def config(**changes: Any) -> dict[str, Any]:
    """The project's config.yaml, read anew, with some top-level keys changed."""
    return yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8")) | changes


def provenance(**changes: Any) -> Provenance:
    """A job's provenance, on a CPU unless `changes` say otherwise."""
    values = {
        "cpu": "AMD EPYC",
        "torch": "2.11.0",
        "python": "3.12.3",
        "tf32": False,
        "git_commit": "0123abc",
        "git_dirty": False,
        "source_digest": "0123456789ab",
        "utc": "2026-01-02T03:04:05+00:00",
        "seed": 0,
        "startup_seconds": 2.5,
    }
    return Provenance(**(values | changes))


def step_measurements(cell: EndToEnd, *, on_gpu: bool) -> list[Measurement]:
    """Times of a step at 40 % of an H200's peak, the first one slow without warm-up."""
    noise = random.Random(repr(cell))
    shape, peak = parse_size(cell.size), PEAKS["NVIDIA H200"]
    flops = step_flops("forward", shape, cell.vocab_size, cell.batch_size, cell.context)
    forward = 1e3 * flops / (0.4 * peak.flops(cell.precision)) * (0.8 if cell.compiled else 1)
    optimizer = 1e3 * state_bytes("train_step", shape, cell.vocab_size) / peak.bandwidth
    number = {"forward": 1, "forward_backward": 2, "train_step": 3}[cell.mode]
    base = dict(list({"forward": forward, "backward": 2 * forward, "optimizer": optimizer}.items())[:number])
    slow = [20.0 if cell.warmup == 0 else 1.0] + [1.0] * (cell.steps - 1)
    laps = {phase: [ms * factor * noise.uniform(0.99, 1.01) for factor in slow] for phase, ms in base.items()}
    steps = [sum(phases) for phases in zip(*laps.values(), strict=True)]
    peak_mib = 1.3 * state_bytes(cell.mode, shape, cell.vocab_size) / MIB
    return [
        *(summarize(phase, "ms", values) for phase, values in laps.items()),
        summarize("step", "ms", steps),
        summarize("first_step", "ms", steps[:1]),
        summarize("build", "s", [0.5]),
        summarize("warmup", "s", [cell.warmup * steps[-1] / 1e3]),
        summarize("peak_memory", "MiB", [peak_mib])
        if on_gpu
        else Measurement(metric="peak_memory", unit="MiB", status="skipped", message="counted on CUDA devices only"),
        summarize("compiled_graphs", "", [1 if cell.compiled else 0]),
        Measurement(
            metric="logits_dtype", unit="dtype", n=1, value="bfloat16" if cell.precision == "bf16" else "float32"
        ),
        summarize("wall", "s", [sum(steps) / 1e3 + 1.0]),
    ]


def measure(cell: Experiment, *, on_gpu: bool) -> list[Measurement]:
    """What a cell measures: made up where it is a time, real where it is arithmetic."""
    if isinstance(cell, EndToEnd):
        return step_measurements(cell, on_gpu=on_gpu)
    module = {"accumulation": accumulation, "autocast_dtypes": autocast_dtypes}[cell.name]
    return module.measure(cell, torch.device("cpu"))


def rows_of(
    cells: Iterable[Experiment],
    origin: Provenance,
    outcome: Callable[[Experiment], Measurement | None] = lambda cell: None,
) -> list[BaseModel]:
    """The rows of cells; `outcome` may give the one measurement of a cell that failed."""
    rows = []
    for cell in cells:
        lost = outcome(cell)
        measurements = [lost] if lost else measure(cell, on_gpu=bool(origin.gpu))
        rows += [make_row(cell, measurement, origin) for measurement in measurements]
    return rows


def planned_cells(plan: Plan, experiment: str) -> list[Experiment]:
    """Every cell that a plan has of an experiment."""
    return [cell for job in plan.jobs[experiment].values() for cell in job.cells]


def make_report(folder: Path, config: dict[str, Any], rows: dict[str, list[BaseModel]]) -> Path:
    """The PDF that the pipeline's scripts make of rows, in a folder that gets the report's templates.

    Each experiment's rows are one raw CSV file; an experiment without rows has none.
    """
    config = copy.deepcopy(config)
    shutil.copytree(ROOT / "report", folder / "report", dirs_exist_ok=True)
    label = "cpu" if config["machine"] == "auto" else config["machine"]
    with contextlib.chdir(folder):
        results = Path("results", label)
        for name, csv_rows in rows.items():
            write_rows(results / "raw" / name / "all.csv", EXPERIMENTS[name], csv_rows)
        paths = {name: str(results / "tables" / f"{name}.csv") for name in make_plan(config).jobs}
        for name, path in paths.items():
            tables.merge(name, [str(csv) for csv in sorted((results / "raw" / name).glob("*.csv"))], path)
        (results / "figures").mkdir(exist_ok=True)
        for module in (step_phases, step_context, warmup):
            module.draw(paths["end_to_end"], str(results / "figures" / f"{module.__name__.rpartition('.')[2]}.svg"))
        for comparison in ("precision", "compile"):
            speedup.draw(paths["end_to_end"], str(results / "figures" / f"{comparison}_speedup.svg"), comparison)
        coverage.write_coverage(config, paths, str(results / "coverage.csv"))
        write_checks(paths, str(results / "checks.csv"))
        ends = {key: str(results / name) for key, name in {"source": "writeup.typ", "output": "writeup.pdf"}.items()}
        writeup.write(config, paths, str(results / "coverage.csv"), str(results / "checks.csv"), **ends)
    return folder / results / "writeup.pdf"


def pdf_text(path: Path) -> str:
    """A PDF's text with all white space taken out, since a typeset line may break anywhere."""
    return squeeze("".join(page.extract_text() for page in PdfReader(path).pages))


def squeeze(text: str) -> str:
    """A text without white space."""
    return re.sub(r"\s+", "", text)
