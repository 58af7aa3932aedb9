"""Every parameter of every experiment changes what runs: operators, their shapes and types, graphs, calls, processes.

Nothing here looks at rows, which repeat the parameters whatever has run. A new parameter needs an entry in EFFECTS, and
a new experiment one in BASE too.
"""

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from cs336_systems.attention.tile_config import forward_tiles
from cs336_systems.benchmarks import data_parallel, flash_ablation, memory_profile
from cs336_systems.benchmarks.command_line import check_processes, device_of_rank, resolve_device
from cs336_systems.benchmarks.contest.trial import Trial
from cs336_systems.benchmarks.runner import measure_cells
from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.memory import Unavailable
from cs336_systems.parallel import process_group
from cs336_systems.parallel.process_group import Rank
from tests.support import own
from tests.support.operators import Operators
from tests.support.ranks import on_all_ranks

CPU = torch.device("cpu")
TINY = "tiny:d_model=8,d_ff=12,num_layers=1,num_heads=2"
OTHER = "other:d_model=12,d_ff=20,num_layers=2,num_heads=3"
TINY_SHAPE, OTHER_SHAPE = (8, 12, 1, 2), (12, 20, 2, 3)
OURS, FOREIGN = "cs336_systems.model:TransformerLM", "tests.support.models:ConvolutionLM"
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
    "flash_ablation": {"sequence": 9, "d": 6, "heads": 2, "precision": "fp32"},
    "fsdp": MODEL | ONE_STEP | {"rounds": 1},
    "kernel_profile": MODEL | ONE_STEP | {"mode": "inference"},
    "leaderboard": MODEL | {"part": "rank", "steps": 1},
    "memory_profile": MODEL,
    "optimizer_sharding": MODEL | ONE_STEP | {"rounds": 1},
}
"""Cells that take milliseconds."""
ON_RANKS = {name for name, kind in EXPERIMENTS.items() if any(x.name == "processes" for x in dataclasses.fields(kind))}


def only_the_first(experiment):
    """Has only the first contender take part, the floor where there is one: the others get the same parameters."""
    kind = EXPERIMENTS[experiment]
    if experiment not in ON_RANKS or not hasattr(kind, "contenders"):
        return contextlib.nullcontext()
    return mock.patch.object(kind, "contenders", kind.contenders[:1])


def measure(cell, device=CPU):
    """All that measuring a cell does, where this machine can."""
    benchmark = importlib.import_module(f"cs336_systems.benchmarks.{cell.name}")
    with only_the_first(cell.name):
        if cell.name == "memory_profile" and device == CPU:
            return run_what_is_followed(cell)
        return benchmark.measure(cell, device)


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
    """The operators that run while a cell is measured."""
    torch.manual_seed(0)
    with Operators() as seen:
        measure(cell, device)
    return seen


# What can be seen of a cell.


def seen(fact):
    """A fact about the operators that run."""
    return lambda cell, device: fact(operators(cell, device))


def named(name, fact):
    """A fact about the last call of an operator."""
    return seen(lambda found: fact(found.last(name)))


def times(name):
    """How often an operator runs."""
    return seen(lambda found: len(found.named(name)))


def which(*names):
    """Which of some operators run."""
    return seen(lambda found: {name for name in names if found.named(name)})


@seen
def model_shape(found):
    """d_model, d_ff, layers and heads of the model that ran last."""
    names = [call.name for call in found.calls]
    begin = max(index for index, name in enumerate(names) if name == "embedding")
    layers = names[begin:].count("silu")
    return found.last("embedding").inputs[0][1], found.last("silu").output[-1], layers, found.last("_softmax").output[1]


width_of_queries = seen(lambda found: found.named("bmm")[0].inputs[0][-1])


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


def forwards_of_a_job(cell, device):
    """Forward passes of a job of one cell, its rehearsal included."""
    with Operators() as found:
        list(measure_cells([cell], measure, device, seed=0))
    return len(found.named("embedding"))


