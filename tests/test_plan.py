"""The plan: allowed values in config.yaml, the answer to each mistake, and commands that reproduce a job's cells."""

import csv
import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import ClassVar

import jsonschema
import pytest

from cs336_systems.benchmarks.command_line import parse_command_line
from cs336_systems.config import Config, as_in_a_file
from cs336_systems.experiments.base import Experiment, Positive
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import make_plan, plan_to_json, read_plan
from cs336_systems.run.taken import key_of, read_taken
from cs336_systems.sizes import parse_size
from tests.samples import ROOT, config, mistakes

GRID = {"size": ["nano"], "context": [8]}
MINE = {"d_model": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}


def grids(given, experiment="end_to_end"):
    """The project's experiments with these grids of one at either scale."""
    return config()["experiments"] | {experiment: {"smoke": given, "handout": given}}


def planned(grid, tmp_path, **changes):
    """The plan of a configuration whose only end-to-end grid, at either scale, is this one."""
    return make_plan(config(experiments=grids({"only": grid}), **changes), tmp_path)


@pytest.mark.parametrize(("grid", "complaint"), mistakes("grids"))
def test_a_wrong_grid_is_answered_in_a_sentence(tmp_path, grid, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        planned(GRID | grid, tmp_path)
    assert "experiments.end_to_end.smoke.only" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"strict": "true"}, {"strict": True}),
        ({"strict": "false", "seed": 1}, {"strict": False, "seed": 1}),
        ({"strict": "often", "with": "2024"}, {"strict": "often", "with": "2024"}),
        ({"sizes": {"a": {"d_model": "64", "d_ff": "1.5"}}}, {"sizes": {"a": {"d_model": 64, "d_ff": 1.5}}}),
        (
            {"grids": [{"cell": ["1", "true", "2.7B", "none", "2024-01-01", "a: [", ""]}]},
            {"grids": [{"cell": [1, True, "2.7B", "none", "2024-01-01", "a: [", ""]}]},
        ),
        ({"machine": ["1", ["2"]], "strict": []}, {"machine": [1, [2]], "strict": []}),
    ],
)
def test_values_on_the_command_line_are_read_as_in_a_file(given, read):
    assert as_in_a_file(given) == read


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        *mistakes("settings"),
        ({"end_to_end": {"a" * 300: GRID}}, "a job would be named 'a*'; allowed: at most 100 bytes"),
        ({"model": f"{'a' * 300}:Model"}, "allowed: a model class as package.module:Class, up to 200 letters"),
        ({"seed": "9" * 5000}, "seed is '9{199}...; allowed: a whole number from 0"),
        (
            {"implementations": {"attention": {"a": f"{'a' * 3000}:f"}}},
            "of 3004 characters; allowed: NAME=package.module",
        ),
        ({"end_to_end": {"all": {key: [*range(1, 500)] for key in ("context", "steps")}}}, "it has 249001 cells"),
        ({"experiments": config()["experiments"] | {"speed": 1}}, "unknown key 'speed' in experiments; allowed: accum"),
        ({"experiments": {}}, "experiments.accumulation is missing"),
        (
            {"experiments": grids({"all": {"backend": ["gloo"], "processes": [2, 100_000]}}, "all_reduce")},
            "experiments.all_reduce.smoke.all: processes is 100000; allowed: at most 256",
        ),
    ],
)
def test_a_wrong_setting_is_answered_in_a_sentence(tmp_path, changes, complaint):
    if "end_to_end" in changes:
        changes = {"experiments": grids(changes["end_to_end"])}
    with pytest.raises(ValueError, match=complaint) as error:
        make_plan(config(**changes), tmp_path)
    assert str(error.value).startswith("config.yaml: ")
    assert "\n" not in str(error.value)


