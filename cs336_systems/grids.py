"""From an experiment's grids to its jobs: one launch and one CSV each. No torch here."""

import dataclasses
import math
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cs336_systems.config import CPU, CUDA, HANDOUT, NONE, QUICK, SMOKE, Config, Grid, Mistake, Shape
from cs336_systems.experiments.base import Experiment, combinations, expand
from cs336_systems.experiments.registry import EXPERIMENTS, KINDS
from cs336_systems.experiments.training_ladder import check_one_rung
from cs336_systems.handed_over import Named, named_by
from cs336_systems.implementations import PARAMETER, Implementation, family_of, own_implementations, parse
from cs336_systems.record.revisions import FIRST, as_text, contenders_of, revisions_of
from cs336_systems.sizes import ModelShape, check_own_name, format_size, parse_size, size_name

JOB_KEY, QUICK_KEY = "one_job_per", "quick"
BACKEND, PROCESSES = "backend", "processes"
"""Parameters with a single value per launch."""
DEVICE_OF_BACKEND = {"gloo": CPU, "nccl": CUDA}
TRACED = {"training_step": "kernel_profile", "fastest_step": "training_ladder"}
"""The traces that are written, and the experiment whose parameters describe the step of each."""
LARGEST_NUMBER = 2**31 - 1
MOST_CELLS = 10_000
"""Maximum number of cells of one grid: weeks, if a cell takes a minute."""
MOST_PROCESSES = 256
"""Maximum number of processes of one launch. Without GPUs they share a host, and each needs some hundred MB of its
memory."""
LONGEST_NAME = 100
"""Maximum bytes of a job's name, which is also a file name, or of a size's name."""


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
        """The command that measures it; without further options it prints the measurements."""
        return f"{launch_command(self.experiment, self.processes)} {self.arguments}"

    @property
    def own_implementations(self) -> tuple[Implementation, ...]:
        """The user's implementations in the job."""
        return tuple(dict.fromkeys(own for cell in self.cells for own in own_implementations(cell)))

    @property
    def revisions(self) -> str:
        """Revisions of its experiment, and of everything else that is not at its first revision: when they change, the
        job is stale.

        A newly used instrument whose code has not changed makes nothing stale.
        """
        revisions: dict[str, str] = {}
        for cell in self.cells:
            revisions |= revisions_of(cell, contenders_of(cell))
        return as_text({name: of for name, of in revisions.items() if name == self.experiment or of != str(FIRST)})


def launch_command(experiment: str, processes: int) -> str:
    """The command that launches an experiment on several processes, without its options."""
    launcher = f"torchrun --standalone --nproc-per-node={processes}" if processes > 1 else "python"
    return f"{launcher} -m cs336_systems.benchmarks {experiment}"


def device_of(cell: Experiment, machine: str) -> str:
    """The device of a cell, cpu or cuda: its backend's or, without that parameter, the machine's."""
    return DEVICE_OF_BACKEND.get(getattr(cell, BACKEND, ""), machine)


def own_texts(experiment: str, config: Config) -> list[str]:
    """The user's implementations in an experiment, in the format of its parameter.

    Raises:
        Mistake: a name or a path that is not allowed, or another contender's name.
    """
    taken = {contender.name for contender in getattr(KINDS[experiment], "contenders", ())}
    texts = []
    family = family_of(experiment)
    adapters = own_adapters(config.implementations.adapters)
    paths = [(own.name, own.path) for its_family, own in adapters if its_family == family]
    for name, path in [*paths, *getattr(config.implementations, family, {}).items()]:
        where = ["implementations", family, name]
        try:
            texts.append(parse(f"{name}={path}").text)
        except ValueError as error:
            raise Mistake(where, f"implementations.{family}: {error}") from None
        if name in taken:
            sentence = f"{'.'.join(where)} has a name that is taken; allowed: others than {', '.join(sorted(taken))}"
            raise Mistake(where, sentence)
        taken.add(name)
    return texts


def own_adapters(folder: str) -> Named:
    """The implementations provided by a folder's adapters; none without a folder.

    Raises:
        Mistake: it has no adapters, or its path is not allowed in a row.
    """
    if folder == NONE:
        return []
    try:
        return named_by(folder)
    except ValueError as error:
        raise Mistake(["implementations", "adapters"], f"implementations.adapters is {error}") from None


def with_own(
    kind: type[Experiment], values: Mapping[str, Sequence[Any]], own: Sequence[str], owner: Mapping[Experiment, str]
) -> dict[str, Sequence[Any]]:
    """A grid's values with the user's implementations, unless another grid has them for some of its cells."""
    if not own:
        return dict(values)
    default = {field.name: field.default for field in dataclasses.fields(kind)}[PARAMETER]
    if not default:  # All are measured in one cell.
        return {**values, PARAMETER: [",".join(own)]}
    if any(cell in owner for cell in expand(kind, {**values, PARAMETER: own})):
        return dict(values)
    return {**values, PARAMETER: [*values.get(PARAMETER, [default]), *own]}