def launched_as(cell, device):
    """The numbers of processes that a launch of the cell may have."""

    def fits(processes):
        with contextlib.suppress(ValueError):
            check_processes(cell, Rank(number=0, processes=processes, local_number=0, local_processes=processes))
            return True

    return [processes for processes in range(1, 6) if fits(processes)]


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


@seen
def share_of_the_head(found):
    """How many of the last unit's 256 numbers a rank updates, and whether it communicates."""
    return found.last("lerp_").output[0], bool(found.named("_reduce_scatter_base_"))


def contenders_checked(cell, device):
    """How many contenders have been asked to the start."""
    checked = []

    def check(trial, contender):
        checked.append(contender)
        raise Unavailable("asked")

    with (
        mock.patch.object(Trial, "check", check),
        pytest.raises(Unavailable, match="asked"),
    ):
        data_parallel.measure(cell, device)
    return len(checked)


def own_made(cell, device):
    """What of a user's own implementations has been made."""
    own.MADE.clear()
    measure(cell, device)
    return {kind.__name__ for kind in own.MADE}


def own_of(name):
    """The parameter that names a user's own implementations."""
    return {"implementation": Effect(own_made, {"": set(), f"mine=tests.support.own:{name}": {name}})}


def inputs_of_kernels(fact):
    """A fact about a query tensor of the ablation, whose kernels only a GPU runs."""
    return lambda cell, device: fact(flash_ablation.make_inputs(cell, device)[0])


def timed_kernels(cell, device):
    """How the tiles that the ablation times differ from the usual ones, the products' precision, and for how long."""
    usual, launched = forward_tiles(True, 64, 16384, 16384, True), []
    changed = flash_ablation.forward_without(cell.without, usual)

    def launch(*how):
        launched.append(how)
        return {}

    with (
        mock.patch.object(flash_ablation, "summarize"),
        mock.patch("triton.testing.do_bench", side_effect=lambda call, **_: call()) as bench,
    ):
        flash_ablation._time("forward", cell, flash_ablation.make_inputs(cell, device), launch, usual, changed)
    ((tiles, precision),) = set(launched)  # what is compared is what is timed
    differences = {name for name, value in vars(usual).items() if getattr(tiles, name) != value}
    return differences | {precision}, bench.call_args.kwargs["rep"]


def kernel_count(cell, device):
    """How many calls a GPU times."""
    (forward,) = [row.n for row in measure(cell, device) if row.metric == "forward"]
    return forward


@dataclass(frozen=True)
class Effect:
    """What is seen of a cell with one value of a parameter or another."""

    fact: Callable
    """From a cell and a device."""
    expected: dict
    """By value."""
    added: bool = False
    """Whether only the difference from the first one counts."""
    beside: dict = dataclasses.field(default_factory=dict)
    """Values of other parameters, where those of BASE would hide the effect."""
    together: bool = False
    """Whether it can be seen beside the others of OF_A_MODEL, which saves runs."""
    gpu: bool = False
    """Whether only a GPU has it."""


FP32, BF16 = torch.float32, torch.bfloat16
PRECISIONS = {"fp32": FP32, "bf16": BF16}
product_dtype = named("mm", lambda call: call.dtype)
ATTENTIONS = {
    "plain": {"_softmax"},
    "flash": {"attention_forward"},
    "sdpa": {"_scaled_dot_product_flash_attention_for_cpu"},
}
attention_used = which("_softmax", "amax", "attention_forward", "_scaled_dot_product_flash_attention_for_cpu")
parts = which("_log_softmax", "embedding_dense_backward", "_fused_adamw_")
LOSS, BACKWARD, UPDATE = {"_log_softmax"}, {"embedding_dense_backward"}, {"_fused_adamw_"}
MODES = {
    "inference": set(),
    "forward": LOSS,
    "forward_backward": LOSS | BACKWARD,
    "train_step": LOSS | BACKWARD | UPDATE,
}


