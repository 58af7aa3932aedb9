"""A user's own implementations, from the configuration to the call, and the complaints about wrong ones."""

import subprocess
import sys

import pytest

from cs336_systems.implementations import check, parse, parse_all
from cs336_systems.plan import make_plan
from tests.samples import ROOT, config


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mine", "implementation is 'mine'; allowed: NAME=package.module:name"),
        ("mine=my_package.flash", "implementation is 'mine=my_package.flash'; allowed: NAME=package.module:name"),
        ("my own=a:b", "implementation is 'my own=a:b'; allowed: NAME=package.module:name"),
        ("a=b:c,a=d:e", "implementation is 'a=b:c,a=d:e', where a name comes twice; allowed: each name once"),
    ],
)
def test_what_names_no_implementation_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_all(text)


@pytest.mark.parametrize(
    ("family", "path"),
    [
        ("attention", "cs336_systems.attention:flash_attention"),
        ("attention", "cs336_systems.attention:TiledFlashAttention"),
        ("data_parallel", "torch.nn.parallel:DistributedDataParallel"),
        ("data_parallel", "examples.my_systems.ddp:BucketedDDP"),  # whose bucket size has no default
        ("sharded_optimizer", "torch.distributed.optim:ZeroRedundancyOptimizer"),
        ("fsdp", "cs336_systems.parallel.fsdp:FullyShardedDataParallel"),
    ],
)
def test_what_has_its_familys_arguments_passes(family, path):
    check(family, parse(f"mine={path}"))


@pytest.mark.parametrize(
    ("family", "path", "complaint"),
    [
        ("fsdp", "nowhere.at_all:FSDP", "nowhere.at_all:FSDP cannot be loaded: ModuleNotFoundError: No module"),
        ("fsdp", "torch.nn:Nothing", "mine=torch.nn:Nothing cannot be loaded: torch.nn has no 'Nothing'"),
        ("attention", "tests.support.raising_model:LM", "cannot be loaded: RuntimeError: of itself"),
        ("data_parallel", "math:pi", "mine=math:pi is of type float; allowed: what takes module"),
        ("attention", "torch.nn.functional:relu", "cannot be called: too many .*; allowed: what takes q, k, v"),
        ("fsdp", "cs336_systems.model:Linear.reset", "cs336_systems.model has no 'Linear.reset'"),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_refused_in_a_sentence(family, path, complaint):
    with pytest.raises(ValueError, match=complaint) as refused:
        check(family, parse(f"mine={path}"))
    assert "\n" not in str(refused.value)


def test_the_command_ends_with_the_sentence():
    command = [sys.executable, "-m", "cs336_systems.implementations", "fsdp", "mine=math:Nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "fsdp: mine=math:Nothing cannot be loaded: math has no 'Nothing'\n"


@pytest.mark.parametrize(
    ("implementations", "complaint"),
    [
        ({"attention": {"mine": "flash"}}, "config.yaml: implementations.attention: .* is 'mine=flash'; allowed"),
        ({"attention": {"triton": "a:b"}}, "implementations.attention.triton has a name that is taken; allowed"),
        ({"ddp": {"mine": "a:b"}}, "unknown key 'ddp' in implementations; allowed: attention, data_parallel"),
        ({"fsdp": {"mine": "no.where:F"}}, "implementations.fsdp.mine is 'no.where:F': no source file found"),
    ],
)  # fmt: skip
def test_a_wrong_one_in_the_configuration_is_blamed_there(tmp_path, implementations, complaint):
    with pytest.raises(ValueError, match=complaint):
        make_plan(config(implementations=implementations), tmp_path)


def test_they_take_part_in_each_grid_but_in_no_cell_twice(tmp_path):
    own = {"attention": {"before": "cs336_systems.attention:plain_attention", "mine": "cs336_systems.attention:x"}}
    jobs = make_plan(config(implementations=own, scale="handout"), tmp_path).jobs["flash"]
    texts = ["before=cs336_systems.attention:plain_attention", "mine=cs336_systems.attention:x"]
    cells = [cell for job in jobs.values() for cell in job.cells]
    assert len(set(cells)) == len(cells)
    for name in ("leaderboard", "training", "libraries", "narrow", "fp32"):
        assert [cell.implementation for cell in jobs[name].cells][-2:] == texts
    assert not jobs["compilers"].own_implementations  # at shapes of libraries and fp32


def test_they_take_part_in_one_cell_with_all_others(tmp_path):
    own = {"data_parallel": {"before": "cs336_systems.ranges:a", "mine": "cs336_systems.sizes:b"}}
    (job,) = make_plan(config(implementations=own, scale="smoke"), tmp_path).jobs["data_parallel"].values()
    assert {cell.implementation for cell in job.cells} == {"before=cs336_systems.ranges:a,mine=cs336_systems.sizes:b"}
    assert {"cs336_systems.ranges", "cs336_systems.sizes"} <= {own.module for own in job.own_implementations}


def test_what_is_only_recorded_is_not_measured():
    grid = {"all": {"accumulator": ["fp32"]}, "once": {"accumulator": ["bf16"], "recorded_only": True}}
    experiments = config()["experiments"] | {"accumulation": {"smoke": grid, "handout": grid}}
    planned = make_plan(config(experiments=experiments)).jobs["accumulation"]
    recorded = make_plan(config(experiments=experiments, recorded="nvidia-h200")).jobs["accumulation"]
    assert (list(planned), list(recorded)) == (["all"], ["all", "once"])
