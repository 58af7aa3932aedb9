"""From config.yaml to jobs: what is planned, and the sentence that each mistake ends in."""

import shlex
import subprocess
import sys

import pytest

from cs336_systems.benchmarks.job import parse_command_line
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import make_plan, plan_jobs
from tests.pipeline import ROOT, environment
from tests.samples import config

GRID = ("experiments", "end_to_end", "smoke", "eager")
OWN = {"d_model": 96, "d_ff": 64, "num_layers": 2, "num_heads": 3}


def changed(*keys, value, own=None):
    """config.yaml at the smoke scale with one value replaced, or a key added."""
    whole = config(scale="smoke", sizes=own or {})
    *path, last = keys
    inner = whole
    for key in path:
        inner = inner[key]
    inner[last] = value
    return whole


@pytest.mark.parametrize(
    ("keys", "value", "complaint"),
    [
        (["scael"], "smoke", "unknown key 'scael' in the top level; allowed: machine, scale, model"),
        (["experiments", "end_to_edn"], {}, "unknown key 'end_to_edn' in experiments; allowed: end_to_end, accum"),
        (["experiments", "end_to_end", "smok"], {}, "unknown key 'smok' in experiments.end_to_end; allowed: smoke, ha"),
        ([*GRID, "contexts"], [64], "experiments.end_to_end.smoke.eager: 'contexts' is not known here; allowed: size,"),
        (["scale"], "large", "scale is 'large'; allowed: auto, smoke or handout"),
        (["machine"], "nvidia-t4", "machine is 'nvidia-t4', which has no recorded results in .*; allowed: auto"),
        (["machine"], "../x", "machine is '../x'; allowed: auto, or the label of recorded results"),
        (["model"], "my_basics.model", "model is 'my_basics.model'; allowed: a model class as package.module:Class"),
        (
            ["sizes"],
            {"my/size": OWN},
            "sizes is 'my/size'; allowed: names of letters, digits, underscores, hyphens and",
        ),
        (["strict"], "yes", "strict is 'yes'; allowed: true or false"),
        (["seed"], -1, "seed is -1; allowed: a whole number from 0"),
        ([*GRID, "size"], ["nano", "huge"], "smoke.eager: size is 'huge'; allowed: nano, micro, mini, small"),
        ([*GRID, "context"], [64, 0], "smoke.eager: context is 0; allowed: greater than or equal to 1"),
        ([*GRID, "precision"], ["fp8"], "smoke.eager: precision is 'fp8'; allowed: 'fp32' or 'bf16'"),
        ([*GRID, "warmup"], [-1], "smoke.eager: warmup is -1; allowed: greater than or equal to 0"),
        ([*GRID, "context"], 64, "smoke.eager.context is 64; allowed: a list of at least one value"),
        ([*GRID, "context"], [], "smoke.eager.context is .*; allowed: a list of at least one value"),
        ([*GRID, "one_job_per"], ["sizes"], "smoke.eager: one_job_per names 'sizes'; allowed: size, context"),
        ([*GRID, "context"], [64, 64], "smoke.eager: it plans a cell that eager-nano has already"),
        ([*GRID[:3], "again"], {"size": ["nano"], "context": [64], "warmup": [3]}, "smoke.again: it plans a cell that"),
        ([*GRID, "model"], ["nowhere"], "smoke.eager: model is 'nowhere'; allowed: package.module:Class"),
    ],
)
def test_a_mistake_ends_in_one_sentence(tmp_path, keys, value, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        make_plan(changed(*keys, value=value), tmp_path)
    assert str(error.value).startswith("config.yaml: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["seed", "experiments"])
def test_a_missing_key_is_named(key):
    whole = config()
    del whole[key]
    with pytest.raises(ValueError, match=f"config.yaml: '{key}' is a required property in the top level"):
        make_plan(whole)


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        (OWN | {"num_heads": 5}, "size 'mine': num_heads is 5, which does not divide d_model 96 into heads of even"),
        (OWN | {"num_heads": 32}, "size 'mine': num_heads is 32"),  # heads of width 3: rotary embeddings need pairs
        (OWN | {"d_ff": 0}, "size 'mine': d_ff is 0; allowed: whole numbers from 1"),
        (OWN | {"d_ff": 1.5}, "sizes.mine.d_ff is 1.5; allowed: a whole number"),
        (OWN | {"layers": 3}, "unknown key 'layers' in sizes.mine; allowed: d_model, d_ff, num_layers, num_heads"),
        ({"d_model": 96}, "'d_ff' is a required property in sizes.mine"),
    ],
)
def test_an_impossible_size_of_ones_own_is_named(shape, complaint):
    with pytest.raises(ValueError, match=complaint):
        make_plan(changed(*GRID, "size", value=["mine"], own={"mine": shape}))


def test_a_size_of_ones_own_never_changes_what_a_known_name_means():
    with pytest.raises(ValueError, match="sizes: 'nano' is the name of a built-in size"):
        make_plan(config(sizes={"nano": OWN}))


