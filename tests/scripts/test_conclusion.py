"""The last chapter's numbers: weak scaling, and which steps may be compared."""

import pytest

from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.fsdp import FullyShardedTraining
from scripts.answers import conclusion
from scripts.views.data import frame
from scripts.views.scaling import PYTORCHS, scaling
from tests.support.tables import GPU, plain, table, took, training

XL = {"size": "xl", "precision": "bf16", "compiled": True, "rounds": 1, "steps": 2}
HOST = {"device_busy": 50.0, "timeline_length": 100.0}
"""A device that works for half of a step."""


def tables(*cells, single=None):
    found = {name: frame(name, []) for name in ("end_to_end", "kernel_profile", "fsdp", "training_ladder")}
    if single:
        found["end_to_end"] = table("end_to_end", GPU, single)
    return found | {"data_parallel": training(DataParallelTraining, ("wrapper", "bucket_mb"), cells, **XL)}


def test_weak_scaling_is_against_the_same_cells_step_without_communication():
    two = {"none": took(80.0), "naive": took(160.0), "bucketed 10": took(128.0), "bucketed 100": took(100.0)}
    four = {"none": took(90.0), "naive": took(200.0), "ddp 25": took(120.0), "ddp_view 100": took(100.0)}
    found = scaling(tables(two, four)).set_index(["title", "processes"])["efficiency"]
    assert dict(found) == pytest.approx(
        {("naive", 2): 0.5, ("bucketed", 2): 0.8, ("naive", 4): 0.45, (PYTORCHS, 4): 0.9}
    )


def test_nothing_scales_where_the_host_or_the_baseline_is_unsteady():
    assert not len(scaling(tables({"none": took(80.0, **HOST), "naive": took(160.0, **HOST)})))
    several = XL | {"rounds": 2}
    unsteady = {"none": {"step": [50.0, 50.0, 100.0, 100.0]}, "naive": {"step": [160.0] * 4}}
    found = training(DataParallelTraining, ("wrapper", "bucket_mb"), [unsteady], **several)
    assert not len(scaling({"data_parallel": found, "fsdp": frame("fsdp", [])}))
    sharded = training(FullyShardedTraining, ("wrapper",), [{"none": took(99.0), "fsdp": took(100.0)}])
    (row,) = scaling({"data_parallel": found, "fsdp": sharded}).to_dict("records")
    assert (row["contender"], row["efficiency"]) == ("fsdp", pytest.approx(0.99))


def test_only_device_bound_steps_of_the_same_work_are_compared():
    step = {"forward": 1.0, "backward": 1.0, "optimizer": 1.0}
    single = {
        EndToEnd(size="xl", precision="fp32"): {"step": 1024.0, "device_busy": 1000.0} | step,
        EndToEnd(size="xl", precision="bf16"): {"step": 256.0, "device_busy": 128.0} | step,
        EndToEnd(size="xl", precision="fp32", context=1024): {"step": 1.0} | step,
        EndToEnd(size="large", precision="fp32"): {"step": 1.0} | step,
    }
    cell = {"none": took(100.0), "naive": took(200.0), "symmetric_memory 100": took(128.0)}
    found = conclusion.answers(tables(cell, single=single))["helped"]
    rows = [[row[0], row[3], row[7], row[8]] for row in found.evidence[0].table.rows]
    # 4 times 512 tokens on each device: 2000 a second in fp32. The eager bf16 step is host-bound.
    assert rows == [
        ["fp32", "1024.0", "2000", "1.00"],
        ["bf16 autocast", "256.0", "8000", "–"],
        ["bf16 compiled into one CUDA graph", "100.0", "20480", "10.24"],
        ["+ symmetric memory, 100 MB", "128.0", "32000", "16.00"],
    ]
    assert "16.00×" in plain(found.verdict)
    assert not conclusion.answers(tables())["helped"].verdict
