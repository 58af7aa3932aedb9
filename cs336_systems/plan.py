"""From config.yaml to the list of measurement jobs, every value checked before anything runs. No torch here."""

import dataclasses
import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from cs336_systems.experiments.base import Experiment, combinations, expand, make_cell
from cs336_systems.experiments.registry import EXPERIMENTS, KINDS
from cs336_systems.fit.planned import too_large
from cs336_systems.implementations import PARAMETER, Implementation, family_of, own_implementations, parse
from cs336_systems.measure.gpus import full_name, near
from cs336_systems.record.machine import detect, machine_label
from cs336_systems.record.revisions import FIRST, OWN_MODEL, as_text, contenders_of, revisions_of
from cs336_systems.record.source import source_digest
from cs336_systems.sizes import SPEC, ModelShape, check_own_name, format_size, parse_size, size_name

AUTO, NONE, CPU, CUDA = "auto", "none", "cpu", "cuda"
SMOKE, HANDOUT, QUICK = "smoke", "handout", "quick"
"""Scales; `quick` has no grids of its own, but measures cells of the handout's."""
JOB_KEY, RECORDED_KEY, QUICK_KEY = "one_job_per", "recorded_only", "quick"
GRID_KEYS = (JOB_KEY, RECORDED_KEY, QUICK_KEY)
"""Keys of a grid that are no parameters."""
BACKEND, PROCESSES = "backend", "processes"
"""Parameters with a single value per launch."""
DEVICE_OF_BACKEND = {"gloo": CPU, "nccl": CUDA}
TRACED = "kernel_profile"
"""The experiment whose parameters describe the step that is traced."""
REFERENCE = "nvidia-h200"
"""The recorded machine whose headline numbers the reports of other GPUs show next to their own."""
LARGEST_SEED = 2**63 - 1
LARGEST_NUMBER = 2**31 - 1
MOST_CELLS = 10_000
"""The most cells of one grid: weeks, if a cell takes a minute."""
MOST_PROCESSES = 256
"""The most processes of one launch. Without GPUs they share a host, and each needs some hundred MB of its memory."""
LONGEST_NAME = 100
"""Bytes of the name of a job, which is that of files too, or of a size."""
CONFIG = "config.yaml"
SCHEMA = Path(__file__).with_name("config.schema.yaml")
# To JSON Schema 1.0 is an integer; to a command line it is not.
Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)


Sources = Sequence[tuple[str, Mapping[str, Any]]]
"""Where a configuration comes from: each source's name and content, later ones overriding earlier ones."""


class Mistake(ValueError):
    """Something in the configuration that is not allowed: where it is, key by key, and a sentence about it."""

    def __init__(self, path: Iterable[Any], sentence: str) -> None:
        super().__init__(sentence)
        self.path = tuple(path)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One launch, one CSV: cells that are measured one after another."""

    experiment: str
    name: str
    """Stem of its CSV file."""
    grid: str
    """Its grid in config.yaml."""
    cells: tuple[Experiment, ...]
    """Its cells, all with the same number of processes and on the same device."""
    arguments: str
    """Its options on the experiment's command line."""

    @property
    def path(self) -> str:
        """Path of its CSV below `raw`, without the suffix."""
        return f"{self.experiment}/{self.name}"

    @property
    def processes(self) -> int:
        """Number of processes it runs as."""
        return self.cells[0].processes

    @property
    def command(self) -> str:
        """The command that measures it on one machine; without further options it prints the measurements."""
        return f"{launch_command(self.experiment, self.processes)} {self.arguments}"

    @property
    def own_implementations(self) -> tuple[Implementation, ...]:
        """The user's own implementations that take part in the job."""
        return tuple(dict.fromkeys(own for cell in self.cells for own in own_implementations(cell)))

    @property
    def revisions(self) -> str:
        """Revisions of its experiment, and of whatever else is not at its first: when they change, it is stale.

        An instrument that is used from now on, and whose code has not changed, makes nothing stale.
        """
        found: dict[str, str] = {}
        for cell in self.cells:
            found |= revisions_of(cell, contenders_of(cell))
        return as_text({name: of for name, of in found.items() if name == self.experiment or of != str(FIRST)})