def test_a_size_of_ones_own_is_written_out():
    jobs = plan_jobs("end_to_end", changed(*GRID, "size", value=["nano", "mine"], own={"mine": OWN}), "smoke")
    assert {"eager-nano", "eager-mine"} <= set(jobs)
    assert {cell.size for cell in jobs["eager-mine"].cells} == {
        "mine:d_model=96,d_ff=64,num_layers=2,num_heads=3",
    }
    cells, _ = parse_command_line(EXPERIMENTS["end_to_end"], shlex.split(jobs["eager-mine"].arguments))
    assert tuple(cells) == jobs["eager-mine"].cells


def test_a_job_is_a_combination_of_what_one_job_per_names():
    grid = {"one_job_per": ["size", "warmup"], "size": ["nano", "2.7B"], "warmup": [0, 2], "context": [8, 16]}
    jobs = plan_jobs("end_to_end", changed(*GRID, value=grid), "smoke")
    names = [name for name, job in jobs.items() if job.grid == "eager"]
    assert names == ["eager-nano-0", "eager-nano-2", "eager-2.7B-0", "eager-2.7B-2"]
    assert [(cell.size, cell.warmup, cell.context) for cell in jobs["eager-2.7B-0"].cells] == [
        ("2.7B", 0, 8),
        ("2.7B", 0, 16),
    ]
    assert jobs["eager-2.7B-0"].command == (
        "python -m cs336_systems.benchmarks.end_to_end --size 2.7B --warmup 0 --context 8 16"
    )


def test_jobs_that_differ_in_the_class_of_one_module_keep_their_names_apart():
    models = ["cs336_systems.model:TransformerLM", "cs336_systems.model:TransformerBlock"]
    grid = {"one_job_per": ["model"], "size": ["nano"], "context": [8], "model": models}
    jobs = plan_jobs("end_to_end", changed(*GRID, value=grid), "smoke")
    assert [cell.model for job in jobs.values() if job.grid == "eager" for cell in job.cells] == models


@pytest.mark.parametrize("scale", ["smoke", "handout"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_command_lines_mean_the_planned_cells(experiment, scale):
    jobs = plan_jobs(experiment, config(), scale)
    assert jobs
    for job in jobs.values():
        cells, options = parse_command_line(EXPERIMENTS[experiment], shlex.split(job.arguments))
        assert tuple(cells) == job.cells
        assert (options.output, options.device) == (None, "auto")


@pytest.mark.parametrize(
    ("key", "given", "meant"), [("steps", [10.0], 10), ("compiled", [0], False), ("context", ["64"], 64)]
)
def test_yaml_types_that_are_let_through_reach_the_job_as_what_they_mean(key, given, meant):
    jobs = plan_jobs("end_to_end", changed(*GRID, key, value=given), "smoke")
    cells, _ = parse_command_line(EXPERIMENTS["end_to_end"], shlex.split(jobs["eager-nano"].arguments))
    assert tuple(cells) == jobs["eager-nano"].cells
    assert {getattr(cell, key) for cell in cells} == {meant}


def test_the_model_of_the_configuration_reaches_every_job_that_has_one():
    whole = config(model="my_basics.model:BasicsTransformerLM")
    jobs = plan_jobs("end_to_end", whole, "smoke")
    assert {cell.model for job in jobs.values() for cell in job.cells} == {whole["model"]}
    assert all("--model my_basics.model:BasicsTransformerLM" in job.arguments for job in jobs.values())
    assert "model" not in plan_jobs("accumulation", whole, "smoke")["all"].arguments


@pytest.mark.parametrize(
    ("label", "scale", "device"), [("nvidia-h200", "handout", "cuda"), ("cpu", "smoke", "cpu"), ("mine", "smoke", None)]
)
def test_a_recorded_label_measures_nothing(tmp_path, label, scale, device):
    (tmp_path / label / "raw" / "accumulation").mkdir(parents=True)
    (tmp_path / label / "raw" / "accumulation" / "all.csv").touch()
    whole = config(machine=label, scale="auto" if device else "smoke")
    plan = make_plan(whole, tmp_path)
    assert (plan.machine, plan.measures, plan.scale) == (label, False, scale)
    assert device in (plan.device, None)
    with pytest.raises(ValueError, match=f"'other', which has no recorded results .*; allowed: auto, {label}$"):
        make_plan(config(machine="other"), tmp_path)


def test_this_machine_is_measured(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    plan = make_plan(config())
    assert (plan.machine, plan.measures, plan.scale, plan.device) == ("cpu", True, "smoke", "cpu")
    assert list(plan.jobs) == list(config()["experiments"])
    assert make_plan(config(scale="handout")).scale == "handout"


def test_planning_and_the_scripts_do_without_torch():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in ("scripts", "cs336_systems/experiments", "cs336_systems/accounting")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    code = f"import sys, importlib, cs336_systems.plan; [importlib.import_module(name) for name in {modules}]"
    subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], env=environment(ROOT), check=True
    )
