"""Answers on rows that no approved report has: lost, doctored or made up."""

import json
from dataclasses import replace
from math import isnan

import pandas
import pytest

from cs336_systems.accounting.leaderboard import PARAMETERS
from cs336_systems.compare.speed import FASTER, SAME, SLOWER
from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.experiments.training_ladder import TrainingLadder
from cs336_systems.fit.recorded import PATH
from cs336_systems.record.measurement import WHOLE_CELL
from scripts.answers import (
    benchmarking_mixed_precision,
    benchmarking_script,
    conclusion,
    ddp_bucketed_benchmarking,
    distributed_communication_single_node,
    flash_benchmarking,
    memory_profiling,
    optimizer_state_sharding,
    training_ladder,
    training_leaderboard,
)
from scripts.answers.fsdp import against_pytorch
from scripts.answers.gradient_checkpointing import bests, segments
from scripts.calibration.rates import facts
from scripts.checks.elsewhere import both_instruments_agree
from scripts.views.attention_times import call_table
from scripts.views.comparison import contenders
from scripts.views.data import frame, one, one_model, select
from scripts.views.optimizer_sharding import memory, peaks
from scripts.views.training_ladder import floor_table, rung_table
from scripts.views.verdicts import Speed, against
from tests.support.faults import law_checks, put, recorded, rows
from tests.support.tables import EVEN, GPU, UNEVEN, comparison, plain, table, took, training

LADDER = {"size": "2.7B", "context": 1024, "batch_size": 4}
SHARDED = {"contender": "sharded", "precision": "fp32", "processes": 2}


def changed(*faults):
    tables = recorded()
    for fault in faults:
        tables = fault(tables)
    return tables


def ranks(kind, *cells, **setting):
    """The contenders of made-up training on several ranks."""
    details = ("wrapper", "bucket_mb") if kind is DataParallelTraining else ("wrapper",)
    return contenders(kind, training(kind, details, cells, **setting))


def test_a_wrong_sum_is_reported():
    wrong = put(rows("all_reduce", metric="wrong_numbers", backend="nccl", processes=4, megabytes=100), mean=125.0)
    assert [distributed_communication_single_node.answers(each)["exact"] for each in (recorded(), changed(wrong))] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("metrics", "waits", "host_bound", "time"),
    [
        # A replayed graph has the device's time, whether or not the calls wait for the host.
        ({"forward_backward": 0.3, "graph": 0.28, "host": 100.0}, False, False, 0.28),
        ({"forward_backward": 0.3, "graph": 0.05, "host": 290.0}, True, False, 0.05),
        # Without one, the calls do, unless they wait.
        ({"forward_backward": 0.42}, True, True, 0.42),
        ({"forward_backward": 0.31, "host": 100.0}, False, False, 0.31),
    ],
)
def test_whose_time_a_call_is(metrics, waits, host_bound, time):
    passes = {name: [ms] * 3 for name, ms in ({"forward": 0.1, "backward": 0.2} | metrics).items()}
    (cell,) = call_table(table("flash", GPU, {Flash(sequence=8192): passes})).to_dict("records")
    assert (cell["waits"], cell["host_bound"], cell["median"]) == (waits, host_bound, pytest.approx(time))


@pytest.mark.parametrize(
    ("gain", "number", "what"), [(1.6, "1.60×", "bf16 over fp32"), (0.4, "2.50×", "fp32 over bf16")]
)
def test_the_tile_names_the_faster_precision_first(gain, number, what):
    row = {"label": "nano", "context": 128, "gain": gain}
    (tile,) = benchmarking_mixed_precision.tiles({"ends": [row, row], "clock": ""})
    assert (str(tile.number), str(tile.meaning)) == (
        number,
        f"speedup of {what} (forward and backward of nano, context 128)",
    )


def test_the_tile_names_the_faster_attention_first():
    speeds = {"against plain": Speed(0.8, SLOWER), "against sdpa": Speed(None)}
    gained = {"label": "nano", "context": 128, "precision": "bf16", **speeds}
    (tile,) = flash_benchmarking.tiles({"board": None, "gained": gained})
    meaning = "speedup of plain attention over our attention in training nano at context 128 (bf16)."
    assert (str(tile.number), plain(tile.meaning)) == ("1.25×", meaning)


