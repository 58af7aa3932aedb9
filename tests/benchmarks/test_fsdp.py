"""Training in turns, sharded and not: what is measured, that all contenders train the same, and what does not fit."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch.distributed.tensor import DTensor

from cs336_systems.benchmarks import ranks
from cs336_systems.benchmarks.comparison import gathers
from cs336_systems.benchmarks.comparison.contender_runs import SLACK, ContenderRuns
from cs336_systems.benchmarks.comparison.measure import measure
from cs336_systems.benchmarks.comparison.profile import Profile, profile_rows
from cs336_systems.benchmarks.comparison.training import run
from cs336_systems.experiments.data_parallel import BASELINE, PHASE_STEPS, PHASES
from cs336_systems.experiments.fsdp import CONTENDERS, FullyShardedTraining
from cs336_systems.measure.overlap import ALL_GATHER, REDUCE_SCATTER, DeviceEvent
from tests.support.ranks import on_all_ranks

ODD = "odd:d_model=24,d_ff=37,num_layers=3,num_heads=3"
CELL = FullyShardedTraining(size=ODD, context=7, batch_size=3, vocab_size=101, rounds=1, warmup=1, steps=2)
OPTIONS = f"--size {ODD} --context 7 --batch-size 3 --vocab-size 101 --rounds 1 --warmup 1 --steps 2 "
OPTIONS += "--implementation mine=tests.support.own:FSDP"
UNITS = {"fsdp": 7 * 3 + 2, "fsdp_blocks": 3 + 2, "fully_shard": 3 + 1, "fully_shard_tuned": 3 + 1}


def test_a_launch_measures_what_is_planned(device, launch_ranks):
    measured = launch_ranks("fsdp", device, *OPTIONS.split())
    rows = {(row.wrapper, row.kind, row.metric): row for row in measured}
    contenders = {contender.name for contender in CONTENDERS} | {"mine"}
    assert {wrapper for wrapper, _, metric in rows if metric == "step"} == contenders
    for wrapper in contenders:
        phases = {phase for phase in PHASES if (wrapper, "", phase) in rows}
        without = {"synchronization"} if wrapper in (BASELINE, "fully_shard", "fully_shard_tuned") else set()
        assert phases == set(PHASES) - without
        assert rows[wrapper, "", "step"].n == 2
        assert rows[wrapper, "", "backward"].n == PHASE_STEPS
    if device == "cpu":
        return
    for wrapper, units in UNITS.items():
        for metric in ("gather_begins", "gather_ends", "needed", "begins"):
            assert rows[wrapper, "", metric].n == units
        for kind in ("all_gather", "reduce_scatter"):
            assert rows[wrapper, kind, "communication"].mean > 0
        assert rows[wrapper, "", "between_steps"].mean < rows[BASELINE, "", "between_steps"].mean


@on_all_ranks
def test_bf16_is_that_of_the_weights_where_they_are_sharded(device):
    cell = replace(CELL, precision="bf16")
    runs = ContenderRuns(cell, device)
    for contender in CONTENDERS:
        runs.check(contender)  # the launch's is fp32
        seen = []
        training = runs._start(contender)
        model = training.model
        model.final_norm.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0].dtype))
        model.lm_head.register_forward_hook(lambda *parts, seen=seen: seen.append(parts[-1].dtype))
        training.phases["forward"]()
        residual = torch.float32 if contender.autocasts else torch.bfloat16
        assert seen == [residual, torch.bfloat16], contender.name


@on_all_ranks
def test_what_does_not_fit_or_cannot_be_sharded_is_a_row_with_a_reason(device):
    needed = {contender.name: contender.needed(CELL, on_gpu=device.type == "cuda") for contender in CONTENDERS}
    least = needed.pop("fsdp")
    between = SLACK * (least + min(needed.values())) / 2
    with mock.patch.object(ranks, "spare_memory", return_value=between):
        rows = measure(CELL, device)
    lost = {row.details["wrapper"]: row.message for row in rows if row.metric == "step" and row.status == "skipped"}
    assert lost.keys() == needed.keys()
    assert all("GB are free" in message for message in lost.values())
    assert [row.details["wrapper"] for row in rows if row.metric == "step" and row.status == "ok"] == ["fsdp"]
    rows = measure(replace(CELL, model="tests.support.models:ConvolutionLM"), device)
    lost = {row.details["wrapper"]: row.message for row in rows if row.metric == "step" and row.status == "skipped"}
    assert lost.keys() == {"fsdp_blocks", "fully_shard", "fully_shard_tuned"}
    assert all(message.startswith("ConvolutionLM has no `blocks`") for message in lost.values())


@on_all_ranks
def test_compiled_blocks_are_gathered_as_a_whole(device):
    whole = torch.compile
    with mock.patch.object(torch, "compile", lambda call: whole(call, backend="aot_eager")):  # in seconds
        rows = measure(replace(CELL, compiled=True), device)
    steps = {row.details["wrapper"]: row for row in rows if row.metric == "step"}
    lost = {wrapper: row.message for wrapper, row in steps.items() if row.status == "skipped"}
    assert steps.keys() == {contender.name for contender in CONTENDERS}
    assert lost == {"fsdp": "a compiled block gathers all its layers at once"}


def numbers_there(unit):
    return sum((weight.to_local() if isinstance(weight, DTensor) else weight).numel() for weight in unit.parameters())


@on_all_ranks
def test_marks_are_before_and_after_the_wait_for_each_unit(device):
    runs = ContenderRuns(CELL, device)
    for contender in CONTENDERS:
        if contender.name not in UNITS:
            continue
        training = runs._start(contender)
        run(training.phases)
        units, seen = gathers.units_of(training), []

        def profile(phases, device):
            phases["forward"]()
            return Profile(events=[], milliseconds=1.0, launches=0)

        with (
            mock.patch.object(gathers, "profile_step", profile),
            mock.patch.object(gathers, "mark", lambda unit, _, seen=seen: seen.append((unit, numbers_there(unit)))),
        ):
            gathers.forward_rows(training.phases["forward"], units, device, {})
        run(training.phases)
        assert len(units) == UNITS[contender.name]
        assert [unit for unit, _ in seen] == [unit for unit in units for _ in range(2)]
        assert all(before < after for (_, before), (_, after) in zip(seen[::2], seen[1::2], strict=True))


def event(name, start, end):
    return DeviceEvent(name=name, start=start, end=end)


GATHER, MARK = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "at::cuda::spin_kernel(long)"
FORWARD = [
    *[event(GATHER, 1, 4), event(GATHER, 4, 6)],
    *[event(MARK, 0, 0.1), event(MARK, 4, 4.1), event("sm90_gemm", 4.1, 8), event(MARK, 8, 8.1), event(MARK, 8.1, 8.2)],
    event("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 2, 9),
]


def test_a_forward_pass_is_described_unit_by_unit():
    def described(events):
        rows = gathers.describe_forward(events, 10.0, 2, {"wrapper": "fsdp"})
        return {row.metric: row.samples or row.mean for row in rows}

    whole = {"forward_length": 10.0, "forward_gathers": 5.0, "forward_hidden": pytest.approx(1.9)}
    series = {"gather_begins": "1 4", "gather_ends": "4 6", "needed": "0 8", "begins": "4 8.1"}
    assert described(FORWARD) == whole | series
    assert described([*FORWARD, event(GATHER, 6, 6)]) == whole
    for_backward = event(GATHER, 9, 9.5)
    assert described([*FORWARD, for_backward]) == whole | series | {"forward_gathers": 5.5}


def test_a_profile_tells_collectives_apart():
    copy_to_peer = event("Memcpy PtoP (Device -> Device)", 9, 10)
    step = Profile(events=[*FORWARD, copy_to_peer], milliseconds=10.0, launches=0)
    rows = profile_rows(step, {"wrapper": "fsdp"}, apart=(ALL_GATHER, REDUCE_SCATTER))
    values = {(row.metric, row.details.get("kind", "")): row.mean for row in rows}
    assert [values["communication", kind] for kind in ("", "all_gather", "reduce_scatter")] == [9, 5, 7]
    assert values["hidden", "all_gather"] == pytest.approx(1.9 + 0.1)  # here marks compute
    assert values["timeline", "communication"] == pytest.approx(0.1)
    assert values["timeline", "reduce_scatter"] == pytest.approx(0.7)
    assert (values["device_busy", ""], values["timeline_length", ""]) == (pytest.approx(9.1), 10)
    together = {(row.metric, row.details.get("kind", "")): row.mean for row in profile_rows(step, {})}
    kinds = {kind for metric, kind in together if metric == "timeline"}
    assert kinds == {"compute", "communication", "optimizer"}
    assert together["communication", ""] == 9
    assert together["timeline", "communication"] == pytest.approx(0.9)
