"""Data-parallel training in turns: what is measured, that no turn leaves a trace, and that ranks give up together."""

import gc
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cs336_systems.benchmarks import data_parallel
from cs336_systems.benchmarks.contest import agreement
from cs336_systems.benchmarks.contest import trial as contest_trial
from cs336_systems.benchmarks.contest.agreement import (
    fits_on_all_ranks,
    quick_collections,
    together,
    wrap_on_all_ranks,
)
from cs336_systems.benchmarks.contest.contenders import Contender, contenders
from cs336_systems.benchmarks.contest.small_training import HYPERPARAMETERS, require_same_training
from cs336_systems.benchmarks.contest.trial import Trial, phases_of, run
from cs336_systems.experiments.data_parallel import PHASE_STEPS, DataParallelTraining
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.measure.memory import Unavailable, is_out_of_memory
from cs336_systems.measure.record import read_jobs
from cs336_systems.measure.timing import no_garbage_collection
from cs336_systems.parallel.data_parallel import DataParallel, NaiveDataParallel, average
from cs336_systems.parallel.ddp_equivalence import same_on_all_ranks
from tests.parallel.test_ddp_equivalence import Summing, Unsynchronized
from tests.samples import ROOT
from tests.support.ranks import on_all_ranks

ODD = "odd:d_model=24,d_ff=37,num_layers=3,num_heads=3"
CELL = DataParallelTraining(size=ODD, context=7, batch_size=3, vocab_size=101, tried=True, rounds=2, steps=2)
OPTIONS = "--size {size} --context 7 --batch-size 3 --vocab-size 101 --tried True --rounds 2 --steps 2"
PHASES = ("forward", "backward", "synchronization", "optimizer")


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def rows(request, tmp_path_factory):
    """All rows of a launch, by wrapper, bucket size, kind and metric."""
    if request.param == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    output = tmp_path_factory.mktemp("launch") / "rows.csv"
    command = [
        *[sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
        *["-m", "cs336_systems.benchmarks.data_parallel", "--device", request.param],
        *OPTIONS.format(size=ODD).split(),
        *["--output", str(output)],
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = read_jobs(DataParallelTraining, [output])
    return {(row.wrapper, row.bucket_mb, row.kind, row.metric): row for row in found}


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
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    planned = {tuple(contender.details.values()) for contender in contenders(CELL, optimizer)}
    assert steps.keys() | lost == planned
    assert len(planned) == 19
    on_gpu = next(iter(rows.values())).gpu_count > 0
    assert lost <= {("peer_memory", size) for size in ("100", "400")} if on_gpu else lost == {("priority", "100")}


def test_phases_are_those_that_a_contender_has(rows):
    phases = {contender: {phase for phase in PHASES if contender in of(rows, phase)} for contender in of(rows, "step")}
    without = {
        "none": {"synchronization"},
        "ddp": {"synchronization"},
        "ddp_view": {"synchronization"},
        "optimizer_overlap": {"optimizer"},
    }
    for (wrapper, _), found in phases.items():
        assert found == set(PHASES) - without.get(wrapper, set())
    assert {row.n for row in of(rows, "backward").values()} == {PHASE_STEPS}


def test_bytes_and_messages_are_counted(rows):
    layer = 4 * 24**2 + 3 * 24 * 37 + 2 * 24
    megabytes = 4 * (3 * layer + 2 * 101 * 24 + 24) / 1e6
    sent = {contender: row.mean for contender, row in of(rows, "communicated").items()}
    assert sent.keys() == of(rows, "step").keys() - {("none", "")}
    assert sent.pop(("bf16_wire", "100")) == pytest.approx(megabytes / 2)
    assert list(sent.values()) == pytest.approx([megabytes] * len(sent))
    messages = {contender: row.mean for contender, row in of(rows, "messages").items()}
    assert messages["naive", ""] == messages["overlapped", ""] == 9 * 3 + 3
    assert messages["flat", ""] == messages["bucketed", "100"] == messages["bucketed", "1"] == 1
    assert messages["small_last", "100"] == 2


def test_the_error_of_bf16_is_measured(rows):
    (row,) = of(rows, "gradient_error").items()
    assert row[0] == ("bf16_wire", "100")
    assert 2**-11 < row[1].mean < 2**-6


def test_what_a_cpu_cannot_tell_is_said_once(rows):
    if next(iter(rows.values())).gpu_count:
        assert of(rows, "device_busy").keys() == of(rows, "peak_memory").keys() == of(rows, "step").keys()
        assert {row.n for row in of(rows, "timeline", kind="optimizer").values()} == {200}
        communicating = {contender for contender, row in of(rows, "communication").items() if row.mean > 0}
        assert communicating == of(rows, "step").keys() - {("none", "")}
    else:
        for metric in ("device_busy", "peak_memory"):
            assert rows["", "", "", metric].status == "skipped"
            assert not of(rows, metric)


def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


def make_trial(device, **changes):
    torch.manual_seed(3)
    return Trial(replace(CELL, **changes), device)


def find(trial, wrapper):
    return next(found for found in contenders(trial.cell, trial.optimizer) if found.wrapper == wrapper)


@on_all_ranks
def test_no_contender_leaves_a_trace(device):
    """Each makes the mean of the gradients that ranks make alone, to the rounding, and the floor at last those."""
    torch._dynamo.reset()
    whole = torch.compile
    with mock.patch.object(torch, "compile", lambda call: whole(call, backend="aot_eager")):  # in seconds
        trial = make_trial(device, compiled=True)
    floor, *others = contenders(trial.cell, trial.optimizer)
    groups = len(dist.distributed_c10d._world.pg_map)
    with torch._dynamo.config.patch(error_on_recompile=True), quick_collections(), no_garbage_collection():
        for contender in others:
            try:
                trial.check(contender)
            except Unavailable:
                assert contender.wrapper in ("priority", "peer_memory")
                continue
            assert same_on_all_ranks(gradients(trial.model)), contender
            assert trial.errors[contender].worst <= (2**-6 if contender.wrapper == "bf16_wire" else 2**-20), contender
        trial.check(floor)
        assert trial.errors[floor].worst == 0
        assert len(dist.distributed_c10d._world.pg_map) == groups
        assert not any(parameter._post_accumulate_grad_hooks for parameter in trial.model.parameters())
        assert not any(isinstance(found, DistributedDataParallel) for found in gc.get_objects())


@on_all_ranks
def test_a_step_is_timed_by_the_slowest_rank(device):
    trial = make_trial(device)
    laps = [[1.0, 4.0], [2.0, 3.0]]
    with mock.patch.object(contest_trial, "time_steps", return_value=laps[dist.get_rank()]):
        assert trial.turn(find(trial, "naive")).seconds == [2.0, 4.0]


class Forgetful(DataParallel):
    """One weight's gradient stays at home."""

    def _average_gradients(self):
        for name, parameter in zip(self._names, self._trainable, strict=True):
            if name != "final_norm.weight":
                average(parameter.grad).wait()


class Apart(NaiveDataParallel):
    """Each rank has weights of its own."""

    def __init__(self, module):
        super().__init__(module)
        with torch.no_grad():
            module.final_norm.weight.mul_(1 + dist.get_rank())


@pytest.mark.parametrize("wrap", [Unsynchronized, Summing, Forgetful])
@on_all_ranks
def test_what_does_not_average_gradients_is_not_timed(device, wrap):
    trial = make_trial(device)
    contender = Contender(wrapper="new", wrap=wrap)
    with pytest.raises(AssertionError, match=r"^its gradient of \S+ is off from the mean over the ranks by"):
        trial.check(contender)
    rows = data_parallel_rows(trial, replace(contender, foreign=True))
    assert [(row.metric, row.status) for row in rows] == [("step", "skipped")]
    assert rows[0].message.startswith("not timed: its gradient of ")


def data_parallel_rows(trial, contender):
    """What the experiment reports of a contender beside the floor."""
    both = find(trial, "none"), contender
    with (
        mock.patch.object(data_parallel, "Trial", return_value=trial),
        mock.patch.object(data_parallel, "contenders", return_value=both),
    ):
        return [row for row in data_parallel.measure(trial.cell, trial.device) if row.details == contender.details]


@on_all_ranks
def test_what_begins_with_other_weights_or_leaves_them_is_not_timed(device):
    trial = make_trial(device)
    with pytest.raises(AssertionError, match="ranks begin with different weights"):
        trial.check(Contender(wrapper="new", wrap=Apart))
    for wrapper in ("none", "naive"):
        with (
            mock.patch.object(trial.optimizer, "step"),
            pytest.raises(AssertionError, match="it leaves weights as they are"),
        ):
            trial.check(find(trial, wrapper))


@on_all_ranks
def test_what_a_model_draws_is_no_error(device):
    trial = make_trial(device, model="tests.support.models:DropoutLM")
    trial.check(find(trial, "naive"))
    cell = FullyShardedTraining(model="tests.support.models:DropoutLM")
    require_same_training(
        lambda model, tokens: (
            phases_of(model, tokens, "fp32", torch.optim.AdamW(model.parameters(), **HYPERPARAMETERS)),
            lambda: dict(model.named_parameters()),
        ),
        cell,
        device,
        alone=True,
        foreign=False,
    )


@on_all_ranks
def test_the_error_is_that_of_the_mean_of_all_ranks(device):
    trial = make_trial(device)
    contender = find(trial, "bf16_wire")
    trial.check(contender)
    found = torch.cat([gradient.flatten() for gradient in gradients(trial.model)]).double().cpu()
    trial.optimizer.zero_grad()
    everyone = [None] * dist.get_world_size()
    with mock.patch.object(trial.optimizer, "step"):  # what moved by 1e-6 has about the same gradients
        run(trial._phases(find(trial, "none"), trial.model))
    dist.all_gather_object(everyone, torch.cat([own.flatten() for own in gradients(trial.model)]).double().cpu())
    mean = sum(everyone) / len(everyone)
    assert trial.errors[contender].overall == pytest.approx(((found - mean).norm() / mean.norm()).item(), rel=1e-2)
    assert 2**-11 < trial.errors[contender].overall < trial.errors[contender].worst < 2**-6


def on_rank_1(error):
    def attempt(*_):
        if dist.get_rank() == 1:
            raise error
        return 7

    return attempt


@on_all_ranks
def test_all_ranks_give_up_when_one_runs_out_of_memory(device):
    assert fits_on_all_ranks(lambda: 7, device) == 7
    with pytest.raises(MemoryError, match=r"^8 GB$"):
        fits_on_all_ranks(on_rank_1(torch.OutOfMemoryError("8 GB")), device)
    with pytest.raises(ValueError, match="a bug"):
        fits_on_all_ranks(mock.Mock(side_effect=ValueError("a bug")), device)


@on_all_ranks
def test_all_ranks_do_without_a_wrapper_that_one_cannot_have(device):
    model = nn.Linear(5, 3).to(device)
    refused = Contender(wrapper="new", wrap=on_rank_1(Unavailable("no way to rank 0")))
    with pytest.raises(Unavailable, match=r"^no way to rank 0$"):
        wrap_on_all_ranks(refused, model, 0, 0)
    large = Contender(wrapper="new", wrap=lambda model: model, copies=2)
    with mock.patch.object(agreement, "spare_memory", return_value=[9e9, 5e9][dist.get_rank()]):
        assert wrap_on_all_ranks(large, model, int(2e9), int(1e9)) is model
        with pytest.raises(Unavailable, match=r"^each process needs 5\.5 GB of memory, and 5\.0 GB are free$"):
            wrap_on_all_ranks(large, model, int(2e9), int(1.5e9))


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
        make_trial(device, compiled=True, model="tests.support.models:ConvolutionLM")