def test_the_schema_that_editors_read_allows_the_projects_configuration_alone():
    schema = jsonschema.Draft202012Validator(Config.model_json_schema())
    assert schema.is_valid(config())
    wrong = [{"speed": 1}, {"price": "dear"}, {"experiments": {}}, {"experiments": grids({"all": {}})}]
    assert not any(schema.is_valid(config(**changes)) for changes in wrong)


@pytest.mark.parametrize(
    ("nodes", "given", "complaint"),
    [
        ({"machine": "pdp-11"}, {}, "nodes.yaml: machine is 'pdp-11'; allowed: auto, or"),
        ({"machine": "pdp-11"}, {"machine": "vax"}, "--config: machine is 'vax'; allowed: auto, or"),
        ({"speed": 1}, {}, "nodes.yaml: unknown key 'speed' in the top level"),
        ({"sizes": {"mine": {"d_model": 8}}}, {}, "nodes.yaml: sizes.mine.d_ff is missing"),
        ({}, {"seed": -1}, "--config: seed is -1; allowed: a whole number"),
        ({}, {"sizes": {"mine": MINE | {"d_ff": 2.5}}}, "--config: sizes.mine.d_ff is 2.5; allowed: a whole"),
        ({}, {}, "config.yaml: scale is 'large'; allowed: auto, smoke, quick or handout"),
        ({}, {}, "config.yaml: seed is missing"),
    ],
)
def test_a_mistake_is_blamed_on_the_source_that_made_it(tmp_path, nodes, given, complaint):
    sources = [("config.yaml", config(scale="large")), ("nodes.yaml", nodes), ("--config", given)]
    merged = {key: value for _, content in sources for key, value in content.items()}
    if "seed is missing" in complaint:
        del merged["seed"]
    if "scale" not in complaint:
        merged["scale"] = "smoke"
    with pytest.raises(ValueError, match=f"^{complaint}"):
        make_plan(merged, tmp_path, sources)


@pytest.mark.parametrize("scale", ["smoke", "quick", "handout"])
def test_a_jobs_command_means_its_cells(scale):
    plan = make_plan(config(scale=scale))
    for experiment, jobs in plan.jobs.items():
        assert jobs
        for job in jobs.values():
            cells, _ = parse_command_line(EXPERIMENTS[experiment], shlex.split(job.arguments))
            assert tuple(cells) == job.cells


def quick(tmp_path, chosen, scale="quick"):
    """The plan of a configuration whose only end-to-end grid of the handout has these values for `quick`."""
    grid = {"one_job_per": ["size"], "size": ["nano", "micro"], "context": [8, 16], "quick": chosen}
    experiments = config()["experiments"] | {"end_to_end": {"smoke": {"only": GRID}, "handout": {"only": grid}}}
    return make_plan(config(experiments=experiments, scale=scale, machine="1 x NVIDIA H200"), tmp_path)


