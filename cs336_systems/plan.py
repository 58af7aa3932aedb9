"""From config.yaml to the list of measurement jobs, every value checked before anything runs. No torch here."""

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from cs336_systems.experiments.base import Experiment, combinations, expand
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.machine import detect
from cs336_systems.measure.source import source_digest
from cs336_systems.sizes import ModelShape, check_own_name, format_size, size_name

AUTO = "auto"
CPU = "cpu"
JOB_KEY = "one_job_per"
SCHEMA = Path(__file__).parents[1] / "rules" / "config.schema.yaml"
# To JSON Schema 1.0 is an integer; to a command line it is not.
Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One process, one CSV: cells that are measured one after the other."""

    experiment: str
    name: str
    """Stem of its CSV file."""
    grid: str
    """The grid of config.yaml that it is part of."""
    cells: tuple[Experiment, ...]
    arguments: str
    """Its options on the command line of the experiment."""

    @property
    def command(self) -> str:
        """The command that repeats the measurement by hand and prints it."""
        return f"python -m cs336_systems.benchmarks.{self.experiment} {self.arguments}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is about: where its results lie, whether it measures, and every job."""

    machine: str
    """Label of the machine: the folder under `results`."""
    scale: str
    """smoke or handout."""
    measures: bool
    """False for a report from recorded CSVs."""
    device: str
    """cpu or cuda."""
    jobs: dict[str, dict[str, Job]]
    """By experiment, then by name."""


def make_plan(config: Mapping[str, Any], results: Path = Path("results")) -> Plan:
    """The plan that a configuration asks for on this machine.

    Raises:
        ValueError: a key, a value or a label that is not allowed, in one sentence that names it.
    """
    check_structure(config)
    here = detect().label if config["machine"] == AUTO else None
    machine = here or config["machine"]
    if here is None:
        recorded = sorted({path.parts[-4] for path in results.glob("*/raw/*/*.csv")})
        if machine not in recorded:
            raise ValueError(
                f"config.yaml: machine is {machine!r}, which has no recorded results in {results}/{machine}/raw; "
                f"allowed: auto{''.join(f', {label}' for label in recorded)}"
            )
    scale = config["scale"]
    if scale == AUTO:
        scale = "smoke" if machine == CPU else "handout"
    plan = Plan(
        machine=machine,
        scale=scale,
        measures=here is not None,
        device=CPU if machine == CPU else "cuda",
        jobs={name: plan_jobs(name, config, scale) for name in config["experiments"]},
    )
    if plan.measures:
        check_models(plan)
    return plan


def check_structure(config: Mapping[str, Any]) -> None:
    """Check the configuration against the schema.

    Raises:
        ValueError: the first complaint, in one sentence.
    """
    schema = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    error = jsonschema.exceptions.best_match(Validator(schema).iter_errors(config))
    if error is None:
        return
    where = ".".join(str(part) for part in error.absolute_path)
    if "propertyNames" in error.absolute_schema_path:
        raise ValueError(f"config.yaml: {where} has the key {error.instance!r}; allowed: {error.schema['description']}")
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        unknown = ", ".join(repr(key) for key in error.instance if key not in known)
        raise ValueError(
            f"config.yaml: unknown key {unknown} in {where or 'the top level'}; allowed: {', '.join(known)}"
        )
    allowed = error.schema.get("description") or error.message
    if error.validator == "required":
        raise ValueError(f"config.yaml: {error.message} in {where or 'the top level'}")
    raise ValueError(f"config.yaml: {where} is {error.instance!r}; allowed: {allowed}")


def check_models(plan: Plan) -> None:
    """Check that the source of every planned model can be found and read, which tells when a job is stale.

    Raises:
        ValueError: the first model of which it cannot, in one sentence.
    """
    cells = [cell for jobs in plan.jobs.values() for job in jobs.values() for cell in job.cells]
    for model in dict.fromkeys(cell.model for cell in cells if hasattr(cell, "model")):
        try:
            source_digest(model.partition(":")[0])
        except ValueError as error:
            raise ValueError(f"config.yaml: model is {model!r}: {error}") from None


def plan_jobs(experiment: str, config: Mapping[str, Any], scale: str) -> dict[str, Job]:
    """The jobs of one experiment, by name.

    Raises:
        ValueError: a parameter that is not the experiment's, a value it does not allow, a size of one's own that is
            no shape, a cell planned twice, or two jobs of one name.
    """
    kind = EXPERIMENTS[experiment]
    sizes = own_sizes(config["sizes"])
    jobs: dict[str, Job] = {}
    owner: dict[Experiment, str] = {}
    for grid_name, grid in config["experiments"][experiment][scale].items():
        where = f"config.yaml: experiments.{experiment}.{scale}.{grid_name}"
        try:
            for job in _grid_jobs(kind, grid_name, grid, sizes, config["model"]):
                for cell in job.cells:
                    if cell in owner:
                        raise ValueError(f"it plans a cell that {owner[cell]} has already: {job.arguments}")
                    owner[cell] = job.name
                if job.name in jobs:
                    raise ValueError(f"two jobs would be named {job.name!r}; allowed: sizes of different names")
                jobs[job.name] = job
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return jobs


def own_sizes(sizes: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """The sizes that the configuration defines itself, written out as the experiments take them, by name.

    Raises:
        ValueError: a name or a shape that is not allowed, in one sentence.
    """
    specifications = {}
    for name, numbers in sizes.items():
        try:
            check_own_name(name)
            specifications[name] = format_size(name, ModelShape(**numbers))
        except ValueError as error:
            raise ValueError(f"config.yaml: sizes.{name}: {error}") from None
    return specifications


def _grid_jobs(
    kind: type[Experiment], name: str, grid: Mapping[str, Any], sizes: Mapping[str, str], model: str
) -> list[Job]:
    """Split a grid into jobs: one for each combination of the values of the parameters that `one_job_per` names."""
    split = grid.get(JOB_KEY, [])
    values = {key: list(items) for key, items in grid.items() if key != JOB_KEY}
    if "size" in values:
        values["size"] = [sizes.get(item, item) if isinstance(item, str) else item for item in values["size"]]
    if "model" in {field.name for field in dataclasses.fields(kind)}:
        values.setdefault("model", [model])
    for key in split:
        if key not in values:
            raise ValueError(f"{JOB_KEY} names {key!r}; allowed: {', '.join(values)}")
    expand(kind, values)  # The whole grid first: a complaint should not depend on how it is split.
    jobs = []
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    for chosen in combinations({key: values[key] for key in split}):
        job_values = values | {key: [value] for key, value in chosen.items()}
        options = [
            f"--{key.replace('_', '-')} {' '.join(shlex.quote(str(item)) for item in items)}"
            for key, items in job_values.items()
            if key in grid or items != [defaults[key]]
        ]
        jobs.append(
            Job(
                experiment=kind.name,
                grid=name,
                name="-".join([name, *(_label(key, value) for key, value in chosen.items())]),
                cells=tuple(expand(kind, job_values)),
                arguments=" ".join(options),
            )
        )
    return jobs


def _label(key: str, value: Any) -> str:
    """What a value adds to the name of its job, which is a file's: a size's name, a class's path in dots."""
    return size_name(value) if key == "size" else str(value).replace(":", ".")
