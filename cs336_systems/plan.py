"""The plan of a run: from config.yaml to every measurement job, all checked before anything runs. No torch here."""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_systems.config import (
    AUTO,
    CONFIG,
    CPU,
    CUDA,
    HANDOUT,
    NONE,
    QUICK,
    SMOKE,
    Config,
    Mistake,
    Sources,
    read_config,
    set_by,
)
from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.registry import EXPERIMENTS, KINDS
from cs336_systems.fit.planned import too_large
from cs336_systems.grids import MOST_PROCESSES, Job, device_of, grids_of, plan_jobs, plan_traces
from cs336_systems.implementations import family_of
from cs336_systems.measure.gpus import full_name, near
from cs336_systems.record.machine import detect, machine_label
from cs336_systems.record.revisions import OWN_MODEL
from cs336_systems.record.source import own_digest, source_digest
from cs336_systems.sizes import ModelShape, parse_size, size_name

REFERENCE = "nvidia-h200"
"""The recorded machine whose headline numbers the reports of other GPUs show next to their own."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a run: the machine that measures, where its results go, and every job."""

    machine: str
    """Label of the machine."""
    gpus: int
    """Number of its GPUs; 0 for a CPU, and for recorded results."""
    recorded: bool
    """Whether the report is made from recorded results, so that nothing is measured."""
    scale: str
    """smoke, quick or handout."""
    jobs: dict[str, dict[str, Job]]
    """Jobs of the report by experiment, then by name."""
    on_request: dict[str, dict[str, Job]]
    """The same of what is measured only when it is asked for, and is not in the report."""
    traced: dict[str, Job]
    """The steps whose traces are written, by the names of the files."""

    @property
    def device(self) -> str:
        """The machine's device: cpu or cuda."""
        return CPU if self.machine == CPU else CUDA

    @property
    def raw(self) -> Path:
        """The folder of the jobs' CSV files."""
        return Path("recorded", self.machine, "raw") if self.recorded else self.results / "raw"

    @property
    def traces(self) -> Path:
        """The folder of the traces drawn in the report."""
        return self.raw.with_name("traces")

    def trace(self, name: str) -> Path:
        """The file of one of these."""
        return self.traces / f"{name}.json.gz"

    @property
    def results(self) -> Path:
        """The folder of tables, figures and report, and of the jobs' CSV files if this run measures.

        Scale `quick` has its own folder, since its jobs have fewer cells than the jobs of the same name at scale
        `handout`.
        """
        return Path("results", "recorded" if self.recorded else QUICK if self.scale == QUICK else "", self.machine)

    @property
    def reference(self) -> Path | None:
        """The folder of the CSV files of the machine to compare with; None for itself, a CPU and recorded results."""
        if self.recorded or self.machine in (CPU, REFERENCE):
            return None
        return Path("recorded", REFERENCE, "raw")

    def all_jobs(self) -> Iterator[Job]:
        """All jobs of the report."""
        for jobs in self.jobs.values():
            yield from jobs.values()

    def csv(self, job: Job) -> Path:
        """The CSV file of a job."""
        return self.raw / f"{job.path}.csv"

    def gpus_of(self, job: Job) -> int:
        """Number of GPUs that a job needs: one per process, if it needs any."""
        return job.processes if device_of(job.cells[0], self.device) == CUDA else 0

    def obstacle(self, job: Job) -> str:
        """Reason why a job is not measured in this run; empty if it is measured."""
        if self.recorded:
            return self.too_large(job) or "not among the recorded results"
        needed = self.gpus_of(job)
        if needed <= self.gpus:
            return self.too_large(job)
        return f"it needs {needed} GPUs, but {self.gpus} {'is' if self.gpus == 1 else 'are'} visible"

    def too_large(self, job: Job) -> str:
        """Reason why none of a job's cells fits into this machine's memory; empty if one may fit."""
        if device_of(job.cells[0], self.device) != CUDA:
            return ""
        reasons = (too_large(cell, self.machine) for cell in job.cells)
        first = next(reasons)
        return first if first and all(reasons) else ""


def make_plan(config: Mapping[str, Any], recorded: Path = Path("recorded"), sources: Sources = ()) -> Plan:
    """Make the plan of a configuration on this machine.

    Args:
        config: the configuration, merged from all its sources.
        recorded: the folder of recorded results.
        sources: the files and the command line from which it was merged; only config.yaml if none are given.

    Raises:
        ValueError: a key, a value or a label that is not allowed, in one sentence that names it and its source.
    """
    try:
        return _make_plan(read_config(config), recorded)
    except Mistake as mistake:
        raise ValueError(f"{set_by(sources or [(CONFIG, config)], mistake.path)}: {mistake}") from None


