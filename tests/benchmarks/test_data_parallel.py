"""Data-parallel training in turns: what is measured, that no turn leaves a trace, and that ranks give up together."""

import contextlib
import gc
import weakref
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from cs336_systems.benchmarks import ranks
from cs336_systems.benchmarks.comparison import agreement, contender_runs
from cs336_systems.benchmarks.comparison.agreement import (
    available_on_all_ranks,
    fits_on_all_ranks,
    quick_collections,
    together,
)
from cs336_systems.benchmarks.comparison.builders import ours as builders
from cs336_systems.benchmarks.comparison.contender_runs import ContenderRuns
from cs336_systems.benchmarks.comparison.measure import contenders_of
from cs336_systems.benchmarks.runner import CompilerFailure
from cs336_systems.experiments.contender import Declared
from cs336_systems.experiments.data_parallel import CONTENDERS, PHASE_STEPS, PHASES, DataParallelTraining
from cs336_systems.measure.memory import Unavailable, is_out_of_memory
from cs336_systems.measure.timing import no_garbage_collection
from cs336_systems.parallel.data_parallel import NaiveDataParallel
from tests.support.faults import failures, tables_of
from tests.support.ranks import on_all_ranks
from tests.support.wrong_wrappers import Summing

ODD = "odd:d_model=24,d_ff=37,num_layers=3,num_heads=3"
CELL = DataParallelTraining(size=ODD, context=7, batch_size=3, vocab_size=101, rounds=1, steps=2)
OPTIONS = f"--size {ODD} --context 7 --batch-size 3 --vocab-size 101 --rounds 1 --steps 2"


LAUNCHES = [("cpu", False), *(pytest.param(("cuda", compiled), marks=pytest.mark.gpu) for compiled in (False, True))]


@pytest.fixture(scope="module", params=LAUNCHES, ids=str)
def rows(request, launch_ranks):
    """All rows of a launch, by wrapper, bucket size, kind and metric."""
    device, compiled = request.param
    measured = launch_ranks("data_parallel", device, *OPTIONS.split(), "--compiled", str(compiled))
    return {(row.wrapper, row.bucket_mb, row.kind, row.metric): row for row in measured}


def of(rows, metric, **wanted):
    return {
        key[:2]: row
        for key, row in rows.items()
        if key[3] == metric
        and row.status == "ok"
        and all(getattr(row, name) == value for name, value in wanted.items())
    }


def test_every_contender_is_timed_or_says_why_not(rows):
    steps = of(rows, "step")
    lost = {key[:2] for key, row in rows.items() if key[3] == "step" and row.status == "skipped"}
    planned = {(contender.name, str(contender.bucket_mb or "")) for contender in contenders_of(CELL)}
    assert steps.keys() | lost == planned
    assert len(planned) == len(CONTENDERS)
    on_gpu = next(iter(rows.values())).gpu_count > 0
    assert lost <= {("symmetric_memory", size) for size in ("100", "400")} if on_gpu else not lost


def test_phases_are_those_that_a_contender_has(rows):
    phases = {contender: {phase for phase in PHASES if contender in of(rows, phase)} for contender in of(rows, "step")}
    for (wrapper, _), measured in phases.items():
        assert measured == set(PHASES) - ({"synchronization"} if wrapper in ("none", "ddp", "ddp_view") else set())
    assert {row.n for row in of(rows, "backward").values()} == {PHASE_STEPS}


def test_bytes_and_messages_are_those_declared(rows):
    assert failures("contenders", tables_of("data_parallel", rows.values())) == []
    communicating = of(rows, "step").keys() - {("none", "")}
    assert of(rows, "communicated").keys() == communicating
    assert of(rows, "messages").keys() == {key for key in communicating if not key[0].startswith("ddp")}


def test_what_a_cpu_cannot_tell_is_said_once(rows):
    on_gpu = next(iter(rows.values())).gpu_count
    for metric in ("device_busy", "peak_memory"):
        assert on_gpu or rows["", "", "", metric].status == "skipped"
        assert of(rows, metric).keys() == (of(rows, "step").keys() if on_gpu else set())


def make_runs(device, **changes):
    torch.manual_seed(3)
    return ContenderRuns(replace(CELL, **changes), device)


def find(wrapper):
    return next(contender for contender in CONTENDERS if contender.name == wrapper)


def new(wrap, **traits):
    """A contender that is not in the list, of a builder in this file."""
    return Declared(name="new", title="new", builder=f"{__name__}:{wrap}", scheme="data parallel", **traits)