def modes(*names):
    return Effect(parts, {name: MODES[name] for name in names})


OF_A_MODEL = {
    "size": Effect(model_shape, {TINY: TINY_SHAPE, OTHER: OTHER_SHAPE}, together=True),
    "context": Effect(named("embedding", lambda call: call.inputs[1][1]), {6: 6, 7: 7}, together=True),
    "batch_size": Effect(named("embedding", lambda call: call.inputs[1][0]), {3: 3, 4: 4}, together=True),
    "vocab_size": Effect(named("embedding", lambda call: call.inputs[0][0]), {31: 31, 37: 37}, together=True),
    "precision": Effect(product_dtype, PRECISIONS, together=True),
}
MODEL_CLASS = {"model": Effect(which("_softmax", "convolution"), {OURS: {"_softmax"}, FOREIGN: {"convolution"}})}
ATTENTION = {"attention": Effect(attention_used, ATTENTIONS)}
COMPILED = {"compiled": Effect(graphs, {False: False, True: True}, beside={"model": "tests.support.models:TableLM"})}
passes = times("embedding")
OF_RANKS = {
    **OF_A_MODEL,
    **MODEL_CLASS,
    "processes": Effect(launched_as, {2: [2], 4: [4]}),
    "rounds": Effect(passes, {1: 0, 3: 2}, added=True),
    "warmup": Effect(passes, {0: 0, 2: 4}, added=True),  # before steps are timed, and before phases are
    "steps": Effect(passes, {1: 0, 3: 2}, added=True),
}