def launch_command(experiment: str, processes: int, nodes: int = 1) -> str:
    """The command that launches an experiment on several processes and nodes, without its options."""
    if nodes > 1:
        agents = f"srun --nodes={nodes} --ntasks={nodes} --cpu-bind=none --kill-on-bad-exit rules/torchrun.sh"
        launcher = f"{agents} --nproc-per-node={processes // nodes}"
    else:
        launcher = f"torchrun --standalone --nproc-per-node={processes}" if processes > 1 else "python"
    return f"{launcher} -m cs336_systems.benchmarks.{experiment}"


def device_of(cell: Experiment, machine: str) -> str:
    """The device of a cell, cpu or cuda: its backend's or, without that parameter, the machine's."""
    return DEVICE_OF_BACKEND.get(getattr(cell, BACKEND, ""), machine)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a run: the machine that measures, where its results go, and every job."""

    machine: str
    """Label of the machine."""
    gpus: int
    """Number of its GPUs; 0 for a CPU, and for recorded results."""
    nodes: int
    """Number of such machines that one launch may span."""
    recorded: bool
    """Whether the report is made of recorded results, so that nothing is measured."""
    scale: str
    """smoke, quick or handout."""
    jobs: dict[str, dict[str, Job]]
    """Jobs of the report by experiment, then by name."""
    on_request: dict[str, dict[str, Job]]
    """The same of what is measured only when it is asked for, and is not in the report."""
    trace: Job
    """The one step whose trace is written."""

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
        """The folder of the traces that the report draws."""
        return self.raw.with_name("traces")

    @property
    def results(self) -> Path:
        """The folder of tables, figures and report, and of the jobs' CSV files if this run measures.

        Scale `quick` has its own, since its jobs have fewer cells than those of the same name at scale `handout`.
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

    def nodes_of(self, job: Job) -> int:
        """Number of nodes that a job needs: the fewest that have its GPUs, equally many each; 1 if none have."""
        needed = self.gpus_of(job)
        enough = (nodes for nodes in range(1, self.nodes + 1) if needed <= nodes * self.gpus and needed % nodes == 0)
        return next(enough, 1)

    def command(self, job: Job) -> str:
        """The command that measures a job, on the nodes that it needs."""
        return f"{launch_command(job.experiment, job.processes, self.nodes_of(job))} {job.arguments}"

    def obstacle(self, job: Job) -> str:
        """Reason why a job is not measured in this run; empty if it is."""
        if self.recorded:
            return self.too_large(job) or "not among the recorded results"
        needed = self.gpus_of(job)
        if needed <= self.gpus or self.nodes_of(job) > 1:
            return self.too_large(job)
        if self.nodes > 1:
            return f"it needs {needed} GPUs, as many on each node, and there are {self.nodes} nodes of {self.gpus}"
        return f"it needs {needed} GPUs, and {self.gpus} {'is' if self.gpus == 1 else 'are'} visible"

    def too_large(self, job: Job) -> str:
        """Reason why none of a job's cells fits into this machine's memory; empty if one may."""
        if device_of(job.cells[0], self.device) != CUDA:
            return ""
        reasons = (too_large(cell, self.machine) for cell in job.cells)
        first = next(reasons)
        return first if first and all(reasons) else ""