@pytest.mark.parametrize(("bound", "who"), [([True, True], "Host-bound"), ([True, False], "Device-bound")])
def test_steps_vary_even_if_all_are_host_bound(bound, who):
    steps = pandas.DataFrame({"std": 0.1, "mean": 10.0, "busy": 0.9, "host_bound": bound})
    assert benchmarking_script.variability(steps).verdict.startswith(f"{who} steps vary little: the std is 1.0")


def test_the_best_segment_has_its_neighbours():
    cell = {"attention": "flash", "segment": 4}
    tables = changed(put(rows("checkpointing", metric="peak_memory", **cell), mean=1000.0))
    plain_attention, flash = bests(segments(one_model(tables["checkpointing"])))
    assert (plain_attention["row"]["segment"], plain_attention["shorter"]) == (1, None)
    assert isnan(plain_attention["without"]["peak"])  # without checkpointing: out of memory
    assert [flash[name]["segment"] for name in ("shorter", "row", "longer", "without")] == [2, 4, 8, 0]


def test_another_model_need_not_have_the_closed_forms():
    tables = changed(
        put(rows("memory_profile", category="gradients"), mean=1.0), put(rows("memory_profile"), model="my.model:LM")
    )
    checks = [check for check in law_checks("memory_profile", tables) if check.outcome == "not applicable"]
    assert [check.check.split()[0] for check in checks] == ["parameters,", "in", "a"]  # nothing is timed in it


@pytest.mark.parametrize("others", [{"batch_size": 8}, {"compiled": True}])
def test_what_was_timed_under_other_settings_is_not_compared(others):
    timed = recorded()["end_to_end"].assign(**others)
    tables = recorded() | {"kernel_profile": frame("kernel_profile", []), "end_to_end": timed}
    assert both_instruments_agree(tables).outcome == "not applicable"


def test_nothing_is_beyond_a_baseline_that_is_unsteady():
    steps = {"none": [99.0, 101.0, 160.0, 162.0, 99.0, 101.0], "naive": [201.0, 202.0] * 3, "flat": [181.0, 182.0] * 3}
    cell = {name: {"step": samples} for name, samples in steps.items()}
    contender_rows = ranks(DataParallelTraining, cell, rounds=3, steps=2)
    assert contender_rows["exposed"].isna().all()
    flat = one(contender_rows, contender="flat")
    assert against(flat, one(contender_rows, contender="naive")).faster
    assert not conclusion.weak_scaling(contender_rows, flat, "").verdict


def test_of_a_cell_measured_twice_the_run_with_most_contenders_is_shown():
    plain_cell = {"none": took(100.0), "naive": took(140.0)}
    twice = [
        training(DataParallelTraining, ("wrapper",), [cell], implementation=implementation)
        for implementation, cell in (("", plain_cell), ("mine=package:Mine", plain_cell | {"mine": took(109.0)}))
    ]
    shown = contenders(DataParallelTraining, pandas.concat(twice))
    assert list(shown["contender"]) == ["none", "naive", "mine"]


@pytest.mark.parametrize(
    ("waits", "apart", "expected"),
    [
        ([20, 12, 18], EVEN, True),
        ([20, 18, 12], EVEN, False),
        ([12, 18, 20], EVEN, False),
        ([20, 19.9, 20], UNEVEN, None),
        ([20, 19.9, 20], EVEN, None),  # less than a ratio shows
    ],
)
def test_whether_the_best_bucket_is_in_between(waits, apart, expected):
    cell = {f"bucketed {size}": took(100.0 + wait, apart) for size, wait in zip((1, 10, 100), waits, strict=True)}
    sizes = ranks(DataParallelTraining, cell)
    assert ddp_bucketed_benchmarking.in_between(sizes.assign(messages=[21.0, 8.0, 2.0])) is expected
    # Sizes that make equally many calls are one program: two are left, neither in between.
    assert ddp_bucketed_benchmarking.in_between(sizes.assign(messages=[21.0, 21.0, 2.0])) is None