def _make_plan(config: Config, recorded: Path) -> Plan:
    measures = config.recorded == NONE
    if measures:
        machine, gpus = measuring_machine(config.machine)
    else:
        machine, gpus = config.recorded, 0
        labels = sorted({path.parts[-4] for path in recorded.glob("*/raw/*/*.csv")})
        if machine not in labels:
            raise Mistake(["recorded"], f"recorded is {machine!r}; allowed: {', '.join([NONE, *labels])}")
    scale: str = config.scale
    if scale == AUTO:
        scale = SMOKE if machine == CPU else HANDOUT
    jobs = {name: plan_jobs(name, config, scale) for name in config.experiments}
    plan = Plan(
        machine=machine,
        gpus=gpus,
        recorded=not measures,
        scale=scale,
        jobs={name: of for name, of in jobs.items() if name in EXPERIMENTS},
        on_request={name: of for name, of in jobs.items() if name not in EXPERIMENTS},
        traced=plan_traces(config, scale),
    )
    check_sizes(plan)
    check_implementations(plan)
    if measures:
        check_models(plan)
    return plan


def measuring_machine(machine: str) -> tuple[str, int]:
    """Label and number of GPUs of the machine that the configuration's key `machine` names.

    Raises:
        Mistake: it names no GPU, or a name that matches no model or several.
    """
    if machine == AUTO:
        here = detect()
        return here.label, len(here.gpus)
    if machine == CPU:
        return CPU, 0
    count, gpu = re.fullmatch(r"(?:([0-9]{1,4}) *[xX×] *)?(.*)", machine.strip(), re.S).groups("1")  # type: ignore[union-attr]
    try:
        if not 1 <= int(count) <= MOST_PROCESSES:
            raise ValueError
        return machine_label(full_name(gpu)), int(count)
    except ValueError:
        allowed = " or ".join(f"'{min(max(1, int(count)), MOST_PROCESSES)} x {name}'" for name in near(gpu))
        allowed = allowed or str(Config.model_fields["machine"].description)
        raise Mistake(["machine"], f"machine is {machine!r}; allowed: {allowed}") from None


def plan_to_json(plan: Plan) -> str:
    """Serialize a plan as JSON, for later scripts."""
    return json.dumps(dataclasses.asdict(plan), indent=1) + "\n"


def read_plan(path: Path) -> Plan:
    """Read a plan serialized by `plan_to_json`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    jobs = {
        part: {
            experiment: {name: _read_job(job) for name, job in named.items()}
            for experiment, named in content[part].items()
        }
        for part in ("jobs", "on_request")
    }
    traced = {name: _read_job(job) for name, job in content["traced"].items()}
    return Plan(**content | jobs | {"traced": traced})


def _read_job(job: Mapping[str, Any]) -> Job:
    kind = KINDS[job["experiment"]]
    return Job(**{**job, "cells": tuple(make_cell(kind, cell) for cell in job["cells"])})


def check_models(plan: Plan) -> None:
    """Check that the source of every planned model can be located and read: it determines when a job is stale.

    Raises:
        Mistake: the first model whose source cannot.
    """
    cells = [cell for job in (*plan.all_jobs(), *plan.traced.values()) for cell in job.cells]
    for model in dict.fromkeys(cell.model for cell in cells if hasattr(cell, "model")):
        try:
            source_digest(model.partition(":")[0])
        except ValueError as error:
            raise Mistake(["model"], f"model is {model!r}: {error}") from None


def check_implementations(plan: Plan) -> None:
    """Check that the source of every user implementation can be located and read.

    Raises:
        Mistake: the first one whose source cannot.
    """
    for job in plan.all_jobs():
        for own in job.own_implementations:
            family = family_of(job.experiment)
            try:
                own_digest(own.path)
            except ValueError as error:
                path = ["implementations", family, own.name]
                raise Mistake(path, f"{'.'.join(path)} is {own.path!r}: {error}") from None


def check_sizes(plan: Plan) -> None:
    """Check that no shape has two names and no name two shapes: tables and figures distinguish sizes by name.

    Raises:
        Mistake: the first size that shares its shape, or its name, with another.
    """
    seen: dict[str, ModelShape] = {}
    for job in (*plan.all_jobs(), *plan.traced.values()):
        scale = grids_of(plan.scale)
        path = job.grid.split(".") if job in plan.traced.values() else ["experiments", job.experiment, scale, job.grid]
        for size in dict.fromkeys(cell.size for cell in job.cells if hasattr(cell, "size")):
            name, shape = size_name(size), parse_size(size)
            for other, its_shape in seen.items():
                if (other == name) != (its_shape == shape):
                    what = "the shape" if other != name else "the name, but not the shape,"
                    sentence = f"{'.'.join(path)}: size {size!r} has {what} of {other!r}; allowed: one name per shape"
                    raise Mistake(path, sentence)
            seen[name] = shape


def other_models(jobs: Iterable[Job]) -> list[tuple[str, str]]:
    """The models other than TransformerLM in jobs, each with every requested kind of attention."""
    cells = [cell for job in jobs for cell in job.cells]
    asked = [(getattr(cell, "model", OWN_MODEL), getattr(cell, "attention", "plain")) for cell in cells]
    return [pair for pair in dict.fromkeys(asked) if pair[0] != OWN_MODEL]
