"""Made-up measurements of every planned cell, plausible enough to pass the report's self-checks."""

import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import BaseModel
from pypdf import PdfReader

from cs336_systems.accounting.attention import flash_flops, plain_bytes_before_backward
from cs336_systems.accounting.transformer import state_bytes, step_flops
from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks import accumulation, autocast_dtypes, flash
from cs336_systems.experiments.attention import Attention
from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.flash_ablation import FlashAblation
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.peaks import PEAKS
from cs336_systems.measure.measurement import WHOLE_CELL, Measurement, summarize
from cs336_systems.measure.record import Provenance, make_row, write_job as write_rows
from cs336_systems.plan import plan_jobs
from cs336_systems.sizes import parse_size

ROOT = Path(__file__).parents[1]
PEAK = PEAKS["NVIDIA H200"]
H200 = {"gpu": "NVIDIA H200", "gpu_count": 1, "gpu_memory": 141 * 2**30, "driver": "580.1", "cuda": "13.0"}
OOM = Measurement(metric=WHOLE_CELL, status="oom", message="CUDA out of memory. Tried to allocate 20.00 GiB")
NO_CPU_MEMORY = Measurement(metric="peak_memory", unit="MiB", status="skipped", message="on CUDA devices only")


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


def jittered(cell: Experiment, metric: str, milliseconds: float, n: int, first: float = 1.0) -> list[float]:
    """Samples about a time, the first one `first` times as long; the same at each call."""
    noise = random.Random(f"{cell} {metric}")
    return [milliseconds * factor * noise.uniform(0.99, 1.01) for factor in [first, *[1.0] * (n - 1)]]


def measure_end_to_end(cell: EndToEnd, *, on_gpu: bool) -> list[Measurement]:
    """Steps at 40 % of an H200's peak, the first one slow without warm-up; OOM where the state alone is too large."""
    shape = parse_size(cell.size)
    memory = 1.3 * state_bytes(cell.mode, shape, cell.vocab_size)
    if on_gpu and memory > H200["gpu_memory"]:
        return [OOM]
    flops = step_flops("forward", shape, cell.vocab_size, cell.batch_size, cell.context)
    forward = 1e3 * flops / (0.4 * PEAK.flops(cell.precision)) * (0.8 if cell.compiled else 1)
    phases = {
        "forward": forward,
        "backward": 2 * forward,
        "optimizer": 1e3 * state_bytes("train_step", shape, cell.vocab_size) / PEAK.bandwidth,
    }
    number = {"forward": 1, "forward_backward": 2, "train_step": 3}[cell.mode]
    first = 20.0 if cell.warmup == 0 else 1.0
    laps = {name: jittered(cell, name, ms, cell.steps, first) for name, ms in list(phases.items())[:number]}
    steps = [sum(lap) for lap in zip(*laps.values(), strict=True)]
    dtype = {"bf16": "bfloat16", "fp32": "float32"}[cell.precision]
    return [
        *(summarize(name, "ms", samples) for name, samples in laps.items()),
        summarize("step", "ms", steps),
        summarize("first_step", "ms", steps[:1]),
        summarize("build", "s", [0.5]),
        summarize("warmup", "s", [cell.warmup * steps[-1] / 1e3]),
        summarize("peak_memory", "MiB", [memory / MIB]) if on_gpu else NO_CPU_MEMORY,
        summarize("compiled_graphs", "", [1 if cell.compiled else 0]),
        Measurement(metric="logits_dtype", unit="dtype", n=1, value=dtype),
        summarize("wall", "s", [sum(steps) / 1e3 + 1.0]),
    ]


def measure_attention(cell: Attention, *, on_gpu: bool) -> list[Measurement]:
    """Passes at 20 % of an H200's peak, and the memory of the closed form plus a workspace."""
    forward = 1e3 * flash_flops("forward", cell.batch_size, 1, cell.sequence, cell.d, causal=False) / (0.2 * PEAK.fp32)
    memory = plain_bytes_before_backward(cell.batch_size, cell.sequence, cell.d) / MIB + 32
    return [
        summarize("forward", "ms", jittered(cell, "forward", forward, cell.steps)),
        summarize("backward", "ms", jittered(cell, "backward", 2 * forward, cell.steps)),
        summarize("warmup", "s", [0.1]),
        *([summarize("memory_before_backward", "MiB", [memory])] if on_gpu else []),
        summarize("peak_memory", "MiB", [3 * memory]) if on_gpu else NO_CPU_MEMORY,
        summarize("wall", "s", [1.0]),
    ]