def as_in_a_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `--config` as a YAML file has them.

    Snakemake makes text of `true`, and of every number and switch inside a mapping or a list.
    """
    return {
        key: _from_text(value) if key == "strict" or not isinstance(value, str) else value
        for key, value in given.items()
    }


def _from_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _from_text(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_from_text(inner) for inner in value]
    if not isinstance(value, str):
        return value
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return read if isinstance(read, int | float) else value


def set_by(sources: Sources, path: Iterable[Any]) -> str:
    """The name of the source that sets the value at a path of keys: the last one that has it, or else the first."""
    path = tuple(path)
    return next((name for name, content in reversed(sources) if _has(content, path)), sources[0][0])


def _has(content: Any, path: Iterable[Any]) -> bool:
    for key in path:
        try:
            content = content[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def make_plan(config: Mapping[str, Any], recorded: Path = Path("recorded"), sources: Sources = ()) -> Plan:
    """Make the plan of a configuration on this machine.

    Args:
        config: the configuration, merged from all its sources.
        recorded: the folder of recorded results.
        sources: the files, and the command line, that it was merged from; config.yaml alone if none are given.

    Raises:
        ValueError: a key, a value or a label that is not allowed, in one sentence that names it and its source.
    """
    try:
        return _make_plan(config, recorded)
    except Mistake as mistake:
        raise ValueError(f"{set_by(sources or [(CONFIG, config)], mistake.path)}: {mistake}") from None


def _make_plan(config: Mapping[str, Any], recorded: Path) -> Plan:
    check_structure(config)
    measures = config["recorded"] == NONE
    if config["nodes"] > 1 and config["machine"] in (AUTO, CPU):
        sentence = f"nodes is {config['nodes']}; allowed: 1, unless machine says how many GPUs a node has"
        raise Mistake(["nodes"], sentence)
    if measures:
        machine, gpus = measuring_machine(config["machine"])
    else:
        machine, gpus = config["recorded"], 0
        labels = sorted({path.parts[-4] for path in recorded.glob("*/raw/*/*.csv")})
        if machine not in labels:
            raise Mistake(["recorded"], f"recorded is {machine!r}; allowed: {', '.join([NONE, *labels])}")
    scale = config["scale"]
    if scale == AUTO:
        scale = SMOKE if machine == CPU else HANDOUT
    jobs = {name: plan_jobs(name, config, scale, recorded=not measures) for name in config["experiments"]}
    plan = Plan(
        machine=machine,
        gpus=gpus,
        nodes=config["nodes"],
        recorded=not measures,
        scale=scale,
        jobs={name: of for name, of in jobs.items() if name in EXPERIMENTS},
        on_request={name: of for name, of in jobs.items() if name not in EXPERIMENTS},
        trace=plan_trace(config, scale),
    )
    check_sizes(plan)
    check_implementations(plan)
    if measures:
        check_models(plan)
    return plan


def measuring_machine(machine: str) -> tuple[str, int]:
    """Label and number of GPUs of the machine that the configuration's key `machine` names.

    Raises:
        Mistake: it names none, or a GPU whose name means no model or several.
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
        allowed = allowed or schema()["properties"]["machine"]["description"]
        raise Mistake(["machine"], f"machine is {machine!r}; allowed: {allowed}") from None


def plan_to_json(plan: Plan) -> str:
    """Serialize a plan as JSON, for later scripts."""
    return json.dumps(dataclasses.asdict(plan), indent=1) + "\n"


def read_plan(path: Path) -> Plan:
    """Read a plan that `plan_to_json` has serialized."""
    content = json.loads(path.read_text(encoding="utf-8"))
    jobs = {
        part: {
            experiment: {name: _read_job(job) for name, job in named.items()}
            for experiment, named in content[part].items()
        }
        for part in ("jobs", "on_request")
    }
    return Plan(**content | jobs | {"trace": _read_job(content["trace"])})


def _read_job(job: Mapping[str, Any]) -> Job:
    kind = KINDS[job["experiment"]]
    return Job(**{**job, "cells": tuple(make_cell(kind, cell) for cell in job["cells"])})


def schema() -> dict[str, Any]:
    """The schema of config.yaml, with the names of all experiments."""
    content = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    content["properties"]["experiments"]["properties"] = {
        name: {"$ref": "#/$defs/experiment"} for name in sorted(KINDS)
    }
    content["properties"]["experiments"]["required"] = sorted(EXPERIMENTS)
    return content


