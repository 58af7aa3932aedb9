"""The self-checks: all pass on sound tables; what each allows."""

import re

import numpy as np
import pandas
import pytest

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import WALL
from cs336_systems.record.rows import parameters
from scripts.checks import RUN_TO_RUN, attention_calls, dtypes, end_to_end
from scripts.checks.law import Reading
from scripts.checks.laws import peak_flops
from scripts.checks.machine import one_version_each
from scripts.checks.twins import no_two_times_identical
from scripts.stages.self_checks import all_checks
from scripts.views.data import select
from tests.samples import PEAK
from tests.support.faults import broken_laws, law_checks, multiply, on_a_cpu, put, recorded, rows


@pytest.fixture(scope="module")
def sound():
    return recorded()


@pytest.fixture(scope="module")
def sound_cpu():
    return on_a_cpu()


CELL = {"size": "large", "context": 512, "precision": "fp32", "compiled": False, "warmup": 5, "cold_start": False}


def test_sound_cpu_tables_pass_what_applies_to_a_cpu(sound_cpu):
    checks = list(all_checks(sound_cpu))
    assert {check.outcome for check in checks} == {"passed", "not applicable"}
    why = [check.detail for check in checks if check.outcome == "not applicable"]
    assert all(re.search("CPU|GPU|processor", reason) for reason in why), why
    assert len(why) == 40
    assert len({check.check for check in checks}) == len(checks)


@pytest.mark.slow
def test_no_check_fails_where_each_cell_was_faster_or_slower(sound):
    """By the spread of unchanged runs: a cell's times alike but the total, with which samples of the clock agree."""
    rng = np.random.default_rng(0)
    others = {name: table.copy() for name, table in sound.items()}
    for name, table in others.items():
        timed = table[table["unit"].isin(("ms", "s", "us")) & (table["metric"] != WALL) & (table["status"] == "ok")]
        cells = timed.groupby(parameters(EXPERIMENTS[name])).ngroup()
        signs = rng.choice([-1, 1], cells.nunique())
        for sign in (-1, 1):
            multiply(table, timed.index[signs[cells] == sign], 1 + RUN_TO_RUN * sign)
    failed = [check for check in all_checks(others) if check.outcome == "failed"]
    assert [(check.check, check.detail) for check in failed] == []


SHORT = {"forward": 0.3, "backward": 0.7, "device_bound": False}


def test_a_call_that_was_not_replayed_is_not_counted_as_host_bound():
    row = pandas.Series(SHORT | {"forward_backward": 0.84, "graph": float("nan"), "host": 0.5})
    assert not attention_calls.waits(row)
    assert attention_calls.adds_up(row)  # it may be host-bound


@pytest.mark.parametrize(
    ("whole", "graph", "host", "explained"),
    [
        (1.00, 0.99, 0.2, True),
        (0.84, 0.83, 0.2, False),  # device-bound: the whole takes what its parts take
        (0.84, 0.70, 0.9, True),  # a replay is faster: the parts were timed waiting for the host
        (0.84, 0.80, 0.9, True),  # the host takes as long as the call
        (0.60, 0.55, 0.9, False),
        (1.40, 1.00, 0.5, True),
        (1.80, 1.00, 0.5, False),  # longer than the parts and the host: something else ran
    ],
)
def test_the_host_explains_a_short_call_up_to_what_the_call_costs_it(whole, graph, host, explained):
    call = SHORT | {"forward_backward": whole, "graph": graph, "host": host}
    assert attention_calls.adds_up(pandas.Series(call)) == explained
    assert attention_calls.adds_up(pandas.Series(call | {"device_bound": True})) == (whole == 1)


LEADERBOARD = {"implementation": "triton", "heads": 16, "d": 128, "sequence": 16384, "precision": "bf16"}


@pytest.mark.parametrize(("clock", "power", "failed"), [(1.0, 300, 0), (0.9, 690, 0), (0.9, 640, 1)])
def test_a_clock_is_low_only_at_the_power_limit(sound, clock, power, failed):
    highest = select(sound["flash"], metric="sm_clock")["median"].max()
    slow = put(rows("flash", **LEADERBOARD, metric="handout_sm_clock"), median=clock * highest)
    fault = put(rows("flash", **LEADERBOARD, metric="handout_power"), median=power)
    assert len(broken_laws("flash", fault(slow(sound)), "if the GPU's clock falls")) == failed