EFFECTS = {
    "accumulation": {
        "accumulator": Effect(named("add_", lambda call: call.dtype), {"fp16": torch.float16, "bf16": BF16}),
        "addend": Effect(named("add_", lambda call: call.dtypes[1]), {"fp32": FP32, "fp16": torch.float16}),
        "cast": Effect(named("add_", lambda call: call.dtypes[1]), {False: FP32, True: BF16}),
        "additions": Effect(times("add_"), {3: 3, 5: 5}),
    },
    "all_reduce": {
        "backend": Effect(connected_by, {"gloo": "gloo", "nccl": "nccl"}),
        "processes": Effect(launched_as, {2: [2], 3: [3]}),
        "megabytes": Effect(named("allreduce_", lambda call: call.inputs[0].numel()), {1: 250_000, 2: 500_000}),
        "warmup": Effect(times("allreduce_"), {0: 0, 2: 2}, added=True),
        "steps": Effect(times("allreduce_"), {1: 0, 3: 2}, added=True),
    },
    "attention": {
        "sequence": Effect(named("_softmax", lambda call: call.output[-2:]), {9: (9, 9), 11: (11, 11)}),
        "d": Effect(width_of_queries, {5: 5, 7: 7}),
        "batch_size": Effect(named("_softmax", lambda call: call.output[0]), {2: 2, 3: 3}),
        "precision": Effect(named("_softmax", lambda call: call.dtype), PRECISIONS),
        "compiled": Effect(graphs, {False: False, True: True}),
        "warmup": Effect(times("_softmax"), {0: 0, 2: 2}, added=True),
        "steps": Effect(times("_softmax"), {1: 0, 3: 2}, added=True),
    },
    "autocast_dtypes": {"autocast": Effect(product_dtype, {"fp16": torch.float16, "bf16": BF16})},
    "block_memory": {
        "size": Effect(named("silu", lambda call: call.output[-1]), {TINY: 12, OTHER: 20}),
        "context": Effect(named("silu", lambda call: call.output[1]), {6: 6, 7: 7}),
        "batch_size": Effect(named("silu", lambda call: call.output[0]), {3: 3, 4: 4}),
        "precision": Effect(named("silu", lambda call: call.dtype), PRECISIONS),
        "attention": Effect(attention_used, {name: ATTENTIONS[name] for name in ("plain", "flash")}),
    },
    "checkpointing": {
        **OF_A_MODEL,
        "attention": Effect(attention_used, {name: ATTENTIONS[name] for name in ("plain", "flash")}),
        # Of two layers, in each of two steps: a segment's blocks run a second time, unless nothing is left of it.
        "segment": Effect(times("silu"), {0: 4, 1: 8, 2: 8}, beside={"size": OTHER}),
        "warmup": Effect(passes, {0: 0, 2: 2}, added=True),
        "steps": Effect(passes, {1: 0, 3: 2}, added=True),
    },
    "data_parallel": {
        **OF_RANKS,
        "compiled": Effect(graphs, {False: False, True: True}, beside={"model": "tests.support.models:BlocksLM"}),
        "tried": Effect(contenders_checked, {False: 14, True: 19}),
        **own_of("DDP"),
    },
    "end_to_end": {
        **OF_A_MODEL,
        **MODEL_CLASS,
        **ATTENTION,
        **COMPILED,
        "warmup": Effect(passes, {0: 1, 2: 3}),
        "steps": Effect(passes, {1: 1, 3: 3}),
        "mode": modes("inference", "forward", "forward_backward", "train_step"),
        "cold_start": Effect(forwards_of_a_job, {True: 3, False: 4}, beside={"steps": 3}),
    },
    "flash": {
        "sequence": Effect(named("_softmax", lambda call: call.output[-2:]), {9: (9, 9), 11: (11, 11)}),
        "d": Effect(width_of_queries, {6: 6, 8: 8}),
        "heads": Effect(named("_softmax", lambda call: call.output[1]), {1: 1, 3: 3}),
        "batch_size": Effect(named("_softmax", lambda call: call.output[0]), {1: 1, 3: 3}),
        "causal": Effect(which("masked_fill"), {True: {"masked_fill"}, False: set()}),
        "precision": Effect(named("_softmax", lambda call: call.dtype), PRECISIONS),
        "compiled_call": Effect(graphs, {False: False, True: True}),
        "rep": Effect(lambda cell, device: kernel_count(cell, device) > 500, {20: False, 200: True}, gpu=True),
        "implementation": Effect(
            attention_used, {"plain": {"_softmax"}, "tiled": {"amax"}, "sdpa_flash": ATTENTIONS["sdpa"]}
        ),
    },
    "flash_ablation": {
        "sequence": Effect(inputs_of_kernels(lambda q: q.shape[2]), {9: 9, 11: 11}),
        "d": Effect(inputs_of_kernels(lambda q: q.shape[3]), {6: 6, 8: 8}),
        "heads": Effect(inputs_of_kernels(lambda q: q.shape[1]), {2: 2, 3: 3}),
        "precision": Effect(inputs_of_kernels(lambda q: q.dtype), PRECISIONS),
        "rep": Effect(lambda *given: timed_kernels(*given)[1], {20: 20, 30: 30}),
        "without": Effect(
            lambda *given: timed_kernels(*given)[0],
            {
                "nothing": {None},
                "block_outer": {None, "block_m"},
                "block_inner": {None, "block_n"},
                "bf16x6": {"tf32x3"},
                "matrix_units": {"ieee"},
            },
        ),
    },
    "fsdp": OF_RANKS | own_of("FSDP"),
    "kernel_profile": {
        **OF_A_MODEL,
        **MODEL_CLASS,
        **ATTENTION,
        **COMPILED,
        "warmup": Effect(passes, {0: 0, 2: 2}, added=True),
        "steps": Effect(passes, {1: 0, 3: 4}, added=True),  # with and without the profiler
        "mode": modes("inference", "train_step"),
    },
    "leaderboard": {
        "part": Effect(share_of_the_head, {"step": (128, True), "rank": (128, False), "one_card": (256, False)}),
        "processes": Effect(launched_as, {1: [1], 2: [2]}),
        "size": Effect(named("silu", lambda call: call.output[-1]), {TINY: 12, OTHER: 20}),
        "context": Effect(named("embedding", lambda call: call.inputs[1][1]), {6: 6, 7: 7}),
        "batch_size": Effect(named("embedding", lambda call: call.inputs[1][0]), {3: 3, 4: 4}),
        "vocab_size": Effect(named("embedding", lambda call: call.inputs[0][0]), {31: 31, 37: 37}),
        # Of two layers with two norms, in three passes: the first, that of the step, and that without an update.
        "recomputed": Effect(times("rsqrt"), {0: 0, 1: 6, 2: 12}, added=True, beside={"size": OTHER}),
        "warmup": Effect(passes, {1: 0, 3: 2}, added=True),
        "steps": Effect(passes, {1: 0, 3: 4}, added=True),  # with and without an update
    },
    "memory_profile": {
        **OF_A_MODEL,
        **MODEL_CLASS,
        **ATTENTION,
        "mode": modes("inference", "forward", "train_step"),
    },
    "optimizer_sharding": OF_RANKS | own_of("ShardedOptimizer"),
}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_each_parameter_has_an_effect_to_be_seen(experiment):
    fields = {field.name for field in dataclasses.fields(EXPERIMENTS[experiment])}
    where = "tests/benchmarks/test_parameters.py"
    assert experiment in BASE, f"{experiment} has no entry in BASE of {where}: add the parameters of a tiny cell"
    missing = fields - EFFECTS.get(experiment, {}).keys()
    assert not missing, (
        f"{experiment} has no entry in EFFECTS of {where} for {missing}: add what shows that each counts"
    )
    assert EFFECTS[experiment].keys() == fields
    for parameter, effect in EFFECTS[experiment].items():
        seen = [str(value) for value in effect.expected.values()]
        assert len(set(seen)) > 1, parameter


