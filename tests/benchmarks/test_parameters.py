"""Every parameter of every experiment changes what runs: operators, their shapes and types, graphs, calls, processes.

Nothing here looks at rows, which repeat the parameters whatever has run. A new parameter needs an entry in VALUES, and
a new experiment one in BASE too.
"""

import contextlib
import dataclasses
import functools
import importlib
import itertools
from collections import Counter
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from cs336_systems.benchmarks import memory_profile
from cs336_systems.benchmarks.command_line import device_of_rank, resolve_device
from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.kernel_profile import prepare_profiler
from cs336_systems.measure.memory import Unavailable
from cs336_systems.parallel import process_group
from cs336_systems.parallel.process_group import Rank
from tests.support.operators import Operators
from tests.support.ranks import on_cpu_ranks

CPU = torch.device("cpu")
TINY = "tiny:d_model=8,d_ff=12,num_layers=1,num_heads=2"
OTHER = "other:d_model=12,d_ff=20,num_layers=2,num_heads=3"
MODEL = {"size": TINY, "context": 6, "batch_size": 3, "vocab_size": 31}
ONE_STEP = {"warmup": 0, "steps": 1}
BASE = {
    "accumulation": {"accumulator": "bf16", "additions": 3},
    "all_reduce": ONE_STEP,
    "attention": {"sequence": 9, "d": 5, "batch_size": 2, "steps": 1, "warmup": 0},
    "autocast_dtypes": {},
    "block_memory": {"size": TINY, "context": 6, "batch_size": 3},
    "checkpointing": MODEL | ONE_STEP | {"precision": "fp32"},
    "data_parallel": MODEL | ONE_STEP | {"rounds": 1},
    "end_to_end": MODEL | ONE_STEP | {"cold_start": True},
    "flash": {"sequence": 9, "d": 6, "precision": "fp32", "implementation": "plain"},
    "kernel_profile": MODEL | ONE_STEP | {"mode": "inference"},
    "leaderboard": MODEL | {"part": "rank", "steps": 1},
    "memory_profile": MODEL,
    "training_ladder": MODEL | ONE_STEP | {"rungs": "fp32"},
}
"""Cells that take milliseconds."""
ON_RANKS = {name for name in BASE if any(x.name == "processes" for x in dataclasses.fields(EXPERIMENTS[name]))}
SAME_CODE = {"fsdp": "data_parallel", "optimizer_sharding": "data_parallel"}
"""Experiments that are measured by another's function."""
ELSEWHERE = {
    "processes": "test_command_line.py",
    "cold_start": "test_end_to_end.py",
    **{f"{name} implementation": "test_own_implementations.py" for name in ("data_parallel", *SAME_CODE)},
}
"""Tests of parameters whose effect is not seen here, in all experiments or in one."""


def benchmark(experiment):
    return importlib.import_module(f"cs336_systems.benchmarks.{experiment}")


def measure(cell, device=CPU):
    """All that measuring a cell does, where this machine can; of several contenders only the first takes part."""
    if cell.name == "memory_profile" and device == CPU:
        return run_what_is_followed(cell)
    of_ranks = cell.name == "data_parallel"
    alone = mock.patch.object(type(cell), "contenders", cell.contenders[:1]) if of_ranks else contextlib.nullcontext()
    with alone:
        return benchmark(cell.name).measure(cell, device)


def run_what_is_followed(cell):
    """A memory profile's steps. Only a CUDA device's allocations can be followed."""

    def follow(stages, *_):
        for stage in stages.values():
            stage()
        raise Unavailable("the steps have run")

    with (
        mock.patch.object(memory_profile, "require_history"),
        mock.patch.object(memory_profile, "record_step", follow),
        pytest.raises(Unavailable, match="the steps have run"),
    ):
        memory_profile.measure(cell, CPU)


@functools.cache
def operators(cell, device=CPU):
    prepare_profiler(device)  # once per process, in the first cell that is profiled
    torch.manual_seed(0)
    with Operators() as seen:
        measure(cell, device)
    return seen


# Facts about a cell on a device.


def all_operators(cell, device):
    return Counter(map(repr, operators(cell, device).calls))


def model_and_batch(cell, device):
    """d_model, d_ff, layers, heads, batch, context, vocabulary and precision of the model that ran last."""
    seen = operators(cell, device)
    names = [call.name for call in seen.calls]
    layers = names[max(index for index, name in enumerate(names) if name == "embedding") :].count("silu")
    (vocabulary, d_model), tokens = seen.last("embedding").inputs[:2]
    d_ff, heads, dtype = seen.last("silu").output[-1], seen.last("_softmax").output[1], seen.last("mm").dtype
    return d_model, d_ff, layers, heads, *tokens, vocabulary, dtype