def check_structure(config: Mapping[str, Any]) -> None:
    """Check the configuration against the schema.

    Raises:
        Mistake: the first complaint.
    """
    error = jsonschema.exceptions.best_match(Validator(schema()).iter_errors(config))
    if error is None:
        return
    path = tuple(error.absolute_path)
    where = ".".join(str(part) for part in path)
    if "propertyNames" in error.absolute_schema_path:
        sentence = f"{where} has the key {error.instance!r}; allowed: {error.schema['description']}"
        raise Mistake((*path, error.instance), sentence)
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        unknown = [key for key in error.instance if key not in known]
        names = ", ".join(map(repr, unknown))
        sentence = f"unknown key {names} in {where or 'the top level'}; allowed: {', '.join(known)}"
        raise Mistake((*path, unknown[0]), sentence)
    if error.validator == "required":
        raise Mistake(path, f"{error.message} in {where or 'the top level'}")
    allowed = error.schema.get("description") or error.message
    raise Mistake(path, f"{where} is {error.instance!r}; allowed: {allowed}")


def check_models(plan: Plan) -> None:
    """Check that the source of every planned model can be found and read: it decides when a job is stale.

    Raises:
        Mistake: the first model whose source cannot.
    """
    cells = [cell for job in (*plan.all_jobs(), plan.trace) for cell in job.cells]
    for model in dict.fromkeys(cell.model for cell in cells if hasattr(cell, "model")):
        try:
            source_digest(model.partition(":")[0])
        except ValueError as error:
            raise Mistake(["model"], f"model is {model!r}: {error}") from None


def check_implementations(plan: Plan) -> None:
    """Check that the source of every implementation of a user's own can be found and read.

    Raises:
        Mistake: the first one whose source cannot.
    """
    for job in plan.all_jobs():
        for own in job.own_implementations:
            family = family_of(job.experiment)
            try:
                source_digest(own.module)
            except ValueError as error:
                path = ["implementations", family, own.name]
                raise Mistake(path, f"{'.'.join(path)} is {own.path!r}: {error}") from None


def check_sizes(plan: Plan) -> None:
    """Check that no shape has two names and no name two shapes: tables and figures tell sizes apart by their names.

    Raises:
        Mistake: the first size that shares its shape, or its name, with another.
    """
    seen: dict[str, ModelShape] = {}
    for job in (*plan.all_jobs(), plan.trace):
        scale = grids_of(plan.scale)
        path = ["experiments", job.experiment, scale, job.grid] if job is not plan.trace else ["trace", scale]
        for size in dict.fromkeys(cell.size for cell in job.cells if hasattr(cell, "size")):
            name, shape = size_name(size), parse_size(size)
            for other, its_shape in seen.items():
                if (other == name) != (its_shape == shape):
                    what = "the shape" if other != name else "the name, but not the shape,"
                    sentence = f"{'.'.join(path)}: size {size!r} has {what} of {other!r}; allowed: one name per shape"
                    raise Mistake(path, sentence)
            seen[name] = shape


def other_models(jobs: Iterable[Job]) -> list[tuple[str, str]]:
    """The models other than TransformerLM that jobs measure, each with each kind of attention that they ask of it."""
    cells = [cell for job in jobs for cell in job.cells]
    asked = [(getattr(cell, "model", OWN_MODEL), getattr(cell, "attention", "plain")) for cell in cells]
    return [pair for pair in dict.fromkeys(asked) if pair[0] != OWN_MODEL]


