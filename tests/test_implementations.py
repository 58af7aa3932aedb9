"""A user's own implementations, from the configuration to the call, and the complaints about wrong ones."""

import subprocess
import sys

import pytest

from cs336_systems.implementations import check, parse, parse_all
from cs336_systems.model_check import check_model
from cs336_systems.plan import make_plan
from cs336_systems.record.source import own_digest
from tests.samples import ROOT, config
from tests.support.files import write_files


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mine", "implementation is 'mine'; allowed: NAME=package.module:name"),
        ("mine=my_package.flash", "implementation is 'mine=my_package.flash'; allowed: NAME=package.module:name"),
        ("my own=a:b", "implementation is 'my own=a:b'; allowed: NAME=package.module:name"),
        ("a=b:c,a=d:e", "implementation is 'a=b:c,a=d:e', where a name occurs twice; allowed: each name once"),
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
        ("data_parallel", f"{ROOT}/examples/class/emmy/cs336_systems.parallel:DDP"),
        ("attention", f"{ROOT}/examples/class/emmy/tests.adapters:get_flashattention_autograd_function_triton"),
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
        ("data_parallel", "math:pi", "mine=math:pi is of type float; allowed: a callable with the arguments module"),
        ("attention", "torch.nn.functional:relu", "cannot be called: too many .*; allowed: .* arguments q, k, v"),
        ("fsdp", "cs336_systems.model:Linear.reset", "cs336_systems.model has no 'Linear.reset'"),
        ("fsdp", f"{ROOT}/examples/class/emmy/cs336_systems.fsdp:F", "No module named 'cs336_systems.fsdp'"),
        ("fsdp", f"{ROOT}/examples/class/emmy/math:pi", "No module named 'math' in emmy"),
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
    assert done.stderr == "implementations.fsdp: mine=math:Nothing cannot be loaded: math has no 'Nothing'\n"


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
    assert not jobs["tiled"].own_implementations  # at shapes of libraries


def test_they_take_part_in_one_cell_with_all_others(tmp_path):
    own = {"data_parallel": {"before": "cs336_systems.ranges:a", "mine": "cs336_systems.sizes:b"}}
    (job,) = make_plan(config(implementations=own, scale="smoke"), tmp_path).jobs["data_parallel"].values()
    assert {cell.implementation for cell in job.cells} == {"before=cs336_systems.ranges:a,mine=cs336_systems.sizes:b"}
    assert {"cs336_systems.ranges", "cs336_systems.sizes"} <= {own.module for own in job.own_implementations}


TRITON = "get_flashattention_autograd_function_triton"
ADAPTERS = f"from cs336_systems.flash import F\ndef get_ddp(module): ...\ndef {TRITON}(): ...\n"


def solution(folder, **files):
    write_files(folder, {"tests/adapters.py": ADAPTERS, "cs336_systems/flash.py": "F = 1\n", **files})
    return str(folder)


def test_adapters_of_a_folder_take_part_in_their_families(tmp_path):
    folder = solution(tmp_path / "ada")
    named = {"adapters": folder, "attention": {"mine": "cs336_systems.sizes:a"}}
    plan = make_plan(config(implementations=named), tmp_path)
    own = {
        name: {each.text for job in jobs.values() for each in job.own_implementations}
        for name, jobs in plan.jobs.items()
    }
    assert {name: texts for name, texts in own.items() if texts} == {
        "flash": {f"adapter-triton={folder}/tests.adapters:{TRITON}", "mine=cs336_systems.sizes:a"},
        "data_parallel": {f"adapter-ddp={folder}/tests.adapters:get_ddp"},
    }


def test_rows_of_adapters_are_of_the_code_that_they_import(tmp_path):
    path = f"{solution(tmp_path)}/tests.adapters:get_ddp"
    digests = [own_digest(path)]
    for file, text in (
        ("cs336_systems/flash.py", "F = 1  # the same\n"),
        ("cs336_systems/other.py", "not imported\n"),
        ("cs336_systems/flash.py", "F = 2\n"),
        ("cs336_systems/flash.py", "<<<<<<< no Python\n"),
    ):
        (tmp_path / file).write_text(text)
        digests.append(own_digest(path))
    assert [digests.index(each) for each in digests] == [0, 0, 0, 3, 4]


@pytest.mark.parametrize(
    ("folder", "files", "complaint"),
    [
        ("ada b", {}, "allowed: a path without spaces, commas, = and :"),
        ("ada", {"tests/adapters.py": "x = 1\n"}, "adapters.py has no adapter; allowed: get_flashattention"),
        ("ada", {"tests/adapters.py": "def\n"}, "adapters.py is not Python: invalid syntax"),
        ("ada", {"tests/adapters.py": f"x = {'-' * 100_000}1"}, "is not Python: an expression is nested"),
        ("ada", {"tests/adapters.py": f"x = {'+'.join('1' * 20_000)}"}, "is not Python: an expression is nested"),
        ("ada", {"implementations.yaml": "fsdp: {x: '../b/c:D'}"}, "names '../b/c:D'; allowed: package.module:name in"),
        ("ada", {"implementations.yaml": "attention: {plain: 'a:b'}"}, "attention.plain has a name that is taken"),
        ("", {}, "adapters is '.*'; allowed: none, or a folder with a tests/adapters.py"),
    ],
)  # fmt: skip
def test_adapters_that_cannot_be_measured_are_refused(tmp_path, folder, files, complaint):
    solution(tmp_path / "one" / (folder or "ada"), **files)
    with pytest.raises(ValueError, match=f"^config.yaml: implementations.*{complaint}"):
        make_plan(config(implementations={"adapters": str(tmp_path / "one" / folder)}), tmp_path)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("raise KeyboardInterrupt", "cannot be loaded: KeyboardInterrupt"),
        ("raise SystemExit(0)", "cannot be loaded: SystemExit: 0"),
        ("raise RuntimeError('two\\nlines')", "cannot be loaded: RuntimeError: two"),
        ("raise RuntimeError('')", "cannot be loaded: RuntimeError"),
        ("raise AssertionError('x' * 100_000)", "cannot be loaded: AssertionError: xxx"),
        ("Model = 1", "which is of type int; allowed: a model class"),
    ],
)
def test_any_end_of_a_models_module_is_one_sentence(tmp_path, monkeypatch, body, sentence):
    (tmp_path / "theirs.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    with pytest.raises(ValueError, match=sentence) as refused:
        check_model("theirs:Model")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
