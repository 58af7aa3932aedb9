"""The self-checks of sharded training, on made-up and on doctored tables."""

import re

import pytest

from cs336_systems.measure.measurement import format_samples, parse_samples
from scripts.checks import fsdp
from scripts.tables import merge
from scripts.views.data import load, select
from tests.samples import H200, planned_cells, provenance, rows_of, write_raw

CELL = {"size": "2.7B", "processes": 2, "precision": "fp32"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The table of the handout's cells on an H200. Not to be changed."""
    folder = tmp_path_factory.mktemp("h200")
    cells = [cell for cell in planned_cells("fsdp", "handout") if cell.processes == 2]
    raw = write_raw(folder, "fsdp", rows_of(cells, provenance(**H200)))
    merge("fsdp", [str(raw)], str(folder / "fsdp.csv"), "nvidia-h200")
    return load("fsdp", folder / "fsdp.csv")


def failures(table):
    """The details of the failed checks."""
    return [found.detail for found in fsdp.checks({"fsdp": table}) if found.outcome == "failed"]


def begin_at_once(samples):
    return format_samples([0.5 * sample for sample in parse_samples(samples)])


def drop_last(samples):
    return format_samples(parse_samples(samples)[:-1])


DOCTORED = [
    ("fsdp", "", "step", "p80", 1.0, "fsdp, 2.7B, 2 GPUs, fp32: p80 1.00 ms, passes"),
    ("fsdp", "", "begins", "samples", begin_at_once, "fsdp, 2.7B, 2 GPUs, fp32: unit 0 of 226"),
    ("fsdp", "", "needed", "samples", drop_last, "fsdp, 2.7B, 2 GPUs, fp32: not all times of 226 units are there"),
    ("fsdp", "", "between_steps", "median", 3e4, "fsdp, .*: 30000 MiB, .* expected"),
    ("none", "", "peak_memory", "median", 1e3, "none, .*: 1000 MiB, not between"),
]


@pytest.mark.parametrize(("wrapper", "kind", "metric", "column", "value", "complaint"), DOCTORED)
def test_a_doctored_row_fails_its_check_and_is_named(sound, wrapper, kind, metric, column, value, complaint):
    assert not failures(sound)
    table = sound.copy()
    (index,) = select(table, wrapper=wrapper, kind=kind, metric=metric, **CELL).index
    table.loc[index, column] = value(table.loc[index, column]) if callable(value) else value
    (found,) = failures(table)
    assert re.search(complaint, found), found