def measure_flash(cell: Flash, *, on_gpu: bool) -> list[Measurement]:
    """Contenders at 10 to 45 % of an H200's peak, what cannot run skipped; on a CPU times alone."""
    if not on_gpu and cell.implementation not in flash.ON_CPU:
        return [Measurement(metric=WHOLE_CELL, status="skipped", message="needs a CUDA device")]
    if cell.implementation in flash.HALF_ONLY and cell.precision == "fp32":
        return [Measurement(metric=WHOLE_CELL, status="skipped", message="this backend takes fp16 and bf16 only")]
    if cell.implementation == "plain" and cell.sequence > 32_768:
        return [OOM]
    share = {"plain": 0.1, "plain_compiled": 0.15, "triton": 0.45}.get(cell.implementation, 0.4)
    phases = {
        name: 0.005
        + 1e3
        * flash_flops(name, 1, cell.heads, cell.sequence, cell.d, causal=True)
        / (share * PEAK.flops(cell.precision))
        for name in ("forward", "backward", "forward_backward")
    }
    times = [summarize(name, "ms", jittered(cell, name, ms, 20)) for name, ms in phases.items()]
    wall = summarize("wall", "s", [1.0])
    if not on_gpu:
        return [*times, NO_CPU_MEMORY, wall]
    return [
        *times,
        summarize("peak_memory", "MiB", [24 * cell.heads * cell.sequence * cell.d / MIB]),
        summarize("first_call", "s", [0.3]),
        summarize("matmul", "ms", [0.2]),
        *([summarize("host", "us", [60.0]), summarize("graph", "ms", [0.02])] if cell.sequence <= 4096 else []),
        wall,
    ]


def measure_flash_ablation(cell: FlashAblation, *, on_gpu: bool) -> list[Measurement]:
    """The kernels at 45 % of an H200's peak as they are, at 30 % with a decision taken back; nothing on a CPU."""
    if not on_gpu:
        return [Measurement(metric=WHOLE_CELL, status="skipped", message="needs a CUDA device")]
    peak = (0.45 if cell.without == "nothing" else 0.3) * PEAK.flops(cell.precision)
    return [
        summarize(phase, "ms", jittered(cell, phase, 1e3 * flops / peak, 20))
        for phase in ("forward", "backward")
        for flops in [flash_flops(phase, 1, cell.heads, cell.sequence, cell.d, causal=True)]
    ]


def measure_arithmetic(cell: Experiment, *, on_gpu: bool) -> list[Measurement]:
    """The real measurement, which takes no time worth making up."""
    module = {"accumulation": accumulation, "autocast_dtypes": autocast_dtypes}[cell.name]
    return module.measure(cell, torch.device("cpu"))


MEASURE: dict[str, Callable[..., list[Measurement]]] = {
    "end_to_end": measure_end_to_end,
    "accumulation": measure_arithmetic,
    "autocast_dtypes": measure_arithmetic,
    "attention": measure_attention,
    "flash": measure_flash,
    "flash_ablation": measure_flash_ablation,
}
"""By experiment; what is not listed leaves no rows, as if it had not run."""


def planned_cells(experiment: str, scale: str) -> list[Any]:
    """Every cell that config.yaml plans of an experiment."""
    return [cell for job in plan_jobs(experiment, config(), scale).values() for cell in job.cells]


def rows_of(
    cells: Iterable[Experiment],
    origin: Provenance,
    outcome: Callable[[Any], Measurement | None] = lambda cell: None,
) -> list[BaseModel]:
    """The rows of cells; `outcome` may give the one measurement of a cell that could not be measured."""
    rows = []
    for cell in cells:
        lost = outcome(cell)
        measurements = [lost] if lost else MEASURE[cell.name](cell, on_gpu=bool(origin.gpu))
        if measurements[0].metric == WHOLE_CELL:  # a job says how long the attempt took
            measurements = [*measurements, summarize("wall", "s", [0.1])]
        rows += [make_row(cell, measurement, origin) for measurement in measurements]
    return rows


def write_raw(results: Path, experiment: str, rows: list[BaseModel]) -> Path:
    """Put an experiment's rows into the one raw CSV file of a results folder."""
    path = results / "raw" / experiment / "all.csv"
    write_rows(path, EXPERIMENTS[experiment], rows)
    return path


def pdf_text(path: Path) -> str:
    """A PDF's text without white space, since a typeset line may break anywhere."""
    return squeeze("".join(page.extract_text() for page in PdfReader(path).pages))


def squeeze(text: str) -> str:
    """A text without white space."""
    return re.sub(r"\s+", "", text)