def test_an_experiment_without_an_entry_fails_one_test(monkeypatch):
    monkeypatch.delitem(EFFECTS, "accumulation")
    with pytest.raises(
        AssertionError, match=r"accumulation has no entry in EFFECTS of \S+ for \{.*'cast'.*\}: add what"
    ):
        test_each_parameter_has_an_effect_to_be_seen("accumulation")
    assert "accumulation" not in {case.values[0] for case in cases(on_ranks=False)}


def cases(*, on_ranks):
    for experiment in sorted(EXPERIMENTS.keys() & EFFECTS.keys() & BASE.keys()):
        if (experiment in ON_RANKS) == on_ranks:
            for parameter, effect in EFFECTS[experiment].items():
                yield pytest.param(experiment, parameter, marks=pytest.mark.gpu if effect.gpu else ())


def changes(parameter, effect):
    """What makes one cell after another out of the base."""
    if not effect.together:
        return [{parameter: value} for value in effect.expected]
    values = [other.expected for other in OF_A_MODEL.values()]
    return [dict(zip(OF_A_MODEL, each, strict=True)) for each in zip(*values, strict=True)]


def check(experiment, parameter, device):
    effect = EFFECTS[experiment][parameter]
    base = BASE[experiment] | effect.beside
    cells = [make_cell(EXPERIMENTS[experiment], base | change) for change in changes(parameter, effect)]
    found = [effect.fact(cell, device) for cell in cells]
    if effect.added:
        found = [fact - found[0] for fact in found]
    assert found == list(effect.expected.values())


@pytest.mark.parametrize(("experiment", "parameter"), [*cases(on_ranks=False)])
def test_a_parameter_changes_what_runs(experiment, parameter):
    check(experiment, parameter, torch.device("cuda" if EFFECTS[experiment][parameter].gpu else "cpu"))


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "parameter"), [*cases(on_ranks=True)])
@on_all_ranks
def test_a_parameter_changes_what_runs_on_several_ranks(device, experiment, parameter):
    check(experiment, parameter, device)