def scores(cell, device):
    """The shape of the scores, the width of queries, and their type."""
    seen = operators(cell, device)
    return *seen.last("_softmax").output, seen.named("bmm")[0].inputs[0][-1], seen.last("_softmax").dtype


def graphs(cell, device):
    """Whether graphs are captured and run; nothing is compiled from them."""
    captured, whole = [], torch.compile

    def backend(module, inputs):
        captured.append(module)
        return module.forward

    torch._dynamo.reset()
    with mock.patch.object(torch, "compile", lambda call, **options: whole(call, backend=backend, **options)):
        measure(cell, device)
    return bool(captured)


def connected_by(cell, device):
    """The backend of a launch's process group, where there are two GPUs."""
    rank = Rank(number=0, processes=2, local_number=0, local_processes=2)
    with (
        mock.patch.object(torch.cuda, "is_available", return_value=True),
        mock.patch.object(torch.cuda, "device_count", return_value=2),
        mock.patch.object(torch.cuda, "set_device"),
        mock.patch.object(process_group, "join"),
        mock.patch.object(process_group, "end_with_the_launcher"),
        mock.patch.object(dist, "init_process_group") as connect,
        mock.patch.object(dist, "barrier"),
        mock.patch.object(dist, "destroy_process_group"),
        process_group.process_group(rank, device_of_rank([cell], resolve_device("auto"), rank)),
    ):
        return connect.call_args.args[0]


def first_rep(cell, device):
    """For how many milliseconds a GPU times the first pass."""
    import triton.testing  # not on every machine

    with mock.patch("triton.testing.do_bench", wraps=triton.testing.do_bench) as bench:
        measure(cell, device)
    return bench.call_args_list[0].kwargs["rep"]


FP32, BF16 = torch.float32, torch.bfloat16
OF_A_MODEL = (
    {"size": OTHER, "context": 7, "batch_size": 4, "vocab_size": 37, "precision": "bf16"},
    *(model_and_batch, (8, 12, 1, 2, 3, 6, 31, FP32), (12, 20, 2, 3, 4, 7, 37, BF16)),
)
TOGETHER = {
    **dict.fromkeys(("checkpointing", "data_parallel", "end_to_end", "kernel_profile", "memory_profile"), OF_A_MODEL),
    "training_ladder": (
        {name: value for name, value in OF_A_MODEL[0].items() if name != "precision"},
        *(model_and_batch, OF_A_MODEL[2], (*OF_A_MODEL[3][:-1], FP32)),
    ),
    "attention": (
        {"sequence": 11, "d": 7, "batch_size": 3, "precision": "bf16"},
        *(scores, (2, 9, 9, 5, FP32), (3, 11, 11, 7, BF16)),
    ),
    "flash": (
        {"sequence": 11, "d": 8, "heads": 3, "batch_size": 2, "precision": "bf16"},
        *(scores, (1, 1, 9, 9, 6, FP32), (2, 3, 11, 11, 8, BF16)),
    ),
}
"""Changes of several parameters, which one fact shows at once, and that fact before and after them."""
MODELS = ("cs336_systems.model:TransformerLM", "tests.support.models:ConvolutionLM")
ATTENTIONS, PRECISIONS = ("plain", "flash", "sdpa"), ("fp32", "bf16")
COUNTS = {"warmup": (0, 2), "steps": (1, 3)}
VALUES = {
    "accumulation": {
        "accumulator": ("fp16", "bf16"),
        "addend": ("fp32", "fp16"),
        "cast": (False, True),
        "additions": (3, 5),
    },
    "all_reduce": {"backend": {"gloo": "gloo", "nccl": "nccl"}, "megabytes": (1, 2), **COUNTS},
    "attention": {"compiled": {False: False, True: True}, **COUNTS},
    "autocast_dtypes": {"autocast": ("fp16", "bf16")},
    "block_memory": {
        "size": (TINY, OTHER),
        "context": (6, 7),
        "batch_size": (3, 4),
        "precision": PRECISIONS,
        "attention": ATTENTIONS[:2],
    },
    "checkpointing": {"attention": ATTENTIONS[:2], "segment": (0, 1), **COUNTS},
    "data_parallel": {"model": MODELS, "compiled": {False: False, True: True}, "rounds": (1, 3), **COUNTS},
    "end_to_end": {
        "model": MODELS,
        "attention": ATTENTIONS,
        "compiled": {False: False, True: True},
        "mode": ("inference", "forward", "forward_backward", "train_step"),
        **COUNTS,
    },
    "flash": {
        "causal": (True, False),
        "compiled_call": {False: False, True: True},
        "rep": {20: 20, 200: 200},
        "implementation": ("plain", "tiled", "sdpa_flash"),
    },
    "kernel_profile": {
        "model": MODELS,
        "attention": ATTENTIONS,
        "compiled": {False: False, True: True},
        "mode": ("inference", "train_step"),
        **COUNTS,
    },
    "leaderboard": {
        "part": ("step", "rank"),
        "size": (TINY, OTHER),
        "context": (6, 7),
        "batch_size": (3, 4),
        "vocab_size": (31, 37),
        "recomputed": (0, 1, 2),
        "warmup": (1, 3),
        "steps": (1, 3),
    },
    "memory_profile": {"model": MODELS, "attention": ATTENTIONS, "mode": ("inference", "forward", "train_step")},
    "training_ladder": {"rungs": ("fp32", "autocast"), "part": ("steps", "training", "processes"), **COUNTS},
}
"""Values of a parameter with which different operators run, or, by value, the fact of FACTS."""
FACTS = {
    "backend": connected_by,
    "compiled": graphs,
    "compiled_call": graphs,
    "flash rep": first_rep,
}
"""Facts of other kinds, by parameter, or by experiment and parameter."""
TOGETHER_WITH = {
    "segment": {"size": OTHER},
    "recomputed": {"size": OTHER},
    "compiled": {"model": "tests.support.models:BlocksLM"},
}
"""Values of other parameters, where BASE would hide the effect."""
ON_GPU = {"flash rep"}


