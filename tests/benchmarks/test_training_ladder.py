"""The training ladder: its rungs do the same work, so do a step's parts alone, and a rung lost costs no other."""

import dataclasses
import math
import statistics
import time
from itertools import groupby, pairwise

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cs336_systems.accounting.transformer import matmul_flops
from cs336_systems.benchmarks import training_ladder
from cs336_systems.benchmarks.ladder import learning, parts_alone, steps, sustained
from cs336_systems.experiments.training_ladder import (
    ALONE,
    CHECKPOINT,
    FIRST,
    LADDER,
    LEFT_OUT,
    RUNGS,
    TOP,
    TrainingLadder,
    rungs_of,
)
from cs336_systems.measure.memory import Unavailable

CPU = torch.device("cpu")
CELL = TrainingLadder(size="nano", batch_size=2, context=16, vocab_size=40, warmup=0, steps=2)
HERE = [rung.name for rung in ALONE if not rung.graph and rung.passes != "compiled"]


def by_rung(rows, metric):
    return {row.details["rung"]: row for row in rows if row.metric == metric}


def test_each_rung_adds_one_change_and_each_is_left_out_once():
    def changes(one, other):
        named = ("name", "title", "without")
        return [
            f.name for f in dataclasses.fields(one) if f.name not in named and vars(one)[f.name] != vars(other)[f.name]
        ]

    for before, rung in pairwise(LADDER):
        changed = changes(before, rung)
        assert len(changed) == 1, f"rung {rung.name} differs from {before.name} in {changed}; allowed: one change"
    assert all(len(changes(TOP, rung)) == 1 for rung in (CHECKPOINT, *LEFT_OUT))
    assert {rung.without for rung in LEFT_OUT} <= {rung.name for rung in LADDER}
    assert [rung.name for rung in rungs_of("graph,fp32,graph")] == ["graph", "fp32"]
    with pytest.raises(ValueError, match="rungs is 'fp16'; allowed, separated by commas: ladder, all"):
        rungs_of("fp16")


def test_rows_say_what_ran_and_why_something_did_not(launch):
    (rows,) = launch(
        "training_ladder",
        *("--size", "nano", "--context", "16", "--batch-size", "2", "--vocab-size", "40", "--steps", "1"),
        *("--rungs", "no_graph,graph"),
    )
    assert rows["step"].status in ("ok", "skipped")
    assert rows["order"].value == "interleaved"
    measured = training_ladder.measure(
        dataclasses.replace(CELL, rungs=",".join([*HERE, "graph", "fp8", "data_parallel"])), CPU
    )
    times = by_rung(measured, "step")
    assert {name for name, row in times.items() if row.status == "ok"} == set(HERE)
    assert times["graph"].message == times["fp8"].message == "a CUDA graph needs a CUDA device"
    assert times["data_parallel"].message == "a wrapper needs several processes; launch them with torchrun"
    weights, queries = by_rung(measured, "weights_dtype"), by_rung(measured, "attention_dtype")
    types = {"fp32": ("float32", "float32"), "autocast": ("float32", "bfloat16"), "bf16": ("bfloat16", "bfloat16")}
    found_types = {name: (weights[name].value, queries[name].value) for name in HERE}
    assert found_types == {name: types[RUNGS[name].precision] for name in HERE}
    alone = {row.details["work"]: row for row in measured if row.metric == "floor"}
    assert alone.pop("FP8 matmuls").message == "a CUDA graph needs a CUDA device"
    assert alone.keys() == {"matmuls", "attention", "update", "norms and elementwise"}
    assert min(row.mean for row in alone.values()) > 0


@pytest.mark.numeric
@pytest.mark.parametrize("rung", [*(RUNGS[name] for name in HERE[1:]), CHECKPOINT.apart], ids=lambda rung: rung.name)
def test_gradients_and_updates_are_those_of_fp32(rung):
    exact = learning.gradients(FIRST, CELL, CPU)
    error = (learning.gradients(rung, CELL, CPU) - exact).norm() / exact.norm()
    assert 1e-4 < error < 0.02  # not fp32, and no worse than bf16
    after = {}
    for each in (FIRST, rung):
        step, _ = learning.train(each, CELL, CPU, seed=0, steps=3)
        after[each] = torch.cat([p.detach().float().flatten() for p in step.model.parameters()])
    moved = after[FIRST] - after[rung]
    # Three steps of at most the learning rate, where a gradient's sign is not sure; and bf16's rounding.
    assert moved.abs().max() < 6 * steps.LEARNING_RATE + 2**-8 * after[FIRST].abs().max()
    assert moved.norm() < 0.01 * after[FIRST].norm()


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["masters", "fused"])
def test_masters_keep_updates_that_bf16_loses(monkeypatch, name):
    monkeypatch.setattr(steps, "LEARNING_RATE", 1e-6)
    step, _ = learning.train(RUNGS[name], CELL, CPU, seed=0, steps=3)
    ((weight, master), *_) = step.update.__self__.masters().items()
    assert weight.dtype == torch.bfloat16
    assert not torch.equal(master, weight.float())