def test_quick_measures_some_of_the_handouts_cells(tmp_path):
    jobs = quick(tmp_path, {"context": [16]}).jobs["end_to_end"]
    assert {name: [cell.context for cell in job.cells] for name, job in jobs.items()} == {
        "only-nano": [16],
        "only-micro": [16],
    }
    assert list(quick(tmp_path, {"context": [16], "one_job_per": []}).jobs["end_to_end"]) == ["only"]
    assert not quick(tmp_path, "none").jobs["end_to_end"]
    whole = quick(tmp_path, "none", "handout")
    assert sum(len(job.cells) for job in whole.jobs["end_to_end"].values()) == 4
    # The two write jobs of one name with different cells.
    assert quick(tmp_path, "none").raw != whole.raw


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({"context": [32]}, "handout.only.quick.context has 32; allowed: 8, 16"),
        ({"mode": ["forward"]}, "only.quick has the key 'mode'; allowed: one_job_per, size, context"),
        ({"context": []}, "handout.only: context has no value; allowed: at least one"),
        ("some", "only.quick is 'some'; allowed: none, or a mapping"),
        ({"context": 8}, "only.quick is {'context': 8}; allowed: none, or a mapping"),
    ],
)
def test_quick_has_only_values_of_its_grid(tmp_path, chosen, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        quick(tmp_path, chosen)
    assert str(error.value).startswith("config.yaml: experiments.end_to_end.handout.only")


def test_quick_measures_for_18_minutes_on_an_h200():
    """By recorded times, with starting processes; the tests of the code, the trace and the report have three more.

    An experiment that no H200 has measured yet does not count.
    """
    raw = ROOT / "recorded/nvidia-h200/raw"
    walls = {key: cell.wall for key, cell in read_taken([raw]).items()}
    plan = make_plan(config(machine="1 x NVIDIA H200", scale="quick"))
    expected = 0.0
    recorded = {key[0] for key in walls}
    for job in (job for job in plan.all_jobs() if job.experiment in recorded and not plan.obstacle(job)):
        files = [path.read_text().splitlines() for path in (raw / job.experiment).glob("*.csv")]
        expected += mean(float(next(csv.DictReader(lines))["startup_seconds"]) for lines in files)
        # A cell that was not recorded counts as the slowest of its experiment.
        slowest = max(wall for key, wall in walls.items() if key[0] == job.experiment)
        expected += sum(walls.get(key_of(cell), slowest) for cell in job.cells)
    assert 300 < expected < 18 * 60


def test_the_model_and_own_sizes_reach_the_jobs(tmp_path):
    grid = {"one_job_per": ["size"], "size": ["mine", "nano"], "context": [8]}
    jobs = planned(grid, tmp_path, sizes={"mine": MINE}, model="tests.support.models:TableLM").jobs["end_to_end"]
    assert list(jobs) == ["only-mine", "only-nano"]
    cell = jobs["only-mine"].cells[0]
    assert vars(parse_size(cell.size)) == MINE
    assert cell.model == "tests.support.models:TableLM"
    assert "--model tests.support.models:TableLM" in jobs["only-nano"].command


def test_each_model_has_a_job_of_its_own(tmp_path):
    models = ["tests.support.models:TableLM", "tests.support.models:ConvolutionLM"]
    jobs = planned({**GRID, "one_job_per": ["model"], "model": models}, tmp_path).jobs["end_to_end"]
    assert {name: [cell.model for cell in job.cells] for name, job in jobs.items()} == {
        "only-tests.support.models.TableLM": models[:1],
        "only-tests.support.models.ConvolutionLM": models[1:],
    }


def test_recorded_results_are_not_measured(tmp_path):
    (tmp_path / "nvidia-l4/raw/end_to_end").mkdir(parents=True)
    (tmp_path / "nvidia-l4/raw/end_to_end/a.csv").touch()
    plan = make_plan(config(recorded="nvidia-l4"), tmp_path)
    assert (plan.machine, plan.recorded, plan.scale, plan.device) == ("nvidia-l4", True, "handout", "cuda")
    assert (str(plan.raw), str(plan.results)) == ("recorded/nvidia-l4/raw", "results/recorded/nvidia-l4")
    assert all(plan.obstacle(job) for job in plan.all_jobs())


@pytest.mark.parametrize(
    ("machine", "label", "gpus"),
    [
        ("RTX 4090", "nvidia-geforce-rtx-4090", 1),
        ("1x4090", "nvidia-geforce-rtx-4090", 1),
        ("2 x GeForce RTX 4090", "nvidia-geforce-rtx-4090", 2),
        (" 8 X h200 ", "nvidia-h200", 8),
        ("4 x NVIDIA A10G", "nvidia-a10g", 4),  # a driver's name of a model that is not listed
        ("cpu", "cpu", 0),
    ],
)
def test_jobs_may_run_on_another_machine_whose_name_may_be_short(monkeypatch, machine, label, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as on a login node
    plan = make_plan(config(machine=machine))
    assert (plan.machine, plan.gpus, str(plan.raw)) == (label, gpus, f"results/{label}/raw")
    assert (plan.scale, plan.device) == (("handout", "cuda") if gpus else ("smoke", "cpu"))


@dataclass(frozen=True, kw_only=True)
class Ranks(Experiment):
    name: ClassVar[str] = "ranks"
    metrics: ClassVar[Mapping[str, str]] = {}

    processes: Positive = 2
    """Processes."""
    megabytes: Positive = 1
    """Size of a message."""


@pytest.fixture
def ranks(monkeypatch):
    """Plans the experiment `ranks`, with a grid of two and four processes, for a machine."""
    monkeypatch.setitem(EXPERIMENTS, "ranks", Ranks)
    grid = {"processes": [2, 4], "megabytes": [1, 10]}

    def plan(machine):
        return make_plan(config(experiments=grids({"all": grid}, "ranks"), machine=machine))

    return plan


def test_a_launch_has_one_number_of_processes(ranks):
    jobs = ranks("cpu").jobs["ranks"]
    assert {name: [(cell.processes, cell.megabytes) for cell in job.cells] for name, job in jobs.items()} == {
        "all-2_processes": [(2, 1), (2, 10)],
        "all-4_processes": [(4, 1), (4, 10)],
    }
    assert jobs["all-4_processes"].command == (
        "torchrun --standalone --nproc-per-node=4 -m cs336_systems.benchmarks ranks --processes 4 --megabytes 1 10"
    )
    assert all(job.command.startswith("python -m ") for job in ranks("cpu").jobs["end_to_end"].values())


@pytest.mark.parametrize(
    ("machine", "obstacles"),
    [
        ("cpu", ["", ""]),
        ("1 x NVIDIA H200", ["it needs 2 GPUs, but 1 is visible", "it needs 4 GPUs, but 1 is visible"]),
        ("2 x NVIDIA H200", ["", "it needs 4 GPUs, but 2 are visible"]),
        ("4 x NVIDIA H200", ["", ""]),
    ],
)
def test_a_job_of_more_gpus_than_there_are_is_not_measured(ranks, machine, obstacles):
    plan = ranks(machine)
    assert [plan.obstacle(job) for job in plan.jobs["ranks"].values()] == obstacles


@pytest.mark.parametrize(
    ("machine", "obstacles", "gpus"),
    [
        ("cpu", ["", "it needs 2 GPUs, but 0 are visible", "", "it needs 4 GPUs, but 0 are visible"], [0, 2, 0, 4]),
        ("2 x NVIDIA H200", ["", "", "", "it needs 4 GPUs, but 2 are visible"], [0, 2, 0, 4]),
    ],
)
def test_gloo_needs_no_gpus_and_nccl_one_per_process(machine, obstacles, gpus):
    grid = {"backend": ["gloo", "nccl"], "processes": [2, 4], "megabytes": [1, 10]}
    plan = make_plan(config(experiments=grids({"all": grid}, "all_reduce"), machine=machine))
    jobs = plan.jobs["all_reduce"]
    names = ["all-gloo-2_processes", "all-nccl-2_processes", "all-gloo-4_processes", "all-nccl-4_processes"]
    assert sorted(jobs) == sorted(names)
    assert all(len({(cell.backend, cell.processes) for cell in job.cells}) == 1 for job in jobs.values())
    assert [plan.obstacle(jobs[name]) for name in names] == obstacles
    assert [plan.gpus_of(jobs[name]) for name in names] == gpus


@pytest.mark.parametrize("scale", ["smoke", "handout"])
def test_a_plan_survives_its_file(tmp_path, ranks, scale):
    plan = dataclasses.replace(ranks("4 x NVIDIA H200"), scale=scale)
    (tmp_path / "plan.json").write_text(plan_to_json(plan))
    assert read_plan(tmp_path / "plan.json") == plan