def test_the_gain_over_pytorch_is_of_cells_that_tell_it():
    faster, slower = ({"fsdp": took(ms), "fully_shard": took(100.0)} for ms in (80.0, 125.0))
    scatters = {"fsdp": took(99.0, UNEVEN), "fully_shard": took(100.0, UNEVEN)}

    def gain(*cells):
        return against_pytorch(ranks(FullyShardedTraining, *cells))

    assert [each.speed.ratio for each in gain(faster, slower)] == pytest.approx([1.25, 0.8])
    assert [(each.speed.verdict, each.cell) for each in gain(scatters)] == [(SAME, "nano, 2 GPUs, fp32")]
    assert not gain({"fsdp": took(80.0)})
    (best,) = gain({"fsdp": took(80.0), "fully_shard": took(100.0), "fully_shard_tuned": took(90.0)})
    assert (best.other["title"], best.speed.ratio) == ("tuned fully_shard", 1.125)


def test_the_peak_is_that_of_the_rank_that_has_most():
    tables = changed(put(rows("optimizer_sharding", metric="peak_memory", **SHARDED), samples="1 99999"))
    assert select(peaks(memory(tables["optimizer_sharding"])), **SHARDED)["peak"].item() == 99999


def test_the_fullest_rank_is_that_with_most_state_whatever_else_it_has():
    after = {**SHARDED, "moment": "after_update"}
    tables = changed(
        put(rows("optimizer_sharding", metric="allocated", **after), samples="30000 40000"),
        put(rows("optimizer_sharding", metric="held", part="optimizer_state", **after), samples="5000 3000"),
    )
    answer = optimizer_state_sharding.answers(tables)["evenness"]
    assert "at most 25 % more than an equal share" in plain(answer.verdict)
    assert "62.50 % of the state of xl on 2 GPUs" in plain(answer.more)


def leaderboard(*parts, **changes):
    table = recorded()["leaderboard"]
    return table[table["part"].isin(parts)].assign(**changes)


def test_two_ranks_follow_from_one_between_limits():
    table = leaderboard("rank")
    alone = select(table, metric="step")["median"].iloc[0] / 1e3
    answer = training_leaderboard.answers({"leaderboard": table, "all_reduce": recorded()["all_reduce"]})["time"]
    # The recorded all-reduce of 1 GB takes 3.2 ms, and the weights have 16 GB in bf16.
    sent = 3.2e-3 * 2 * PARAMETERS / 1e9
    expected = f"Two H200s need between {alone:.2f} s (all communication hidden) and {alone + sent:.2f} s"
    assert expected in plain(f"{answer.verdict} {answer.more} {answer.reason}")
    assert len(plain(answer.verdict)) <= 100


@pytest.mark.parametrize("part", ["step", "rank"])
def test_a_lost_step_and_one_of_another_size_leave_the_closed_forms(part):
    nothing = training_leaderboard.answers({"leaderboard": leaderboard(part)[:0]})["time"]
    for lost in (leaderboard(part, size="nano", context=64), leaderboard(part).query("metric != 'step'")):
        answer = training_leaderboard.answers({"leaderboard": lost})["time"]
        assert (answer.verdict, answer.reason) == (nothing.verdict, nothing.reason)
        assert plain(answer.more) == "Two GPUs like this machine's would need at least 2.40 s."


def test_a_part_that_does_not_fit_says_why():
    lost = leaderboard("rank")[:1].assign(metric=WHOLE_CELL, status="skipped", message="It does not fit")
    answer = training_leaderboard.answers({"leaderboard": lost})["time"]
    assert "It does not fit." in plain(answer.reason)


def test_a_ladder_begins_where_memory_suffices():
    """As on a GPU of 80 GB: the first two rungs of 2.7B run out of memory, and no other cell was measured."""
    cell = select(recorded()["training_ladder"], part="steps", **LADDER)
    lost = cell["rung"].isin(["fp32", "autocast"])
    whole = cell[:1].assign(metric=WHOLE_CELL, rung="", status="oom")  # as another grid may have it
    tables = {"training_ladder": pandas.concat([whole, cell[~lost], cell[lost].assign(status="oom")])}
    answers = training_ladder.answers(tables)
    step = select(cell, metric="step").set_index("rung")["median"]
    words = f"{step['attention'] / step['overlap']:.2f}× as fast as the first version that fits (_our attention_)"
    assert words in plain(answers["fastest"].more)
    assert "2.7B runs out of memory with _fp32, eager_ and _bf16 autocast_." in plain(answers["fastest"].reason)
    must = "For 2.7B, start with _bf16 autocast_ and _our attention_, the first version that fits."
    assert plain(answers["advice"].verdict) == must
    fused, masters = step["masters"] - step["fused"], step["attention"] - step["masters"]
    then = f"_fused passes and loss_ ({fused:.1f} ms over eager blocks) and "
    then += f"_bf16 weights with fp32 masters_ ({masters:.1f} ms)."
    assert then in plain(answers["advice"].more)