@pytest.mark.numeric
@pytest.mark.gpu
@pytest.mark.parametrize("rung", [rung for rung in ALONE if rung.graph and not rung.fp8], ids=lambda r: r.name)
def test_a_replayed_step_trains_as_one_call_by_call(rung):
    cuda = torch.device("cuda")
    replayed, loss = learning.train(rung, CELL, cuda, seed=0, steps=8)
    eager, same = learning.train(rung.apart, CELL, cuda, seed=0, steps=8)
    assert replayed.captured is not None
    assert replayed.captured.graph is not None
    assert loss == pytest.approx(same, rel=1e-3)
    for one, other in zip(replayed.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


def test_a_rung_without_memory_costs_no_other(monkeypatch):
    class Step(steps.RungStep):
        def __init__(self, rung, cell, tokens):
            if rung.name == "autocast":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            super().__init__(rung, cell, tokens)

    monkeypatch.setattr(training_ladder, "RungStep", Step)
    rows = training_ladder.measure(dataclasses.replace(CELL, rungs="fp32,autocast,attention"), CPU)
    times = by_rung(rows, "step")
    assert {name: row.status for name, row in times.items()} == {"fp32": "ok", "autocast": "oom", "attention": "ok"}
    assert times["autocast"].unit == "ms"


def test_rungs_take_turns_and_long_steps_are_few(monkeypatch):
    ran = []

    class Step(steps.RungStep):
        def __call__(self):
            ran.append(self.rung.name)

    monkeypatch.setattr(training_ladder, "RungStep", Step)
    rungs = (FIRST, RUNGS["attention"])
    training_ladder.measure_group(rungs, dataclasses.replace(CELL, steps=6), CPU)
    turns = [name for name, _ in groupby(ran)]
    assert turns[: 2 * training_ladder.ROUNDS] == ["fp32", "attention"] * training_ladder.ROUNDS
    monkeypatch.setattr(training_ladder, "LONGEST_S", 0.0)
    step = Step(FIRST, CELL, torch.zeros(2, 17, dtype=torch.long))
    assert len(training_ladder.take_turn(step, 9, CPU).laps) == training_ladder.LEAST_STEPS
    assert len(training_ladder.take_turn(step, 2, CPU).laps) == 2


def test_a_step_is_timed_once_it_has_settled(monkeypatch):
    monkeypatch.setattr(sustained, "WINDOW_S", 0.08)
    ran, counter = [], []

    def step():
        ran.append(0.002 if len(ran) < 30 else 0.005)
        time.sleep(ran[-1])

    def joules(device):
        counter.append(sum(ran))
        return counter[-1]

    monkeypatch.setattr(sustained, "joules_so_far", joules)
    turn = sustained.sustained_turn(step, CPU)
    assert len(turn.first) == sustained.FIRST_STEPS
    assert statistics.median(turn.first) < 0.0035 < 0.005 <= statistics.median(turn.laps)
    assert turn.joules == pytest.approx(0.005)


def test_fp8_needs_a_newer_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(Unavailable, match=r"FP8 matmuls need an NVIDIA GPU of compute capability 8\.9"):
        steps.require(RUNGS["fp8"], torch.device("cuda"))


@pytest.mark.parametrize("kind", [parts_alone.ProductTensors, parts_alone.Fp8ProductTensors])
def test_the_matmuls_alone_are_those_of_a_step(kind):
    step = TOP.setting({"size": "nano", "batch_size": 2, "context": 16, "vocab_size": 40})
    with FlopCounterMode(display=False) as counted:
        parts_alone.time_matmuls(step, CPU, kind)
    once = 3 * matmul_flops(step.shape, step.vocab_size, step.tokens)
    assert counted.get_total_flops() == (parts_alone.WARMUP + parts_alone.REPEATS) * once


@pytest.mark.parametrize("part", [parts_alone.matmuls, parts_alone.attention, parts_alone.update])
def test_a_part_is_timed_once_per_block(part, monkeypatch):
    monkeypatch.setattr(parts_alone, "REPEATS", 1)

    def calls(layers):
        size = f"odd:d_model=48,d_ff=64,num_layers={layers},num_heads=2"
        step = TOP.setting({"size": size, "batch_size": 2, "context": 16, "vocab_size": 40})
        with torch.profiler.profile() as profile:
            list(part(step, CPU))
        return len(profile.events())

    one, two, three = map(calls, (1, 2, 3))
    assert three - two == two - one > 0


def test_the_data_have_the_entropy_that_is_said():
    chain = learning.MarkovChain(12)
    tokens = chain.batches(4, 500, 50, seed=1).flatten(0, 1)
    pairs = torch.zeros(12, 12).index_put_((tokens[:, :-1], tokens[:, 1:]), torch.ones(()), accumulate=True)
    shares = pairs / pairs.sum()
    conditional = pairs / pairs.sum(dim=1, keepdim=True)
    entropy = -(shares * conditional.clamp(min=1e-9).log()).sum().item()
    assert entropy == pytest.approx(learning.chain_entropy(), rel=0.01)
    assert (conditional > 0).sum(dim=1).eq(len(learning.SUCCESSORS)).all()
    assert learning.chain_entropy() < math.log(4)


def test_trainings_learn_and_repeat_their_bits(monkeypatch):
    cell = dataclasses.replace(CELL, batch_size=8)
    _, loss = learning.train(RUNGS["fused"], cell, CPU, seed=3, steps=60)
    assert learning.chain_entropy() < loss < 0.6 * math.log(cell.vocab_size)
    assert learning.identical(RUNGS["fused"], CELL, CPU)
    usual, seeds = learning.train, iter((0, 1))
    monkeypatch.setattr(learning, "train", lambda *given, seed, **more: usual(*given, seed=next(seeds), **more))
    assert not learning.identical(RUNGS["fused"], CELL, CPU)