def plan_jobs(experiment: str, config: Config, scale: str) -> dict[str, Job]:
    """The jobs of one experiment, by name.

    Raises:
        Mistake: a parameter that the experiment does not have, a value it does not allow, a custom size that is not a
            valid shape, a cell planned twice, or a job name that is too long or used twice.
    """
    kind = KINDS[experiment]
    sizes = own_sizes(config.sizes)
    jobs: dict[str, Job] = {}
    owner: dict[Experiment, str] = {}
    own = own_texts(experiment, config)
    for grid_name, whole in getattr(config.experiments[experiment], grids_of(scale)).items():
        path = ("experiments", experiment, grids_of(scale), grid_name)
        grid = at_scale(whole, scale, path)
        if not grid:
            continue
        try:
            values = with_own(kind, grid.values, own, owner)
            for job in _grid_jobs(kind, grid_name, values, grid.one_job_per, sizes, config.model):
                _add(job, jobs, owner)
        except ValueError as error:
            raise Mistake(path, f"{'.'.join(path)}: {error}") from None
    return jobs


def _add(job: Job, jobs: dict[str, Job], owner: dict[Experiment, str]) -> None:
    """Add a job to its experiment's jobs; names must be unique as file names, and each cell belongs to one job."""
    for cell in job.cells:
        if cell in owner:
            raise ValueError(f"it plans a cell that {owner[cell]} already has: {job.arguments}")
        owner[cell] = job.name
    if len(os.fsencode(job.name)) > LONGEST_NAME:
        raise ValueError(f"a job would be named {job.name!r}; allowed: at most {LONGEST_NAME} bytes")
    if job.name in jobs:
        raise ValueError(f"two jobs would be named {job.name!r}; allowed: sizes with different names")
    jobs[job.name] = job


def grids_of(scale: str) -> str:
    """The scale whose grids a scale uses."""
    return HANDOUT if scale == QUICK else scale


def at_scale(grid: Grid, scale: str, path: tuple[str, ...]) -> Grid | None:
    """A grid at a scale: at `quick` with fewer values of some parameters, or left out.

    Raises:
        Mistake: its values for `quick` are not among its own, or it is not one of the handout's grids.
    """
    if QUICK_KEY not in grid.model_fields_set:
        return grid
    where = (*path, QUICK_KEY)
    if grids_of(scale) != HANDOUT:
        raise Mistake(where, f"{'.'.join(path)} has the key {QUICK_KEY!r}; allowed: only in grids of {HANDOUT}")
    fewer = {} if isinstance(grid.quick, str) else grid.quick
    known = {JOB_KEY: grid.one_job_per} if grid.one_job_per else {}
    known |= grid.values
    for key, values in fewer.items():
        if key not in known:
            raise Mistake((*where, key), f"{'.'.join(where)} has the key {key!r}; allowed: {', '.join(known)}")
        for value in values:
            if value not in known[key]:
                allowed = ", ".join(map(repr, known[key]))
                raise Mistake((*where, key), f"{'.'.join(where)}.{key} has {value!r}; allowed: {allowed}")
    if scale != QUICK:
        return grid
    return None if grid.quick == NONE else grid.model_copy(update=fewer)


def plan_traces(config: Config, scale: str) -> dict[str, Job]:
    """The steps that are traced, by the names of the traces: jobs of one cell, whose grid is the step's key.

    Raises:
        Mistake: a parameter that the experiment does not have, or a value it does not allow.
    """
    steps = {"training_step": grids_of(scale)} | ({"fastest_step": "fastest"} if config.trace.fastest else {})
    return {name: _traced(name, key, config) for name, key in steps.items() if key != "fastest" or scale != SMOKE}


def _traced(name: str, key: str, config: Config) -> Job:
    kind = EXPERIMENTS[TRACED[name]]
    values = {parameter: [value] for parameter, value in getattr(config.trace, key).items()}
    try:
        (job,) = _grid_jobs(kind, f"trace.{key}", values, [], own_sizes(config.sizes), config.model)
        check_one_rung(job.cells[0])
    except ValueError as error:
        raise Mistake(["trace", key], f"trace.{key}: {error}") from None
    return job


def own_sizes(sizes: Mapping[str, Shape]) -> dict[str, str]:
    """The configuration's custom sizes by name, in the experiments' format.

    Raises:
        Mistake: a name or a shape that is not allowed.
    """
    specifications = {}
    for name, shape in sizes.items():
        try:
            check_own_name(name)
            if len(name) > LONGEST_NAME:
                raise ValueError(f"size name is {name!r}; allowed: at most {LONGEST_NAME} letters")
            specifications[name] = format_size(name, ModelShape(**vars(shape)))
        except ValueError as error:
            raise Mistake(["sizes", name], f"sizes.{name}: {error}") from None
    return specifications


def check_grid(grid: Mapping[str, Sequence[Any]]) -> None:
    """Check a grid for mistakes that any parameter can have.

    Raises:
        ValueError: a parameter without a value, a duplicate value, a number that is too large or not in ASCII, or too
            many cells.
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
    expand(kind, values)  # The whole grid first: an error should not depend on how it is split.
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
    """A size in the format of cells: a custom shape with its numbers in order, so that equal shapes have equal text."""
    if ":" not in size:
        return size
    return format_size(size_name(size), parse_size(size))


def _label(key: str, value: Any) -> str:
    """Part of a job's name, which is also a file name, for a value: a size's name, a class's dotted path."""
    if key == PROCESSES:
        return f"{value}_processes"
    return size_name(value) if key == "size" else str(value).replace(":", ".")
