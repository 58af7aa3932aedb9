"""Rows of small cells, measured on this machine, pass the report's self-checks: closed forms, sums, dtypes, counts."""

from itertools import product

import pytest
import torch

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import WALL
from cs336_systems.record.rows import make_row, read_jobs
from scripts.stages.self_checks import all_checks
from tests.benchmarks.test_parameters import CPU, benchmark, cell_of
from tests.samples import measured, provenance, write_raw
from tests.support.faults import tables_of

ODD = {"size": "odd:d_model=30,d_ff=44,num_layers=5,num_heads=3", "context": 11}
STEPS = ODD | {"warmup": 1, "steps": 3}
PRECISIONS = ("fp32", "bf16")


def cells(experiment, fixed=(), **values):
    """Cells of each combination of some parameters' values."""
    return [
        cell_of(experiment, **dict(fixed), **dict(zip(values, each, strict=True))) for each in product(*values.values())
    ]


CELLS = [
    cells(
        "accumulation",
        accumulator=("fp32", "fp16", "bf16"),
        addend=("fp32", "fp16", "bf16"),
        cast=(False, True),
        additions=(9, 1000),  # after 9 a cast shows in bf16, which later stalls either way
    ),
    cells("attention", precision=PRECISIONS),
    cells("autocast_dtypes", autocast=("fp16", "bf16")),
    cells("block_memory", ODD, precision=PRECISIONS, attention=("plain", "flash")),
    cells("checkpointing", STEPS, segment=(0, 1, 2, 5)),
    # Without mode=forward, whose times would be compared with the others'.
    cells("end_to_end", STEPS, precision=PRECISIONS, mode=("inference", "forward_backward", "train_step")),
    cells("kernel_profile", STEPS, precision=PRECISIONS, mode=("inference", "train_step")),
]


@pytest.mark.parametrize("cells", CELLS, ids=lambda cells: cells[0].name)
def test_rows_pass_the_self_checks(cells, tmp_path):
    name = cells[0].name
    torch.manual_seed(0)
    made = [make_row(cell, row, provenance()) for cell in cells for row in benchmark(name).measure(cell, CPU)]
    rows = read_jobs(EXPERIMENTS[name], [write_raw(tmp_path, name, made)])
    assert [check for check in all_checks(tables_of(name, rows)) if check.outcome == "failed"] == []
    kept = {row.metric for cell in measured(name, on_gpu=False).values() for row in cell}
    assert {row.metric for row in rows} >= kept - {WALL}