@pytest.mark.slow
@on_all_ranks
def test_no_contender_leaves_a_trace(device):
    """Each makes the mean of the gradients that ranks make alone, to the rounding, and the baseline at last those."""
    torch._dynamo.reset()
    whole = torch.compile
    started = []

    def start(contender, model, *rest, **hyperparameters):
        started.extend(weakref.ref(part) for part in model.modules())
        return comparison_start(contender, model, *rest, **hyperparameters)

    comparison_start = contender_runs.start
    with (
        mock.patch.object(torch, "compile", lambda call: whole(call, backend="aot_eager")),  # in seconds
        mock.patch.object(contender_runs, "start", start),
        no_garbage_collection(),
        contextlib.ExitStack() as stack,
    ):
        runs = make_runs(device, compiled=True)
        stack.enter_context(quick_collections())
        groups = len(dist.distributed_c10d._world.pg_map)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for contender in [*contenders_of(runs.cell)[1:], find("none")]:
                exact = 0 if contender.name == "none" else 2**-20
                with mock.patch.object(contender_runs, "TOLERANCE", exact):
                    try:
                        runs.check(contender)
                    except Unavailable:
                        assert contender.name == "symmetric_memory"
        left = [group.group_desc for group in dist.distributed_c10d._world.pg_map]
        assert len(left) == groups, left
        agreement.free_memory(device)
        assert len(started) >= len(CONTENDERS)
        # Names what keeps a module: nothing rewrites assertions on ranks.
        alive = [[type(holder) for holder in gc.get_referrers(module())] for module in started if module()]
        assert not alive, alive
        assert not any(isinstance(instance, DistributedDataParallel) for instance in gc.get_objects())


@on_all_ranks
def test_a_step_is_timed_by_the_slowest_rank(device):
    runs = make_runs(device)
    laps = [[1.0, 4.0], [2.0, 3.0]]
    with mock.patch.object(contender_runs, "time_steps", return_value=laps[dist.get_rank()]):
        assert runs.turn(find("naive")).seconds == [2.0, 4.0]


class Apart(NaiveDataParallel):
    def __init__(self, module):
        super().__init__(module)
        with torch.no_grad():
            module.final_norm.weight.mul_(1 + dist.get_rank())


def frozen(model, contender, cell, *, lr, **hyperparameters):
    """Learns what a small model has to learn, and nothing at the size that is timed."""
    return NaiveDataParallel(model), AdamW(model.parameters(), lr=lr if lr > 1e-3 else 0.0, **hyperparameters)


apart = partial(builders.whole, wrap=Apart)
summing = partial(builders.whole, wrap=Summing)


@pytest.mark.parametrize(
    ("wrap", "why"),
    [
        ("apart", "ranks start with different weights"),
        ("frozen", "it does not change the weights"),
        ("summing", "has a relative error of 1 against the mean over the ranks"),
    ],
)
@on_all_ranks
def test_what_is_wrong_at_the_size_that_is_timed_is_not_timed(device, wrap, why):
    runs = make_runs(device)
    with pytest.raises(AssertionError, match=why):
        runs._check_gradients(new(wrap))
    with pytest.raises(Unavailable, match="not timed: "):
        runs._check_gradients(new(wrap, foreign=True))


@on_all_ranks
def test_ours_that_trains_otherwise_than_one_process_is_a_bug(device):
    with pytest.raises(AssertionError, match=r"^after 3 steps the change of \S+ has a relative error of"):
        make_runs(device).check(new("summing"))


@on_all_ranks
def test_what_a_model_draws_is_no_error(device):
    runs = make_runs(device, model="tests.support.models:DropoutLM")
    runs.check(find("none"))
    runs.check(find("naive"))


def on_rank_1(error):
    def attempt(*_):
        if dist.get_rank() == 1:
            raise error
        return 7

    return attempt


@on_all_ranks
def test_all_ranks_give_up_when_one_runs_out_of_memory_or_cannot_compile(device):
    assert fits_on_all_ranks(lambda: 7, device) == 7
    with pytest.raises(MemoryError, match=r"^8 GB$"):
        fits_on_all_ranks(on_rank_1(torch.OutOfMemoryError("8 GB")), device)
    with pytest.raises(CompilerFailure, match=r"^PassManager::run failed$"):
        fits_on_all_ranks(on_rank_1(RuntimeError("PassManager::run failed")), device)
    with pytest.raises(ValueError, match="a bug"):
        fits_on_all_ranks(mock.Mock(side_effect=ValueError("a bug")), device)


@on_all_ranks
def test_all_ranks_do_without_what_one_cannot_have(device):
    with pytest.raises(Unavailable, match=r"^no way to rank 0$"):
        available_on_all_ranks(on_rank_1(Unavailable("no way to rank 0")))
    with mock.patch.object(ranks, "spare_memory", return_value=[9e9, 5e9][dist.get_rank()]):
        ranks.check_memory(int(5e9), device)
        with pytest.raises(Unavailable, match=r"^each process needs 5\.5 GB of memory, and 5\.0 GB are free$"):
            ranks.check_memory(int(5.5e9), device)


def test_memory_that_runs_out_among_others_is_no_result():
    with (
        mock.patch.object(dist, "get_rank", return_value=3),
        pytest.raises(RuntimeError, match=r"^rank 3 ran out of memory") as raised,
        together(),
    ):
        raise torch.OutOfMemoryError("8 GB")
    assert not is_out_of_memory(raised.value)


@on_all_ranks
def test_a_model_without_blocks_is_not_compiled_one_by_one(device):
    with pytest.raises(Unavailable, match=r"^ConvolutionLM has no `blocks`"):
        make_runs(device, compiled=True, model="tests.support.models:ConvolutionLM")
