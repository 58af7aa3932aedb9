"""The training ladder in the report: what is computed of it, on recorded tables."""

import pandas
import pytest

from cs336_systems.experiments.training_ladder import TrainingLadder
from cs336_systems.record.measurement import WHOLE_CELL
from scripts.answers import training_ladder as section
from scripts.answers.conclusion import CLIMB, one_gpu
from scripts.views.data import frame, select
from scripts.views.training_ladder import (
    ends,
    fastest,
    floor_table,
    gain_table,
    recomputed_table,
    rung_table,
    wrapped_table,
)
from tests.samples import planned_rows
from tests.support.tables import GPU, comparison, plain

NAME = "training_ladder"


@pytest.fixture(scope="module")
def h200():
    return frame(NAME, planned_rows(NAME, "handout"))


@pytest.fixture(scope="module")
def cpu():
    return frame(NAME, planned_rows(NAME, "smoke"))


def test_a_step_is_compared_with_the_sum_of_its_parts(h200):
    rungs = rung_table(h200)
    assert [each["label"].iloc[0] for each in ends(rungs)] == ["small", "2.7B"]
    best = fastest(ends(rungs)[-1])
    assert (best["rung"], best["context"]) == ("overlap", 1024)
    cell = select(h200, size="2.7B", context=1024, batch_size=4, metric="floor")
    assert best["floor"] == pytest.approx(cell["median"].sum())
    assert best["over"] == pytest.approx(best["step"] / cell["median"].sum())
    assert best["tokens"] == pytest.approx(4096e3 / best["step"])
    assert best["joules"] == pytest.approx(best["energy"] / 4096)
    lost = h200[~((h200["metric"] == "floor") & (h200["work"] == "update"))]
    assert floor_table(lost)["floor"].isna().all()
    assert not rung_table(lost)["over"].notna().any()


def test_a_ladder_begins_where_memory_suffices(h200):
    """As on a GPU of 80 GB: the first two rungs of 2.7B run out of memory, and no other cell was measured."""
    cell = select(h200, size="2.7B", context=1024, batch_size=4, part="steps")
    lost = cell["rung"].isin(["fp32", "autocast"])
    whole = cell[:1].assign(metric=WHOLE_CELL, rung="", status="oom")  # as another grid may have it
    found = section.answers({NAME: pandas.concat([whole, cell[~lost], cell[lost].assign(status="oom")])})
    step = cell[cell["metric"] == "step"].set_index("rung")["median"]
    told = plain(found["fastest"].more)
    assert f"{step['attention'] / step['overlap']:.2f}× those of the first rung that fits (our attention)" in told
    assert "Memory did not suffice for fp32, eager and bf16 autocast." in plain(found["fastest"].reason)
    assert plain(found["advice"].verdict) == "For 2.7B, start with blocks compiled and bf16 weights, fp32 masters."


def test_a_gain_is_over_the_rung_before_and_that_of_fused_passes_over_eager_ones(h200):
    largest = ends(rung_table(h200))[-1]
    step = largest.set_index("rung")["step"]
    found = gain_table(h200, largest).set_index("rung")
    assert found["gain"]["autocast"] == pytest.approx(step["fp32"] - step["autocast"])
    assert found["gain"]["fused"] == pytest.approx(step["masters"] - step["fused"])
    busy = largest.set_index("rung")["device_busy"]
    assert found["expected"]["graph"] == pytest.approx(step["fused"] - busy["fused"])
    without = largest[largest["rung"] != "compiled"]
    assert "fused" in gain_table(h200, without).set_index("rung").index
    without = largest[largest["rung"] != "masters"]
    assert not {"masters", "compiled"} & set(gain_table(h200, without)["rung"])


def test_recomputed_blocks_are_next_to_the_fastest_step(h200):
    found = recomputed_table(rung_table(h200)).set_index("size")
    cell = select(h200, size="2.7B", context=1024, batch_size=4)
    (peak, step), (other_peak, other_step) = (
        [select(cell, metric=metric, rung=rung)["median"].iloc[0] for metric in ("peak_memory", "step")]
        for rung in ("overlap", "checkpoint")
    )
    assert found["saved"]["2.7B"] == pytest.approx(peak - other_peak)
    assert found["slower"]["2.7B"] == pytest.approx(other_step / step)
    told = f"save {(peak - other_peak) / 1024:.1f} GiB at {other_step / step:.2f}× the time"
    assert told in plain(section.answers({NAME: h200})["memory"].verdict)
    assert not len(recomputed_table(rung_table(h200[h200["rung"] != "checkpoint"])))


def test_wrapped_steps_are_next_to_one_without_communication(h200):
    cell = TrainingLadder(part="processes", processes=2, size="2.7B", batch_size=4, context=1024, rungs="wrapped")
    steps = {"overlap": 160.0, "data_parallel": 200.0, "sharded": 180.0, "fsdp": 240.0}
    table = comparison(NAME, GPU, {cell: [({"rung": rung}, {"step": ms}) for rung, ms in steps.items()]})
    found = wrapped_table(table).set_index("rung")
    assert list(found["title"]) == ["no communication", "data-parallel wrapper", "sharded optimizer", "FSDP"]
    assert (found["over"]["fsdp"], found["over"]["sharded"]) == (1.5, 1.125)
    assert found["tokens"]["sharded"] == pytest.approx(2 * 4096e3 / 180)
    alone = h200[h200["part"] != "processes"]
    verdict = plain(section.answers({NAME: pandas.concat([alone, table])})["several"].verdict)
    assert verdict == "On 2 GPUs sharded optimizer is fastest: 180 ms, 1.12× the step without communication."
    assert wrapped_table(select(table, rung="fsdp"))["over"].isna().all()
    assert not section.answers({NAME: alone})["several"].verdict


def test_a_processor_has_no_verdict_on_speed_and_nothing_is_a_report_too(cpu, h200):
    found = section.answers({NAME: cpu})
    assert not found["measured"]
    assert not found["fastest"].verdict
    assert "All 3 other exact rungs learn" in plain(found["learning"].verdict)
    nothing = section.answers({NAME: h200.iloc[:0]})
    assert not any(nothing[name].verdict for name in ("fastest", "learning"))
    assert not one_gpu(h200.iloc[:0]).say(CLIMB)