def own_texts(experiment: str, implementations: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The implementations of a user's own that take part in an experiment, as its parameter names them.

    Raises:
        Mistake: a name or a path that is not allowed, or a name that another contender of the experiment has.
    """
    taken = {contender.name for contender in getattr(KINDS[experiment], "contenders", ())}
    texts = []
    family = family_of(experiment)
    for name, path in implementations.get(family, {}).items():
        where = ["implementations", family, name]
        try:
            texts.append(parse(f"{name}={path}").text)
        except ValueError as error:
            raise Mistake(where, f"implementations.{family}: {error}") from None
        if name in taken:
            sentence = f"{'.'.join(where)} has a name that is taken; allowed: others than {', '.join(sorted(taken))}"
            raise Mistake(where, sentence)
    return texts


def with_own(
    kind: type[Experiment], values: Mapping[str, Sequence[Any]], own: Sequence[str], owner: Mapping[Experiment, str]
) -> dict[str, Sequence[Any]]:
    """A grid's values with implementations of a user's own, unless another grid has them for some of its cells."""
    if not own:
        return dict(values)
    default = {field.name: field.default for field in dataclasses.fields(kind)}[PARAMETER]
    if not default:  # All take part in one cell.
        return {**values, PARAMETER: [",".join(own)]}
    if any(cell in owner for cell in expand(kind, {**values, PARAMETER: own})):
        return dict(values)
    return {**values, PARAMETER: [*values.get(PARAMETER, [default]), *own]}


def plan_jobs(experiment: str, config: Mapping[str, Any], scale: str, *, recorded: bool = False) -> dict[str, Job]:
    """The jobs of one experiment, by name; grids that are only recorded take part where nothing is measured.

    Raises:
        Mistake: a parameter that the experiment does not have, a value it does not allow, a custom size that is
            not a valid shape, a cell planned twice, or a name that two jobs would have or that is too long.
    """
    kind = KINDS[experiment]
    sizes = own_sizes(config["sizes"])
    jobs: dict[str, Job] = {}
    owner: dict[Experiment, str] = {}
    of_record: set[Experiment] = set()
    own = own_texts(experiment, config["implementations"])
    for grid_name, whole in config["experiments"][experiment][grids_of(scale)].items():
        path = ("experiments", experiment, grids_of(scale), grid_name)
        grid = at_scale(whole, scale, path)
        if not grid or (grid.get(RECORDED_KEY) and not recorded):
            continue
        try:
            values = {key: items for key, items in grid.items() if key not in GRID_KEYS}
            values = with_own(kind, values, own, owner)
            for job in _grid_jobs(kind, grid_name, values, grid.get(JOB_KEY, []), sizes, config["model"]):
                if of_record.issuperset(job.cells):
                    continue  # What a recorded grid before this one has is measured anew in this one.
                if grid.get(RECORDED_KEY):
                    of_record.update(job.cells)
                for cell in job.cells:
                    if cell in owner:
                        raise ValueError(f"it plans a cell that {owner[cell]} already has: {job.arguments}")
                    owner[cell] = job.name
                if len(os.fsencode(job.name)) > LONGEST_NAME:
                    raise ValueError(f"a job would be named {job.name!r}; allowed: at most {LONGEST_NAME} bytes")
                if job.name in jobs:
                    raise ValueError(f"two jobs would be named {job.name!r}; allowed: sizes with different names")
                jobs[job.name] = job
        except ValueError as error:
            raise Mistake(path, f"{'.'.join(path)}: {error}") from None
    return jobs


def grids_of(scale: str) -> str:
    """The scale that has the grids of a scale."""
    return HANDOUT if scale == QUICK else scale


def at_scale(grid: Mapping[str, Any], scale: str, path: tuple[str, ...]) -> Mapping[str, Any]:
    """A grid as a scale measures it: at `quick` with fewer values of some parameters, or empty.

    Raises:
        Mistake: its values for `quick` are not among its own, or it is not one of the handout's.
    """
    if QUICK_KEY not in grid:
        return grid
    where = (*path, QUICK_KEY)
    if grids_of(scale) != HANDOUT:
        raise Mistake(where, f"{'.'.join(path)} has the key {QUICK_KEY!r}; allowed: only in grids of {HANDOUT}")
    fewer: Mapping[str, Any] = {} if grid[QUICK_KEY] == NONE else grid[QUICK_KEY]
    known = {key: values for key, values in grid.items() if key not in (RECORDED_KEY, QUICK_KEY)}
    for key, values in fewer.items():
        if key not in known:
            raise Mistake((*where, key), f"{'.'.join(where)} has the key {key!r}; allowed: {', '.join(known)}")
        for value in values:
            if value not in known[key]:
                allowed = ", ".join(map(repr, known[key]))
                raise Mistake((*where, key), f"{'.'.join(where)}.{key} has {value!r}; allowed: {allowed}")
    if scale != QUICK:
        return grid
    return {} if grid[QUICK_KEY] == NONE else {**grid, **fewer}


def plan_trace(config: Mapping[str, Any], scale: str) -> Job:
    """The step that is traced, as a job of one cell.

    Raises:
        Mistake: a parameter that the experiment does not have, or a value it does not allow.
    """
    scale = grids_of(scale)
    values = {key: [value] for key, value in config["trace"][scale].items()}
    try:
        (job,) = _grid_jobs(EXPERIMENTS[TRACED], "trace", values, [], own_sizes(config["sizes"]), config["model"])
    except ValueError as error:
        raise Mistake(["trace", scale], f"trace.{scale}: {error}") from None
    return job


def own_sizes(sizes: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """The custom sizes that the configuration defines, written out as the experiments take them, by name.

    Raises:
        Mistake: a name or a shape that is not allowed.
    """
    specifications = {}
    for name, numbers in sizes.items():
        try:
            check_own_name(name)
            if len(name) > LONGEST_NAME:
                raise ValueError(f"size name is {name!r}; allowed: at most {LONGEST_NAME} letters")
            specifications[name] = format_size(name, ModelShape(**numbers))
        except ValueError as error:
            raise Mistake(["sizes", name], f"sizes.{name}: {error}") from None
    return specifications


def check_grid(grid: Mapping[str, Sequence[Any]]) -> None:
    """Check a grid for mistakes that any parameter can have.

    Raises:
        ValueError: a parameter without a value, a value that is there twice, a number that is too large or not in
            ASCII, or too many cells.
    """
    for key, values in grid.items():
        if not values:
            raise ValueError(f"{key} has no value; allowed: at least one")
        for value, times in Counter(map(repr, values)).items():
            if times > 1:
                raise ValueError(f"{key} has {value} twice; allowed: each value once")
        for value in values:
            if key == PROCESSES and isinstance(value, int) and value > MOST_PROCESSES:
                raise ValueError(f"{key} is {value}; allowed: at most {MOST_PROCESSES}")
            if isinstance(value, int) and value > LARGEST_NUMBER:
                raise ValueError(f"{key} is {value}; allowed: whole numbers up to {LARGEST_NUMBER}")
            if isinstance(value, str) and any(letter.isdigit() > letter.isascii() for letter in value):
                raise ValueError(f"{key} is {value!r}; allowed: no digits but 0 to 9")
    if (cells := math.prod(map(len, grid.values()))) > MOST_CELLS:
        raise ValueError(f"it has {cells} cells; allowed: at most {MOST_CELLS}")


def _grid_jobs(
    kind: type[Experiment],
    name: str,
    grid: Mapping[str, Sequence[Any]],
    one_job_per: Sequence[str],
    sizes: Mapping[str, str],
    model: str,
) -> list[Job]:
    """Split a grid into jobs: one for each combination of the values of the parameters that `one_job_per` names.

    A job is one launch, so different backends or numbers of processes are different jobs, whether it names them or not.
    """
    values = {key: list(items) for key, items in grid.items()}
    split = list(one_job_per)
    split += [key for key in (BACKEND, PROCESSES) if len(values.get(key, [])) > 1 and key not in split]
    if "size" in values:
        values["size"] = [_in_full(sizes.get(item, item)) if isinstance(item, str) else item for item in values["size"]]
    if "model" in {field.name for field in dataclasses.fields(kind)}:
        values.setdefault("model", [model])
    for key in split:
        if key not in values:
            raise ValueError(f"{JOB_KEY} names {key!r}; allowed: {', '.join(values)}")
    check_grid(values)
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


def _in_full(size: str) -> str:
    """A size as cells have it: a custom shape with its numbers in order, so that one shape is one text."""
    if ":" not in size:
        return size
    shape = parse_size(size)
    if size.count("=") > len(dataclasses.fields(shape)):
        raise ValueError(f"size is {size!r}; allowed: each number once, as in {SPEC}")
    return format_size(size_name(size), shape)


def _label(key: str, value: Any) -> str:
    """Part of a job's name, which is also a file name, for a value: a size's name, a class's dotted path."""
    if key == PROCESSES:
        return f"{value}_processes"
    return size_name(value) if key == "size" else str(value).replace(":", ".")