def test_the_power_of_a_gpu_that_is_not_listed_has_no_law(sound):
    unlisted = {name: table.assign(gpu="NVIDIA Unknown") for name, table in sound.items()}
    (check,) = law_checks("flash", unlisted, "a GPU's power is within")
    assert (check.outcome, check.detail) == ("not applicable", "there is nothing to compare with")


def test_fp32_attention_may_take_the_matrix_units():
    fp32 = Reading("attention", pandas.Series({"precision": "fp32"}), pandas.DataFrame(), {})
    assert peak_flops(PEAK, fp32) == PEAK.bf16 / 6 > PEAK.fp32


@pytest.mark.parametrize(("faster", "noticed"), [(1, False), (2, False), (10, True)])
def test_no_step_in_fp8_is_faster_than_its_peak(sound, faster, noticed):
    fault = put(rows("training_ladder", rung="fp8", metric="step"), median=lambda ms: ms / faster)
    assert bool(broken_laws("training_ladder", fault(sound), "no step or attention pass")) == noticed


@pytest.mark.parametrize(
    ("off", "slow", "outcome"), [(1.5, 1.0, "failed"), (1.5, 10.0, "passed"), (2.5, 10.0, "failed")]
)
def test_a_disturbed_step_explains_a_difference_of_phases_up_to_a_limit(sound, off, slow, outcome):
    longer = rows("end_to_end", **CELL, metric="backward", mode="forward_backward")
    disturbed = rows("end_to_end", **CELL, metric="step", mode="train_step")
    tables = put(disturbed, p80=lambda p80: slow * p80)(put(longer, p20=lambda p20: off * p20)(sound))
    assert end_to_end.phases_add_up(tables["end_to_end"]).outcome == outcome


@pytest.mark.parametrize(
    ("slower", "factor", "outcome"),
    [
        (["forward", "backward", "optimizer", "step"], 3, "passed"),
        (["forward", "backward", "optimizer", "step"], 6, "failed"),
        (["forward"], 3, "failed"),
    ],
)
def test_a_cpu_may_be_slower_in_all_of_a_step_but_not_in_one_phase(sound_cpu, slower, factor, outcome):
    table = sound_cpu["end_to_end"].assign(p80=lambda rows: rows["p20"])  # undisturbed
    table.loc[(table["mode"] == "train_step") & table["metric"].isin(slower), ["p20", "p80"]] *= factor
    assert end_to_end.phases_add_up(table).outcome == outcome


def test_more_than_three_complaints_are_counted(sound):
    tables = {name: rows.iloc[:0] for name, rows in sound.items()}
    table = sound["end_to_end"].assign(value="float64")
    check = dtypes.dtypes_are_the_expected(tables | {"end_to_end": table})
    assert check.detail.endswith(f"(and {len(select(table, metric='logits_dtype')) - 3} more)")


@pytest.mark.parametrize(
    ("implementation", "versions", "outcome"),
    [
        ("triton", ["", "4.0"], "passed"),  # its launches need not have the library
        ("flash_attention_4", ["4.0", "4.0"], "passed"),
        ("flash_attention_4", ["", "4.0"], "failed"),
        ("flash_attention_4", ["4.0", "4.1"], "failed"),
        ("triton", ["4.0", "4.1"], "passed"),
    ],
)
def test_a_library_need_be_there_only_where_it_takes_part(sound, implementation, versions, outcome):
    flash = sound["flash"]
    two = select(flash, implementation=implementation).head(2).assign(flash_attn=versions)
    assert one_version_each({"flash": two}).outcome == outcome


@pytest.mark.parametrize(("column", "outcome"), [("mean", "passed"), (["mean", "std"], "failed")])
def test_two_times_are_one_if_their_spreads_are_the_same_too(sound, column, outcome):
    """Of a clock that ticks, a few readings can have the same mean."""
    flash = sound["flash"]
    one, other = flash[(flash["metric"] == "matmul") & (flash["implementation"] == "triton")].index[:2]
    flash = flash.astype({"mean": float, "std": float})
    flash.loc[[one, other], "std"] = [0.1, 0.2]
    flash.loc[other, column] = flash.loc[one, column]
    assert no_two_times_identical({"flash": flash}).outcome == outcome