def test_a_floor_has_all_of_its_parts():
    table = recorded()["training_ladder"]
    lost = table[~((table["metric"] == "floor") & (table["work"] == "update"))]
    assert floor_table(lost)["floor"].isna().all()
    assert not rung_table(lost)["over"].notna().any()


def test_a_gain_below_two_decimals_is_in_percent():
    assert plain(Speed(1.004, FASTER).sentence("a", "b")) == "A is 0.40 % faster than b."


def wrapped(cells):
    """Made-up rows of the ladder's steps of several processes: the time of each rung in ms, by cell."""
    rungs = {cell: [({"rung": rung}, took(ms)) for rung, ms in steps.items()] for cell, steps in cells.items()}
    return comparison("training_ladder", GPU, rungs)


def test_wrapped_steps_are_next_to_one_without_communication():
    cell = TrainingLadder(part="processes", processes=2, rungs="wrapped", **LADDER)
    steps = {"overlap": 160.0, "data_parallel": 200.0, "sharded": 180.0, "fsdp": 240.0}
    several = wrapped({cell: steps})
    alone = recorded()["training_ladder"].query("part != 'processes'")
    verdict = plain(training_ladder.answers({"training_ladder": pandas.concat([alone, several])})["several"].verdict)
    assert verdict == "The sharded optimizer is 1.11× as fast as the data-parallel wrapper (2.7B, 2 GPUs, bf16)."
    assert conclusion.in_less_memory(several) == ("", "")  # its memory was not measured
    wider = wrapped({cell: steps, replace(cell, processes=4): {"data_parallel": 190.0, "sharded": 200.0}})
    verdict = plain(training_ladder.answers({"training_ladder": pandas.concat([alone, wider])})["several"].verdict)
    assert verdict == "The data-parallel wrapper is 1.05× as fast as the sharded optimizer (2.7B, 4 GPUs, bf16)."


def test_counts_are_per_block():
    """The recorded 2.7B has as many heads as blocks; with half of the heads nothing that is counted changes."""
    half = "half:d_model=2560,d_ff=10240,num_layers=32,num_heads=16"
    names = ("end_to_end", "memory_profile", "checkpointing")
    tables = changed(*(put(rows(name, size="2.7B"), size=half) for name in names))
    for section, key in ((benchmarking_script, "host"), (memory_profiling, "largest")):
        assert section.answers(tables)[key] == section.answers(recorded())[key]
    for name, sentence in (("memory_profile", "in the forward pass"), ("checkpointing", "checkpointed blocks")):
        assert [check.outcome for check in law_checks(name, tables, sentence)] == ["passed"]


def test_the_advice_is_for_the_most_ranks():
    cells = [
        {"none": took(100.0), "bucketed 100": took(bucketed), "symmetric_memory 100": took(symmetric)}
        for bucketed, symmetric in ((120.0, 110.0), (115.0, 130.0))
    ]
    steps = training(DataParallelTraining, ("wrapper", "bucket_mb"), cells, precision="bf16")
    answers = conclusion.answers(recorded() | {"data_parallel": steps})
    assert plain(answers["advice"].verdict) == "For nano on up to 4 GPUs, use the _bucketed_ wrapper and bf16."


def test_no_ladder_is_a_report_too():
    nothing = recorded()["training_ladder"].iloc[:0]
    answers = training_ladder.answers({"training_ladder": nothing})
    assert not any(answers[name].verdict for name in ("fastest", "learning"))


def test_the_facts_of_fit_are_those_of_the_recorded_steps():
    """If not: python -m scripts.calibration.rates."""
    written, computed = json.loads(PATH.read_text()), facts(recorded())
    assert written.keys() == computed.keys()
    for key, value in computed.items():
        assert written[key] == (pytest.approx(value, rel=1e-2) if key == "weights" else value), key
