"""The self-checks of data-parallel training, on made-up and on doctored tables."""

import re

import pytest

from cs336_systems.accounting.transformer import state_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.sizes import parse_size
from scripts.checks import data_parallel
from scripts.tables import merge
from scripts.views.data import load, select
from tests.samples import H200, planned_cells, provenance, rows_of, write_raw

CELL = {"processes": 2, "precision": "bf16", "compiled": False, "kind": ""}


CELLS = {
    "data_parallel": [
        DataParallelTraining(processes=processes, precision="bf16", compiled=compiled, tried=not compiled)
        for processes in (2, 4)
        for compiled in (False, True)
    ],
    "all_reduce": planned_cells("all_reduce", "handout")[:12],
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Tables of some of the handout's cells on an H200. Not to be changed."""
    folder = tmp_path_factory.mktemp("h200")
    tables = {}
    for name in ("data_parallel", "all_reduce"):
        raw = write_raw(folder, name, rows_of(CELLS[name], provenance(**H200)))
        merge(name, [str(raw)], str(folder / f"{name}.csv"), "nvidia-h200")
        tables[name] = load(name, folder / f"{name}.csv")
    return tables


def failures(tables, **doctored):
    """The details of the failed checks."""
    return [found.detail for found in data_parallel.checks(tables | doctored) if found.outcome == "failed"]


DOCTORED = [
    ("naive", "", "step", "p80", 1.0, "naive, 2 processes, bf16: p80 1.00 ms, without p20"),
    ("flat", "", "synchronization", "median", 9.0, "flat, 2 processes, bf16: 9.00 ms, at least 2"),
    ("bf16_wire", "100", "gradient_error", "mean", 0.0, "bf16_wire 100 MB, 2 processes, bf16: 0.0e"),
    ("bf16_wire", "100", "gradient_error", "mean", 0.017, "bf16_wire 100 MB, 2 processes, bf16: 1.7e-02"),
    ("none", "", "peak_memory", "mean", 1e3, "none, 2 processes, bf16: 1000 MiB, not between"),
]


@pytest.mark.parametrize(("wrapper", "bucket", "metric", "column", "value", "complaint"), DOCTORED)
def test_a_doctored_row_fails_its_check_and_is_named(sound, wrapper, bucket, metric, column, value, complaint):
    assert not failures(sound)
    table = sound["data_parallel"].copy()
    (index,) = select(table, wrapper=wrapper, bucket_mb=bucket, metric=metric, **CELL).index
    table.loc[index, column] = value
    found = failures(sound, data_parallel=table)
    assert any(re.search(complaint, detail) for detail in found), found


def test_what_does_not_fall_below_a_bound_passes(sound):
    table = sound["data_parallel"].copy()
    best = select(sound["all_reduce"], metric="algorithm_bandwidth", processes=2, backend="nccl")["median"].max()
    size = select(table, metric="communicated", wrapper="naive", **CELL)["mean"].item()
    state = state_bytes("train_step", parse_size("xl"), 10_000) / MIB
    bounds = {
        ("naive", "synchronization", "median"): size / best / 1.15,
        ("bf16_wire", "gradient_error", "mean"): 3 * 2**0.5 / 2**8,
        ("none", "peak_memory", "mean"): state,
    }
    for (wrapper, metric, column), bound in bounds.items():
        (index,) = select(table, metric=metric, wrapper=wrapper, **CELL).index
        inwards = -1 if metric == "gradient_error" else 1
        for factor, failed in ((1 + 0.01 * inwards, 0), (1 - 0.01 * inwards, 1)):
            table.loc[index, column] = factor * bound
            assert len(failures(sound, data_parallel=table)) == failed, metric
        table.loc[index, column] = sound["data_parallel"].loc[index, column]
