"""The plan: what config.yaml may say, what each mistake is answered with, and that a job's command means its cells."""

import dataclasses
import shlex

import pytest

from cs336_systems.benchmarks.job import parse_command_line
from cs336_systems.experiments.base import field_docs
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import make_plan
from cs336_systems.sizes import parse_size
from tests.samples import config

GRID = {"size": ["nano"], "context": [8]}


def planned(grid, tmp_path, **changes):
    """The plan of a configuration whose only end-to-end grid, at either scale, is this one."""
    settings = config(**changes)
    settings["experiments"]["end_to_end"] = {"smoke": {"only": grid}, "handout": {"only": grid}}
    return make_plan(settings, tmp_path)


@pytest.mark.parametrize(
    ("grid", "complaint"),
    [
        ({**GRID, "contxt": [1]}, "'contxt' is not known here; allowed: size, context"),
        ({**GRID, "context": [0]}, "context is 0; allowed: greater than or equal to 1"),
        ({**GRID, "context": ["long"]}, "context is 'long'"),
        ({**GRID, "context": 8}, "context is 8; allowed: a list of at least one value"),
        ({**GRID, "context": []}, "allowed: a list of at least one value"),
        ({**GRID, "size": ["huge"]}, "size is 'huge'; allowed: nano, micro"),
        ({**GRID, "size": ["odd"]}, "num_heads is 3, which does not divide d_model 100"),
        ({**GRID, "precision": ["fp8"]}, "precision is 'fp8'; allowed: 'fp32' or 'bf16'"),
        ({**GRID, "context": [8, 8]}, "plans a cell that only has already"),
        ({**GRID, "one_job_per": ["sise"]}, "one_job_per names 'sise'; allowed: size, context"),
    ],
)
def test_a_wrong_grid_is_answered_in_a_sentence(tmp_path, grid, complaint):
    sizes = {"odd": {"d_model": 100, "d_ff": 8, "num_layers": 1, "num_heads": 3}}
    with pytest.raises(ValueError, match=complaint) as error:
        planned(grid, tmp_path, sizes=sizes)
    assert "experiments.end_to_end.smoke.only" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"speed": 1}, "unknown key 'speed' in the top level; allowed: machine, scale"),
        ({"scale": "large"}, "scale is 'large'; allowed: auto, smoke or handout"),
        ({"strict": "yes"}, "strict is 'yes'; allowed: true or false"),
        ({"model": "nowhere"}, "model is 'nowhere'; allowed: a model class as package.module:Class"),
        ({"machine": "pdp-11"}, "machine is 'pdp-11', which has no recorded results in .*; allowed: auto"),
        ({"sizes": {"a": {"d_model": 8}}}, "'d_ff' is a required property in sizes.a"),
        ({"experiments": {}}, "'end_to_end' is a required property in experiments"),
    ],
)
def test_a_wrong_setting_is_answered_in_a_sentence(tmp_path, changes, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        make_plan(config(**changes), tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("scale", ["smoke", "handout"])
def test_a_jobs_command_means_its_cells(scale):
    plan = make_plan(config(scale=scale))
    for experiment, jobs in plan.jobs.items():
        assert jobs
        for job in jobs.values():
            cells, _ = parse_command_line(EXPERIMENTS[experiment], shlex.split(job.arguments))
            assert tuple(cells) == job.cells


def test_the_model_and_own_sizes_reach_the_jobs(tmp_path):
    shape = {"d_model": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    grid = {"one_job_per": ["size"], "size": ["mine", "nano"], "context": [8]}
    jobs = planned(grid, tmp_path, sizes={"mine": shape}, model="a.b:C").jobs["end_to_end"]
    assert list(jobs) == ["only-mine", "only-nano"]
    cell = jobs["only-mine"].cells[0]
    assert vars(parse_size(cell.size)) == shape
    assert cell.model == "a.b:C"
    assert "--model a.b:C" in jobs["only-nano"].command


def test_recorded_results_are_not_measured(tmp_path):
    (tmp_path / "nvidia-l4/raw/end_to_end").mkdir(parents=True)
    (tmp_path / "nvidia-l4/raw/end_to_end/a.csv").touch()
    plan = make_plan(config(machine="nvidia-l4"), tmp_path)
    assert (plan.measures, plan.scale, plan.device) == (False, "handout", "cuda")


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_every_parameter_is_documented(experiment):
    assert set(field_docs(experiment)) >= {field.name for field in dataclasses.fields(experiment)}