def cell_of(experiment, **changes):
    return make_cell(EXPERIMENTS[experiment], BASE[experiment] | changes)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_each_parameter_has_an_effect_to_be_seen(experiment):
    same = SAME_CODE.get(experiment, experiment)
    assert benchmark(same).measure is benchmark(experiment).measure
    where = "tests/benchmarks/test_parameters.py"
    assert same in BASE, f"{experiment} has no entry in BASE of {where}: add the parameters of a tiny cell"
    elsewhere = {parameter.removeprefix(f"{experiment} ") for parameter in ELSEWHERE}
    seen = {*VALUES.get(same, ()), *TOGETHER.get(same, [()])[0]}
    missing = {field.name for field in dataclasses.fields(EXPERIMENTS[experiment])} - seen - elsewhere
    assert not missing, f"{experiment} has no entry in VALUES of {where} for {missing}: add two that differ"


def cases(*, on_ranks):
    for experiment in sorted(EXPERIMENTS.keys() & VALUES.keys() & BASE.keys()):
        if (experiment in ON_RANKS) == on_ranks:
            others = [*(["together"] * (experiment in TOGETHER)), "repeated"]
            for parameter in (*VALUES[experiment], *others):
                marks = pytest.mark.gpu if f"{experiment} {parameter}" in ON_GPU else ()
                yield pytest.param(experiment, parameter, marks=marks)


def check(experiment, parameter, device):
    if parameter == "together":
        changes, fact, before, after = TOGETHER[experiment]
        assert fact(cell_of(experiment), device) == before
        assert fact(cell_of(experiment, **changes), device) == after
        return
    if parameter == "repeated":  # Otherwise different operators would prove nothing.
        first = all_operators(cell_of(experiment), device)
        operators.cache_clear()
        assert all_operators(cell_of(experiment), device) == first
        return
    values = VALUES[experiment][parameter]
    kind = EXPERIMENTS[experiment]
    others = {name: value for name, value in TOGETHER_WITH.get(parameter, {}).items() if hasattr(kind, name)}
    fact = FACTS.get(f"{experiment} {parameter}", FACTS.get(parameter, all_operators))
    facts = {value: fact(cell_of(experiment, **others, **{parameter: value}), device) for value in values}
    if isinstance(values, dict):
        assert facts == values
    else:
        assert all(one != other for one, other in itertools.combinations(facts.values(), 2))


@pytest.mark.parametrize(("experiment", "parameter"), [*cases(on_ranks=False)])
def test_a_parameter_changes_what_runs(experiment, parameter):
    check(experiment, parameter, torch.device("cuda" if f"{experiment} {parameter}" in ON_GPU else "cpu"))


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "parameter"), [*cases(on_ranks=True)])
@on_cpu_ranks  # On a GPU a turn's number of steps depends on its clock.
def test_a_parameter_changes_what_runs_on_several_ranks(device, experiment, parameter):
    check(experiment, parameter, device)
